"""How clients train in a round."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from bifl.nn.optimizers import Optimizer, checked, optimizer
from bifl.training.augmenting import Augment, as_they_are

_NONE: Mapping[str, Any] = MappingProxyType({})


class Plan(NamedTuple):
    """How to train in this round."""

    optimizer: str
    lr: float
    batch: int
    epochs: int
    seed: int = 0  # of the experiment: with the round it gives every client's random streams
    round: int = 1
    settings: Mapping[str, Any] = _NONE  # of the optimiser
    steps: int = 0  # instead of epochs; 0 means epochs
    clip: float = 0.0  # the largest norm of a step's gradient; 0 means any
    augment: Augment = as_they_are

    def made(self) -> Optimizer:
        """The optimiser itself."""
        return checked(self.optimizer, optimizer.make(self.optimizer, self.settings))
