"""The layout keeps what CONTRIBUTING.md promises: a small core, one name a module, no cycles of imports, short functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "bifl"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
LONGEST_FILE, LONGEST_FUNCTION = 600, 60  # lines; a file is one subject, and few subjects are longer


def imported(path: Path) -> set[str]:
    """Modules of ours that a module imports, also in functions: they would hide that two need each other."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bifl":
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
    return found - {"bifl"}


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = {name: imported(path) - {name} for name, path in MODULES.items()}
    for name in graph:  # a module cannot be had without its packages
        if name.count(".") > 1 and (package := name.rpartition(".")[0]) in graph:
            graph[package].discard(name)
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def folder(module: str) -> str:
    """The folder of the package that a module is in; a module beside the folders is one by itself."""
    return module.split(".")[1]


def imported_anywhere(path: Path) -> set[str]:
    """Modules of ours that a file names in an import, also in functions and for type checkers alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("bifl"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("bifl.")}
    return found - {"bifl.__version__"}


def test_no_folder_imports_itself_by_a_detour() -> None:
    """The package itself is no folder: it has nothing but the names that users import, each from where it stands."""
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        if name != "bifl":
            graph.setdefault(folder(name), set()).update(map(folder, imported_anywhere(path)))
    tuple(TopologicalSorter({name: others - {name} for name, others in graph.items()}).static_order())  # raises CycleError


def test_no_two_modules_have_one_name() -> None:
    modules = [path.stem for path in MODULES.values() if path.stem not in ("__init__", "__main__")]
    packages = {path.parent.name for path in MODULES.values() if path.stem == "__init__"} - {"bifl"}
    names = Counter([*modules, *packages])
    assert [name for name, count in names.items() if count > 1] == []


def test_the_package_does_without_the_studies() -> None:
    """They are not in the wheel; `bifl reproduce` looks for them by their path."""
    lines = [line.split() for path in MODULES.values() for line in path.read_text().splitlines()]
    assert not [words for words in lines if words[:2] in (["from", "studies"], ["import", "studies"])]


def test_few_modules_lie_beside_the_packages() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 8


@pytest.mark.parametrize("folder", ["src", "studies", "tests", "benchmarks"])
def test_files_and_functions_are_short(folder: str) -> None:
    long = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text()
        if len(text.splitlines()) > LONGEST_FILE:
            long.append(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines")
        functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        sizes = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
        long += [f"{path.relative_to(ROOT)}: {name} takes {size} lines" for name, size in sizes.items() if size > LONGEST_FUNCTION]
    assert long == []


@pytest.mark.parametrize(
    ("imports", "without"),
    [
        ("bifl.core", ("torch", "scipy", "numba", "bifl.nn", "bifl.engine", "bifl.codec", "bifl.experiment")),
        ("bifl.algorithms", ("torch", "bifl.nn", "bifl.engine")),
        ("bifl.codec", ("torch", "bifl.nn", "bifl.engine")),
    ],
)
def test_an_import_does_not_bring_more_than_it_needs(imports: str, without: tuple[str, ...]) -> None:
    program = f"import sys, {imports}; sys.exit(repr([name for name in {without} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
