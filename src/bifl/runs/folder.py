"""A run on disk: config.toml, data.json, rounds.jsonl, clients.jsonl, checkpoint/, model in the end. It survives a kill."""

from __future__ import annotations

import fcntl
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bifl import __version__
from bifl.data import fingerprint
from bifl.data.fingerprint import Loaded
from bifl.errors import Busy, ConfigError, RunError
from bifl.experiment import config_file
from bifl.experiment.declarations import MAY_CHANGE
from bifl.experiment.settings import Experiment
from bifl.experiment.starting import digest_alone, refuse_nameless
from bifl.files import append_line, sync_folder, write_atomic, write_unlisted, writing
from bifl.registry import short
from bifl.runs.record import Ending, Record

CONFIG, ROUNDS, CLIENTS, CHECKPOINT, MODEL, LOCK = "config.toml", "rounds.jsonl", "clients.jsonl", "checkpoint", "model", ".lock"
DATA = "data.json"
MESSAGES = "messages"
UNVERSIONED = "0.1"  # the bifl that began the runs that do not say which


class Result(NamedTuple):
    """What is known of one run."""

    name: str
    experiment: Experiment
    records: list[Record]
    version: str = __version__  # of the bifl that ran it
    data: Loaded | None = None  # that it ran on; earlier versions did not tell


def claim(parent: Path, name: str) -> Path:
    """Make the folder `parent/name`, or with the first number that makes it new; two processes never get the same."""
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        path, number = parent / name, 1
        while True:
            try:
                path.mkdir()
                return path
            except FileExistsError:
                number += 1
                path = parent / f"{name}-{number}"


def folder_name(experiment: Experiment, preset: str | None = None) -> str:
    """The name of a run's folder: the preset, or dataset and partition; algorithm and seed."""
    setting = preset or f"{short(experiment.dataset.name)}-{short(experiment.partition.name)}"
    return f"{setting}-{short(experiment.algorithm.name)}-s{experiment.seed}"


class RunFolder:
    """One run's folder: `start` makes it, `resume` opens it again. `bifl.engine.round.run_folder` runs its rounds.

    Attributes:
        keep_messages: whether a copy of every message is kept.
        checkpoint: the folder of what the run must remember to go on.
        model: the file of the trained model.
    """

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.path, self.experiment = path, experiment
        self.checkpoint, self.model = path / CHECKPOINT, path / MODEL
        self.keep_messages = False
        self._config: str | None = None  # what config.toml is to say, where that changes

    @classmethod
    def start(cls, path: Path, experiment: Experiment) -> RunFolder:
        """A new run in exactly this folder."""
        refuse_nameless(experiment.start)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        with locked(path), writing(path):
            if (path / CONFIG).exists():
                raise RunError(f"'{path}' holds a run already: continue it with bifl run --resume {path}, or choose another --out")
            write_atomic(path / CONFIG, _config(experiment))
            sync_folder(path.parent)
        return cls(path, experiment)

    @classmethod
    def resume(cls, path: Path, changes: Mapping[str, str] = MappingProxyType({}), trust: bool = False) -> RunFolder:
        """An old run, to be continued after its last complete round, with more `rounds` or other `workers`.

        Python files that its configuration names are run with `trust` alone. Nothing is written before `settle`.
        """
        if not (path / CONFIG).is_file():
            raise RunError(f"'{path}' holds no run: there is no {CONFIG} in it")
        for key in changes:
            if key not in MAY_CHANGE:
                raise ConfigError(f"'{key}' cannot change when a run is continued, only {' and '.join(MAY_CHANGE)} can")
        experiment = config_file.read(path / CONFIG, trust)
        if (made := version_of(path)) != __version__:  # another trains otherwise
            raise RunError(
                f"'{path}' is a run of bifl {made!r}, this is bifl '{__version__}': continue it with that version, "
                "or begin a new run with this one"
            )
        run, done = cls(path, experiment.changed(changes)), len(read_records(path))
        if changes:
            run._config = _config(run.experiment)
            with locked(path):  # refused at once, and not after the data were loaded, if another process runs it
                pass
            if run.experiment.rounds < done:
                raise ConfigError(f"rounds={run.experiment.rounds} is less than the {done} rounds that '{path}' has already")
        if done:  # the checkpoint has everything: the model that it began with may be gone
            run.experiment = run.experiment.changed({"start": digest_alone(run.experiment.start)})
        return run

    def settle(self, loaded: Loaded) -> None:
        """Write down what the run is on, and what changes now that it goes on. Other data than before are refused first."""
        self.refuse_other_data(loaded)
        files = {} if self._config is None else {CONFIG: self._config}
        if not (self.path / DATA).exists():  # a new run, or one of an earlier version
            files[DATA] = fingerprint.to_json(loaded) + "\n"
        if files:  # otherwise there is no need to wait for a process that is about to end
            with locked(self.path), writing(self.path):
                for name, text in files.items():
                    write_atomic(self.path / name, text)

    def refuse_other_data(self, loaded: Loaded) -> None:
        """Refuse to go on with other data than the run began with, as far as that is known; nothing is written."""
        before = read_data(self.path)
        if before is not None and before != loaded:
            raise RunError(
                f"'{self.path}' is a run on other data ({fingerprint.sentence(before)}) than there are now "
                f"({fingerprint.sentence(loaded)}): continue it with those, or begin a new run"
            )

    def records(self) -> list[Record]:
        """The complete rounds so far."""
        return read_records(self.path)

    def ending(self) -> Ending | None:
        """Why no round follows, if none does."""
        return ending_of(self.experiment, self.records())

    def mailbox(self) -> Mailbox | None:
        """Where copies of the messages go, if they are kept."""
        return Mailbox(self.path) if self.keep_messages else None

    def prepare(self, last: Record | None) -> None:
        """Get ready for more rounds after the `last` one that is complete, which the checkpoint tells."""
        with writing(self.path):
            self.checkpoint.mkdir(exist_ok=True)
            self.mend_records(last)
            if (self.path / CLIENTS).is_file():  # rounds that were not completed are run again
                lines = (self.path / CLIENTS).read_text(errors="replace").splitlines()
                write_atomic(self.path / CLIENTS, "".join(line + "\n" for line in lines[: last.round if last else 0]))

    def append(self, record: Record) -> None:
        """Write a round down."""
        with writing(self.path):
            append_line(self.path / ROUNDS, record.to_json())

    def append_clients(self, round: int, clients: list[dict[str, Any]]) -> None:
        """Write down what is known of each client in a round, before the round is complete."""
        with writing(self.path):
            append_line(self.path / CLIENTS, json.dumps({"round": round, "clients": clients}))

    def mend_records(self, last: Record | None) -> None:
        """Make rounds.jsonl agree with the checkpoint's `last` record, which may be evaluated only now.

        A kill may have cut the last line off, or kept it from being written.
        """
        kept = [record for record in self.records() if last and record.round < last.round] + ([last] if last else [])
        if last and len(kept) != last.round:
            raise RunError(f"'{self.path / ROUNDS}' lacks rounds that the checkpoint has: it was changed or cut short")
        write_atomic(self.path / ROUNDS, "".join(record.to_json() + "\n" for record in kept))


