"""The paper's networks (§4), as plain PyTorch modules: which of their weights are binary is decided outside, in `flat`."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from bifl.registry import Registry

model: Registry[nn.Module] = Registry("model")


def _block(number: int, inputs: int, outputs: int, side: int = 3) -> dict[str, nn.Module]:
    """Convolution – batch-norm – tanh – pool. Tanh is monotone, so pooling first gives the same numbers for less work."""
    return {
        f"conv{number}": nn.Conv2d(inputs, outputs, side, padding=side // 2, bias=False),
        f"norm{number}": nn.BatchNorm2d(outputs),
        f"pool{number}": nn.MaxPool2d(2),
        f"tanh{number}": nn.Tanh(),
    }


@model
def mnist_cnn(classes: int) -> nn.Module:
    """Two 3×3 convolutions of 16 channels and two linear layers, for 28×28 grey images: 82,242 parameters."""
    return nn.Sequential(
        OrderedDict(
            _block(1, 1, 16)
            | _block(2, 16, 16)
            | {
                "flatten": nn.Flatten(),
                "linear3": nn.Linear(16 * 7 * 7, 100),
                "norm3": nn.BatchNorm1d(100),
                "tanh3": nn.Tanh(),
                "linear4": nn.Linear(100, classes),
                "norm4": nn.BatchNorm1d(classes),
            }
        )
    )


@model
def femnist_cnn(classes: int) -> nn.Module:
    """Two 5×5 convolutions of 32 and 64 channels and two linear layers, for 28×28 grey images: 6,608,026 parameters."""
    return nn.Sequential(
        OrderedDict(
            _block(1, 1, 32, side=5)
            | _block(2, 32, 64, side=5)
            | {
                "flatten": nn.Flatten(),
                "linear3": nn.Linear(64 * 7 * 7, 2048),
                "norm3": nn.BatchNorm1d(2048),
                "tanh3": nn.Tanh(),
                "linear4": nn.Linear(2048, classes),
                "norm4": nn.BatchNorm1d(classes),
            }
        )
    )
