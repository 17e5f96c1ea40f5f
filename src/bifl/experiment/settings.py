"""An experiment: everything that decides a run's numbers, frozen, and strict about every key.

>>> experiment = Experiment.of("mnist5k-iid", ["algorithm=biml", "algorithm.alpha=1.5", "rounds=3"])
>>> experiment.algorithm
Choice(name='biml', parameters={'alpha': 1.5})
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

import bifl.algorithms  # noqa: F401  (registers the algorithms)
from bifl import exchanges
from bifl.attacks import attack, attacked, liars
from bifl.core.algorithm import Algorithms, register, with_name
from bifl.core.sums import Weighing
from bifl.data.datasets import dataset
from bifl.data.inputs import Dataset, further_text, kind_of
from bifl.data.partitions import partition
from bifl.errors import ConfigError
from bifl.exchanges.exchange import exchange
from bifl.experiment.declarations import FORMER, NO_NUMBERS, SETTINGS, Choice, Given, Settings, Unloaded, chosen, text_of, typed
from bifl.experiment.presets import PRESETS, pairs, preset_of
from bifl.experiment.starting import digest_alone, marked
from bifl.nn.models import model
from bifl.nn.optimizers import checked, optimizer
from bifl.privacy import Crowd, Private, check_private, privacy, refuse_unprivate, secret_dice
from bifl.privacy.dice import Dice
from bifl.processes import cores
from bifl.registry import Registry, nearest, of_file, short
from bifl.robust import RobustSum, refuse_sum, robust
from bifl.tasks import task
from bifl.training.local import SIGNATURE, Plan, at_rates, augment
from bifl.training.rates import rate_of, schedule

__all__ = ["SETTINGS", "Choice", "Experiment", "Given", "of_words", "pairs", "preset_of"]

exchanges.register_all()
REGISTRIES: dict[str, Registry[Any]] = {
    "algorithm": register, "dataset": dataset, "partition": partition, "model": model, "task": task,
    "robust": robust, "attack": attack, "privacy": privacy, "exchange": exchange,
    "optimizer": optimizer, "schedule": schedule, "augment": augment,
}  # fmt: skip


class Experiment(Settings):
    """What to run. Choices may be given as a name, or as a mapping with `name` and parameters."""

    def __post_init__(self) -> None:
        for name, declared in SETTINGS.items():
            given = getattr(self, name)
            kept = chosen(name, REGISTRIES[name], given) if name in REGISTRIES else typed(name, given, declared.default)
            object.__setattr__(self, name, kept)
        object.__setattr__(self, "start", marked(self.start))
        for name, declared in SETTINGS.items():
            if refusal := declared.allowed.refusal(getattr(self, name)):
                raise ConfigError(f"{name} must be {refusal}")
        if self._loaded("algorithm", "robust", "attack", "privacy"):
            compose(self, secret_dice)  # an algorithm refuses its parameters here, before anything was loaded
        if self._loaded("task"):
            self.task.made(task)
        _check_lengths(self)
        if self._loaded("optimizer", "schedule", "augment"):
            plan_of(self)(1)
        _check_secure_sum(self)

    def _loaded(self, *kinds: str) -> bool:
        """Whether all of these choices can be used, not only shown."""
        return not any(isinstance(getattr(self, kind), Unloaded) for kind in kinds)

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
            if head not in SETTINGS or (parameter and head not in REGISTRIES):
                if key in FORMER:
                    raise ConfigError(f"'{key}' is no setting any more: {FORMER[key].instead}")
                owner = self._owner(key)
                hint = f": did you mean '{owner}.{key}'?" if owner else nearest(key, SETTINGS)
                raise ConfigError(f"unknown key '{key}'{hint}")
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
        present = [kind for kind in REGISTRIES if parameter in getattr(self, kind).parameters]
        others = (
            kind for kind, registry in REGISTRIES.items() for name in registry.names() if parameter in registry.parameters(name)
        )
        return present[0] if present else next(others, None)

    def tells_results(self) -> bool:
        """Whether each client tells how it fares: its training loss, and results on what it holds out.

        Not where nothing but sums may be known of clients, or nothing that is not accounted: such numbers are of one client.
        """
        return not self.secure_sum and self.privacy.name == "none"

    def voters(self, clients: int | None = None) -> int:
        """How many clients are drawn to upload in a round, of so many or of all: ⌈λM⌉."""
        share = self.participation * (self.clients if clients is None else clients)
        return max(1, math.ceil(share - 1e-9))  # 0.07·100 is 7, not 7.000000000000001

    def processes(self) -> int:
        """How many worker processes to use."""
        return min(self.workers or cores(), self.clients)

    def flat(self) -> dict[str, Any]:
        """The whole experiment by the names that the command line has for its settings."""
        plain = {name: getattr(self, name) for name in SETTINGS if name not in REGISTRIES}
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


Experiment.__doc__ = "\n".join(
    [f"{Experiment.__doc__}\n", "Attributes:", *(f"    {name}: {declared.help}." for name, declared in SETTINGS.items())]
)


def of_words(words: Iterable[str]) -> Experiment:
    """An experiment from the words of a command line: perhaps a preset, and `key=value` texts."""
    preset, overrides = preset_of(words)
    return Experiment.of(preset, overrides)


# ---- what the settings make of the algorithm ------------------------------------------------------------------------------


class Composition(NamedTuple):
    """An algorithm, and what the settings put around it: who counts for what, with which sum, in which privacy, and who lies."""

    algorithm: Algorithms
    weighing: Weighing
    robust: RobustSum | None
    privacy: Private | None


def compose(experiment: Experiment, dice: Dice) -> Composition:
    """The parts that an experiment names; `dice` draw private noise."""
    algorithm = plain_algorithm(experiment)
    rule = experiment.robust.made(robust)
    if rule is not None:
        refuse_sum(algorithm)
    private = _private(experiment, algorithm, dice)
    if private is not None:
        # the same noise must not be told of two updates that differ by what a server made the client remember
        algorithm = algorithm.map(lambda part: replace(part, keeps=()))
    lies = experiment.attack.made(attack)
    if lies is not None:
        algorithm = attacked(algorithm, lies, liars(experiment.seed, experiment.clients, lies.share))
    protected = None if rule is None else RobustSum(short(experiment.robust.name), rule)
    return Composition(algorithm, _weighing(experiment, algorithm), protected, private)


def plain_algorithm(experiment: Experiment) -> Algorithms:
    """The algorithm alone, as its author wrote it."""
    return with_name(experiment.algorithm.made(register), short(experiment.algorithm.name))


def _private(experiment: Experiment, algorithm: Algorithms, dice: Dice) -> Private | None:
    how = experiment.privacy.made(privacy)
    if how is None:
        return None
    check_private(experiment.batchnorm, experiment.holdout, experiment.attack.name)
    refuse_unprivate(algorithm, how, experiment.clients)
    if experiment.robust.name != "none":
        raise ConfigError("privacy= accounts for a plain sum, which robust= replaces: choose one of the two")
    return Private(how, Crowd(experiment.clients, hidden=not experiment.secure_sum, colluders=experiment.colluders), dice)


def _weighing(experiment: Experiment, algorithms: Algorithms) -> Weighing:
    """What a client counts for.

    With `auto` it counts once where the server keeps the mean of what clients remember (`Algorithm.mirrors`), and under a secure
    sum: all know each other's number of samples, and of ballots the numbers of those who voted for a weight often add up to its
    sum in one way only. Floats are no better: after one step of Adam they are ballots too.
    """
    if experiment.privacy.name != "none":
        if experiment.weigh == "images":
            raise ConfigError("with privacy= every client counts once, and its number of images is not told: leave weigh= out")
        return Weighing.UNTOLD
    mirrors = [part.name for part in algorithms.parts if part.mirrors]
    if mirrors and experiment.weigh == "images":
        raise ConfigError(
            f"the server of algorithm '{mirrors[0]}' keeps the mean of what clients remember, in which every client counts once: "
            "leave weigh= out"
        )
    once = experiment.weigh == "equal" or (experiment.weigh == "auto" and (experiment.secure_sum or mirrors))
    return Weighing.ONCE if once else Weighing.SAMPLES


# ---- what they make of the local training ---------------------------------------------------------------------------------


def plan_of(experiment: Experiment) -> Callable[[int], Plan]:
    """Round → how clients train in it."""
    steps = checked(experiment.optimizer.name, experiment.optimizer.made(optimizer))
    make_rate, change = experiment.schedule.made(schedule), experiment.augment.made(augment)
    if not callable(change):
        raise ConfigError(f"augment '{experiment.augment.name}' must return {SIGNATURE}, not a {type(change).__name__}")
    first = Plan(
        steps, experiment.lr[0], experiment.batch, experiment.local_epochs, experiment.seed,
        steps=experiment.local_steps, clip=experiment.clip, augment=change,
    )  # fmt: skip
    return at_rates(first, partial(rate_of, experiment.schedule.name, make_rate, lr=experiment.lr, lr_steps=experiment.lr_steps))


# ---- settings that do not go together ------------------------------------------------------------------------------------


def _check_lengths(experiment: Experiment) -> None:
    """Refuse numbers of rates and of steps that make no sense."""
    if len(experiment.lr) not in (1, len(experiment.lr_steps) + 1):
        raise ConfigError(
            f"lr has {len(experiment.lr)} values for {len(experiment.lr_steps)} lr_steps: give one, or one more than lr_steps"
        )
    steps, epochs = experiment.local_steps, experiment.local_epochs
    if steps and epochs != 1:
        raise ConfigError(f"local_steps={steps} and local_epochs={epochs} are both given: one is enough")


def _check_secure_sum(experiment: Experiment) -> None:
    """Refuse a secure sum in which nobody could hide, or that cannot be computed here."""
    if not experiment.secure_sum:
        if experiment.colluders and experiment.privacy.name == "none":
            raise ConfigError(
                f"colluders={experiment.colluders} is about what a secure sum hides: set secure_sum=true, or leave it out"
            )
        return
    if experiment.robust.name != "none":
        raise ConfigError("secure_sum=true hides single uploads, which robust= must see: choose one of the two")
    if experiment.reals in ("byte", "sign"):
        raise ConfigError(
            f"reals={experiment.reals} shortens single uploads, and with secure_sum=true masked numbers have their full length: "
            "take reals=short"
        )
    if experiment.attack.name != "none":
        raise ConfigError("secure_sum=true does not go with attack=: clients bound their own uploads here, as no real liar would")
    if experiment.holdout:
        raise ConfigError(
            "with secure_sum=true no client tells results on what it holds out: set holdout=0, with which the server's test images "
            f"are evaluated on, not {experiment.holdout:g}"
        )
    for module in ("cryptography", "Crypto"):
        if find_spec(module) is None:
            raise ConfigError("secure_sum=true needs cryptography and pycryptodome: pip install 'bifl[secure]'")
    voters, least = experiment.voters(), 2 + experiment.colluders
    if voters < least:
        raise ConfigError(
            f"secure_sum=true with colluders={experiment.colluders} needs {least} clients a round or more, so that each has "
            f"somebody to hide among: clients={experiment.clients} with participation={experiment.participation:g} gives {voters}"
        )


# ---- when two experiments are the same -----------------------------------------------------------------------------------


def identity(experiment: Experiment) -> Experiment:
    """The same for all experiments whose first rounds are the same, wherever their files lie."""
    same = experiment.changed(NO_NUMBERS | {"start": digest_alone(experiment.start)})
    return same.changed({"dataset.path": ""}) if "path" in same.dataset.parameters else same


_DECISIVE = ("algorithm", "dataset", "partition", "model")  # in every checksum, whatever they are
_BY_NAME = ("optimizer", "schedule", "augment")


def checksum(experiment: Experiment) -> str:
    """Eight letters that say which experiment it is, whatever its length.

    Of the first choices, and of those other settings that are not the usual ones: a new key with its default alters nothing.
    """
    same, usual = identity(experiment), Experiment()
    values = {name: getattr(same, name) for name in SETTINGS}
    decisive = {key: _known_as(key, value) for key, value in values.items() if key in _DECISIVE or value != getattr(usual, key)}
    decisive["rounds"] = 1  # stands in all names, whatever it is
    return hashlib.sha256(repr(sorted(decisive.items())).encode()).hexdigest()[:8]


def _known_as(key: str, value: Any) -> Any:
    """An optimiser with its usual parameters is its name alone, as it was before it had any."""
    usual = key in _BY_NAME and not of_file(value.name) and value.parameters == REGISTRIES[key].parameters(value.name)
    return value.name if usual else value


def agreed(experiment: Experiment, data: Dataset) -> str:
    """What all who take part in a run must agree on: the same text wherever their files lie, and whatever inputs they bring.

    How inputs are normalised is part of it: a server that told others another deviation would know what they learn of zeros.
    """
    agreed = {name for name, declared in SETTINGS.items() if declared.agreed and declared.changes_numbers}
    settings = {key: value for key, value in pairs(experiment.words()).items() if key.partition(".")[0] in agreed}
    settings["start"] = digest_alone(experiment.start)
    for kind in REGISTRIES.keys() & settings.keys():
        file, _, name = settings[kind].rpartition(":")
        settings[kind] = f"{PurePath(file).name}:{name}"
    scales = {"mean": data.mean, "std": data.std}
    settings |= {"classes": str(data.classes), "shape": text_of(data.inputs.shape[1:]), "kind": kind_of(data.inputs)}
    settings |= {"further": further_text(data.form.further)} if data.further else {}
    output = experiment.task.made(task).output(data.labels.shape[1:], data.classes)
    settings |= {"output": text_of(output)} if len(output) > 1 else {}
    settings |= {name: text_of(map(float, np.atleast_1d(scale))) for name, scale in scales.items()}
    return "\n".join(f"{key}={value}" for key, value in sorted(settings.items()))


def but_for(experiment: Experiment, *names: str) -> str:
    """The same for all experiments that are the same but for these settings."""
    same = identity(experiment)
    return repr([getattr(same, name) for name in SETTINGS if name not in names])