def _config(experiment: Experiment) -> str:
    """What config.toml says: the bifl that runs the experiment, and the experiment."""
    return f'version = "{__version__}"\n{config_file.to_toml(experiment)}'


def version_of(path: Path) -> str:
    """The version of bifl that began the run in a folder, whose config.toml can be read."""
    return str(tomllib.loads((path / CONFIG).read_text()).get("version", UNVERSIONED))[:40]


def read_data(path: Path) -> Loaded | None:
    """What a run's data were; None where an earlier version did not write it down."""
    file = path / DATA
    try:
        with file.open("rb") as opened:
            return fingerprint.from_json(opened.read(fingerprint.MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(
            f"'{file}' does not tell what data the run is on ({error}): restore it, or delete it if they are still the same"
        ) from error


def read_run(path: Path) -> Result:
    """What there is of the run in a folder; Python files that its configuration names are not run."""
    experiment = config_file.read_to_show(path / CONFIG)
    return Result(str(path.resolve()), experiment, read_records(path), version_of(path), read_data(path))


def read_records(path: Path) -> list[Record]:
    """The complete lines of a run's rounds.jsonl."""
    try:
        lines = (path / ROUNDS).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read '{path / ROUNDS}': {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(Record.from_json(line))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break  # cut off by a kill
            raise RunError(f"'{path / ROUNDS}' line {number} is not a record of a round") from error
    return records


def ending_of(experiment: Experiment, records: Sequence[Record]) -> Ending | None:
    """Why no round follows these of a run; None for a run that is not over."""
    if len(records) >= experiment.rounds:
        return Ending.ROUNDS
    return records[-1].ending if records else None


def ended_early(experiment: Experiment, records: Sequence[Record]) -> str | None:
    """Why a run has fewer rounds than it was to have, in a sentence; None if it has them, or is not over."""
    if ending_of(experiment, records) is not Ending.BUDGET:
        return None
    budget, epsilon = experiment.privacy.parameters.get("budget", 0.0), records[-1].epsilon or 0.0
    spent = f"ε = {epsilon:.3g} is spent, and another round could exceed privacy.budget={budget:g}"
    return f"the run ends after round {len(records)} of {experiment.rounds}: {spent}"


class Mailbox:
    """Every message of a run as a file, if they are kept: messages/round-00001/broadcast and messages/round-00001/upload-00000 …

    With `batchnorm=recalibrate` also the exchange that follows: …/statistics-00000 and …/statistics.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / MESSAGES

    def broadcast(self, round: int, exchange: str) -> Path:
        """Where an exchange's broadcast lies."""
        return self._folder / f"round-{round:05d}" / ("broadcast" if exchange == "ballot" else exchange)

    def keep(self, round: int, exchange: str, sender: str | None, data: bytes) -> None:
        """Write a message down; the sender is None for the server."""
        path = self.broadcast(round, exchange)
        if sender is not None:
            path = path.with_name(f"{'upload' if exchange == 'ballot' else exchange}-{sender}")
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_unlisted(path, data)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Refuse to write into a folder that another process is writing into; the lock ends with its holder, however it ends."""
    with writing(path):
        lock = (path / LOCK).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"another process is running in '{path}': wait for it, or end it") from None
        yield
