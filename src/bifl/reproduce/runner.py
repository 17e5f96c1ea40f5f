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
from bifl.errors import BiflError, Busy, RunError
from bifl.experiment import Experiment
from bifl.files import writing
from bifl.identity import identity
from bifl.processes import KEEPS_MEMORY, available_memory, cores, tied
from bifl.runtime.folder import CONFIG, RunFolder, busy, read_records
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
        return self._read(experiment)[0]

    def damage(self, experiment: Experiment) -> str | None:
        """What is wrong with what is kept of an experiment, if anything is."""
        return self._read(experiment)[1]

    def _read(self, experiment: Experiment) -> tuple[list[Record], str | None]:
        try:
            return cells.load(self.kept, experiment), None
        except RunError as error:
            return [], str(error)

    def seeds(self, experiment: Experiment) -> list[int]:
        """Those of which something is kept."""
        stem = cells.name(experiment.changed({"seed": 0})).rpartition("-s0-")[0]
        found = (
            path.name.removeprefix(f"{stem}-s").partition("-")[0]
            for path in self.kept.glob(f"{glob.escape(stem)}-s*{cells.SUFFIX}")
        )
        seeds = sorted({int(seed) for seed in found if seed.isdecimal()})
        return [seed for seed in seeds if cells.path(self.kept, experiment.changed({"seed": seed})).is_file()]

    def missing(self, experiments: Iterable[Experiment]) -> list[Experiment]:
        """Those that are to be run, each once, with the most rounds that were asked for; a damaged cell is left to its owner."""
        wanted: dict[str, Experiment] = {}
        for experiment in experiments:
            name = cells.name(experiment)
            if name not in wanted or wanted[name].rounds < experiment.rounds:
                wanted[name] = experiment
        looked = [(one, *self._read(one)) for one in wanted.values()]
        return [one for one, records, damage in looked if len(records) < one.rounds and damage is None]

    def folder(self, experiment: Experiment) -> Path:
        """An experiment's run folder."""
        return self.work / cells.name(experiment)

    def done(self, experiment: Experiment) -> list[Record]:
        """The rounds in its run folder, as far as they can be read: whoever continues them will tell."""
        try:
            return read_records(self.folder(experiment))
        except RunError:
            return []


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
    return max(1, min(cores(), len(experiments), int(available_memory() / (_PROCESS + 4 * weights * clients))))


def run(store: Store, experiments: list[Experiment], jobs: int, show: Progress) -> list[str]:
    """Run what is missing, and keep it; wait for what another command is running. Returns why some cells failed, if they did."""
    waiting, running, failures = list(experiments), list[Running](), list[str]()
    try:
        while waiting or running:
            while len(running) < jobs and (experiment := next((one for one in waiting if not busy(store.folder(one))), None)):
                waiting.remove(experiment)
                try:
                    running += _start(store, experiment)
                except Busy:
                    waiting.append(experiment)
                except BiflError as error:
                    failures.append(str(error))
            for cell in [cell for cell in running if cell.process.poll() is not None]:
                running.remove(cell)
                if cell.process.returncode and busy(store.folder(cell.experiment)):  # another command was quicker
                    waiting.append(cell.experiment)
                else:
                    failures += _finish(store, cell)
            show(running)
            time.sleep(_POLL)
    finally:
        for cell in running:
            cell.process.terminate()  # its folder is consistent at any moment
            cell.process.wait()
    return failures


def _start(store: Store, experiment: Experiment) -> list[Running]:
    """Its process; none if it is finished by now."""
    if len(store.known(experiment)) >= experiment.rounds:
        return []
    path = store.folder(experiment)
    if not (path / CONFIG).is_file():
        RunFolder.start(path, experiment)
    if identity(Experiment.from_toml(path / CONFIG)) != identity(experiment):
        raise RunError(f"'{path}' holds another experiment, of an earlier version perhaps: delete it")
    rounds = max(experiment.rounds, len(store.done(experiment)))
    command = [sys.executable, "-P", "-m", "bifl.cli", "run", "--resume", str(path), f"rounds={rounds}", "workers=1"]
    environment = KEEPS_MEMORY | os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with writing(path), (path / LOG).open("ab") as log:
        process = subprocess.Popen(
            tied(command), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    return [Running(experiment, process)]


def _finish(store: Store, cell: Running) -> list[str]:
    """Keep what a cell has; why it failed, if it did."""
    path, code = store.folder(cell.experiment), cell.process.returncode
    if code == 0:
        try:
            cells.save(store.kept, cell.experiment, read_records(path))
        except RunError as error:
            return [str(error)]
        return []
    said = (path / LOG).read_text(errors="replace").strip().splitlines()[-1:]
    if code < 0 or not said:
        done = len(store.done(cell.experiment))
        said = [f"its process ended with code {code} after round {done}, the same command goes on there"]
    return [f"cell {cells.name(cell.experiment)}: {said[0].removeprefix('bifl: ')}"]
