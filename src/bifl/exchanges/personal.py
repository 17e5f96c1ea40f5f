"""A model of its own for every client: trained after the ballot, pulled towards the shared one, evaluated beside it, never sent."""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from bifl.core import Client, Floats, Local, Public
from bifl.core.sides import ClientReply, ClientSide
from bifl.errors import ConfigError
from bifl.exchanges.exchange import Exchange, Surroundings, exchange

_HEAD = struct.Struct("<qd")  # the round of the last training, and its loss


@dataclass(frozen=True)
class Personal(Exchange):
    """Those who voted train their own models a round further: v ← v − η(∇F(v) + λ(v − w)), w the shared model."""

    pull: float  # λ
    tells_results: bool
    name: str = "personal"
    trains: bool = True
    uploads: bool = False
    remembers: bool = True

    def listeners(self, voters: Collection[int], present: Collection[int]) -> Collection[int]:
        """Those who took part in the ballot."""
        return voters

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Train, unless that was done in this round: a server may ask twice."""
        client = side.client
        done, loss = _HEAD.unpack(client.states.get(self.name, _HEAD.pack(-1, 0.0))[: _HEAD.size])
        if done != public.round:
            weights, real = self.own_model(client, public) or (public.weights, public.real)
            local = Local(pull=self.pull, centre=(public.weights, public.real))
            trained, loss = side.train(client._replace(aux=weights, start=weights, real=real), local)
            if np.isfinite(loss) or self.tells_results:  # of one that must not tell how it went a diverged training is none
                state = _HEAD.pack(public.round, loss) + trained.aux.tobytes() + self._measured(side, trained, public).tobytes()
                client = client._replace(states={**client.states, self.name: state})
        return ClientReply(None, client, loss if self.tells_results else None)

    def _measured(self, side: ClientSide, trained: Client, public: Public) -> Floats:
        """Real numbers with batch-norm's statistics of the model as it is now: those of a few steps are half those of before."""
        if not public.layout.moments:
            return trained.real
        return np.concatenate([trained.real[: public.layout.trained], side.moments(trained.aux, trained.real)]).astype(np.float32)

    def own_model(self, client: Client, public: Public) -> tuple[Floats, Floats] | None:
        """The client's own; None before its first training."""
        numbers = np.frombuffer(client.states.get(self.name, b"")[_HEAD.size :], np.float32).copy()
        if len(numbers) != len(public.weights) + len(public.real):
            return None
        weights, real = np.split(numbers, [len(public.weights)])
        return weights, real


@exchange
def personal(run: Surroundings, pull: float = 0.1) -> Personal:
    """A model of each client's own, pulled towards the shared one (Ditto): follows the ballot of algorithms that name it."""
    if not 0 <= pull < float("inf"):
        raise ConfigError(f"the pull of an own model must be 0 or more, not {pull}")
    return Personal(pull, run.tells_results)
