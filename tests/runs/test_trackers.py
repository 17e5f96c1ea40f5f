"""Tracking with the real packages: every round once, whatever happens in between."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bifl.experiment.settings import Experiment
from bifl.runs.folder import RunFolder
from bifl.runs.record import Ending, Record
from bifl.runs.trackers import KINDS, Tracker, followed
from tests.support.commands import SMALL, Run, refused, rounds, start, wait_for_round


def needs(kind: str) -> None:
    if importlib.util.find_spec(KINDS[kind].package) is None:
        pytest.skip(f"{KINDS[kind].package} is not installed: pip install 'bifl[{kind}]'")


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard's files hold: no number may be there twice."""
    from tensorboardX.event_file_writer import EventFileWriter  # noqa: F401  (registers the protobuf that follows)
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    for file in (folder / "tensorboard").glob("events*"):
        raw = file.read_bytes()
        while raw:  # length (8 bytes), its checksum (4), the event, its checksum (4)
            end = 12 + int.from_bytes(raw[:8], "little")
            event, raw = Event.FromString(raw[12:end]), raw[end + 4 :]
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    assert event.step not in found.setdefault(value.tag, {})
                    found[value.tag][event.step] = value.simple_value
    return found


def metrics(folder: Path, name: str) -> dict[int, float]:
    from mlflow import MlflowClient

    note = json.loads((folder / "mlflow.json").read_text())
    history = MlflowClient(note["uri"]).get_metric_history(note["run"], name)
    assert len({metric.step for metric in history}) == len(history)
    return {metric.step: metric.value for metric in history}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")


def column(folder: Path, name: str) -> dict[int, Any]:
    return {int(record["round"]): pytest.approx(record[name]) for record in rounds(folder)}


def test_tensorboard_survives_a_kill(finished: Path, tmp_path: Path, here: Run) -> None:
    needs("tensorboard")
    folder = tmp_path / "killed"
    process = start(*SMALL, "algorithm=biml", "rounds=4", "track=tensorboard", "--out", folder)
    wait_for_round(folder, 2)
    process.kill()
    process.communicate()
    assert here("run", "--resume", folder, "track=tensorboard").returncode == 0
    assert rounds(folder) == rounds(finished)
    found = scalars(folder)
    assert found["accuracy"] == column(folder, "accuracy")
    assert found["up_bytes"] == column(folder, "up_bytes")
    assert {"flips/conv1", "sureness/0.9", "loss", "seconds"} <= set(found)


def test_mlflow_goes_on_with_the_same_run(tmp_path: Path, store: None, here: Run) -> None:
    folder = tmp_path / "run"
    assert here("run", *SMALL, "algorithm=biml", "rounds=1", "track=mlflow", "--out", folder).returncode == 0
    assert here("run", "--resume", folder, "rounds=2").returncode == 0  # nobody told it to track: made up for the next time
    done = here("run", "--resume", folder, "rounds=3", "track=mlflow")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("accuracy", "down_bytes"):
        assert metrics(folder, name) == column(folder, name)
    from mlflow import MlflowClient

    note = json.loads((folder / "mlflow.json").read_text())
    run = MlflowClient(note["uri"]).get_run(note["run"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["algorithm.alpha"] == "1.25"


def test_a_comparison_is_tracked_run_by_run(tmp_path: Path, here: Run) -> None:
    needs("tensorboard")
    words = ["algorithms=fedavg,biml", "seeds=0", *SMALL, "rounds=1", "track=tensorboard"]
    assert here("compare", *words, "--out", tmp_path / "both").returncode == 0
    for name in ("fedavg-s0", "biml-s0"):
        assert scalars(tmp_path / "both" / name)["accuracy"] == column(tmp_path / "both" / name, "accuracy")


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_package_is_named_before_anything_is_written(
    kind: str, tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sentence = refused(here("run", *SMALL, f"track={kind}", "--out", tmp_path / "run"))
    assert f"pip install 'bifl[{kind}]'" in sentence
    assert not (tmp_path / "run").exists()


def test_track_is_a_known_word_given_once(here: Run) -> None:
    assert "did you mean 'mlflow'?" in refused(here("run", "track=mlfow"))
    assert "given twice" in refused(here("run", "track=mlflow", "track=tensorboard"))


def test_a_tracker_that_fails_does_not_stop_a_run(tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: RunFolder) -> Tracker:
        raise OSError("no route to host")

    monkeypatch.setitem(KINDS, "tensorboard", KINDS["tensorboard"]._replace(start=broken))
    needs("tensorboard")
    done = here("run", *SMALL, "rounds=2", "track=tensorboard", "--out", tmp_path / "run")
    assert done.returncode == 0
    assert done.stderr == "bifl: track=tensorboard failed, the run goes on without it (no route to host)\n"
    assert len(rounds(tmp_path / "run")) == 2


class Noted:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.logged = set[int]()
        self.told: list[tuple[int, set[str]]] = []
        self.complete = False

    def log(self, round: int, numbers: Mapping[str, float], when: float) -> None:
        self.told.append((round, set(numbers)))

    def close(self, complete: bool) -> None:
        self.complete = complete


def test_a_last_round_that_is_evaluated_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number is logged once; a run that something else than its last round's number ends is complete."""
    noted = Noted()
    monkeypatch.setitem(KINDS, "tensorboard", KINDS["tensorboard"]._replace(start=lambda run: noted))
    run = RunFolder.start(tmp_path / "run", Experiment(rounds=9))
    bare = Record(1, math.nan, math.nan, 0.5, 2, 100, 200, 100, 0.5, 1.5, 0.1, 1.0)
    last = bare._replace(round=2, accuracy=0.9, loss=0.3, ending=Ending.BUDGET)

    def held() -> Iterator[Record]:
        for record in (bare, bare._replace(round=2)):
            run.append(record)
            yield record
        run.mend_records(last)

    assert len(list(followed(held(), run, "tensorboard"))) == 2
    assert [round for round, _ in noted.told] == [1, 2, 2]
    assert noted.told[2][1] == {"accuracy", "loss"}
    assert noted.complete


def test_what_is_logged_has_the_names_of_records_and_settings(finished: Path) -> None:
    run = RunFolder.resume(finished)
    record = run.records()[0]
    flat = record.numbers()
    assert (flat["accuracy"], flat["flips/linear4"]) == (record.accuracy, (record.layer_flips or {})["linear4"])
    assert "round" not in flat
    assert not any("/" in name for name in record._replace(layer_flips=None, sureness=None).numbers())
    assert run.experiment.flat()["algorithm"] == "biml"
    assert run.experiment.flat()["algorithm.alpha"] == 1.25
