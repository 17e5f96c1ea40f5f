"""A setting is declared once: what else the program says and does about it is made of that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import bifl
from bifl.experiment.declarations import SETTINGS, OneOf
from bifl.experiment.run import PRECISIONS
from bifl.experiment.settings import REGISTRIES, Experiment
from bifl.nn.scores import SCORES

LAST = "    workers: int = setting("
ADDED = """\
    patience: int = setting(3, allowed=Whole(1, 9), may_change=True, help="how often it is asked")
    mood: str = setting("calm", allowed=OneOf(("calm", "brisk")), changes_numbers=False, help="how it is asked")
"""
ASK = """\
import io, contextlib
from bifl.cli import main
from bifl.errors import BiflError
from bifl.experiment import config_file
from bifl.experiment.settings import identity
from bifl.experiment.settings import Experiment
from bifl.runs.folder import MAY_CHANGE

print(main(["run", "--patience", "4"]), main(["run", "patience=10"]), main(["run", "mood=grim"]))
text = config_file.to_toml(Experiment(patience=5, mood="brisk"))
print("patience = 5" in text, 'mood = "brisk"' in text, config_file.parse(text).patience)
print(identity(Experiment(patience=5)) == identity(Experiment()), identity(Experiment(mood="brisk")) == identity(Experiment()))
print("patience" in MAY_CHANGE, "patience: how often it is asked" in Experiment.__doc__)
main(["list", "mood"])
main(["run", "--help"])
"""


def test_a_new_setting_is_one_declaration(tmp_path: Path) -> None:
    copied = tmp_path / "bifl"
    shutil.copytree(Path(bifl.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
    file = copied / "experiment" / "declarations.py"
    text = file.read_text()
    assert text.count(LAST) == 1
    file.write_text(text.replace(LAST, ADDED + LAST))
    around = os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False, env=around, cwd=tmp_path)
    assert done.stderr.splitlines() == [
        "bifl: there is no option '--patience': settings have no dashes, write patience=4",
        "bifl: patience must be at most 9, not 10",
        "bifl: mood must be one of calm, brisk, not 'grim'",
    ]
    codes, toml, same, may, *listed = done.stdout.splitlines()
    assert listed[:2] == ["mood=calm (default)", "  how it is asked"]
    assert (codes, toml, same, may) == ("2 2 2", "True True 5", "False True", "True True")
    assert "  patience (3)          how often it is asked" in listed
    assert "  mood (calm)           how it is asked" in listed


def test_words_and_choices_are_those_of_the_code_that_knows_them() -> None:
    assert SETTINGS["reals"].allowed == OneOf(tuple(PRECISIONS))
    assert SETTINGS["scores"].allowed == OneOf(tuple(SCORES))
    assert [name for name, declared in SETTINGS.items() if declared.register] == list(REGISTRIES)


def test_defaults_are_allowed_and_kept_as_they_are_declared() -> None:
    usual = Experiment()
    for name, declared in SETTINGS.items():
        assert declared.allowed.refusal(declared.default) is None, name
        if name not in REGISTRIES:
            assert getattr(usual, name) == declared.default
