"""Checks of what clients send, before the server counts it. A reply may come from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bifl.core.exact_sum import LARGEST_WEIGHT
from bifl.runs.events import quoted

LARGEST_LOSS = 1e4  # of one image
_DIGEST = 64  # letters, at most


def reply(said: Mapping[str, Any], uploads: bool, tells_loss: bool) -> str | None:
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
