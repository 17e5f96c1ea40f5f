"""The paper's networks (§4) and others of the field, as plain PyTorch modules: what of them is binary is decided in `network`."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

from torch import Tensor, nn

from bifl.registry import Registry

model: Registry[nn.Module] = Registry("model")


def _block(
    number: int, inputs: int, outputs: int, size: int = 3, activation: type[nn.Module] = nn.Tanh, padding: int = 0
) -> dict[str, nn.Module]:
    """Convolution – batch-norm – activation – pool. It is monotone, so pooling first gives the same numbers for less work."""
    return {
        f"conv{number}": nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False),
        f"norm{number}": nn.BatchNorm2d(outputs),
        f"pool{number}": nn.MaxPool2d(2, padding=padding),
        f"{activation.__name__.lower()}{number}": activation(),
    }


def _blocks(*channels: int) -> dict[str, nn.Module]:
    """One after the other, with ReLU."""
    blocks: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise(channels), start=1):
        blocks |= _block(number, inputs, outputs, activation=nn.ReLU)
    return blocks


def _two_linear(inputs: int, hidden: int, classes: int) -> dict[str, nn.Module]:
    """What follows two blocks: linear – batch-norm – tanh – linear – batch-norm."""
    return {
        "flatten": nn.Flatten(),
        "linear3": nn.Linear(inputs, hidden),
        "norm3": nn.BatchNorm1d(hidden),
        "tanh3": nn.Tanh(),
        "linear4": nn.Linear(hidden, classes),
        "norm4": nn.BatchNorm1d(classes),
    }


@model
def mnist_cnn(classes: int) -> nn.Module:
    """Two 3×3 convolutions of 16 channels and two linear layers, for 28×28 grey images: 82,242 parameters."""
    return nn.Sequential(OrderedDict(_block(1, 1, 16) | _block(2, 16, 16) | _two_linear(16 * 7 * 7, 100, classes)))


@model
def mnist_cnn_fixed(classes: int) -> nn.Module:
    """mnist_cnn with γ = 1 and β = 0 for the class scores, as scores=fixed has it in any network: better where classes lack."""
    network = mnist_cnn(classes)
    network.norm4 = nn.BatchNorm1d(classes, affine=False)
    return network


@model
def femnist_cnn(classes: int) -> nn.Module:
    """Two 5×5 convolutions of 32 and 64 channels and two linear layers, for 28×28 grey images: 6,608,026 parameters."""
    blocks = _block(1, 1, 32, size=5) | _block(2, 32, 64, size=5)
    return nn.Sequential(OrderedDict(blocks | _two_linear(64 * 7 * 7, 2048, classes)))


@model
def celeba_cnn(classes: int) -> nn.Module:
    """Four 3×3 convolutions of 32 channels and one linear layer, for 84×84 RGB images: 31,078 parameters."""
    blocks = (
        _blocks(3, 32, 32) | _block(3, 32, 32, activation=nn.ReLU, padding=1) | _block(4, 32, 32, activation=nn.ReLU, padding=1)
    )
    head = {"flatten": nn.Flatten(), "linear5": nn.Linear(32 * 6 * 6, classes), "norm5": nn.BatchNorm1d(classes)}
    return nn.Sequential(OrderedDict(blocks | head))  # 84 → 42 → 21 → 11 → 6


@model
def cnn4(classes: int) -> nn.Module:
    """Four 3×3 convolutions of 32 to 256 channels and a linear layer, for 28×28 grey images: 390,880 parameters."""
    return nn.Sequential(
        OrderedDict(_blocks(1, 32, 64, 128, 256) | {"flatten": nn.Flatten(), "linear5": nn.Linear(256, classes, bias=False)})
    )


@model
def har_cnn(classes: int, channels: int = 9) -> nn.Module:
    """Three convolutions of 32, 64 and 64 channels along time and a linear layer, for sensor windows: 32,870 parameters."""
    blocks: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise((channels, 32, 64, 64)), start=1):
        blocks |= {
            f"conv{number}": nn.Conv1d(inputs, outputs, 5, padding=2, bias=False),
            f"norm{number}": nn.BatchNorm1d(outputs),
            f"relu{number}": nn.ReLU(),
            f"pool{number}": nn.MaxPool1d(2),
        }
    head = {"mean": nn.AdaptiveAvgPool1d(1), "flatten": nn.Flatten(), "linear4": nn.Linear(64, classes)}
    return nn.Sequential(OrderedDict(blocks | head))


@model
def mlp(classes: int, inputs: int = 784, hidden: int = 128) -> nn.Module:
    """Two hidden layers with batch-norm, for inputs of any shape that have so many numbers: 118,794 parameters."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for number, (before, after) in enumerate(pairwise((inputs, hidden, hidden)), start=1):
        layers |= {f"linear{number}": nn.Linear(before, after), f"norm{number}": nn.BatchNorm1d(after), f"relu{number}": nn.ReLU()}
    return nn.Sequential(OrderedDict(layers | {"linear3": nn.Linear(hidden, classes)}))


@model
def cifar_cnn(classes: int) -> nn.Module:
    """Eight 3×3 convolutions of 32 to 256 channels and a linear layer, for 32×32 RGB images: 1,183,456 parameters."""
    blocks = _blocks(3, 32, 32, 64, 64, 128, 128, 256, 256)
    for number in (1, 3, 5, 7):
        del blocks[f"pool{number}"]
    return nn.Sequential(OrderedDict(blocks | {"flatten": nn.Flatten(), "linear9": nn.Linear(256 * 2 * 2, classes, bias=False)}))


class Residual(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where sizes change (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        fits = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity() if fits else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, images: Tensor) -> Tensor:
        """What the convolutions add to the shortcut."""
        inner = nn.functional.relu(self.norm1(self.conv1(images)))
        return nn.functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(images))


@model
def resnet10(classes: int, channels: int = 3) -> nn.Module:
    """ResNet-10, four blocks with shortcuts of 64 to 512 channels and a linear layer, for 32×32 images: 4,903,242 parameters."""
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        "norm1": nn.BatchNorm2d(64),
        "relu1": nn.ReLU(),
    }
    for number, (inputs, outputs) in enumerate(pairwise((64, 64, 128, 256, 512)), start=2):
        layers[f"block{number}"] = Residual(inputs, outputs, stride=1 if inputs == outputs else 2)
    head = {"mean": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "linear6": nn.Linear(512, classes)}
    return nn.Sequential(OrderedDict(layers | head))
