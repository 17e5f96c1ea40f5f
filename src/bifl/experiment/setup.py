"""A run with its data loaded and dealt out, and the public state that it begins with."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bifl.attacks import attack
from bifl.core.randomness import stream
from bifl.core.state import Public
from bifl.data import fingerprint
from bifl.data.arrays import further_array, groups_of, own_dataset, refuse_missing
from bifl.data.datasets import dataset
from bifl.data.fingerprint import Loaded
from bifl.data.inputs import Dataset, Index, shape_text
from bifl.data.partitions import Drawn, dealer, split
from bifl.data.validation import validated
from bifl.errors import ConfigError, DataError
from bifl.experiment.declarations import Choice
from bifl.experiment.run import Run, make_network, make_run, share_of
from bifl.experiment.settings import Experiment, plain_algorithm
from bifl.experiment.starting import start_with
from bifl.nn.batch import network_arguments, task_arguments
from bifl.nn.compute import device_of
from bifl.nn.misfit import Misfit
from bifl.nn.network import Network
from bifl.nn.sent import real_layers
from bifl.privacy import privacy, secret_dice, simulated_dice
from bifl.privacy.dice import Dice
from bifl.registry import short
from bifl.tasks import Task, task
from bifl.training.evaluation import example


class Setup(NamedTuple):
    """A run with everything loaded and dealt out."""

    run: Run
    data: Dataset
    parts: Sequence[Index]  # images that each client trains on
    shards: Sequence[Index]  # images that each client holds out, for federated evaluation
    held: Index  # training images that the server holds out for its judge; usually none
    public: Public  # before the first round: the common initialisation
    draw: int  # the seed that says who uploads: the experiment's, or the server's own where that is private


def build(
    experiment: Experiment, kind: type[Network] = Network, data: Dataset | None = None, dealt: Experiment | None = None
) -> Setup:
    """Load the data, deal it out, initialise the model.

    Args:
        experiment: what to build.
        kind: a network that computes in its own way.
        data: the experiment's images, if they were loaded before.
        dealt: whose clients have the images, if not the experiment's own: that of the run whose model is evaluated.
    """
    device_of(experiment.device)  # or a refusal
    data = load(experiment) if data is None else fitting(experiment, data)
    hands, held = deal(dealt or experiment, data)
    parts, shards = cut_all(hands, share_of(experiment, data), experiment.seed)
    run, data = _make(experiment, data, simulated_dice, kind)  # reproducible, so in a simulation nothing is private
    return Setup(run, data, parts, shards, held, _first_state(run, data), experiment.seed)


def serve(experiment: Experiment) -> Setup:
    """The same for a server whose clients hold the images: nothing is dealt out."""
    refuse_undeployable(experiment)
    data, algorithm = load(experiment), plain_algorithm(experiment)
    if algorithm.central:
        raise ConfigError(f"algorithm '{short(experiment.algorithm.name)}' is centralised, it has no clients: use bifl run")
    held, _ = hold_out(len(data.labels), algorithm.validation, experiment.seed)
    run, data = _make(experiment, data, secret_dice, Network)
    nobody = [np.zeros(0, np.int64)] * run.clients
    draw = experiment.seed if run.privacy is None else secrets.randbits(62)  # clients know the seed
    return Setup(run, data, nobody, nobody, held, _first_state(run, data), draw)


def _make(experiment: Experiment, data: Dataset, dice: Dice, kind: type[Network]) -> tuple[Run, Dataset]:
    """The run, and its data without what nobody takes; or a refusal of data that it cannot do with."""
    network = fitting_network(experiment, data, kind)
    data = wanted_alone(data, network, experiment.task.made(task))
    run = make_run(experiment, network, data, dice)
    if run.privacy is not None:
        run.privacy.refuse_small_budget(run.fewest, run.clients, run.fresh.layout)
    for inputs in (data.inputs, data.test_inputs) if run.computes else ():
        refuse_missing(inputs, f"dataset '{short(experiment.dataset.name)}': inputs")
    if run.trains and not run.tells_results and not len(data.test_labels):
        raise ConfigError(
            "with secure_sum=true or privacy= no client tells results on what it holds out: the server needs test images of its own"
        )
    return run, data


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuse to deploy validation, lies, reliance on a secure sum which is not there, or weights that would undo the masks."""
    how = experiment.privacy.made(privacy)
    if how is not None and how.unseen and not experiment.secure_sum:
        raise ConfigError(
            f"privacy={short(experiment.privacy.name)} hides clients in sums, and without a secure sum the server "
            "sees every upload: set secure_sum=true"
        )
    if experiment.secure_sum and experiment.weigh == "images":
        raise ConfigError(
            "secure_sum=true with weigh=images is for simulations: of clients with different numbers of images, which all know, "
            "sums tell who voted how: leave weigh= out, with which every client counts once"
        )
    if experiment.validation:
        raise ConfigError(
            f"validation={experiment.validation:g} divides samples that are in one place: choose settings with it in a simulation "
            "(bifl run, bifl tune), then deploy without it"
        )
    if experiment.attack.made(attack) is not None:
        raise ConfigError(
            f"attack={short(experiment.attack.name)} makes clients of a simulation lie: use bifl run, or leave it out"
        )


