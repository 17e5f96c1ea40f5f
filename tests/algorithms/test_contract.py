"""Every registered algorithm obeys the same laws; a new one is picked up by being registered."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import bifl.algorithms  # noqa: F401
from bifl import codec
from bifl.codec.format import state_digest
from bifl.core import FLOAT32, VOTES, WEIGHTS, Client, Floats, Layout, Local, Message, Public, Server, Votes, register, stream
from bifl.core.algorithm import Algorithms, first_vectors
from bifl.core.layout import Tensor
from bifl.core.sides import ServerSide
from bifl.core.state import forget_but_for
from bifl.core.sums import Weighing
from bifl.data.inputs import Form
from bifl.exchanges.ballot import Ballot, make_upload
from bifl.exchanges.bounds import Bounds
from bifl.exchanges.exchange import Surroundings
from bifl.registry import first_line
from bifl.tasks import task
from tests.support.algorithms import EXAMPLES
from tests.support.messages import same

COUNT = 2003
LAYOUT = Layout(
    ("one", "two"),
    (Tensor("one.weight", (1000,), 0), Tensor("two.weight", (COUNT - 1000,), 1)),
    (Tensor("norm.weight", (3,)),),
    (Tensor("norm", (3,)),),
)
ROUNDS, SIZES = 4, (300, 600, 600)
ROTATED = ("murmur_dealt",)  # what is read of one upload are coordinates in a rotation that is undone in the sum


def frozen(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    array.flags.writeable = False
    return array


class Unbounded(Bounds):
    """Takes every upload as it is."""

    def __init__(self) -> None:
        """Without a plan: nobody asks how far training reaches."""

    def ballot(self, upload: Message, public: Public) -> Message:
        return upload


UNBOUNDED = Unbounded()


def surroundings(algorithm: Algorithms) -> Surroundings:
    """A run that leaves everything to its algorithm."""
    return Surroundings(
        algorithm=algorithm, weighing=Weighing.SAMPLES, robust=None, privacy=None,
        task=task.make("classification", {}), form=Form((1,)), classes=2, bounds=UNBOUNDED, precision=codec.SHORT,
        in_context=True, idle_trains=True, recalibrates=False,
        tells_results=True, share=0.0,
    )  # fmt: skip


class Laws:
    """An algorithm in rounds whose training is a random step."""

    def __init__(self, algorithm: Algorithms) -> None:
        self.algorithm = algorithm
        run = surroundings(algorithm)
        self.ballot, self.plain = Ballot(run), Ballot(replace(run, in_context=False))
        weights = np.random.default_rng(0).uniform(-1, 1, COUNT).astype(np.float32)
        public = Public(0, 0, LAYOUT, frozen(weights), frozen(np.ones(LAYOUT.reals, np.float32)), clients=len(SIZES))
        self.public = public._replace(vectors=first_vectors(algorithm, public))
        self.server = ServerSide(Server())
        self.changes = [np.zeros(COUNT, np.float32) for _ in SIZES]  # by which clients have trained
        self.clients = [Client(weights, weights, self.public.real, size, number) for number, size in enumerate(SIZES)]
        self.alike: list[float] = []  # of every upload
        self.heard: list[float] = []  # of every broadcast

    def jitter(self, client: Client, local: Local) -> tuple[Client, float]:
        """In place of training."""
        dice = stream(0, self.public.round + 1, client.number, "jitter")
        step = dice.normal(0, 0.3, client.aux.shape).astype(np.float32)
        return client._replace(aux=client.aux + step, real=client.real + np.float32(0.01), steps=1, rate=1.0), 1.0

    def turn(self, ready: Client) -> tuple[Client, Message]:
        trained, _ = self.ballot.train(ready, self.public, self.jitter)
        return make_upload(self.algorithm.at(self.public.round + 1), trained, self.public)

    def client(self, number: int) -> Message:
        """A client's part; what the server reads of it."""
        round, known = self.public.round + 1, self.ballot.context(self.public)
        ready = self.clients[number]._replace(voted=number > 0)
        before = copy.deepcopy(ready)
        state, upload = self.turn(ready)
        self.changes[number] = state.aux - state.start
        again = self.turn(ready)
        assert same(upload, again[1]), "pure: the same in, the same out"
        assert ready.aux.tobytes() == before.aux.tobytes(), "pure: nothing changed in place"
        assert state.aux.shape == (COUNT,)
        assert state.aux.dtype == np.float32
        assert np.all(np.isfinite(state.aux))
        assert (upload.round, upload.weight, upload.sender) == (round, SIZES[number], number)
        for spelling in (known, self.plain.context(self.public)):
            received = codec.decode(codec.encode(upload, spelling), known)
            assert same(received, upload), "survives the wire"
        opened = self.ballot.open(received, self.public)
        assert opened.update.values().shape == (COUNT,), "the server reads a number for every weight"
        if self.algorithm.at(round).uploads == WEIGHTS:
            assert opened.update.values().tobytes() == state.aux.tobytes(), "as it declares: the client's weights"
        told = opened.update.values() - self.public.weights if opened.update.alphabet == FLOAT32 else opened.update.values()
        self.alike.append(likeness(told, self.changes[number]))
        blank = np.full_like(state.aux, np.nan)
        nothing = Client(blank, blank, np.full_like(state.real, np.nan), state.weight, number)
        keeps = self.algorithm.at(round).keeps
        self.clients[number] = forget_but_for(state, keeps, frozenset(), nothing)  # what is not kept is not missed
        return received

    def broadcast(self, ballots: Iterable[Message]) -> tuple[ServerSide, Message]:
        total = self.ballot.total(self.public)
        for ballot in ballots:
            total.add(self.ballot.open(ballot, self.public))
        return self.ballot.answer(total, self.public, self.server)

    def round(self) -> None:
        known, plain = self.ballot.context(self.public), self.plain.context(self.public)
        ballots = [self.client(number) for number in range(len(SIZES))]
        server, said = self.broadcast(ballots)
        _, reverse = self.broadcast(ballots[::-1])
        assert codec.encode(said, known) == codec.encode(reverse, known), "the order of uploads does not matter"
        halves = self.ballot.total(self.public)
        for ballot in ballots:
            part = self.ballot.total(self.public)
            part.add(self.ballot.open(ballot, self.public))
            halves.merge(part)
        merged = self.ballot.answer(halves, self.public, self.server)[1]
        assert codec.encode(merged, known) == codec.encode(said, known), "nor does who adds them up"
        on_server = self.ballot.advance(self.public, codec.decode(codec.encode(said, known), known))
        after = self.ballot.advance(self.public, codec.decode(codec.encode(said, plain), known))
        assert on_server.weights.tobytes() == after.weights.tobytes(), "server and clients make the same public state"
        assert on_server.real.tobytes() == after.real.tobytes()
        assert state_digest(on_server, ()) == state_digest(after, ()), "all of it, further public vectors too"
        counts = isinstance(said.update.alphabet, Votes)
        assert counts == (self.algorithm.at(after.round).broadcasts == VOTES), "it declares whether it broadcasts counts of votes"
        assert after.round == self.public.round + 1
        assert after.weights.shape == (COUNT,)
        mean = np.average(self.changes, axis=0, weights=SIZES)
        self.heard.append(likeness(after.weights - self.public.weights, mean))
        self.public, self.server = after, server


