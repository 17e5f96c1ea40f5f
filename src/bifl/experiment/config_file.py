"""An experiment as TOML: what `config.toml` of a run folder says.

>>> parse(to_toml(Experiment(rounds=3))) == Experiment(rounds=3)
True
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bifl.errors import ConfigError, Untrusted
from bifl.experiment.declarations import FORMER, Choice, Unloaded, from_mapping
from bifl.experiment.settings import REGISTRIES, SETTINGS, Experiment
from bifl.registry import of_file


def to_toml(experiment: Experiment) -> str:
    """The whole experiment, defaults included."""
    lines = [f"{name} = {_value(getattr(experiment, name))}" for name in SETTINGS if name not in REGISTRIES]
    for name in REGISTRIES:
        choice: Choice = getattr(experiment, name)
        lines += ["", f"[{name}]", f"name = {_value(choice.name)}"]
        lines += [f"{key} = {_value(value)}" for key, value in choice.parameters.items()]
    return "\n".join(lines) + "\n"


def read(path: Path, trust: bool = False) -> Experiment:
    """Read what `to_toml` wrote, to be run.

    Args:
        path: of the file.
        trust: whether to run the Python files that it names.

    Raises:
        Untrusted: it names some, and they are not trusted.
    """
    shown = read_to_show(path)
    if not shown.python_files():
        return shown
    if not trust:
        files = " and ".join(f"'{file}'" for file in shown.python_files())
        raise Untrusted(f"'{path}' would run the Python code in {files}: if you trust it, allow that with --trust")
    with _reading(path):
        return Experiment(**_settings(path.read_text()))


def read_to_show(path: Path) -> Experiment:
    """Read what `to_toml` wrote, to be looked at: choices from Python files are `Unloaded`, no file is run."""
    with _reading(path):
        return parse(path.read_text())


def parse(toml: str) -> Experiment:
    """The same from a text."""
    settings = _settings(toml)
    for kind in REGISTRIES:
        given = settings.get(kind)
        choice = Choice(given) if isinstance(given, str) else from_mapping(given) if isinstance(given, Mapping) else None
        if choice is not None and of_file(choice.name):
            settings[kind] = Unloaded(choice.name, choice.parameters)
    return Experiment(**settings)


def _settings(toml: str) -> dict[str, Any]:
    """What a config sets; the version of bifl that wrote it, in a run's folder, is no setting."""
    settings = {key: value for key, value in tomllib.loads(toml).items() if key != "version"}
    for key in FORMER.keys() & settings.keys():
        if settings.pop(key) != FORMER[key].default:
            raise ConfigError(f"it sets '{key}', which is no setting any more: {FORMER[key].instead}")
    return settings


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what an unreadable config raises into one sentence."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"'{path}': {error}") from error
    except TypeError as error:
        raise ConfigError(f"'{path}' is not a config of this program: {error}") from error
    except RecursionError:
        raise ConfigError(f"cannot read '{path}': it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read '{path}': {error}") from error


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)  # numbers, true/false and escaped strings are spelled alike in TOML
