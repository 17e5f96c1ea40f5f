"""The fast loops against plain PyTorch: activations, gradients, statistics, whole updates."""

from __future__ import annotations

from collections.abc import Iterator

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bifl.algorithm import Client
from bifl.experiment import Experiment
from bifl.nn.binarize import binarize
from bifl.nn.flat import Network, PlainNetwork
from bifl.nn.forward import Forward, binary, real
from bifl.nn.fused import NormPoolActivate, stages
from bifl.nn.models import femnist_cnn, mnist_cnn
from bifl.nn.optim import Adam
from bifl.runtime.loop import loop
from bifl.runtime.world import build
from bifl.train import Plan, Samples, train
from tests.twins import FAR, Kinks, apart

pytestmark = pytest.mark.floats


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
    kinks = Kinks(exact)
    right = list(run(exact, x.double(), upper.double(), fast=False))
    assume(kinks.distance > FAR)
    for ours, theirs in zip(run(fast, x, upper, fast=True), right, strict=True):
        # largest of 300 random blocks on AVX2: 1.5e-5
        assert float((ours.detach().double() - theirs.detach()).abs().max()) < 3e-4 * max(1.0, float(theirs.detach().abs().max()))


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


def noise(seed: int) -> Samples:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (25, 1, 28, 28), generator=generator, dtype=torch.uint8)
    return Samples(images, torch.arange(25) % 10, 0.1307, 0.3081)


def first_layer_real(kind: type[Network], forward: Forward, seed: int) -> Network:
    """Pixels are integers, so that sums of them with weights of ±1 are often equal: a kink in every batch."""
    torch.manual_seed(seed)
    return kind(binarize(mnist_cnn(10), keep=("conv1",)), forward)


def local_epoch(network: Network, forward: Forward, seed: int) -> Client:
    """Three steps, of 8, 8 and 9 images, that are too short to change a sign."""
    aux, (_, real) = apart(network.layout.count, seed), network.initial()
    return train(Client(aux, aux, real, 25, key=7), network, forward, noise(seed), torch.arange(25), Plan("sgd", 0.01, 8, 1))[0]


@pytest.mark.parametrize("forward", [real, binary])
def test_a_local_epoch_equals_plain_pytorchs(forward: Forward) -> None:
    """Far from every kink, and with an optimiser that does not magnify what is nearly zero: Adam is compared below.

    Largest difference of ten epochs on two processors, in parts of what the epoch changed: 4e-5.
    """
    for seed in range(40):
        fast, plain = (first_layer_real(kind, forward, seed) for kind in (Network, PlainNetwork))
        kinks, start = Kinks(plain.module), fast.initial()[1]
        theirs = local_epoch(plain, forward, seed)
        if kinks.distance > FAR:
            break
    assert kinks.distance > FAR
    ours = local_epoch(fast, forward, seed)
    assert np.array_equal(ours.aux > 0, ours.start > 0)
    trained = fast.layout.trained
    real_parts = [(ours.real[part], theirs.real[part], start[part]) for part in (slice(trained), slice(trained, None))]
    for one, other, before in [(ours.aux, theirs.aux, theirs.start), *real_parts]:
        assert np.linalg.norm(one - other) < 1e-3 * np.linalg.norm(other - before)


def test_adam_in_one_pass_equals_adam_in_several() -> None:
    """Double precision takes PyTorch's own way; floors may differ from weight to weight, limits clip.

    20 steps round a weight of at most 1 by 20·2⁻²⁵ = 6e-7, and of each step, of at most 10·lr, a few units of 2⁻²⁴: 6e-7 in all.
    """
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
    torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5)


def test_the_readable_loop_can_run_the_plain_twin() -> None:
    """Of thousands of pools a few have two pixels that rounding puts in either order: measured 0.8 and 1.4 % of the change."""
    experiment = Experiment(clients=4, rounds=1, algorithm="fedavg", optimizer="sgd", lr=0.01, workers=1)
    (_, fast), (_, plain) = (next(loop(experiment, kind)) for kind in (Network, PlainNetwork))
    assert fast.weights.tobytes() != plain.weights.tobytes(), "these are two ways to compute"
    start = build(experiment).shared.weights
    assert np.linalg.norm(fast.weights - plain.weights) < 0.2 * np.linalg.norm(plain.weights - start)
