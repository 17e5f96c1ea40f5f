"""A round with one more exchange, before the ballot: nothing but the list of exchanges knows it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl import exchanges
from bifl.codec import Context
from bifl.core.exchange import ClientReply, ClientSide
from bifl.core.layout import Layout, Tensor
from bifl.core.message import Message, reals_only
from bifl.core.state import Public, Server
from bifl.core.sums import Total
from bifl.engine import loop as looping
from bifl.engine import round as rounding
from bifl.engine import worker
from bifl.engine.loop import loop
from bifl.export.model import Model
from bifl.runs.folder import read_records
from tests.federation import deploy, neighbours, quick, same, simulated
from tests.grid import Clock

NUMBERS = Layout((), (), (Tensor("numbers", (2,)),), ())


@dataclass(frozen=True)
class Greeting:
    """Clients say their number, and everyone learns the mean."""

    name: str = "greeting"
    trains: bool = False
    tells: bool = True
    quorum: int = 0

    def context(self, public: Public) -> Context:
        return Context(NUMBERS, public.round)

    def uploads_in(self, context: Context) -> Context | None:
        return context

    def plain(self, public: Public, round: int) -> Context:
        return Context(NUMBERS, round)

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        return ()

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        client = side.client
        numbers = np.array([client.number, 1], np.float32)
        return ClientReply(reals_only(numbers)._replace(sender=client.number, weight=client.weight, round=public.round), client)

    def form(self, public: Public) -> Message:
        return reals_only(np.zeros(2, np.float32))

    def knowing(self, server: Server) -> Greeting:
        return self

    def opened(self, upload: Message, public: Public) -> Message:
        return upload

    def total(self, public: Public) -> Total:
        return Total()

    def answer(self, total: Total, public: Public, server: Server) -> tuple[Server, Message]:
        return server, reals_only(total.tally().real)._replace(round=public.round)

    def advance(self, public: Public, news: Message) -> Public:
        return public._replace(scales=news.real)  # until the next broadcast

    def repeat(self, public: Public) -> Message | None:
        return None


@pytest.fixture
def greeted(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = exchanges.exchanges_of

    def with_greeting(*arguments: Any) -> Any:
        return (Greeting(), *usual(*arguments))

    for module in (looping, rounding, worker):
        monkeypatch.setattr(module, "exchanges_of", with_greeting)


@pytest.mark.usefixtures("greeted")
def test_another_exchange_needs_no_other_edit(tmp_path: Path, small: Path, clock: Clock) -> None:
    experiment = quick(small, participation=0.7)
    alone = simulated(tmp_path / "one", experiment)
    deploy(neighbours(tmp_path), tmp_path / "deployed", experiment)
    same(alone, tmp_path / "deployed")
    *_, (_, public) = loop(experiment)
    assert Model.read(alone / "model").message.symbols.tobytes() == (public.weights > 0).astype(np.uint8).tobytes()
    assert len(list((alone / "messages/round-00001").glob("greeting-*"))) == 3
    assert (alone / "messages/round-00001/greeting").is_file()


def test_its_bytes_are_counted(tmp_path: Path, small: Path, request: pytest.FixtureRequest) -> None:
    experiment = quick(small, rounds=1)
    usual = read_records(simulated(tmp_path / "usual", experiment))[0]
    request.getfixturevalue("greeted")
    more = read_records(simulated(tmp_path / "more", experiment))[0]
    size = (tmp_path / "more/messages/round-00000/greeting").stat().st_size
    assert more.up_bytes == usual.up_bytes + 3 * size
    assert more.broadcast_bytes == usual.broadcast_bytes + size
    assert more.accuracy == usual.accuracy
