"""`bifl list`: what keys can be set to. It is written without rich, which takes longer to import than all of this."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from bifl.cli.parser import row
from bifl.errors import ConfigError
from bifl.experiment.catalogue import Entry, catalogue
from bifl.experiment.declarations import SETTINGS
from bifl.experiment.presets import PRESETS
from bifl.registry import closest
from bifl.show import PLAIN_WIDTH

_PRESETS = "presets"
_INDENT = "  "


def show_choices(options: argparse.Namespace) -> int:
    """All names by their kinds; or the things of one kind, a line each; or all about one of them."""
    width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    try:
        for line in overview(width) if options.what is None else details(options.what, width):
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def overview(width: int) -> Iterator[str]:
    """Every name there is, on about a screen."""
    about = "keys (default), and what they can be set to; more of it: bifl list algorithms, bifl list murmur"
    yield from [*_wrapped([about], width, ""), ""]
    for key, entries in catalogue().items():
        yield from row(f"{key} ({_usual(key)})", ", ".join(entry.name for entry in entries), width)
    yield from row(_PRESETS, ", ".join(PRESETS), width)


def details(word: str, width: int) -> Iterator[str]:
    """What is known by a word: a kind of things, or things and settings of that name, of one kind or several."""
    blocks = [*_kinds(word, width), *_things(word, width)]
    if not blocks:
        names = [entry.name for entries in catalogue().values() for entry in entries]
        near = closest(word, [*catalogue(), _PRESETS, *names, *PRESETS, *SETTINGS])
        raise ConfigError(f"nothing is called '{word}'" + (f": did you mean '{near}'?" if near else "; bifl list shows all names"))
    for number, block in enumerate(blocks):
        yield from ["", *block] if number else block


def _usual(key: str) -> str:
    """The name of what is chosen if nobody says anything."""
    name: str = SETTINGS[key].default.name
    return name


def _kinds(word: str, width: int) -> Iterator[list[str]]:
    """A section for the kind that a word means, in singular or plural, with or without an equals sign."""
    kind = word.removesuffix("=")
    for key, entries in catalogue().items():
        if kind in (key, f"{key}s"):
            title = f"{key}=, one of these (default: {_usual(key)}); bifl list NAME tells all about one"
            yield _section(title, {entry.name: entry.about() for entry in entries}, width)
    if kind in (_PRESETS, "preset"):
        title = "presets, as in bifl run mnist-iid; bifl list NAME tells what one sets"
        yield _section(title, {name: preset.about for name, preset in PRESETS.items()}, width)


def _section(title: str, rows: Mapping[str, str], width: int) -> list[str]:
    lines = [row(f"{_INDENT}{name}", about, width) for name, about in rows.items()]
    return [*_wrapped([title], width, ""), *chain.from_iterable(lines)]


def _things(word: str, width: int) -> Iterator[list[str]]:
    """All about the things that are called so."""
    names = {word, word.replace("-", "_")}
    for entries in catalogue().values():
        yield from (_thing(entry, width) for entry in entries if entry.name in names)
    if word in PRESETS:
        preset = PRESETS[word]
        values = {key: ",".join(map(str, value)) if isinstance(value, tuple) else value for key, value in preset.settings.items()}
        settings = " ".join(f"{key}={value}" for key, value in values.items())
        yield [f"bifl run {word}", *_wrapped([preset.about], width), "", *_wrapped([settings], width)]
    if word in SETTINGS and word not in catalogue():
        yield [f"{word}={SETTINGS[word].spelled()} (default)", *_wrapped([SETTINGS[word].help], width)]


def _thing(entry: Entry, width: int) -> list[str]:
    lines = [f"{entry.key}={entry.name}" + (" (default)" if _usual(entry.key) == entry.name else "")]
    lines += _wrapped(entry.docstring(), width)
    if parameters := entry.parameters():
        ranges = entry.ranges()
        lines.append("")
        for name, default in parameters.items():
            lines += row(f"{_INDENT}{entry.key}.{name}={default}", ranges.get(name, ""), width, column=30)
    if family := entry.family():
        lines += ["", *_wrapped([f"From {entry.file.parent.name}/{entry.file.name}:", *family], width)]
    return lines


def _wrapped(paragraphs: Iterable[str], width: int, indent: str = _INDENT) -> list[str]:
    wrapper = textwrap.TextWrapper(width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [line for text in paragraphs for line in wrapper.wrap(text)]
