"""The three states of a run: what is public, what a client keeps, what the server keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.layout import Layout
from bifl.core.message import NOTHING, Floats, Message
from bifl.core.randomness import forward_key, stream

NO_STATES: Mapping[str, Any] = {}
NO_VECTORS: Mapping[str, Floats] = {}


class Public(NamedTuple):
    """Public state: made from the broadcasts alone, so identical on the server and on every client.

    It is the evaluated model, the context for coding the next messages, and the catch-up message for a newcomer.
    """

    seed: int  # of the experiment
    round: int  # how many are complete
    layout: Layout
    weights: Floats  # (count,) the last broadcast, as weights: W̃, Sign(W̃) or W
    real: Floats  # (reals,) ϑ, batch-norm γ, β and moments
    scales: Floats = NOTHING  # the last broadcast's
    news: Message | None = None  # the last broadcast
    before: Message | None = None  # the one before it: both together tell the coder how weights change
    voters: int = 1  # how many clients are drawn to upload in a round
    clients: int = 1  # how many there are, of whom those are drawn
    vectors: Mapping[str, Floats] = NO_VECTORS  # (count,) each, by the names of the broadcast's further vectors; zeros at first

    def stream(self, sender: int | None, name: str) -> np.random.Generator:
        """An algorithm's own random numbers in the round under way, which server and clients can both derive (see `randomness`)."""
        return stream(self.seed, self.round + 1, sender, f"algorithm {name}")

    def forward_key(self, sender: int) -> int:
        """`Latent.key` of a client in the round under way: the server can draw what the client's forward drew of it."""
        return forward_key(self.seed, self.round + 1, sender)

    def bare(self, round: int) -> Public:
        """Only what everyone knows from the start, and the round: a message's selection depends on no more."""
        return Public(self.seed, round, self.layout, NOTHING, NOTHING, voters=self.voters, clients=self.clients)


class Client(NamedTuple):
    """Private state of one client."""

    aux: Floats  # (count,) auxiliary weights W̄
    start: Floats  # (count,) aux as this round's training began
    real: Floats  # (reals,) after training; not to be had in `update`
    weight: int  # |D_i|; an algorithm sees what the client counts for (`weigh=`)
    number: int = 0  # which client it is: names its random streams
    steps: int = 0  # of the last training, at this rate: what an algorithm that divides by both needs in `upload`
    rate: float = 0.0
    voted: bool = True  # whether this client's ballot is in the tally that the news reports
    scales: Floats = NOTHING
    memory: Floats = NOTHING  # what an algorithm carries over, of any shape: error feedback, for example
    states: Mapping[str, bytes] = NO_STATES  # what exchanges keep with the above, by their names


Judge = Callable[[Floats, Floats], float]  # (weights, real) → accuracy on the images that the server holds


class Server(NamedTuple):
    """What the server keeps from round to round, and its judge, for an algorithm to ask."""

    memory: Floats = NOTHING  # what an algorithm carries over, of any shape: a server optimiser's moments, for example
    judge: Judge | None = None  # scores weights on held-out data; None where the server has none
    states: Mapping[str, npt.NDArray[Any]] = NO_STATES  # what a robust sum or an accountant carries over, by their names


class Sent(NamedTuple):
    """A message, and what its sender keeps in memory of it: what `upload` and `broadcast` may return instead of a message."""

    message: Message
    memory: Floats

    @classmethod
    def of(cls, given: Message | Sent, memory: Floats = NOTHING) -> Sent:
        """What was returned, with this memory if it says nothing of it."""
        return given if isinstance(given, Sent) else cls(given, memory)


def recall(memory: Floats, *shape: int) -> Floats:
    """A memory, or the zeros of this shape that it is before it was first written."""
    return memory if memory.size else np.zeros(shape, np.float32)


def forget_but_for(client: Client, keeps: tuple[str, ...], names: frozenset[str], fresh: Client) -> Client:
    """The client after training with everything as it was (`fresh`), but for the fields that its algorithm keeps.

    With those all states of exchanges are kept, and in any case the states of these names.
    """
    kept = {field: getattr(client, field) for field in keeps}
    states = client.states if kept else {name: client.states[name] for name in sorted(names & client.states.keys())}
    return fresh._replace(**kept, states=states) if kept or states else fresh
