"""Which worker runs which clients: evenly, and without any effect on results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifl.data.partitions import Drawn
from bifl.engine.simulator import Dealer
from tests.support.federation import quick, same, simulated

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=60)


@given(SIZES, st.integers(1, 7), st.data())
def test_no_worker_has_more_than_one_client_more_than_another(sizes: list[int], workers: int, data: st.DataObject) -> None:
    """In every round, whoever is drawn; and over all clients, where they stay with their worker."""
    parts = [range(size) for size in sizes]
    everyone = range(len(sizes))
    free, fixed = (Dealer(parts, workers, fixed) for fixed in (False, True))
    for _ in range(2):
        free.begin()
        drawn = data.draw(st.sets(st.sampled_from(everyone)))
        dealt = free.deal(drawn)
        assert dealt.keys() == drawn
        for ranks in (dealt, fixed.deal(everyone)):
            loads = [sum(sizes[number] for number, rank in ranks.items() if rank == worker) for worker in range(workers)]
            assert max(loads) - min(loads) <= max((sizes[number] for number in ranks), default=0)


@given(SIZES, st.data())
def test_a_client_stays_for_a_round_or_for_ever(sizes: list[int], data: st.DataObject) -> None:
    parts, everyone = [range(size) for size in sizes], range(len(sizes))
    free, fixed = (Dealer(parts, 2, fixed) for fixed in (False, True))
    first = free.deal(data.draw(st.sets(st.sampled_from(everyone))))
    again = free.deal(everyone)
    assert {number: again[number] for number in first} == first
    for drawn in (data.draw(st.sets(st.sampled_from(everyone))) for _ in range(2)):
        fixed.begin()
        assert fixed.deal(drawn) == {number: fixed.owner(number) for number in drawn}


def test_a_billion_clients_are_dealt_without_looking_at_them() -> None:
    images = Drawn(np.arange(10), size=2, clients=10**9, key=0)
    assert list(Dealer(images, 2, fixed=False).deal([5, 7, 10**8]).values()) == [0, 1, 0]
    assert Dealer(images, 2, fixed=True).owner(10**8 + 1) == 1


@pytest.mark.parametrize("algorithm", ["fedavg", "biml"])
def test_few_drawn_of_many_give_the_same_with_two_workers(algorithm: str, tmp_path: Path, small: Path) -> None:
    """Whoever runs a client, and whether it is another one in the next round."""
    settings = {"clients": 5, "rounds": 2, "participation": 0.6, "partition": "quantity", "idle": "sleep", "holdout": 0.1}
    experiment = quick(small, algorithm=algorithm, **settings)
    same(simulated(tmp_path / "one", experiment), simulated(tmp_path / "two", experiment.changed({"workers": 2})))
