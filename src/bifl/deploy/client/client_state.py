"""A client's state directory: what stays when its process ends, at whatever moment.

It holds, per run, the terms, the client's own samples as arrays, the public state as last heard (public.npz) and what the client
remembers of the last two rounds it trained in. Every file is replaced atomically, so that a kill leaves the state before or after a
message, and the same request again gives the same answer. Damaged files are moved aside and treated like lost ones. A client's
process holds the run that it takes part in (`Kept`) for as long as the files are those that it wrote or read.

Notes tell what the client has said in secure sums and what private noise it has drawn: with them it says nothing twice and
otherwise. So they outlast everything else in a run's folder and are read and written by one process at a time; where one is damaged
it stays where it is, and the client goes no further in that run.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bifl import codec
from bifl.codec import WireError
from bifl.core.state import Public
from bifl.data.arrays import further_array, input_array, refuse_missing, target_array
from bifl.data.inputs import Dataset, map_dataset, save
from bifl.deploy.client.operator_choices import Operator, own_images, same_but_for_length
from bifl.deploy.protocol import Refusal, Terms, terms_fields
from bifl.engine import checkpoint
from bifl.engine.catch_up import BEFORE, MODEL, Update, digest, restored
from bifl.engine.worker import Job, Worker
from bifl.errors import ConfigError, DataError, RunError
from bifl.experiment.run import make_run
from bifl.experiment.setup import fitting_network
from bifl.files import write_atomic, write_secret, writing

TERMS, PUBLIC, TRAIN, HELD = "terms.json", "public.npz", "train", "held"
NOTE = "note-"
DAMAGED = ".damaged-"
_STATES = r"client-\d{5,9}\.round-\d{5,10}\.npz"
FILES = re.compile(rf"{re.escape(TERMS)}|{re.escape(PUBLIC)}|{NOTE}[a-z_]+|{_STATES}|({TRAIN}|{HELD})/[A-Za-z0-9_-]+\.npy")
MOST_RUNS = 100  # that a state directory holds: a server that keeps inventing runs must not fill the disk
_RUN = re.compile(r"[0-9a-f]{16}")


class FileNotes(MutableMapping[str, bytes]):
    """What a client keeps for the next exchanges of a round: a file each, which only its owner can read, with its checksum."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> bytes:
        path = self._folder / f"{NOTE}{name}"
        try:
            checksum, _, data = path.read_bytes().partition(b"\n")
        except FileNotFoundError as error:
            raise KeyError(name) from error
        except OSError as error:
            raise Refusal(f"cannot read '{path}': {error.strerror}", "cannot read what it has said in this run") from error
        if checksum != _checksum(data):  # without it the client might say again, and otherwise, what it has said
            raise Refusal(
                f"'{path}', which tells what this client has said in this run, is damaged: it takes part in this run no more",
                "what it has said in this run is damaged: it takes part no more",
            )
        return data

    def __setitem__(self, name: str, data: bytes) -> None:
        with writing(self._folder):
            write_secret(self._folder / f"{NOTE}{name}", _checksum(data) + b"\n" + data)

    def __delitem__(self, name: str) -> None:
        (self._folder / f"{NOTE}{name}").unlink()

    def __iter__(self) -> Iterator[str]:
        return (path.name.removeprefix(NOTE) for path in self._folder.glob(f"{NOTE}*"))

    def __len__(self) -> int:
        return len(list(iter(self)))


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Wait until no other process answers for this client; the lock ends with its holder, however it ends."""
    if not state.is_dir():  # before the first greeting: there are no notes yet
        yield
        return
    descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


class Damaged(RunError):
    """Files in a client's state directory that cannot be read."""


