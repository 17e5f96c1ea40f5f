"""How long does a round take? bifl's simulator, a tuned PyTorch loop, pfl-research and Flower's simulation do the same work.

    python benchmarks/speed.py                                    all networks, all engines; writes benchmarks/results.md
    python benchmarks/speed.py --turns 3 cnn4 har_cnn             some networks; their tables take the place of the old ones
    python benchmarks/speed.py --engines "bifl fedavg,plain PyTorch" cnn4      some engines; the first one is the unit

The same networks, inputs, batches and clients; each engine has two processes of one thread, channels-last tensors, torch's fused
Adam (bifl has its own) and the same settings of malloc. The engines take turns, a few rounds each, so that a busy machine disturbs
all alike. The first round of every turn is left out: it pays for what the system did with memory of a process that slept. The
figures are the median and the best of the others. Nobody evaluates, but for bifl on a hundred inputs.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from plain import CASES, LR, MEAN, STD, Case, images, part
from scale import TITLE as GROWTH

import bifl
from bifl.data.datasets import Dataset, dataset
from bifl.deploy.flower.programs import free_port
from bifl.engine import worker
from bifl.processes import KEEPS_MEMORY, tied

HERE = Path(__file__).parent
RESULTS = HERE / "results.md"
SHARES = "Shares of a biml round"
PROCESSES = 2
ROUNDS = 3  # of each engine in a turn
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def bench() -> Dataset:
    """The random inputs of the case under way."""
    case = CASES[os.environ["BENCH_CASE"]]
    inputs, labels = images(case)
    return Dataset(inputs, labels, inputs[:100], labels[:100], case.classes, MEAN, STD)  # without any, clients would hold some out


dataset(bench)


def experiment(case: Case, algorithm: str, rounds: int, workers: int = PROCESSES) -> bifl.Experiment:
    os.environ["BENCH_CASE"] = case.model
    settings: dict[str, Any] = {"dataset": "bench", "partition": "iid", "lr": LR, "clients": case.clients}
    if algorithm == "fedavg":
        settings["batchnorm"] = "average"  # as the others do it
    return bifl.Experiment(algorithm=algorithm, model=case.model, rounds=rounds, workers=workers, **settings)


def ours(algorithm: str, case: Case, rounds: int) -> Generator[float]:
    """Seconds of each round in bifl's simulator, messages and aggregation included."""
    for record in bifl.simulate(experiment(case, algorithm, rounds)):
        yield record.seconds


def plain(case: Case, rounds: int) -> Generator[float]:
    """Seconds of each round of FedAvg in a tuned PyTorch loop, the clients shared out between two processes."""
    state = case.module().state_dict()
    os.environ |= KEEPS_MEMORY  # for the processes that are started now
    try:
        pool = multiprocessing.get_context("spawn").Pool(PROCESSES)
    finally:
        for name in KEEPS_MEMORY:
            del os.environ[name]
    with pool:
        for _ in range(rounds):
            began = time.perf_counter()
            sums = pool.map(part, [(case, state, range(rank, case.clients, PROCESSES)) for rank in range(PROCESSES)], chunksize=1)
            state = {name: sum(s[name] for s in sums) / case.clients for name in state}
            yield time.perf_counter() - began


def flower(case: Case, rounds: int) -> Generator[float]:
    """Seconds of each round of FedAvg in Flower's simulation runtime."""
    with tempfile.TemporaryDirectory() as home:
        tools = Path(sys.executable).parent  # Flower calls its own by name
        environment = QUIET | {"FLWR_HOME": home, "PATH": os.pathsep.join([str(tools), os.environ["PATH"]])}
        yield from paced("flower_clients.py", case, rounds, [environment])


