"""What somebody meant who typed an option that there is not: most often a setting, which has no dashes.

>>> mistyped(["run", "--rounds", "3"], ["--rounds"])
"there is no option '--rounds': settings have no dashes, write rounds=3"
>>> mistyped(["run", "--oot", "x"], ["--oot"])
"there is no option '--oot': did you mean '--out'?"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bifl.cli.parser import parser
from bifl.experiment.catalogue import catalogue
from bifl.experiment.declarations import SETTINGS
from bifl.registry import nearest


def mistyped(arguments: Sequence[str], unknown: Sequence[str]) -> str:
    """A sentence about the first word of a command line that no command knows."""
    option, _, value = unknown[0].partition("=")
    if not option.startswith("-"):
        return f"'{unknown[0]}' is one word too many: see {_command(arguments)} --help"
    key = option.lstrip("-").replace("-", "_")
    if not _is_key(key, _keys(_command(arguments).split()[-1])):
        return f"there is no option '{option}'{nearest(option, _options(arguments))}"
    place = arguments.index(unknown[0]) + 1 if unknown[0] in arguments else len(arguments)
    if not value and place < len(arguments) and not arguments[place].startswith("--"):
        value = arguments[place]
    return f"there is no option '{option}': settings have no dashes, write {key}={value or '…'}"


def _keys(command: str) -> Sequence[str]:
    """What a command takes as key=value."""
    experiment = list(SETTINGS)
    return {
        "run": [*experiment, "track"], "compare": [*experiment, "track", "algorithms", "seeds"],
        "data": experiment, "ask": experiment, "server": experiment, "up": experiment,
        "reproduce": ["dataset", "seeds", "rounds"], "summary": [*experiment, "classes", "input"],
        "eval": [*experiment, "path", "test_share"],
    }.get(command, [])  # fmt: skip


def _is_key(key: str, known: Sequence[str]) -> bool:
    """Whether a word is a setting, such as rounds, or a parameter of a choice, such as algorithm.alpha."""
    head, _, parameter = key.partition(".")
    return head in known and (not parameter or any(parameter in entry.parameters for entry in catalogue().get(head, [])))


def _chosen(arguments: Sequence[str]) -> list[argparse.ArgumentParser]:
    """The parsers of a command line's verbs, the outermost first."""
    found = [parser()]
    for word in arguments:
        inner = [action.choices for action in found[-1]._actions if isinstance(action, argparse._SubParsersAction)]
        if inner and word in inner[0]:
            found.append(inner[0][word])
    return found


def _options(arguments: Sequence[str]) -> list[str]:
    return [action.option_strings[-1] for action in _chosen(arguments)[-1]._actions if action.option_strings]


def _command(arguments: Sequence[str]) -> str:
    return _chosen(arguments)[-1].prog