class ClientState:
    """One client's folder for one run, whose name `protocol.read_request` has checked."""

    def __init__(
        self, state: Path, run: str, operator: Operator, tell: Callable[[str], None], last: ClientState | None = None
    ) -> None:
        self.folder, self.operator, self._tell = _folder(state, run), operator, tell
        self.number = operator.number
        self.worker: Worker | None = None  # the client ready to work
        self._files: Mapping[str, tuple[int, ...]] = {}  # that say the same, as `_stamps` tells them
        if last is not None and (last.folder, last.operator, last._files) == (self.folder, operator, self._stamps()):
            self.worker = last.worker  # as the last request left it
        if operator.peers:
            self._refuse_second_run()

    def _refuse_second_run(self) -> None:
        """Refuse any run but the one in whose secure sums this client has taken part: in two runs one round can be held twice."""
        with_notes = {path.parent.name.partition(DAMAGED)[0] for path in self.folder.parent.glob(f"*/{NOTE}*")}
        if others := with_notes - {self.folder.name}:
            raise Refusal(
                f"this client has taken part in secure sums of run {min(others)}, and sums of two runs over the same data can be "
                "subtracted: if that does no harm, start it with another --state for another run",
                "it has taken part in secure sums of another run: its operator can start it with another --state",
            )

    def greet(self, terms: Terms) -> Worker:
        """Agree to the terms; the client ready to work."""
        self.worker = None
        try:
            worker = self._settle_in(terms)
        except Damaged as error:
            self._move_aside(error)
            worker = self._settle_in(terms)
        if worker.run.computes:
            try:
                refuse_missing(worker.tools.samples.inputs.numpy(), "inputs")
            except DataError as error:
                raise Refusal(f"this client's {error}", "values of its inputs are missing") from error
        self.worker = worker
        return worker

    def open(self, round: int) -> Worker | None:
        """The client as it was after the given round, ready to work; None where there is nothing of this run, or no longer."""
        try:
            if self.worker is None:
                agreed = self._terms()
                if agreed is None or (agreed["number"], agreed["data"]) != (self.number, self.operator.data):
                    return None  # never greeted, or restarted as somebody else
                self.worker = self._load(agreed["experiment"])
            self._recall(self.worker, round)
        except Damaged as error:
            self.worker = None
            self._move_aside(error)
        return self.worker

    def keep(self) -> ClientState | None:
        """This, for the next request; None if no client is ready. To be called when its files are written."""
        self._files = self._stamps()
        return None if self.worker is None else self

    def _stamps(self) -> dict[str, tuple[int, ...]]:
        """What tells that a file of the run's folder, or one that the client knows its peers by, was changed or removed."""
        files = [*self.folder.rglob("*"), *(Path(name) for name in (self.operator.key, self.operator.peers) if name)]
        stats = {str(path): path.lstat() for path in files if os.path.lexists(path)}
        return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}

    def _recall(self, worker: Worker, round: int) -> None:
        """Let the client be what it was after a round: a request that comes again is answered as before."""
        past = [saved for saved in checkpoint.rounds_of(self.folder, self.number) if saved <= round]
        if not past:
            worker.forget(self.number)
        elif worker.kept.get(self.number) != past[-1]:
            with _reading(self.folder):
                worker.restore(self.number, past[-1])

    def _settle_in(self, terms: Terms) -> Worker:
        """Save the client's samples, if that is not done yet, and open what is saved. Nothing is written before all is checked."""
        wanted = terms_fields(terms) | {"number": self.number, "data": self.operator.data}
        agreed = self._terms()
        if agreed == wanted:
            return self._load(terms.experiment)
        if agreed is not None and not _same_run(agreed, wanted):
            raise Refusal("the server has changed the settings of a run that this client takes part in: it must start a new one")
        experiment = self.operator.experiment(terms.experiment)
        if not 0 <= self.number < experiment.clients:
            raise Refusal(f"client number {self.number} is none of 0 to {experiment.clients - 1}, the clients of this run")
        parts = own_images(self.operator, terms, experiment)
        with writing(self.folder):
            self._make_room()
            (self.folder / TERMS).unlink(missing_ok=True)
            for name, part in parts.items():
                if (self.folder / name).is_symlink():
                    raise Refusal(f"'{self.folder / name}' is a link: remove it", "its state directory holds a link")
                shutil.rmtree(self.folder / name, ignore_errors=True)
                (self.folder / name).mkdir()
                save(part, self.folder / name)
            write_atomic(self.folder / TERMS, json.dumps(wanted))  # the last file: where it is, the others are whole
        return self._load(terms.experiment)

    def _make_room(self) -> None:
        if self.folder.exists():
            return
        state = self.folder.parent
        state.mkdir(parents=True, exist_ok=True)
        runs = [path for path in state.iterdir() if _RUN.fullmatch(path.name.partition(DAMAGED)[0])]
        if len(runs) >= MOST_RUNS:
            text = f"'{state}' holds {len(runs)} runs already: delete the folders of those that are over"
            raise Refusal(text, f"its state directory is full: it holds {len(runs)} runs")
        self.folder.mkdir()

    def _terms(self) -> dict[str, Any] | None:
        """What was agreed on; None before."""
        if not (self.folder / TERMS).is_file():
            return None
        with _reading(self.folder):
            agreed = json.loads((self.folder / TERMS).read_text())
            if [type(agreed[name]) for name in ("experiment", "number", "data")] != [str, int, str]:
                raise ValueError(f"{TERMS} lacks something")
            return dict(agreed)

    def _load(self, words: str) -> Worker:
        """The client and its public state as the files say, but for what it remembers of rounds."""
        experiment = self.operator.experiment(words)
        with _reading(self.folder):
            train, held = _whole(map_dataset(self.folder / TRAIN)), _whole(map_dataset(self.folder / HELD))
            data = train._replace(
                inputs=np.concatenate([train.inputs, held.inputs]),
                labels=np.concatenate([train.labels, held.labels]),
                further={name: np.concatenate([array, held.further[name]]) for name, array in train.further.items()},
            )
        parts = {self.number: np.arange(len(train.labels))}
        shards = {self.number: np.arange(len(train.labels), len(data.labels))}
        run = make_run(experiment, fitting_network(experiment, data), data)
        with _reading(self.folder):
            identity = self.operator.identity(self.folder.name) if experiment.secure_sum else None
            worker = Worker(Job(run, parts, shards, [], run.fresh, self.folder, {}, False, identity), data)
            worker.notes = {self.number: FileNotes(self.folder)}
            if (self.folder / PUBLIC).is_file():
                worker.public = checkpoint.load_public(self.folder / PUBLIC, run.fresh, worker.completing)[0]
            return worker

    def _move_aside(self, error: Damaged) -> None:
        """Move everything but notes to a folder beside, so that it can be inspected: notes hold what must not be said otherwise."""
        for number in range(1, MOST_RUNS):
            aside = self.folder.with_name(f"{self.folder.name}{DAMAGED}{number}")
            if not aside.exists():
                with writing(self.folder):
                    aside.mkdir()
                    for path in sorted(self.folder.iterdir(), key=lambda path: path.name != TERMS):  # first: the others rely on it
                        if not path.name.startswith(NOTE):
                            path.rename(aside / path.name)
                self._tell(f"the state of this run is damaged ({error}): moved to '{aside}'; the server is asked for it again")
                return
        raise Refusal(f"'{self.folder}' is damaged again and again: is the disk in order?", "its state is damaged again and again")

    def bring_up(self, worker: Worker, update: Update) -> bool:
        """Bring the public state up to date and write it down; False if the update does not fit what the client has."""
        in_context, before, fresh = worker.run.in_context, worker.public, worker.run.fresh
        if digest(worker.public, in_context) != update.target:
            _refuse_long(update, fresh)
            exchanges = {step.exchange for step in update.steps}.union(update.whole or {})
            if unknown := exchanges.difference(worker.exchanges, (BEFORE, MODEL)):
                raise Refusal(f"the server speaks of the exchange '{min(unknown)}', which this run does not have")
            if update.whole is not None:
                worker.public = restored(update.whole, list(worker.exchanges.values()), fresh)
            for step in update.steps:
                if digest(worker.public, in_context) == step.start:
                    worker.hear(step.exchange, step.data)
        if digest(worker.public, in_context) != update.target:
            self.worker = None  # it may have taken up some of it
            return False
        if worker.public is not before or not (self.folder / PUBLIC).is_file():
            _refuse_not_finite(worker.public)
            checkpoint.save_public(self.folder / PUBLIC, worker.public, worker.completing, {}, {})
        return True

    def tidy(self, round: int) -> None:
        """Delete the files of rounds that the server can no longer ask for."""
        past = [saved for saved in checkpoint.rounds_of(self.folder, self.number) if saved < round]
        checkpoint.forget(self.folder, self.number, past[:-1])


