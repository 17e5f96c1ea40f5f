"""An experiment: everything that decides a run's numbers, frozen, and strict about every key.

>>> experiment = Experiment.of("mnist5k-iid", ["algorithm=biml", "algorithm.alpha=1.5", "rounds=3"])
>>> experiment.algorithm
Choice(name='biml', parameters={'alpha': 1.5})
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import bifl.algorithms  # noqa: F401  (registers the algorithms)
from bifl import exchanges
from bifl.attacks import attack
from bifl.core.algorithm import register
from bifl.data.datasets import dataset
from bifl.data.partitions import partition
from bifl.errors import ConfigError
from bifl.exchanges.exchange import exchange
from bifl.experiment.choices import Choice, Unloaded, chosen, text_of, typed
from bifl.experiment.composition import compose
from bifl.experiment.declarations import FORMER, SETTINGS, Given, Settings
from bifl.experiment.presets import PRESETS, pairs, preset_of
from bifl.experiment.starting import marked
from bifl.nn.models import model
from bifl.nn.optimizers import checked, optimizer
from bifl.privacy import privacy, secret_dice
from bifl.processes import cores
from bifl.registry import Registry, nearest, of_file
from bifl.robust import robust
from bifl.tasks import task
from bifl.training.augmenting import SIGNATURE, augment
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
        for name, registry in REGISTRIES.items():
            object.__setattr__(self, name, chosen(name, registry, getattr(self, name)))
        for name, declared in SETTINGS.items():
            if name not in REGISTRIES:
                object.__setattr__(self, name, typed(name, getattr(self, name), declared.default))
        object.__setattr__(self, "start", marked(self.start))
        for name, declared in SETTINGS.items():
            if refusal := declared.allowed.refusal(getattr(self, name)):
                raise ConfigError(f"{name} must be {refusal}")
        if not any(isinstance(choice, Unloaded) for choice in (self.algorithm, self.robust, self.attack, self.privacy)):
            compose(self, secret_dice)  # an algorithm refuses its parameters here, before anything was loaded
        if not isinstance(self.task, Unloaded):
            task.make(self.task.name, self.task.parameters)
        how = {kind: getattr(self, kind) for kind in ("optimizer", "schedule", "augment")}
        made = {kind: REGISTRIES[kind].make(*_parts(own)) for kind, own in how.items() if not isinstance(own, Unloaded)}
        _check_training(self, made)
        _check_secure_sum(self)

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


def _parts(choice: Choice) -> tuple[str, Mapping[str, Any]]:
    return choice.name, choice.parameters


# ---- settings that do not go together ------------------------------------------------------------------------------------


def _check_training(experiment: Experiment, made: Mapping[str, Any]) -> None:
    """Refuse rates, lengths and parts of the local training that make no sense; `made` are those parts that could be built."""
    if len(experiment.lr) not in (1, len(experiment.lr_steps) + 1):
        raise ConfigError(
            f"lr has {len(experiment.lr)} values for {len(experiment.lr_steps)} lr_steps: give one, or one more than lr_steps"
        )
    steps, epochs = experiment.local_steps, experiment.local_epochs
    if steps and epochs != 1:
        raise ConfigError(f"local_steps={steps} and local_epochs={epochs} are both given: one is enough")
    if "optimizer" in made:
        checked(experiment.optimizer.name, made["optimizer"])
    if "schedule" in made:
        rate_of(experiment.schedule.name, made["schedule"], 1, experiment.lr, experiment.lr_steps)
    if "augment" in made and not callable(made["augment"]):
        raise ConfigError(f"augment '{experiment.augment.name}' must return {SIGNATURE}, not a {type(made['augment']).__name__}")


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
    voters, least = math.ceil(experiment.participation * experiment.clients - 1e-9), 2 + experiment.colluders
    if voters < least:
        raise ConfigError(
            f"secure_sum=true with colluders={experiment.colluders} needs {least} clients a round or more, so that each has "
            f"somebody to hide among: clients={experiment.clients} with participation={experiment.participation:g} gives {voters}"
        )
