"""What clients of a secure sum remember was made of the same in all, or all begin afresh: nobody's ballot is known beforehand."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from bifl import codec
from bifl.core import Message, Public
from bifl.core.sides import Request, ServerSide
from bifl.core.state import Client, Server
from bifl.engine import checkpoint
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.engine.worker import Job, Worker
from bifl.errors import Refused, RunError
from bifl.exchanges.secure_sum import HISTORY, continued, shown
from bifl.experiment.run import simulated_identity
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.secure.member import Member
from tests.support.federation import quick
from tests.support.secure_round import Table

ALL = range(3)


class Federation:
    """Three clients, and a server that holds any rounds with them that it likes."""

    def __init__(self, experiment: Experiment) -> None:
        setup, identity = build(experiment), simulated_identity(experiment)
        parts = dict(enumerate(setup.parts))
        job = Job(setup.run, parts, {}, [], setup.public, None, {}, identity=identity)
        self.worker = Worker(job, setup.data)

    def hold(self, there: Collection[int] = ALL, voted: bool = True) -> Public:
        """A round, with those who are there."""
        worker, server = self.worker, ServerSide(Server())
        private_replies = dict.fromkeys(there, b"")
        for exchange in worker.run.exchanges:
            name = exchange.name
            *_, total = worker.collect(
                name, [Request(number, voted, True, private_reply) for number, private_reply in private_replies.items()]
            )
            server, news = exchange.answer(total, worker.public, server)
            if isinstance(news, Message):
                worker.hear(name, codec.encode(news, exchange.context(worker.public)))
            else:
                private_replies = dict(news)
        return worker.public

    def drive(self, numbers: Collection[int]) -> None:
        """Have clients train with news of the server's invention, until all that they remember is its own."""
        known = self.worker.public
        assert known.news is not None
        yes = np.full_like(known.news.update.symbols, known.news.update.symbols.max())
        self.worker.public = known._replace(news=known.news.with_update(symbols=yes), weights=np.ones_like(known.weights))
        for number in [*numbers] * 5:
            self.worker.reply("ballot", Request(number, True, False))
        self.worker.public = known


def after_one_round(small: Path, algorithm: str) -> Federation:
    experiment = quick(small, algorithm=algorithm, batchnorm="average", secure_sum=True)
    federation = Federation(experiment)
    federation.hold(voted=False)
    return federation


def afresh(small: Path, algorithm: str) -> bytes:
    """The second round of clients that remember nothing."""
    federation = after_one_round(small, algorithm)
    federation.worker.clients.clear()
    return federation.hold().weights.tobytes()


@pytest.mark.parametrize("algorithm", ["biml", "up_only", "up_down"])
def test_invented_rounds_with_some_clients_are_forgotten_by_all(
    small: Path, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, fooled = after_one_round(small, algorithm), after_one_round(small, algorithm)
    federation.drive([1, 2])
    assert federation.hold().weights.tobytes() == afresh(small, algorithm)
    fooled.drive([1, 2])
    monkeypatch.setattr(Member, "alike", lambda self, history: True)
    assert fooled.hold().weights.tobytes() != afresh(small, algorithm), "the rounds would have changed what clients say"


def test_clients_that_were_told_the_same_remember(small: Path) -> None:
    """The same as without masks."""
    experiment = quick(small, rounds=3, batchnorm="average", weigh="equal")
    plain = [public.weights.tobytes() for _, public in loop(experiment)]
    federation = Federation(experiment.changed({"secure_sum": True}))
    assert [federation.hold(voted=bool(round)).weights.tobytes() for round in range(3)] == plain
    assert plain[1] != afresh(small, "biml")


def test_an_interrupted_simulation_goes_on_as_it_would(tmp_path: Path, small: Path) -> None:
    experiment = quick(small, rounds=3, batchnorm="average", secure_sum=True)
    first = simulate(experiment, folder=tmp_path / "run")
    next(iter(first))
    first.close()
    second = simulate(experiment, folder=tmp_path / "run")
    assert [record.round for record in second] == [2, 3]
    *_, (_, public) = loop(experiment)
    assert second.public.weights.tobytes() == public.weights.tobytes()


@pytest.mark.parametrize("missing", [0, 2])
def test_who_was_away_is_not_alone_in_what_it_remembers(small: Path, missing: int) -> None:
    federations = [after_one_round(small, "biml") for _ in range(2)]
    for federation in federations:
        federation.hold([number for number in ALL if number != missing])
    assert {number: len(client.states[HISTORY]) for number, client in federations[0].worker.clients.items()} == dict.fromkeys(
        ALL, 32
    )
    federations[1].worker.clients.clear()
    one, other = (federation.hold() for federation in federations)
    assert one.weights.tobytes() == other.weights.tobytes()
    assert len({client.states[HISTORY] for client in federations[0].worker.clients.values()}) == 1, (
        "from here on they remember again"
    )


def test_a_history_is_of_everything_that_a_server_chooses() -> None:
    some = np.zeros(1, np.float32)
    client = Client(some, some, some, 1)
    trained = client._replace(aux=some + 1)
    found = [client, continued(client, trained, b"model", uploads=True)]
    found.append(continued(client, trained, b"another", uploads=True))
    found.append(continued(client, trained, b"model", uploads=False))
    found.append(continued(client._replace(voted=False), trained, b"model", uploads=True))
    found.append(continued(found[1], trained, b"model", uploads=True))
    assert len({shown(one._replace(voted=voted)) for one in found for voted in (True, False)}) == 12


def test_memory_is_read_with_the_history_that_it_was_kept_with_or_not_at_all(tmp_path: Path) -> None:
    """A client that forgot its history would look like a newcomer, whose memory is empty."""
    some = np.zeros(1, np.float32)
    client = Client(some, some, some, 1)
    checkpoint.save_client(tmp_path, 0, 2, client._replace(states={HISTORY: b"told"}), ("aux",))
    assert checkpoint.load_client(tmp_path, 0, 2, client, ("aux",)).states == {HISTORY: b"told"}
    np.savez(tmp_path / "client-00000.round-00001.npz", aux=some + 1)
    with pytest.raises(RunError, match="lacks 'states'"):
        checkpoint.load_client(tmp_path, 0, 1, client, ("aux",))


def test_a_client_keeps_to_the_history_that_it_has_signed() -> None:
    table = Table([1, 1, 1])
    _, private_replies = table.keys(ALL)
    for number in ALL:
        table.member(number).shares(private_replies[number])
    assert table.member(0).alike(bytes(32))
    with pytest.raises(Refused, match="this client remembers something else than when it made its keys"):
        table.member(0).alike(bytes(31) + b"\1")


def test_one_other_history_is_enough() -> None:
    """It is signed: a server cannot tell clients another one."""
    table = Table([1, 1, 1])
    said = {number: table.member(number).keys(bytes([number == 2]) + bytes(31)) for number in ALL}
    row = {number: (1).to_bytes(4, "little") + data for number, data in said.items()}
    private_reply = b"".join(number.to_bytes(4, "little") + data for number, data in row.items())
    table.member(0).shares(private_reply)
    assert not table.member(0).alike(bytes(32))
    place = private_reply.rindex(b"\1" + bytes(31))
    forged = private_reply[:place] + bytes(32) + private_reply[place + 32 :]
    with pytest.raises(Refused, match="keys of client 2 are not signed"):
        table.member(1).shares(forged)
