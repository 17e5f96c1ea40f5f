"""One step of training, as the fast loops take it in single precision and as plain PyTorch takes it in double.

Gradients jump where a network has a kink: where two pixels of a pool are equally large, where a ReLU's input is 0, where a weight
is at the threshold of its sign or trit. Rounding decides on which side of a kink a network is, so a comparison that is to hold on
every processor must keep a distance from all of them. `apart` does for weights, `Kinks` measures the rest.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bifl.core.forward import Forward, Latent
from bifl.core.message import Floats
from bifl.nn.compute import one_thread
from bifl.nn.network import Network

FAR = 1e-5  # from a kink. Rounding decides below about 3e-7, where normalised numbers of size 1 are compared


def twin(kind: type[Network], module: nn.Module, forward: Forward) -> Network:
    """A network of a copy of the module, ready to train."""
    net = kind(copy.deepcopy(module), forward)
    net.module.train()
    return net


def apart(count: int, seed: int) -> Floats:
    """(count,) weights of both signs, small and large ones, all far from 0 and from 0.7 times their mean magnitude."""
    generator = np.random.default_rng(seed)
    small, large = generator.uniform(0.05, 0.1, count), generator.uniform(0.4, 0.5, count)
    magnitude = np.where(generator.random(count) < 0.5, small, large)
    weights: Floats = (magnitude * generator.choice([-1, 1], count)).astype(np.float32)
    return weights


class Step(NamedTuple):
    """What one call of `Network.learn` gives."""

    loss: float
    aux: list[Tensor]  # gradients, layer by layer
    trained: Tensor  # gradient
    buffers: list[Tensor]  # running statistics afterwards


@one_thread()
def step(net: Network, aux: Floats, forward: Forward, images: Tensor, labels: Tensor) -> Step:
    """One step from `aux` and the network's own real parameters, in the precision of the images."""
    weights = torch.from_numpy(aux).to(images.dtype, copy=True).requires_grad_()
    trained = torch.from_numpy(net.initial()[1][: net.layout.trained]).to(images.dtype, copy=True).requires_grad_()
    net.module.to(images.dtype)
    loss = net.learn(Latent(weights, weights.detach(), 0.0, 1), trained, forward, {"input": images, "target": labels})
    assert weights.grad is not None
    assert trained.grad is not None
    return Step(loss, list(torch.split_with_sizes(weights.grad, net.layout.sizes)), trained.grad, list(net.module.buffers()))


class Kinks:
    """Notes how near a network comes to its kinks: `distance`, in units of what is compared there, after it computed."""

    def __init__(self, module: nn.Module) -> None:
        self.distance = np.inf
        self._children = list(module.modules())
        for child in self._children:
            if isinstance(child, nn.MaxPool2d | nn.ReLU):
                child.register_forward_pre_hook(self._note)

    def _after_relu(self, pool: nn.Module) -> bool:
        """Then equal zeros are no kink: no gradient gets through either."""
        return isinstance(self._children[self._children.index(pool) - 1], nn.ReLU)

    def _note(self, child: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0].detach()
        if isinstance(child, nn.ReLU):
            distances = x.abs()
        else:
            assert isinstance(child, nn.MaxPool2d)
            assert isinstance(child.padding, int)
            padded = nn.functional.pad(x, (child.padding,) * 4, value=-torch.inf)
            pixels = padded.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4)
            first, second = pixels.topk(2).values.unbind(-1)
            distances = torch.where(first > 0, first - second, torch.inf) if self._after_relu(child) else first - second
        self.distance = min(self.distance, float(distances.min()))


def difference(ours: Step, exact: Step, least: float = 0.0) -> float:
    """The largest deviation, in parts of the largest number of the same kind: gradient of a layer, of the reals, a statistic.

    Numbers of a kind that are all smaller than `least` are measured by that.
    """
    pairs = [*zip(ours.aux, exact.aux, strict=True), (ours.trained, exact.trained), *zip(ours.buffers, exact.buffers, strict=True)]
    pairs.append((torch.tensor(ours.loss), torch.tensor(exact.loss)))
    return max(float((one.double() - other).abs().max() / other.double().abs().max().clamp(min=least)) for one, other in pairs)
