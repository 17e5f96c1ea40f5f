"""How much one client may count for, and which client a node is: declared once, bound to its key, the same for early and late."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message
from hypothesis import given
from hypothesis import strategies as st

from bifl.deploy import protocol
from bifl.deploy.certificates import client_number
from bifl.deploy.client_app import app
from bifl.deploy.server.members import DECLARED, Declared, over, times
from bifl.deploy.server.nodes import run_rounds
from bifl.deploy.server.requests import Rules
from bifl.engine.round import sampled
from bifl.errors import ConfigError, RunError
from bifl.runs.events import REFUSED
from bifl.runs.folder import RunFolder
from tests.support.federation import deploy, neighbours, quick, told
from tests.support.grid import BALLOT, Handler, LocalGrid, Node, kind_of

pytestmark = pytest.mark.usefixtures("clock")
LIE = 268_435_399
counts = st.lists(st.integers(1, 2**30), min_size=1, max_size=30)


@given(counts)
def test_the_limit_is_a_multiple_of_the_others_median(images: list[int]) -> None:
    found = over(dict(enumerate(images)))
    for who, count in enumerate(images):
        others = images[:who] + images[who + 1 :]
        assert (who in found) == bool(others and count > times(len(others)) * median(others))
    assert len(found) < len(images)  # somebody can always take part


@given(st.integers(2, 200), st.integers(1, 10**6))
def test_among_equals_nobody_can_hold_much_more_than_a_third(others: int, size: int) -> None:
    most = times(others) * size
    assert over(dict.fromkeys(range(others), size) | {-1: most + 1}) == {-1: most}
    assert over(dict.fromkeys(range(others), size) | {-1: most}) == {}
    assert most / (most + others * size) <= {2: 0.5, 3: 0.4}.get(others, 1 / 3)


@given(counts, st.integers(1, 2**30))
def test_the_operator_s_limit_is_the_limit(images: list[int], chosen: int) -> None:
    assert set(over(dict(enumerate(images)), chosen)) == {who for who, count in enumerate(images) if count > chosen}


def test_a_few_that_declare_far_too_little_keep_nobody_out() -> None:
    assert over({0: 700, 1: 600, 2: 500, 3: 1}) == {}
    assert over(dict.fromkeys(range(8), 600) | {8: 1, 9: 1}) == {}


def test_declarations_outlive_the_server(tmp_path: Path) -> None:
    declared = Declared(tmp_path)
    declared.add(3, 600)
    again = Declared(tmp_path)
    assert again.problem(3, 600) is None
    assert "declared 600 images before and says 601 now" in str(again.problem(3, 601))
    for damaged in ("", "[]", '{"a": 1}', '{"0": 1.5}', '{"0": -1}', '{"0": true}'):
        (tmp_path / DECLARED).write_text(damaged)
        with pytest.raises(RunError, match=DECLARED):
            Declared(tmp_path)


def claiming(**claims: Any) -> Handler:
    """A client that says something else of itself."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if kind_of(message) == protocol.HELLO:
            record = reply.content[protocol.RECORD]
            assert isinstance(record, ConfigRecord)
            record.update(claims)
        return reply

    return answer


def test_one_of_four_cannot_decide_every_vote(tmp_path: Path, small: Path) -> None:
    """Whoever comes first; it is told, as everyone is, and so is its operator."""
    experiment = quick(small, clients=4, rounds=1, batchnorm="average")
    models = set()
    for order in ([3, 0, 1, 2], [0, 1, 2, 3]):
        folder = tmp_path / f"{order[0]}-first"
        grid = LocalGrid({100 + number: Node(number, folder / str(number)) for number in order})
        grid.nodes[103].app = claiming(images=LIE)
        records = deploy(grid, folder / "run", experiment)
        assert [(record.clients, record.missing) for record in records] == [(3, 0)]
        said = told(folder / "run", REFUSED)
        assert said.count("client 3 refused") == 1
        assert f"the server's operator lets it in with --max-images {LIE}" in said
        assert grid.nodes[103].kinds == [protocol.HELLO, protocol.HEAR]
        models.add((folder / "run/model").read_bytes())
    grid = LocalGrid({100 + number: Node(number, tmp_path / "three" / str(number)) for number in range(3)})
    deploy(grid, tmp_path / "three/run", experiment, deadline=1)
    assert models == {(tmp_path / "three/run/model").read_bytes()}


