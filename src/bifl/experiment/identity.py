"""When two experiments are the same, and in what they differ.

>>> first, second = Experiment(seed=1), Experiment(seed=2, rounds=3, workers=4)
>>> identity(first) == identity(second), but_for(first, "seed") == but_for(second, "seed")
(False, True)
"""

from __future__ import annotations

from pathlib import PurePath

import numpy as np

from bifl.data.inputs import Dataset, further_text, kind_of
from bifl.experiment.choices import text_of
from bifl.experiment.declarations import NO_NUMBERS
from bifl.experiment.settings import REGISTRIES, SETTINGS, Experiment, pairs
from bifl.experiment.starting import digest_alone
from bifl.tasks import task


def identity(experiment: Experiment) -> Experiment:
    """The same for all experiments whose first rounds are the same, wherever their files lie."""
    same = experiment.changed(NO_NUMBERS | {"start": digest_alone(experiment.start)})
    return same.changed({"dataset.path": ""}) if "path" in same.dataset.parameters else same


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
    output = task.make(experiment.task.name, experiment.task.parameters).output(data.labels.shape[1:], data.classes)
    settings |= {"output": text_of(output)} if len(output) > 1 else {}
    settings |= {name: text_of(map(float, np.atleast_1d(scale))) for name, scale in scales.items()}
    return "\n".join(f"{key}={value}" for key, value in sorted(settings.items()))


def but_for(experiment: Experiment, *names: str) -> str:
    """The same for all experiments that are the same but for these settings."""
    same = identity(experiment)
    return repr([getattr(same, name) for name in SETTINGS if name not in names])
