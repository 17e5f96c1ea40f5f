"""Runs of other versions: unfinished ones are not continued, kept ones are read and say who made them."""

from __future__ import annotations

import gzip
import json
import tomllib
from pathlib import Path

import pytest

from bifl import __version__
from bifl.data.datasets import dataset
from bifl.data.fingerprint import loaded
from bifl.deploy import APP
from bifl.errors import RunError
from bifl.experiment import config_file
from bifl.experiment.settings import Experiment
from bifl.report.remarks import remarks
from bifl.runs.folder import CONFIG, ROUNDS, RunFolder
from bifl.runs.record import Record
from bifl.runs.results import Series, read_kept
from bifl.runs.results import read as read_results
from studies import keeping
from studies.cells import cells as cells_of
from studies.runner import Store, run
from studies.study_tables import Shown

ROOT = Path(__file__).parents[2]


def records(count: int) -> list[Record]:
    return [Record(n, 0.5, 1.0, 1.0, 2, 100, 100, 50, 1.0, 1.0, 0.1, 1.0) for n in range(1, count + 1)]


def keep_unversioned(folder: Path, experiment: Experiment, count: int) -> Path:
    """As bifl 0.1 kept runs."""
    path = keeping.save(folder, experiment, records(count))
    first, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    config = json.dumps({"config": json.loads(first)["config"]})
    path.write_bytes(gzip.compress("\n".join([config, *lines]).encode()))
    return path


def test_the_version_stands_in_one_place_and_flower_s_app_has_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert f'__version__ = "{__version__}"' in (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text()
    app = tomllib.loads((APP / "pyproject.toml").read_text())
    assert app["project"]["version"] == __version__


def test_a_run_is_continued_by_the_version_that_began_it(tmp_path: Path) -> None:
    experiment = Experiment(rounds=3)
    config = RunFolder.start(tmp_path / "run", experiment).path / CONFIG
    assert config.read_text().startswith(f'version = "{__version__}"\n')
    assert config_file.read(config) == experiment
    assert not any("version" in word for word in experiment.words())  # it is no setting
    RunFolder.resume(tmp_path / "run", {"rounds": "5"}).settle(loaded(dataset.make("mnist5k", {})))
    assert config.read_text() == f'version = "{__version__}"\n' + config_file.to_toml(Experiment(rounds=5))


@pytest.mark.parametrize(("line", "made"), [('version = "0.1.0"\n', "0.1.0"), ("", "0.1")])
def test_a_run_of_an_earlier_version_is_refused_in_a_sentence(tmp_path: Path, line: str, made: str) -> None:
    experiment = Experiment(rounds=3)
    config = RunFolder.start(tmp_path / "run", experiment).path / CONFIG
    config.write_text(line + config_file.to_toml(experiment))
    with pytest.raises(RunError, match=rf"is a run of bifl '{made}', this is bifl '{__version__}': continue it with that version"):
        RunFolder.resume(tmp_path / "run", {"rounds": "5"})
    assert "rounds = 3" in config.read_text()
    assert config_file.read(config) == experiment  # to look at, it is as good as any


def test_a_kept_run_says_which_version_made_it(tmp_path: Path) -> None:
    assert read_kept(keeping.save(tmp_path, Experiment(), records(2))).version == __version__
    old = read_kept(keep_unversioned(tmp_path, Experiment(seed=1), 2))
    assert (old.version, old.records) == ("0.1", records(2))
    assert [result.version for result in read_results([tmp_path]).results] == [__version__, "0.1"]


def test_tables_say_which_versions_made_their_runs(tmp_path: Path) -> None:
    (first, second, *_) = (cell.experiment for cell in cells_of("table1", "mnist5k", 2))
    keep_unversioned(tmp_path, first, 2)
    assert Shown.of(Store(tmp_path, tmp_path), "table1", "mnist5k", 2, [0]).remarks()[-1] == "Made by bifl 0.1."
    keeping.save(tmp_path, second, records(2))
    shown = Shown.of(Store(tmp_path, tmp_path), "table1", "mnist5k", 2, [0])
    assert shown.remarks()[-1].startswith(f"Made by bifl 0.1 (1 run) and bifl {__version__} (1 run): ")
    assert shown.remarks()[-1] in remarks([line.series for line in shown.lines])
    assert not any("Made by" in remark for remark in remarks([Series("one", shown.lines[0].series.results)]))


def test_finished_kept_runs_of_another_version_stay_and_unfinished_ones_start_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "cells", tmp_path / "work")
    whole, part = Experiment(rounds=2, clients=2), Experiment(rounds=2, clients=2, seed=1)
    keep_unversioned(store.kept, whole, 2)
    keep_unversioned(store.kept, part, 1)
    assert store.missing([whole, part]) == [part]
    folder = RunFolder.start(store.folder(part), part).path
    (folder / CONFIG).write_text('version = "0.1.0"\n' + config_file.to_toml(part))
    (folder / ROUNDS).write_text(records(1)[0].to_json() + "\n")
    assert store.done(part) == []
    assert run(store, [part], 1, lambda running: None) == []
    assert [record.round for record in store.done(part)] == [1, 2]
    assert store.done(part)[0] != records(1)[0]
    aside = tmp_path / "work" / f"{folder.name}.bifl-0.1.0"
    assert (aside / ROUNDS).read_text() == records(1)[0].to_json() + "\n"
    assert store.result(part).version == __version__
    assert store.result(whole).version == "0.1"