def test_the_operator_lets_a_large_client_in(tmp_path: Path, small: Path) -> None:
    """A run goes on with another limit, and what was declared still holds."""
    experiment = quick(small, clients=2, rounds=1, partition={"name": "quantity", "skew": 2})
    grid = neighbours(tmp_path, 2)
    assert [record.clients for record in deploy(grid, tmp_path / "run", experiment)] == [1]
    run = RunFolder.resume(tmp_path / "run", {"rounds": "2"})
    assert [record.clients for record in run_rounds(grid, run, Rules(max_images=10**6))] == [2]
    run = RunFolder.resume(tmp_path / "run", {"rounds": "3"})
    with pytest.raises(RunError, match="every client has declared more images than --max-images 1 "):
        list(run_rounds(grid, run, Rules(max_images=1)))
    with pytest.raises(ConfigError, match="max-images must be from 1"):
        Rules(max_images=-1)


def test_a_number_of_images_cannot_change_during_a_run(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    experiment = quick(small, rounds=1, batchnorm="average")
    assert [record.clients for record in deploy(grid, tmp_path / "run", experiment)] == [3]
    grid.nodes[102].app = claiming(images=200)  # not too many, but others than before
    run = RunFolder.resume(tmp_path / "run", {"rounds": "2"})
    assert [record.clients for record in run_rounds(grid, run, Rules(deadline=1))] == [2]
    assert "client 2 (node 102) refused: it has declared 133 images before and says 200 now" in told(tmp_path / "run", REFUSED)


@pytest.mark.parametrize("idle", ["train", "sleep"])
def test_others_are_drawn_where_those_who_were_may_not_vote(tmp_path: Path, small: Path, idle: str) -> None:
    """One voter a round, and one client of three that may not be it, whether it is there from the start or comes later."""
    grid = neighbours(tmp_path)
    grid.nodes[101].app = claiming(images=LIE)
    grid.nodes[101].online = False
    experiment = quick(small, rounds=6, participation=0.3, idle=idle, batchnorm="average", seed=1)
    assert [sampled(experiment.seed, 3, experiment.voters(), round) for round in (1, 4)] == [[0], [1]], (
        "first another, later this one"
    )
    counts = []
    run = RunFolder.start(tmp_path / "run", experiment)
    for record in run_rounds(grid, run, Rules(deadline=1)):
        grid.nodes[101].online = True
        counts.append(record.clients)
    assert counts == [1] * 6
    assert BALLOT not in grid.nodes[101].kinds


def test_a_node_is_the_client_that_its_key_says(tmp_path: Path, small: Path) -> None:
    """Client 2's key cannot be client 1, whether that one is there or not; a node with another key is asked for nothing."""
    grid = neighbours(tmp_path)
    grid.nodes[101].online = False
    grid.nodes[102].app = claiming(number=1)
    grid.nodes[200] = Node(1, tmp_path / "stranger")
    numbers = {100: 0, 101: 1, 102: 2}
    run = RunFolder.start(tmp_path / "run", quick(small, rounds=1))
    assert [record.clients for record in run_rounds(grid, run, Rules(1, 1), numbers=lambda: numbers)] == [1]
    said = told(tmp_path / "run", REFUSED)
    assert "client 2 (node 102) refused: it says that it is client 1, and its key is that of client 2" in said
    assert "node 200 has a key that is none of the run's" in said
    assert grid.nodes[200].kinds == []


def test_keys_that_are_added_later_count(tmp_path: Path, small: Path) -> None:
    grid = neighbours(tmp_path)
    numbers = {100: 0, 102: 2}
    experiment = quick(small, rounds=2)
    counts = []
    run = RunFolder.start(tmp_path / "run", experiment)
    for record in run_rounds(grid, run, Rules(2, 1), numbers=lambda: numbers):
        numbers[101] = 1
        counts.append(record.clients)
    assert counts == [2, 3]


def test_a_key_s_number_is_in_its_name() -> None:
    names = ["client-0.pub", "client-12.pub", "client-01.pub", "client-x.pub", "client-.pub", "client-٣.pub", "other-1.pub"]
    assert [client_number(Path(name)) for name in names] == [0, 12, None, None, None, None, None]
