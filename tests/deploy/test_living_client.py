"""A client's process holds the run in memory, and its files say the same: whoever answers from the files answers the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from bifl.core.state import Client
from bifl.deploy import protocol
from bifl.deploy.client.client_state import ClientState
from bifl.deploy.client_app import LivingClient, operator_of
from bifl.engine.catch_up import digest
from bifl.engine.worker import Worker
from bifl.experiment.setup import fitting_network
from tests.support.federation import deploy, neighbours, quick
from tests.support.grid import BALLOT, LocalGrid, Node, kind_of

pytestmark = pytest.mark.usefixtures("clock")


class Networks:
    """Counts how often a client's network was made of its files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0

        def counted(*given: Any) -> Any:
            self.made += 1
            return fitting_network(*given)

        monkeypatch.setattr("bifl.deploy.client.client_state.fitting_network", counted)


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> Networks:
    return Networks(monkeypatch)


def test_the_network_is_made_once(tmp_path: Path, small: Path, networks: Networks) -> None:
    records = deploy(neighbours(tmp_path), tmp_path / "run", quick(small, rounds=3, holdout=0.2))
    assert [record.clients for record in records] == [3, 3, 3]
    assert networks.made == 3


def state_of(worker: Worker, number: int) -> list[object]:
    """All that an answer depends on."""
    client: Client | None = worker.clients.get(number)
    remembered = [] if client is None else [client.aux.tobytes(), client.start.tobytes(), client.memory.tobytes(), client.states]
    return [digest(worker.public, worker.run.in_context), *remembered]


@pytest.mark.parametrize("algorithm", ["biml", "hybrid", "ef_sign", "fedavg"])
def test_memory_and_disk_say_the_same_after_every_message(
    tmp_path: Path, small: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a client that answers from its files, as one does that was just killed, gives the same bytes."""
    grid, compared = neighbours(tmp_path), list[str]()
    node = grid.nodes[101]
    living = LivingClient()

    def both(message: Message, context: Context) -> Message:
        fields = protocol.fields_of(message)
        shutil.copytree(tmp_path / "state-1", tmp_path / "copy", dirs_exist_ok=True) if (tmp_path / "state-1").exists() else None
        said = living.answer(message, context)
        config = dict(context.node_config) | {"state-dir": str(tmp_path / "copy")}
        other = LivingClient().answer(message, Context(1, 1, config, RecordDict(), {}))
        shutil.rmtree(tmp_path / "copy")
        assert protocol.fields_of(said) == protocol.fields_of(other)
        if living.kept is not None and living.kept.worker is not None:
            state = ClientState(tmp_path / "state-1", str(fields["run"]), operator_of(context.node_config), print)
            worker = state.open(living.kept.worker.kept.get(1, 0))
            assert worker is not None
            assert state_of(living.kept.worker, 1) == state_of(worker, 1)
            compared.append(kind_of(message))
        return said

    node.app = both
    deploy(grid, tmp_path / "run", quick(small, rounds=3, algorithm=algorithm, participation=0.7))
    assert compared.count(BALLOT) >= 2


def first_ballot(grid: LocalGrid, folder: Path, small: Path) -> tuple[Node, Message]:
    """A node in the middle of a run, and the request that it was just asked for its second ballot with."""
    asked: list[Message] = []

    class Stopped(BaseException):
        pass

    def stop(message: Message) -> None:
        if kind_of(message) == BALLOT and message.metadata.dst_node_id == 100:
            asked.append(message)
            if len(asked) == 2:
                raise Stopped

    grid.before_push = stop
    with pytest.raises(Stopped):
        deploy(grid, folder / "run", quick(small, rounds=3, algorithm="biml"))
    return grid.nodes[100], asked[1]


def answer(node: Node, message: Message) -> dict[str, Any]:
    message.metadata.__dict__["_message_id"] = "again"
    reply = node.app(message, node.context)
    assert reply is not None
    record = reply.content[protocol.RECORD]
    assert isinstance(record, ConfigRecord)
    return dict(record)


def test_the_same_request_again_has_the_same_answer(tmp_path: Path, small: Path, networks: Networks) -> None:
    """Its reply was lost on the way: the client has trained since, and begins where it began the first time."""
    node, request = first_ballot(neighbours(tmp_path), tmp_path, small)
    made = networks.made
    answers = [answer(node, request) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert isinstance(answers[0]["upload"], bytes)
    assert networks.made == made


def test_what_is_in_memory_does_not_outlast_its_files(tmp_path: Path, small: Path, networks: Networks) -> None:
    node, request = first_ballot(neighbours(tmp_path), tmp_path, small)
    assert "upload" in answer(node, request)
    made = networks.made
    (folder,) = (path for path in (tmp_path / "state-0").iterdir() if path.is_dir())
    (folder / "terms.json").touch()
    assert "upload" in answer(node, request)
    assert networks.made == made + 1
    shutil.rmtree(tmp_path / "state-0")
    assert answer(node, request).get("lost")


def test_after_a_failure_memory_is_what_the_disk_says(tmp_path: Path, small: Path, networks: Networks) -> None:
    """A request that fails half-way leaves nothing in memory that is not on the disk."""
    node, request = first_ballot(neighbours(tmp_path), tmp_path, small)
    expected = answer(node, request)
    made = networks.made
    record = request.content[protocol.RECORD]
    assert isinstance(record, ConfigRecord)
    known, record["exchange"] = record["exchange"], "exec"
    assert "which this run does not have" in answer(node, request)["failed"]
    record["exchange"] = known
    assert answer(node, request) == expected
    assert networks.made == made + 1


def test_a_finished_run_is_no_longer_held(tmp_path: Path, small: Path) -> None:
    grid, living = neighbours(tmp_path), LivingClient()

    grid.nodes[100].app = living.answer
    deploy(grid, tmp_path / "run", quick(small, rounds=1))
    assert grid.nodes[100].kinds[-1] == protocol.HEAR
    assert living.kept is None
