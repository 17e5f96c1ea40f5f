"""Runs what was typed: finds the command, and turns errors that a person can cause into one sentence and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from bifl.cli.commands import parser
from bifl.errors import BiflError, ConfigError, printable
from bifl.experiment.catalogue import catalogue
from bifl.registry import nearest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the process's exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if any("\0" in word for word in arguments):
        print("bifl: an argument holds a NUL character, which no path and no value can have", file=sys.stderr)
        return 2
    try:
        options = parse(arguments)
        code: int = load_work(options.command)(options)
        sys.stdout.flush()
        return code
    except BiflError as error:
        print(f"bifl: {printable(error)}", file=sys.stderr)
        return 2
    except MemoryError:
        print("bifl: there is not enough memory for this", file=sys.stderr)
        return 2
    except OSError as error:  # of standard output; everything else has a sentence of its own
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"bifl: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bifl: interrupted", file=sys.stderr)
        return 130


def load_work(name: str) -> Callable[..., Any]:
    """A function by the name of its module and its own; it says so where Flower, which it needs, is not installed."""
    module, _, function = name.partition(":")
    try:
        work: Callable[..., Any] = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        if not module.startswith("bifl.deploy") or str(error.name).startswith("bifl"):
            raise
        raise ConfigError(f"this command needs Flower ({error}): pip install 'bifl[flower]'") from error
    return work


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What was typed; refused if it is no command, or nothing that this command takes."""
    options, more = parser().parse_known_args(arguments)
    unknown = [word for word in more if word.startswith("-")]
    if unknown or (more and not hasattr(options, "settings")):
        raise ConfigError(_mistyped(options, arguments, (unknown or more)[0]))
    if more:
        options.settings += more  # key=value may stand after --out too
    return options


def _mistyped(options: argparse.Namespace, arguments: Sequence[str], word: str) -> str:
    """What somebody meant by a word that the command does not know: most often a setting, which has no dashes."""
    option, _, value = word.partition("=")
    if not option.startswith("-"):
        return f"'{word}' is one word too many: see {options.parser.prog} --help"
    key = option.lstrip("-").replace("-", "_")
    if not _is_key(key, options.takes):
        known = [action.option_strings[-1] for action in options.parser._actions if action.option_strings]
        return f"there is no option '{option}'{nearest(option, known)}"
    place = arguments.index(word) + 1 if word in arguments else len(arguments)
    if not value and place < len(arguments) and not arguments[place].startswith("--"):
        value = arguments[place]
    return f"there is no option '{option}': settings have no dashes, write {key}={value or '…'}"


def _is_key(key: str, known: Sequence[str]) -> bool:
    """Whether a word is a setting, such as rounds, or a parameter of a choice, such as algorithm.alpha."""
    head, _, parameter = key.partition(".")
    return head in known and (not parameter or any(parameter in entry.parameters() for entry in catalogue().get(head, [])))
