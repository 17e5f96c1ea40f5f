"""Refuses settings that do not go together, by name. What each may be by itself is declared with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from bifl.errors import ConfigError
from bifl.experiment.declarations import Settings
from bifl.nn.optimizers import checked
from bifl.training.augmenting import SIGNATURE
from bifl.training.rates import rate_of


def check_training(experiment: Settings, made: Mapping[str, Any]) -> None:
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


def check_secure_sum(experiment: Settings) -> None:
    """Refuse a secure sum in which nobody could hide, or that cannot be computed here."""
    if not experiment.secure_sum:
        if experiment.colluders and experiment.privacy.name == "none":
            raise ConfigError(
                f"colluders={experiment.colluders} is about what a secure sum hides: set secure_sum=true, or leave it out"
            )
        return
    if experiment.robust.name != "none":
        raise ConfigError("secure_sum=true hides single uploads, which robust= must see: choose one of the two")
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
