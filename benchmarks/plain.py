"""What `speed.py` compares with: the paper's networks as anyone would write them, trained by an ordinary PyTorch loop.

Random images do: the time of a step does not depend on what is in them. Flower's clients (`flower_clients.py`) run `epoch` too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

State = dict[str, Tensor]
BATCH, LR = 64, 0.005


class Case(NamedTuple):
    """A round's work."""

    model: str
    clients: int
    images: int  # of each client
    classes: int
    convolutions: tuple[int, int, int]  # channels of both, and the side of their kernels
    hidden: int

    def module(self) -> nn.Module:
        """Convolution – batch-norm – tanh – pool, in PyTorch's default layout."""
        first, second, side = self.convolutions
        return nn.Sequential(
            nn.Conv2d(1, first, side, padding=side // 2, bias=False), nn.BatchNorm2d(first), nn.Tanh(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, side, padding=side // 2, bias=False), nn.BatchNorm2d(second), nn.Tanh(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(second * 49, self.hidden), nn.BatchNorm1d(self.hidden), nn.Tanh(),
            nn.Linear(self.hidden, self.classes), nn.BatchNorm1d(self.classes),
        )  # fmt: skip

    def flops(self) -> int:
        """Multiplications and additions of a round's layers: forward, and both gradients (one for the first layer)."""
        first, second, side = self.convolutions
        one = 28 * 28 * first * side**2
        rest = 14 * 14 * second * first * side**2 + second * 49 * self.hidden + self.hidden * self.classes
        return 2 * (2 * one + 3 * rest) * self.images * self.clients


CASES = {
    "mnist_cnn": Case("mnist_cnn", 100, 540, 10, (16, 16, 3), 100),
    "femnist_cnn": Case("femnist_cnn", 10, 500, 62, (32, 64, 5), 2048),
}


@lru_cache(maxsize=1)
def images(case: Case) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All clients' images and labels, one client's after the other's."""
    generator = np.random.default_rng(0)
    count = case.clients * case.images
    return generator.integers(0, 256, (count, 1, 28, 28), np.uint8), generator.integers(0, case.classes, count)


@lru_cache(maxsize=1)
def floats(case: Case) -> tuple[Tensor, Tensor]:
    """The same, normalised once."""
    pixels, labels = images(case)
    return (torch.from_numpy(pixels).float() / 255 - 0.1307) / 0.3081, torch.from_numpy(labels)


def epoch(case: Case, module: nn.Module, client: int) -> None:
    """A client's part in a round: one pass over its own images, with a fresh Adam."""
    optimizer = torch.optim.Adam(module.parameters(), lr=LR)
    pixels, labels = floats(case)
    module.train()
    for chosen in torch.split(torch.randperm(case.images) + client * case.images, BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(pixels[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def part(task: tuple[Case, State, range]) -> State:
    """One process's part in a round of FedAvg: the sum of what its clients made of the global model."""
    case, state, clients = task
    torch.set_num_threads(1)
    module, total = case.module(), {name: torch.zeros_like(value) for name, value in state.items()}
    for client in clients:
        module.load_state_dict(state)
        epoch(case, module, client)
        for name, value in module.state_dict().items():
            total[name] += value
    return total
