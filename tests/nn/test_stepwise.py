"""The fast engine against plain PyTorch: loss, every gradient, statistics, for every kind of layer that it knows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bifl.core.forward import Forward, binary, real, ternary
from bifl.core.message import Floats
from bifl.nn.fast.stepwise import StepEngine, plan
from bifl.nn.models import celeba_cnn, femnist_cnn, har_cnn, mnist_cnn
from bifl.nn.network import Network, PlainNetwork
from tests.support.twins import FAR, Kinks, Step, apart, difference, step, twin

pytestmark = pytest.mark.floats


def steps(module: nn.Module, images: Tensor) -> list[str]:
    """What the fast engine makes of a module; nothing if it leaves it to PyTorch."""
    return [type(planned.step).__name__ for planned in plan(copy.deepcopy(module), {"input": images}) or ()]


def is_fast(net: Network, images: Tensor) -> bool:
    """Whether the fast engine computes a network itself."""
    assert isinstance(net.engine, StepEngine)
    return net.engine.plan_of({"input": images}, training=net.module.training) is not None


def scattered(layers: list[nn.Module]) -> nn.Sequential:
    """In sequence, γ and β of either sign."""
    for layer in layers:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return nn.Sequential(*layers)


def network(
    inputs: int, channels: int, kernel: int, height: int, width: int, activation: type[nn.Module], pool_first: bool, hidden: bool
) -> nn.Sequential:
    """Two blocks and one or two linear layers."""
    rest = [nn.MaxPool2d(2), activation()] if pool_first else [activation(), nn.MaxPool2d(2)]
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, channels, kernel, padding=kernel // 2, bias=hidden), nn.BatchNorm2d(channels), *rest,
        nn.Conv2d(channels, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), activation(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3 * height * width, 5, bias=hidden), nn.BatchNorm1d(5),
    ]  # fmt: skip
    return scattered(layers + ([activation(), nn.Linear(5, 4), nn.BatchNorm1d(4)] if hidden else []))


def once(module: nn.Module, images: Tensor) -> Step:
    """A step of the fast network from its own start."""
    net = twin(Network, module, real)
    return step(net, net.initial()[0], real, images, torch.arange(len(images)))


def compared(module: nn.Module, images: Tensor, labels: Tensor, forward: Forward = real) -> float:
    """How far the fast engine's step in single precision is from PyTorch's in double.

    NaN if that is near a kink, or where PyTorch's own single precision is far off too.
    """
    fast, plain, single = (twin(kind, module, forward) for kind in (Network, PlainNetwork, PlainNetwork))
    assert is_fast(fast, images)
    kinks, (aux, _) = Kinks(plain.module), fast.initial()
    exact = step(plain, aux, forward, images.double(), labels)
    if kinks.distance <= FAR or difference(step(single, aux, forward, images, labels), exact, least=0.05) > 1e-3:
        return math.nan
    return difference(step(fast, aux, forward, images, labels), exact, least=0.05)


def same_moments(module: nn.Module, images: Tensor) -> Floats:
    """What both engines measure of the norms' inputs."""
    fast, plain = (twin(kind, module, binary) for kind in (Network, PlainNetwork))
    found = []
    for net in (fast, plain):
        net.show(*fast.initial(), binary)
        net.train_norms()
        with torch.no_grad():
            found.append(net.input_moments({"input": images}))
    (mean, square), (exact_mean, exact_square) = (np.split(moments, 2) for moments in found)
    # measured on three kinds of processors: 9e-6 at most, four seeds
    np.testing.assert_array_less(np.abs(mean - exact_mean), 1e-4 * np.sqrt(exact_square) + 1e-12)
    np.testing.assert_array_less(np.abs(square - exact_square), 1e-4 * exact_square + 1e-12)
    return found[0]


