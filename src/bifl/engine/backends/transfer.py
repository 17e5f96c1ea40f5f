"""Carries a run into another process of this machine, which simulates clients.

Its parts go by name. The other process imports the module that defines them, or runs the text of the user's Python file as it was
when this process ran it, and makes the run of the experiment's settings, as a node of a deployment does. Only the factories that no
module or file has (those of a notebook, of a script, of a function's body) are sent as code.

>>> from bifl.experiment.settings import Experiment
>>> from bifl.experiment.setup import build
>>> setup = build(Experiment(algorithm="fedavg"))
>>> loads(dumps(["anything", setup.run], setup.run, setup.data))[1].algorithm == setup.run.algorithm
True
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import cloudpickle

from bifl.data.inputs import Dataset
from bifl.experiment.run import Run, make_network, make_run
from bifl.experiment.settings import REGISTRIES
from bifl.privacy import simulated_dice
from bifl.registry import run_file, source_of

# what the other process must build; it is sent the images and who holds which
_KINDS = ("algorithm", "model", "task", "optimizer", "schedule", "augment", "robust", "attack", "privacy", "exchange")


def dumps(thing: object, run: Run, data: Dataset) -> bytes:
    """Pickle a thing; where it holds the run, it holds the one that the reader makes. Of the data only their form is sent."""
    factories = {kind: REGISTRIES[kind].factory(getattr(run.experiment, kind).name) for kind in _KINDS}
    sources = {kind: source for kind, factory in factories.items() if (source := source_of(factory.__module__)) is not None}
    files = {source.path: source.text for source in sources.values()}  # users' Python files, which the reader runs itself
    others = {kind: factory for kind, factory in factories.items() if kind not in sources}
    buffer = io.BytesIO()
    pickle.dump((run.experiment, data.without_samples(), files), buffer)
    _Pickler(buffer).dump(others)  # by name, so that the reader imports their modules, or as code
    pickler = pickle.Pickler(buffer)
    pickler.persistent_id = lambda value: "run" if value is run else None  # type: ignore[method-assign]
    pickler.dump(thing)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """The thing that `dumps` was given."""
    buffer = io.BytesIO(data)
    experiment, form, files = pickle.load(buffer)
    for path, text in files.items():
        run_file(path, text)
    for kind, factory in pickle.load(buffer).items():
        REGISTRIES[kind](factory)
    run = make_run(experiment, make_network(experiment, form.classes), form, simulated_dice)
    unpickler = pickle.Unpickler(buffer)
    unpickler.persistent_load = lambda name: run  # type: ignore[method-assign]
    return unpickler.load()


def _importable(factory: Callable[..., Any]) -> bool:
    """Whether another process that imports the factory's module gets this factory."""
    if factory.__module__ == "__main__":
        return False
    try:
        found = attrgetter(factory.__qualname__)(sys.modules[factory.__module__])
    except (AttributeError, KeyError):
        return False
    return found is factory


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends functions under `lru_cache` too: cloudpickle would only send their names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, functools._lru_cache_wrapper) and not _importable(value):
            return _cached, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached
