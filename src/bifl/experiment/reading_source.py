"""What names stand for in a source file, read without running it.

>>> constant(ast.Name("PLAIN_WIDTH"), module_file("bifl.show"))
100
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]


def constant(node: ast.expr, path: Path) -> Any:
    """A literal, a power of literals, or a constant by its name, from wherever it is imported."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return constant(node.left, path) ** constant(node.right, path)
    if not isinstance(node, ast.Name):
        return ast.literal_eval(node)
    if (own := assigned(tree(path)).get(node.id)) is not None:
        return constant(own, path)
    if (origin := imported(node.id, path)) is not None:
        return constant(ast.Name(origin[1]), origin[0])
    raise ValueError(f"{path.name} does not say what {node.id} is")


def imported(name: str, path: Path) -> tuple[Path, str] | None:
    """The module of this package that a file has a name from, and what it is called there; None for all other names."""
    for node in tree(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bifl"):
            for each in node.names:
                if (each.asname or each.name) == name:
                    return module_file(node.module or ""), each.name
    return None


def module_file(module: str) -> Path:
    """Where a module of this package stands."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def assigned(tree: ast.Module) -> dict[str, ast.expr]:
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
def text(path: Path) -> str:
    """A source file."""
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    """A source file, parsed."""
    return ast.parse(text(path))
