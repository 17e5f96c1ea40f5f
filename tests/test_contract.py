"""Every registered algorithm obeys the same laws; a new one is picked up by being registered."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
import pytest

import bifl.algorithms  # noqa: F401
from bifl import wire
from bifl.algorithm import Algorithm, Client, Schedule, Shared, absorb, client_turn, register, remembered, server_turn
from bifl.layout import Layout, Tensor

LAYOUT = Layout(("only",), (Tensor("only.weight", (101,), 0),), (Tensor("norm.weight", (3,)),), (Tensor("norm", (3,)),))
ROUNDS, SIZES = 4, (300, 600, 600)


def jitter(client: Client) -> Client:
    """In place of training: a step that depends on the client's key only."""
    generator = np.random.default_rng(client.key)
    step = generator.normal(0, 0.1, client.aux.shape).astype(np.float32)
    return client._replace(aux=np.clip(client.aux + step, -1, 1), real=client.real + np.float32(0.01))


@pytest.fixture(params=register.names())
def algorithm(request: pytest.FixtureRequest) -> Algorithm | Schedule:
    return register.make(request.param, {"switch": 2} if request.param == "hybrid" else {})


def frozen(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    array.flags.writeable = False
    return array


def test_the_laws(algorithm: Algorithm | Schedule) -> None:
    generator = np.random.default_rng(0)
    shared = Shared(
        0, 0, LAYOUT, frozen(generator.uniform(-1, 1, 101).astype(np.float32)), frozen(np.ones(LAYOUT.reals, np.float32))
    )
    clients = [Client(shared.weights, shared.weights, shared.real, size, key=0) for size in SIZES]
    for round in range(1, ROUNDS + 1):
        ballots = []
        known, plain = wire.Context(LAYOUT, round, wire.SHORT, shared), wire.Context(LAYOUT, round, wire.SHORT)
        for number, client in enumerate(clients):
            ready = client._replace(key=10 * round + number, voted=number > 0)
            before = copy.deepcopy(ready)
            state, upload = client_turn(algorithm, ready, shared, jitter)
            again = client_turn(algorithm, ready, shared, jitter)
            assert upload.symbols.tobytes() == again[1].symbols.tobytes(), "pure: the same in, the same out"
            assert ready.aux.tobytes() == before.aux.tobytes(), "pure: nothing changed in place"
            assert state.aux.shape == (101,)
            assert np.all(np.isfinite(state.aux))
            assert state.aux.dtype == np.float32
            assert upload.round == round
            assert upload.weight == SIZES[number]
            for spelling in (known, plain):
                received = wire.decode(wire.encode(upload._replace(sender=number), spelling), known)
                assert received.symbols.tolist() == upload.symbols.tolist(), "survives the wire"
            ballots.append(received)
            blank = np.full_like(state.aux, np.nan)
            nothing = Client(blank, blank, np.full_like(state.real, np.nan), state.weight, key=0)
            clients[number] = remembered(state, algorithm.at(round).keeps, nothing)  # what is not kept is not missed
        said = server_turn(algorithm, shared, ballots)
        reverse = server_turn(algorithm, shared, ballots[::-1])
        assert wire.encode(said, known) == wire.encode(reverse, known), "the order of uploads does not matter"
        on_server = absorb(algorithm, shared, wire.decode(wire.encode(said, known), known))
        shared = absorb(algorithm, shared, wire.decode(wire.encode(said, plain), known))
        assert on_server.weights.tobytes() == shared.weights.tobytes(), "server and clients fold the same public state"
        assert on_server.real.tobytes() == shared.real.tobytes()
        assert shared.round == round
        assert shared.weights.shape == (101,)


def test_everything_registered_is_documented() -> None:
    for name in register.names():
        assert register.summary(name)
