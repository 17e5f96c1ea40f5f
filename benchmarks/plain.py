"""What `speed.py` compares with: networks as anyone would write them, trained by a tuned PyTorch loop.

Channels last, torch's fused Adam, one thread a process, and the same settings of malloc as our workers have: `KEEPS_MEMORY`. Random
inputs do: the time of a step does not depend on what is in them. Flower's and pfl-research's clients run the same steps.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from networks import NETWORKS
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

State = dict[str, Tensor]
BATCH, LR = 64, 0.005
MEAN, STD = 0.1307, 0.3081


class Case(NamedTuple):
    """A round's work."""

    model: str
    clients: int
    images: int  # of each client
    classes: int
    shape: tuple[int, ...]

    def module(self) -> nn.Module:
        """The network, its weights channels last."""
        return self.laid_out(NETWORKS[self.model](self.classes))

    def laid_out(self, module: nn.Module) -> nn.Module:
        """In the order that suits convolutions of images."""
        return module.to(memory_format=torch.channels_last) if len(self.shape) == 3 else module  # type: ignore[call-overload]

    def flops(self) -> int:
        """Multiplications and additions of a round's layers, forward and backward."""
        module, pixels = NETWORKS[self.model](self.classes), torch.zeros(2, *self.shape)
        with FlopCounterMode(display=False) as counter:
            module(pixels).sum().backward()
        return int(counter.get_total_flops()) // 2 * self.images * self.clients


CASES = {
    case.model: case
    for case in (
        Case("mnist_cnn", 100, 540, 10, (1, 28, 28)),
        Case("femnist_cnn", 10, 500, 62, (1, 28, 28)),
        Case("resnet8", 12, 256, 10, (3, 32, 32)),
        Case("cnn4", 12, 512, 10, (1, 28, 28)),
        Case("cifar8", 8, 128, 10, (3, 32, 32)),
        Case("har_cnn", 40, 512, 6, (9, 128)),
        Case("bare_mlp", 60, 540, 10, (1, 28, 28)),
    )
}


@lru_cache(maxsize=1)
def images(case: Case) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """All clients' inputs and labels, one client's after the other's: images are bytes, signals floats."""
    generator = np.random.default_rng(0)
    shape = (case.clients * case.images, *case.shape)
    pictures = len(case.shape) == 3
    inputs = generator.integers(0, 256, shape, np.uint8) if pictures else generator.standard_normal(shape, np.float32)
    return inputs, generator.integers(0, case.classes, len(inputs))


@lru_cache(maxsize=1)
def floats(case: Case) -> tuple[Tensor, Tensor]:
    """The same, normalised once, and laid out as the network likes them."""
    pixels, labels = images(case)
    found = torch.from_numpy(pixels).float() / (255 if pixels.dtype == np.uint8 else 1)
    found = (found - MEAN) / STD
    return found.contiguous(memory_format=torch.channels_last) if found.dim() == 4 else found, torch.from_numpy(labels)


def epoch(case: Case, module: nn.Module, client: int) -> None:
    """A client's part in a round: one pass over its own images, with a fresh Adam."""
    optimizer = torch.optim.Adam(module.parameters(), lr=LR, fused=True)
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
