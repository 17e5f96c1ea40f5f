"""Runs cells: several at a time, one core each, every one in a process and a folder of its own that can be continued.

What is finished goes to the kept cells; what was stopped stays in its folder and goes on there the next time.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from bifl import cells
from bifl.errors import BiflError, RunError
from bifl.experiment import Experiment
from bifl.files import writing
from bifl.identity import identity
from bifl.processes import KEEPS_MEMORY, tied
from bifl.runtime.folder import CONFIG, RunFolder
from bifl.runtime.record import Record

LOG = "log.txt"
_PROCESS = 0.7e9  # bytes: Python, PyTorch, a dataset of digits
_POLL = 0.5  # seconds between looks at what the processes have done


class Store(NamedTuple):
    """Where things are kept."""

    kept: Path  # finished cells
    work: Path  # run folders

    def known(self, experiment: Experiment) -> list[Record]:
        """The rounds of an experiment that need not be run again."""
        return cells.load(self.kept, experiment)

    def seeds(self, experiment: Experiment) -> list[int]:
        """Those for which rounds are kept."""
        stem = cells.name(experiment.changed({"seed": 0})).rpartition("-s0-")[0]
        found = (
            path.name.removeprefix(f"{stem}-s").partition("-")[0]
            for path in self.kept.glob(f"{glob.escape(stem)}-s*{cells.SUFFIX}")
        )
        seeds = sorted({int(seed) for seed in found if seed.isdecimal()})
        return [seed for seed in seeds if self.known(experiment.changed({"seed": seed}))]

    def missing(self, experiments: Iterable[Experiment]) -> list[Experiment]:
        """Those that are not finished, each once, with the most rounds that were asked for."""
        wanted: dict[str, Experiment] = {}
        for experiment in experiments:
            name = cells.name(experiment)
            if name not in wanted or wanted[name].rounds < experiment.rounds:
                wanted[name] = experiment
        return [experiment for experiment in wanted.values() if len(self.known(experiment)) < experiment.rounds]

    def folder(self, experiment: Experiment) -> Path:
        """An experiment's run folder."""
        return self.work / cells.name(experiment)

    def done(self, experiment: Experiment) -> list[Record]:
        """The rounds in its run folder."""
        path = self.folder(experiment)
        return RunFolder(path, experiment).records() if path.is_dir() else []


class Running(NamedTuple):
    """A cell under way."""

    experiment: Experiment
    process: subprocess.Popen[bytes]


Progress = Callable[[list[Running]], None]


def at_once(experiments: list[Experiment]) -> int:
    """How many cells to run at the same time: one a core, as far as memory allows."""
    from bifl.runtime.world import load, make_network

    kinds = {(one.model, one.dataset): one for one in experiments}.values()
    weights = max(make_network(one, load(one).classes).layout.count for one in kinds)
    clients = max(experiment.clients for experiment in experiments)
    return max(1, min(_cores(), len(experiments), int(_memory() / (_PROCESS + 4 * weights * clients))))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int:
    """Bytes that can be had, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def run(store: Store, experiments: list[Experiment], jobs: int, show: Progress) -> list[str]:
    """Run what is missing, and keep it. Returns why some cells failed, if they did."""
    waiting, running, failures = list(experiments), list[Running](), list[str]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                try:
                    running.append(_start(store, waiting.pop(0)))
                except BiflError as error:
                    failures.append(str(error))
            for cell in [cell for cell in running if cell.process.poll() is not None]:
                running.remove(cell)
                failures += _finish(store, cell)
            show(running)
            time.sleep(_POLL)
    finally:
        for cell in running:
            cell.process.terminate()  # its folder is consistent at any moment
            cell.process.wait()
    return failures


def _start(store: Store, experiment: Experiment) -> Running:
    path = store.folder(experiment)
    if not (path / CONFIG).is_file():
        RunFolder.start(path, experiment)
    elif identity(Experiment.from_toml(path / CONFIG)) != identity(experiment):
        raise RunError(f"'{path}' holds another experiment, of an earlier version perhaps: delete it")
    rounds = max(experiment.rounds, len(store.done(experiment)))
    command = [sys.executable, "-P", "-m", "bifl.cli", "run", "--resume", str(path), f"rounds={rounds}", "workers=1"]
    environment = KEEPS_MEMORY | os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with writing(path), (path / LOG).open("wb") as log:
        process = subprocess.Popen(
            tied(command), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    return Running(experiment, process)


def _finish(store: Store, cell: Running) -> list[str]:
    """Keep what a cell has; why it failed, if it did."""
    try:
        records = store.done(cell.experiment)
    except RunError as error:
        return [str(error)]
    if cell.process.returncode == 0:
        cells.save(store.kept, cell.experiment, records)
        return []
    said = (store.folder(cell.experiment) / LOG).read_text(errors="replace").strip().splitlines()[-1:]
    if cell.process.returncode < 0 or not said:
        said = [f"its process ended with code {cell.process.returncode} after round {len(records)}, the same command goes on there"]
    return [f"cell {cells.name(cell.experiment)}: {said[0].removeprefix('bifl: ')}"]
