"""Real parameters on the wire: rounded within a step, right on average, spelled without loss after that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bifl.wire.reals import from_grid, on_grid, read_rice, rice, to_grid

values = arrays.arrays(np.float32, st.integers(0, 100), elements=st.floats(-(2.0**31), 2.0**31, width=32))


@given(values=values, bits=st.integers(1, 12), seed=st.integers(0, 99))
def test_rounding(values: np.ndarray[tuple[int], np.dtype[np.float32]], bits: int, seed: int) -> None:
    grid = to_grid(values, bits, np.random.default_rng(seed))
    rounded = from_grid(grid, bits)
    assert on_grid(grid, bits)
    assert np.all(np.abs(rounded.astype(float) - values) <= np.maximum(np.abs(values.astype(float)), 1) * 2.0**-bits)
    assert to_grid(rounded, bits, np.random.default_rng(seed + 1)).tolist() == grid.tolist(), "what is on the grid stays"


def test_rounding_is_right_on_average() -> None:
    for value in (0.3001, -0.004, 1.7, 700.3):
        rounded = from_grid(to_grid(np.full(100_000, value, np.float32), 6, np.random.default_rng(0)), 6)
        step = max(1, 2.0 ** np.floor(np.log2(abs(value)))) / 2**6
        assert abs(rounded.astype(float).mean() - value) < 4 * step / 100_000**0.5


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
