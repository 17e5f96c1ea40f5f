"""Runs experiments: several at a time, one core each, every one in a process and a folder of its own that can be continued.

What is finished goes to the kept runs; what was stopped stays in its folder and goes on there the next time.
"""

from __future__ import annotations

import glob
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from bifl import __version__
from bifl.errors import BiflError, Busy, RunError
from bifl.experiment import config_file
from bifl.experiment.run import make_network
from bifl.experiment.settings import Experiment, identity
from bifl.experiment.setup import LastDataset
from bifl.files import writing
from bifl.processes import KEEPS_MEMORY, available_memory, cores, tied
from bifl.runs.folder import CONFIG, Result, RunFolder, claim, locked, read_data, read_records, version_of
from bifl.runs.record import Record
from bifl.runs.results import KEPT
from studies import keeping

LOG = "log.txt"
_PROCESS = 0.7e9  # bytes: Python, PyTorch, a dataset of digits
_POLL = 0.5  # seconds between looks at what the processes have done


class Store(NamedTuple):
    """Where things are kept."""

    kept: Path  # finished runs
    work: Path  # run folders

    def known(self, experiment: Experiment) -> list[Record]:
        """The rounds of an experiment that need not be run again."""
        return self._read(experiment)[0]

    def damage(self, experiment: Experiment) -> str | None:
        """What is wrong with what is kept of an experiment, if anything is."""
        return self._read(experiment)[1]

    def result(self, experiment: Experiment) -> Result:
        """What is known of an experiment; no rounds, if nothing can be read."""
        try:
            kept = keeping.find(self.kept, experiment)
        except RunError:
            kept = None
        known = kept or Result("", experiment, [])
        return known._replace(name=keeping.name(experiment), experiment=experiment, records=known.records[: experiment.rounds])

    def _read(self, experiment: Experiment) -> tuple[list[Record], str | None]:
        try:
            return keeping.load(self.kept, experiment), None
        except RunError as error:
            return [], str(error)

    def seeds(self, experiment: Experiment) -> list[int]:
        """Those of which something is kept."""
        stem = keeping.name(experiment.changed({"seed": 0})).rpartition("-s0-")[0]
        found = (path.name.removeprefix(f"{stem}-s").partition("-")[0] for path in self.kept.glob(f"{glob.escape(stem)}-s*{KEPT}"))
        seeds = sorted({int(seed) for seed in found if seed.isdecimal()})
        return [seed for seed in seeds if keeping.path(self.kept, experiment.changed({"seed": seed})).is_file()]

    def missing(self, experiments: Iterable[Experiment]) -> list[Experiment]:
        """Those that are to be run, each once, with the most rounds that were asked for; damaged kept runs are left alone."""
        wanted: dict[str, Experiment] = {}
        for experiment in experiments:
            name = keeping.name(experiment)
            if name not in wanted or wanted[name].rounds < experiment.rounds:
                wanted[name] = experiment
        looked = [(one, *self._read(one)) for one in wanted.values()]
        return [one for one, records, damage in looked if len(records) < one.rounds and damage is None]

    def folder(self, experiment: Experiment) -> Path:
        """An experiment's run folder."""
        return self.work / keeping.name(experiment)

    def done(self, experiment: Experiment) -> list[Record]:
        """The rounds in its run folder that can be continued, as far as they can be read: whoever continues them will tell."""
        try:
            return [] if self._of_another_version(experiment) else read_records(self.folder(experiment))
        except RunError:
            return []

    def _of_another_version(self, experiment: Experiment) -> str | None:
        """The version that began its run folder, if this one cannot continue it."""
        try:
            made = version_of(self.folder(experiment))
        except (OSError, ValueError):  # no folder, or no config that can be read: whoever continues it will tell
            return None
        return made if made != __version__ else None

    def set_aside(self, experiment: Experiment) -> None:
        """Rename the run folder of an experiment that another version began: with that version it can be continued."""
        if made := self._of_another_version(experiment):
            folder = self.folder(experiment)
            aside = claim(folder.parent, f"{folder.name}.bifl-{re.sub('[^0-9A-Za-z.]', '-', made)}")
            with writing(aside):
                folder.rename(aside)  # replaces the empty folder


class Running(NamedTuple):
    """A run that is under way."""

    experiment: Experiment
    process: subprocess.Popen[bytes]


def busy(path: Path) -> bool:
    """Whether a process is at work in a folder."""
    try:
        with locked(path):
            return False
    except Busy:
        return True
    except RunError:  # not there, or not to be written to: whoever tries will tell
        return False


Progress = Callable[[list[Running]], None]


def at_once(experiments: list[Experiment], images: LastDataset) -> int:
    """How many experiments to run at the same time: one a core, as far as memory allows."""
    kinds = {(one.model, one.dataset): one for one in experiments}.values()
    weights = max(make_network(one, images.of(one).classes).layout.count for one in kinds)
    clients = max(experiment.clients for experiment in experiments)
    return max(1, min(cores(), len(experiments), int(available_memory() / (_PROCESS + 4 * weights * clients))))


def run(store: Store, experiments: list[Experiment], jobs: int, show: Progress) -> list[str]:
    """Run what is missing, and keep it; wait for what another command is running. Returns why some failed, if they did."""
    waiting, running, failures = list(experiments), list[Running](), list[str]()
    overtaken: list[Experiment] = []
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
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                complete = len(store.done(one.experiment)) >= one.experiment.rounds and one.experiment not in overtaken
                if one.process.returncode and (complete or busy(store.folder(one.experiment))):  # another command was quicker
                    waiting.append(one.experiment)
                    overtaken += (
                        [one.experiment] if complete else []
                    )  # it may fail after its last round: that is told the second time
                else:
                    failures += _finish(store, one)
            show(running)
            time.sleep(_POLL)
    finally:
        for one in running:
            one.process.terminate()  # its folder is consistent at any moment
            one.process.wait()
    return failures


def _start(store: Store, experiment: Experiment) -> list[Running]:
    """Its process; none if it is finished by now."""
    if len(store.known(experiment)) >= experiment.rounds:
        return []
    path = store.folder(experiment)
    store.set_aside(experiment)
    if not (path / CONFIG).is_file():
        RunFolder.start(path, experiment)
    if identity(config_file.read(path / CONFIG)) != identity(experiment):
        raise RunError(f"'{path}' holds another experiment, of an earlier version perhaps: delete it")
    rounds = max(experiment.rounds, len(store.done(experiment)))
    command = [sys.executable, "-P", "-m", "bifl.cli", "run", "--resume", str(path), f"rounds={rounds}", "workers=1"]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = KEEPS_MEMORY | os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    with writing(path), (path / LOG).open("ab") as log:
        process = subprocess.Popen(
            tied(command), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    return [Running(experiment, process)]


def _finish(store: Store, one: Running) -> list[str]:
    """Keep what a run has; why it failed, if it did."""
    path, code = store.folder(one.experiment), one.process.returncode
    if code == 0:
        try:
            keeping.save(store.kept, one.experiment, read_records(path), read_data(path))
        except RunError as error:
            return [str(error)]
        return []
    said = (path / LOG).read_text(errors="replace").strip().splitlines()[-1:]
    if code < 0 or not said:
        done = len(store.done(one.experiment))
        said = [f"its process ended with code {code} after round {done}, the same command goes on there"]
    return [f"{keeping.name(one.experiment)}: {said[0].removeprefix('bifl: ')}"]
