"""C against PyTorch: random networks of all layers that C has, and the layers it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bifl.export.c_model import generate
from bifl.export.raw import Normalisation
from bifl.export.stages import place, read
from bifl.export.weights import Unsupported, fold, rows_of
from tests.support.exports import PLAIN, SANITIZED, make, needs, numbers, predict, scattered, scores, write

ACTIVATIONS: list[Any] = [nn.Tanh, nn.ReLU, nn.GELU, lambda: nn.GELU("tanh"), nn.Identity]
KINDS: dict[int, tuple[Any, ...]] = {
    1: (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d, nn.AvgPool1d),
    2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.AvgPool2d),
}


class Residual(nn.Module):
    """x + f(x), and what follows."""

    def __init__(self, inner: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.inner, self.after = inner, after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(x + self.inner(x))
        return out


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A network, and the shape of its inputs."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    one = draw(st.booleans())  # a sequence
    conv, norm, biggest, mean = KINDS[1 if one else 2]
    channels, side = draw(st.sampled_from([1, 2, 6])), draw(st.integers(7, 11))
    shape = (channels, side) if one else (channels, side, draw(st.integers(7, 11)))
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 2))):
        kernel = draw(st.sampled_from([1, 2, 3]))
        groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
        outputs = groups * draw(st.integers(1, 5))
        stride, dilation = draw(st.sampled_from([(1, 1), (2, 1), (1, 2)]))
        bias = draw(st.booleans())
        padding = draw(st.integers(0, kernel // 2))
        layers.append(conv(channels, outputs, kernel, stride, padding, dilation, groups, bias))
        channels = outputs
        layers += [norm(channels)] if draw(st.booleans()) else []
        layers += [draw(st.sampled_from(ACTIVATIONS))()] if draw(st.booleans()) else []
        if draw(st.booleans()):
            pool = draw(st.sampled_from([biggest, mean]))
            layers.append(pool(2, draw(st.sampled_from([1, 2])), padding=draw(st.integers(0, 1)), ceil_mode=draw(st.booleans())))
            layers += [norm(channels)] if draw(st.booleans()) else []
        if draw(st.booleans()):
            same = nn.Sequential(conv(channels, channels, 3, padding=1), norm(channels), draw(st.sampled_from(ACTIVATIONS))())
            layers.append(Residual(same, draw(st.sampled_from(ACTIVATIONS))()))
    if draw(st.booleans()):
        layers.append(nn.AdaptiveAvgPool1d(1) if one else nn.AdaptiveAvgPool2d(1))
    layers.append(nn.Flatten())
    try:
        features = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
    except RuntimeError:  # nothing is left to pool or to convolve: no network
        reject()
    layers += [nn.BatchNorm1d(features)] if draw(st.booleans()) else []
    layers += [nn.Linear(features, 5), draw(st.sampled_from(ACTIVATIONS))(), nn.Linear(5, 3)]
    module = nn.Sequential(*layers)
    return module, shape


@needs("cc", "make")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(network=networks(), kind=st.sampled_from(["binary", "ternary", "real"]))
def test_c_computes_what_pytorch_does(tmp_path: Path, network: tuple[nn.Sequential, tuple[int, ...]], kind: str) -> None:
    module, shape = network
    scattered(module, signs=kind != "real")
    if kind == "ternary":
        for layer in module.modules():
            if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)):
                layer.weight.data[torch.rand_like(layer.weight) < 0.3] = 0
    inputs = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    wanted = scores(module, inputs)
    write(tmp_path, generate(module, shape, PLAIN, classifies=False), inputs, wanted)
    make(tmp_path, "-B", f"CFLAGS={SANITIZED}", "predict")
    found = numbers(predict(tmp_path, inputs))
    np.testing.assert_allclose(found, wanted, atol=2e-5 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (nn.LayerNorm(4), "layer '1' is a LayerNorm"),
        (nn.Softmax(1), "layer '1' is a Softmax"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "layer '1' is a Conv2d"),
        (nn.ELU(), "layer '1' is a ELU"),
        (nn.Linear(4, 4), "layer '1' is a Linear of a map"),
    ],
)
def test_what_c_has_nothing_for_is_refused_by_name(layer: nn.Module, sentence: str) -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 1), layer)
    with pytest.raises(Unsupported) as refusal:
        read(module.eval(), (1, 4, 4))
    assert sentence in str(refusal.value)
    assert "C has Conv1d, Conv2d, Linear" in str(refusal.value)


@needs("cc", "make")
def test_floats_are_normalised_by_channel_and_outputs_are_numbers(tmp_path: Path) -> None:
    module = scattered(nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)))
    how = Normalisation("float", 1.0, (0.5, -2.0, 10.0), (1.0, 2.0, 4.0))
    raw = np.random.default_rng(0).normal(size=(5, 3, 8)).astype(np.float32)
    mean, std = (np.array(scale, np.float32)[:, None] for scale in (how.mean, how.std))
    wanted = scores(module, (raw - mean) / std)
    write(tmp_path, generate(module, (3, 8), how, classifies=False), raw, wanted)
    make(tmp_path, "test")
    np.testing.assert_allclose(numbers(predict(tmp_path, raw)), wanted, atol=1e-5)


@needs("cc", "make")
def test_a_layer_that_is_called_twice_keeps_its_norms(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(50, 3)
            self.norm1, self.norm2 = nn.BatchNorm2d(2), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.norm2(self.conv(self.norm1(self.conv(x)))).flatten(1))
            return out

    module, inputs = scattered(Twice()), np.random.default_rng(0).normal(size=(3, 2, 5, 5)).astype(np.float32)
    wanted = scores(module, inputs)
    write(tmp_path, generate(module, (2, 5, 5), PLAIN, classifies=False), inputs, wanted)
    make(tmp_path, f"CFLAGS={SANITIZED}", "test")
    np.testing.assert_allclose(numbers(predict(tmp_path, inputs)), wanted, atol=2e-5 * max(1, np.abs(wanted).max()))


def test_a_norm_of_other_channels_than_the_layers_stays() -> None:
    module, inputs = scattered(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))), torch.randn(1, 4, 4)
    folded, norms = fold(module, inputs)
    assert norms == {}
    assert torch.equal(folded(inputs), module(inputs))


def test_folding_leaves_the_network_as_it_is_and_its_weights_of_one_size_a_row() -> None:
    module, inputs = scattered(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh())), torch.randn(2, 2, 5, 5)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    wanted = module(inputs)
    folded, norms = fold(module, inputs[:1])
    assert norms == {"0": "1"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    torch.testing.assert_close(folded(inputs), wanted)
    assert rows_of(folded.state_dict()["0.weight"].numpy()) is not None


def test_code_that_decides_by_values_is_refused() -> None:
    class Deciding(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(Unsupported, match="decides by what it computes"):
        read(Deciding(), (1, 4, 4))


def test_no_feature_map_is_stored_between_fused_layers() -> None:
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 49, 3)]
    stages = read(nn.Sequential(*layers).eval(), (1, 14, 14))
    assert [stage.layers for stage in stages] == [["input"], ["0", "1", "2", "3"], ["5"]]
    assert place(stages).size == 14 * 14 + 16 * 49 + 9 + 16, "the input, the pooled map, a window and one pixel's sums"


def test_values_that_are_needed_at_one_time_do_not_overlap() -> None:
    block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1))
    network = nn.Sequential(nn.Conv2d(1, 3, 1), Residual(block, nn.ReLU()), nn.Flatten(), nn.Linear(75, 2))
    stages = read(network.eval(), (1, 5, 5))
    memory = place(stages)
    last = {source: number for number, stage in enumerate(stages) for source in stage.sources}
    for number, stage in enumerate(stages[:-1]):
        alive = [memory.values[old] for old in range(number) if last[old] > number] + [memory.scratch[number]]
        start, length = memory.values[number]
        assert length == stage.shape.size
        assert all(start + length <= other or other + size <= start for other, size in alive if size)
