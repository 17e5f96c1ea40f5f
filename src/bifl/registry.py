"""Names for things a config can choose: a factory's keyword arguments *are* its config schema.

A name like `path/to/file.py:mine` is one from a user's own file; `path/to/file.py` alone is the only one in it. Looking a name up
never runs that file: `Registry.load` does, and is called only with names that the user typed or vouched for.

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
bifl.errors.ConfigError: unknown shape 'sqare': did you mean 'square'?
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from bifl.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
GIVEN = "given_"  # names of objects that have none of their own begin with it: nobody types them
_SOURCE = "__bifl_source__"  # where a user's module keeps its file as it was run


def nearest(word: str, words: Iterable[str]) -> str:
    """The end of an "unknown …" sentence: the nearest known word; all of them if none is near."""
    names = list(words)
    near = closest(word, names)
    return f": did you mean '{near}'?" if near else f" (known: {', '.join(names)})"


def closest(word: str, words: Iterable[str]) -> str | None:
    """The known word that somebody meant, perhaps; None if none is near."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1)), None)


def short(name: str) -> str:
    """What tables and folders call a choice: `path/to/file.py:mine` is `mine`."""
    return name.rpartition(":")[2]


def of_file(name: str) -> str:
    """The Python file that a name is of, as `path/to/file.py:mine` or `path/to/file.py`; empty for every other name."""
    return name if name.endswith(".py") and ":" not in name else name.rpartition(":")[0]


def without_folder(name: str) -> str:
    """What a choice is called elsewhere, where folders mean nothing: `path/to/file.py:mine` is `file.py:mine`."""
    file = of_file(name)
    return os.path.basename(file) + name[len(file) :]


def _module_name(file: Path) -> str:
    """Under which name a user's file, whose path is resolved, is kept among Python's modules."""
    return f"bifl_user_{zlib.crc32(bytes(file)):08x}_{file.stem}"


def _same_home(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether the same module, notebook or file defined both. A notebook's cells have a file name each, and one module."""
    return one.__module__ == other.__module__ or (_file(one) == _file(other) and not _file(one).startswith("<"))


def _file(factory: Callable[..., Any]) -> str:
    """The file that defines a factory, or its module where there is none."""
    code = getattr(inspect.unwrap(factory), "__code__", None)
    return code.co_filename if code else factory.__module__


class Source(NamedTuple):
    """A user's Python file, as it was when it was run."""

    path: Path
    text: bytes


def source_of(module: str) -> Source | None:
    """The user's Python file that was run as a module of this name; None for every other module."""
    return getattr(sys.modules.get(module), _SOURCE, None)


def run_file(path: Path, text: bytes) -> None:
    """Run a user's Python file, whose path is resolved, so that its things are registered; again only if the text is another."""
    name, source = _module_name(path), Source(path, text)
    if source_of(name) == source:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise ConfigError(f"'{path}' is not a Python file: its name must end in .py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    vars(module)[_SOURCE] = source
    try:
        exec(compile(text, path, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"Python file '{path}' fails to load: {type(error).__name__}: {error}") from error


@lru_cache(1024)  # reading a signature takes a millisecond, and settings are checked often
def defaults(factory: Callable[..., Any], called: str) -> Mapping[str, Any]:
    """A factory's keyword arguments, with their defaults, which a config must be able to spell."""
    hints = get_type_hints(factory)
    values = {}
    for argument in inspect.signature(factory).parameters.values():
        if argument.default is inspect.Parameter.empty:
            continue
        default = float(argument.default) if hints.get(argument.name) is float else argument.default
        if not isinstance(default, (bool, int, float, str)):
            raise ConfigError(f"{called}: the default of '{argument.name}' must be a number, a word, or true or false")
        values[argument.name] = default
    return values


def first_line(factory: Callable[..., Any]) -> str:
    """The first line of a factory's docstring."""
    return (inspect.getdoc(factory) or "").partition("\n")[0]


class Registry(Generic[T]):
    """Factories by name. Used as a decorator; the function's name, doc and keyword defaults are all there is to say."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}
        self._modules: dict[str, ModuleType | None] = {}  # name → the module as it was when it registered that

    def __call__(self, factory: F) -> F:
        """Register a factory under its own name; one that its module or notebook defined before is replaced."""
        earlier = self._factories.get(factory.__name__)
        if earlier is not None and not _same_home(earlier, factory):
            raise ConfigError(f"{self.kind} '{factory.__name__}' exists already, in {_file(earlier)}: choose another name")
        self._factories[factory.__name__] = factory
        self._modules[factory.__name__] = sys.modules.get(factory.__module__)
        return factory

    def names(self) -> list[str]:
        """All names, as registered."""
        return list(self._factories)

    def spelled(self, name: str) -> str:
        """A name as it is kept: fashion-mnist is fashion_mnist, and a user's file is found from any folder and by every worker."""
        if file := of_file(name):
            return os.path.realpath(file) + name[len(file) :]
        underscored = name.replace("-", "_")
        return underscored if underscored in self._factories else name

    def factory(self, name: str) -> Callable[..., T]:
        """The factory called `name`; one of a user's own file must have been loaded."""
        name = self.spelled(name)
        file = of_file(name)
        if not file and name not in self._factories:
            names = [each for each in self._factories if not each.startswith(GIVEN)]
            raise ConfigError(f"unknown {self.kind} '{name}'{nearest(name, names)}")
        if not file:
            return self._factories[name]
        if _module_name(Path(file)) not in sys.modules:
            raise ConfigError(f"{self.kind} '{name}' is in a Python file that was not loaded")
        factories = self._of_file(file)
        if short(name) not in factories:
            raise ConfigError(f"Python file '{file}' defines no {self.kind} '{short(name)}'{nearest(short(name), factories)}")
        return factories[short(name)]

    def _of_file(self, file: str) -> dict[str, Callable[..., T]]:
        """What a user's file has registered when it was last run."""
        module = sys.modules[_module_name(Path(file))]
        return {name: factory for name, factory in self._factories.items() if self._modules[name] is module}

    def parameters(self, name: str) -> dict[str, Any]:
        """What a config may set: the factory's keyword arguments, with their defaults."""
        return dict(defaults(self.factory(name), f"{self.kind} '{name}'"))

    def make(self, name: str, parameters: Mapping[str, Any], *given: Any) -> T:
        """Build the thing called `name` from the config's parameters, and from what is `given` besides."""
        return self.factory(name)(*given, **parameters)

    def load(self, name: str) -> str:
        """Run the Python file that a name is of, if it is of one; the name as it is kept, which says what in the file is meant."""
        name = self.spelled(name)
        path = of_file(name)
        if not path:
            return name
        if not os.path.isfile(path):  # unlike Path's, it raises nothing
            raise ConfigError(f"{self.kind} file '{path}' does not exist")
        try:
            run_file(Path(path), Path(path).read_bytes())
        except OSError as error:
            raise ConfigError(f"{self.kind} file '{path}' cannot be read: {error.strerror}") from error
        if name != path:
            return name
        names = list(self._of_file(path))
        if not names:
            raise ConfigError(f"Python file '{path}' defines no {self.kind}")
        if len(names) > 1:
            ways = " or ".join(f"{os.path.basename(path)}:{each}" for each in names)
            raise ConfigError(f"Python file '{path}' defines more than one {self.kind}: say which, {ways}")
        return f"{path}:{names[0]}"
