"""What may import what: storage, tables and reports do not know the simulator."""

from __future__ import annotations

import argparse
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bifl.cli.commands import parser
from bifl.cli.dispatch import load_work
from tests.support.commands import refused

STORAGE = ("bifl.runs", "bifl.show", "bifl.report", "bifl.experiment", "bifl.data", "bifl.export")


def loaded(program: str, *modules: str) -> list[str]:
    """Which of these modules a program has imported in the end."""
    ask = f"import sys; print(*[name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{ask}"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_storage_does_not_import_the_simulator() -> None:
    """In one process, one package after the other: the first one that imports it is told."""
    program = "import sys"
    for package in STORAGE:
        names = [package, *(f"{package}.{module.name}" for module in pkgutil.iter_modules(import_module(package).__path__))]
        assert len(names) > 1
        imports = "\n".join(f"import {name}" for name in names)
        program += f"\n{imports}\nassert not {{'bifl.engine', 'bifl.deploy', 'flwr'}} & {{*sys.modules}}, '{package}'"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_names_that_need_no_torch_do_not_wait_for_it() -> None:
    program = "import bifl, bifl.cli, bifl.errors, bifl.files, bifl.registry, bifl.experiment.presets; bifl.BiflError"
    assert not loaded(program, "torch", "numpy", "rich", "flwr")


@pytest.mark.parametrize("words", [["list"], ["--help"], ["run", "--rounds", "3"], ["frobnicate"]])
def test_what_only_shows_waits_for_nothing_large(words: list[str]) -> None:
    """`bifl list` and `--help` take a third of a second: torch alone takes two."""
    program = f"from bifl.cli import main\ntry: main({words})\nexcept SystemExit: pass\nprint()"
    assert not loaded(program, "torch", "numpy", "rich", "flwr", "bifl.experiment.settings")


@pytest.mark.parametrize("word", ["algorithms", "datasets", "partitions", "robust", "attack", "schedule", "murmur", "femnist"])
def test_what_is_told_of_single_things_does_not_wait_for_torch(word: str) -> None:
    program = f"from bifl.cli import main\nmain(['list', '{word}'])\nprint()"
    assert not loaded(program, "torch", "rich", "flwr", "bifl.experiment.settings")


def commands(above: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of all commands that have no commands of their own, by what is typed."""
    inner = [action.choices for action in above._actions if isinstance(action, argparse._SubParsersAction)]
    below = [command for choices in inner for command in choices.values()]
    return {name: each for one in below for name, each in commands(one).items()} if below else {above.prog: above}


def test_every_command_has_work_and_is_documented() -> None:
    docs = "".join((Path(__file__).parent.parent / "docs" / page).read_text() for page in ("commands.md", "deploy.md"))
    for name, command in commands(parser()).items():
        assert callable(load_work(command.get_default("command"))), name
        assert re.search(rf"(^|`){name}\b", docs, re.MULTILINE), name


def test_a_command_that_needs_flower_says_so() -> None:
    program = "import sys; sys.modules['flwr'] = None; from bifl.cli import main; sys.exit(main(['server', 'rounds=1']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "this command needs Flower" in refused(done)
    assert "pip install 'bifl[flower]'" in refused(done)
