"""Studies that have a dataset of their own, and what stands beside their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from bifl.errors import ConfigError
from bifl.runs.record import Record
from studies import keeping
from studies.cells import cells as cells_of
from studies.reproduce import request
from studies.runner import Store
from studies.study_tables import Shown
from tests.support.commands import Run, refused


def records(*accuracies: float) -> list[Record]:
    return [Record(n, accuracy, 1.0, 1.0, 10, 100, 200, 20, 0.5, 1.5, 0.1, 1.0) for n, accuracy in enumerate(accuracies, 1)]


def test_a_study_has_its_dataset_and_that_its_place(tmp_path: Path, here: Run) -> None:
    folders = (tmp_path, tmp_path)
    asked = request(["table1", "sensors"], {}, folders, quick=False, kept=True)
    assert asked.places == [("table1", "mnist"), ("sensors", "uci_har")]
    sensors = ["reproduce", "sensors", "dataset.path=here.npz"]
    assert f"'{tmp_path / 'here.npz'}' holds no UCI HAR" in refused(here(*sensors, cwd=tmp_path))
    experiment = cells_of("sensors", "uci_har", None)[0].experiment
    keeping.save(tmp_path / "results/cells", experiment.changed({"dataset.path": "elsewhere.npz"}), records(0.9))
    assert ", 1 of them kept in" in here(*sensors, "--kept", cwd=tmp_path).stdout, "wherever the file lies"
    for settings in ({"dataset": "unipen,uci_har"}, {"dataset": "mnist,unipen"}):
        with pytest.raises(ConfigError, match=r"dataset\.path= is for one dataset"):
            request(["sensors"], {**settings, "dataset.path": "x"}, folders, quick=False, kept=True)
    both = request(["table1", "sensors"], {"dataset": "uci-har"}, folders, quick=False, kept=True)
    assert both.places == [("table1", "uci_har"), ("sensors", "uci_har")]


def test_another_dataset_stands_beside_the_papers(tmp_path: Path) -> None:
    store = Store(tmp_path / "cells", tmp_path / "work")
    keeping.save(store.kept, cells_of("characters", "unipen", None)[0].experiment, records(0.7, 0.8))
    page = Shown.of(store, "characters", "unipen", None, [0]).page()
    assert "This is not FEMNIST, on which the paper has after 100 rounds: FA 76.65 ± 0.15 %." in page
    assert "| – | – |" in page, "no difference is told"
