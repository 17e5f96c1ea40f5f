"""A client's own images: where they come from is its operator's choice; whether they are of a run's kind is checked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bifl.core.sides import Identity
from bifl.data.arrays import Array, Dataset, Index, from_npz, input_array, is_arrays, target_array
from bifl.data.datasets import dataset
from bifl.data.inputs import NONE, forms_of, further_array, further_text, kind_of, read_further, rows
from bifl.deploy import permits
from bifl.deploy.protocol import Refusal, Terms
from bifl.errors import DataError
from bifl.experiment.run import task_of
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import cut, deal, load, secure_threshold


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
        found = permits.permitted(text, self.allowed, own_data=bool(self.data or self.source))
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
            return Images(found.images, found.labels, further=found.further)
        if where and path.is_dir():
            kind = "femnist" if terms.shape[0] == 1 else "celeba"
            found = dataset.make(kind, {"path": where, "test_share": 0.0})
            return Images(found.images, found.labels, None, found.classes)
        if not where and experiment.dataset.name == "remote":
            raise Refusal(
                "the server has no dataset: start this client with --data FILE.npz, a folder of LEAF's or a name",
                "it has no images: the run has no dataset, and it was started without --data",
            )
        chosen = experiment.changed({"dataset": where}) if where else experiment
        data = load(chosen)
        return Images(data.images, data.labels, deal(chosen, data)[0][number], data.classes, data.further)

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
