"""How commands are read and explained: refusals in one sentence, and help with a row for every key."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, NoReturn

from bifl.errors import ConfigError
from bifl.registry import nearest

_LEAST = 30  # letters that an explanation needs beside what it explains
_WIDEST = 100  # letters of a line of help


def row(name: str, about: str, width: int, column: int = 24) -> list[str]:
    """A name, and what is said of it: beside the name, or below it where there is no room.

    >>> print(*row("  lr (0.005)", "learning rates, and the rounds after which the next applies", 44), sep=chr(10))
      lr (0.005)
          learning rates, and the rounds after
          which the next applies
    """
    indent = " " * (column if width >= column + _LEAST else 6)
    lines = textwrap.wrap(about, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    if lines and len(name) < len(indent) - 1:
        return [name + lines[0][len(name) :], *lines[1:]]
    return [*textwrap.wrap(name, width, subsequent_indent="    ", break_on_hyphens=False), *lines]


class Parser(argparse.ArgumentParser):
    """Refuses in one sentence, as every command does; argparse would print how the command is used, and end the process.

    Attributes:
        rows: what stands below argparse's own help: names and what they mean, by headings.
        column: where meanings begin.
    """

    def __init__(self, prog: str, rows: Mapping[str, Mapping[str, str]] | None = None, column: int = 24, **more: Any) -> None:
        super().__init__(prog, **more)
        self.rows, self.column = rows or {}, column

    def format_help(self) -> str:
        """Argparse's, then the rows."""
        width = min(shutil.get_terminal_size().columns - 2, _WIDEST)
        lines = [super().format_help()]
        for heading, rows in self.rows.items():
            lines.append(f"{heading}:")
            for name, about in rows.items():
                lines += row(f"  {name}", about, width, self.column)
            lines.append("")
        return "\n".join(lines).rstrip() + "\n"

    def error(self, message: str) -> NoReturn:
        """What argparse found wrong, as a ConfigError."""
        raise ConfigError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise ConfigError(f"unknown command '{value}'{nearest(value, action.choices)}")
        super()._check_value(action, value)
