"""What a client's operator has decided: which experiments the server may choose, and where the client's own images come from.

A server may choose what comes with bifl, within bounds, and files that the operator gave. Its words are checked before an
experiment is made of them, as a name like `my.py:mine` runs that file. Whether the operator's images are of a run's kind is
checked here too. What a server says of an experiment is in `deploy/protocol.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np

from bifl.core.sides import Identity
from bifl.data.arrays import further_array, input_array, target_array
from bifl.data.inputs import Dataset, forms_of, further_text, kind_of, read_further, rows
from bifl.deploy.client.own_data import Images, read_files
from bifl.deploy.protocol import DATA_PATH, Refusal, Terms
from bifl.errors import BiflError, DataError
from bifl.experiment.declarations import MAY_CHANGE, SETTINGS
from bifl.experiment.settings import REGISTRIES, Experiment, pairs, plain_algorithm
from bifl.experiment.setup import cut, deal, load, refuse_undeployable
from bifl.experiment.starting import digest_alone
from bifl.registry import of_file, short
from bifl.secure import threshold
from bifl.tasks import task


def permitted(text: str, allowed: Sequence[Path], own_data: bool) -> Experiment:
    """The experiment that a server's words, `key=value`, stand for.

    A file that the operator has `allowed` is known by its path or, as other machines have other folders, by its name; it is always
    the operator's file that is used. With `own_data` what the server says of the dataset's files is left out. Words that name what
    this client does not have, or does not want to run, are refused.
    """
    settings = _settings(text)
    if own_data and of_file(settings.get("dataset", "")):
        settings = {key: value for key, value in settings.items() if key.partition(".")[0] != "dataset"}
    if own_data:
        settings.pop(DATA_PATH, None)
    files = {kind: settings[kind] for kind in REGISTRIES if of_file(settings.get(kind, ""))}
    for kind, name in files.items():
        settings[kind] = f"{_allowed(of_file(name), kind, allowed)}:{short(name)}"
    if settings.get(DATA_PATH):
        settings[DATA_PATH] = str(_allowed(settings[DATA_PATH], DATA_PATH, allowed))
    try:
        settings |= {"start": digest_alone(settings.get("start", ""))}  # the server's file: its weights come as the public state
        experiment = Experiment.of(None, [f"{key}={value}" for key, value in settings.items()])
        central = plain_algorithm(experiment).central
        refuse_undeployable(experiment)
    except BiflError as error:
        # built-in things complain of the server's own words, a file of the operator's may say anything
        public = "it cannot run its own copy of the run's files" if files else f"it cannot run these settings: {error}"
        raise Refusal(f"this client cannot run what the server asks for: {error}", public) from error
    for key, declared in SETTINGS.items():
        most = declared.most_from_server
        if most is not None and getattr(experiment, key) > most:
            raise Refusal(f"this client does not take {key}={getattr(experiment, key)} from a server: {most} is the most")
    if central:
        raise Refusal("the server asks for a centralised algorithm, which has no clients")
    return experiment


def same_but_for_length(first: str, second: str) -> bool:
    """Whether two texts are the same experiment, but for what may change while a run goes on."""
    one, other = ({k: v for k, v in _settings(text).items() if k not in MAY_CHANGE} for text in (first, second))
    return one == other


def _settings(text: str) -> dict[str, str]:
    try:
        return pairs(shlex.split(text))
    except (ValueError, BiflError) as error:
        raise Refusal("the server's request makes no sense: its experiment is not key=value words") from error


def _allowed(asked: str, key: str, allowed: Sequence[Path]) -> Path:
    name = PurePath(asked).name
    fitting = [path for path in allowed if str(path) == asked] or [path for path in allowed if path.name == name]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise Refusal(f"{key}: two of the files given with --allow are called '{name}'", f"it has two files for {key}")
    raise Refusal(
        f"the run wants {key}={asked}, a file: get it, read it, and start bifl client with --allow {name}"
        + (", or bring your own images with --data" if key.startswith("dataset") else ""),
        f"it does not allow {key}={name}, a file: its operator can, with --allow"
        + (", or give --data" if key == DATA_PATH else ""),
    )


Source = Callable[[Terms, Experiment, int], Images]


class Operator(NamedTuple):
    """What a client's operator has decided, and no server can change."""

    number: int
    data: str = ""  # what --data names
    allowed: tuple[Path, ...] = ()  # files that the server may name
    source: Source | None = None  # in an app of one's own: where the images come from
    key: str = ""  # the file of its private key
    peers: str = ""  # the file of all clients' public keys: with it this client says nothing but under masks
    least: int = 0  # clients whose sum the server may learn; fewer are refused
    colluders: int = 0  # clients that may help the server; runs that hold out against fewer are refused

    def experiment(self, text: str) -> Experiment:
        """What the server's words stand for."""
        wanted = permitted(text, self.allowed, own_data=bool(self.data or self.source))
        if self.peers and not wanted.secure_sum:
            raise Refusal("this client was started with --peers: it takes part in runs with secure_sum=true only")
        if self.peers and (left := threshold(wanted.voters(), wanted.colluders)) < self.least:
            raise Refusal(f"the sums of this run may be of {left} clients, and this client wants {self.least} or more")
        if self.peers and wanted.colluders < self.colluders:
            raise Refusal(f"this run has colluders={wanted.colluders}, and this client wants colluders={self.colluders} or more")
        return wanted

    def identity(self, run: str) -> Identity | None:
        """What the client signs with in a run's secure sums; None where it has no list of the others' keys."""
        if not self.key or not self.peers:
            return None
        from bifl.secure.identities import NodeKeys

        return NodeKeys(Path(self.key), Path(self.peers), self.least, run)


