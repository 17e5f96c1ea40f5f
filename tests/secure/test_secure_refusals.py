"""Clients of a secure sum that send anything in any of its exchanges: they are refused in one sentence, and the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from bifl import codec
from bifl.deploy.client_app import app
from bifl.errors import RunError
from tests.secure.test_secure_runs import STEPS, failing, model, nodes
from tests.support.federation import deploy, neighbours, quick, spoiled, told
from tests.support.grid import Clock, Handler, Node, kind_of

pytestmark = pytest.mark.usefixtures("clock")
Change = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def changed(change: Change) -> Callable[[bytes], bytes]:
    """An upload in the right envelope with something else in it."""

    def spoil(data: bytes) -> bytes:
        message = codec.decode(data, None)
        return codec.encode(message.with_update(symbols=change(message.update.symbols)))

    return spoil


def last_flipped(symbols: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.append(symbols[:-1], symbols[-1:] ^ 1)


def first_flipped(symbols: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.append(symbols[:1] ^ 1, symbols[1:])


def no_key(symbols: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A point of small order, with which clients agree on nothing."""
    return np.append(np.zeros(32, symbols.dtype), symbols[32:])


def shorter(symbols: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return symbols[:-1]


def padded(symbols: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.append(symbols, symbols[:1])


LIES: list[tuple[str, Change, int, str]] = [
    ("keys", last_flipped, 3, "its keys are not signed by its node key"),
    ("shares", shorter, 3, "what it has dealt is 239 bytes long, not 240"),
    ("ballot", padded, 3, "its masked upload cannot be added up: it is "),
    ("ballot_agree", first_flipped, 4, "it has not signed the list of those who are left"),
    ("ballot_reveal", first_flipped, 4, "it has revealed another seed of its own mask than it committed to"),
    ("ballot_reveal", last_flipped, 4, "it has revealed another share of client 2's secret than it was dealt"),
    ("ballot_reveal", shorter, 4, "what it reveals is 66 bytes long"),
]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory, small: Path) -> dict[int, bytes]:
    """The model of a run without masks, of three clients and of four."""
    found = {}
    for count in (3, 4):
        folder = tmp_path_factory.mktemp("plain")
        grid = neighbours(folder, 4)
        if count == 3:
            grid.nodes[103].app = failing("ballot")
        deploy(grid, folder / "run", quick(small, rounds=1, batchnorm="average", model="mlp", clients=4), least=3)
        found[count] = model(folder / "run")
    return found


@pytest.mark.parametrize(("step", "change", "counted", "why"), LIES, ids=lambda part: getattr(part, "__name__", None))
def test_garbage_is_refused_and_the_others_go_on(
    tmp_path: Path, small: Path, keys: Path, without: dict[int, bytes], step: str, change: Change, counted: int, why: str
) -> None:
    """By one of four. The sum is exact; nothing is abandoned."""
    grid = nodes(tmp_path, keys, 4)
    grid.nodes[103].app = spoiled(changed(change), step)
    experiment = quick(small, rounds=1, batchnorm="average", model="mlp", clients=4, secure_sum=True)
    records = deploy(grid, tmp_path / "run", experiment, least=3, keys=keys)
    assert [(record.clients, record.refused) for record in records] == [(counted, 1)]
    assert told(tmp_path / "run").count(f"client 3 refused: {why}") == 1
    assert "held again" not in told(tmp_path / "run")
    assert model(tmp_path / "run") == without[counted]


def test_a_key_that_is_none_is_refused(tmp_path: Path, small: Path, keys: Path) -> None:
    """Signed, or where the server does not know the keys: the others would all refuse it."""
    grid = nodes(tmp_path, keys, 4)
    grid.nodes[103].app = spoiled(changed(no_key), "keys")
    experiment = quick(small, rounds=1, batchnorm="average", model="mlp", clients=4, secure_sum=True)
    (record,) = deploy(grid, tmp_path / "run", experiment, least=3)
    assert (record.clients, record.refused) == (3, 1)
    assert "client 3 refused: one of its keys is none" in told(tmp_path / "run")


def test_keys_of_another_run_are_refused(tmp_path: Path, small: Path, keys: Path) -> None:
    """The same clients, settings, model and round: only the run is another one."""
    grid, kept = nodes(tmp_path, keys, 4), []
    experiment = quick(small, rounds=1, batchnorm="average", model="mlp", clients=4, secure_sum=True)
    grid.nodes[103].app = spoiled(lambda data: kept.append(data) or data, "keys")  # type: ignore[func-returns-value]
    deploy(grid, tmp_path / "one", experiment, least=3, keys=keys)
    again = nodes(tmp_path / "again", keys, 4)  # a state directory is for one run
    again.nodes[103].app = spoiled(lambda data: kept[0], "keys")
    (record,) = deploy(again, tmp_path / "other", experiment, least=3, keys=keys)
    assert (record.clients, record.refused) == (3, 1)
    assert "client 3 refused: its keys are not signed by its node key, or for another run" in told(tmp_path / "other")


def test_too_few_of_a_group_sign_who_is_left(tmp_path: Path, small: Path, keys: Path, clock: Clock) -> None:
    """Groups of two, one goes away after its upload: nobody reveals a sum that one alone has signed; it is held again without."""
    grid = nodes(tmp_path, keys, 6)
    grid.nodes[103].app = leaving(grid.nodes[103])
    settings = {"algorithm": {"name": "murmur_dealt", "together": 2}, "batchnorm": "average", "model": "mlp", "clients": 6}
    records = deploy(grid, tmp_path / "run", quick(small, rounds=2, secure_sum=True, **settings), least=4, keys=keys)
    assert [record.clients for record in records] == [5, 5]  # client 0's, which would speak alone, is not in the sum
    assert told(tmp_path / "run").count("round 1: of those who speak of a part of the weights 1 have signed who is left") == 1
    assert clock.now < 120


def leaving(node: Node) -> Handler:
    def answer(message: Message, context: Context) -> Message | None:
        if kind_of(message) == "ballot_agree":
            node.online = False
            return None
        return app(message, context)

    return answer


def vanishing(node: Node) -> Handler:
    """Deals shares that nobody can open, and is lost before it uploads."""
    deal = spoiled(changed(lambda symbols: symbols ^ 255), "shares")

    def answer(message: Message, context: Context) -> Message | None:
        if kind_of(message) == "ballot":
            node.online = False
            return None
        return deal(message, context)

    return answer


def test_one_by_whose_fault_a_round_is_abandoned_is_left_out(
    tmp_path: Path, small: Path, keys: Path, without: dict[int, bytes], clock: Clock
) -> None:
    grid = nodes(tmp_path, keys, 4)
    grid.nodes[103].app = vanishing(grid.nodes[103])
    experiment = quick(small, rounds=1, batchnorm="average", model="mlp", clients=4, secure_sum=True)
    records = deploy(grid, tmp_path / "run", experiment, least=3, keys=keys)
    assert [(record.clients, record.refused) for record in records] == [(3, 1)]
    assert "client 3 refused: round 1: client 3 was lost" in told(tmp_path / "run")
    assert "held again, and the run goes on without client 3" in told(tmp_path / "run")
    assert model(tmp_path / "run") == without[3]
    assert clock.now < 60, "nobody waited for it"


def test_a_garbage_sender_and_one_that_is_lost_end_a_run_of_three(tmp_path: Path, small: Path, keys: Path) -> None:
    """k of the others must be left: the round is abandoned, not waited for without end, and after five the run stops."""
    grid = nodes(tmp_path, keys, 3)
    grid.nodes[101].app = failing("ballot")
    grid.nodes[102].app = spoiled(changed(padded), "ballot")
    with pytest.raises(RunError, match="1 of 2 ballots: nothing was counted"):
        deploy(grid, tmp_path / "run", quick(small, rounds=1, batchnorm="average", model="mlp", secure_sum=True), keys=keys)
    assert grid.nodes[100].kinds.count("keys") == 5
    assert set(grid.nodes[100].kinds) <= {*STEPS[:3], "query.hello"}