def _first_state(run: Run, data: Dataset) -> Public:
    """The public state before the first round, with the weights of the model that the run starts with, if any.

    Where only its digest is known the run has begun elsewhere, and its weights come from there.
    """
    start = run.experiment.start
    if not start or start.startswith("@"):
        return run.fresh
    return start_with(
        start, run.fresh, run.algorithm.at(1).forward, lambda forward: make_network(run.experiment, data.classes, forward=forward)
    )


def _remedy(chosen: Choice, misfit: Misfit) -> str:
    """The end of a sentence about a network: the parameter that would make it fit, or all that it has."""
    if misfit.parameter and chosen.parameters.get(misfit.parameter) == misfit.taken:
        return f": model.{misfit.parameter}={misfit.given}"
    values = [f"model.{key}={value}" for key, value in chosen.parameters.items()]
    return f"; {' and '.join(values)} can be changed" if values else ""


def fitting_network(experiment: Experiment, data: Dataset, kind: type[Network] = Network) -> Network:
    """The experiment's network, or a refusal if it cannot take the inputs or has nothing to code."""
    network = make_network(experiment, data.classes, kind)
    wanted = experiment.task.made(task).output(data.labels.shape[1:], data.classes)
    if misfit := network.misfit(example(data.form, 1), wanted):
        raise ConfigError(
            f"model '{short(experiment.model.name)}' does not take the inputs of dataset '{short(experiment.dataset.name)}', "
            f"{data.classes} {outputs_word(data)} of {shape_text(data)}: {misfit.reason}{_remedy(experiment.model, misfit)}"
        )
    if not network.layout.count:
        raise ConfigError(
            f"algorithm '{short(experiment.algorithm.name)}' finds nothing to code in model '{short(experiment.model.name)}': "
            "it codes trainable convolutions and linear layers (fttq only those between the first and the last), "
            f"and the model's trainable layers are {', '.join(real_layers(network)) or 'none'}"
        )
    return network


def deal(experiment: Experiment, data: Dataset) -> tuple[Sequence[Index], Index]:
    """The images of each client, and those that the server holds out."""
    algorithm = plain_algorithm(experiment)
    by = dealer(experiment.partition.name, experiment.partition.parameters)
    if not len(data.labels):
        raise ConfigError(f"dataset '{short(experiment.dataset.name)}' has no images here: it is for bifl server, whose clients do")
    samples = data.trained_on()
    held, dealt = (samples[part] for part in hold_out(len(samples), algorithm.validation, experiment.seed))
    if algorithm.central:
        return [dealt], held
    users = None if data.users is None else data.users[dealt]
    parts = split(by, groups_of(data.labels)[dealt], experiment.clients, experiment.seed, users)
    return parts.among(dealt) if isinstance(parts, Drawn) else [dealt[part] for part in parts], held


