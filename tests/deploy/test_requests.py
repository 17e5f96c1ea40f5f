"""What a hostile server asks of a client: nothing is read, written or deleted that its operator has not given."""

from __future__ import annotations

import json
import os
import shlex
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bifl import __version__
from bifl.deploy import protocol
from bifl.deploy.client.client_state import ClientState
from bifl.deploy.client.operator_choices import Operator
from bifl.deploy.client_app import client_app
from bifl.deploy.flower.programs import read_pipe, tell_pipe
from bifl.deploy.protocol import Refusal
from bifl.errors import BiflError
from bifl.experiment.settings import Experiment
from tests.support.grid import BALLOT, EVALUATION, STATISTICS

RUN, STATE = "0123456789abcdef", "fedcba9876543210"
WORDS = shlex.join(Experiment(algorithm="biml", dataset="remote", clients=2, rounds=2, batch=2).words())
TERMS = {"experiment": WORDS, "classes": 10, "shape": [1, 28, 28], "mean": 0.1, "std": 0.3, "share": 0.0}
COMMON = {"run": RUN, "round": 0, "version": __version__}
KINDS = [protocol.HELLO, BALLOT, STATISTICS, EVALUATION, protocol.HEAR]


def asked(kind: str, fields: dict[str, Any]) -> Message:
    """A request as the server's, with whatever fields."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    if kind in (BALLOT, STATISTICS, EVALUATION):
        fields, kind = {"exchange": kind} | fields, protocol.EXCHANGE
    message = Message(protocol.content(fields), 1, kind)
    message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
    return message


class Victim:
    """A client with a few images, in a folder whose other contents are nobody's business."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, folder / "state"
        np.savez(folder / "mine.npz", images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4))
        (folder / "precious/train").mkdir(parents=True)
        (folder / "precious/train/thesis.tex").write_text("years of work")
        config = {"partition-id": 0, "state-dir": str(self.state), "data": str(folder / "mine.npz")}
        self.context = Context(1, 1, config, RecordDict(), {})  # type: ignore[arg-type]
        self.app = client_app()

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        return protocol.fields_of(self.app(asked(kind, fields), self.context))

    def files(self) -> dict[str, bytes]:
        """Everything, links unfollowed."""
        return {str(path): path.read_bytes() if path.is_file() else b"" for path in sorted(self.folder.rglob("*"))}

    def others(self, run: object) -> dict[str, bytes]:
        """All but the folder of a run."""
        inside = f"{self.state / run}/" if isinstance(run, str) and run in (RUN, STATE) else "nothing"
        return {name: data for name, data in self.files().items() if not f"{name}/".startswith(inside)}


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path)


@pytest.mark.parametrize(
    "run", ["../precious", "..", ".", "", "a/b", "0123456789ABCDEF", "0" * 17, "0123456789abcde\n", 7, "\0" * 16]
)
def test_a_run_s_name_is_no_path(victim: Victim, run: Any) -> None:
    """Before: `run` went into a path, and `train` below it was deleted."""
    before = victim.files()
    for name in (run, str(victim.folder / "precious")):
        said = victim.ask(protocol.HELLO, **TERMS | COMMON | {"run": name})
        assert "its 'run' must be 16 hexadecimal digits" in said["failed"]
    assert victim.files() == before


