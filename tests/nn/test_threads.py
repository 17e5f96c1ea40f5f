"""Clients' arithmetic takes one thread, however many PyTorch may use: sums must not depend on how many share them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bifl.engine.simulator import simulate
from bifl.nn.models import model
from tests.support.federation import quick

seen: set[tuple[bool, bool, int]] = set()


@torch.fx.wrap  # called whenever the network computes, not once by its trace
def note(x: Tensor, training: bool) -> Tensor:
    """Notes how it is called: in training, for gradients, with how many threads."""
    seen.add((training, torch.is_grad_enabled(), torch.get_num_threads()))
    return x


class Noting(nn.Module):
    """Calls `note`."""

    def forward(self, x: Tensor) -> Tensor:
        return note(x, self.training)


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
def test_training_measuring_and_evaluation_take_one_thread(small: Path) -> None:
    @model
    def noting(classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), Noting(), nn.Linear(784, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, classes))

    simulation = simulate(quick(small, model="noting", rounds=1, workers=1))
    seen.clear()  # of what tries the network out
    list(simulation)
    reading = {(True, False, 1)}
    assert seen - reading == {(True, True, 1), (False, False, 1)}
    assert torch.get_num_threads() == 2
