"""Which values the settings of an experiment may have, each by itself or with its neighbours; anything else is refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bifl.codec.reals import EXACT, SHORT
from bifl.errors import ConfigError
from bifl.nn.optimizers import checked
from bifl.nn.scores import SCORES
from bifl.training.augmenting import SIGNATURE
from bifl.training.rates import rate_of

if TYPE_CHECKING:
    from bifl.experiment.settings import Experiment

RANGES = {  # the upper ends keep a config from asking for any amount of memory
    "rounds": (1, 10**9), "clients": (1, 10**6), "seed": (0, 2**63 - 1),
    "batch": (2, 10**9), "local_epochs": (1, 10**9), "local_steps": (0, 10**9), "workers": (0, 4096), "colluders": (0, 10**6),
    "evaluate_every": (1, 10**9),
}  # fmt: skip
WEIGHTS = ("auto", "images", "equal")
IDLE = ("train", "sleep")
BATCHNORM = ("recalibrate", "average")
DEVICES = ("auto", "cpu", "cuda")
WIRES = ("context", "packed")
PRECISIONS = {"short": SHORT, "float32": EXACT}


def check_values(experiment: Experiment) -> None:
    """Refuse numbers out of range, and words that mean nothing."""
    for name, (least, most) in RANGES.items():
        if getattr(experiment, name) < least:
            raise ConfigError(f"{name} must be {least} or more, not {getattr(experiment, name)}")
        if getattr(experiment, name) > most:
            raise ConfigError(f"{name} must be at most {most:,}, not {getattr(experiment, name):.3g}")
    if not 0 < experiment.participation <= 1:
        raise ConfigError(f"participation must be greater than 0 and at most 1, not {experiment.participation}")
    if not 0 <= experiment.holdout < 1:
        raise ConfigError(f"holdout must be a share of each client's images, at least 0 and below 1, not {experiment.holdout}")
    choices = {
        "weigh": WEIGHTS, "idle": IDLE, "batchnorm": BATCHNORM, "scores": SCORES, "wire": WIRES, "reals": PRECISIONS,
        "device": DEVICES,
    }  # fmt: skip
    for name, allowed in choices.items():
        if getattr(experiment, name) not in allowed:
            raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not '{getattr(experiment, name)}'")


def check_training(experiment: Experiment, made: Mapping[str, Any]) -> None:
    """Refuse rates, lengths and parts of the local training that make no sense; `made` are those parts that could be built."""
    if not experiment.lr or not all(0 < rate < math.inf for rate in experiment.lr):
        raise ConfigError(f"lr must be one or more positive numbers, not {text_of(experiment.lr)}")
    if len(experiment.lr) not in (1, len(experiment.lr_steps) + 1):
        raise ConfigError(
            f"lr has {len(experiment.lr)} values for {len(experiment.lr_steps)} lr_steps: give one, or one more than lr_steps"
        )
    if list(experiment.lr_steps) != sorted(set(experiment.lr_steps)) or min(experiment.lr_steps, default=1) < 1:
        raise ConfigError(f"lr_steps must be rising round numbers, not {text_of(experiment.lr_steps)}")
    steps, epochs = experiment.local_steps, experiment.local_epochs
    if steps and epochs != 1:
        raise ConfigError(f"local_steps={steps} and local_epochs={epochs} are both given: one is enough")
    if not 0 <= experiment.clip < math.inf:
        raise ConfigError(f"clip must be 0 or more, not {experiment.clip}")
    if "optimizer" in made:
        checked(experiment.optimizer.name, made["optimizer"])
    if "schedule" in made:
        rate_of(experiment.schedule.name, made["schedule"], 1, experiment.lr, experiment.lr_steps)
    if "augment" in made and not callable(made["augment"]):
        raise ConfigError(f"augment '{experiment.augment.name}' must return {SIGNATURE}, not a {type(made['augment']).__name__}")


def check_secure_sum(experiment: Experiment) -> None:
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


def text_of(values: Iterable[object]) -> str:
    """Several values, as a config has them."""
    return ",".join(map(str, values))