def local_images(where: str, terms: Terms, experiment: Experiment, number: int) -> Images:
    """What `--data` stands for: an .npz file, a folder of .npy files or of LEAF's, or a dataset's name; "" for the run's own."""
    images = read_files(where, ["femnist" if terms.shape[0] == 1 else "celeba"])
    if images is not None:
        return images
    if not where and experiment.dataset.name == "remote":
        raise Refusal(
            "the server has no dataset: start this client with --data FILE.npz, a folder of LEAF's or a name",
            "it has no images: the run has no dataset, and it was started without --data",
        )
    chosen = experiment.changed({"dataset": where}) if where else experiment
    data = load(chosen)
    return Images(data.inputs, data.labels, deal(chosen, data)[0][number], data.classes, data.further)


def own_images(operator: Operator, terms: Terms, experiment: Experiment) -> dict[str, Dataset]:
    """The client's images, those to `train` on and those `held` out, normalised as everyone's are."""
    source = operator.source or partial(local_images, operator.data)
    brought = source(terms, experiment, operator.number)
    hand = np.arange(len(brought.labels)) if brought.hand is None else brought.hand
    if len(hand) < 2:
        raise Refusal(f"client {operator.number} has {len(hand)} images: batch-norm needs two to train on")
    remedy = "give other images with --data, or ask the server's operator whether the run has the right settings"
    names = [name for name in read_further(terms.further) if name in brought.further]
    try:
        targets = target_array(brought.labels, len(brought.images), terms.classes, "labels")
        labels, outputs = experiment.task.made(task).targets(targets, brought.classes or terms.classes)
        images = input_array(brought.images, "images")
        further = {name: further_array(brought.further[name], len(images), name) for name in names}
    except DataError as error:
        raise Refusal(f"this client's {error}: {remedy}", f"its {error}") from error
    misfits = {
        "images": (images.shape[1:], terms.shape),
        "inputs": (kind_of(images), terms.kind),
        "classes": (outputs, terms.classes),
        "labels of a sample": (labels.shape[1:], labels.shape[1:] if terms.labels is None else terms.labels),
        "inputs beside the first": (further_text(forms_of(further)), terms.further),
    }
    for what, (ours, theirs) in misfits.items():
        if ours != theirs:
            short = f"{what} are {ours}, the run's are {theirs}"
            raise Refusal(f"this client's {short}: {remedy}", f"its {short}")
    if terms.share and not experiment.tells_results():  # a server could make all others few, and one of them outweigh the rest
        short = f"the server asks clients to hold out {terms.share:g} of their images, and in such a run nobody does"
        raise Refusal(short, short)
    parts = dict(zip(("train", "held"), cut(hand, terms.share, experiment.seed, operator.number), strict=True))
    rest = (images[:0], labels[:0], terms.classes, terms.mean, terms.std, None)
    return {
        name: Dataset(images[part], labels[part], *rest, rows(further, part), rows(further, slice(0)))
        for name, part in parts.items()
    }
