"""Experiments whose settings are each fine, and which make no sense together, or not in a deployment."""

from __future__ import annotations

from bifl.attacks import attack
from bifl.core.state import Public
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment
from bifl.privacy import privacy
from bifl.registry import short
from bifl.robust import refuse_misfits, robust


def refuse_rule(experiment: Experiment, public: Public) -> None:
    """Refuse a robust rule that makes no sense for what the algorithm uploads."""
    rule = robust.make(experiment.robust.name, experiment.robust.parameters)
    if rule is not None:
        refuse_misfits(short(experiment.robust.name), rule, experiment.build(), public)


def refuse_undeployable(experiment: Experiment) -> None:
    """Refuse to deploy clients that lie, that rely on a secure sum which is not there, or whose weights would undo the masks."""
    how = privacy.make(experiment.privacy.name, experiment.privacy.parameters)
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
    if attack.make(experiment.attack.name, experiment.attack.parameters) is not None:
        raise ConfigError(
            f"attack={short(experiment.attack.name)} makes clients of a simulation lie: use bifl run, or leave it out"
        )
