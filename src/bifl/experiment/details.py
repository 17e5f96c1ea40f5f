"""All there is to say about one choice, read from the source: its docstring, the ranges of its parameters, its family's paper.

>>> murmur = next(entry for entry in catalogue()["algorithm"] if entry.name == "murmur")
>>> details("algorithm", murmur).ranges["group"]
'from 0 (chosen by the number of voters) to 32768'
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bifl.experiment.catalogue import Entry, catalogue
from bifl.experiment.reading_source import constant, imported, tree

__all__ = ["Details", "catalogue", "details"]

_FAMILIES = ("algorithms", "privacy", "robust")  # folders in which a file is about one family, and says whose method it is
_DEEP = 3  # calls from a factory to the check of a parameter
_UNKNOWN = "\0"

Definition = ast.FunctionDef | ast.ClassDef


class Details(NamedTuple):
    """What a person wants to know before choosing it."""

    docstring: list[str]  # its paragraphs
    ranges: dict[str, str]  # of parameters, where they are known
    family: list[str]  # what its file says of it and its kin, in paragraphs; nothing where a file holds all kinds of things


def details(key: str, entry: Entry) -> Details:
    """What the source says of a choice.

    Args:
        key: of the setting.
        entry: what it could be set to.
    """
    own = _defined(entry.name, entry.file)
    docstring = "" if own is None else ast.get_docstring(own[1]) or ""
    alone = entry.file.parent.name in _FAMILIES and entry.name != "none"
    family = ast.get_docstring(tree(entry.file)) or "" if alone else ""
    return Details(_paragraphs(docstring), _ranges(key, entry), _paragraphs(family))


def _paragraphs(text: str) -> list[str]:
    """Prose, each paragraph in one line; examples are left out."""
    blocks = [block for block in text.split("\n\n") if not block.lstrip().startswith((">>>", "@")) and not block.endswith(":")]
    return [" ".join(block.split()) for block in blocks if block.strip()]


def _ranges(key: str, entry: Entry) -> dict[str, str]:
    """What refusals say that parameters must be: "algorithm.group must be from 0 to 256, not 300"."""
    found: dict[str, str] = {}
    refusal = re.compile(rf"{key}\.(\w+) must be ([^{_UNKNOWN}]+?),? not ")
    for path, definition in _called(entry):
        for node in ast.walk(definition):
            said = refusal.match(_spelled(node, path)) if isinstance(node, ast.JoinedStr) else None
            if said and said[1] in entry.parameters:
                found.setdefault(said[1], said[2])  # the nearest check is the one that is meant
    return found


def _called(entry: Entry) -> Iterator[tuple[Path, Definition]]:
    """A factory, then the functions and classes of this package that it names, then those that these name."""
    names, seen = [(entry.file, entry.name)], set[tuple[Path, str]]()
    for _ in range(_DEEP):
        found = [own for path, name in names if (own := _defined(name, path)) and (own[0], own[1].name) not in seen]
        seen |= {(path, definition.name) for path, definition in found}
        yield from found
        names = [(path, node.id) for path, own in found for node in ast.walk(own) if isinstance(node, ast.Name)]


def _defined(name: str, path: Path) -> tuple[Path, Definition] | None:
    """The function or class that a name stands for in a file, and the file that defines it."""
    for node in tree(path).body:
        if isinstance(node, Definition) and node.name == name:
            return path, node
    origin = imported(name, path)
    return None if origin is None else _defined(origin[1], origin[0])


def _spelled(text: ast.JoinedStr, path: Path) -> str:
    """A sentence with constants in their places; what is known only when it is said is left open."""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else _constant(part, path) for part in text.values)


def _constant(part: ast.expr, path: Path) -> str:
    if not isinstance(part, ast.FormattedValue):
        return _UNKNOWN
    width = _spelled(part.format_spec, path) if isinstance(part.format_spec, ast.JoinedStr) else ""
    try:
        return format(constant(part.value, path), width)
    except (ValueError, TypeError):
        return _UNKNOWN
