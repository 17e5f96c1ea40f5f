"""Networks that are no plain sequence: norms and activations by our loops, held to PyTorch in double precision."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bifl.core.forward import real
from bifl.nn.compute import PlainEngine
from bifl.nn.fast.sequential import SequentialEngine
from bifl.nn.fast.traced import Traced, TracedEngine, trace
from bifl.nn.models import har_cnn
from bifl.nn.network import Network, PlainNetwork
from tests.support.twins import FAR, Kinks, difference, step, twin

pytestmark = pytest.mark.floats


class Block(nn.Module):
    """A residual block as people write them: functional calls, a shortcut with or without a convolution of its own."""

    def __init__(self, norm: Callable[[int], nn.Module], inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), norm(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1), norm(outputs)
        own = nn.Sequential(nn.Conv2d(inputs, outputs, 1), norm(outputs))
        self.shortcut: nn.Module = nn.Identity() if inputs == outputs else own

    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.shortcut(x)
        return torch.tanh(out)


class Residual(nn.Module):
    """No kinks, so that rounding decides nothing; dropout by hand, as in many a paper's code."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1), norm(4)
        self.blocks = nn.Sequential(Block(norm, 4, 4), Block(norm, 4, 6))
        self.rows, self.head = nn.LayerNorm(6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.norm(self.stem(x)).tanh())
        x = nn.functional.dropout(x, 0.0, self.training)
        scores: Tensor = self.head(self.rows(x.mean((2, 3))))
        return scores


NORMS: dict[str, Callable[[int], nn.Module]] = {"group": lambda c: nn.GroupNorm(2, c), "batch": nn.BatchNorm2d}


def residual(name: str) -> Residual:
    torch.manual_seed(0)
    module = Residual(NORMS[name])
    for child in module.modules():
        if isinstance(child, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
            nn.init.normal_(child.weight)
            nn.init.normal_(child.bias)
    return module


@pytest.mark.parametrize("name", NORMS)
def test_residual_networks_equal_autograd(name: str) -> None:
    """Loss, every gradient, running statistics. Largest difference of ten starts: 1e-5."""
    module, images, labels = residual(name), torch.randn(6, 2, 9, 7), torch.arange(6) % 5
    fast, plain = (twin(kind, module, real) for kind in (Network, PlainNetwork))
    assert isinstance(fast.engine, TracedEngine)
    aux, _ = fast.initial()
    exact = step(plain, aux, real, images.double(), labels)
    assert difference(step(fast, aux, real, images, labels), exact, least=0.05) < 1e-3


@pytest.mark.parametrize("name", NORMS)
def test_residual_networks_are_evaluated_and_measured_alike(name: str) -> None:
    module, images = residual(name), torch.randn(6, 2, 9, 7)
    fast, plain = (twin(kind, module, real) for kind in (Network, PlainNetwork))
    found, start = [], fast.initial()
    for net in (fast, plain):
        net.show(*start, real)
        with torch.no_grad():
            scores = net.scores({"input": images})
            net.train_norms()
            found.append((scores, net.input_moments({"input": images})))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-4, atol=1e-5)


def test_norms_shortcuts_and_activations_are_joined() -> None:
    """Of a block with its own shortcut: norm + tanh, norm + shortcut + tanh, the shortcut's norm."""
    calls = {
        name: [str(node.target) for node in trace(Block(norm, 4, 6)).graph.nodes if node.op.startswith("call")]  # type: ignore[union-attr]
        for name, norm in NORMS.items()
    }
    assert [name.startswith("bifl") for name in calls["group"]] == [False, True, False, False, True, True]
    assert sum(name.startswith("bifl") for name in calls["batch"]) == 3  # the addition and its tanh are PyTorch's


