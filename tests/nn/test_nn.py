"""Networks: the straight-through step, trainable ϑ, and the flat vectors."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from bifl.core import Client
from bifl.core.forward import Forward, Latent, binary, real, ternary
from bifl.core.straight_through import straight_through_sign
from bifl.errors import ConfigError
from bifl.nn.batch import Samples
from bifl.nn.binarize import binarize
from bifl.nn.misfit import Misfit
from bifl.nn.models import celeba_cnn, cnn4, femnist_cnn, mnist_cnn
from bifl.nn.network import Network, PlainNetwork
from bifl.nn.optimizers import Adam, Sgd, Trained, adam, sgd
from bifl.training.local import Plan, batches, train
from bifl.training.rates import learning_rate

pytestmark = pytest.mark.floats


def latent(aux: torch.Tensor) -> Latent:
    return Latent(aux, aux.detach(), progress=0, key=0)


def test_sign_of_zero_is_minus_one_and_the_gradient_passes_unchanged() -> None:
    aux = torch.tensor([-0.5, 0.0, 0.5], requires_grad=True)
    signs = straight_through_sign(aux)
    assert signs.tolist() == [-1, -1, 1]
    signs.backward(torch.tensor([1.0, 2.0, 3.0]))  # type: ignore[no-untyped-call]
    assert aux.grad is not None
    assert aux.grad.tolist() == [1, 2, 3]


def test_pooling_first_changes_no_number() -> None:
    x = torch.randn(4, 3, 8, 8)
    pool = nn.MaxPool2d(2)
    assert torch.equal(torch.tanh(pool(x)), pool(torch.tanh(x)))


BOTH = pytest.mark.parametrize("kind", [Network, PlainNetwork])


def plain_network() -> nn.Sequential:
    """Without batch-norm, so that ϑ matters."""
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), one=nn.Linear(4, 5), tanh=nn.Tanh(), two=nn.Linear(5, 3)))


@BOTH
def test_theta_scales_weights_and_bias_and_gets_the_right_gradient(kind: type[Network]) -> None:
    network = kind(plain_network())
    aux = torch.from_numpy(network.initial()[0]).requires_grad_()
    real = torch.tensor([0.7, -1.3], requires_grad=True)
    x, y = torch.randn(6, 1, 2, 2), torch.randint(0, 3, (6,))
    loss = network.learn(latent(aux), real, binary, {"input": x, "target": y})

    # the definition, spelled out: a_l = ϑ_l · f_l(Sign(W̄_l), a_{l-1})
    signs = straight_through_sign(aux.detach()).requires_grad_()
    theta = real.detach().clone().requires_grad_()
    one, bias_one, two, bias_two = torch.split_with_sizes(signs, [20, 5, 15, 3])
    hidden = torch.tanh(theta[0] * nn.functional.linear(x.flatten(1), one.view(5, 4), bias_one))
    scores = theta[1] * nn.functional.linear(hidden, two.view(3, 5), bias_two)
    expected = nn.functional.cross_entropy(scores, y)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert aux.grad is not None
    assert signs.grad is not None
    assert real.grad is not None
    assert theta.grad is not None
    assert torch.allclose(aux.grad, signs.grad, atol=1e-7)
    assert torch.allclose(real.grad, theta.grad, atol=1e-7)
    assert theta.grad.abs().min() > 1e-4  # no rounding noise: it really is trained


def samples(count: int = 12) -> Samples:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 1, 2, 2), generator=generator, dtype=torch.uint8)
    return Samples(images, torch.randint(0, 3, (count,), generator=generator), 0.5, 0.25)


def client_of(network: Network) -> Client:
    aux, real = network.initial()
    return Client(aux, aux, real, 12, 5)


@BOTH
def test_training_is_descent_on_aux_clipped_after_every_step(kind: type[Network]) -> None:
    network = kind(plain_network())
    client = client_of(network)
    trained, _ = train(client, network, binary, samples(), torch.arange(12), Plan(sgd(), 0.5, 12, 1))

    again = Network(plain_network())
    aux = torch.from_numpy(client.aux.copy()).requires_grad_()
    again.learn(latent(aux), torch.ones(2), binary, samples().batch(slice(None)))
    assert aux.grad is not None
    expected = (aux.detach() - 0.5 * aux.grad).clamp(-1, 1).numpy()
    np.testing.assert_allclose(trained.aux, expected, atol=1e-6)


@pytest.mark.parametrize(("forward", "clipped"), [(binary, True), (real, False)])
def test_only_the_binary_forward_clips(forward: Forward, clipped: bool) -> None:
    network = Network(plain_network())
    trained, _ = train(client_of(network), network, forward, samples(), torch.arange(12), Plan(sgd(), 500.0, 4, 1))
    assert (np.abs(trained.aux).max() <= 1) == clipped


def test_training_reads_nothing_but_its_arguments() -> None:
    network = Network(mnist_cnn(10))
    client = client_of(network)
    digits = Samples(torch.randint(0, 256, (130, 1, 28, 28), dtype=torch.uint8), torch.arange(130) % 10, 0.1307, 0.3081)
    once = train(client, network, binary, digits, torch.arange(130), Plan(adam(), 0.005, 64, 1))
    torch.manual_seed(99)
    twice = train(client, network, binary, digits, torch.arange(130), Plan(adam(), 0.005, 64, 1))  # the network was used before
    assert once[0].aux.tobytes() == twice[0].aux.tobytes()
    assert once[0].real.tobytes() == twice[0].real.tobytes()
    assert client.aux.tobytes() == network.initial()[0].tobytes()


def test_rounding_noise_does_not_move_theta() -> None:
    """Batch-norm follows every layer of mnist_cnn, so that ϑ has no effect; with the usual ε it walked to 0 and beyond.

    Measured with six seeds on two processors: 0.00006 to 0.0005.
    """
    network = Network(mnist_cnn(10))
    client = client_of(network)
    digits = Samples(torch.randint(0, 256, (320, 1, 28, 28), dtype=torch.uint8), torch.arange(320) % 10, 0.1307, 0.3081)
    trained, _ = train(client, network, binary, digits, torch.arange(320), Plan(adam(), 0.005, 16, 5))  # 100 steps
    assert np.abs(trained.real[:4] - 1).max() < 0.02


def test_theta_is_trained_where_it_matters() -> None:
    network = Network(plain_network())
    trained, _ = train(client_of(network), network, binary, samples(), torch.arange(12), Plan(adam(), 0.005, 12, 10))
    assert np.abs(trained.real[:2] - 1).min() > 0.02  # measured 0.047: ten steps of at most 0.005, all in one direction


@pytest.mark.parametrize(
    ("count", "expected"), [(2, [2]), (64, [64]), (65, [65]), (129, [64, 65]), (130, [64, 64, 2]), (600, [64] * 9 + [24])]
)
def test_batches_use_every_image_once_and_never_one_alone(count: int, expected: list[int]) -> None:
    parts = list(batches(torch.arange(count), 64, np.random.default_rng(0)))
    assert [len(part) for part in parts] == expected
    assert sorted(torch.cat(parts).tolist()) == list(range(count))


def test_moments_survive_the_flat_vector() -> None:
    network = Network(mnist_cnn(10))
    network.module.train()
    network.module(torch.randn(32, 1, 28, 28))
    moments = network.read_moments()
    other = Network(mnist_cnn(10))
    other.write_moments(moments)
    np.testing.assert_allclose(other.read_moments(), moments, rtol=1e-6)


def test_averaged_moments_are_those_of_the_pooled_data() -> None:
    """The law behind batchnorm=average: the variance of the clients' means is in the pooled variance."""
    generator = np.random.default_rng(0)
    groups: list[npt.NDArray[np.float64]] = [generator.normal(center, 1, 1000) for center in (-3, 0, 5)]
    moments = []
    for group in groups:
        norm = nn.BatchNorm1d(1)
        norm.running_mean, norm.running_var = torch.tensor([group.mean()]), torch.tensor([group.var()])
        moments.append(Network(nn.Sequential(norm)).read_moments())
    pooled = nn.BatchNorm1d(1)
    Network(nn.Sequential(pooled)).write_moments(np.mean(moments, axis=0).astype(np.float32))
    assert pooled.running_mean is not None
    assert pooled.running_var is not None
    together = np.concatenate(groups)
    assert float(pooled.running_mean) == pytest.approx(together.mean(), rel=1e-5)
    assert float(pooled.running_var) == pytest.approx(together.var(), rel=1e-5)


