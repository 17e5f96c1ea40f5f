"""The words of a command line that describe an experiment: perhaps a preset's name, then `key=value` texts.

>>> preset_of(["mnist-iid", "rounds=3"]), pairs(["rounds=3"])
(('mnist-iid', ['rounds=3']), {'rounds': '3'})
"""

from __future__ import annotations

from collections.abc import Iterable

from bifl.errors import ConfigError
from bifl.experiment.presets import PRESETS
from bifl.registry import nearest


def preset_of(words: Iterable[str]) -> tuple[str | None, list[str]]:
    """The word that is not key=value, if there is one, and the rest."""
    given = list(words)
    names = [word for word in given if "=" not in word]
    if len(names) > 1:
        raise ConfigError(f"only one preset can be given, not {' and '.join(names)}; settings are key=value")
    return (names[0] if names else None), [word for word in given if "=" in word]


def pairs(overrides: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a mapping."""
    pairs: dict[str, str] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' is neither a preset nor key=value{nearest(text, PRESETS)}")
        if key in pairs:
            raise ConfigError(f"key '{key}' is given twice")
        pairs[key] = value
    return pairs
