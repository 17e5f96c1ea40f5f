"""SCAFFOLD on clients whose losses are parabolas: the server's control is the mean of all clients', and drift is undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bifl.algorithms.scaffold import CONTROL
from bifl.core import Algorithm, Client, Floats, Layout, Message, Public, Sent, Server, Total, register
from bifl.core.algorithm import first_vectors
from bifl.core.forward import PLAIN
from bifl.core.layout import Tensor
from bifl.errors import ConfigError
from bifl.exchanges.ballot import make_upload
from bifl.experiment.settings import Experiment, compose
from bifl.experiment.setup import build
from bifl.privacy import secret_dice

COUNT, CLIENTS, STEPS, RATE = 256, 6, 10, 0.1
ALIKE = (1,) * CLIENTS  # samples
NOTHING = np.zeros(0, np.float32)
DICE = np.random.default_rng(0)
STEEP = DICE.uniform(0.2, 2, (CLIENTS, COUNT)).astype(np.float32)
CENTRES = DICE.normal(0, 1, (CLIENTS, COUNT)).astype(np.float32)
BEST = (STEEP * CENTRES).sum(0) / STEEP.sum(0)  # of the mean of all losses
CODED = {"up": "murmur", "group": 16, "down": "sign"}  # 0.3 bit a number up


class Parabolas:
    """Rounds of clients with losses steep/2 · (w − centre)², of whom some are drawn."""

    def __init__(self, name: str, settings: dict[str, Any], drawn: int, sizes: Sequence[int] = ALIKE) -> None:
        made = register.make(name, settings)
        run = Experiment(algorithm={"name": name, **settings}, optimizer="sgd", clients=CLIENTS)
        weighing = compose(run, secret_dice).weighing
        assert isinstance(made, Algorithm)
        self.algorithm, self.drawn, self.server = made, drawn, Server()
        layout = Layout(("l",), (Tensor("l.weight", (COUNT,), 0),), (), ())
        reals, zeros = np.ones(layout.reals, np.float32), np.zeros(COUNT, np.float32)
        public = Public(0, 0, layout, zeros, reals, voters=drawn, clients=CLIENTS)
        self.public = public._replace(vectors=first_vectors(made, public))
        self.clients = [Client(zeros, zeros, reals, weighing.counts(size), number) for number, size in enumerate(sizes)]

    def trained(self, client: Client) -> Client:
        """So many plain steps from the public weights."""
        weights, local = self.public.weights.copy(), PLAIN
        if self.algorithm.local is not None:
            local = self.algorithm.local(client, self.public)
        for _ in range(STEPS):
            gradient = STEEP[client.number] * (weights - CENTRES[client.number]) + local.pull * (weights - self.public.weights)
            added = 0 if local.correction is None else local.correction
            weights = weights - np.float32(RATE) * (gradient.astype(np.float32) + added)
        return client._replace(aux=weights, start=self.public.weights, steps=STEPS, rate=RATE)

    def round(self) -> None:
        total = Total()
        dice = np.random.default_rng(self.public.round)
        for number in dice.permutation(CLIENTS)[: self.drawn]:
            self.clients[number], upload = make_upload(self.algorithm, self.trained(self.clients[number]), self.public)
            total.add(self.algorithm.reads(upload, self.public))
        said = self.algorithm.broadcast(total.tally(), self.public, self.server)
        message = said.message if isinstance(said, Sent) else said
        assert isinstance(message, Message)
        if isinstance(said, Sent):
            self.server = self.server._replace(memory=said.memory)
        self.public = self.algorithm.absorb(self.public, message)._replace(round=self.public.round + 1)

    def controls(self) -> Floats:
        known = [client.memory for client in self.clients if client.memory.size]
        return np.asarray(np.sum(known, axis=0) / CLIENTS, np.float32)

    def error(self) -> float:
        return float(np.abs(self.public.weights - BEST).mean())


@pytest.mark.parametrize("settings", [{}, {"up": "murmur", "group": 4}], ids=str)
def test_the_servers_control_is_the_mean_of_all_clients_controls(settings: dict[str, Any]) -> None:
    """Those that were not drawn count with what they have kept; what a coder could not say moves neither end."""
    rounds = Parabolas("scaffold", settings, drawn=2)
    for _ in range(8):
        rounds.round()
        np.testing.assert_allclose(rounds.public.vectors[CONTROL], rounds.controls(), atol=1e-5)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_clients_of_different_sizes_count_once(name: str) -> None:
    """Their server's vector is the mean of what clients remember: by their sizes, it would not be where some are drawn."""
    rounds = Parabolas(name, {}, drawn=2, sizes=(1, 2, 3, 10, 20, 60))
    for _ in range(8):
        rounds.round()
        server = rounds.public.vectors[CONTROL] if name == "scaffold" else rounds.server.memory[0]
        np.testing.assert_allclose(server, rounds.controls(), atol=1e-5)
    with pytest.raises(ConfigError, match=f"algorithm '{name}' keeps the mean of what clients remember.*: leave weigh= out"):
        build(Experiment(algorithm=name, optimizer="sgd", clients=3, weigh="images"))


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_nobody_may_forget_what_the_server_has_a_mean_of(name: str) -> None:
    """Under masks those who missed a round begin afresh: all must take part in every round."""
    settings: dict[str, Any] = {"algorithm": name, "optimizer": "sgd", "clients": 5, "secure_sum": True}
    assert build(Experiment(**settings)).run.exchanges
    with pytest.raises(ConfigError, match=f"'{name}' cannot be used .* participation below 1: .*: set participation=1"):
        build(Experiment(**settings, participation=0.8))


def test_what_a_compressed_broadcast_could_not_say_is_kept() -> None:
    rounds = Parabolas("scaffold", CODED, drawn=3)
    for _ in range(8):
        rounds.round()
        said = rounds.public.vectors[CONTROL] + rounds.server.memory[1]
        np.testing.assert_allclose(said, rounds.controls(), atol=1e-5)


def test_a_control_is_the_mean_gradient_of_the_steps() -> None:
    """Option II of the paper: c_i ← c_i − c + (x − y) / (steps · rate), which without correction is the mean gradient."""
    rounds = Parabolas("scaffold", {}, drawn=CLIENTS)
    client = rounds.trained(rounds.clients[2])
    kept, _ = make_upload(rounds.algorithm, client, rounds.public)
    np.testing.assert_allclose(kept.memory, -client.aux / (STEPS * RATE), rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, CODED], ids=str)
def test_steps_at_a_rate_of_0_move_no_control(settings: dict[str, Any]) -> None:
    """Of the gradient they tell nothing: the last rate of a cosine, for example."""
    rounds = Parabolas("scaffold", settings, drawn=CLIENTS)
    rounds.round()
    client = rounds.clients[2]._replace(aux=rounds.public.weights, start=rounds.public.weights, steps=STEPS, rate=0.0)
    kept, _ = make_upload(rounds.algorithm, client, rounds.public)
    np.testing.assert_array_equal(kept.memory, client.memory)


@pytest.mark.parametrize(("settings", "most"), [({}, 0.01), (CODED, 0.02)], ids=str)
def test_drift_is_undone(settings: dict[str, Any], most: float) -> None:
    """FedAvg stops where clients that take many steps pull each other; with controls all of them stop at the best weights."""
    plain, corrected = Parabolas("fedavg", {}, CLIENTS), Parabolas("scaffold", settings, CLIENTS)
    for _ in range(100):
        plain.round()
        corrected.round()
    assert plain.error() > 0.03
    assert corrected.error() < most
