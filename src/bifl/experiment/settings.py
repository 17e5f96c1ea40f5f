"""An experiment: everything that decides a run's numbers, frozen, and strict about every key.

>>> experiment = Experiment.of("mnist5k-iid", ["algorithm=biml", "algorithm.alpha=1.5", "rounds=3"])
>>> experiment.algorithm
Choice(name='biml', parameters={'alpha': 1.5})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import bifl.algorithms  # noqa: F401  (registers the algorithms)
from bifl.attacks import attack
from bifl.core.algorithm import register
from bifl.data.datasets import dataset
from bifl.data.partitions import partition
from bifl.errors import ConfigError
from bifl.experiment.choices import Choice, Unloaded, chosen, typed
from bifl.experiment.composition import compose
from bifl.experiment.presets import PRESETS
from bifl.experiment.ranges import PRECISIONS, check_secure_sum, check_training, check_values, text_of
from bifl.experiment.starting import marked
from bifl.experiment.words import pairs, preset_of
from bifl.nn.models import model
from bifl.nn.optimizers import optimizer
from bifl.privacy import privacy, secret_dice
from bifl.processes import cores
from bifl.registry import Registry, nearest, of_file
from bifl.robust import robust
from bifl.tasks import task
from bifl.training.augmenting import augment
from bifl.training.rates import schedule

__all__ = ["PRECISIONS", "Choice", "Experiment", "Given", "of_words", "pairs", "preset_of"]

Given = Choice | str | Mapping[str, Any]
REGISTRIES: dict[str, Registry[Any]] = {
    "algorithm": register, "dataset": dataset, "partition": partition, "model": model, "task": task,
    "optimizer": optimizer, "schedule": schedule, "augment": augment,
    "robust": robust, "attack": attack, "privacy": privacy,
}  # fmt: skip


class Former(NamedTuple):
    """A setting that earlier versions had; their configs still name it."""

    default: Any  # with which it did nothing
    instead: str


FORMER = {"proximal": Former(0.0, "FedProx is an algorithm now, algorithm=fedprox algorithm.mu=0.01, or around=NAME another one")}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What to run. Choices may be given as a name, or as a mapping with `name` and parameters.

    Attributes:
        algorithm: what is sent and how it is used.
        dataset: which images.
        partition: which client holds which of them.
        model: which network.
        task: what it learns: `classification`, `regression`, `multilabel`, or one of a user's own.
        robust: the server's sum, so that a minority of clients that lie cannot steer it: `none`, `credibility`, `median`, …
        attack: what lying clients do, in a simulation: `none`, `flip`, `collude`, …
        privacy: how clients hide in the sum, with ε accounted: `none`, `poisson_binomial`, `gaussian` (docs/privacy.md).
        rounds: training → upload → broadcast, this many times.
        clients: M.
        participation: λ, the share of clients that upload in a round.
        idle: what the others do: `train` (the paper) or `sleep` (the cross-device standard).
        weigh: what a client counts for: its `images`, `equal`: once, or `auto`: once with `privacy=` and under a secure sum, since
            numbers of images would tell there who voted how; its images otherwise.
        seed: fixes everything else.
        optimizer: `adam`, `sgd`, `adamw`, or one of a user's own; fresh every round.
        lr: learning rates; one more than `lr_steps`, or one for all rounds.
        lr_steps: rounds after which the next rate applies.
        schedule: what is made of them: `steps`, `cosine`, or one of a user's own.
        batch: images per step.
        local_epochs: passes over the own images per round.
        local_steps: steps per round instead; 0 means epochs.
        clip: the largest norm of a step's gradient; 0 means any.
        augment: what becomes of inputs before a step: `none`, `shift_flip`, `noise`, or one of a user's own.
        start: a model file to begin with, `path`, or `path@digest` as it is kept; empty means the network's own initialisation.
        batchnorm: how running statistics become global ones: `recalibrate` pools exactly what clients measure of the broadcast
            network, in an exchange of its own, `average` what they saw in their own training; where a part of the clients votes
            and the others sleep (`idle=sleep`), it is always the latter: those who voted are gone by then.
        scores: γ and β of the class scores' norm: `trained`, or `fixed`, neither trained nor sent.
        holdout: share of its images that every client holds out for federated evaluation; 0 means none, or, where the dataset has
            no test images, a fifth.
        evaluate_every: rounds from one evaluation of the global model to the next; the last round of a run is evaluated too.
            Training does not depend on it.
        wire: `context` codes messages in what both ends know, `packed` spells every symbol out. Results do not depend on it.
        reals: real parameters on the wire: `short` (6 binary digits up, 10 down, see docs/wire-format.md) or `float32`.
        secure_sum: whether the server learns sums only, and nothing of one client's upload (docs/security.md).
        colluders: how many clients may be in league with the server before a secure sum tells it more.
        device: `cpu`, `cuda`, or `auto`: a GPU if there is one.
        workers: processes; 0 means one per core. Results do not depend on it.
    """

    algorithm: Choice = Choice("murmur")
    dataset: Choice = Choice("mnist5k")
    partition: Choice = Choice("iid")
    model: Choice = Choice("mnist_cnn")
    task: Choice = Choice("classification")
    robust: Choice = Choice("none")
    attack: Choice = Choice("none")
    privacy: Choice = Choice("none")
    rounds: int = 15
    clients: int = 10
    participation: float = 1.0
    idle: str = "train"
    weigh: str = "auto"
    seed: int = 0
    optimizer: Choice = Choice("adam")
    lr: tuple[float, ...] = (0.005, 0.002, 0.001)
    lr_steps: tuple[int, ...] = (30, 60)
    schedule: Choice = Choice("steps")
    batch: int = 64
    local_epochs: int = 1
    local_steps: int = 0
    clip: float = 0.0
    augment: Choice = Choice("none")
    start: str = ""
    batchnorm: str = "recalibrate"
    scores: str = "trained"
    holdout: float = 0.0
    evaluate_every: int = 1
    wire: str = "context"
    reals: str = "short"
    secure_sum: bool = False
    colluders: int = 0
    device: str = "auto"
    workers: int = 0

    if TYPE_CHECKING:  # what may be given, as opposed to what is kept

        def __init__(
            self, *, algorithm: Given = ..., dataset: Given = ..., partition: Given = ..., model: Given = ..., task: Given = ...,
            robust: Given = ..., attack: Given = ..., privacy: Given = ...,
            rounds: int = ..., clients: int = ..., participation: float = ..., idle: str = ..., weigh: str = ..., seed: int = ...,
            optimizer: Given = ..., lr: float | Sequence[float] = ..., lr_steps: int | Sequence[int] = ..., schedule: Given = ...,
            batch: int = ..., local_epochs: int = ..., local_steps: int = ..., clip: float = ...,
            augment: Given = ..., start: str = ..., batchnorm: str = ..., scores: str = ..., holdout: float = ...,
            evaluate_every: int = ..., wire: str = ..., reals: str = ..., secure_sum: bool = ..., colluders: int = ...,
            device: str = ..., workers: int = ...,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        for name, registry in REGISTRIES.items():
            object.__setattr__(self, name, chosen(name, registry, getattr(self, name)))
        for item in fields(self):
            if item.name not in REGISTRIES:
                object.__setattr__(self, item.name, typed(item.name, getattr(self, item.name), item.default))
        object.__setattr__(self, "start", marked(self.start))
        check_values(self)
        if not any(isinstance(choice, Unloaded) for choice in (self.algorithm, self.robust, self.attack, self.privacy)):
            compose(self, secret_dice)  # an algorithm refuses its parameters here, before anything was loaded
        if not isinstance(self.task, Unloaded):
            task.make(self.task.name, self.task.parameters)
        how = {kind: getattr(self, kind) for kind in ("optimizer", "schedule", "augment")}
        made = {kind: REGISTRIES[kind].make(*_parts(own)) for kind, own in how.items() if not isinstance(own, Unloaded)}
        check_training(self, made)
        check_secure_sum(self)

    @classmethod
    def of(cls, preset: str | None = None, overrides: Iterable[str] = (), **settings: Any) -> Experiment:
        """A preset with changes.

        Args:
            preset: a name from `bifl list`; none means the defaults.
            overrides: `key=value` texts, as on the command line.
            settings: the same as keyword arguments: `rounds=3`, `algorithm={"name": "biml", "alpha": 1.5}`.
        """
        if preset is not None and preset not in PRESETS:
            raise ConfigError(f"unknown preset '{preset}'{nearest(preset, PRESETS)}")
        return cls().changed(PRESETS[preset].settings if preset else {}).changed(pairs(overrides)).changed(settings)

    def changed(self, settings: Mapping[str, Any]) -> Experiment:
        """A copy with flat `key` or `choice.parameter` settings, texts allowed."""
        plain: dict[str, Any] = {}
        choices: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            head, _, parameter = key.partition(".")
            known = [item.name for item in fields(self)]
            if head not in known or (parameter and head not in REGISTRIES):
                if key in FORMER:
                    raise ConfigError(f"'{key}' is no setting any more: {FORMER[key].instead}")
                owner = self._owner(key)
                raise ConfigError(f"unknown key '{key}'" + (f": did you mean '{owner}.{key}'?" if owner else nearest(key, known)))
            if head not in REGISTRIES or isinstance(value, Unloaded):
                plain[key] = value
            elif isinstance(value, Choice):
                choices.setdefault(head, {}).update(value.parameters, name=value.name)
            elif isinstance(value, Mapping):
                choices.setdefault(head, {}).update(value)
            else:
                choices.setdefault(head, {})[parameter or "name"] = value
        for head, changes in choices.items():
            old: Choice = getattr(self, head)
            name = str(changes.pop("name", old.name))
            plain[head] = replace(old, parameters={**old.parameters, **changes}) if name == old.name else Choice(name, changes)
        return replace(self, **plain)

    def _owner(self, parameter: str) -> str | None:
        """The key whose choice has such a parameter, or could have it if it were another; None where there is none."""
        chosen = [kind for kind in REGISTRIES if parameter in getattr(self, kind).parameters]
        others = (
            kind for kind, registry in REGISTRIES.items() for name in registry.names() if parameter in registry.parameters(name)
        )
        return chosen[0] if chosen else next(others, None)

    def tells_results(self) -> bool:
        """Whether each client tells how it fares: its training loss, and results on what it holds out.

        Not where nothing but sums may be known of clients, or nothing that is not accounted: such numbers are of one client.
        """
        return not self.secure_sum and self.privacy.name == "none"

    def processes(self) -> int:
        """How many worker processes to use."""
        return min(self.workers or cores(), self.clients)

    def flat(self) -> dict[str, Any]:
        """The whole experiment by the names that the command line has for its settings."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in REGISTRIES}
        for name in REGISTRIES:
            choice: Choice = getattr(self, name)
            plain |= {name: choice.name} | {f"{name}.{key}": value for key, value in choice.parameters.items()}
        return plain

    def words(self) -> list[str]:
        """The same as `key=value` texts: `Experiment.of(None, words)` is this one again."""
        return [f"{key}={text_of(value) if isinstance(value, tuple) else value}" for key, value in self.flat().items()]

    def python_files(self) -> list[str]:
        """The users' Python files that its choices come from."""
        files = [of_file(getattr(self, kind).name) for kind in REGISTRIES]
        return list(dict.fromkeys(file for file in files if file))


def of_words(words: Iterable[str]) -> Experiment:
    """An experiment from the words of a command line: perhaps a preset, and `key=value` texts."""
    preset, overrides = preset_of(words)
    return Experiment.of(preset, overrides)


def _parts(choice: Choice) -> tuple[str, Mapping[str, Any]]:
    return choice.name, choice.parameters
