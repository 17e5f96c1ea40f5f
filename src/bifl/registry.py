"""Names for things a config can choose: a factory's keyword arguments *are* its config schema.

A name like `path/to/file.py:mine` is one from a user's own file. Looking a name up never runs that file: `Registry.load` does,
and is called only with names that the user typed or vouched for.

>>> shapes: Registry[str] = Registry("shape")
>>> @shapes
... def square(side: int = 2) -> str:
...     '''A square.'''
...     return f"{side}×{side}"
>>> shapes.parameters("square")
{'side': 2}
>>> shapes.make("square", {"side": 3})
'3×3'
>>> shapes.make("sqare", {})
Traceback (most recent call last):
bifl.errors.ConfigError: unknown shape 'sqare': did you mean 'square'? (known: square)
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import cloudpickle

from bifl.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an "unknown …" sentence: the nearest known word if there is one, then all of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return (f": did you mean '{close[0]}'?" if close else "") + f" (known: {', '.join(names)})"


def short(name: str) -> str:
    """What tables and folders call a choice: `path/to/file.py:mine` is `mine`."""
    return name.rpartition(":")[2]


def without_folder(name: str) -> str:
    """What a choice is called elsewhere, where folders mean nothing: `path/to/file.py:mine` is `file.py:mine`."""
    file, colon, own = name.rpartition(":")
    return f"{os.path.basename(file)}{colon}{own}"


def _module_name(file: Path) -> str:
    """Under which name a user's file, whose path is resolved, is kept among Python's modules."""
    return f"bifl_user_{zlib.crc32(bytes(file)):08x}_{file.stem}"


class Registry(Generic[T]):
    """Factories by name. Used as a decorator; the function's name, doc and keyword defaults are all there is to say."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}

    def __call__(self, factory: F) -> F:
        """Register a factory under its own name."""
        known = self._factories.get(factory.__name__)
        if known is not None and inspect.getsourcefile(known) != inspect.getsourcefile(factory):
            raise ConfigError(
                f"{self.kind} '{factory.__name__}' exists already, in {inspect.getsourcefile(known)}: choose another name"
            )
        self._factories[factory.__name__] = factory
        return factory

    def names(self) -> list[str]:
        """All names, as registered."""
        return list(self._factories)

    def spelled(self, name: str) -> str:
        """A name as it is kept: fashion-mnist is fashion_mnist, and a user's file is found from any folder and by every worker."""
        if ":" in name:
            file, _, own = name.rpartition(":")
            return f"{os.path.realpath(file)}:{own}"
        underscored = name.replace("-", "_")
        return underscored if underscored in self._factories else name

    def factory(self, name: str) -> Callable[..., T]:
        """The factory called `name`; one of a user's own file must have been loaded."""
        name = self.spelled(name)
        if ":" in name:
            if _module_name(Path(name.rpartition(":")[0])) not in sys.modules:
                raise ConfigError(f"{self.kind} '{name}' is in a Python file that was not loaded")
            name = short(name)
        if name not in self._factories:
            raise ConfigError(f"unknown {self.kind} '{name}'{nearest(name, self._factories)}")
        return self._factories[name]

    def parameters(self, name: str) -> dict[str, Any]:
        """What a config may set: the factory's keyword arguments, with their defaults."""
        factory = self.factory(name)
        hints = get_type_hints(factory)
        defaults = {}
        for argument in inspect.signature(factory).parameters.values():
            if argument.default is inspect.Parameter.empty:
                continue
            default = float(argument.default) if hints.get(argument.name) is float else argument.default
            if not isinstance(default, (bool, int, float, str)):
                raise ConfigError(
                    f"{self.kind} '{name}': the default of '{argument.name}' must be a number, a word, or true or false"
                )
            defaults[argument.name] = default
        return defaults

    def summary(self, name: str) -> str:
        """First line of the factory's docstring."""
        return (inspect.getdoc(self.factory(name)) or "").partition("\n")[0]

    def make(self, name: str, parameters: Mapping[str, Any], *given: Any) -> T:
        """Build the thing called `name` from the config's parameters, and from what is `given` besides."""
        return self.factory(name)(*given, **parameters)

    def load(self, name: str) -> None:
        """Run the Python file that a name like `path/to/file.py:mine` stands for; other names need nothing."""
        if ":" not in name:
            return
        path = self.spelled(name).rpartition(":")[0]
        file = Path(path)
        if not os.path.isfile(file):  # unlike Path's, it raises nothing
            raise ConfigError(f"{self.kind} file '{path}' does not exist")
        name = _module_name(file)
        if name in sys.modules:
            return
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{self.kind} file '{path}' is not a Python file")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        cloudpickle.register_pickle_by_value(module)  # worker processes have no such module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self.kind} file '{path}' fails to load: {type(error).__name__}: {error}") from error