@settings(max_examples=30)
@given(
    st.integers(0, 999), st.integers(2, 6), st.sampled_from([1, 2]), st.integers(1, 19), st.sampled_from([3, 5]),
    st.integers(1, 4), st.integers(1, 4), st.sampled_from([nn.Tanh, nn.ReLU]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_blocks_with_batch_norm_equal_autograd(
    seed: int, count: int, inputs: int, channels: int, kernel: int, height: int, width: int, activation: type[nn.Module],
    pool_first: bool, hidden: bool,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    module = network(inputs, channels, kernel, height, width, activation, pool_first, hidden)
    images = torch.randn(count, inputs, 4 * height, 4 * width)
    assert (steps(module, images)[0] == "First") == (inputs == 1 and kernel == 3)
    found = compared(module, images, torch.randint(0, 4, (count,)))
    assume(not math.isnan(found))
    # Batch-norm of a few pixels that are nearly equal magnifies rounding up to 1/√ε ≈ 300 times.
    # Largest of 1,200 random networks on two processors: 7.8e-4
    assert found < 1e-2


def normed(kind: str, channels: int) -> list[nn.Module]:
    norms: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(channels), "group": lambda: nn.GroupNorm(2, channels),
        "features": lambda: nn.BatchNorm1d(channels), "layer": lambda: nn.LayerNorm(channels),
    }  # fmt: skip
    return [norms[kind]()] if kind in norms else []


@settings(max_examples=60)
@given(
    st.integers(0, 999), st.booleans(), st.sampled_from(["batch", "group", "none"]), st.sampled_from([None, 0, 1]),
    st.sampled_from([[nn.Tanh], [nn.ReLU], []]), st.booleans(), st.sampled_from(["features", "layer", "group", "none"]),
    st.integers(7, 10), st.sampled_from([1, 3]),
)  # fmt: skip
def test_every_kind_of_layer_equals_autograd(
    seed: int, bias: bool, norm: str, padding: int | None, activation: list[type[nn.Module]], pool_first: bool, head: str,
    side: int, inputs: int,
) -> None:  # fmt: skip
    """Biases, norms, pooling with odd sides and padding, activations, heads: with each other and without."""
    torch.manual_seed(seed)
    pool = [] if padding is None else [nn.MaxPool2d(2, padding=padding)]
    rest = [*pool, *(kind() for kind in activation)]
    block = [nn.Conv2d(inputs, 4, 3, padding=1, bias=bias), *normed(norm, 4), *(rest if pool_first else rest[::-1])]
    block += [nn.Conv2d(4, 6, 3, stride=2, bias=bias), *normed(norm, 6), *(kind() for kind in activation), nn.Flatten()]
    features = nn.Sequential(*block)(torch.zeros(2, inputs, side, side)).shape[1]
    hidden = [nn.Linear(features, 6, bias=bias), *normed(head, 6), *(kind() for kind in activation)]
    module = scattered([*block, *hidden, nn.Linear(6, 6), *normed(head, 6)])
    images = torch.randn(5, inputs, side, side)
    assert "Call" not in steps(module, images)
    found = compared(module, images, torch.randint(0, 6, (5,)))
    assume(not math.isnan(found))
    assert found < 1e-2  # largest of 248 such networks: 1.8e-5


@pytest.mark.parametrize("inplace", [False, True])
def test_unknown_layers_are_left_to_pytorch(inplace: bool) -> None:
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + self.inner(x)
            return out

    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ELU(inplace=inplace), Residual()]
    module = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 5), nn.PReLU(), nn.LayerNorm(5))
    images = torch.randn(6, 1, 8, 8)
    assert steps(module, images) == [
        "First", "Call", "Convolution", "Norm", "Add", "Call", "Flatten", "Dense", "Call", "GroupNorm",
    ]  # fmt: skip
    assert compared(module, images, torch.arange(6) % 5) < 1e-4
    assert len(same_moments(module, images)) == 16


