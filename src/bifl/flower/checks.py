"""What a server lets clients say: everything that crosses the wire may have been made by somebody else."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bifl.message import Message
from bifl.runtime.turns import Score
from bifl.tally import LARGEST_WEIGHT
from bifl.wire import WireError

_LARGEST = 2.0**31  # no trained number is as large


def fits(message: Message, number: int, images: int, like: Message | None) -> None:
    """Refuse what can be read and yet cannot be counted.

    Args:
        message: an upload.
        number: of the client that it came from.
        images: which that client has.
        like: an upload of the same form, if the form matters.

    Raises:
        WireError: as for what cannot be read.
    """
    if message.sender != number:
        raise WireError(16, f"is from client {message.sender}, not from {number}")
    if message.weight != images:
        raise WireError(20, f"weighs {message.weight} images, the client has {images}")
    for numbers in (message.real, message.scales, *([] if message.alphabet.size else [message.symbols])):
        if not np.all(np.abs(numbers) < _LARGEST):
            raise WireError(68, "holds numbers that are not finite or far too large")
    if like is not None and message.alphabet != like.alphabet:
        raise WireError(6, f"is spelled in {message.alphabet.name}, this algorithm's uploads in {like.alphabet.name}")
    if like is not None and len(message.scales) != len(like.scales):
        raise WireError(56, f"has {len(message.scales)} scales, this algorithm's uploads have {len(like.scales)}")


def misfit(said: Mapping[str, Any], taken: Collection[int], clients: int, model: str) -> str | None:
    """Why a node cannot be a client; None if it can.

    Args:
        said: its introduction.
        taken: the clients that are there already.
        clients: how many there may be.
        model: fingerprint of the run's model.
    """
    number, images = said.get("number"), said.get("images")
    if type(number) is not int or type(images) is not int or not isinstance(said.get("digest"), str):
        return "its introduction makes no sense"
    if not 0 <= number < clients:
        return f"its number {number} is none of 0 to {clients - 1}"
    if not 1 <= images <= LARGEST_WEIGHT // clients:  # so that all together can be added up
        return f"it cannot hold {images} images"
    if said.get("model") != model:
        return f"it has another model, {said.get('model')}"
    return f"client {number} is there already" if number in taken else None


def scores(number: int, said: Mapping[str, Any]) -> list[Score] | None:
    """A client's evaluation; None if it makes no sense."""
    columns = [said.get(name, []) for name in ("held", "correct", "losses")]
    try:
        found = [Score(number, chunk, *row) for chunk, row in enumerate(zip(*columns, strict=True))]
        sensible = all(0 <= score.correct <= score.images and score.images > 0 and math.isfinite(score.loss) for score in found)
    except (TypeError, ValueError):
        return None
    return found if sensible else None
