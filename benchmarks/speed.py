"""How long does a round take? bifl's simulator, Flower's simulation runtime and a plain PyTorch loop do the same work.

python benchmarks/speed.py [turns]      (writes benchmarks/results.md)

The same networks, images, batches and clients; each with two processes of one thread. The engines take turns, a few rounds each, so
that a busy machine disturbs all alike. The first round of every turn is left out: it pays for what the system did with memory of
a process that slept. The figure is the median of the others.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from plain import CASES, LR, Case, images, part
from scale import TITLE as GROWTH

import bifl
from bifl.data.datasets import Dataset, dataset
from bifl.engine import seat, worker

HERE = Path(__file__).parent
PROCESSES = 2
ROUNDS = 3  # of each engine in a turn
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def _dataset(case: Case) -> Dataset:
    pixels, labels = images(case)
    return Dataset(pixels, labels, pixels[:100], labels[:100], case.classes, 0.1307, 0.3081)  # scoring is not what we time


@dataset
def bench_mnist() -> Dataset:
    """Random digits for mnist_cnn."""
    return _dataset(CASES["mnist_cnn"])


@dataset
def bench_femnist() -> Dataset:
    """Random letters for femnist_cnn."""
    return _dataset(CASES["femnist_cnn"])


def experiment(case: Case, algorithm: str, rounds: int, workers: int = PROCESSES) -> bifl.Experiment:
    settings: dict[str, Any] = {"dataset": f"bench_{case.model.removesuffix('_cnn')}", "lr": LR, "clients": case.clients}
    if algorithm == "fedavg":
        settings["batchnorm"] = "average"  # as the others do it
    return bifl.Experiment(algorithm=algorithm, model=case.model, rounds=rounds, workers=workers, **settings)


def ours(case: Case, algorithm: str, rounds: int) -> Generator[float]:
    """Seconds of each round in bifl's simulator, messages, aggregation and a small evaluation included."""
    for record in bifl.simulate(experiment(case, algorithm, rounds)):
        yield record.seconds


def plain(case: Case, rounds: int) -> Generator[float]:
    """Seconds of each round of FedAvg in an ordinary PyTorch loop, the clients shared out between two processes."""
    state = case.module().state_dict()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        for _ in range(rounds):
            began = time.perf_counter()
            sums = pool.map(part, [(case, state, range(rank, case.clients, PROCESSES)) for rank in range(PROCESSES)], chunksize=1)
            state = {name: sum(s[name] for s in sums) / case.clients for name in state}
            yield time.perf_counter() - began


def flower(case: Case, rounds: int) -> Generator[float]:
    """Seconds of each round of FedAvg in Flower's simulation runtime."""
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | QUIET | {"FLWR_HOME": home, "PYTHONPATH": str(HERE)}
        tools = Path(sys.executable).parent  # Flower calls its own by name
        environment["PATH"] = os.pathsep.join([str(tools), environment["PATH"]])
        command = [sys.executable, str(HERE / "flower_clients.py"), case.model, str(rounds)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
            for _ in range(rounds):
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                answer = next((line for line in process.stdout or () if line.startswith("seconds ")), None)
                if answer is None:
                    raise RuntimeError("Flower's process ended early: run benchmarks/flower_clients.py to see why")
                yield float(answer.split()[1])


def take_turns(engines: dict[str, Generator[float]], turns: int) -> dict[str, float]:
    """Median seconds of a round by engine, the first of every turn left out."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(turns):
        for name, engine in engines.items():
            taken = [next(engine) for _ in range(ROUNDS)]
            seconds[name] += taken[1:]
            print(f"  {name:12s} {' '.join(f'{value:7.2f}' for value in taken)} s", flush=True)
    return {name: median(values) for name, values in seconds.items()}


def sgemm_rate() -> float:
    """Operations per second of one thread multiplying matrices."""
    torch.set_num_threads(1)
    matrix, times = torch.randn(1024, 1024), []
    for _ in range(20):
        began = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - began)
    return 2 * 1024**3 / median(times)


@contextmanager
def timed(module: ModuleType, name: str, into: dict[str, float]) -> Iterator[None]:
    """Count the seconds that are spent in a module's function."""
    function = getattr(module, name)

    def timing(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            into[name] += time.perf_counter() - began

    setattr(module, name, timing)
    try:
        yield
    finally:
        setattr(module, name, function)


def overhead(case: Case, rounds: int = 4) -> tuple[float, float]:
    """Shares of a biml round, in one process and without evaluation: measuring batch-norm; all that is no network's arithmetic."""
    spent = {"train": 0.0, "evaluate": 0.0, "image_moments": 0.0}
    measuring, rest = [], []
    with timed(seat, "train", spent), timed(worker, "evaluate", spent), timed(seat, "image_moments", spent):
        for record in bifl.simulate(experiment(case, "biml", rounds, workers=1)):
            whole = record.seconds - spent["evaluate"]
            measuring.append(spent["image_moments"] / whole)
            rest.append(1 - (spent["train"] + spent["image_moments"]) / whole)
            spent.update(dict.fromkeys(spent, 0.0))
    return median(measuring[1:]), median(rest[1:])


def compare(case: Case, turns: int) -> list[str]:
    """The table's lines for one network."""
    rounds = turns * ROUNDS
    print(f"{case.model}: {case.clients} clients of {case.images} images")
    installed = importlib.util.find_spec("ray") is not None
    engines = {"bifl fedavg": ours(case, "fedavg", rounds), "bifl biml": ours(case, "biml", rounds), "plain": plain(case, rounds)}
    if installed:
        engines["flower"] = flower(case, rounds)
    rates = [sgemm_rate()]
    try:
        seconds = take_turns(engines, turns)
    finally:
        for engine in engines.values():
            engine.close()
    rates.append(sgemm_rate())
    limit = case.flops() / (PROCESSES * max(rates))
    lines = [f"## {case.model}, {case.clients} clients of {case.images} images", ""]
    lines += ["| engine | s per round | times bifl fedavg | times the arithmetic |", "|---|---|---|---|"]
    for name, value in seconds.items():
        lines.append(f"| {name} | {value:.2f} | {value / seconds['bifl fedavg']:.2f} | {value / limit:.2f} |")
    lines.append(f"| arithmetic alone | {limit:.2f} | {limit / seconds['bifl fedavg']:.2f} | 1 |")
    lines += [
        "",
        f"Arithmetic: {case.flops() / 1e9:.0f} GFLOP at the measured {max(rates) / 1e9:.0f} GFLOP/s a core (sgemm), two cores.",
    ]
    if not installed:
        lines.append("Flower is not installed here (pip install -e '.[bench]'), so its line is missing.")
    return lines


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    lines = [
        "# Seconds per round",
        "",
        f"`python benchmarks/speed.py {turns}` on {os.cpu_count()} cores, PyTorch {torch.__version__}.",
        "",
    ]
    for case in CASES.values():
        lines += [*compare(case, turns), ""]
    measuring, rest = overhead(CASES["mnist_cnn"])
    lines += [
        f"Of a biml round on mnist_cnn {100 * rest:.1f} % is no network's arithmetic: update, messages, tally, bookkeeping.",
        f"Measuring batch-norm in the broadcast network takes {100 * measuring:.1f} %, training the rest.",
    ]
    results = HERE / "results.md"
    _, title, growth = (results.read_text() if results.exists() else "").partition(GROWTH)
    results.write_text("\n".join(lines) + "\n\n" + title + growth)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
