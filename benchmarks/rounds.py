"""Where does a round's time go? Shares of what two cores can do in it, in seconds of the processor: a busy machine matters little.

    python benchmarks/rounds.py [network …]                        mnist_cnn, resnet8 and cnn4; prints a table
    python benchmarks/rounds.py --voters 10 --clients 100 resnet8  ten of a hundred clients a round, of 64 samples each

FedAvg with two workers, a test sample for every six training samples, as MNIST has them. A round is taken to last as long as its
phases would on two quiet cores: while clients train, hear or evaluate as long as the worker that has more to do, and between that
as long as the server computes. The first round is left out. "Steps" are so many times the best one, timed alone as in `steps.py`;
"steps beyond the best" is what training takes more: gathering batches, setting up, page faults, caches and memory that processes
share. "Messages" are all else of clients' turns. Columns from "steps" to "waiting" make up the round, as far as medians add up.
"Turns, two workers : one process" is what they take in all, by what they take in a process that has no second worker beside it.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from plain import BATCH, CASES, LR, MEAN, STD, Case, images
from speed import timed
from steps import ours

import bifl
from bifl.data.datasets import Dataset, dataset
from bifl.engine import worker
from bifl.engine.simulator import SimulatedClients, simulated_clients
from bifl.engine.worker import Worker
from bifl.processes import KEEPS_MEMORY

WORKERS = 2
TRAINING, EVALUATION, HEARING = "collect", "score", "tell"
STEPS = 1.5  # seconds of the processor to time steps for
CASE = ("BENCH_CASE", "BENCH_CLIENTS", "BENCH_IMAGES")  # in the environment, for the dataset
COLUMNS = (
    "network", "s a round", "steps", "steps beyond the best", "messages", "evaluation", "hearing", "server alone",
    "waiting for the slower worker", "server in all", "garbage", "turns, two workers : one process", "start, s a worker",
)  # fmt: skip
TICK = os.sysconf("SC_CLK_TCK")


class Phase(NamedTuple):
    """A part of a round in which the server waits for its workers."""

    kind: str
    workers: list[float]  # seconds of the processor, of each
    server: float  # the same


class Round(NamedTuple):
    """Seconds of the processor that a round took."""

    phases: list[Phase]
    server: float

    def of(self, kind: str) -> float:
        """What the workers spent in the phases of a kind, together."""
        return sum(sum(phase.workers) for phase in self.phases if phase.kind == kind)

    def uneven(self) -> float:
        """What workers wait for the one that has most to do."""
        return sum(WORKERS * max(phase.workers) - sum(phase.workers) for phase in self.phases)

    def alone(self) -> float:
        """What the server computes while no worker does."""
        return self.server - sum(phase.server for phase in self.phases)

    def whole(self) -> float:
        """What both cores could have done."""
        return WORKERS * (sum(max(phase.workers) for phase in self.phases) + self.alone())


def spent(process: str) -> float:
    """Seconds of the processor that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Watch:
    """Notes what every process takes in each phase of the rounds."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def __enter__(self) -> Watch:
        self._usual = {name: getattr(SimulatedClients, name) for name in (TRAINING, EVALUATION, HEARING)}
        for name, function in self._usual.items():
            setattr(SimulatedClients, name, self._watched(name, function))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self._usual.items():
            setattr(SimulatedClients, name, function)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            workers = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            before, own = [spent(worker) for worker in workers], time.process_time()
            found = function(*arguments)
            taken = [spent(worker) - past for worker, past in zip(workers, before, strict=True)]
            self.phases.append(Phase(name, taken, time.process_time() - own))
            return found

        return watched


def step_time(case: Case) -> float:
    """Seconds of the processor of the best of many steps of this process alone."""
    step, taken = ours(case._replace(clients=1, images=BATCH)), list[float]()
    step()  # compiles
    while sum(taken) < STEPS:
        began = time.thread_time()
        step()
        taken.append(time.thread_time() - began)
    return min(taken)


def rounds(experiment: bifl.Experiment) -> list[Round]:
    """What each round but the first took."""
    found = []
    with Watch() as watch:
        simulation = bifl.simulate(experiment)
        began = time.process_time()
        for _ in simulation:
            found.append(Round(watch.phases, time.process_time() - began))
            watch.phases, began = [], time.process_time()
    return found[1:]


class Inside(NamedTuple):
    """A round that is all in one process."""

    turns: float  # seconds of the processor
    messages: float  # share of turns: all but training itself
    garbage: float  # share of everything


def inside(experiment: bifl.Experiment) -> Inside:
    """The second of two rounds."""
    taken = dict.fromkeys(("start", "stop", "train", "turn"), 0.0)

    def noted(phase: str, _: object) -> None:
        taken[phase] += time.thread_time()

    with timed(worker, "train", taken, time.thread_time), timed(Worker, "reply", taken, time.thread_time):
        simulation = iter(bifl.simulate(experiment.changed({"workers": 1, "rounds": 2})))
        next(simulation)  # compiles
        taken.update(dict.fromkeys(taken, 0.0))
        gc.callbacks.append(noted)
        began = time.process_time()
        try:
            next(simulation)
        finally:
            gc.callbacks.remove(noted)
        whole = time.process_time() - began
    return Inside(taken["turn"], 1 - taken["train"] / taken["turn"], (taken["stop"] - taken["start"]) / whole)


def starting(experiment: bifl.Experiment) -> float:
    """Seconds of the processor that a worker takes until it is ready."""
    simulation = bifl.simulate(experiment)
    with simulated_clients(simulation):
        workers = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return max(map(spent, workers))


def bench_rounds() -> Dataset:
    """The random inputs of the case under way, and test samples."""
    model, clients, own = (os.environ[name] for name in CASE)
    case = CASES[model]._replace(clients=int(clients), images=int(own))
    inputs, labels = images(case)
    tests = slice(0, len(labels) // 6)
    return Dataset(inputs, labels, inputs[tests], labels[tests], case.classes, MEAN, STD)


dataset(bench_rounds)


def measured(case: Case, voters: int, count: int) -> list[str]:
    """A network's cells of the table."""
    os.environ |= dict(zip(CASE, map(str, case[:3]), strict=True))
    settings: dict[str, Any] = {"dataset": "bench_rounds", "lr": LR, "clients": case.clients, "model": case.model}
    settings |= {"participation": voters / case.clients, "algorithm": "fedavg", "batchnorm": "average"}
    experiment = bifl.Experiment(rounds=count + 1, workers=WORKERS, **settings)
    steps = voters * -(-case.images // BATCH) * step_time(case)
    alone, found = inside(experiment), rounds(experiment)
    shares = [
        lambda one: steps / one.whole(),
        lambda one: ((1 - alone.messages) * one.of(TRAINING) - steps) / one.whole(),
        lambda one: alone.messages * one.of(TRAINING) / one.whole(),
        lambda one: one.of(EVALUATION) / one.whole(),
        lambda one: one.of(HEARING) / one.whole(),
        lambda one: WORKERS * one.alone() / one.whole(),
        lambda one: one.uneven() / one.whole(),
        lambda one: one.server / one.whole(),
    ]  # in the order of COLUMNS
    cells = [f"{median(one.whole() for one in found) / WORKERS:.2f}", *(f"{median(map(share, found)):.1%}" for share in shares)]
    cells += [f"{alone.garbage:.2%}", f"{median(one.of(TRAINING) for one in found) / alone.turns:.2f}"]
    return [case.model, *cells, f"{starting(experiment):.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["mnist_cnn", "resnet8", "cnn4"], help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, help="registered; 64 samples each")
    parser.add_argument("--voters", type=int, help="clients that train in a round")
    chosen = parser.parse_args()
    if not KEEPS_MEMORY.items() <= os.environ.items():  # malloc reads them when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEPS_MEMORY)
    torch.set_num_threads(1)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in chosen.networks:
        case = CASES[name] if chosen.clients is None else CASES[name]._replace(clients=chosen.clients, images=BATCH)
        print(f"| {' | '.join(measured(case, chosen.voters or case.clients, chosen.rounds))} |", flush=True)


if __name__ == "__main__":
    main()
