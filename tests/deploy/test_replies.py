"""Any reply of one client is counted, or refused and shown; the others' sum is then as if it had not come. Nothing ends the run."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from hypothesis import given, settings
from hypothesis import strategies as st

from bifl import codec
from bifl.core import BINARY, FLOAT32, TERNARY, Public, Votes
from bifl.core import Message as Said
from bifl.core.message import NOTHING
from bifl.deploy import protocol
from bifl.deploy.client_app import app
from bifl.deploy.server import requests
from bifl.deploy.server.nodes import Deployment, call_nodes
from bifl.deploy.server.requests import Rules
from bifl.engine.round import Rounds
from bifl.errors import quoted
from bifl.exchanges.exchange import BYTE_ALPHABET
from bifl.experiment.setup import serve
from bifl.runs import events
from bifl.runs.record import Record
from tests.support.federation import quick
from tests.support.grid import BALLOT, EVALUATION, STATISTICS, Clock, LocalGrid, Node, kind_of

HOSTILE = 102  # the node of client 2
Fields = dict[str, Any]


class Event(NamedTuple):
    """What the server told its operator."""

    kind: str
    text: str
    client: int | None = None


class Outcome(NamedTuple):
    """What came of a run of one round."""

    record: Record
    public: Public
    told: list[Event]

    def state(self) -> bytes:
        return self.public.weights.tobytes() + self.public.real.tobytes()

    def blamed(self) -> bool:
        """Whether somebody was told of client 2."""
        bad = (events.REFUSED, events.ERROR, events.MISSING)
        return any(event.kind in bad and ("client 2" in event.text or str(HOSTILE) in event.text) for event in self.told)


class Stage:
    """Three clients in a run of one round. What honest ones answer is computed once, by the real app, and then repeated."""

    def __init__(self, folder: Path, images: Path) -> None:
        network = {"name": "mlp", "hidden": 16}  # small: replies are judged, not training
        experiment = quick(images, rounds=1, holdout=0.2, algorithm="biml", model=network)
        self._setup = serve(experiment)  # once: a hundred runs need the same
        self._folder, self._known = folder, dict[Any, Fields]()
        self._past = dict[int, list[Message]]()  # what each client was asked in this run
        self.baseline = cache(self._baseline)

    def run(self, kind: str, reply: Any) -> Outcome:
        """Client 2 answers requests of one kind with what `reply` makes of an honest answer."""
        grid = LocalGrid({100 + number: Node(number, self._folder / str(number)) for number in range(3)})
        for node in (100, 101):
            grid.nodes[node].app = self._honest
        grid.nodes[HOSTILE].app = lambda message, context: (
            reply(message, self._honest(message, context)) if kind_of(message) == kind else self._honest(message, context)
        )
        told: list[Event] = []
        self._past.clear()

        def tell(text: str, kind: str = events.NOTE, client: int | None = None) -> None:
            told.append(Event(kind, quoted(text), client))
            assert len(text) < 1500

        deployment = Deployment(grid, Rules(deadline=1), "0123456789abcdef", tell)
        rounds = Rounds(self._setup, partial(call_nodes, deployment))
        (record,) = rounds
        return Outcome(record, rounds.public, told)

    def _baseline(self, kind: str) -> Outcome:
        """The same if client 2 does not answer."""
        return self.run(kind, lambda message, honest: None)

    def _honest(self, message: Message, context: Context) -> Message:
        number, asked = int(context.node_config["partition-id"]), protocol.fields_of(message)
        past = self._past.setdefault(number, [])
        past.append(message)
        which = (number, kind_of(message), asked.get("digest"), asked.get("uploads"))
        if which not in self._known:  # by a client without a past, to which the same is said as to this one
            context.node_config["state-dir"] = str(self._folder / str(len(self._known)))
            for before in past[:-1]:
                if kind_of(before) != BALLOT:
                    app(before, context)
            self._known[which] = protocol.fields_of(app(message, context))
            assert "lost" not in self._known[which]
        return Message(protocol.content(self._known[which]), reply_to=message)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Iterator[Stage]:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(requests, "time", clock)
        patch.setattr(requests, "LOOK", 0.0)
        yield Stage(tmp_path_factory.mktemp("stage"), small)


# ---- replies ---------------------------------------------------------------------------------------------------------

numbers = st.sampled_from([0, 1, -1, 2, 133, 500, 2**31, 2**62, 2**63 - 1, -(2**63), 10**400]) | st.integers(-600, 600)
floats = st.sampled_from([0.0, -0.0, 0.5, -1.0, 1e9, 1e300, -1e300, math.inf, -math.inf, math.nan, 5e-324]) | st.floats()
scalars = st.one_of(st.booleans(), numbers, floats, st.text(max_size=20), st.binary(max_size=80))
values = st.one_of(
    scalars, *(st.lists(kind, max_size=4) for kind in (st.booleans(), numbers, floats, st.text(max_size=5), st.binary(max_size=5)))
)
names = st.sampled_from(["number", "images", "model", "digest", "loss", "upload", "held", "sums", "losses", "lost", "x\n\x1b[1m"])
changes = st.dictionaries(names, values, max_size=4)
arrays = st.sampled_from([np.zeros(3), np.array(math.nan), np.zeros((0, 2), np.int64)])
metrics = st.dictionaries(names, st.one_of(floats, st.lists(floats, max_size=3)), max_size=3)
records = st.one_of(
    changes.map(ConfigRecord),
    metrics.map(lambda found: MetricRecord({**found})),
    arrays.map(lambda array: ArrayRecord({"a": Array(array)})),
)
contents = st.dictionaries(st.sampled_from([protocol.RECORD, "other", ""]), records, max_size=3)
errors = st.builds(Error, st.integers(-3, 20) | numbers, st.none() | st.text(max_size=500))


@st.composite
def forged(draw: st.DrawFn) -> Any:
    """An upload with the right checksum, in which anything may be wrong."""
    bad = st.sampled_from([0.0, 1.0, 1e9, 2.0**31, 1e30, math.inf, math.nan, -1e38])
    alphabet = draw(st.sampled_from([BINARY, TERNARY, FLOAT32, Votes(7, 3)]))
    real, symbol, scale = draw(bad), draw(bad), draw(bad)
    lengths, where = draw(st.sampled_from([(0, 0), (1, 0), (0, 1), (-1, 3)])), draw(st.integers(0, 40))
    changed = draw(st.fixed_dictionaries({}, optional={"sender": st.integers(0, 3), "weight": numbers, "round": st.integers(0, 3)}))

    def spoil(data: bytes) -> bytes:
        header = codec.read_header(data)
        symbols = np.zeros(max(0, header.symbols + lengths[0]), np.float32 if not alphabet.size else np.uint8)
        symbols[where : where + 1] = symbol if not alphabet.size else 1
        reals, scales = np.ones(header.reals, np.float32), np.full(lengths[1], scale, np.float32)
        reals[where : where + 1] = real
        weight = max(1, min(changed.get("weight", header.weight), 2**30))
        said = Said.of(
            symbols, alphabet, reals, scales, changed.get("sender", header.sender), weight, changed.get("round", header.round)
        )
        plain = bytearray(codec.encode(said))
        plain[28:36] = header.model
        plain[-4:] = zlib.crc32(plain[:-4]).to_bytes(4, "little")
        return bytes(plain)

    return spoil


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """An upload with other bytes in some places, or cut."""
    places = draw(st.dictionaries(st.integers(0, 4000), st.integers(0, 255), max_size=4))
    cut, sealed = draw(st.none() | st.integers(0, 4000)), draw(st.booleans())

    def spoil(data: bytes) -> bytes:
        changed = bytearray(data)
        for place, byte in places.items():
            changed[place % len(changed)] = byte
        if sealed:
            changed[-4:] = zlib.crc32(changed[:-4]).to_bytes(4, "little")
        return bytes(changed[:cut])

    return spoil


@st.composite
def replies(draw: st.DrawFn) -> Any:
    """A function from request and honest answer to what a hostile client answers."""
    kind = draw(st.sampled_from(["changed", "changed", "upload", "upload", "content", "error", "empty"]))
    change, lacking = draw(changes), draw(st.sets(names, max_size=2))
    content, error, spoil = draw(contents), draw(errors), draw(forged() | damaged())

    def answer(message: Message, honest: Message) -> Message:
        said = protocol.fields_of(honest)
        if kind == "error":
            return Message(error, reply_to=message)
        if kind == "changed":
            said = {name: value for name, value in (said | change).items() if name not in lacking}
        if kind == "upload" and isinstance(said.get("upload"), bytes):
            said["upload"] = spoil(said["upload"])
        reply = Message(RecordDict(dict(content)) if kind == "content" else protocol.content(said), reply_to=message)
        if kind == "empty":
            reply.__dict__["_content"] = None
        return reply

    return answer


# ---- what holds ------------------------------------------------------------------------------------------------------

EXAMPLES = settings().max_examples  # 100, or what --fuzz says. One costs up to a second: a round of a federation


@settings(max_examples=EXAMPLES // 3)
@given(reply=replies())
def test_any_ballot(stage: Stage, reply: Any) -> None:
    found = stage.run(BALLOT, reply)
    assert found.record.clients in (2, 3)
    if found.record.clients == 2:
        assert found.blamed()
        assert found.state() == stage.baseline(BALLOT).state()
        assert found.record.train_loss == stage.baseline(BALLOT).record.train_loss
    assert np.all(np.isfinite(found.public.real))
    assert 0 <= found.record.train_loss < 1e4


@settings(max_examples=EXAMPLES // 8)
@given(reply=replies())
def test_any_statistics(stage: Stage, reply: Any) -> None:
    found = stage.run(STATISTICS, reply)
    assert found.record.clients == 3
    if found.blamed():
        assert found.state() == stage.baseline(STATISTICS).state()
    else:
        assert not found.record.refused
    assert np.all(np.isfinite(found.public.real))


@settings(max_examples=EXAMPLES // 8)
@given(reply=replies())
def test_any_evaluation(stage: Stage, reply: Any) -> None:
    found, silent = stage.run(EVALUATION, reply).record, stage.baseline(EVALUATION).record
    assert found.accuracy == silent.accuracy  # on the server's own images
    assert found.clients_mean is not None
    assert 0 <= found.clients_mean <= 1
    if found.refused or found.missing:
        assert (found.clients_mean, found.clients_worst) == (silent.clients_mean, silent.clients_worst)


@settings(max_examples=EXAMPLES // 8)
@given(reply=replies())
def test_any_introduction(stage: Stage, reply: Any) -> None:
    found = stage.run(protocol.HELLO, reply)
    assert found.record.clients in (2, 3)
    if found.record.clients == 2:
        assert found.blamed()
        assert found.state() == stage.baseline(protocol.HELLO).state()


@pytest.mark.parametrize("change", [{"loss": 1e300}, {"loss": math.nan}, {"loss": -1.0}, {"loss": 1}, {"loss": True}])
def test_a_loss_that_no_training_has_is_refused(stage: Stage, change: Fields) -> None:
    found = stage.run(BALLOT, lambda message, honest: changed(message, honest, change))
    assert (found.record.clients, found.record.refused) == (2, 1)
    assert found.state() == stage.baseline(BALLOT).state()


@pytest.mark.parametrize("loss", [1e300, math.nan, "x", 0.5])
def test_a_loss_where_nobody_trains_is_refused(stage: Stage, loss: Any) -> None:
    """Statistics come without one; it must not reach the sums of those who trained."""
    found = stage.run(STATISTICS, lambda message, honest: changed(message, honest, {"loss": loss}))
    assert (found.record.clients, found.record.refused) == (3, 1)
    assert found.state() == stage.baseline(STATISTICS).state()


HONEST = (0.0, 27.0, 27.0, 60.0, 20.0)  # the global model, 27 samples, all of which count, summed loss, how many are right


@pytest.mark.parametrize(
    "rows",
    [
        *([(0.0, held, held, 60.0, right)] for held, right in ((2.0**62, 2.0**62), (27.0, 40.0), (27.0, 0.5), (27.0, math.nan))),
        *([(0.0, 27.0, weight, 60.0, 20.0)] for weight in (28.0, 26.5, -1.0, math.inf)),
        *([(0.0, held, held, loss, 20.0)] for held, loss in ((27.0, 1e300), (27.0, -1.0), (0.0, 0.0), (26.5, 60.0), (40.0, 60.0))),
        *([(model, *HONEST[1:])] for model in (1.0, -1.0)),
        *([HONEST, HONEST], [HONEST[:4]], [(0.0, 1.0, 1.0, 0.0, 1.0)] * 27),
        [(0.0, 500.0, 500.0, 0.0, 0.0), (0.0, 1.0, 1.0, 0.0, 0.0)],
    ],
    ids=str,
)
def test_a_forged_evaluation_is_refused(stage: Stage, rows: list[tuple[float, ...]]) -> None:
    """Of 133 images a client holds 27 out, and answers for those it has and no more."""
    forged = stage.run(EVALUATION, lambda message, honest: evaluated(message, honest, rows)).record
    assert forged.refused == 1
    assert forged.clients_mean == stage.baseline(EVALUATION).record.clients_mean


def test_an_evaluation_that_can_be_is_believed(stage: Stage) -> None:
    record = stage.run(EVALUATION, lambda message, honest: evaluated(message, honest, [HONEST])).record
    assert not record.refused


def evaluated(message: Message, honest: Message, rows: list[tuple[float, ...]]) -> Message:
    """The same client's evaluation, but for its numbers."""
    header = codec.read_header(protocol.fields_of(honest)["upload"])
    symbols = np.frombuffer(np.array(rows, "<f8").tobytes(), np.uint8)
    upload = codec.encode(Said.of(symbols, BYTE_ALPHABET, NOTHING, NOTHING, header.sender, header.weight, header.round))
    return changed(message, honest, {"upload": upload})


def changed(message: Message, honest: Message, change: Fields) -> Message:
    reply = protocol.content(protocol.fields_of(honest))
    record = reply[protocol.RECORD]
    for name, value in change.items():
        record.__dict__["_data"][name] = value  # what Flower's own checks would not let through, too
    return Message(reply, reply_to=message)
