"""Where a client lives between two messages, each of which Flower gives a process of its own: a folder.

It holds, per run, the terms, the client's own images as arrays, the public state as last heard (shared.npz) and what the client
remembers of the last two rounds it trained in. Every file is replaced atomically, so that a kill at any moment leaves the state
before or after a message, and the same request again gives the same answer.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bifl.algorithm import Shared
from bifl.data.arrays import Array, Dataset, Index, from_npz, image_array, label_array
from bifl.data.datasets import dataset, mapped, save
from bifl.errors import ConfigError, DataError
from bifl.experiment import Experiment
from bifl.files import write_atomic, writing
from bifl.flower.letters import Terms
from bifl.flower.public import BROADCAST, Update, digest, restored
from bifl.runtime import checkpoint
from bifl.runtime.worker import Job, Worker
from bifl.runtime.world import cut, deal, fitting_network

TERMS, SHARED, TRAIN, HELD = "terms.json", "shared.npz", "train", "held"


class Images(NamedTuple):
    """Images, and which of them are the client's."""

    images: Array  # (n, channels, height, width) or (n, height, width) uint8
    labels: Array  # (n,) whole numbers
    hand: Index | None = None  # all, if not told


Source = Callable[[Terms, Experiment, int], Images]


def local_images(where: str) -> Source:
    """What `--data` stands for: an .npz file, a folder of LEAF's, or a dataset's name, dealt out as the experiment says.

    Without a name it is the experiment's own dataset.
    """

    def load(terms: Terms, experiment: Experiment, number: int) -> Images:
        path = Path(where)
        if where and path.is_dir():
            kind = "femnist" if terms.shape[0] == 1 else "celeba"
            found = dataset.make(kind, {"path": where, "test_share": 0.0})
            return Images(found.images, found.labels)
        if where.endswith(".npz"):
            found = from_npz(path, terms.classes)
            return Images(found.images, found.labels)
        if not where and experiment.dataset.name == "remote":
            raise ConfigError("the server has no dataset: start this client with --data FILE.npz, a folder of LEAF's or a name")
        chosen = experiment.changed({"dataset": where}) if where else experiment
        data = dataset.make(chosen.dataset.name, chosen.dataset.parameters)
        return Images(data.images, data.labels, deal(chosen, data)[0][number])

    return load


class Home:
    """One client's folder for one run."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number

    def settle_in(self, terms: Terms, source: Source) -> None:
        """Agree to the terms, and put the client's own images where the next processes find them quickly."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(terms._asdict() | {"number": self.number})
        if (self.folder / TERMS).is_file() and (self.folder / TERMS).read_text() == text:
            return
        experiment = Experiment.of(None, shlex.split(terms.experiment))
        if not 0 <= self.number < experiment.clients:
            raise ConfigError(f"client number {self.number} is none of 0 to {experiment.clients - 1}, the clients of this run")
        found = source(terms, experiment, self.number)
        hand = np.arange(len(found.labels)) if found.hand is None else found.hand
        if len(hand) < 2:
            raise ConfigError(f"client {self.number} has {len(hand)} images: batch-norm needs two to train on")
        train, held = cut(hand, terms.share, experiment.seed, self.number)
        with writing(self.folder):
            (self.folder / TERMS).unlink(missing_ok=True)
            for name, part in {TRAIN: train, HELD: held}.items():
                shutil.rmtree(self.folder / name, ignore_errors=True)
                (self.folder / name).mkdir()
                save(_checked(found, part, terms), self.folder / name)
            write_atomic(self.folder / TERMS, text)  # the last file: where it is, the others are whole

    def open(self, round: int) -> tuple[Worker, Shared] | None:
        """The client as it was after the given round, ready to work, and the public state before the first round as computed here.

        None where there is nothing of this run.
        """
        if not (self.folder / TERMS).is_file():
            return None
        experiment = Experiment.of(None, shlex.split(json.loads((self.folder / TERMS).read_text())["experiment"]))
        train, held = mapped(self.folder / TRAIN), mapped(self.folder / HELD)
        data = train._replace(
            images=np.concatenate([train.images, held.images]), labels=np.concatenate([train.labels, held.labels])
        )
        parts = {self.number: np.arange(len(train.labels))}
        shards = {self.number: np.arange(len(train.labels), len(data.labels))}
        network = fitting_network(experiment, data)
        fresh = Shared(experiment.seed, 0, network.layout, *network.initial())
        shared = fresh
        if (self.folder / SHARED).is_file():
            shared = checkpoint.load_shared(self.folder / SHARED, fresh)[0]
        past = [known for known in checkpoint.rounds_of(self.folder, self.number) if known <= round]
        trained = {self.number: past[-1]} if past else {}
        job = Job(experiment, experiment.build(), network, parts, shards, [], shared, self.folder, trained)
        return Worker(job, data), fresh

    def bring_up(self, worker: Worker, fresh: Shared, update: Update) -> bool:
        """Bring the public state up to date and write it down; False if the update does not fit what is known here."""
        experiment = worker.experiment
        if digest(worker.shared, experiment) != update.target:
            if update.whole is not None:
                worker.take_over(restored(update.whole, worker.algorithm, fresh))
            for step in update.steps:
                if digest(worker.shared, experiment) == step.start:
                    (worker.hear if step.kind == BROADCAST else worker.settle)(step.data)
        if digest(worker.shared, experiment) != update.target:
            return False
        checkpoint.save_shared(self.folder / SHARED, worker.shared, {}, {})
        return True

    def tidy(self, round: int) -> None:
        """Forget rounds that nobody can ask for again."""
        past = [known for known in checkpoint.rounds_of(self.folder, self.number) if known < round]
        checkpoint.forget(self.folder, self.number, past[:-1])


def _checked(found: Images, part: Index, terms: Terms) -> Dataset:
    """Some of the images as a dataset, normalised as everyone's are.

    Raises:
        DataError: they do not look like the images of this run.
    """
    labels = label_array(found.labels, len(found.images), terms.classes, "this client's labels")[part]
    images = image_array(found.images, "this client's images")[part]
    if images.shape[1:] != terms.shape:
        raise DataError(f"this client's images are (channels, height, width) = {images.shape[1:]}, the run's are {terms.shape}")
    return Dataset(images, labels, images[:0], labels[:0], terms.classes, terms.mean, terms.std)
