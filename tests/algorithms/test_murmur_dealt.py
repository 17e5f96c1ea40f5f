"""murmur_dealt: what groups of clients tell of their coordinates adds up to the mean change, in one rotation and scale for all."""

from __future__ import annotations

import numpy as np
import pytest

from bifl.algorithms.murmur_dealt import FIRST
from bifl.core import Algorithm, Client, Floats, Layout, Public, Sent, Server, register
from bifl.core.layout import Tensor
from bifl.core.sums import Total
from bifl.exchanges.ballot import make_upload

COUNT, CLIENTS, TOGETHER = 2003, 12, 3
LAYOUT = Layout(("one",), (Tensor("one.weight", (COUNT,), 0),), (), ())
WEIGHTS = np.random.default_rng(0).uniform(-1, 1, COUNT).astype(np.float32)
REAL = np.ones(LAYOUT.reals, np.float32)


def changes(size: float) -> list[Floats]:
    """By which clients have trained: much in common, something of their own."""
    dice = np.random.default_rng(1)
    common = dice.normal(0, size, COUNT)
    return [(common + dice.normal(0, size / 4, COUNT)).astype(np.float32) for _ in range(CLIENTS)]


def dealt(**options: int | str) -> Algorithm:
    found = register.make("murmur_dealt", {"together": TOGETHER, "down": "float"} | options).at(1)
    assert isinstance(found, Algorithm)
    return found


def told(algorithm: Algorithm, public: Public, trained: list[Floats]) -> Public:
    """The public state after the round."""
    total = Total()
    for number, change in enumerate(trained):
        client = Client(public.weights + change, public.weights, REAL, 100, number)
        total.add(algorithm.reads(make_upload(algorithm, client, public)[1], public))
    news = Sent.of(algorithm.broadcast(total.tally(), public, Server())).message
    return algorithm.absorb(public, news)._replace(round=public.round + 1)


def first(seed: int) -> Public:
    return Public(seed, 0, LAYOUT, WEIGHTS, REAL, voters=CLIENTS)


def slope(found: Floats, right: Floats) -> float:
    """1 if `found` is `right` with noise, whatever the noise."""
    return float(np.dot(found, right) / np.dot(right, right))


def test_four_groups_tell_the_mean_change_and_not_a_part_of_it() -> None:
    """The mean of 40 broadcasts is the mean change but for 2003 of 2048 coordinates told, and a hundredth and a half cut off."""
    trained = changes(FIRST)
    mean = np.mean(trained, axis=0)
    found = [told(dealt(), first(seed), trained).weights - WEIGHTS for seed in range(40)]
    assert slope(np.mean(found, axis=0), mean) == pytest.approx(2003 / 2048 * 0.985, abs=0.02)
    single = [float(np.dot(one, mean) / np.linalg.norm(one) / np.linalg.norm(mean)) for one in found]
    assert np.mean(single) > 0.5  # three clients on every coordinate, three levels each


def test_more_levels_tell_more() -> None:
    trained = changes(FIRST)
    errors = [
        float(np.linalg.norm(told(dealt(levels=levels), first(0), trained).weights - WEIGHTS - np.mean(trained, axis=0)))
        for levels in (2, 3, 5, 17)
    ]
    assert errors == sorted(errors, reverse=True)


def test_the_scale_follows_the_updates() -> None:
    """Updates ten times as large as is expected first are cut off in the first round, and told as they are in the second."""
    trained = changes(10 * FIRST)
    mean = np.mean(trained, axis=0)
    one = told(dealt(), first(0), trained)
    deviation = np.mean([np.sqrt(np.square(change).mean()) for change in trained])
    assert one.scales == pytest.approx([deviation], rel=0.1)
    two = told(dealt(), one, trained)
    assert slope(one.weights - WEIGHTS, mean) < 0.3
    assert slope(two.weights - one.weights, mean) == pytest.approx(1, abs=0.2)
