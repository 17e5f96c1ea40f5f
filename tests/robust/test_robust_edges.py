"""Robust sums of few uploads, of shares near one half, and of weights that have no common divisor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bifl.core import Message, Votes, mean
from tests.robust.test_robust import PUBLIC, WIDE, ballot, ballots, crowd, total, update


def test_counts_of_few_clients_move_by_a_vote() -> None:
    news = Message.of(np.array([0, 1, 2, 3, 4, 2, 1, 3]), Votes(4, 100), np.zeros(1, np.float32))
    uploads = [ballot([1, 0, 1, 0, 0, 0, 1, 0], number, 100) for number in range(4)]
    found = total("bounded_step", uploads, public=PUBLIC._replace(news=news), step=0.2)
    assert found.update.votes is not None
    assert found.update.votes.tolist() == [1, 0, 3, 2, 3, 1, 2, 2]


@pytest.mark.parametrize("count", [1, 2, 9, 10])
def test_a_share_just_below_half_leaves_something(count: int) -> None:
    share = 0.4999999999
    updates = total("trimmed_mean", [update(np.full(8, number), number) for number in range(count)], share=share)
    assert updates.update.mean.tolist() == [(count - 1) / 2] * 8
    votes = total("trimmed_mean", [ballot([1, 0] * 4, number) for number in range(count)], share=share)
    assert votes.total >= 1
    assert votes.update.mean.tolist() == [1, -1] * 4


@pytest.mark.parametrize(
    "sizes", [[40] * 10, [401, 397, 389, 383, 379, 373, 367, 359, 353, 349], [4 * size for size in range(90, 100)]]
)
def test_a_vote_is_of_as_many_images_as_it_counts_for(sizes: list[int]) -> None:
    """One of ten has three quarters of its credit: total · unit are the others' images, and so much of its own, or all of them."""
    uploads = [upload._replace(weight=size) for upload, size in zip(ballots(10, 0), sizes, strict=True)]
    trust = np.ones(10, np.float32)
    trust[9] = 0.6
    found = total("credibility", uploads, trust, WIDE)
    left_out = sizes[9] // 4 if math.gcd(*sizes) % 4 == 0 else 0
    assert found.total * found.unit == sum(sizes) - left_out


def test_large_weights_leave_no_room_for_fractions() -> None:
    """The best count in full then."""
    large = [upload._replace(weight=2**28) for upload in crowd(0, 0.3)[:3]]
    few = np.array([0.45, 0.3, 0.3], np.float32)
    assert total("credibility", large, few, WIDE).update.mean.tobytes() == mean(large[:1]).update.mean.tobytes()
