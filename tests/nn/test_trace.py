"""A network read as a list of operations, and what is not read because a trace would not do the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bifl.nn.models import har_cnn, resnet10
from bifl.nn.trace import Activation, Add, Call, Flatten, Input, Layer, Operation, Pool, Unreadable, read

IMAGES = torch.zeros(2, 3, 8, 8)


def works(module: nn.Module, inputs: Tensor = IMAGES, **further: Tensor) -> list[Any]:
    """What is done to the input, without layers' weights."""
    return [one.work for one in read(module, {"input": inputs, **further})][1:]


class Function(nn.Module):
    """One function as a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


WINDOWS = Pool("max", (2, 2), (2, 2), (0, 0))
SAME: list[tuple[list[nn.Module | Callable[[Tensor], Tensor]], Any]] = [
    ([nn.ReLU(), torch.relu, functional.relu, lambda x: x.relu()], Activation("relu")),
    ([nn.Tanh(), torch.tanh, lambda x: x.tanh()], Activation("tanh")),
    ([nn.GELU(), functional.gelu], Activation("gelu")),
    ([nn.GELU("tanh"), lambda x: functional.gelu(x, approximate="tanh")], Activation("gelu_tanh")),
    ([nn.Flatten(), lambda x: x.flatten(1), lambda x: torch.flatten(x, 1), lambda x: x.view(x.size(0), -1)], Flatten()),
    ([nn.MaxPool2d(2), lambda x: functional.max_pool2d(x, 2), lambda x: functional.max_pool2d(x, (2, 2), stride=2)], WINDOWS),
    (
        [nn.AdaptiveAvgPool2d(1), lambda x: x.mean((2, 3)), lambda x: torch.mean(x, dim=[-1, -2])],
        Pool("mean", (8, 8), (8, 8), (0, 0)),
    ),
    ([lambda x: x + x, lambda x: torch.add(x, x), lambda x: x.add(x)], Add()),
    (
        [lambda x: functional.adaptive_max_pool2d(x, 2), nn.Sigmoid(), lambda x: x.flatten(2), lambda x: x + 1, nn.Softmax(1)],
        Call(),
    ),
]


@pytest.mark.parametrize(("ways", "work"), SAME, ids=lambda case: str(case)[:20])
def test_layers_and_functions_have_one_name(ways: list[Any], work: Any) -> None:
    for way in ways:
        assert works(way if isinstance(way, nn.Module) else Function(way)) == [work]


def test_a_signal_has_one_row() -> None:
    operations = read(har_cnn(6), {"input": torch.zeros(2, 9, 128)})
    assert [one.work for one in operations[4:5]] == [Pool("max", (1, 2), (1, 2), (0, 0))]
    assert [one.shape for one in operations if isinstance(one.work, Pool)] == [(2, 32, 64), (2, 64, 32), (2, 64, 16), (2, 64, 1)]


def test_a_shortcut_has_two_sources() -> None:
    operations = read(resnet10(10), {"input": torch.zeros(2, 3, 8, 8)})
    adds = [one for one in operations if isinstance(one.work, Add)]
    assert len(adds) == 4
    assert [type(operations[source].work) for source in adds[0].sources] == [Layer, Activation]
    assert all(number < at for at, one in enumerate(operations) for number in one.sources)


def test_what_changes_nothing_is_left_out() -> None:
    module = nn.Sequential(nn.Identity(), nn.Dropout(), nn.Linear(8, 2))
    assert len(works(module.train())) == 2
    assert works(module.eval()) == [Layer(module[2])]


class Masked(nn.Module):
    """It has further arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)

    def forward(self, x: Tensor, mask: Tensor | None = None, power: float = 2.0) -> Tensor:
        x = self.norm(x) ** power
        return x if mask is None else x * mask


def test_arguments_that_a_forward_does_not_get_have_their_defaults() -> None:
    module, x = Masked(), torch.ones(2, 3)
    assert [type(work) for work in works(module, x)] == [Layer, Call]
    operations = read(module, {"input": x, "mask": x})
    assert [one.name for one in operations if isinstance(one.work, Input)] == ["x", "mask"]
    assert [one.sources for one in operations if one.name == "mul"] == [(3, 1)]


class Foreign(nn.Module):
    """Forwards that a trace would not repeat faithfully."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.norm, self.kind, self.calls = nn.LayerNorm(3), kind, 0
        if kind == "hook":
            self.register_forward_hook(lambda module, given, out: 2 * out)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        if self.kind == "counts":
            self.calls += 1
            y = y * self.calls
        if self.kind == "branches" and y.sum() > 0:
            y = -y
        if self.kind == "in place":
            y = y.view(-1, 3).relu_() + y
        draws: dict[str, Callable[[], Any]] = {
            "torch": lambda: torch.randn(3),
            "numpy": lambda: float(np.random.random()),  # noqa: NPY002
            "python": random.random,
        }
        y = y + draws[self.kind]() if self.kind in draws else y
        return (x, y) if self.kind == "two values" else y


@pytest.mark.parametrize("kind", ["counts", "branches", "in place", "torch", "numpy", "python", "hook", "two values"])
def test_what_a_trace_would_not_repeat_is_not_read(kind: str) -> None:
    states = torch.get_rng_state(), random.getstate()
    with pytest.raises(Unreadable):
        read(Foreign(kind), {"input": torch.ones(2, 3)})
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert len(read(Foreign("none"), {"input": torch.ones(2, 3)})) == 2


def test_reading_leaves_buffers_and_random_numbers_alone() -> None:
    module = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3), nn.Linear(3, 2))
    inputs = torch.randn(5, 3)
    before, state = [buffer.clone() for buffer in module.buffers()], torch.get_rng_state()
    operations: list[Operation] = read(module, {"input": inputs})
    assert len(operations) == 4
    assert all(torch.equal(*pair) for pair in zip(before, module.buffers(), strict=True))
    assert torch.equal(state, torch.get_rng_state())


def test_what_the_output_is_not_made_of_is_left_out() -> None:
    assert works(Function(lambda x: (x.sigmoid(), x.relu())[1])) == [Activation("relu")]
