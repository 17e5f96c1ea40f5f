"""Standard output, and how amounts are written there."""

from __future__ import annotations

import os
import sys
import textwrap

from rich.console import Console

from bifl.show import PLAIN_WIDTH


def console() -> Console:
    """Standard output; wide enough for the tables where it is a file or a pipe, unless COLUMNS says otherwise."""
    return _Output(highlight=False, markup=False, emoji=False, width=None if _has_width() else PLAIN_WIDTH)


def say(out: Console, sentence: str) -> None:
    """Print a sentence: on a screen wrapped between its words, which stay whole; in files and pipes in one line."""
    lines = textwrap.wrap(sentence, out.width, break_long_words=False, break_on_hyphens=False) if _has_width() else [sentence]
    out.print("\n".join(lines), soft_wrap=True)


def _has_width() -> bool:
    return sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """The reader (head, less) has seen enough: go on in silence, a training is not thrown away for that."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def counted(number: int, thing: str) -> str:
    """A number of things.

    >>> counted(1, "round"), counted(1000, "round"), counted(2, "class")
    ('1 round', '1,000 rounds', '2 classes')
    """
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}{'es' if thing.endswith('s') else 's'}"
