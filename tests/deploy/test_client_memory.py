"""What a client remembers of what it has said: a server cannot make it forget, in this run or by another."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from bifl.core.layout import Layout
from bifl.core.message import NOTHING
from bifl.core.state import Public
from bifl.deploy import protocol
from bifl.deploy.client.client_state import FileNotes, alone
from bifl.deploy.client_app import operator_of
from bifl.deploy.protocol import Refusal, words_for_clients
from bifl.experiment.settings import Experiment
from bifl.privacy.dice import round_secret
from tests.secure.test_secure_runs import nodes
from tests.support.federation import quick
from tests.support.liar import Liar

PUBLIC = Public(0, 0, Layout((), (), (), ()), NOTHING, NOTHING)
pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def liar(tmp_path: Path, small: Path, keys: Path) -> Liar:
    """One that has begun a secure sum."""
    return Liar(tmp_path, quick(small, model="mlp", secure_sum=True), keys, "shares")


def notes_of(folder: Path) -> dict[str, bytes]:
    """The notes of client 0, in folders that are in use."""
    return {path.name: path.read_bytes() for path in (folder / "state-0").glob("????????????????/note-*")}


@pytest.mark.parametrize("part", ["weights", "real"])
@pytest.mark.parametrize("value", [np.inf, np.nan, 1e38])
def test_a_model_that_is_not_finite_is_refused(liar: Liar, part: str, value: float) -> None:
    """Before: it was saved, could not be read again, and all that the client had said was forgotten with it."""

    def spoiled(public: Public) -> Public:
        numbers = getattr(public, part).copy()
        numbers[0] = value
        return public._replace(**{part: numbers})

    before = notes_of(liar.folder)
    for _ in range(2):
        assert "not finite or far too large" in liar.ask(protocol.HEAR, liar.told(spoiled))["failed"]
    assert list(before) == ["note-secure_sum"]
    assert notes_of(liar.folder) == before
    assert not list((liar.folder / "state-0").glob("*damaged*"))


@pytest.mark.parametrize("name", ["public.npz", "terms.json", "train/labels.npy"])
def test_notes_outlast_damage(liar: Liar, name: str) -> None:
    """What is damaged is told again; what the client has said it still knows."""
    state, before = liar.folder / "state-0", notes_of(liar.folder)
    (state / liar.run / name).write_bytes(b"garbage")
    assert liar.ask(protocol.HEAR).get("lost")
    assert notes_of(liar.folder) == before != {}
    assert (state / f"{liar.run}.damaged-1" / name).read_bytes() == b"garbage"
    assert "images" in liar.greet()
    assert notes_of(liar.folder) == before
    assert "failed" not in liar.ask(protocol.HEAR)


@pytest.mark.parametrize("data", [b"", b"{}", b"0" * 64 + b"\n{}"])
def test_a_client_whose_notes_are_damaged_goes_no_further(liar: Liar, data: bytes) -> None:
    (note,) = (liar.folder / "state-0").rglob("note-secure_sum")
    note.write_bytes(data)
    for exchange in ("keys", "shares", "ballot_reveal"):
        assert liar.exchange(exchange, uploads=True)["failed"] == "what it has said in this run is damaged: it takes part no more"
    assert note.read_bytes() == data


def test_notes_are_whole_or_refused(tmp_path: Path) -> None:
    """Those of private noise too, of which an empty one would be none."""
    notes = FileNotes(tmp_path)
    first = round_secret(notes, PUBLIC)
    assert round_secret(FileNotes(tmp_path), PUBLIC) == first
    (tmp_path / "note-privacy").write_bytes(b"")
    with pytest.raises(Refusal, match="no more"):
        round_secret(notes, PUBLIC)
    (tmp_path / "note-privacy").unlink()
    (tmp_path / "note-privacy").mkdir()
    with pytest.raises(Refusal, match="cannot read"):
        round_secret(notes, PUBLIC)


def test_one_run_a_state_directory(liar: Liar) -> None:
    """The same round without one client, in another run with the same settings, would tell the difference: its update."""
    other = "0123456789abcdef"
    assert "its operator can start it with another --state" in liar.greet(other)["failed"]
    assert "another run" in liar.ask(protocol.HEAR, run=other)["failed"]
    assert not (liar.folder / "state-0" / other).exists()
    assert "images" in liar.greet()  # the same run goes on
    assert "failed" not in liar.exchange("keys", uploads=True)


def test_a_run_without_secure_sums_so_far_binds_nobody(tmp_path: Path, small: Path, keys: Path) -> None:
    liar = Liar(tmp_path, quick(small, model="mlp", secure_sum=True), keys)
    assert "images" in liar.greet("0123456789abcdef")


def test_two_messages_are_answered_one_after_the_other(liar: Liar) -> None:
    """Each reads notes and writes them: in between nobody else may."""
    answers: list[dict[str, Any]] = []
    second = Thread(target=lambda: answers.append(liar.ask(protocol.HEAR)))
    with alone(liar.folder / "state-0"):
        second.start()
        second.join(3)
        assert not answers
    second.join()
    assert "failed" not in answers[0]


def test_a_client_insists_on_colluders(tmp_path: Path, keys: Path) -> None:
    context = nodes(tmp_path, keys).nodes[100].context
    context.node_config["colluders"] = 1
    operator = operator_of(context.node_config)
    assert (
        operator.experiment(words_for_clients(Experiment(algorithm="biml", clients=5, secure_sum=True, colluders=1))).colluders == 1
    )
    with pytest.raises(Refusal, match="this run has colluders=0, and this client wants colluders=1 or more"):
        operator.experiment(words_for_clients(Experiment(algorithm="biml", clients=5, secure_sum=True)))


def test_a_client_with_peers_needs_a_folder(tmp_path: Path, keys: Path) -> None:
    grid = nodes(tmp_path, keys)
    del grid.nodes[100].context.node_config["state-dir"]
    with pytest.raises(Refusal, match="needs a state-dir="):
        operator_of(grid.nodes[100].context.node_config)
