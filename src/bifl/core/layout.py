"""How a network's parameters lie in two flat vectors: `coded` (what algorithms send as symbols) and `real` (what is averaged).

coded: the weights and biases of convolutions and linear layers, in the order of the network; those that `Forward.codes` names.
       With a real forward those of all layers but norms: embeddings, recurrent layers and attention too.
real:  [ϑ, one per coded layer | batch-norm γ and β, layers kept real | E[x] of every batch-norm input | E[x²] of them].

Running statistics travel as the moments E[x] and E[x²] because moments may be averaged: the pooled variance then contains the
variance of the clients' means, exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.generic)


def mean_magnitude(values: npt.NDArray[np.floating]) -> np.floating:
    """The mean of |values|."""
    mean: np.floating = np.abs(values).mean()
    return mean


class Tensor(NamedTuple):
    """One parameter tensor: its dotted name in the network, its shape, and the layer that owns it."""

    name: str
    shape: tuple[int, ...]
    layer: int = -1  # index into Layout.layers; real tensors have none

    @property
    def owner(self) -> str:
        """The name of the module that it is a parameter of."""
        return self.name.rpartition(".")[0]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The names, shapes and order that both ends of a message agree on."""

    layers: tuple[str, ...]  # names of the coded ones; each has one scale ϑ
    coded: tuple[Tensor, ...]  # of the coded vector
    affine: tuple[Tensor, ...]  # batch-norm γ and β and whatever else stays real, after ϑ in the real vector
    moments: tuple[Tensor, ...]  # batch-norm inputs, (name, channels): their E[x], then their E[x²], end the real vector

    @cached_property
    def count(self) -> int:
        """Length of the coded vector."""
        return sum(t.size for t in self.coded)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How much of the coded vector belongs to each layer."""
        return tuple(sum(t.size for t in self.coded if t.layer == layer) for layer in range(len(self.layers)))

    @cached_property
    def fan_in(self) -> tuple[int, ...]:
        """How many inputs an output of each layer has."""
        weights = {t.layer: prod(t.shape[1:]) for t in reversed(self.coded) if len(t.shape) > 1}
        return tuple(weights.get(layer, 1) for layer in range(len(self.layers)))

    @cached_property
    def trained(self) -> int:
        """How much of the real vector is trained: ϑ and affine. The rest are moments."""
        return len(self.layers) + sum(t.size for t in self.affine)

    @cached_property
    def reals(self) -> int:
        """Length of the real vector."""
        return self.trained + 2 * sum(t.size for t in self.moments)

    @cached_property
    def parameters(self) -> int:
        """Trainable parameters (ϑ included, running statistics not): what "bits per parameter" divides by."""
        return self.count + self.trained

    @cached_property
    def statistics(self) -> Layout:
        """The layout of a model that is nothing but batch-norm's statistics."""
        return Layout((), (), (), self.moments)

    @cached_property
    def normed(self) -> npt.NDArray[np.bool_]:
        """(trained,) which trained reals are batch-norm's γ and β; the others are ϑ and the weights of layers kept real."""
        norms = {tensor.name for tensor in self.moments}
        affine = [np.full(tensor.size, tensor.owner in norms) for tensor in self.affine]
        return np.concatenate([np.zeros(len(self.layers), np.bool_), *affine])

    @cached_property
    def kept(self) -> tuple[Tensor, ...]:
        """The tensors of layers kept real: of those that have a matrix. Norms have none, of whatever kind they are."""
        owners = {tensor.owner for tensor in self.affine if len(tensor.shape) > 1}
        return tuple(tensor for tensor in self.affine if tensor.owner in owners)

    @cached_property
    def of_kept(self) -> npt.NDArray[np.bool_]:
        """(trained,) which trained reals are of layers kept real."""
        kept = [np.full(tensor.size, tensor in self.kept) for tensor in self.affine]
        return np.concatenate([np.zeros(len(self.layers), np.bool_), *kept])

    def layer_parts(self, coded: npt.NDArray[Number]) -> list[npt.NDArray[Number]]:
        """(count,) values as one flat part per coded layer."""
        return np.split(coded, np.cumsum(self.sizes)[:-1])

    def per_layer(
        self, coded: npt.NDArray[Number], number: Callable[[npt.NDArray[Number]], float | np.floating]
    ) -> npt.NDArray[np.float32]:
        """(layers,) a number of each layer's part of (count,) values, such as `mean_magnitude`."""
        return np.array([number(part) for part in self.layer_parts(coded)], np.float32)

    def per_weight(self, per_layer: Iterable[float]) -> npt.NDArray[np.float32]:
        """(layers,) values → (count,): each weight gets its layer's."""
        return np.repeat(np.asarray(list(per_layer), np.float32), self.sizes)

    def split(self, coded: npt.NDArray[Number]) -> list[npt.NDArray[Number]]:
        """(count,) values as one flat part per coded tensor."""
        return np.split(coded, np.cumsum([t.size for t in self.coded]))[:-1]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all names and shapes: equal exactly for networks whose messages fit each other."""
        return hashlib.sha256(repr((self.layers, self.coded, self.affine, self.moments)).encode()).hexdigest()[:16]
