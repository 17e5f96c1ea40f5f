"""What an attack is: what liars do to their labels, to what they trained, to what they say of it, and to what they measured.

In the simulator and in its readable twin only: a share of the clients, drawn by the seed, lies in every round; the others' uploads
stay as they are, byte for byte. A deployment refuses the setting: there nobody need be told to lie.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core import BINARY, Algorithm, Client, Floats, Message, Public, Sent, stream
from bifl.core.algorithm import Algorithms, checks, selections
from bifl.errors import ConfigError
from bifl.registry import Registry

Labels = npt.NDArray[Any]  # (n,) class numbers, or (n, outputs) numbers


class Liar(NamedTuple):
    """A client that lies, in the round under way."""

    number: int
    ballots: bool  # it says a sign of every weight, and not how weights changed: then a lie is a matter of the message
    seed: int  # of the experiment
    round: int

    def own(self, name: str) -> np.random.Generator:
        """Random numbers of this liar's."""
        return stream(self.seed, self.round, self.number, f"attack {name}")

    def agreed(self, name: str) -> np.random.Generator:
        """Random numbers that all liars have in common."""
        return stream(self.seed, self.round, None, f"attack {name}")


def honest(what: Any, *given: Any) -> Any:
    """Everything as it is."""
    return what


@dataclasses.dataclass(frozen=True)
class Attack:
    """What liars do: a record of pure functions, each of which leaves everything as it is unless it is given.

    Attributes:
        share: of the clients that lie; the seed draws them.
        labels: (labels of a client, number of classes, random numbers that all liars have in common) → those it trains
            on; None: its own.
        trained: (client after training, public state, liar) → the client whose upload is made.
        said: (upload, public state, liar) → the upload that is sent. It must have the same alphabet and length.
        measured: (batch-norm's statistics: E[x] of all channels, then E[x²]; public state; random numbers that all liars have in
            common in this round) → those that are sent after the ballot, with `batchnorm=recalibrate`.
    """

    share: float = 0.2
    labels: Callable[[Labels, int, np.random.Generator], Labels] | None = None
    trained: Callable[[Client, Public, Liar], Client] = honest
    said: Callable[[Message, Public, Liar], Message] = honest
    measured: Callable[[Floats, Public, np.random.Generator], Floats] = honest

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"attack.share must be a share of the clients, from 0 to 1, not {self.share}")


attack: Registry[Attack | None] = Registry("attack")


@attack
def none() -> None:
    """Nobody lies."""


@lru_cache(maxsize=64)
def liars(seed: int, clients: int, share: float) -> frozenset[int]:
    """Which clients lie: a share of them, rounded to the nearest number, and somebody unless the share is 0."""
    if share and not round(share * clients):
        raise ConfigError(
            f"attack.share={share:g} of {clients} clients is nobody: it takes {math.floor(0.5 / share) + 1} clients or more, "
            f"or attack.share above {0.5 / clients:.3g}"
        )
    drawn = stream(seed, 0, None, "liars").permutation(clients)
    return frozenset(drawn[: round(share * clients)].tolist())


def attacked(algorithms: Algorithms, by: Attack, who: frozenset[int]) -> Algorithms:
    """The algorithm, of which some clients' uploads are lies."""

    def lying(algorithm: Algorithm) -> Algorithm:
        if algorithm.central:
            raise ConfigError(f"attack= needs clients that upload, and algorithm '{algorithm.name}' is centralised: leave it out")
        return dataclasses.replace(algorithm, upload=partial(_upload, algorithm=algorithm, by=by, who=who))

    return algorithms.map(lying)


def _upload(client: Client, public: Public, algorithm: Algorithm, by: Attack, who: frozenset[int]) -> Message | Sent:
    """The honest upload, or a liar's. What a liar keeps in memory is what its own message leaves there."""
    truth = algorithm.upload(client, public)
    if client.number not in who:
        return truth
    abouts, check = selections(algorithm, public, client.number), checks(algorithm, "upload")
    message, memory = check.message(truth, public, abouts)
    read = algorithm.reads(message._replace(sender=client.number, round=public.round + 1), public)
    ballots = message.update.alphabet == BINARY and read.update.alphabet == BINARY  # and not how weights changed
    liar = Liar(client.number, ballots, public.seed, public.round + 1)
    changed = by.trained(client, public, liar)
    if changed is not client:
        message, memory = check.message(algorithm.upload(changed, public), public, abouts)
    lie = by.said(message, public, liar)
    return lie if memory is None else Sent(lie, memory)
