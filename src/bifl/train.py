"""Local training (paper §4): one client, one round. The optimiser is fresh every round, as in the paper.

The gradient of the loss w.r.t. the binary weights is applied to aux (straight-through), then aux is clipped to [−1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bifl.algorithm import Client
from bifl.data.datasets import Dataset
from bifl.errors import DataError
from bifl.nn.flat import Network
from bifl.nn.forward import Forward, Latent
from bifl.nn.optim import OPTIMIZERS

EPSILON = 1e-8
# Where batch-norm follows a layer, its ϑ has no effect and its gradient is rounding noise (about 1e-7), of which Adam with the
# usual ε makes full steps: ϑ then walks at random and may cross zero, where the network collapses. True gradients are 1e-3 and up.
THETA_EPSILON = 1e-4
CHUNK = 500  # test images per evaluation step; fixed, so that sums do not depend on the number of workers


class Plan(NamedTuple):
    """How to train in this round."""

    optimizer: str
    lr: float
    batch: int
    epochs: int


class Samples(NamedTuple):
    """Images and labels with the numbers that normalise the images."""

    images: Tensor  # (n, channels, height, width) uint8
    labels: Tensor  # (n,) int64
    mean: float
    std: float

    @classmethod
    def of(cls, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], data: Dataset) -> Samples:
        """Images and labels of a dataset."""
        if labels.size and not 0 <= labels.min() <= labels.max() < data.classes:
            raise DataError(f"labels must run from 0 to {data.classes - 1}, not from {labels.min()} to {labels.max()}")
        # PyTorch warns of arrays that it may not write
        tensors = [torch.from_numpy(np.require(array, requirements=("C", "W"))) for array in (images, labels)]
        return cls(tensors[0], tensors[1], data.mean, data.std)

    def on(self, device: torch.device) -> Samples:
        """The same in that device's memory."""
        return self._replace(images=self.images.to(device), labels=self.labels.to(device))

    def _on_cpu(self, index: Tensor | slice) -> Tensor:
        from bifl.nn import kernels

        chosen = np.arange(*index.indices(len(self.images))) if isinstance(index, slice) else index.numpy()
        images = torch.empty((len(chosen), *self.images.shape[1:]))
        flat = [tensor.numpy().reshape(len(tensor), -1) for tensor in (self.images, images)]
        kernels.look_up(flat[0], chosen, _shades(self.mean, self.std), flat[1])
        return images

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """The chosen images as normalised floats, and their labels."""
        images = self._on_cpu(index) if self.images.device.type == "cpu" else _normalised(self.images[index], self.mean, self.std)
        # .to, not .contiguous: with one channel both orders are "contiguous", and only .to makes the layers take the fast one
        return images.to(memory_format=torch.channels_last), self.labels[index]


def _normalised(pixels: Tensor, mean: float, std: float) -> Tensor:
    return pixels.to(torch.float32).div_(255.0).sub_(mean).div_(std)


@lru_cache(maxsize=4)
def _shades(mean: float, std: float) -> npt.NDArray[np.float32]:
    """(256,) what each byte becomes."""
    found: npt.NDArray[np.float32] = _normalised(torch.arange(256), mean, std).numpy()
    return found


def schedule(round: int, lr: tuple[float, ...], steps: tuple[int, ...]) -> float:
    """The learning rate of a round: the next one after each of the rounds `steps`."""
    return lr[sum(round > step for step in steps)] if len(lr) > 1 else lr[0]


def batches(index: Tensor, size: int, generator: np.random.Generator) -> Iterator[Tensor]:
    """An epoch in random order. Batch-norm cannot train on one image, so a lone last one joins the batch before."""
    order = index[torch.from_numpy(generator.permutation(len(index)))]
    for start, end in pairwise([*_starts(len(order), size), len(order)]):
        yield order[start:end]


def _starts(count: int, size: int) -> list[int]:
    starts = list(range(0, count, size))
    return starts[:-1] if len(starts) > 1 and count - starts[-1] == 1 else starts


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums must not depend on how many threads share them; and one process per core is faster than threads in one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
@torch.random.fork_rng(devices=[])
def train(client: Client, network: Network, forward: Forward, samples: Samples, index: Tensor, plan: Plan) -> tuple[Client, float]:
    """Train aux and the real parameters on the client's own images.

    Returns:
        The client with new `aux` and `real`, and the mean loss over the images it trained on (NaN if it diverged).
    """
    trained = network.layout.trained
    network.write_moments(client.real[trained:])
    network.module.train()
    aux = torch.from_numpy(client.aux).to(network.device, copy=True).requires_grad_()
    real = torch.from_numpy(client.real[:trained]).to(network.device, copy=True).requires_grad_()
    floors = torch.full_like(real, EPSILON, requires_grad=False)
    floors[: len(network.layout.layers)] = THETA_EPSILON
    optimizer = OPTIMIZERS[plan.optimizer]([aux, real], plan.lr, [EPSILON, floors], [1.0 if forward.clip else math.inf, math.inf])
    # for layers that draw, such as dropout; torch.manual_seed would also note a traceback for each kind of GPU that is not there
    torch.default_generator.manual_seed(client.key)
    if network.device.type == "cuda":
        torch.cuda.manual_seed(client.key)
    generator = np.random.default_rng(client.key)
    start = torch.from_numpy(client.start).to(network.device)
    steps = plan.epochs * len(_starts(len(index), plan.batch))
    total, seen, step = 0.0, 0, 0
    for _ in range(plan.epochs):
        for chosen in batches(index, plan.batch, generator):
            images, labels = samples.batch(chosen)
            loss = network.learn(Latent(aux, start, step / steps, client.key), real, forward, images, labels)
            optimizer.step()
            total += loss * len(labels)
            seen += len(labels)
            step += 1
    new_real = np.concatenate([real.detach().cpu().numpy(), network.read_moments()])
    return client._replace(aux=aux.detach().cpu().numpy(), real=new_real), total / seen


@one_thread()
@torch.no_grad()
def evaluate(network: Network, samples: Samples, part: slice | Tensor) -> tuple[int, float]:
    """Correct answers and summed loss of the model that the network shows, on a part of the samples."""
    images, labels = samples.batch(part)
    scores = network.scores(images)
    loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
    return int((scores.argmax(1) == labels).sum()), float(loss)


def evaluate_all(network: Network, samples: Samples) -> tuple[int, float]:
    """Correct answers and summed loss on all of the samples."""
    parts = [evaluate(network, samples, slice(start, start + CHUNK)) for start in range(0, len(samples.labels), CHUNK)]
    return sum(correct for correct, _ in parts), sum(loss for _, loss in parts)
