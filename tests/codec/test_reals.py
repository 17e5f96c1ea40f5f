"""Real parameters on the wire: rounded within a step, right on average, spelled without loss after that."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bifl.codec import SHORT, Context, WireError, decode, encode, read_header
from bifl.codec.reals import from_grid, join, on_grid, read_rice, rice, to_grid
from bifl.core import BINARY, Message, Public
from bifl.core.layout import Layout, Tensor

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
    message = Message.of(np.zeros(8, np.uint8), BINARY, real, sender=2, round=1)
    back = decode(encode(message, context), context).real
    assert back[[0, 1, 8, 9, 10, 11, 12]].tolist() == real[[0, 1, 8, 9, 10, 11, 12]].tolist(), "ϑ and layers kept real are exact"
    assert np.all(np.abs(back[2:8] - real[2:8]) <= 2.0**-6), "γ, β"
    assert np.all(np.abs(back[16:] - second) <= 2.0**-4 * second), "E[x²] in proportion to itself"
    assert np.all(np.abs(back[13:16] - first) <= 2.0**-4 * np.sqrt(second)), "E[x] in proportion to its size"


def test_a_small_variance_beside_a_large_mean_survives() -> None:
    real = np.zeros(LAYOUT.reals, np.float32)
    real[13:16], real[16:] = 30, 901  # deviation 1
    message, context = Message.of(np.zeros(8, np.uint8), BINARY, real, round=1), Context(LAYOUT, 1, SHORT)
    back = decode(encode(message, context), context).real.astype(np.float64)
    assert np.all(np.abs(back[16:] - back[13:16] ** 2 - 1) < 0.01)


def test_rounding_is_right_on_average() -> None:
    for value in (0.3001, -0.004, 1.7, 700.3):
        rounded = from_grid(to_grid(np.full(100_000, value), 6, np.random.default_rng(0)), 6)
        step = max(1, 2.0 ** np.floor(np.log2(abs(value)))) / 2**6
        assert abs(rounded.mean() - value) < 4 * step / 100_000**0.5


def context_with(real: npt.NDArray[np.float32]) -> Context:
    weights = np.zeros(8, np.float32)
    return Context(LAYOUT, 1, SHORT, Public(0, 0, LAYOUT, weights, real))


def uploads_of(real: npt.NDArray[np.float32], context: Context, senders: int) -> npt.NDArray[np.float32]:
    """(senders, reals) what the server reads when so many clients upload the same real numbers."""
    message = Message.of(np.zeros(8, np.uint8), BINARY, real, round=1)
    return np.stack([decode(encode(message._replace(sender=client), context), context).real for client in range(senders)])


@pytest.mark.parametrize("step", [0.0, 0.0007])
def test_the_mean_of_many_uploads_keeps_small_steps_of_gamma_and_beta(step: float) -> None:
    """γ and β are rounded at random, each client's on its own; also where they equal what both ends know: that is off the grid."""
    known = np.concatenate([np.zeros(2), np.full(6, 0.3001), np.zeros(5), np.zeros(3), np.ones(3)]).astype(np.float32)
    real = known.copy()
    real[2:8] += np.float32(step)
    read = uploads_of(real, context_with(known), 2000)[:, 2:8]
    grid = 2.0**-6
    assert set(np.unique(read)) == {np.float32(0.296875), np.float32(0.3125)}, "the grid's two neighbours, 19/64 and 20/64"
    assert np.all(np.abs(read.mean(0) - real[2:8]) < 4 * 0.5 * grid / 2000**0.5)


def test_statistics_that_are_no_news_are_read_as_known() -> None:
    """Every client sends the same number for a statistic that it has not measured, at about a bit each."""
    generator = np.random.default_rng(0)
    known = np.concatenate([np.zeros(13), generator.normal(size=3), 2 + generator.exponential(size=3)]).astype(np.float32)
    read = uploads_of(known, context_with(known), 50)[:, 13:]
    assert np.all(read == read[0])
    assert np.all(np.abs(read[0] - known[13:]) < 2.0**-5 * np.abs(known[16:].max()))


def test_known_numbers_beyond_the_grid_do_not_prevent_short_ones() -> None:
    """After a broadcast that diverged, the next uploads are spelled as differences to zero."""
    known = np.full(LAYOUT.reals, np.inf, np.float32)
    real = np.concatenate([np.zeros(13), np.zeros(3), np.ones(3)]).astype(np.float32)
    message, context = Message.of(np.zeros(8, np.uint8), BINARY, real, sender=0, round=1), context_with(known)
    data = encode(message, context)
    assert read_header(data).precision == SHORT.upload
    assert decode(data, context).real.tolist() == real.tolist()


def test_numbers_of_the_grid_beyond_float32_are_infinite() -> None:
    """Without a warning; whoever reads the message refuses them."""
    normed = int(LAYOUT.normed.sum())
    numbers = np.concatenate([np.ones(normed), np.full(LAYOUT.reals - LAYOUT.trained, 2.0**61)])
    read = join(np.zeros(LAYOUT.trained - normed, np.float32), numbers, LAYOUT)
    assert np.isinf(read[-3:]).all()


@pytest.mark.parametrize("bits", [6, 10])
def test_numbers_beyond_the_grid_are_refused(bits: int) -> None:
    """A sender may spell any integer; those beyond the grid stand for no float32."""
    context = Context(LAYOUT, 1, SHORT)
    sender = 0 if bits == SHORT.upload else None
    message = Message.of(np.zeros(8, np.uint8), BINARY, np.zeros(LAYOUT.reals, np.float32), sender=sender, round=1)
    data = encode(message, context)
    header = read_header(data)
    exact = 4 * int((~LAYOUT.normed).sum())
    numbers = np.zeros(LAYOUT.reals - exact // 4, np.int64)
    for largest, taken in ((63 << bits, True), ((63 << bits) + 1, False)):
        numbers[0] = largest
        spelled = bytes(exact) + rice(numbers)
        body = bytearray(data[: 68 + header.symbol_bytes] + spelled)
        body[64:68] = struct.pack("<I", len(spelled))
        hostile = bytes(body) + struct.pack("<I", zlib.crc32(body))
        if taken:
            assert np.all(np.isfinite(decode(hostile, context).real))
        else:
            with pytest.raises(WireError, match="a real number is too large"):
                decode(hostile, context)


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
