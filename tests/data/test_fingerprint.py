"""What a run was on: told at its beginning, written down, and compared wherever runs go on or stand beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from bifl.data import fingerprint
from bifl.data.datasets import Dataset, dataset
from bifl.data.fingerprint import Loaded, from_json, loaded, sentence, to_json
from bifl.errors import RunError
from bifl.experiment.settings import Experiment
from bifl.report.remarks import remarks
from bifl.report.summary import settings
from bifl.runs.folder import DATA, Result, RunFolder, read_data
from bifl.runs.record import Record
from bifl.runs.results import Series, read_kept
from bifl.runs.results import read as read_results
from studies import keeping
from studies.runner import Store
from tests.support.commands import Run, refused
from tests.support.federation import deploy, neighbours, quick

WORDS = ["dataset=npz", "algorithm=fedavg", "model=mlp", "model.inputs=5", "clients=2", "workers=1", "rounds=1"]
RECORD = Record(
    round=1, accuracy=0.5, loss=1.0, train_loss=1.0, clients=1, up_bytes=1, down_bytes=1, broadcast_bytes=1, up_bpp=1.0,
    down_bpp=1.0, flips=0.0, seconds=1.0,
)  # fmt: skip


def arrays(seed: int = 0) -> dict[str, Any]:
    dice = np.random.default_rng(seed)
    inputs, labels = dice.random((40, 5)).astype(np.float32), np.arange(40) % 2
    return {"inputs": inputs, "labels": labels, "test_inputs": inputs[:6] + 1, "test_labels": labels[:6]}


def written(path: Path, seed: int = 0) -> str:
    np.savez(path, **arrays(seed))
    return f"dataset.path={path}"


def made(**changes: Any) -> Dataset:
    parts = arrays() | {"users": None} | changes
    return Dataset(
        parts["inputs"], parts["labels"], parts["test_inputs"], parts["test_labels"], 2, 0.0, 1.0, parts["users"]
    )  # fmt: skip


ONE, OTHER = loaded(made()), loaded(made(labels=1 - arrays()["labels"]))


# ---- digests ---------------------------------------------------------------------------------------------------------


def test_a_digest_is_of_the_numbers() -> None:
    inputs = arrays()["inputs"]
    for same in (np.asfortranarray(inputs), inputs.astype(">f4"), np.repeat(inputs, 2, 0)[::2]):
        assert loaded(made(inputs=same)) == ONE
    swapped = made()._replace(inputs=made().test_inputs, labels=made().test_labels, test_inputs=made().inputs)
    others = [
        made(inputs=inputs + 1), made(labels=1 - arrays()["labels"]), made(users=np.zeros(40, np.int64)), swapped,
        made(test_inputs=inputs[:6]), made(inputs=inputs.reshape(40, 1, 5)),
    ]  # fmt: skip
    assert len({loaded(data).digest for data in [*others, made()]}) == 7


def test_of_arrays_beyond_all_measure_a_part_is_read_from_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "BLOCK", 100)
    monkeypatch.setattr(fingerprint, "WHOLE", 4_000)
    array = np.zeros((1_000, 10), np.uint8)  # blocks of ten rows, of which every third is read
    labels = np.zeros(1_000, np.int64)

    def digest() -> str:
        return loaded(made(inputs=array, labels=labels)).train_sha256

    before = digest()
    places = []
    for row in range(0, 1_000, 10):
        array[row] = 1
        places += [row] if digest() != before else []
        array[row] = 0
    assert places == list(range(0, 1_000, 30))


def test_a_server_without_data_says_so() -> None:
    found = loaded(dataset.make("remote", {}))
    assert (found.train, found.test) == (0, 0)
    assert sentence(found) == "none on this machine, 10 classes, 28×28 grey"


# ---- data.json -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "7", "[" * 100_000, "{}", "\0", to_json(ONE)[:-9],
        *(json.dumps(ONE._asdict() | change) for change in (
            {"train": -1}, {"train": True}, {"train": 4.0}, {"test": "6"}, {"classes": 10**30}, {"labels": ["classes"]},
            {"labels": "cats"}, {"inputs": "x" * 100}, {"inputs": "a\nb"}, {"test_sha256": "ab"}, {"train_sha256": None},
        )),
    ],
)  # fmt: skip
def test_a_damaged_data_json_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / DATA).write_text(text)
    with pytest.raises(RunError, match=r"data\.json' does not tell what data the run is on") as caught:
        read_data(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert from_json(to_json(ONE) + "\n") == ONE


def test_a_run_says_what_it_is_on_and_goes_on_with_nothing_else(tmp_path: Path, here: Run) -> None:
    data, run = written(tmp_path / "mine.npz"), tmp_path / "run"
    done = here("run", *WORDS, data, "--out", run)
    assert done.returncode == 0, done.stderr
    found = read_data(run)
    assert found is not None
    assert f"data: npz, 40 to train, 6 to test, 2 classes, 5 float32, digest {found.digest}\n" in done.stdout
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    written(tmp_path / "mine.npz", seed=1)
    said = refused(here("run", "--resume", run, "rounds=2"))
    assert "is a run on other data" in said
    assert found.digest in said
    assert "is a run on other data" in refused(here("personalise", run, "0"))
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    written(tmp_path / "mine.npz")
    (run / DATA).unlink()  # as an earlier version left it
    assert here("run", "--resume", run, "rounds=2").returncode == 0
    assert read_data(run) == found
    assert len(RunFolder.resume(run).records()) == 2


def test_all_runs_of_a_comparison_have_the_same_data(tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = Mock(wraps=fingerprint._digest)
    monkeypatch.setattr(fingerprint, "_digest", digest)
    data, path = written(tmp_path / "mine.npz"), tmp_path / "compared"
    words = [word for word in WORDS if not word.startswith("algorithm=")]
    done = here("compare", *words, data, "algorithms=fedavg,float16", "--out", path)
    assert done.returncode == 0, done.stderr
    assert digest.call_count == 2, "training and test data, once for all runs"
    assert done.stdout.count("data: npz, 40 to train, 6 to test") == 1
    runs = [path / "fedavg-s0", path / "float16-s0"]
    assert read_data(runs[0]) == read_data(runs[1]) is not None
    (runs[0] / DATA).unlink()
    before = {file: file.read_bytes() for run in runs for file in run.iterdir() if file.is_file()}
    written(tmp_path / "mine.npz", seed=1)
    assert f"'{runs[1]}' is a run on other data" in refused(here("compare", "--resume", path, "rounds=2"))
    assert {file: file.read_bytes() for run in runs for file in run.iterdir() if file.is_file()} == before


def test_a_server_writes_down_what_it_has(tmp_path: Path, small: Path) -> None:
    deploy(neighbours(tmp_path, 2), tmp_path / "run", quick(small, clients=2, rounds=1))
    found = read_data(tmp_path / "run")
    assert found is not None
    assert (found.train, found.test) == (400, 50)


# ---- kept runs, tables -----------------------------------------------------------------------------------------------


def test_a_kept_run_says_what_it_was_on(tmp_path: Path) -> None:
    experiment = Experiment()
    file = keeping.save(tmp_path, experiment, [RECORD], ONE)
    assert read_kept(file).data == ONE
    assert Store(tmp_path, tmp_path).result(experiment).data == ONE
    assert read_results([tmp_path]).results[0].data == ONE
    longer = [RECORD, RECORD._replace(round=2)]
    with pytest.raises(RunError, match=r"was run on other data .* which is not kept"):
        keeping.save(tmp_path, experiment, longer, OTHER)
    assert len(read_kept(file).records) == 1
    keeping.save(tmp_path, experiment, longer, ONE)
    assert len(read_kept(file).records) == 2
    assert read_kept(keeping.save(tmp_path, experiment.changed({"seed": 1}), [RECORD])).data is None, (
        "as earlier versions kept them"
    )


def result(data: Loaded | None, algorithm: str = "biml", seed: int = 0) -> Result:
    return Result(f"{algorithm}-{seed}-{data}", Experiment(algorithm=algorithm, seed=seed), [RECORD], data=data)


def test_a_table_tells_runs_on_other_data() -> None:
    series = [Series("biml", [result(ONE), result(OTHER, seed=1), result(None, seed=2)]), Series("full", [result(ONE, "full")])]
    said = [remark for remark in remarks(series) if "same data" in remark]
    assert said == [
        "These did not run on the same data, and their numbers cannot be compared: "
        f"biml (seed 0), full (seed 0): {sentence(ONE)}; biml (seed 1): {sentence(OTHER)}."
    ]
    assert not [remark for remark in remarks(series[1:]) if "same data" in remark]


def test_runs_on_other_data_are_not_one_row() -> None:
    (one,) = settings([result(ONE), result(OTHER), result(None, seed=1)])
    assert [(row.label, [run.data for run in row.results]) for row in one.series] == [("biml", [ONE, None]), ("biml (2)", [OTHER])]
