"""How `--help` is laid out: as typed where the screen is wide enough, wrapped where it is not.

>>> print(wrapped("  lr (0.005)            learning rates, and the rounds after which the next applies", 44))
  lr (0.005)
      learning rates, and the rounds after
      which the next applies
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Iterator

_LEAST = 30  # letters that an explanation needs beside what it explains
_BELOW = " " * 6
_EXPLAINED = re.compile(r"(\s*\S.*?)( {2,})(\S.*)")


class AsTyped(argparse.HelpFormatter):
    """Texts keep their lines, unless one of them is too long for the screen."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrapped(text, width)


def wrapped(text: str, width: int) -> str:
    """Columns of words and what they mean, as they are; or each explanation wrapped, below what it explains if need be."""
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
    columns = Counter(found.start(3) for found in explained if found)
    usual = columns.most_common(1)[0][0] if columns else 0
    for item, found in zip(items, explained, strict=True):
        if found is None:
            yield from _wrap(item, width, subsequent_indent=_BELOW if item.startswith(" ") else "")
        elif found.start(3) <= usual <= width - _LEAST:
            yield from _wrap(found[3], width, initial_indent=found[1] + found[2], subsequent_indent=" " * found.start(3))
        else:
            yield from _wrap(found[1], width, subsequent_indent="    ")
            yield from _wrap(found[3], width, initial_indent=_BELOW, subsequent_indent=_BELOW)


def _wrap(text: str, width: int, initial_indent: str = "", subsequent_indent: str = "") -> list[str]:
    """Lines of whole words: a page's name, docs/wire-format.md, is one."""
    return textwrap.wrap(text, width, initial_indent=initial_indent, subsequent_indent=subsequent_indent, break_on_hyphens=False)
