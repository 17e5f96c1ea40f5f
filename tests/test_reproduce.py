"""The paper's studies: their cells, what is kept of them, and the command."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bifl import cells, paper
from bifl.errors import RunError
from bifl.experiment import Experiment
from bifl.report.collect import read as read_results
from bifl.reproduce import tables
from bifl.reproduce.runner import Store
from bifl.reproduce.studies import PLACES, STUDIES
from bifl.reproduce.studies import cells as cells_of
from bifl.runtime.record import Record
from tests.commands import bifl, refused

RECORD = Record(1, 0.5, 1.0, 1.0, 10, 100, 200, 20, 0.5, 1.5, 0.1, 1.0)


def records(*accuracies: float) -> list[Record]:
    return [RECORD._replace(round=n, accuracy=accuracy) for n, accuracy in enumerate(accuracies, 1)]


def test_every_study_runs_on_every_dataset_and_no_two_cells_share_a_name() -> None:
    for dataset in PLACES:
        found: dict[str, Experiment] = {}
        for study in STUDIES:
            for cell in cells_of(study, dataset, rounds=5):
                other = found.setdefault(cells.name(cell.experiment), cell.experiment)
                assert cells.identity(other) == cells.identity(cell.experiment)
        assert len(found) >= 30


def test_tables_one_and_two_on_mnist_are_the_papers_cells() -> None:
    printed = [paper.cell_of(cell.experiment) for study in ("table1", "table2") for cell in cells_of(study, "mnist", None)]
    assert None not in printed
    assert set(printed) == {cell for cell in paper.CELLS if cell.preset.startswith("mnist")}


def test_a_kept_cell_is_found_by_what_decides_its_numbers(tmp_path: Path) -> None:
    ran = Experiment(rounds=3, workers=2, seed=1)
    path = cells.save(tmp_path, ran, records(0.1, 0.2, 0.3))
    assert cells.load(tmp_path, Experiment(rounds=2, workers=1, seed=1)) == records(0.1, 0.2)
    assert cells.load(tmp_path, Experiment(rounds=9, seed=1)) == records(0.1, 0.2, 0.3)
    for other in (Experiment(seed=2), Experiment(seed=1, lr=0.1), Experiment(seed=1, algorithm={"name": "biml", "alpha": 2.0})):
        assert cells.load(tmp_path, other) == []
    assert cells.save(tmp_path, ran, records(0.9)) == path
    assert len(cells.load(tmp_path, ran)) == 3, "fewer rounds do not replace more"
    assert read_results(tmp_path)[0].records == records(0.1, 0.2, 0.3), "the report reads cells"


def test_the_same_run_is_the_same_file(tmp_path: Path) -> None:
    first = cells.save(tmp_path / "a", Experiment(workers=1), records(0.1)).read_bytes()
    assert cells.save(tmp_path / "b", Experiment(workers=2), records(0.1)).read_bytes() == first


def test_a_damaged_cell_is_named(tmp_path: Path) -> None:
    path = cells.save(tmp_path, Experiment(), records(0.1))
    for damage in (path.read_bytes()[:-9], b"", gzip.compress(b"{}\n"), gzip.compress(b"\xff")):
        path.write_bytes(damage)
        with pytest.raises(RunError, match=path.name):
            cells.load(tmp_path, Experiment())


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "cells", tmp_path / "work")
    short, long, other = Experiment(rounds=2), Experiment(rounds=3), Experiment(rounds=2, seed=1)
    assert store.missing([short, long, other, short]) == [long, other]
    cells.save(store.kept, long, records(0.1, 0.2, 0.3))
    assert store.missing([short, long, other]) == [other]


def test_remarks_tell_the_order_and_the_price_of_a_switch(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path)
    for cell in cells_of("hybrid", "mnist5k", rounds=5):
        good = {"fedavg": 0.9, "biml": 0.8}.get(cell.experiment.algorithm.name, 0.7)
        cells.save(tmp_path, cell.experiment, records(good, good - 0.1, good, good, good))
    lines = tables.collect(store, cells_of("hybrid", "mnist5k", rounds=5), [0])
    assert [line.texts()[3] for line in lines] == ["78.00", "68.00", "68.00", "68.00", "88.00"]
    assert "hybrid T = 1: 70.00 % before the switch, 60.00 % in the round after it." in tables.remarks(lines)


def test_reproduce_runs_keeps_and_shows(tmp_path: Path) -> None:
    command = ["reproduce", "unbalanced", "--quick", "rounds=1"]
    first = bifl(*command, cwd=tmp_path)
    assert "4 cells, 0 known already; 4 to run, 4 rounds: about" in first.stdout
    assert "BiFL-BiML" in first.stdout
    again = bifl(*command, cwd=tmp_path)
    assert "4 cells, all known already" in again.stdout
    more = bifl("reproduce", "unbalanced", "--quick", "rounds=2", cwd=tmp_path)
    assert "4 to run, 4 rounds" in more.stdout, "the first round of each is not run again"
    made = {path.name for path in (tmp_path / "runs" / "quick").iterdir()}
    assert made == {"cells", "work", "unbalanced-mnist5k.md", "unbalanced-mnist5k.png", "report.html"}


def test_what_is_kept_can_be_shown_without_data(tmp_path: Path) -> None:
    known = cells_of("unbalanced", "celeba", None)[1].experiment
    cells.save(tmp_path / "results" / "cells", known, records(0.1, 0.2))
    done = bifl("reproduce", "table1", "unbalanced", "dataset=celeba", "seeds=0,1", "--kept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "22 cells, 0 of them kept with all their rounds; nothing is run" in done.stdout
    assert "Table I" in done.stdout, "one of its cells is the one that is kept"
    assert "2 × 1" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabel1"], "unknown study 'tabel1': did you mean 'table1'?"),
        (["dataset=mnist5k"], "say which study"),
        (["table1", "dataset=mnist6k"], "dataset 'mnist6k' is none that"),
        (["table1", "algorithm=biml"], "dataset=, seeds= and rounds=, not 'algorithm'"),
        (["table1", "rounds=0"], "rounds must be 1 or more"),
        (["table1", "--quick", "dataset=mnist"], "--quick means dataset=mnist5k"),
        (["table1", "dataset=celeba"], "celeba"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    assert said in refused(bifl("reproduce", *words, cwd=tmp_path))
    assert not list(tmp_path.iterdir())
