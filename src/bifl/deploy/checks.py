"""Checks of what clients send, before the server counts it. A reply may come from anybody."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bifl.codec import WireError
from bifl.core.exact_sum import LARGEST_WEIGHT
from bifl.core.message import Message
from bifl.core.sides import ServerSide
from bifl.core.state import Public
from bifl.core.sums import Total
from bifl.deploy.finite import finite
from bifl.engine.scoring import Score
from bifl.exchanges.exchange import Exchange
from bifl.runs.events import quoted
from bifl.tasks.task import Task
from bifl.training.evaluation import CHUNK

LARGEST_LOSS = 1e4  # of one image
_DIGEST = 64  # letters, at most


def fits(message: Message, number: int, images: int, like: Message) -> None:
    """Refuse what can be read and yet cannot be counted.

    Args:
        message: an upload.
        number: of the client that it came from.
        images: which that client has.
        like: an upload of the same form.

    Raises:
        WireError: as for what cannot be read.
    """
    if message.sender != number:
        raise WireError(16, f"is from client {message.sender}, not from {number}")
    if message.weight != images:
        raise WireError(20, f"weighs {message.weight} images, the client has {images}")
    finite(message.real, message.scales, *([] if message.alphabet.size else [message.symbols]))
    if message.alphabet != like.alphabet:
        raise WireError(6, f"is spelled in {message.alphabet.name}, this algorithm's uploads in {like.alphabet.name}")
    if len(message.scales) != len(like.scales):
        raise WireError(56, f"has {len(message.scales)} scales, this algorithm's uploads have {len(like.scales)}")


def trial(upload: Message, exchange: Exchange, public: Public, server: ServerSide) -> Message:
    """What an upload counts as. It is counted alone first, so that nothing in it can spoil what the others have said.

    Raises:
        WireError: the algorithm makes numbers of it that no training gives.
        Exception: whatever the algorithm raises.
    """
    opened, alone = exchange.open(upload, public, server), exchange.total(public)
    alone.add(opened)
    if isinstance(alone, Total):
        tally = alone.tally()
        finite(tally.mean, tally.real, tally.scales)
    else:  # what is made of several uploads may need several
        finite(opened.values(), opened.real, opened.scales)
    return opened


def turn(said: Mapping[str, Any], uploads: bool, tells_loss: bool) -> str | None:
    """Why an answer in an exchange cannot be counted; None if it can, as far as it is not yet opened.

    Args:
        said: the answer.
        uploads: whether an upload was asked for.
        tells_loss: whether clients train in this exchange, and say how that went.
    """
    loss, upload = said.get("loss"), said.get("upload")
    if not tells_loss:
        sensible = loss is None and (type(upload) is bytes) == uploads and (upload is not None) == uploads
        return None if sensible else "the answer lacks an upload, or has something else in it"
    if type(loss) is not float or (type(upload) is bytes) != uploads or (upload is not None) != uploads:
        return "the answer lacks a loss or an upload, or has one too many"
    if not 0 <= loss <= LARGEST_LOSS:
        return f"its training loss is {loss:g}, where {LARGEST_LOSS:g} is the most: if it is honest, its training diverged"
    return None


def misfit(said: Mapping[str, Any], clients: int, model: str) -> str | None:
    """Why a node cannot be a client; None if it can.

    Args:
        said: its introduction.
        clients: how many there may be.
        model: fingerprint of the run's model.
    """
    number, images, digest = said.get("number"), said.get("images"), said.get("digest")
    if type(number) is not int or type(images) is not int or type(digest) is not str or len(digest) > _DIGEST:
        return "its introduction makes no sense"
    if not 0 <= number < clients:
        return f"its number {number} is none of 0 to {clients - 1}"
    if not 1 <= images <= LARGEST_WEIGHT // clients:  # so that all together can be added up
        return f"it cannot hold {images} images"
    if said.get("model") != model:
        return f"it has another model, {quoted(said.get('model'))}"
    return None


def scores(number: int, said: Mapping[str, Any], most: int, task: Task) -> list[Score] | None:
    """A client's evaluation; None if it makes no sense.

    Args:
        number: of the client.
        said: what it says.
        most: samples that it can hold out.
        task: of the run: it knows what can be.
    """
    held, sums, losses = columns = [said.get(name, []) for name in ("held", "sums", "losses")]
    if not all(type(column) is list for column in columns) or not len(held) == len(losses) <= most:
        return None
    if len(sums) != task.length * len(held) or any(type(count) is not int for count in held):
        return None
    if any(type(one) is not float for one in (*sums, *losses)) or not _chunks(held) or sum(held) > most:
        return None
    rows = [tuple(sums[start : start + task.length]) for start in range(0, len(sums), task.length)]
    found = [Score(number, chunk, *row) for chunk, row in enumerate(zip(held, rows, losses, strict=True))]
    sensible = all(
        np.isfinite(score.sums).all()
        and task.sensible(np.array(score.sums), score.images)
        and 0 <= score.loss <= LARGEST_LOSS * score.images
        for score in found
    )
    return found if sensible else None


def _chunks(held: list[int]) -> bool:
    """Whether images are evaluated as everyone does: in chunks that are full, but for the last."""
    return all(count == CHUNK for count in held[:-1]) and all(1 <= count <= CHUNK for count in held[-1:])


def held_out(images: int, share: float) -> int:
    """How many images a client can hold out that trains on so many, where it holds a share of all out (`experiment.setup.cut`)."""
    return math.floor((share * images + 1) / (1 - share)) + 1  # one more: shares are floats
