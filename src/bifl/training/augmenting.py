"""Augmentation: what a client's inputs may become before each step. It draws from a stream of the client and round.

An augmentation of your own, for `augment=my.py:mine`, is a function in a Python file:

    @augment
    def mine(loudest: float = 2.0) -> Augment:
        "Each input louder or quieter."
        def louder(inputs: Tensor, generator: np.random.Generator) -> Tensor:
            factors = torch.from_numpy(generator.uniform(1 / loudest, loudest, len(inputs))).to(inputs)
            return inputs * factors.view(-1, *[1] * (inputs.dim() - 1))
        return louder
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from bifl.errors import ConfigError
from bifl.registry import Registry

# (inputs as the network takes them: normalised, or tokens; random numbers) → as many of the same shape and type
Augment = Callable[[Tensor, np.random.Generator], Tensor]
augment: Registry[Augment] = Registry("augment")
SIGNATURE = "a function (inputs, generator) → inputs of the same shape and type"


def as_they_are(inputs: Tensor, generator: np.random.Generator) -> Tensor:
    """The inputs."""
    return inputs


@augment
def none() -> Augment:
    """Inputs as they are."""
    return as_they_are


@augment
def shift_flip(shift: int = 2, flip: bool = True) -> Augment:
    """Images moved by up to `shift` pixels, borders repeated, and half of them mirrored if `flip`: not for digits and letters."""
    if not 0 <= shift <= 1000:
        raise ConfigError(f"augment.shift must be a number of pixels from 0 to 1000, not {shift}")

    def moved(images: Tensor, generator: np.random.Generator) -> Tensor:
        if images.dim() != 4 or not images.is_floating_point():
            raise ConfigError(f"augment=shift_flip is for images, (n, channels, height, width), not {tuple(images.shape)}")
        count, _, height, width = images.shape
        by = generator.integers(-shift, shift + 1, (2, count, 1))
        rows = np.clip(np.arange(height) + by[0], 0, height - 1)
        columns = np.clip(np.arange(width) + by[1], 0, width - 1)
        mirrored = generator.random((count, 1)) < (0.5 if flip else 0.0)
        columns = np.where(mirrored, columns[:, ::-1], columns)
        places = (np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :])
        numbers, lines, dots = (torch.from_numpy(place).to(images.device) for place in places)
        return images[numbers, :, lines, dots].permute(0, 3, 1, 2)

    return moved


@augment
def noise(deviation: float = 0.05) -> Augment:
    """Gaussian noise on floats and pixels, in units of their own deviation: for sensors."""
    if not 0 <= deviation < math.inf:
        raise ConfigError(f"augment.deviation must be 0 or more, not {deviation}")

    def shaken(inputs: Tensor, generator: np.random.Generator) -> Tensor:
        if not inputs.is_floating_point():
            raise ConfigError("augment=noise is for floats and pixels, not for tokens")
        drawn = generator.standard_normal(tuple(inputs.shape), np.float32) * np.float32(deviation)
        return inputs + torch.from_numpy(drawn).to(inputs.device)

    return shaken