def pfl(case: Case, rounds: int) -> Generator[float]:
    """Seconds of each round of FedAvg in pfl-research, with two processes as torchrun would start them."""
    shared = QUIET | {"PFL_PYTORCH_DEVICE": "cpu", "TORCHELASTIC_RUN_ID": "bench", "WORLD_SIZE": str(PROCESSES)}
    shared |= {"LOCAL_WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(PROCESSES)]
    yield from paced("pfl_clients.py", case, rounds, ranks)


def paced(program: str, case: Case, rounds: int, environments: list[dict[str, str]]) -> Generator[float]:
    """Seconds of each round of processes that take a line for a round; the first of them tells the time."""
    command = tied([sys.executable, str(HERE / program), case.model, str(rounds)])
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with ExitStack() as stack:
        started: list[subprocess.Popen[str]] = []
        for own in environments:
            environment = os.environ | KEEPS_MEMORY | {"PYTHONPATH": paths} | own
            started.append(stack.enter_context(subprocess.Popen(command, env=environment, text=True, **pipes)))
            stack.callback(started[-1].kill)
        for _ in range(rounds):
            for process in started:
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
            answer = next((line for line in started[0].stdout or () if line.startswith("seconds ")), None)
            if answer is None:
                raise RuntimeError(f"a process of {program} ended early: run it by hand to see why")
            yield float(answer.split()[1])


ENGINES: dict[str, tuple[Callable[[Case, int], Generator[float]], str]] = {  # and the package that it needs
    "bifl fedavg": (partial(ours, "fedavg"), "bifl"),
    "bifl biml": (partial(ours, "biml"), "bifl"),
    "plain PyTorch": (plain, "torch"),
    "pfl-research": (pfl, "pfl"),
    "Flower": (flower, "ray"),
}


def take_turns(engines: dict[str, Generator[float]], turns: int) -> dict[str, list[float]]:
    """Seconds of a round by engine, the first of every turn left out."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(turns):
        for name, engine in engines.items():
            taken = [next(engine) for _ in range(ROUNDS)]
            seconds[name] += taken[1:]
            print(f"  {name:14s} {' '.join(f'{value:7.2f}' for value in taken)} s", flush=True)
    return seconds


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
def timed(
    module: ModuleType | type, name: str, into: dict[str, float], clock: Callable[[], float] = time.perf_counter
) -> Iterator[None]:
    """Count the seconds that are spent in a module's or class's function."""
    function = getattr(module, name)

    def timing(*arguments: Any) -> Any:
        began = clock()
        try:
            return function(*arguments)
        finally:
            into[name] += clock() - began

    setattr(module, name, timing)
    try:
        yield
    finally:
        setattr(module, name, function)


def overhead(case: Case, rounds: int = 4) -> tuple[float, float]:
    """Shares of a biml round, in one process and without evaluation: measuring batch-norm; all that is no network's arithmetic."""
    spent = {"train": 0.0, "evaluate": 0.0, "image_moments": 0.0}
    measuring, rest = [], []
    with timed(worker, "train", spent), timed(worker, "evaluate", spent), timed(worker, "image_moments", spent):
        for record in bifl.simulate(experiment(case, "biml", rounds, workers=1)):
            whole = record.seconds - spent["evaluate"]
            measuring.append(spent["image_moments"] / whole)
            rest.append(1 - (spent["train"] + spent["image_moments"]) / whole)
            spent.update(dict.fromkeys(spent, 0.0))
    return median(measuring[1:]), median(rest[1:])


def compare(case: Case, turns: int, names: list[str]) -> list[str]:
    """The table's lines for one network."""
    rounds = turns * ROUNDS
    print(f"{case.model}: {case.clients} clients of {case.images} samples")
    engines = {name: ENGINES[name][0](case, rounds) for name in names}
    rates = [sgemm_rate()]
    try:
        seconds = take_turns(engines, turns)
    finally:
        for engine in engines.values():
            engine.close()
    rates.append(sgemm_rate())
    limit = case.flops() / (PROCESSES * max(rates))
    unit = {"median": median(seconds[names[0]]), "best": min(seconds[names[0]])}
    lines = [f"## {case.model}, {case.clients} clients of {case.images} samples", ""]
    lines += [f"| engine | s per round, median | best | times {names[0]}, medians | bests |", "|---|---|---|---|---|"]
    for name, values in seconds.items():
        middle, best = median(values), min(values)
        lines.append(f"| {name} | {middle:.2f} | {best:.2f} | {middle / unit['median']:.2f} | {best / unit['best']:.2f} |")
    lines += [
        "",
        f"Arithmetic alone: {case.flops() / 1e9:.0f} GFLOP at the measured {max(rates) / 1e9:.0f} GFLOP/s a core (sgemm), "
        f"two cores: {limit:.2f} s.",
    ]
    missing = [name for name in ENGINES if name not in names and not present(name)]
    lines += [f"Not installed here (pip install -e '.[bench]'): {', '.join(missing)}."] if missing else []
    return lines


def present(name: str) -> bool:
    """Whether what an engine needs is installed."""
    return importlib.util.find_spec(ENGINES[name][1]) is not None


def written(name: str, lines: list[str]) -> None:
    """Put a section into results.md, in the place of the one of the same name."""
    before, title, growth = (RESULTS.read_text() if RESULTS.exists() else "").partition(GROWTH)
    sections = {part.partition("\n")[0].split(",")[0]: f"## {part.strip()}" for part in before.split("\n## ")[1:]}
    sections[name] = "\n".join(lines)
    head = f"# Seconds per round\n\n`python benchmarks/speed.py` on {os.cpu_count()} cores, PyTorch {torch.__version__}."
    known = [sections[one] for one in (*CASES, SHARES, "One step") if one in sections]
    RESULTS.write_text("\n\n".join([head, *known, title + growth]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help=", ".join(CASES))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--engines", help="separated by commas: " + ", ".join(ENGINES))
    chosen = parser.parse_args()
    names = chosen.engines.split(",") if chosen.engines else [name for name in ENGINES if present(name)]
    for name in chosen.networks or CASES:
        lines = compare(CASES[name], chosen.turns, names)
        print("\n".join(lines), flush=True)
        written(name, lines)
    if not chosen.networks and not chosen.engines:
        measuring, rest = overhead(CASES["mnist_cnn"])
        written(
            SHARES,
            [
                f"## {SHARES}",
                "",
                f"Of a biml round on mnist_cnn {100 * rest:.1f} % is no network's arithmetic: update, messages, tally, records.",
                f"Measuring batch-norm in the broadcast network takes {100 * measuring:.1f} %, training the rest.",
            ],
        )


if __name__ == "__main__":
    main()
