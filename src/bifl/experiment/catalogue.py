"""What a setting can be, read from the source: `bifl list` and the help for mistyped options do not wait for torch.

A registered factory's name, docstring and keyword defaults are all there is to say about it, and all of that stands in its file.

>>> catalogue()["partition"][1][:2]
('by_class', {'classes_per_client': 3})
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bifl.experiment.declarations import CHOICES
from bifl.experiment.reading_source import PACKAGE, constant, text, tree

# where registered things stand
_BUILT_IN = ("algorithms", "attacks", "data", "exchanges", "nn", "privacy", "robust", "tasks", "training")


class Entry(NamedTuple):
    """Something that can be chosen."""

    name: str
    parameters: dict[str, Any]  # with their defaults
    about: str  # the first line of its docstring
    file: Path


def catalogue() -> dict[str, list[Entry]]:
    """By the keys of settings: what each can be set to; first `none`, where there is that."""
    files = [path for folder in _BUILT_IN for path in sorted((PACKAGE / folder).glob("*.py"))]
    found = {
        key: [entry for path in files if f"\n@{decorator}\n" in text(path) for entry in _entries(path, decorator)]
        for key, decorator in CHOICES.items()
    }
    return {key: sorted(entries, key=lambda entry: entry.name != "none") for key, entries in found.items()}


def _entries(path: Path, decorator: str) -> Iterator[Entry]:
    """The things that a file registers, in its order."""
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef) and decorator in [
            mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)
        ]:
            about = (ast.get_docstring(node) or "").partition("\n")[0]
            yield Entry(node.name, dict(_defaults(node, path)), about, path)


def _defaults(function: ast.FunctionDef, path: Path) -> Iterator[tuple[str, Any]]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    given = list(zip(arguments[len(arguments) - len(function.args.defaults) :], function.args.defaults, strict=True))
    given += [(name, default) for name, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if default]
    for argument, default in given:
        value = constant(default, path)
        yield (
            argument.arg,
            float(value) if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "float" else value,
        )
