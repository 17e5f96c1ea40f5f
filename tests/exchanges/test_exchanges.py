"""A round with one more exchange, before the ballot: nothing but the list of exchanges knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl.core.algorithm import Algorithms, register
from bifl.core.layout import Layout, Tensor
from bifl.core.message import NOTHING, Message, reals_only
from bifl.core.sides import ClientReply, ClientSide, ServerSide
from bifl.core.state import Public
from bifl.core.sums import Total
from bifl.deploy.client import client_state
from bifl.engine.backends import transfer
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.errors import AlgorithmError, ConfigError, RunError
from bifl.exchanges.exchange import Exchange, Surroundings, exchange
from bifl.exchanges.numbers import Numbers, Sums
from bifl.experiment import run, setup
from bifl.experiment.model import Model
from bifl.experiment.run import Run
from bifl.runs.folder import read_records
from tests.support.federation import deploy, neighbours, quick, same, simulated
from tests.support.grid import Clock

NUMBERS = Layout((), (), (Tensor("numbers", (2,)),), ())


class Greeting(Exchange):
    """Clients say their number, and everyone learns the mean."""

    name = "greeting"

    def layout(self, public: Public) -> Layout:
        return NUMBERS

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        client = side.client
        return ClientReply(reals_only(np.array([client.number, 1], np.float32)), client)

    def open(self, upload: Message, public: Public, server: ServerSide | None = None) -> Message:
        return upload

    def answer(self, total: Total, public: Public, server: ServerSide) -> tuple[ServerSide, Message]:
        return server, reals_only(total.tally().real)

    def advance(self, public: Public, news: Message) -> Public:
        return public._replace(scales=news.real)  # until the next broadcast


@pytest.fixture
def greeted(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = run.make_run

    def with_greeting(*arguments: Any) -> Run:
        made = usual(*arguments)
        return replace(made, exchanges=(Greeting(), *made.exchanges))

    for module in (setup, transfer, client_state):
        monkeypatch.setattr(module, "make_run", with_greeting)


@pytest.mark.usefixtures("greeted")
def test_another_exchange_needs_no_other_edit(tmp_path: Path, small: Path, clock: Clock) -> None:
    experiment = quick(small, participation=0.7)
    alone = simulated(tmp_path / "one", experiment)
    deploy(neighbours(tmp_path), tmp_path / "deployed", experiment)
    same(alone, tmp_path / "deployed")
    *_, (_, public) = loop(experiment)
    assert Model.read(alone / "model").message.update.symbols.tobytes() == (public.weights > 0).astype(np.uint8).tobytes()
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


@dataclass(frozen=True)
class Images(Numbers):
    """How many images clients have."""

    name: str = "images"
    main: bool = False

    def length(self, public: Public) -> int:
        return 1

    def count(self, side: ClientSide, public: Public) -> Sums:
        return np.array([float(len(side.samples()[1]))])

    def report(self, sums: Sums, clients: int) -> Mapping[str, float]:
        return {"images": float(sums[0])}


def followed(*names: str) -> str:
    """The name of an algorithm that exchanges of these names follow, of which `images` and `rounds` count images."""

    @exchange
    def images(run: Surroundings) -> Images:
        return Images()

    @exchange
    def rounds(run: Surroundings) -> Images:
        return Images("rounds", main=True)

    @register
    def counted() -> Algorithms:
        return register.make("fedavg", {}).map(lambda part: replace(part, exchanges=tuple((name, {}) for name in names)))

    return "counted"


class Silent(Exchange):
    """An exchange that rounds are held for, and whose author has forgotten the answer."""

    name, main = "silent", True

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        return ClientReply(reals_only(NOTHING), side.client)


def test_rounds_without_a_broadcast_are_refused(small: Path) -> None:
    """Before, such a round was held for ever."""

    @exchange
    def silent(run: Surroundings) -> Silent:
        return Silent()

    with pytest.raises(
        RunError, match="exchange 'silent' completes the round: its answer must be a message for all, not private replies"
    ):
        next(iter(simulate(quick(small, exchange="silent", algorithm="fedavg", rounds=1))))


class Short(Images):
    """Counts fewer numbers than it says."""

    def length(self, public: Public) -> int:
        return 2


def test_a_count_of_another_length_is_its_authors_mistake(small: Path) -> None:
    @exchange
    def short(run: Surroundings) -> Short:
        return Short("short", main=True)

    with pytest.raises(AlgorithmError, match=r"exchange 'short': count returned numbers of shape \(1,\); length says \(2,\)"):
        next(iter(simulate(quick(small, exchange="short", algorithm="fedavg", rounds=1))))


def test_a_count_may_follow_training(small: Path) -> None:
    (record,) = simulate(quick(small, algorithm=followed("images"), rounds=1, batchnorm="average"))
    assert record.report == {"images": 399}


@pytest.mark.parametrize(
    ("names", "settings", "refusal"),
    [
        (["rounds"], {}, "names the exchange 'rounds' to follow training, and rounds are held for that one: give it main=False"),
        (["images", "images"], {}, "names the exchange 'images' twice"),
        (["images"], {"privacy": "gaussian"}, "in the exchange 'images' of algorithm 'counted' clients upload more"),
    ],
    ids=["main", "twice", "privacy"],
)
def test_what_cannot_follow_training_is_refused(small: Path, names: list[str], settings: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        setup.build(quick(small, algorithm=followed(*names), batchnorm="average", **settings))
