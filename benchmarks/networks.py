"""The networks that are timed: bifl's own, and some that users bring."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from bifl.nn.models import cnn4, femnist_cnn, har_cnn, mnist_cnn, model


class Residual(nn.Module):
    """Two 3×3 convolutions with GroupNorm beside a shortcut (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)
        own = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(8, outputs))
        self.shortcut: nn.Module = nn.Identity() if inputs == outputs else own

    def forward(self, x: Tensor) -> Tensor:
        """(n, outputs, h, w)."""
        out = nn.functional.relu(self.norm1(self.conv1(x)))
        return nn.functional.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


@model
def resnet8(classes: int) -> nn.Module:
    """The smallest ResNet for CIFAR, with GroupNorm: three residual blocks of 16, 32 and 64 channels."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.GroupNorm(8, 16), nn.ReLU())
    blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
    head = {"mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "linear": nn.Linear(64, classes)}
    return nn.Sequential(OrderedDict({"stem": stem, "blocks": blocks} | head))


@model
def cifar8(classes: int) -> nn.Module:
    """Eight 3×3 convolutions of 32 to 256 channels with batch-norm, for 32×32 RGB images: 1.2 million weights."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise((3, 32, 32, 64, 64, 128, 128, 256, 256)), start=1):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [] if number % 2 else [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, classes))


@model
def bare_mlp(classes: int) -> nn.Module:
    """Two hidden layers of 200 without norms: McMahan et al.'s 2NN."""
    hidden = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, classes))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "mnist_cnn": mnist_cnn, "femnist_cnn": femnist_cnn, "resnet8": resnet8, "cnn4": cnn4, "cifar8": cifar8, "har_cnn": har_cnn,
    "bare_mlp": bare_mlp,
}  # fmt: skip