def test_a_network_gives_one_layer_of_signals_to_each_step() -> None:
    torch.manual_seed(0)
    module, images = har_cnn(4, channels=3), torch.randn(6, 3, 21)
    for _ in range(20):
        fast, plain = (twin(kind, module, real) for kind in (Network, PlainNetwork))
        kinks, (aux, _) = Kinks(plain.module), fast.initial()
        exact = step(plain, aux, real, images.double(), torch.arange(6) % 4)
        if kinks.distance > FAR:
            break
        images = torch.randn(6, 3, 21)
    assert isinstance(fast.engine, SequentialEngine)
    assert [type(one).__name__ for one in fast.engine.steps][:3] == ["Convolution", "NormPool", "Convolution"]
    assert difference(step(fast, aux, real, images, torch.arange(6) % 4), exact, least=0.05) < 1e-3
    start = fast.initial()
    for net in (fast, plain):
        net.module.float()
        net.show(*start, real)
    with torch.no_grad():
        torch.testing.assert_close(*(net.scores({"input": images}) for net in (fast, plain)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 6), (4, 3, 6), (4, 2, 3, 6)])
def test_layer_norm_takes_any_number_of_dimensions(shape: tuple[int, ...]) -> None:
    layer, images = nn.Sequential(nn.LayerNorm(6), nn.ReLU()), torch.randn(shape)
    torch.testing.assert_close(Traced(layer)(images), layer(images), rtol=1e-5, atol=1e-6)


class Foreign(nn.Module):
    """Forwards that a trace would not repeat faithfully."""

    seen: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.norm, self.kind, self.calls = nn.LayerNorm(3), kind, 0
        if kind == "parameter":
            self.gain = nn.Parameter(torch.ones(3))
        if kind == "buffer":
            self.register_buffer("seen", torch.zeros(3))
        if kind == "hook":
            self.register_forward_hook(lambda module, given, out: 2 * out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.kind == "counts":
            self.calls += 1
            x = x * self.calls
        if self.kind == "branches" and x.sum() > 0:
            x = -x
        draws: dict[str, Callable[[], Any]] = {
            "torch": lambda: torch.randn(3),
            "numpy": lambda: float(np.random.random()),  # noqa: NPY002
            "python": random.random,
        }
        x = x + draws[self.kind]() if self.kind in draws else x
        if self.kind == "parameter":
            x = x * self.gain
        return x + self.seen if self.kind == "buffer" else x


@pytest.mark.parametrize("kind", ["counts", "branches", "torch", "numpy", "python", "parameter", "buffer", "hook"])
def test_what_a_trace_would_not_repeat_is_called_as_it_is(kind: str) -> None:
    module = Foreign(kind)
    states = torch.get_rng_state(), random.getstate()
    assert trace(module) is module
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert trace(Foreign("none")) is not module


def test_a_trained_parameter_of_a_block_is_not_frozen_by_the_trace() -> None:
    """`Network` makes it a plain attribute, which a trace would take for a constant."""
    net = Network(Foreign("parameter"), real)
    assert trace(net.module) is net.module


def test_modes_have_traces_of_their_own() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(x)
            return 2 * out if self.training else out

    module, x = Doubled(), torch.randn(4, 3)
    traced = cloudpickle.loads(cloudpickle.dumps(Traced(module)))
    training = traced(x)
    traced.module.eval()
    torch.testing.assert_close(training, 2 * traced(x))


def test_networks_without_norms_are_pytorchs() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + self.linear(x)
            return out

    assert type(Network(Plain(), real).engine) is PlainEngine


def test_a_diverged_group_stays_visible() -> None:
    x = torch.randn(2, 4, 3, 3)
    x[0, 0, 1, 1] = torch.nan
    out = Traced(nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()))(x)
    assert out[0, :2].isnan().all()
    assert not out[0, 2:].isnan().any()
    assert not out[1].isnan().any()


def test_a_norm_of_a_copy_is_the_copys() -> None:
    """Parameters are read where they are when a module is called."""
    module, x = nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()), torch.randn(2, 4, 3, 3)
    traced = Traced(copy.deepcopy(module))
    traced(x)
    nn.init.zeros_(traced.module[0].weight)  # type: ignore[index]
    assert float(traced(x).detach().abs().max()) == 0
