"""`bifl eval`: a trained model, tested on its run's own dataset, on a file, on a dataset by name, or on what clients hold out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from bifl.cli import ask_command
from bifl.data.arrays import TABLES
from bifl.data.datasets import dataset
from bifl.data.inputs import Dataset
from bifl.errors import ConfigError, DataError, RunError
from bifl.experiment import config_file
from bifl.experiment.model import Model
from bifl.experiment.presets import pairs
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import load
from bifl.files import size
from bifl.registry import short, without_folder
from bifl.runs.comparison import PLAN
from bifl.runs.folder import CLIENTS, CONFIG, MODEL
from bifl.show.output import console, counted, say


class Tested(NamedTuple):
    """What a model is tested on."""

    data: Dataset
    name: str


def evaluate(options: argparse.Namespace) -> int:
    """Metrics and size of a trained model."""
    path = _model_file(options.model)
    if options.clients or options.listen:
        return ask_command.evaluate_clients(options, path)
    words = [word for word in options.settings if "=" not in word]
    if len(words) > 1:
        raise ConfigError(f"only one dataset can be given, not {' and '.join(words)}; its parameters are key=value")
    model = Model.read(path, options.trust)
    settings = pairs(word for word in options.settings if "=" in word)
    tested = _given(words[0], settings) if words else _of_run(options.model, settings, options.trust)
    metrics, loss = model.metrics(tested.data)
    first, *others = metrics.items()
    results = [f"{first[0]} {first[1]:.2%}", *(f"{name} {value:.4g}" for name, value in others), f"loss {loss:.4f}"]
    weights, reals = len(model.message.update.symbols), len(model.message.real)
    network = f"{without_folder(model.network.name)}, {model.forward.name} weights"
    out = console()
    say(out, f"{path}: {network}, trained for {counted(model.message.round, 'round')}")
    say(out, f"{', '.join(results)} on {tested.name}")
    numbers = f"{weights:,} {model.message.update.alphabet.name} weights and {reals:,} real numbers"
    say(out, f"size {size(path.stat().st_size)}: {numbers}")
    return 0


def _model_file(path: Path) -> Path:
    """The model of a run's folder; any other path is a model file itself.

    Raises:
        RunError: the folder has none.
    """
    if not path.is_dir():
        return path
    if (path / MODEL).is_file():
        return path / MODEL
    if (path / PLAN).is_file():
        runs = ", ".join(str(config.parent) for config in sorted(path.glob(f"*/{CONFIG}")))
        raise RunError(f"'{path}' is a comparison: give one of its runs ({runs})")
    if (path / CONFIG).is_file():
        raise RunError(f"'{path}' has no model yet: finish the run with bifl run --resume {path}")
    raise RunError(f"'{path}' holds no run: there is no {CONFIG} in it")


def _of_run(path: Path, settings: dict[str, str], trust: bool) -> Tested:
    """The dataset of the run that a folder, or a model file in one, belongs to."""
    folder = path if path.is_dir() else path.parent
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"say what to test '{path}' on, such as mnist5k or mine.npz: it lies in no run's folder")
    experiment = config_file.read(folder / CONFIG, trust).changed({f"dataset.{key}": value for key, value in settings.items()})
    data, name = load(experiment), short(experiment.dataset.name)
    if not len(data.test_labels):
        raise DataError(
            f"{name}, the dataset of '{folder}', has no test samples; how the clients' models do on their held-out samples "
            f"is in '{folder / CLIENTS}'; to test it on others, name a file: bifl eval {folder} FILE.npz"
        )
    return _its_tests(data, name)


def _given(name: str, settings: dict[str, str]) -> Tested:
    """A dataset by name, or a file: where that has no test samples, all of it is tested on."""
    path = Path(name)
    is_file = name.endswith(".npz") or path.is_dir() or (path.suffix.lower() in TABLES and path.is_file())
    choice = Experiment(dataset=({"name": "npz", "path": name} if is_file else {"name": name}) | settings).dataset
    data = dataset.make(choice.name, choice.parameters)
    if not is_file or len(data.test_labels):
        return _its_tests(data, path.name if is_file else short(name))
    whole = data._replace(test_inputs=data.inputs, test_labels=data.labels)
    return Tested(whole, f"all {counted(len(data.labels), 'sample')} of {path.name}, which names none for tests")


def _its_tests(data: Dataset, name: str) -> Tested:
    return Tested(data, f"{name}'s {counted(len(data.test_labels), 'test sample')}")
