"""What a server does with answers that cannot be counted: refuse, tell, and go on as if they had not come."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from rich.console import Console

from bifl.core import FLOAT32
from bifl.deploy import protocol
from bifl.deploy.client_app import app
from bifl.deploy.server.nodes import run_rounds
from bifl.deploy.server.server_commands import shown_as_well
from bifl.errors import RunError, quoted
from bifl.runs import events
from bifl.runs.events import REFUSED
from bifl.runs.folder import RunFolder
from bifl.show.terminal import Meter
from tests.support.federation import deploy, flipped, neighbours, otherwise, quick, read_events, spoiled, told
from tests.support.grid import BALLOT, STATISTICS, Clock, LocalGrid, Node, kind_of

pytestmark = pytest.mark.usefixtures("clock")


_HONEST: list[bytes] = []  # made once: a fixture of a wider scope could not have the clock


@pytest.fixture
def honest(tmp_path: Path, small: Path) -> bytes:
    """The model of two clients where the third is not there."""
    if not _HONEST:
        folder = tmp_path / "honest"
        grid = LocalGrid({100: Node(0, folder / "a"), 101: Node(1, folder / "b")})
        deploy(grid, folder / "run", quick(small, rounds=1, batchnorm="average"), deadline=0.5)
        _HONEST.append((folder / "run/model").read_bytes())
    return _HONEST[0]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda data: b"garbage", "cut short"),
        (flipped, "checksum"),
        (otherwise(round=7), "is of round 7"),
        (otherwise(sender=0), "is from client 0"),
        (otherwise(weight=10**6), "weighs 1000000"),
        (otherwise(symbols=np.zeros(5, np.uint8)), "holds 5 symbols"),
        (otherwise(real=np.full(860, np.nan, np.float32)), "real numbers|not finite"),
        (otherwise(symbols=np.ones(81958, np.float32), alphabet=FLOAT32), "spelled in float32"),
        (lambda data: 3, "lacks a loss or an upload"),
    ],
    ids=["garbage", "checksum", "round", "sender", "weight", "size", "numbers", "alphabet", "type"],
)
def test_what_cannot_be_counted_is_refused(
    tmp_path: Path, small: Path, honest: bytes, spoil: Callable[[bytes], Any], why: str
) -> None:
    grid = neighbours(tmp_path)
    grid.nodes[102].app = spoiled(spoil)
    records = deploy(grid, tmp_path / "run", quick(small, rounds=1, batchnorm="average"))
    assert [(record.clients, record.refused) for record in records] == [(2, 1)]
    pattern = "|".join(f"client 2 refused: .*{part}" for part in why.split("|"))
    assert re.search(pattern, told(tmp_path / "run"))
    assert (tmp_path / "run/model").read_bytes() == honest


def test_spoiled_statistics_are_refused(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    grid.nodes[102].app = spoiled(flipped, STATISTICS)
    records = deploy(grid, tmp_path / "run", quick(small, rounds=1))
    assert [(record.clients, record.refused) for record in records] == [(3, 1)]


def test_a_late_ballot_is_refused_and_its_client_told_so(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    late: list[tuple[Message, Context]] = []
    voted: list[bool] = []

    def slow(message: Message, context: Context) -> Message | None:
        if kind_of(message) == BALLOT:
            voted.append(bool(protocol.fields_of(message)["voted"]))
            if len(voted) == 1:
                late.append((message, context))
                return None
            if late:
                grid.deliver(app(*late.pop()))  # of the last round, just before the answer of this one
        return app(message, context)

    grid.nodes[101].app = slow
    records = deploy(grid, tmp_path / "run", quick(small, rounds=3), deadline=1.0)
    assert [(record.clients, record.missing, record.refused) for record in records] == [(2, 1, 0), (3, 0, 1), (3, 0, 0)]
    assert voted == [False, False, True]
    assert "client 1 refused: the ballot of round 1 came late" in told(tmp_path / "run")


def test_nobody_is_two_clients(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    grid.nodes[200] = Node(1, tmp_path / "again")
    grid.nodes[201] = Node(9, tmp_path / "nine")
    records = deploy(grid, tmp_path / "run", quick(small, rounds=2))
    assert [record.clients for record in records] == [3, 3]
    said = told(tmp_path / "run")
    assert "client 1 is there already" in said
    assert "client number 9 is none of 0 to 2" in said


def test_too_few_ballots_end_the_run_with_a_reason(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)

    def broken(message: Message, context: Context) -> Message:
        if kind_of(message) == BALLOT:
            raise ValueError("no electricity")
        return app(message, context)

    for number in (101, 102):
        grid.nodes[number].app = broken
    with pytest.raises(RunError, match=r"round 1: too few ballots, 1 of 2"):
        deploy(grid, tmp_path / "run", quick(small), deadline=0.5)
    assert "no electricity" in told(tmp_path / "run")


def test_refused_statistics_name_their_own_round(tmp_path: Path, small: Path) -> None:
    """The broadcast of round 1 is out by then, and yet these are the statistics of round 1."""
    grid = neighbours(tmp_path)
    grid.nodes[101].app = spoiled(flipped, STATISTICS)
    grid.nodes[102].app = spoiled(lambda data: "none", STATISTICS)
    deploy(grid, tmp_path / "run", quick(small, rounds=1))
    said = told(tmp_path / "run", REFUSED).splitlines()
    assert [line.split(": ")[:2] for line in said] == [["round 1", "client 1 refused"], ["round 1", "client 2 refused"]]


@pytest.mark.parametrize("reason", ["x\nfinished", "x\r\x1b[2J\x1b]0;owned\x07", "\u202egnorw \u2028 \u0085 [bold]x[/bold]" * 99])
def test_what_a_client_says_of_its_errors_is_shown_and_obeyed_by_nobody(tmp_path: Path, small: Path, reason: str) -> None:
    grid = neighbours(tmp_path)

    def broken(message: Message, context: Context) -> Message:
        if kind_of(message) == BALLOT:
            return Message(Error(2, reason), reply_to=message)
        return app(message, context)

    grid.nodes[102].app = broken
    out = Console(file=io.StringIO(), force_terminal=True, markup=False, emoji=False, highlight=False, width=400)
    run = RunFolder.start(tmp_path / "run", quick(small, rounds=1))
    assert len(list(run_rounds(grid, run, tell=shown_as_well(run, Meter(out, 1))))) == 1
    kinds = [event["kind"] for event in read_events(tmp_path / "run")]
    assert kinds.count(events.FINISHED) == kinds.count(events.ERROR) == 1
    shown = out.file.getvalue()  # type: ignore[attr-defined]
    assert "the ballot of client 2 failed: " + quoted(reason)[:20] in shown
    lines = (tmp_path / "run" / events.EVENTS).read_text().splitlines()
    assert len(lines) == len(kinds)
    assert max(map(len, lines)) < 3 * 400
    for text in (shown.replace("\n", "").replace("\x1b[?25l", ""), *lines, told(tmp_path / "run").replace("\n", "")):
        assert text.isprintable()


def test_a_reply_that_flower_cannot_read_costs_the_others_nothing(tmp_path: Path, small: Path, honest: bytes) -> None:
    """Flower takes all replies at once and loses all if one is damaged: they are asked for again, then one by one."""
    grid = Damaging(neighbours(tmp_path).nodes)
    records = deploy(grid, tmp_path / "run", quick(small, rounds=1, batchnorm="average"))
    assert [(record.clients, record.refused) for record in records] == [(2, 1)]
    assert "everyone who was asked is asked again" in told(tmp_path / "run")
    assert "client 2 refused: its answer makes no sense" in told(tmp_path / "run")
    assert (tmp_path / "run/model").read_bytes() == honest


class Damaging(LocalGrid):
    """Carries messages as Flower does, as objects in bytes; those of node 102's ballots are damaged on the way."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._carried(message) for message in super().pull_messages(message_ids)]

    def _carried(self, message: Message) -> Message:
        objects = {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}
        if (message.metadata.message_type, message.metadata.src_node_id) == (protocol.EXCHANGE, 102):
            objects = {name: data[:-9] + b"\xff" * 9 for name, data in objects.items()}
        found = inflate_object_from_contents(message.object_id, objects)
        assert isinstance(found, Message)
        return found


@pytest.mark.parametrize("code", [2, 8])
def test_one_client_s_errors_never_end_a_run(tmp_path: Path, small: Path, code: int) -> None:
    """Even where all ballots are needed: it is asked again, until it is mended."""
    grid = neighbours(tmp_path, 2)
    asked: list[str] = []

    def broken(message: Message, context: Context) -> Message:
        asked.append(kind_of(message))
        if kind_of(message) == BALLOT and asked.count(BALLOT) < 9:
            return Message(Error(code, "no electricity"), reply_to=message)
        return app(message, context)

    grid.nodes[101].app = broken
    records = deploy(grid, tmp_path / "run", quick(small, clients=2, rounds=1), least=2, deadline=5)
    assert [record.clients for record in records] == [2]
    assert asked.count(BALLOT) == 9


def test_clients_that_cannot_join_are_no_reason_to_wait_for_ever(tmp_path: Path, small: Path, clock: Clock) -> None:
    grid = neighbours(tmp_path)
    for node in grid.nodes.values():
        node.context.node_config["data"] = "nothing.npz"
    with pytest.raises(RunError, match="all clients failed: client 0: its data cannot be used"):
        deploy(grid, tmp_path / "run", quick(small), deadline=600)
    assert clock.now < 10
