"""Real parameters on the wire: rounded within a step, right on average, spelled without loss after that."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bifl.algorithm import BINARY, Message
from bifl.layout import Layout, Tensor
from bifl.wire import SHORT, Context, decode, encode
from bifl.wire.reals import from_grid, on_grid, read_rice, rice, to_grid

pytestmark = pytest.mark.floats

values = arrays.arrays(np.float64, st.integers(0, 100), elements=st.floats(-(2.0**61), 2.0**61, width=64))
LAYOUT = Layout(
    ("a", "b"),
    (Tensor("a.weight", (4,), 0), Tensor("b.weight", (4,), 1)),
    (Tensor("norm.weight", (3,)), Tensor("norm.bias", (3,)), Tensor("last.weight", (5,))),
    (Tensor("norm", (3,)),),
)


@given(values=values, bits=st.integers(1, 12), seed=st.integers(0, 99))
def test_rounding(values: npt.NDArray[np.float64], bits: int, seed: int) -> None:
    grid = to_grid(values, bits, np.random.default_rng(seed))
    rounded = from_grid(grid, bits)
    assert on_grid(grid, bits)
    assert np.all(np.abs(rounded - values) <= np.maximum(np.abs(values), 1) * 2.0**-bits)
    assert to_grid(rounded, bits, np.random.default_rng(seed + 1)).tolist() == grid.tolist(), "what is on the grid stays"


@given(seed=st.integers(0, 999), scale=st.sampled_from([1e-3, 0.03, 1, 1000]))
def test_only_batch_norm_is_rounded_and_in_proportion(seed: int, scale: float) -> None:
    generator = np.random.default_rng(seed)
    first = generator.normal(size=3) * scale
    second = first**2 + generator.exponential(size=3) * scale**2
    trained = generator.normal(size=LAYOUT.trained) * 0.01
    real = np.concatenate([trained, first, second]).astype(np.float32)
    context = Context(LAYOUT, 1, SHORT)
    message = Message(np.zeros(8, np.uint8), BINARY, real, sender=2, round=1)
    back = decode(encode(message, context), context).real
    assert back[[0, 1, 8, 9, 10, 11, 12]].tolist() == real[[0, 1, 8, 9, 10, 11, 12]].tolist(), "ϑ and layers kept real are exact"
    assert np.all(np.abs(back[2:8] - real[2:8]) <= 2.0**-6), "γ, β"
    assert np.all(np.abs(back[16:] - second) <= 2.0**-4 * second), "E[x²] in proportion to itself"
    assert np.all(np.abs(back[13:16] - first) <= 2.0**-4 * np.sqrt(second)), "E[x] in proportion to its size"


def test_a_small_variance_beside_a_large_mean_survives() -> None:
    real = np.zeros(LAYOUT.reals, np.float32)
    real[13:16], real[16:] = 30, 901  # deviation 1
    message, context = Message(np.zeros(8, np.uint8), BINARY, real, round=1), Context(LAYOUT, 1, SHORT)
    back = decode(encode(message, context), context).real.astype(np.float64)
    assert np.all(np.abs(back[16:] - back[13:16] ** 2 - 1) < 0.01)


def test_rounding_is_right_on_average() -> None:
    for value in (0.3001, -0.004, 1.7, 700.3):
        rounded = from_grid(to_grid(np.full(100_000, value), 6, np.random.default_rng(0)), 6)
        step = max(1, 2.0 ** np.floor(np.log2(abs(value)))) / 2**6
        assert abs(rounded.mean() - value) < 4 * step / 100_000**0.5


@given(st.lists(st.integers(-300_000, 300_000) | st.integers(-3, 3), max_size=100))
def test_rice_round_trip(numbers: list[int]) -> None:
    data = rice(np.array(numbers, np.int64))
    assert read_rice(data, len(numbers)).tolist() == numbers
    for wrong in (data + b"\0", data[:-1], data + b"\1"):
        if numbers:
            with pytest.raises(ValueError, match="real numbers"):
                read_rice(wrong, len(numbers))


@given(st.binary(max_size=60), st.integers(0, 500))
def test_rice_reads_or_refuses_any_bytes(data: bytes, count: int) -> None:
    try:
        assert len(read_rice(data, count)) == count
    except ValueError:
        return


def test_small_numbers_are_short() -> None:
    assert len(rice(np.zeros(320, np.int64))) == 10 * 5 // 8 + 1 + 40
