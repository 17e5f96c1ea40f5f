"""Chains without autograd against plain PyTorch: loss, every gradient, statistics."""

from __future__ import annotations

import math
from collections.abc import Callable

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bifl.nn.chain import First, chain
from bifl.nn.flat import Network, PlainNetwork
from bifl.nn.forward import Forward, binary, real, ternary
from bifl.nn.models import celeba_cnn, femnist_cnn, mnist_cnn
from tests.twins import FAR, Kinks, Step, apart, difference, step, twin

pytestmark = pytest.mark.floats


def network(
    inputs: int, channels: int, kernel: int, height: int, width: int, activation: type[nn.Module], pool_first: bool, hidden: bool
) -> nn.Sequential:
    """Two blocks and one or two linear layers; γ and β of either sign."""
    rest = [nn.MaxPool2d(2), activation()] if pool_first else [activation(), nn.MaxPool2d(2)]
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, channels, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(channels), *rest,
        nn.Conv2d(channels, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), activation(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3 * height * width, 5, bias=hidden), nn.BatchNorm1d(5),
    ]  # fmt: skip
    if hidden:
        layers += [activation(), nn.Linear(5, 4), nn.BatchNorm1d(4)]
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return nn.Sequential(*layers)


def once(module: nn.Module, images: Tensor) -> Step:
    """A step of the fast network from its own start."""
    net = twin(Network, module, real)
    return step(net, net.initial()[0], real, images, torch.arange(len(images)))


@settings(max_examples=30)
@given(
    st.integers(0, 999), st.integers(2, 6), st.sampled_from([1, 2]), st.integers(1, 19), st.sampled_from([3, 5]),
    st.integers(1, 4), st.integers(1, 4), st.sampled_from([nn.Tanh, nn.ReLU]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_chain_equals_autograd(
    seed: int, count: int, inputs: int, channels: int, kernel: int, height: int, width: int, activation: type[nn.Module],
    pool_first: bool, hidden: bool,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    module = network(inputs, channels, kernel, height, width, activation, pool_first, hidden)
    found = chain(module)
    assert found is not None
    assert isinstance(found.links[0], First) == (inputs == 1 and kernel == 3)
    images, labels = torch.randn(count, inputs, 4 * height, 4 * width), torch.randint(0, 4, (count,))
    fast, plain = (twin(kind, module, real) for kind in (Network, PlainNetwork))
    kinks, (aux, _) = Kinks(plain.module), fast.initial()
    exact = step(plain, aux, real, images.double(), labels)
    assume(kinks.distance > FAR)
    ours = step(fast, aux, real, images, labels)
    # Batch-norm of a few pixels that are nearly equal magnifies rounding up to 1/√ε ≈ 300 times.
    # Largest of 1,200 random networks on two processors: 7.8e-4
    assert difference(ours, exact, least=0.05) < 1e-2


@pytest.mark.parametrize("forward", [real, binary, ternary])
@pytest.mark.parametrize(("make", "count"), [(mnist_cnn, 8), (femnist_cnn, 6)])
def test_the_papers_networks_take_this_way(make: Callable[[int], nn.Module], count: int, forward: Forward) -> None:
    """Every gradient and statistic of one step, against double precision.

    Largest difference of 16 starts far from kinks: 5e-6 (mnist_cnn) and 5e-5 (femnist_cnn).
    """
    for seed in range(20):
        torch.manual_seed(seed)
        module = make(10)
        images, labels = torch.randn(count, 1, 28, 28), torch.arange(count)
        fast, plain = (twin(kind, module, forward) for kind in (Network, PlainNetwork))
        kinks, aux = Kinks(plain.module), apart(fast.layout.count, seed)
        exact = step(plain, aux, forward, images.double(), labels)
        if kinks.distance > FAR:
            break
    assert kinks.distance > FAR
    assert chain(module) is not None
    ours = step(fast, aux, forward, images.to(memory_format=torch.channels_last), labels)
    assert difference(ours, exact) < 1e-3


def test_of_equal_pixels_the_first_gets_the_gradient() -> None:
    """As in PyTorch; the black margins of digits are full of ties."""
    torch.manual_seed(0)
    module = network(1, 3, 3, 2, 2, nn.Tanh, pool_first=True, hidden=False)
    images = torch.zeros(2, 1, 8, 8)
    images[:, :, 3, 4] = 1
    nets = [twin(kind, module, real) for kind in (Network, PlainNetwork)]
    ours, theirs = (step(net, net.initial()[0], real, images, torch.arange(2)) for net in nets)
    assert difference(ours, theirs, least=0.05) < 1e-2  # as above; the gradient of another pixel would be wholly different


def test_other_networks_and_odd_sides_take_autograds_way() -> None:
    assert chain(celeba_cnn(2)) is None  # it pools with padding
    assert chain(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))) is None
    twice = nn.BatchNorm1d(3)
    assert chain(nn.Sequential(nn.Flatten(), nn.Linear(3, 3), twice, nn.Linear(3, 3), twice)) is None
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert chain(hooked) is not None
    hooked[1].register_forward_hook(lambda layer, given, out: 2 * out)
    assert chain(hooked) is None
    assert chain(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())) is None
    found = chain(network(1, 2, 3, 2, 2, nn.Tanh, pool_first=True, hidden=False))
    assert found is not None
    assert found.fits(torch.zeros(1, 1, 8, 8))
    assert not found.fits(torch.zeros(1, 1, 10, 8))
    assert not found.fits(torch.zeros(1, 1, 8, 8).double())


def test_one_image_is_no_batch_to_normalise_by() -> None:
    """As PyTorch says."""
    module = network(1, 2, 3, 1, 1, nn.ReLU, pool_first=True, hidden=False)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        once(module, torch.randn(1, 1, 4, 4))


def test_a_diverged_batch_stays_visible() -> None:
    images = torch.randn(2, 1, 8, 8)
    images[0, 0, 1, 1] = torch.nan
    module = network(1, 2, 3, 2, 2, nn.ReLU, pool_first=True, hidden=True)
    assert math.isnan(once(module, images).loss)


@pytest.mark.parametrize("make", [mnist_cnn, femnist_cnn])
def test_evaluation_equals_the_module_s(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = Network(make(10))
    aux, trained = net.initial()
    generator = np.random.default_rng(0)
    net.show(aux, (trained + generator.uniform(0.1, 1, len(trained))).astype(np.float32), binary)
    images = torch.randn(9, 1, 28, 28)
    before = net.read_moments()
    with torch.no_grad():
        torch.testing.assert_close(net.scores(images), net.module(images), rtol=1e-3, atol=1e-3)
    assert np.array_equal(net.read_moments(), before)


@pytest.mark.parametrize("make", [mnist_cnn, femnist_cnn])
def test_moments_are_those_that_the_layers_see(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    fast = Network(make(10))
    plain = PlainNetwork(cloudpickle.loads(cloudpickle.dumps(make(10))))
    images = torch.randn(8, 1, 28, 28)
    found = []
    for net in (fast, plain):
        net.show(*fast.initial(), binary)
        net.train_norms()
        with torch.no_grad():
            found.append(net.input_moments(images))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-3)
