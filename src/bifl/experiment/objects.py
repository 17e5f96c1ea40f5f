"""Objects instead of names, for notebooks: a network and arrays as `bifl.simulate(experiment, model=…, data=…)` takes them.

A network is registered under a name of its own: `given_`, what its class or function is called, and a number from the second on,
so that a cell can be edited and run again while older simulations keep theirs. Workers are sent it as code.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from bifl.data.arrays import checked, from_arrays
from bifl.data.datasets import dataset
from bifl.data.inputs import Dataset
from bifl.errors import ConfigError, DataError
from bifl.nn.models import model
from bifl.registry import GIVEN

Net = nn.Module | Callable[[int], nn.Module]
Data = Dataset | Mapping[str, Any] | Sequence[Any]
_ARRAYS = ("inputs", "labels", "users", "split")


def model_name(given: Net) -> str:
    """Register a network; its name."""
    if isinstance(given, nn.Module):
        kept = copy.deepcopy(given)  # as it is now, whatever becomes of the caller's

        def factory(classes: int) -> nn.Module:
            return copy.deepcopy(kept)

        name = type(given).__name__
    elif callable(given):

        def factory(classes: int) -> nn.Module:
            try:
                made = given(classes)
            except Exception as error:
                raise ConfigError(f"model fails for {classes} classes with {type(error).__name__}: {error}") from error
            if not isinstance(made, nn.Module):
                raise ConfigError(f"model must give an nn.Module for a number of classes, not a {type(made).__name__}")
            return made

        name = getattr(given, "__name__", "function").strip("<>")
    else:
        raise ConfigError(f"model must be an nn.Module or a function classes → nn.Module, not {given!r:.60}")
    names = (GIVEN + name + (f"_{number}" if number > 1 else "") for number in count(1))
    factory.__name__ = next(free for free in names if free not in model.names())
    factory.__doc__ = f"{name}, given as an object."
    model(factory)
    return factory.__name__


def dataset_of(given: Data) -> Dataset:
    """A dataset from arrays: (inputs, labels), perhaps users and split after them; or by the names that an .npz file has."""
    if "given_data" not in dataset.names():
        dataset(given_data)
    if isinstance(given, Dataset):
        return checked(given, "given_data")
    if not isinstance(given, Mapping):
        if not isinstance(given, tuple | list) or not 2 <= len(given) <= len(_ARRAYS):
            raise DataError(
                f"data must be arrays ({', '.join(_ARRAYS)}; the last two if wanted), a dictionary of these, or a Dataset"
            )
        given = dict(zip(_ARRAYS, given, strict=False))
    arrays = {str(name): np.asarray(values) for name, values in given.items() if values is not None}
    single = {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in arrays.items()}
    return from_arrays(single, Path("data"))


def given_data() -> Dataset:
    """What was given as data=."""
    raise DataError("this run's data was given as arrays: give it again, as bifl.simulate(…, data=…)")
