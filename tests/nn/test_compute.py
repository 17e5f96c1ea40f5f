"""The two engines side by side: whole epochs of training, optimisers, and what both must do alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bifl.core import Client
from bifl.core.forward import Forward, binary, real
from bifl.engine.loop import loop
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.nn.batch import Samples
from bifl.nn.binarize import binarize
from bifl.nn.models import mnist_cnn
from bifl.nn.network import Network, PlainNetwork
from bifl.nn.optimizers import Adam, Trained, sgd
from bifl.training.local import Plan, train
from tests.support.twins import FAR, Kinks, apart

pytestmark = pytest.mark.floats


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
    return train(Client(aux, aux, real, 25, 7), network, forward, noise(seed), torch.arange(25), Plan(sgd(), 0.01, 8, 1))[0]


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
    optimizers = [Adam(Trained([vector], 0.005, [floors], [1.0], [slice(None)])) for vector in (one, other)]
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
    start = build(experiment).public.weights
    assert np.linalg.norm(fast.weights - plain.weights) < 0.2 * np.linalg.norm(plain.weights - start)
