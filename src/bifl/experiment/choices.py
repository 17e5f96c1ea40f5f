"""What a setting can be: a plain value of its default's type, or a choice among registered things.

>>> typed("rounds", "15", default=1)
15
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bifl.errors import ConfigError
from bifl.registry import Registry, nearest, short

LARGEST = 2**63


@dataclass(frozen=True)
class Choice:
    """A registered thing by name, with all of its parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Unloaded(Choice):
    """A choice from a Python file that must not be run, as a config spells it: it can be shown, not used."""


def chosen(kind: str, registry: Registry[Any], given: object) -> Choice:
    """A name, mapping or Choice with every parameter known, typed and present."""
    if isinstance(given, str):
        given = Choice(given)
    elif isinstance(given, Mapping):
        given = from_mapping(given)
    if not isinstance(given, Choice):
        raise ConfigError(f"{kind} must be a name, not {given!r}")
    if isinstance(given, Unloaded):
        parameters = {key: _plain(f"{kind}.{key}", own) for key, own in given.parameters.items()}
        return Unloaded(_plain(kind, given.name), parameters)
    name = registry.load(_plain(kind, given.name))
    known = registry.parameters(name)
    for key in given.parameters:
        if key not in known:
            unset = f": set {kind}= too" if given.name == "none" else f": {kind} '{given.name}' has no parameters"
            allowed = f" of {kind} '{short(name)}'{nearest(key, known)}" if known else unset
            raise ConfigError(f"unknown key '{kind}.{key}'{allowed}")
    return Choice(
        name, {key: typed(f"{kind}.{key}", given.parameters.get(key, default), default) for key, default in known.items()}
    )


def from_mapping(given: Mapping[str, Any]) -> Choice:
    """The choice that a mapping with `name` and parameters spells."""
    return Choice(str(given.get("name", "")), {key: value for key, value in given.items() if key != "name"})


def _plain(key: str, given: Any) -> Any:
    """The value, if it is one that a choice may have."""
    if type(given) not in _KINDS:
        raise ConfigError(f"{key} must be a number, a word, or true or false, not {given!r:.80}")
    if isinstance(given, str) and "\0" in given:
        raise ConfigError(f"{key} must not hold a NUL character, as {given!r:.80} does")
    if isinstance(given, int) and abs(given) >= LARGEST:
        raise ConfigError(f"{key} must be less than 2^63")
    return given


def typed(key: str, given: Any, default: Any) -> Any:
    """The value as the type of its default, from a text or a Python value."""
    if isinstance(default, tuple):
        parts = given.split(",") if isinstance(given, str) else given if isinstance(given, (list, tuple)) else (given,)
        return tuple(typed(key, part, default[0]) for part in parts if part != "")
    kind = type(default)
    try:
        if isinstance(given, str) and kind is not str:
            return _BOOLEANS[given.lower()] if kind is bool else _plain(key, kind(given))
        if type(given) is kind or (type(given) is int and kind is float):
            return kind(_plain(key, given))
    except (ValueError, KeyError, OverflowError):
        pass
    raise ConfigError(f"{key} must be {_KINDS[kind]}, not {given!r:.80}")


def text_of(values: Iterable[object]) -> str:
    """Several values, as a config has them."""
    return ",".join(map(str, values))


_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