def test_links_in_the_state_directory_are_not_followed(victim: Victim) -> None:
    victim.state.mkdir()
    (victim.state / RUN).symlink_to(victim.folder / "precious")
    before = victim.files()
    assert "failed" in victim.ask(protocol.HELLO, **TERMS | COMMON)
    assert victim.files() == before
    (victim.state / RUN).unlink()
    (victim.state / RUN).mkdir()
    (victim.state / RUN / "train").symlink_to(victim.folder / "precious")
    assert "holds a link" in victim.ask(protocol.HELLO, **TERMS | COMMON)["failed"]
    assert (victim.folder / "precious/train/thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    "change",
    [
        {"round": -1}, {"round": 2**31}, {"round": True}, {"round": 1.5}, {"classes": 30_000_000}, {"classes": 0},
        {"shape": [1, 2**14, 2**14]}, {"shape": [1.0, 28.0, 28.0]}, {"shape": "1x2"},
        {"labels": [0]}, {"labels": [2**13, 2**13]}, {"labels": [1] * 5}, {"labels": "6"},
        {"mean": float("nan")}, {"std": 0.0}, {"std": float("inf")}, {"share": 1.0}, {"share": -0.1},
        {"experiment": "x" * 10_001}, {"experiment": b"bytes"}, {"experiment": "'"}, {"experiment": "no equals sign"},
        {"experiment": "rounds=1 rounds=2"},
    ],
    ids=str,
)  # fmt: skip
def test_malformed_terms_are_refused(victim: Victim, change: dict[str, Any]) -> None:
    before = victim.files()
    assert "the server's request makes no sense" in victim.ask(protocol.HELLO, **TERMS | COMMON | change)["failed"]
    assert victim.files() == before


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "x"}, {"digest": 3}, {"voted": 1}, {"uploads": "yes"}, {"anew": 1}, {"steps": [b"x"]},
        {"starts": [STATE] * 65, "exchanges": ["ballot"] * 65, "steps": [b"x"] * 65},
        {"starts": [STATE], "exchanges": ["X"], "steps": [b"x"]}, {"starts": ["../x"], "exchanges": ["ballot"], "steps": [b"x"]},
        {"starts": [STATE], "exchanges": ["ballot"], "steps": ["text"]}, {"whole.../exec": b"x"}, {"whole.news": "text"},
    ],
    ids=str,
)  # fmt: skip
def test_malformed_requests_are_refused(victim: Victim, change: dict[str, Any]) -> None:
    assert "images" in victim.ask(protocol.HELLO, **TERMS | COMMON)
    before = victim.files()
    said = victim.ask(BALLOT, **COMMON | {"digest": STATE, "voted": False, "uploads": True} | change)
    assert "the server's request makes no sense" in said["failed"]
    assert victim.files() == before


def test_the_server_s_notice_is_shown_in_one_line(victim: Victim) -> None:
    digest = victim.ask(protocol.HELLO, **TERMS | COMMON)["digest"]
    reading, writing = os.pipe()
    victim.app = client_app(tell=tell_pipe(writing))
    victim.ask(protocol.HEAR, **COMMON | {"digest": digest, "notice": "too many images\x1b[2J\nbifl: all is well"})
    assert list(read_pipe(reading)) == [(r"the server says: too many images\x1b[2J\nbifl: all is well", False)]
    assert "its 'notice' must be" in victim.ask(protocol.HEAR, **COMMON | {"digest": digest, "notice": "x" * 1001})["failed"]
    os.close(reading)
    os.close(writing)


def test_messages_are_no_longer_than_the_model_needs(victim: Victim) -> None:
    digest = victim.ask(protocol.HELLO, **TERMS | COMMON)["digest"]
    steps = {"starts": [digest], "exchanges": ["ballot"], "steps": [bytes(10**6)]}
    said = victim.ask(BALLOT, **COMMON | {"digest": STATE, "voted": False, "uploads": True} | steps)
    assert "more than this model needs" in said["failed"]


def test_an_exchange_that_a_run_does_not_have_is_refused(victim: Victim) -> None:
    digest = victim.ask(protocol.HELLO, **TERMS | COMMON)["digest"]
    request = COMMON | {"digest": STATE, "voted": False, "uploads": True}
    for more in ({"starts": [digest], "exchanges": ["exec"], "steps": [b"x"]}, {"anew": True, "whole.exec": b"x"}):
        assert "the exchange 'exec', which this run does not have" in victim.ask(BALLOT, **request | more)["failed"]
    assert "the exchange 'exec'" in victim.ask(BALLOT, **request | {"exchange": "exec", "digest": digest})["failed"]


SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text(max_size=40), st.binary(max_size=40),
    st.sampled_from(["../precious", "..", "/", RUN, STATE, "broadcast", "statistics", __version__, "algorithm=x.py:y"]),
)  # fmt: skip
VALUES = st.one_of(
    SCALARS,
    *(st.lists(kind, max_size=4) for kind in (st.integers(0, 100), st.floats(), st.binary(max_size=9), st.text(max_size=20))),
)
NAMES = [
    *TERMS,
    *COMMON,
    "digest",
    "starts",
    "exchanges",
    "steps",
    "anew",
    "voted",
    "uploads",
    "finished",
    "notice",
    "whole.news",
    "whole.model",
]
CHANGES = st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=12)), VALUES, max_size=4)
GOOD = TERMS | COMMON | {"digest": STATE, "voted": False, "uploads": True}


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Victim:
    victim = Victim(tmp_path_factory.mktemp("victim"))
    assert "images" in victim.ask(protocol.HELLO, **TERMS | COMMON)
    return victim


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(KINDS), CHANGES, st.sets(st.sampled_from(sorted(GOOD)), max_size=2))
def test_no_request_reaches_beyond_the_state_directory(
    settled: Victim, kind: str, changes: dict[str, Any], missing: set[str]
) -> None:
    """Whatever the fields: an answer, nothing raised, and only folders of runs below the state directory change."""
    fields = {name: value for name, value in (GOOD | changes).items() if name not in missing}
    run = fields.get("run")
    before, others = settled.files(), settled.others(run)
    said = settled.ask(kind, **fields)
    assert said["version"] == __version__
    assert settled.others(run) == others
    if "makes no sense" in said.get("failed", ""):
        assert settled.files() == before