@pytest.mark.parametrize(("ours", "theirs"), [(Adam, torch.optim.Adam), (Sgd, torch.optim.SGD)])
def test_optimisers_equal_torchs(ours: type[Adam] | type[Sgd], theirs: type[torch.optim.Optimizer]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1000, generator=generator)
    one, other = start.clone().requires_grad_(), start.clone().requires_grad_()
    mine = ours(Trained([one], 0.005, [1e-8], [math.inf], [slice(None)]))
    reference = theirs([other], lr=0.005)  # type: ignore[call-arg]
    for step in range(20):
        gradient = torch.randn(1000, generator=generator) * 10.0 ** -(step % 9)
        one.grad, other.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_the_learning_rate_steps_after_the_named_rounds() -> None:
    rates, steps = (0.005, 0.002, 0.001), (30, 60)
    assert [learning_rate(r, rates, steps) for r in (1, 30, 31, 60, 61, 100)] == [0.005, 0.005, 0.002, 0.002, 0.001, 0.001]
    assert learning_rate(50, (0.1,), steps) == 0.1


@pytest.mark.parametrize(
    ("factory", "classes", "count", "image"),
    [
        (mnist_cnn, 10, 82_242, (1, 28, 28)),
        (femnist_cnn, 62, 6_608_026, (1, 28, 28)),
        (celeba_cnn, 2, 31_078, (3, 84, 84)),
        (cnn4, 10, 390_880, (1, 28, 28)),
    ],
)
def test_the_papers_networks(factory: Callable[[int], nn.Module], classes: int, count: int, image: tuple[int, int, int]) -> None:
    network = Network(factory(classes))
    layout = network.layout
    assert layout.parameters - len(layout.layers) == count
    assert network.misfit({"input": torch.zeros(1, *image)}, (classes,)) is None
    assert network.misfit({"input": torch.zeros(1, image[0], image[1] // 2, image[2])}, (classes,)) is not None
    assert network.misfit({"input": torch.zeros(1, image[0] + 1, *image[1:])}, (classes,)) is not None
    said = network.misfit({"input": torch.zeros(1, *image)}, (classes + 1,))
    assert said == Misfit(f"it gives {(1, classes)} for one sample instead of {(1, classes + 1)}")


def test_the_ternary_forward_and_its_gradients() -> None:
    """Two layers of five and three weights; Δ = 0.7·mean|θ| is 0.28 and 0.7."""
    aux = torch.tensor([0.9, -0.5, 0.2, -0.3, 0.1, 2.0, -1.0, 0.0], requires_grad=True)
    scales = torch.tensor([0.5, -2.0], requires_grad=True)
    state = Latent(aux, aux.detach(), 0, 0, scales, (5, 3), training=True)
    weights = ternary.weights(state)
    assert weights.tolist() == [0.5, -0.5, 0, -0.5, 0, -2, 2, 0]
    gradient = torch.arange(1.0, 9.0)
    weights.backward(gradient)  # type: ignore[no-untyped-call]
    assert aux.grad is not None
    assert scales.grad is not None
    assert aux.grad.tolist() == [0.5, 1, 3, 2, 5, -12, -14, 8], "w_q·g where |θ| > Δ, else g"
    assert scales.grad.tolist() == [1 - 2 - 4, 6 - 7], "Σ g·I"
    shown = ternary.weights(state._replace(training=False))
    assert torch.equal(shown[:5], 0.5 * aux[:5]), "when evaluated, the weights are what the server said"


def test_ternary_codes_only_the_weights_of_inner_layers() -> None:
    layout = Network(mnist_cnn(10), ternary).layout
    assert [spec.name for spec in layout.coded] == ["conv2.weight", "linear3.weight"]
    assert layout.layers == ("conv2", "linear3")
    assert {"conv1.weight", "linear3.bias", "linear4.weight", "linear4.bias"} < {spec.name for spec in layout.affine}
    assert layout.parameters - len(layout.layers) == 82_242, "nothing is lost"


def test_layers_kept_real_still_count_as_first_and_last() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert Network(binarize(module, keep=("0", "2")), ternary).layout.layers == ("1",)


def test_what_any_forward_computes_with_fits_the_layout_of_another() -> None:
    """A model file of somebody's own forward holds the weights in the end, as the real forward lays them out."""
    image = torch.randn(5, 1, 28, 28)
    network = Network(mnist_cnn(10), ternary)
    network.show(*network.initial(), ternary)
    expected = network.module(image)
    plain = Network(mnist_cnn(10), real)
    assert plain.layout.count > network.layout.count
    plain.show(*network.laid_out(plain.layout), real)
    assert torch.equal(plain.module(image), expected)


def test_a_kept_layer_is_trained_as_it_is() -> None:
    network = Network(binarize(plain_network(), keep=("two",)))
    assert network.layout.layers == ("one",)
    trained, _ = train(client_of(network), network, binary, samples(), torch.arange(12), Plan(sgd(), 0.1, 12, 1))
    start = client_of(network)
    assert (trained.real[1:] != start.real[1:]).all()
    network.show(trained.aux, trained.real, binary)
    assert torch.unique(network.module.one.weight.abs()).numel() == 1  # type: ignore[union-attr, operator]
    assert torch.unique(network.module.two.weight.abs()).numel() > 1  # type: ignore[union-attr, operator]


def test_binarize_computes_with_signs_at_once_and_trains() -> None:
    module = binarize(plain_network(), keep=("two",))
    one, before = module.get_submodule("one"), plain_network().get_submodule("one")
    assert isinstance(one, nn.Linear)
    assert isinstance(before, nn.Linear)
    assert torch.equal(one.weight, torch.where(before.weight > 0, 1.0, -1.0))
    assert set(one.bias.tolist()) <= {-1.0, 1.0}
    module(torch.randn(3, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert Network(module).layout.count == 25


def test_binarize_refuses_names_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="did you mean 'two'"):
        binarize(plain_network(), keep=("tow",))
    with pytest.raises(ConfigError, match="left to be binary"):
        binarize(plain_network(), keep=("one", "two"))


def test_norms_without_running_statistics_have_no_moments() -> None:
    network = Network(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, track_running_stats=False), nn.BatchNorm2d(4)))
    assert network.layout.reals == len(network.initial()[1])
    assert [spec.name for spec in network.layout.moments] == ["2"]