def likeness(one: Floats, other: Floats) -> float:
    """The cosine of their angle."""
    return float(np.dot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other) + 1e-12))


PARAMETERS: dict[str, dict[str, Any]] = {"hybrid": {"switch": 2}, "scaffold by loudest": {"up": "murmur", "down": "sign"}}
NAMES = {*register.names(), *PARAMETERS, *EXAMPLES} - {"eden_of_another_sender"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_laws(name: str) -> None:
    laws = Laws(EXAMPLES[name]() if name in EXAMPLES else register.make(name.partition(" ")[0], PARAMETERS.get(name, {})))
    for _ in range(ROUNDS):
        laws.round()
    # a server that derives other random numbers than the client reads noise, 0 ± 0.013 over three uploads; ballots give 0.25
    assert laws.heard[0] > 0.1, "what the server makes of all uploads tells how the clients trained"
    if name not in ROTATED:
        assert np.mean(laws.alike[: len(SIZES)]) > 0.1, "what the server reads of an upload tells how the client trained"


def test_wrong_shared_randomness_is_noticed() -> None:
    laws = Laws(EXAMPLES["eden_of_another_sender"]())
    laws.round()
    assert abs(np.mean(laws.alike)) < 0.1
    assert abs(laws.heard[0]) < 0.1


def test_everything_registered_is_documented() -> None:
    for name in register.names():
        assert first_line(register.factory(name))