def test_another_app_is_told_that_it_is_another(victim: Victim) -> None:
    message = asked(protocol.HELLO, {})
    message.content = RecordDict({"another": ConfigRecord()})
    why = "a message without the record 'bifl': server and clients must run the same app"
    assert protocol.fields_of(victim.app(message, victim.context))["failed"] == why


@settings(max_examples=300)
@given(st.sampled_from(KINDS), st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=12)), VALUES, max_size=20))
def test_a_request_is_read_or_refused(kind: str, fields: dict[str, Any]) -> None:
    try:
        message = asked(kind, fields)
        request = protocol.read_request(message.metadata.message_type, protocol.fields_of(message))
    except BiflError:
        return
    assert len(request.run) == 16
    assert isinstance(request, protocol.Envelope)


# ---- its own data and files -----------------------------------------------------------------------------------------


def test_a_client_without_data_reads_no_file_of_the_server_s_choice(victim: Victim) -> None:
    secret = victim.folder / "secret.npz"
    np.savez(secret, images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4))
    victim.context.node_config["data"] = ""
    text = shlex.join(["dataset=npz", "clients=2", f"dataset.path={secret}"])
    said = victim.ask(protocol.HELLO, **TERMS | COMMON | {"experiment": text})
    assert said["failed"] == "it does not allow dataset.path=secret.npz, a file: its operator can, with --allow, or give --data"
    assert not victim.state.exists()


def test_classes_and_shape_are_those_of_the_client_s_data(victim: Victim) -> None:
    said = victim.ask(protocol.HELLO, **TERMS | COMMON | {"shape": [1, 8, 8]})
    assert said["failed"] == "its images are (1, 28, 28), the run's are (1, 8, 8)"
    said = victim.ask(protocol.HELLO, **TERMS | COMMON | {"classes": 3})
    assert said["failed"] == "its labels must run from 0 to 2, not from 0 to 3"
    victim.context.node_config["data"] = "mnist5k"
    said = victim.ask(protocol.HELLO, **TERMS | COMMON | {"classes": 9_000})
    assert said["failed"] == "its classes are 10, the run's are 9000"
    assert not victim.state.exists()


# ---- the state directory ---------------------------------------------------------------------------------------------


def test_a_server_that_invents_runs_does_not_fill_the_disk(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bifl.deploy.client.client_state.MOST_RUNS", 2)
    answers = [victim.ask(protocol.HELLO, **TERMS | COMMON | {"run": f"{n:016x}"}) for n in range(3)]
    assert ["failed" in said for said in answers] == [False, False, True]
    assert answers[2]["failed"] == "its state directory is full: it holds 2 runs"


def test_a_run_s_settings_do_not_change_but_for_its_length(victim: Victim) -> None:
    assert "images" in victim.ask(protocol.HELLO, **TERMS | COMMON)
    longer = WORDS.replace("rounds=2", "rounds=5")
    assert "images" in victim.ask(protocol.HELLO, **TERMS | COMMON | {"experiment": longer})
    other = WORDS.replace("seed=0", "seed=1")
    assert other != WORDS
    said = victim.ask(protocol.HELLO, **TERMS | COMMON | {"experiment": other})
    assert "has changed the settings" in said["failed"]
    assert json.loads((victim.state / RUN / "terms.json").read_text())["experiment"] == longer


def test_names_that_flower_keeps_are_checked_too(victim: Victim) -> None:
    """Without a state directory files come back from Flower's memory by name."""
    victim.context.node_config["state-dir"] = ""
    escape = victim.folder / "escaped"
    names = {f"{RUN}/../../{'../' * 9}{escape}": b"x", str(escape): b"x", f"{RUN}/train/../../../../x.npy": b"x"}
    victim.context.state["bifl-state"] = ConfigRecord(names)  # type: ignore[arg-type]
    assert "images" in victim.ask(protocol.HELLO, **TERMS | COMMON)
    assert not escape.exists()
    kept = victim.context.state["bifl-state"]
    assert isinstance(kept, ConfigRecord)
    assert f"{RUN}/terms.json" in kept
    assert not set(names) & set(kept)


def test_a_home_is_in_the_state_directory(tmp_path: Path) -> None:
    for run in ("..", "x", "/etc", f"../{RUN}"):
        with pytest.raises(Refusal):
            ClientState(tmp_path, run, Operator(0), print)
