"""`bifl list`: everything a key can be set to. It is written without rich, which takes longer to import than all of this."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator

from bifl.experiment.catalogue import Entry, catalogue
from bifl.experiment.presets import PRESETS
from bifl.show import PLAIN_WIDTH

_NAME = 20  # letters of the first column
_BOLD, _DIM, _PLAIN = "\033[1m", "\033[2m", "\033[0m"


def show_choices(options: argparse.Namespace) -> int:
    """Everything a key can be set to: name, what it is, parameters with their defaults."""
    tables = {f"{key}=": entries for key, entries in catalogue().items()}
    tables["presets, as in bifl run mnist-iid"] = [Entry(name, {}, preset.about) for name, preset in PRESETS.items()]
    width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    styles = (_BOLD, _DIM, _PLAIN) if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "", "")
    try:
        for title, entries in tables.items():
            print(f"{styles[0]}{title}{styles[2]}", *lines(entries, width, styles), "", sep="\n", flush=True)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def lines(entries: Iterable[Entry], width: int, styles: tuple[str, str, str] = ("", "", "")) -> Iterator[str]:
    """A few lines per choice; parameters stand below what it is, so that they have room on any screen."""
    indent = " " * (_NAME + 2)
    for name, parameters, about in entries:
        settings = " ".join(f"{key}={value}" for key, value in parameters.items())
        first = f"  {name:<{_NAME}}"
        yield from textwrap.wrap(about, width, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False) or [first]
        below = textwrap.wrap(settings, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        yield from (f"{styles[1]}{line}{styles[2]}" for line in below)
