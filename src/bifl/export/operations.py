"""The simple operations that a traced network consists of: what the C exporter and the cost tables know.

Maps are stored channel last, as (height, width, channels); a sequence has height 1, a vector is one pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Pair = tuple[int, int]


class Shape(NamedTuple):
    """Of a value for one input."""

    channels: int
    height: int
    width: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self)


@dataclass(frozen=True, eq=False)
class Dot:
    """A convolution; a linear layer is one of a single pixel."""

    weight: Floats  # (outputs, height, width, inputs of a group): the stored order
    bias: Floats | None
    stride: Pair
    padding: Pair  # before the first row and column
    dilation: Pair
    groups: int


@dataclass(frozen=True, eq=False)
class Affine:
    """x·scale + shift, by channel: batch-norm."""

    scale: Doubles
    shift: Doubles


@dataclass(frozen=True)
class Activation:
    """tanh, relu, gelu or gelu_tanh."""

    name: str


@dataclass(frozen=True)
class Pool:
    """The largest or the mean value of windows."""

    name: str  # max or mean
    size: Pair
    stride: Pair
    padding: Pair
    count_padding: bool = False  # whether a mean divides by what lies outside of the map too


@dataclass(frozen=True)
class Add:
    """The sum of two values of one shape."""


@dataclass(frozen=True)
class Input:
    """The network's input, normalised."""


Work = Dot | Affine | Activation | Pool | Add | Input


class Operation(NamedTuple):
    """A step of the network."""

    name: str  # of the layer, or what the network's code calls
    work: Work
    sources: tuple[int, ...]  # numbers of the operations that it reads
    shape: Shape  # of what it gives
