"""What a client's operator has decided: which experiments the server may choose, and where the client's own images come from.

A server may choose what comes with bifl, within bounds, and files that the operator gave. Its words are checked before an
experiment is made of them, as a name like `my.py:mine` runs that file. Whether the operator's images are of a run's kind is
checked here too. The server's end is here as well: what it tells its clients of an experiment.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np

from bifl.core.sides import Identity
from bifl.data.arrays import from_npz, further_array, input_array, is_arrays, target_array
from bifl.data.datasets import dataset
from bifl.data.inputs import NONE, Array, Dataset, Index, forms_of, further_text, kind_of, read_further, rows
from bifl.deploy.protocol import Refusal, Terms
from bifl.errors import BiflError, DataError
from bifl.experiment.composition import plain_algorithm
from bifl.experiment.declarations import MAY_CHANGE, SETTINGS
from bifl.experiment.run import task_of
from bifl.experiment.settings import REGISTRIES, Experiment, pairs
from bifl.experiment.setup import cut, deal, load, refuse_undeployable, secure_threshold
from bifl.experiment.starting import digest_alone
from bifl.registry import of_file, short

_PATH = "dataset.path"


def words_for_clients(experiment: Experiment) -> str:
    """An experiment as clients are told of it: what they need, and files by their names alone, wherever the server has them."""
    settings = pairs(experiment.words())
    settings = {key: value for key, value in settings.items() if SETTINGS[key.partition(".")[0]].for_clients}
    for kind in REGISTRIES:
        file, colon, name = settings.get(kind, "").rpartition(":")
        if colon:
            settings[kind] = f"{PurePath(file).name}:{name}"
    if _PATH in settings:
        settings[_PATH] = PurePath(settings[_PATH]).name
    settings["start"] = digest_alone(settings.get("start", ""))
    return shlex.join(f"{key}={value}" for key, value in settings.items())


def permitted(text: str, allowed: Sequence[Path], own_data: bool) -> Experiment:
    """The experiment that a server's words stand for.

    Args:
        text: `key=value` words.
        allowed: files that the operator lets the server name. A file is known by its path or, as other machines have other
            folders, by its name; it is always the operator's file that is used.
        own_data: whether the operator decides what is read; what the server says of the dataset's files is then left out.

    Raises:
        Refusal: the words are none, or name what this client does not have, or does not want to run.
    """
    settings = _settings(text)
    if own_data and of_file(settings.get("dataset", "")):
        settings = {key: value for key, value in settings.items() if key.partition(".")[0] != "dataset"}
    if own_data:
        settings.pop(_PATH, None)
    files = {kind: settings[kind] for kind in REGISTRIES if of_file(settings.get(kind, ""))}
    for kind, name in files.items():
        settings[kind] = f"{_allowed(of_file(name), kind, allowed)}:{short(name)}"
    if settings.get(_PATH):
        settings[_PATH] = str(_allowed(settings[_PATH], _PATH, allowed))
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


def named_files(experiment: Experiment) -> list[Path]:
    """The files of a user's own that clients need of an experiment."""
    choices = [getattr(experiment, kind) for kind in REGISTRIES if SETTINGS[kind].for_clients]
    names = [choice.name.rpartition(":")[0] for choice in choices] + [experiment.dataset.parameters.get("path", "")]
    return [Path(name).resolve() for name in dict.fromkeys(names) if name]


def _settings(text: str) -> dict[str, str]:
    try:
        return pairs(shlex.split(text))
    except (ValueError, BiflError) as error:
        raise Refusal("the server's request makes no sense: its experiment is not key=value words") from error


