"""A model's raw inputs, as the dataset has them, and what makes floats of them: what is exported normalises by itself."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from bifl.data.inputs import BYTES, MOST_VALUES, TOKENS
from bifl.errors import ConfigError
from bifl.experiment.model import Model
from bifl.nn.batch import normalise


class Normalisation(NamedTuple):
    """What makes floats of the raw inputs: (x/divisor − mean)/std, by channel or for all."""

    kind: str  # the C type of a raw value
    divisor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def normalisation(model: Model) -> Normalisation:
    """A model's: bytes are pixels, from 0 to 255; all else are floats."""
    mean, std = np.broadcast_arrays(np.atleast_1d(np.asarray(model.mean, np.float64)), np.asarray(model.std, np.float64))
    kind, divisor = ("uint8_t", 255.0) if model.inputs == BYTES else ("float", 1.0)
    return Normalisation(kind, divisor, tuple(mean.tolist()), tuple(std.tolist()))


def raw_inputs(model: Model, shape: tuple[int, ...], count: int) -> npt.NDArray[Any]:
    """(count, *shape) random inputs, the same every time."""
    draw = np.random.default_rng(0)
    if model.inputs == TOKENS:
        return np.zeros((count, *shape), np.int64)  # a token that every network knows
    if model.inputs == BYTES:
        return draw.integers(0, 256, (count, *shape), np.uint8)
    how = normalisation(model)
    mean, std = (np.array(scale).reshape(-1, *[1] * (len(shape) - 1)) for scale in (how.mean, how.std))
    return np.asarray(draw.normal(size=(count, *shape)) * std + mean, np.float32)


@torch.no_grad()
def outputs(model: Model, module: nn.Module, raw: npt.NDArray[Any]) -> Any:
    """What PyTorch makes of raw inputs."""
    return module(normalise(torch.from_numpy(raw), model.mean, model.std))


def input_shape(text: str, key: str) -> tuple[int, ...]:
    """The shape of one input as somebody types it, 1x28x28."""
    words = text.replace("×", "x").split("x")
    if not all(word.isdecimal() and len(word) < 9 and int(word) for word in words) or len(words) > 4:
        raise ConfigError(f"{key} must be sizes such as 1x28x28, not '{text}'")
    shape = tuple(map(int, words))
    if prod(shape) > MOST_VALUES:
        raise ConfigError(f"{key} {text} has more than {MOST_VALUES:,} values")
    return shape
