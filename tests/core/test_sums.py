"""Aggregation does not depend on order, and loses nothing."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bifl.core.message import BINARY, FLOAT32, NOTHING, Message
from bifl.core.sums import ExactSum, Total, VoteSum, mean
from bifl.errors import DataError, Diverged

pytestmark = pytest.mark.floats

weights = st.lists(st.integers(1, 60_000), min_size=1, max_size=8)
floats = hnp.arrays(np.float32, (8, 5), elements=st.floats(-1e6, 1e6, width=32))


@given(values=floats, sizes=weights, seed=st.integers(0, 2**32))
def test_any_order_gives_the_same_bits(values: npt.NDArray[np.float32], sizes: list[int], seed: int) -> None:
    messages = [Message.of(row, FLOAT32, row[::-1], weight=size) for row, size in zip(values, sizes, strict=False)]
    shuffled = [messages[i] for i in np.random.default_rng(seed).permutation(len(messages))]
    one, other = mean(messages), mean(shuffled)
    assert one.update.mean.tobytes() == other.update.mean.tobytes()
    assert one.real.tobytes() == other.real.tobytes()


@given(values=floats, sizes=weights)
def test_it_is_the_weighted_mean(values: npt.NDArray[np.float32], sizes: list[int]) -> None:
    rows = values[: len(sizes)].astype(np.float64)
    expected = np.average(rows, axis=0, weights=sizes)
    tally = mean(Message.of(row.astype(np.float32), FLOAT32, NOTHING, weight=size) for row, size in zip(rows, sizes, strict=True))
    np.testing.assert_allclose(tally.update.mean, expected, rtol=1e-12, atol=1e-9)


@given(
    values=hnp.arrays(np.float64, (6, 3), elements=st.floats(-(2.0**31), 2.0**31) | st.floats(-1, 1)),
    sizes=st.lists(st.integers(1, 2**18), min_size=6, max_size=6),
    apart=st.integers(0, 6),
)
def test_large_and_small_numbers_are_summed_exactly(values: npt.NDArray[np.float64], sizes: list[int], apart: int) -> None:
    """Beyond what one int64 holds as well, and whether the sum is made in one part or in two."""
    parts = ExactSum(), ExactSum()
    for number, (row, size) in enumerate(zip(values, sizes, strict=True)):
        parts[number < apart].add(row, size)
    whole = ExactSum()
    for part in parts:
        whole.merge(part)
    for found, column in zip(whole.mean(), values.T, strict=True):
        exact = sum(round(Fraction(float(value)) * 2**32) * size for value, size in zip(column, sizes, strict=True))
        assert found == float(Fraction(exact, 2**32)) / sum(sizes)


@pytest.mark.parametrize("values", [[2.0**29, 2.0**29, -(2.0**29)], [2.0**31, 2.0**-32, -(2.0**31)]])
def test_a_sum_of_single_numbers_widens_too(values: list[float]) -> None:
    total = ExactSum()
    for value in values:
        total.add(value, 2)
    assert float(total.mean()) == math.fsum(values) / 3


@given(ballots=hnp.arrays(np.uint8, (8, 5), elements=st.integers(0, 1)), sizes=weights)
def test_votes_are_exact_integers_in_units(ballots: npt.NDArray[np.uint8], sizes: list[int]) -> None:
    tally = mean(Message.of(b, BINARY, NOTHING, weight=s) for b, s in zip(ballots, sizes, strict=False))
    assert tally.update.votes is not None
    assert tally.total * tally.unit == sum(sizes)
    assert all(size % tally.unit == 0 for size in sizes)
    expected = ballots[: len(sizes)].T.astype(np.int64) @ np.array(sizes)
    assert (tally.update.votes * tally.unit).tolist() == expected.tolist()


@pytest.mark.parametrize("clients", [1, 255, 256, 257, 300, 511])
def test_many_ballots_of_one_weight_are_counted(clients: int) -> None:
    """Ballots of equal weight are added as bytes, which hold 255 of them."""
    votes = VoteSum()
    for client in range(clients):
        votes.add(np.array([1, 0, client % 2], np.uint8), 600)
    counted = votes.votes(600)
    assert counted is not None
    assert counted.tolist() == [clients, 0, clients // 2]


@pytest.mark.parametrize("clients", [1, 200, 300])
def test_parts_counted_in_other_processes_add_up(clients: int) -> None:
    """Counts cross in the smallest integers that hold them; two that fit a byte may not do so together."""
    ballot = Message.of(np.array([1, 0], np.uint8), BINARY, np.array([0.25], np.float32), np.array([3.0], np.float32), weight=1)
    part, whole = Total(), Total()
    for _ in range(clients):
        part.add(ballot)
    for _ in range(3):
        whole.merge(pickle.loads(pickle.dumps(part)))
    tally = whole.tally()
    assert tally.update.votes is not None
    assert (tally.clients, tally.total, tally.update.votes.tolist()) == (3 * clients, 3 * clients, [3 * clients, 0])
    assert (tally.real.tolist(), tally.update.scales.tolist()) == ([0.25], [3.0])


def test_parts_of_a_mean_add_up() -> None:
    parts = [Message.of(np.array([value], np.float32), FLOAT32, NOTHING, weight=weight) for value, weight in ((1.5, 1), (4.5, 2))]
    whole = Total()
    for message in parts:
        part = Total()
        part.add(message)
        whole.merge(part)
    assert whole.tally().update.mean.tolist() == [3.5]


def test_ballots_are_not_changed_by_counting() -> None:
    first, second = np.array([1, 0], np.uint8), np.array([1, 1], np.uint8)
    votes = VoteSum()
    for ballot in (first, second, first):
        votes.add(ballot, 1)
    assert (first.tolist(), second.tolist()) == ([1, 0], [1, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_no_trained_number_is_refused(bad: float) -> None:
    with pytest.raises(Diverged, match="not finite"):
        ExactSum().add([0.0, bad], 1)


def test_uploads_that_do_not_fit_each_other_are_refused() -> None:
    ballot = Message.of(np.array([1, 0], np.uint8), BINARY, np.zeros(3, np.float32))
    for other in (
        ballot.with_update(symbols=np.array([1], np.uint8)),
        ballot._replace(real=np.zeros(1, np.float32)),
        ballot.with_update(symbols=np.zeros(2, np.float32), alphabet=FLOAT32),
        ballot._replace(weight=2**30),
    ):
        with pytest.raises(DataError):
            mean([ballot, other])


def test_an_empty_round_has_no_tally() -> None:
    with pytest.raises(ValueError, match="without uploads"):
        mean([])