@pytest.mark.parametrize("forward", [real, binary, ternary])
@pytest.mark.parametrize(("make", "count", "image"), [(mnist_cnn, 8, (1, 28, 28)), (femnist_cnn, 6, (1, 28, 28))])
def test_the_papers_networks_take_this_way(
    make: Callable[[int], nn.Module], count: int, image: tuple[int, int, int], forward: Forward
) -> None:
    """Every gradient and statistic of one step, against double precision.

    Largest difference of 16 starts far from kinks: 5e-6 (mnist_cnn) and 5e-5 (femnist_cnn).
    """
    for seed in range(20):
        torch.manual_seed(seed)
        module = make(10)
        images, labels = torch.randn(count, *image), torch.arange(count)
        fast, plain = (twin(kind, module, forward) for kind in (Network, PlainNetwork))
        kinks, aux = Kinks(plain.module), apart(fast.layout.count, seed)
        exact = step(plain, aux, forward, images.double(), labels)
        if kinks.distance > FAR:
            break
    assert kinks.distance > FAR
    assert is_fast(fast, images.float())
    ours = step(fast, aux, forward, images.to(memory_format=torch.channels_last), labels)
    assert difference(ours, exact) < 1e-3


def documented_networks() -> dict[str, nn.Module]:
    """README's example, and what docs/results.md recommends for clients that lack classes."""
    first = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.MaxPool2d(2), nn.Tanh()]
    second = [nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.MaxPool2d(2), nn.Tanh()]
    hidden = [nn.Flatten(), nn.Linear(784, 100), nn.BatchNorm1d(100), nn.Tanh()]
    features = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.Tanh(), nn.MaxPool2d(2)]
    return {
        "README": nn.Sequential(*features, nn.Flatten(), nn.Linear(32 * 4 * 4, 10), nn.BatchNorm1d(10)),
        "ln4_cnn": nn.Sequential(*first, *second, *hidden, nn.Linear(100, 10), nn.LayerNorm(10)),
        "no norm of scores": nn.Sequential(*first, *second, *hidden, nn.Linear(100, 10)),
        "celeba_cnn": celeba_cnn(2),
    }


def shape_of(name: str) -> tuple[int, int, int]:
    """Of the images that a network takes."""
    return {"celeba_cnn": (3, 84, 84), "README": (1, 8, 8)}.get(name, (1, 28, 28))


@pytest.mark.parametrize("name", documented_networks())
def test_no_documented_network_misses_the_fast_engine(name: str) -> None:
    assert "Call" not in steps(documented_networks()[name], torch.zeros(2, *shape_of(name)))


def test_celeba_cnn_equals_autograd() -> None:
    """On smaller images, whose sides are odd at the same places: a distance from all kinks is rare among many pixels.

    Largest difference of 20 starts: 3e-5.
    """
    torch.manual_seed(0)
    layers = list(celeba_cnn(2).children())
    module = nn.Sequential(*layers[:-3], nn.Flatten(), nn.Linear(32 * 4, 3), nn.BatchNorm1d(3))
    batches = (torch.randn(2, 3, 20, 20) for _ in range(20))  # 20 → 10 → 5 → 3 → 2
    found = (compared(module, images, torch.arange(2)) for images in batches)
    assert next(distance for distance in found if not math.isnan(distance)) < 1e-3


def test_of_equal_pixels_the_first_gets_the_gradient() -> None:
    """As in PyTorch; the black margins of digits are full of ties."""
    torch.manual_seed(0)
    images = torch.zeros(2, 1, 8, 8)
    images[:, :, 3, 4] = 1
    bare = [nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(75, 4)]
    for module in (network(1, 3, 3, 2, 2, nn.Tanh, pool_first=True, hidden=False), nn.Sequential(*bare)):
        nets = [twin(kind, module, real) for kind in (Network, PlainNetwork)]
        ours, theirs = (step(net, net.initial()[0], real, images, torch.arange(2)) for net in nets)
        assert difference(ours, theirs, least=0.05) < 1e-2  # as above; the gradient of another pixel would be wholly different


