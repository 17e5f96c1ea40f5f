"""Files that name Python code: nothing runs it unless the caller says so."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import pytest

import bifl
from bifl.codec.model_file import MAGIC
from bifl.errors import ConfigError, DataError, Untrusted
from bifl.experiment import config_file
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment
from bifl.nn.models import model
from bifl.report.page import render
from bifl.report.summary import settings
from bifl.runs.folder import RunFolder
from bifl.runs.results import read, read_kept
from tests.support.commands import SMALL, Run, refused, rounds, start, wait_for_round
from tests.support.commands import bifl as process

CODE = """
from pathlib import Path
from torch import nn
from bifl.core import register
from bifl.algorithms.paper import up_down
from bifl.nn.models import model

Path(__file__).with_suffix(".ran").touch()

@model
def {name}(classes: int, width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, classes))

@register
def {name}_rule(step: float = 1.0):
    return up_down()
"""


def with_header(raw: bytes, **changes: object) -> bytes:
    """A model file with other facts in its header, and a checksum that fits."""
    (length,) = struct.unpack_from("<I", raw, len(MAGIC))
    start = len(MAGIC) + 4
    header = json.dumps(json.loads(raw[start : start + length]) | changes).encode()
    body = MAGIC + struct.pack("<I", len(header)) + header + raw[start + length : -4]
    return body + struct.pack("<I", zlib.crc32(body))


def user_file(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(CODE.format(name=name))
    return path


class Theirs(NamedTuple):
    """Somebody's network, trained in another process, and the folder it came from."""

    model: Path
    name: str  # of the network and of its file; registered names are for the whole process, so each test has its own
    folder: Path

    def ran(self, folder: Path) -> bool:
        return (folder / f"{self.name}.ran").exists()


