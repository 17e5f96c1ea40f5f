"""Many registered clients, few of them in a round: nothing is kept of those who never took part."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifl.data.partitions import Drawn, partition, split
from bifl.engine.loop import loop
from bifl.engine.simulator import Dealer, SimulatedClients, Simulation
from bifl.engine.worker import Job, Worker
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.runs.record import Record
from tests.support.workers import beside

MANY = 100_000


def experiment(clients: int, workers: int = 1, algorithm: str = "fedavg") -> Experiment:
    words = [f"clients={clients}", f"participation={5 / clients!r}", "partition=shared", "partition.images=4", "dataset=mnist5k"]
    words += ["rounds=2", f"workers={workers}", f"algorithm={algorithm}", "idle=sleep"]
    return Experiment.of(None, words)


def timeless(record: Record) -> Record:
    return record._replace(seconds=0.0)


@given(st.integers(2, 40), st.integers(1, 10**9), st.integers(0, 99))
def test_parts_are_distinct_images_and_the_same_every_time(size: int, clients: int, seed: int) -> None:
    labels = np.zeros(100, np.int64)
    first, again = (split(partition.make("shared", {"images": size}), labels, clients, seed) for _ in range(2))
    assert len(first) == clients
    for number in {0, clients // 2, clients - 1}:
        part = first[number]
        assert len(set(part.tolist())) == size
        assert 0 <= part.min() <= part.max() < 100
        assert np.array_equal(part, again[number])
    with pytest.raises(IndexError, match="no client"):
        first[clients]


def test_clients_draw_other_images_than_their_neighbours() -> None:
    parts = Drawn(np.arange(60_000), 20, 3, key=1)
    assert len(set(np.concatenate(list(parts)).tolist())) > 55
    assert not np.array_equal(parts[0], Drawn(np.arange(60_000), 20, 3, key=2)[0])


@pytest.mark.parametrize(("images", "message"), [(1, "2 or more"), (5001, "at most that many")])
def test_what_cannot_be_shared_is_refused(images: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split(partition.make("shared", {"images": images}), np.zeros(5000, np.int64), 10, 0)


@pytest.mark.parametrize("algorithm", ["fedavg", "biml"])
def test_a_hundred_thousand_clients_run_as_in_the_loop(algorithm: str) -> None:
    """Whoever they are that take part; with `biml` five of them remember something."""
    few = experiment(50, algorithm=algorithm)
    one, two = beside(few), beside(few.changed({"workers": 2}))
    assert [timeless(record) for record in one] == [timeless(record) for record in two]
    assert [np.array_equal(public.weights, one.public.weights) for _, public in loop(few)][-1]
    simulation = Simulation(build(experiment(MANY, algorithm=algorithm)))
    assert [record.clients for record in simulation] == [5, 5]


def test_nothing_is_kept_of_a_registered_client() -> None:
    """A round leaves a model of 328 kB behind; a list of a hundred thousand clients would be 800 kB and more."""
    setup = build(experiment(MANY))
    simulation = Simulation(setup)
    worker = Worker(Job(setup.run, setup.parts, {}, [], setup.public, None, {}), setup.data)
    clients = SimulatedClients(simulation, Dealer(setup.parts, 1, fixed=False), worker)
    tracemalloc.start()
    for _ in range(2):
        simulation.hold_round(clients)
    before = tracemalloc.get_traced_memory()[0]
    simulation.hold_round(clients)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert worker.clients == {}
    assert grown < 600_000


def test_shared_images_cannot_be_held_out() -> None:
    with pytest.raises(ConfigError, match="no images that only one client sees"):
        build(Experiment(partition={"name": "shared", "images": 4}, holdout=0.2))
