"""What a setting can be, read from the source: `bifl list` and the help for mistyped options do not wait for torch.

A registered factory's name, docstring and keyword defaults are all there is to say about it, and all of that stands in its file.

>>> catalogue()["partition"][1][:2]
('by_class', {'classes_per_client': 3})
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1]
_SETTINGS = PACKAGE / "experiment" / "settings.py"
_BUILT_IN = ("algorithms", "attacks", "data", "nn", "privacy", "robust", "tasks", "training")  # where registered things stand


class Entry(NamedTuple):
    """Something that can be chosen."""

    name: str
    parameters: dict[str, Any]  # with their defaults
    about: str


def catalogue() -> dict[str, list[Entry]]:
    """By the keys of settings: what each can be set to; first `none`, where there is that."""
    files = [path for folder in _BUILT_IN for path in sorted((PACKAGE / folder).glob("*.py"))]
    found = {
        key: [entry for path in files if f"\n@{decorator}\n" in _text(path) for entry in _entries(path, decorator)]
        for key, decorator in _decorators().items()
    }
    return {key: sorted(entries, key=lambda entry: entry.name != "none") for key, entries in found.items()}


def keys() -> list[str]:
    """The keys of settings."""
    experiment = next(node for node in _tree(_SETTINGS).body if isinstance(node, ast.ClassDef) and node.name == "Experiment")
    return [node.target.id for node in experiment.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]


def _decorators() -> dict[str, str]:
    """The registry of each key, by the name under which it decorates."""
    found = _assigned(_tree(_SETTINGS))["REGISTRIES"]
    assert isinstance(found, ast.Dict)
    return {
        ast.literal_eval(key): value.id
        for key, value in zip(found.keys, found.values, strict=True)
        if key and isinstance(value, ast.Name)
    }


def _entries(path: Path, decorator: str) -> Iterator[Entry]:
    """The things that a file registers, in its order."""
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef) and decorator in [
            mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)
        ]:
            about = (ast.get_docstring(node) or "").partition("\n")[0]
            yield Entry(node.name, dict(_defaults(node, path)), about)


def _defaults(function: ast.FunctionDef, path: Path) -> Iterator[tuple[str, Any]]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    given = list(zip(arguments[len(arguments) - len(function.args.defaults) :], function.args.defaults, strict=True))
    given += [(name, default) for name, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if default]
    for argument, default in given:
        value = _value(default, path)
        yield (
            argument.arg,
            float(value) if isinstance(argument.annotation, ast.Name) and argument.annotation.id == "float" else value,
        )


def _value(node: ast.expr, path: Path) -> Any:
    """A literal, or a constant by its name, from wherever it is imported."""
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    tree = _tree(path)
    if (own := _assigned(tree).get(node.id)) is not None:
        return _value(own, path)
    for imported in tree.body:
        if isinstance(imported, ast.ImportFrom) and any((name.asname or name.name) == node.id for name in imported.names):
            original = next(name.name for name in imported.names if (name.asname or name.name) == node.id)
            return _value(ast.Name(original), _source(imported.module or ""))
    raise ValueError(f"{path.name} does not say what {node.id} is")


def _source(module: str) -> Path:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """What names stand for at a module's top level."""
    plain = [(target, node.value) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    typed = [(node.target, node.value) for node in tree.body if isinstance(node, ast.AnnAssign) and node.value]
    together = [pair for target, value in plain for pair in _paired(target, value)]
    return {target.id: value for target, value in [*together, *typed] if isinstance(target, ast.Name)}


def _paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`A, B = 1, 2` as A = 1 and B = 2."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))