_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a network that another process trained, from secret-folder/theirs.py."""
    folder = tmp_path_factory.mktemp("trained")
    file = user_file(folder / "secret-folder", "theirs")
    done = process("run", *SMALL, "rounds=1", f"model={file}:theirs", "--out", folder / "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return (folder / "run" / "model").read_bytes()


@pytest.fixture
def theirs(tmp_path: Path, trained: bytes) -> Theirs:
    name, folder = f"theirs{next(_NUMBERS)}", tmp_path / "secret-folder"
    user_file(folder, name)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").write_bytes(with_header(trained, model={"name": f"{name}.py:{name}", "width": 4}))
    return Theirs(tmp_path / "run" / "model", name, folder)


def test_a_model_file_does_not_tell_folders(trained: bytes) -> None:
    assert b'"theirs.py:theirs"' in trained
    assert b"secret-folder" not in trained


def test_a_model_file_runs_no_python_unless_trusted(
    theirs: Theirs, tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = shutil.copy(theirs.folder / f"{theirs.name}.py", tmp_path)  # the current folder
    for words in (["inspect", theirs.model], ["eval", theirs.model, "mnist5k"]):
        sentence = refused(here(*words))
        assert f"would run the code in '{code}'" in sentence
        assert "--trust" in sentence
    with pytest.raises(Untrusted, match="trust=True"):
        bifl.load(theirs.model)
    with pytest.raises(Untrusted, match="trust=True"):
        Model.read(theirs.model)
    assert not theirs.ran(tmp_path)
    assert here("inspect", theirs.model, "--trust").returncode == 0
    assert theirs.ran(tmp_path)
    assert here("eval", theirs.model, "mnist5k", "--trust").returncode == 0
    assert bifl.load(theirs.model, trust=True).training is False


def test_a_model_file_chooses_no_folder(theirs: Theirs, tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever path its header names: the file is looked for beside the model, then in the current folder."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    absolute = f"{theirs.folder}/{theirs.name}.py:{theirs.name}"
    theirs.model.write_bytes(with_header(theirs.model.read_bytes(), model={"name": absolute, "width": 4}))
    sentence = refused(here("inspect", theirs.model, "--trust"))
    assert f"'{theirs.name}.py', which was looked for in '{theirs.model.parent}' and in '{tmp_path / 'empty'}'" in sentence
    assert not theirs.ran(theirs.folder)
    user_file(theirs.model.parent, theirs.name)
    assert here("inspect", theirs.model, "--trust").returncode == 0
    assert theirs.ran(theirs.model.parent)


def test_a_trusted_network_is_not_built_larger_than_the_file(theirs: Theirs, here: Run) -> None:
    user_file(theirs.model.parent, theirs.name)
    huge = {"name": f"{theirs.name}.py:{theirs.name}", "width": 10**9}
    theirs.model.write_bytes(with_header(theirs.model.read_bytes(), model=huge))
    assert "has 795,000,000,010 coded" in refused(here("inspect", theirs.model, "--trust"))


def test_a_missing_python_file_is_named(theirs: Theirs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(theirs.model.parent)
    with pytest.raises(Untrusted, match=rf"would run the code in '{theirs.name}\.py'"):
        Model.read(theirs.model)
    with pytest.raises(DataError, match=rf"needs the Python file '{theirs.name}\.py'.*put it there"):
        Model.read(theirs.model, trust=True)


def test_a_run_folder_runs_no_python_unless_trusted(tmp_path: Path, here: Run) -> None:
    file = user_file(tmp_path, "rule")
    words = [*SMALL, "rounds=2", f"algorithm={file}:rule_rule", f"model={file}:rule"]
    assert process("run", *words, "--keep-messages", "--out", tmp_path / "run").returncode == 0
    (tmp_path / "rule.ran").unlink()
    ballot = tmp_path / "run" / "messages" / "round-00002" / "upload-00001"
    for command in (["run", "--resume", tmp_path / "run", "rounds=3"], ["inspect", ballot]):
        sentence = refused(here(*command))
        assert f"would run the Python code in '{file}': if you trust it, allow that with --trust" in sentence
    with pytest.raises(Untrusted):
        RunFolder.resume(tmp_path / "run")
    with pytest.raises(Untrusted):
        config_file.read(tmp_path / "run" / "config.toml")
    assert not (tmp_path / "rule.ran").exists()
    assert len(rounds(tmp_path / "run")) == 2
    done = here("run", "--resume", tmp_path / "run", "rounds=3", "--trust")
    assert done.returncode == 0, done.stderr
    assert len(rounds(tmp_path / "run")) == 3
    assert here("inspect", ballot, "--trust").returncode == 0


def test_the_command_that_continues_a_run_says_trust(tmp_path: Path) -> None:
    file = user_file(tmp_path, "mine")
    folder = tmp_path / "stopped"
    running = start(*SMALL, "rounds=1000", f"algorithm={file}:mine_rule", "--out", folder)
    wait_for_round(folder, 1)
    running.send_signal(2)
    _, error = running.communicate(timeout=60)
    assert f"continue with: bifl run --resume {folder} --trust" in error


def test_a_comparison_runs_no_python_unless_trusted(tmp_path: Path, here: Run) -> None:
    file = user_file(tmp_path, "other")
    words: list[str | Path] = [*SMALL, "rounds=1", f"algorithms=biml,{file}:other_rule", "--out", tmp_path / "compare"]
    assert process("compare", *words).returncode == 0
    (tmp_path / "other.ran").unlink()
    assert f"would run the Python code in '{file}'" in refused(here("compare", "--resume", tmp_path / "compare"))
    assert not (tmp_path / "other.ran").exists()
    plan = tmp_path / "compare" / "compare.toml"
    plan.write_text(plan.read_text().replace('folder = "biml-s0"', 'folder = "../elsewhere"'))
    assert "'../elsewhere', which is none of the comparison's folders" in refused(here("compare", "--resume", tmp_path / "compare"))


def test_a_report_never_runs_python(finished: Path, tmp_path: Path) -> None:
    """It shows names and parameters as the configuration spells them, without folders."""
    file = user_file(tmp_path, "shown")
    run = shutil.copytree(finished, tmp_path / "runs" / "run")
    config = (run / "config.toml").read_text()
    for kind, old in {"algorithm": "biml", "model": "mnist_cnn", "dataset": "mnist5k", "partition": "iid"}.items():
        assert f'[{kind}]\nname = "{old}"' in config
        config = config.replace(f'[{kind}]\nname = "{old}"', f'[{kind}]\nname = "{file}:{old}"\nstep = 0.25')
    (run / "config.toml").write_text(config)
    found = read([tmp_path / "runs"])
    assert not found.unreadable
    page = render(settings(found.results))
    assert not (tmp_path / "shown.ran").exists()
    assert "name = &#34;shown.py:biml&#34;" in page
    assert "step=0.25" in page
    assert str(tmp_path) not in page
    assert "97.17" not in page, "not the paper's algorithm, though it has its name"


def test_a_file_that_names_a_python_file_alone_runs_nothing_either(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line `model=alone.py` is the only network in it."""
    file = user_file(tmp_path, "alone")
    config = tmp_path / "config.toml"
    config.write_text((finished / "config.toml").read_text().replace('name = "mnist_cnn"', f'name = "{file}"'))
    with pytest.raises(Untrusted, match="would run the Python code in"):
        config_file.read(config)
    assert config_file.read_to_show(config).python_files() == [str(file)]
    monkeypatch.chdir(tmp_path / "..")
    for facts in ({"model": {"name": str(file)}}, {"task": {"name": str(file)}}):
        (tmp_path / "model").write_bytes(with_header((finished / "model").read_bytes(), **facts))
        with pytest.raises(Untrusted, match="would run the code in"):
            Model.read(tmp_path / "model")
    assert not (tmp_path / "alone.ran").exists()


def test_a_kept_cell_never_runs_python(tmp_path: Path) -> None:
    file = user_file(tmp_path, "kept")
    config = config_file.to_toml(Experiment(algorithm="biml")).replace('name = "biml"', f'name = "{file}:biml"')
    cell = tmp_path / "cell.jsonl.gz"
    cell.write_bytes(gzip.compress(json.dumps({"config": config}).encode() + b"\n"))
    shown = read_kept(cell).experiment
    assert shown.python_files() == [str(file)]
    assert not file.with_suffix(".ran").exists()


def test_looking_a_name_up_runs_no_file(tmp_path: Path) -> None:
    file = user_file(tmp_path, "lookup")
    for name in (f"{file}:lookup", str(file)):
        with pytest.raises(ConfigError, match="was not loaded"):
            model.factory(name)
    assert not (tmp_path / "lookup.ran").exists()
