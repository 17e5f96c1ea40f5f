"""Runs what was typed: finds the command's function, and turns errors that a person can cause into one sentence and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from bifl.cli.parser import parser
from bifl.errors import BiflError, ConfigError, printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the process's exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if any("\0" in word for word in arguments):
        print("bifl: an argument holds a NUL character, which no path and no value can have", file=sys.stderr)
        return 2
    try:
        options = parsed(arguments)
        code = function(options.command)(options)
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


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """What was typed.

    Raises:
        ConfigError: it is no command, or nothing that this command takes.
    """
    options, more = parser().parse_known_args(arguments)
    unknown = [word for word in more if word.startswith("-")]
    if unknown or (more and not hasattr(options, "settings")):
        from bifl.cli.mistyped import mistyped  # only those who need it wait for it

        raise ConfigError(mistyped(arguments, unknown or more))
    if more:
        options.settings += more  # key=value may stand after --out too
    return options


def function(place: str) -> Callable[[argparse.Namespace], int]:
    """The function at a place like `bifl.cli.show_commands:inspect`.

    Raises:
        ConfigError: it needs Flower, which is not installed.
    """
    module, _, name = place.partition(":")
    try:
        found: Callable[[argparse.Namespace], int] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not module.startswith("bifl.deploy.") or str(error.name).startswith("bifl"):
            raise
        raise ConfigError(f"this command needs Flower ({error}): pip install 'bifl[flower]'") from error
    return found