def cut_all(hands: Sequence[Index], share: float, seed: int) -> tuple[Sequence[Index], Sequence[Index]]:
    """What each client trains on, and what it holds out."""
    if isinstance(hands, Drawn) and not share:
        return hands, [np.zeros(0, np.int64)] * len(hands)  # one array for all
    if isinstance(hands, Drawn):
        raise ConfigError("partition=shared has no images that only one client sees, to hold out: take a dataset with a test set")
    parts, shards = zip(*(cut(hand, share, seed, number) for number, hand in enumerate(hands)), strict=True)
    return parts, shards


def cut(hand: Index, share: float, seed: int, number: int) -> tuple[Index, Index]:
    """What a client trains on, two images at least, and what it holds out."""
    order = stream(seed, 0, number, "holdout").permutation(len(hand))
    count = min(math.ceil(share * len(hand)), len(hand) - 2)
    return np.sort(hand[order[count:]]), np.sort(hand[order[:count]])


def hold_out(images: int, share: float, seed: int) -> tuple[Index, Index]:
    """A random share of the training images, for the server to judge by, and the rest, to be dealt out."""
    order = stream(seed, 0, None, "validation").permutation(images)
    count = math.ceil(share * images)
    return np.sort(order[:count]), np.sort(order[count:])


def load(experiment: Experiment) -> Dataset:
    """The experiment's data, with labels as its task takes them."""
    chosen = experiment.dataset
    if ":" in chosen.name:  # in a file of the user's
        return fitting(experiment, own_dataset(short(chosen.name), lambda: chosen.made(dataset)))
    return fitting(experiment, chosen.made(dataset))


def fitting(experiment: Experiment, data: Dataset) -> Dataset:
    """A dataset divided as the experiment wants it, with labels as its task takes them."""
    if experiment.validation and data.validation is None and len(data.labels):
        data = validated(data, experiment.validation)
    targets = experiment.task.made(task).targets
    try:
        (labels, outputs), (test_labels, _) = targets(data.labels, data.classes), targets(data.test_labels, data.classes)
    except DataError as error:
        raise DataError(f"dataset '{short(experiment.dataset.name)}': {error}") from error
    return data._replace(labels=labels, test_labels=test_labels, classes=outputs)


def wanted_alone(data: Dataset, network: Network, goal: Task) -> Dataset:
    """The data with those arrays beside the inputs that the network or the task takes."""
    needed = {*task_arguments(goal.loss), *task_arguments(goal.sums)}
    taken = {*network_arguments(network.module), *needed}
    if lacking := needed.difference(data.further):
        raise DataError(f"the task takes {' and '.join(sorted(lacking))} for every sample, and the data have no such array")
    further, tests = (
        {name: further_array(array, samples, f"the data's {name}") for name, array in part.items() if name in taken}
        for part, samples in ((data.further, len(data.inputs)), (data.test_further, len(data.test_inputs)))
    )
    return data._replace(further=further, test_further=tests)


def outputs_word(data: Dataset) -> str:
    """What a network's outputs are."""
    return "classes" if data.labels.ndim == 1 else "outputs"


class LastDataset:
    """The images that were asked for last, so that a command with several experiments on one dataset loads and divides it once."""

    def __init__(self) -> None:
        self._choice: tuple[Choice, float] | None = None
        self._data: Dataset | None = None
        self._loaded: Loaded | None = None

    def of(self, experiment: Experiment) -> Dataset:
        """The experiment's images."""
        choice = experiment.dataset, experiment.validation
        if self._data is None or self._choice != choice:
            self._data = self._loaded = None  # before the next is loaded: there may be no room for both
            self._choice, self._data = choice, load(experiment)
        return self._data

    def loaded(self, experiment: Experiment) -> Loaded:
        """What they are; told once."""
        data = self.of(experiment)
        self._loaded = self._loaded or fingerprint.loaded(data)
        return self._loaded
