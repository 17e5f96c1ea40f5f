"""The events of a run: JSON lines whose texts are harmless, whoever they quote."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifl.deploy.server.server_commands import SERVER, remembered
from bifl.errors import ConfigError, quoted
from bifl.experiment.settings import Experiment
from bifl.runs.events import EVENTS, FINISHED, LONGEST, REFUSED, writer
from bifl.runs.folder import RunFolder
from tests.support.commands import Run

CONTROLS = "\n\r\t\x00\x1b[2J\x9b\x7f\x85\u2028\u2029\u202e\u2066\u200b\ufeff\ud800\U000e0041"


@given(st.text(max_size=3000) | st.text(CONTROLS, max_size=50))
def test_a_text_is_one_printable_line(text: str) -> None:
    shown = quoted(text, LONGEST)
    assert shown.isprintable()
    assert shown.splitlines() in ([shown], [])
    assert len(shown) <= LONGEST
    shown.encode()  # no half of a pair


@given(st.recursive(st.none() | st.text() | st.integers() | st.binary() | st.floats(), lambda inner: st.lists(inner, max_size=3)))
def test_whatever_is_quoted_is_short(value: Any) -> None:
    assert len(quoted(value)) <= 200


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    tell = writer(tmp_path)
    tell("x\nfinished", REFUSED, client=2)
    tell("the run is complete", FINISHED)
    first, last = map(json.loads, (tmp_path / EVENTS).read_text().splitlines())
    assert set(first) == {"time", "kind", "client", "text"}
    assert (first["kind"], first["client"], first["text"]) == (REFUSED, 2, "x\\nfinished")
    assert (set(last), last["kind"]) == ({"time", "kind", "text"}, FINISHED)


def test_a_run_of_an_earlier_version_continues(tmp_path: Path) -> None:
    """It knows of no --max-images."""
    run = RunFolder.start(tmp_path / "run", Experiment(clients=2))
    old = {"keys": "keys", "host": "127.0.0.1", "port": 8000, "min_clients": 0, "deadline": 600.0, "keep_messages": False}
    (run.path / SERVER).write_text(json.dumps(old))
    assert asdict(remembered(run, {"max_images": 7})) == old | {"max_images": 7}
    with pytest.raises(ConfigError, match="max-images must be from 1"):
        remembered(run, {"max_images": -1})
    with pytest.raises(ConfigError, match="min-clients must be from 1 to clients=2"):
        remembered(run, {"min_clients": 3})


def test_a_limit_that_makes_no_sense_is_refused(here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = here("server", "clients=2", "--max-images", "-1", "--out", "run")
    assert done.returncode == 2
    assert "max-images must be from 1" in done.stderr
    assert not (tmp_path / "run").exists()