def test_what_the_fast_engine_does_not_take() -> None:
    x, twice, own = torch.randn(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert is_fast(Network(copy.deepcopy(hooked)), x)
    hooked[1].register_forward_hook(lambda layer, given, out: 2 * out)
    tied = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    tied[3].weight = tied[1].weight
    shared = nn.Sequential(nn.Flatten(), nn.Linear(3, 3), twice, nn.Linear(3, 3), twice)
    inner = nn.Sequential(own, nn.Tanh())
    for module in (shared, nn.Sequential(inner, inner), hooked, tied, nn.Sequential(nn.LSTM(2, 3)), nn.Softmax(1)):
        assert not is_fast(Network(module), x)
    same = nn.Tanh()
    assert steps(nn.Sequential(nn.Flatten(), nn.Linear(3, 3), same, nn.Linear(3, 3), same), x)[-1] == "Activation"


def test_a_network_is_read_in_every_mode_and_for_every_shape() -> None:
    net = Network(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    start = net.initial()
    for side in (8, 9):
        images = torch.randn(4, 1, side, side)
        net.show(*start, real)
        assert is_fast(net, images)
        torch.testing.assert_close(net.scores({"input": images}), net.module(images))
        net.train_norms()
        assert not is_fast(net, images)  # norms in training, in a module that is not, are measured and not evaluated
        assert len(net.input_moments({"input": images})) == 4


def test_a_shortcut_of_the_input_adds_gradients() -> None:
    """Values that several operations read, a sum with itself, and an argument in the middle of a call."""

    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.scores = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            a = self.one(x)
            b = torch.tanh(self.two(a) + a)
            c = torch.cat([b + b, torch.sub(a, b, alpha=2)], dim=1)
            scores: Tensor = self.scores(torch.relu(c) + c)
            return scores

    torch.manual_seed(0)
    images = torch.randn(5, 6)
    assert steps(Forked(), images).count("Call") == 2
    found = compared(Forked(), images, torch.arange(5) % 4)
    assert found < 1e-4


def test_linear_layers_of_images_are_left_to_pytorch() -> None:
    """nn.Linear maps the last dimension, which is none of the channels."""
    layers = [nn.Conv2d(1, 2, 3), nn.Linear(4, 3), nn.LayerNorm(3), nn.Flatten(), nn.Linear(24, 2), nn.Tanh()]
    assert steps(nn.Sequential(*layers), torch.zeros(2, 1, 6, 6)) == [
        "Convolution", "Call", "Call", "Flatten", "Dense", "Activation",
    ]  # fmt: skip


def test_double_precision_and_one_image_are_pytorchs() -> None:
    module = network(1, 2, 3, 1, 1, nn.ReLU, pool_first=True, hidden=False)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        once(module, torch.randn(1, 1, 4, 4))
    exact, plain = (twin(kind, module, real) for kind in (Network, PlainNetwork))
    images = torch.randn(3, 1, 4, 4).double()
    ours, theirs = (step(net, net.initial()[0], real, images, torch.arange(3)) for net in (exact, plain))
    assert difference(ours, theirs) == 0


@pytest.mark.parametrize("bare", [False, True])
def test_a_diverged_batch_stays_visible(bare: bool) -> None:
    images = torch.randn(2, 1, 8, 8)
    images[0, 0, 1, 1] = torch.nan
    layers = [nn.Conv2d(1, 2, 1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)]  # one pixel of a window is NaN
    module = nn.Sequential(*layers) if bare else network(1, 2, 3, 2, 2, nn.ReLU, pool_first=True, hidden=True)
    assert math.isnan(once(module, images).loss)


EVALUATED = {"mnist_cnn": mnist_cnn(10), "femnist_cnn": femnist_cnn(10), **documented_networks()}


@pytest.mark.parametrize("name", EVALUATED)
def test_evaluation_equals_the_modules(name: str) -> None:
    torch.manual_seed(0)
    net = Network(cloudpickle.loads(cloudpickle.dumps(EVALUATED[name])))
    assert isinstance(net.engine, StepEngine)
    aux, trained = net.initial()
    generator = np.random.default_rng(0)
    net.show(aux, (trained + generator.uniform(0.1, 1, len(trained))).astype(np.float32), binary)
    images = torch.randn(9, *shape_of(name))
    before = net.read_moments()
    with torch.no_grad():
        ours, theirs = net.scores({"input": images}), net.module(images)
    # Scores are differences of large sums: in parts of the largest, either is within 3e-5 of double precision (five seeds, three
    # kinds of processors). A single small score may be further off.
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-3
    assert np.array_equal(net.read_moments(), before)


@pytest.mark.parametrize("name", EVALUATED)
def test_moments_are_those_that_the_layers_see(name: str) -> None:
    torch.manual_seed(0)
    same_moments(EVALUATED[name], torch.randn(8, *shape_of(name)))


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
    assert is_fast(fast, images)
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


def test_signals_are_images_of_one_row() -> None:
    torch.manual_seed(0)
    module, images = har_cnn(4, channels=3), torch.randn(6, 3, 21)
    for _ in range(20):
        fast, plain = (twin(kind, module, real) for kind in (Network, PlainNetwork))
        kinks, (aux, _) = Kinks(plain.module), fast.initial()
        exact = step(plain, aux, real, images.double(), torch.arange(6) % 4)
        if kinks.distance > FAR:
            break
        images = torch.randn(6, 3, 21)
    assert steps(module, images)[:3] == ["Convolution", "NormPool", "Convolution"]
    assert difference(step(fast, aux, real, images, torch.arange(6) % 4), exact, least=0.05) < 1e-3
    start = fast.initial()
    for net in (fast, plain):
        net.module.float()
        net.show(*start, real)
    with torch.no_grad():
        torch.testing.assert_close(*(net.scores({"input": images}) for net in (fast, plain)), rtol=1e-4, atol=1e-5)


class Foreign(nn.Module):
    """Forwards that a list of steps would not repeat faithfully."""

    seen: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.norm, self.kind, self.calls = nn.LayerNorm(3), kind, 0
        if kind == "parameter":
            self.gain = nn.Parameter(torch.ones(3))
        if kind == "buffer":
            self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.kind == "counts":
            self.calls += 1
            x = x * self.calls
        if self.kind == "parameter":
            x = x * self.gain
        return x + self.seen if self.kind == "buffer" else x


@pytest.mark.parametrize("kind", ["counts", "parameter", "buffer"])
def test_what_steps_would_not_repeat_is_pytorchs(kind: str) -> None:
    """A parameter and a buffer may change. What else `trace.read` refuses: test_trace."""
    x = torch.randn(4, 3)
    assert not is_fast(Network(Foreign(kind), real), x)
    assert is_fast(Network(Foreign("none"), real), x)


def test_modes_have_steps_of_their_own() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(x)
            return torch.relu(out + out) if self.training else out

    net, x = Network(Doubled(), real), torch.randn(4, 3)
    net.module.train()
    training = net.scores({"input": x})
    again: Network = cloudpickle.loads(cloudpickle.dumps(net))
    again.module.eval()
    assert is_fast(again, x)
    torch.testing.assert_close(training, torch.relu(2 * again.scores({"input": x})))


def test_a_diverged_group_stays_visible() -> None:
    x = torch.randn(2, 4, 3, 3)
    x[0, 0, 1, 1] = torch.nan
    net = Network(nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()))
    assert is_fast(net, x)
    out = net.scores({"input": x})
    assert out[0, :2].isnan().all()
    assert not out[0, 2:].isnan().any()
    assert not out[1].isnan().any()
