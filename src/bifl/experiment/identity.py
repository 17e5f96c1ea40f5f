"""When two experiments are the same, and in what they differ.

>>> first, second = Experiment(seed=1), Experiment(seed=2, rounds=3, workers=4)
>>> identity(first) == identity(second), but_for(first, "seed") == but_for(second, "seed")
(False, True)
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import PurePath

from bifl.experiment.settings import REGISTRIES, Experiment, pairs
from bifl.experiment.starting import digest_alone

NO_NUMBERS = {"rounds": 1, "workers": 0, "device": "auto"}  # of the rounds that are there, these change nothing


def identity(experiment: Experiment) -> Experiment:
    """The same for all experiments whose first rounds are the same, wherever their files lie."""
    same = experiment.changed(NO_NUMBERS | {"start": digest_alone(experiment.start)})
    return same.changed({"dataset.path": ""}) if "path" in same.dataset.parameters else same


def agreed(experiment: Experiment) -> str:
    """What all who take part in a run must agree on: the same text wherever their files lie, and whatever data they bring."""
    own = {"dataset", *NO_NUMBERS}
    settings = {key: value for key, value in pairs(experiment.words()).items() if key.partition(".")[0] not in own}
    settings["start"] = digest_alone(experiment.start)
    for kind in REGISTRIES.keys() & settings.keys():
        file, _, name = settings[kind].rpartition(":")
        settings[kind] = f"{PurePath(file).name}:{name}"
    return "\n".join(f"{key}={value}" for key, value in sorted(settings.items()))


def but_for(experiment: Experiment, *names: str) -> str:
    """The same for all experiments that are the same but for these settings."""
    same = identity(experiment)
    return repr([getattr(same, item.name) for item in fields(same) if item.name not in names])