def _allowed(asked: str, key: str, allowed: Sequence[Path]) -> Path:
    """The operator's own file that the server's name stands for."""
    name = PurePath(asked).name
    fitting = [path for path in allowed if str(path) == asked] or [path for path in allowed if path.name == name]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise Refusal(f"{key}: two of the files given with --allow are called '{name}'", f"it has two files for {key}")
    raise Refusal(
        f"the run wants {key}={asked}, a file: get it, read it, and start bifl client with --allow {name}"
        + (", or bring your own images with --data" if key.startswith("dataset") else ""),
        f"it does not allow {key}={name}, a file: its operator can, with --allow" + (", or give --data" if key == _PATH else ""),
    )


class Images(NamedTuple):
    """Inputs, pictures or others, and which of them are the client's."""

    images: Array  # (n, …) uint8, floats or tokens; pictures (n, channels, height, width) or (n, height, width) uint8
    labels: Array  # (n,) class numbers, or what else the run's task takes
    hand: Index | None = None  # all, if not told
    classes: int | None = None  # how many there are, where the dataset knows
    further: Mapping[str, Array] = NONE  # name → (n, …) what the run's network or task takes beside the inputs


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
        found = permitted(text, self.allowed, own_data=bool(self.data or self.source))
        if self.peers and not found.secure_sum:
            raise Refusal("this client was started with --peers: it takes part in runs with secure_sum=true only")
        if self.peers and (left := secure_threshold(found)) < self.least:
            raise Refusal(f"the sums of this run may be of {left} clients, and this client wants {self.least} or more")
        if self.peers and found.colluders < self.colluders:
            raise Refusal(f"this run has colluders={found.colluders}, and this client wants colluders={self.colluders} or more")
        return found

    def identity(self, run: str) -> Identity | None:
        """What the client signs with in a run's secure sums; None where it has no list of the others' keys."""
        if not self.key or not self.peers:
            return None
        from bifl.secure.identities import NodeKeys

        return NodeKeys(Path(self.key), Path(self.peers), self.least, run)

    def images(self, terms: Terms, experiment: Experiment) -> Images:
        """The client's own."""
        return (self.source or local_images(self.data))(terms, experiment, self.number)


def local_images(where: str) -> Source:
    """What `--data` stands for: an .npz file or a folder of .npy files, a folder of LEAF's, or a dataset's name, dealt out.

    Without a name it is the experiment's own dataset.
    """

    def found_there(terms: Terms, experiment: Experiment, number: int) -> Images:
        path = Path(where)
        if where.endswith(".npz") or is_arrays(path):
            found = from_npz(path)
            return Images(found.inputs, found.labels, further=found.further)
        if where and path.is_dir():
            kind = "femnist" if terms.shape[0] == 1 else "celeba"
            found = dataset.make(kind, {"path": where, "test_share": 0.0})
            return Images(found.inputs, found.labels, None, found.classes)
        if not where and experiment.dataset.name == "remote":
            raise Refusal(
                "the server has no dataset: start this client with --data FILE.npz, a folder of LEAF's or a name",
                "it has no images: the run has no dataset, and it was started without --data",
            )
        chosen = experiment.changed({"dataset": where}) if where else experiment
        data = load(chosen)
        return Images(data.inputs, data.labels, deal(chosen, data)[0][number], data.classes, data.further)

    return found_there


def own_images(operator: Operator, terms: Terms, experiment: Experiment) -> dict[str, Dataset]:
    """The client's images, those to `train` on and those `held` out, normalised as everyone's are.

    Raises:
        BiflError: there are too few, or they do not look like the images of this run.
    """
    found = operator.images(terms, experiment)
    hand = np.arange(len(found.labels)) if found.hand is None else found.hand
    if len(hand) < 2:
        raise Refusal(f"client {operator.number} has {len(hand)} images: batch-norm needs two to train on")
    remedy = "give other images with --data, or ask the server's operator whether the run has the right settings"
    wanted = read_further(terms.further)
    try:
        labels, outputs = task_of(experiment).targets(
            target_array(found.labels, len(found.images), terms.classes, "labels"), found.classes or terms.classes
        )
        images = input_array(found.images, "images")
        further = {name: further_array(found.further[name], len(images), name) for name in wanted if name in found.further}
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