def _folder(state: Path, run: str) -> Path:
    """A run's folder, which is always inside the state directory."""
    folder = state.resolve() / run
    if not _RUN.fullmatch(run) or folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise Refusal(f"'{folder}' is not a folder of this client's own: remove it", "its state directory holds something else")
    return folder


def _same_run(agreed: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether terms are those of the same run, which may have become longer."""
    same = all(agreed.get(name) == wanted.get(name) for name in Terms._fields if name != "experiment")
    return same and same_but_for_length(agreed["experiment"], wanted["experiment"])


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Tell files that are damaged from a disk that cannot be read at the moment, and from settings that cannot be run."""
    try:
        yield
    except (ConfigError, Refusal, Damaged, MemoryError):
        raise
    except Exception as error:  # whatever json, numpy and zipfile raise, depending on where the damage is
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            why = error.strerror or type(error).__name__
            raise Refusal(f"cannot read '{error.filename or folder}': {why}", f"cannot read its state: {why}") from error
        raise Damaged(str(error)) from error


def _whole(data: Dataset) -> Dataset:
    target_array(data.labels, len(input_array(data.inputs, "images")), data.classes, "labels")
    for name, array in data.further.items():
        further_array(array, len(data.inputs), name)
    return data


def _refuse_not_finite(public: Public) -> None:
    """Refuse a public state that holds numbers which no training gives, before it is saved: it could not be read again."""
    codec.refuse_infinite(public.weights, public.real, public.scales, *public.vectors.values())
    for message in (public.news, public.before):
        if message is not None:
            codec.refuse_infinite(*codec.free_numbers(message))


def _refuse_long(update: Update, fresh: Public) -> None:
    """Refuse messages that are longer than any of this model can be, before they are read."""
    most = 4096 + 8 * ((1 + len(fresh.vectors)) * fresh.layout.count + fresh.layout.reals)
    for data in (*(step.data for step in update.steps), *(update.whole or {}).values()):
        if len(data) > most:
            raise WireError(most, f"is {len(data)} bytes long, {most} are more than this model needs")
