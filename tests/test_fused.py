"""The fast loops against plain PyTorch: activations, gradients, statistics, whole updates."""

from __future__ import annotations

from collections.abc import Iterator

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bifl.algorithm import Client
from bifl.experiment import Experiment
from bifl.nn.flat import Network, PlainNetwork
from bifl.nn.forward import Forward, binary, real
from bifl.nn.fused import NormPoolActivate, stages
from bifl.nn.models import femnist_cnn, mnist_cnn
from bifl.nn.optim import Adam
from bifl.runtime.loop import loop
from bifl.train import Plan, Samples, train


def block(inputs: int, channels: int, activation: nn.Module, pool_first: bool) -> nn.Sequential:
    """A block whose γ have both signs."""
    norm, rest = nn.BatchNorm2d(channels), [nn.MaxPool2d(2), activation]
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return nn.Sequential(nn.Conv2d(inputs, channels, 3, padding=1), norm, *(rest if pool_first else rest[::-1]))


def run(module: nn.Module, images: Tensor, upper: Tensor, *, fast: bool) -> Iterator[Tensor]:
    """Output, gradients and statistics."""
    output = images
    for stage in stages(module) if fast else [module]:
        output = stage(output)
    output.backward(upper)  # type: ignore[no-untyped-call]
    yield output
    for parameter in module.parameters():
        assert parameter.grad is not None
        yield parameter.grad
    yield from module.buffers()


@settings(max_examples=25)
@given(
    st.integers(0, 999), st.integers(2, 5), st.integers(1, 3), st.integers(1, 19), st.integers(1, 5), st.integers(1, 5),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_joined_stage_equals_the_layers(
    seed: int, images: int, inputs: int, channels: int, height: int, width: int, relu: bool, pool_first: bool
) -> None:
    torch.manual_seed(seed)
    fast = block(inputs, channels, nn.ReLU() if relu else nn.Tanh(), pool_first)
    exact = cloudpickle.loads(cloudpickle.dumps(fast)).double()
    x = torch.randn(images, inputs, 2 * height, 2 * width)
    upper = torch.randn(images, channels, height, width)
    assert any(isinstance(stage, NormPoolActivate) for stage in stages(fast))
    for ours, theirs in zip(run(fast, x, upper, fast=True), run(exact, x.double(), upper.double(), fast=False), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-4, atol=2e-4)


def test_of_equal_pixels_the_first_gets_the_gradient() -> None:
    """As in PyTorch; the black margins of digits are full of ties."""
    module = block(1, 3, nn.Tanh(), pool_first=True)
    twin = cloudpickle.loads(cloudpickle.dumps(module))
    x = torch.zeros(2, 1, 8, 8)
    x[:, :, 3, 4] = 1
    upper = torch.randn(2, 3, 4, 4)
    for ours, theirs in zip(run(module, x, upper, fast=True), run(twin, x, upper, fast=False), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_odd_sides_evaluation_and_other_layers_take_pytorchs_way() -> None:
    module = block(1, 4, nn.ReLU(), pool_first=True)
    twin = cloudpickle.loads(cloudpickle.dumps(module))
    odd, even = torch.randn(3, 1, 21, 11), torch.randn(3, 1, 8, 8)
    fast = Network(module)
    assert torch.equal(fast(odd), twin(odd))
    module.eval()
    twin.eval()
    assert torch.equal(fast(even), twin(even))
    padded = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2, padding=1), nn.ReLU())
    unpreceded = nn.Sequential(
        nn.Tanh(), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.Tanh()
    )  # tanh keeps its output, which we may not touch
    assert not any(isinstance(stage, NormPoolActivate) for chain in (padded, unpreceded) for stage in stages(chain))


def test_a_diverged_batch_stays_visible() -> None:
    x = torch.randn(2, 1, 4, 4)
    x[0, 0, 1, 1] = torch.nan
    assert Network(block(1, 2, nn.Tanh(), pool_first=True))(x).isnan().any()


def test_the_paper_s_femnist_network() -> None:
    layout = Network(femnist_cnn(62)).layout
    assert layout.parameters - len(layout.layers) == 6_608_026


def digits() -> Samples:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (540, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return Samples(images, torch.arange(540) % 10, 0.1307, 0.3081)


def local_epoch(kind: type[Network], forward: Forward) -> Client:
    torch.manual_seed(0)
    network = kind(mnist_cnn(10))
    aux, trained = network.initial()
    start = Client(aux, aux, trained, 540, key=7)
    return train(start, network, forward, digits(), torch.arange(540), Plan("adam", 0.001, 64, 1))[0]


@pytest.mark.parametrize("forward", [real, binary])
def test_a_local_epoch_equals_plain_pytorchs(forward: Forward) -> None:
    """Rounding differs, and Adam blows it up where a gradient is nearly zero: nearly all weights agree, none is far off.

    Plain PyTorch in its other memory layout differs from itself by as much. A handful of signs flip, and each moves the
    statistics of a channel: hence the 5 % for those.
    """
    fast, plain = local_epoch(Network, forward), local_epoch(PlainNetwork, forward)
    difference = np.abs(fast.aux - plain.aux)
    moved = np.abs(plain.aux - fast.start).mean()
    assert np.quantile(difference, 0.95) < 1e-4
    assert difference.mean() < 0.02 * moved
    trained = Network(mnist_cnn(10)).layout.trained
    np.testing.assert_allclose(fast.real[:trained], plain.real[:trained], atol=1e-3)
    np.testing.assert_allclose(fast.real[trained:], plain.real[trained:], rtol=0.05, atol=0.01)
    assert np.sum((fast.aux > 0) != (plain.aux > 0)) < 1e-3 * len(fast.aux)


def test_adam_in_one_pass_equals_adam_in_several() -> None:
    """Double precision takes PyTorch's own way; floors may differ from weight to weight, limits clip."""
    generator = torch.Generator().manual_seed(0)
    start, floors = torch.randn(1000, generator=generator), torch.full((1000,), 1e-8)
    floors[:100] = 1e-4
    one, other = start.clone().requires_grad_(), start.double().requires_grad_()
    optimizers = Adam([one], 0.005, [floors], [1.0]), Adam([other], 0.005, [floors], [1.0])
    for step in range(20):
        gradient = torch.randn(1000, generator=generator) * 10.0 ** -(step % 9)
        one.grad, other.grad = gradient.clone(), gradient.double()
        for optimizer in optimizers:
            optimizer.step()
    assert one.abs().max() == 1
    torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)


def test_the_readable_loop_can_run_the_plain_twin() -> None:
    experiment = Experiment(clients=4, rounds=1, algorithm="fedavg", workers=1)
    (_, fast), (_, plain) = (next(loop(experiment, kind)) for kind in (Network, PlainNetwork))
    assert np.quantile(np.abs(fast.weights - plain.weights), 0.95) < 1e-3
