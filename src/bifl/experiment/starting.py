"""Warm start: `start=MODEL` begins a run with the weights of a model file instead of the network's own initialisation.

A setting keeps the file's path and the beginning of its SHA-256, `path@digest`: two runs are the same if they began with the same
model, wherever it lay, and a file that has changed is refused. The network is the experiment's own; what the file says of one is
not used, so no Python file is ever run for it.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bifl import codec
from bifl.codec.model_file import parts, reading
from bifl.core.forward import FORWARDS, Forward, binary
from bifl.core.state import Public
from bifl.errors import ConfigError
from bifl.nn.network import Network

_DIGEST = re.compile(r"[0-9a-f]{16}")
_ROOM = 2**20  # bytes of a model file beside its numbers
_LEAST = np.float32(1e-4)  # magnitude of an auxiliary weight that has a sign


def marked(text: str) -> str:
    """A path as `path@digest`; what is marked already stays as it is, and no file is opened for it."""
    if not text or _DIGEST.fullmatch(text.rpartition("@")[2]):
        return text
    try:
        if not os.path.isfile(text):
            raise ConfigError(f"start must be a model file: '{text}' is none")
        with open(text, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise ConfigError(f"start: cannot read model '{text}': {error.strerror}") from error
    return f"{os.path.abspath(text)}@{digest.hexdigest()[:16]}"


def digest_alone(text: str) -> str:
    """What a marked start is, wherever its file lies; one that is not marked is refused."""
    digest = text.rpartition("@")[2]
    if text and not _DIGEST.fullmatch(digest):
        raise ConfigError(f"start must be a path and a digest, '{text}' has none")
    return text and f"@{digest}"


def refuse_nameless(start: str) -> None:
    """Refuse to begin a run with a model of which only the digest is known: that is enough for one that goes on."""
    if start.startswith("@"):
        raise ConfigError(f"start={start} names no file: give the path of the model")


def remark_validated(start: str, validation: float) -> None:
    """Tell a person at the terminal that a model to start with may know the validation samples."""
    if start and validation:
        print(
            f"bifl: validation={validation:g} holds samples back from this run alone: the model of start= may have been trained on "
            "them, and flatters what is chosen then",
            file=sys.stderr,
        )


def start_with(start: str, public: Public, forward: Forward, make: Callable[[Forward], Network]) -> Public:
    """The public state before the first round with the weights of a model file, `path@digest`, instead of those that it has.

    Args:
        start: which file.
        public: with the network's own initialisation.
        forward: how the experiment's network uses its weights.
        make: makes that network with another forward.
    """
    if forward.of_scores:
        raise ConfigError("start= gives weights, and clients of this algorithm train scores of constant weights: leave it out")
    path, _, digest = start.rpartition("@")
    data = _read(Path(path), digest, public.layout.count + public.layout.reals + make(forward).constants.size())
    with reading(path):
        facts, message, constants = parts(data)
        theirs, header = FORWARDS[facts["forward"]], codec.read_header(message)
    other = make(theirs)
    try:
        model = codec.decode(message, codec.Context(other.layout, header.round))
    except codec.WireError as error:
        raise ConfigError(
            f"start: '{path}' is no model of this run's network ({error}): give model= and its parameters as that run did"
        ) from error
    values, real = model.update.values(), model.real
    if not (np.isfinite(values).all() and np.isfinite(real).all()):
        raise ConfigError(f"start: '{path}' holds numbers that are not finite")
    if constants.tobytes() != other.constants.read().tobytes():
        raise ConfigError(f"start: '{path}' has other frozen parameters than the network of this run, and those are never sent")
    if theirs == forward == binary:  # signs do not say how sure they are: that is as in any other start
        return public._replace(weights=values * np.maximum(np.abs(public.weights), _LEAST), real=real)
    other.show(values, real, theirs)
    weights, real = other.laid_out(public.layout)
    return public._replace(weights=np.clip(weights, -1, 1) if forward.clip else weights, real=real)


def _read(path: Path, digest: str, numbers: int) -> bytes:
    """A model file's bytes, if they are those that the digest is of."""
    try:
        if path.stat().st_size > 4 * numbers + _ROOM:
            raise ConfigError(f"start: '{path}' is larger than any model of this run's network")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"start: cannot read model '{path}': {error.strerror}") from error
    if hashlib.sha256(data).hexdigest()[:16] != digest:
        raise ConfigError(f"start: '{path}' is another model than the one that was given, whose SHA-256 begins with {digest}")
    return data
