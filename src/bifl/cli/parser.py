"""What all commands' parsers share: refusals in one sentence, help as it was typed, and the words that several commands take."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bifl.errors import ConfigError
from bifl.experiment.declarations import SETTINGS, Declaration
from bifl.registry import nearest

# ---- how `--help` is laid out -------------------------------------------------------------------------------------------

_LEAST = 30  # letters that an explanation needs beside what it explains
_BELOW = " " * 6
_EXPLAINED = re.compile(r"(\s*\S.*?)( {2,})(\S.*)")


class AsTyped(argparse.HelpFormatter):
    """Texts keep their lines, unless one of them is too long for the screen."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrapped(text, width)


def wrapped(text: str, width: int) -> str:
    """Columns of words and what they mean, as they are; or each explanation wrapped, below what it explains if need be.

    >>> print(wrapped("  lr (0.005)            learning rates, and the rounds after which the next applies", 44))
      lr (0.005)
          learning rates, and the rounds after
          which the next applies
    """
    if max(map(len, text.splitlines()), default=0) <= width:
        return text
    return "\n\n".join("\n".join(_narrow(_items(block), width)) for block in text.split("\n\n"))


def _items(block: str) -> list[str]:
    """Lines, with those that go on in the second column joined to the one before."""
    items: list[str] = []
    for line in block.splitlines():
        if items and line.startswith(" " * 8):
            items[-1] += f"{' ' if _EXPLAINED.match(items[-1]) else '  '}{line.strip()}"
        else:
            items.append(line)
    return items


def _narrow(items: list[str], width: int) -> Iterator[str]:
    explained = [_EXPLAINED.match(item) for item in items]
    columns = Counter(match.start(3) for match in explained if match)
    usual = columns.most_common(1)[0][0] if columns else 0
    for item, match in zip(items, explained, strict=True):
        if match is None:
            yield from _wrap(item, width, subsequent_indent=_BELOW if item.startswith(" ") else "")
        elif match.start(3) <= usual <= width - _LEAST:
            yield from _wrap(match[3], width, initial_indent=match[1] + match[2], subsequent_indent=" " * match.start(3))
        else:
            yield from _wrap(match[1], width, subsequent_indent="    ")
            yield from _wrap(match[3], width, initial_indent=_BELOW, subsequent_indent=_BELOW)


def _wrap(text: str, width: int, initial_indent: str = "", subsequent_indent: str = "") -> list[str]:
    """Lines of whole words: a page's name, docs/wire-format.md, is one."""
    return textwrap.wrap(text, width, initial_indent=initial_indent, subsequent_indent=subsequent_indent, break_on_hyphens=False)


_WIDTH, _COLUMN = 100, 24  # of the whole screen; where meanings begin


def settings_help(*without: str) -> str:
    """Every setting, its default, and what it means."""
    return "".join(_explain(name, declared) for name, declared in SETTINGS.items() if name not in without)


def _explain(name: str, declared: Declaration) -> str:
    first, indent = f"  {name} ({declared.spelled()})", " " * _COLUMN
    lines = textwrap.wrap(declared.help, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    if len(first) < _COLUMN - 1:
        lines[0] = first.ljust(_COLUMN) + lines[0].lstrip()
    else:
        lines.insert(0, first)
    return "\n".join(lines) + "\n"


KEYS = "keys (default) and their meaning:\n"
RUN_KEYS = KEYS + settings_help()

# ---- parsers ------------------------------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Refuses in one sentence, as every command does; argparse would print how the command is used, and end the process."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, formatter_class=AsTyped, **more)

    def error(self, message: str) -> NoReturn:
        """What argparse found wrong.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{message.removeprefix('argument ')}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise ConfigError(f"unknown command '{value}'{nearest(value, action.choices)}")
        super()._check_value(action, value)


Commands = argparse._SubParsersAction  # there is no public name for it


def add_command(
    commands: Commands[Parser], name: str, work: Callable[[argparse.Namespace], int], *, keys: Sequence[str] = (), **texts: Any
) -> Parser:
    """The parser of a command.

    Args:
        commands: to add it to.
        name: as it is typed.
        work: what it does, and the exit code. It imports what it needs itself: `--help` must not wait for torch.
        keys: what it takes as key=value.
        texts: `help`, a line in the list of all commands, `description` and `epilog`.
    """
    command = commands.add_parser(name, **texts)
    command.set_defaults(command=work, takes=keys, parser=command)
    return command


def add_settings(command: Parser) -> None:
    """A preset and settings, which `add_command` knows as keys."""
    command.add_argument("settings", nargs="*", metavar="PRESET | KEY=VALUE", help="a preset first, if any, then keys")


def add_trust(command: Parser, what: str) -> None:
    """Whether to run Python files."""
    command.add_argument("--trust", action="store_true", help=f"{what}; without it they are refused")


def add_clients(command: Parser) -> None:
    """Where clients are, other than those of a simulation."""
    command.add_argument("--listen", metavar="HOST:PORT", help="wait there for clients, as bifl server does; else simulate them")
    command.add_argument("--keys", type=Path, metavar="DIR", help="with --listen: default keys; made if missing")
    command.add_argument("--out", type=Path, metavar="DIR", help="with --listen: the folder to write into")
    command.add_argument("--min-clients", type=int, metavar="K", help="with --listen: clients that must answer (default: half)")
    command.add_argument("--deadline", type=float, metavar="S", help="with --listen: seconds to wait for the rest (600)")
    command.set_defaults(max_images=None, keep_messages=False)
