"""What a privacy mechanism is: how clients say their update so that the sum of all tells little of one, and what it tells.

A run has one for any algorithm whose clients upload their weights (`Private`). Then
- all that a client uploads of its data is one bounded vector, said as the mechanism says it; the real numbers of its message repeat
  the public ones, its weight is 1, and it tells no loss;
- the server reads the mean of what was said, noise and all, and makes of it what the algorithm would make of the mean;
- what the sums have told so far is accounted, by the number of clients that were in each.

The vector is all that a client has to tell after training. It holds the change of the weights and of the trained reals (batch-
norm's γ and β, ϑ, layers kept real), shortened to a length, and batch-norm's statistics of training: how far each mean and each
mean square moved, in units of what is public of them, within ±1. The statistics have a fixed share of the length, so the whole is
never longer than `clip`, whatever a client holds. Numbers that are not finite, of a training that diverged, count as no change:
even a refusal to send would tell something.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bifl.core.algorithm import WEIGHTS, Algorithms, Checks
from bifl.core.layout import Layout
from bifl.core.message import NOTHING, UPDATE, Alphabet, Floats, Message, Selection, Symbols, Vector
from bifl.core.rules import change
from bifl.core.state import Client, Public, Server
from bifl.core.sums import Tally, VectorTally
from bifl.errors import ConfigError, RunError
from bifl.privacy.accounting import ORDERS, Numbers, Summed, epsilon, once_more
from bifl.privacy.dice import Dice, Words
from bifl.registry import Registry
from bifl.secure import WEIGHT_LIMIT

INSTEAD = "fedavg, full, fedavgm or fedadam"
STATISTICS = 0.25  # the statistics' share of the squared length
_ALIVE = 1e-5  # variances count as at least this: batch-norm's own ε
_LEFT = 0.1  # the share of a variance that is left in a round, however noisy its sum is


class Crowd(NamedTuple):
    """Who may hide whom."""

    clients: int  # of whom those of a round are drawn
    hidden: bool = False  # nobody but the server knows who was drawn; in a secure sum all clients do
    colluders: int = 0  # clients that may tell others, or the server, what they sent and whether they were drawn


def as_many(numbers: int) -> int:
    """The usual `length`: a symbol for every number."""
    return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A privacy mechanism.

    Attributes:
        says: (update, public state, private random words) → symbols of an upload.
        hears: (mean of the symbols' values, how many clients said them, public state, the server's random words) → mean update.
        divergences: (how many clients were summed, crowd, numbers in an update) → (`ORDERS`,) Rényi divergences of one round.
        length: numbers in an update → symbols in an upload.
    """

    clip: float  # the largest length of a client's update; the mechanism may rely on it
    delta: float  # δ, for which ε is accounted
    says: Callable[[Floats, Public, Words], Symbols]
    alphabet: Alphabet  # of these symbols
    hears: Callable[[Numbers, int, Public, Words], npt.NDArray[np.floating]]
    divergences: Callable[[int, Crowd, int], Numbers]
    length: Callable[[int], int] = as_many
    budget: float = 0.0  # the largest ε that a run may spend; 0 means any
    unseen: bool = False  # the divergences hold only where nobody sees a single upload: a deployment then needs the secure sum

    def __post_init__(self) -> None:
        if not 0 < self.clip < WEIGHT_LIMIT:  # what a secure sum holds
            raise ConfigError(f"privacy.clip must be a length greater than 0 and below {WEIGHT_LIMIT}, not {self.clip}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"privacy.delta must be a probability, far below 1/clients, not {self.delta}")
        if not 0 <= self.budget < float("inf"):
            raise ConfigError(f"privacy.budget must be the largest ε that may be spent, or 0 for any, not {self.budget}")


privacy: Registry[Mechanism | None] = Registry("privacy")


@privacy
def none() -> None:
    """No differential privacy: no ε is claimed."""


def check_private(batchnorm: str, holdout: float, attack: str) -> None:
    """Refuse settings by which clients would tell what is not accounted."""
    if batchnorm != "average":
        raise ConfigError(
            f"privacy= accounts for one upload a round, and batchnorm={batchnorm} has clients send statistics besides: set "
            "batchnorm=average, with which they are part of it"
        )
    if holdout:
        raise ConfigError(f"privacy= does not account for results on what clients hold out: set holdout=0, not {holdout:g}")
    if attack != "none":
        raise ConfigError("privacy= bounds what honest clients send, and attack= has some send anything: leave one of the two out")


def refuse_unprivate(algorithms: Algorithms, how: Mechanism, clients: int) -> None:
    """Refuse an algorithm whose clients upload something else than their weights, and a δ by which one could be told in full."""
    name = f"'{algorithms.parts[0].name}'"
    if len(algorithms.parts) > 1 or any(part.uploads != WEIGHTS or part.central for part in algorithms.parts):
        raise ConfigError(
            f"privacy= needs clients that upload their weights, and those of algorithm {name} do not: take {INSTEAD}, or declare "
            "uploads=WEIGHTS if they do"
        )
    if any(part.aggregate is not None for part in algorithms.parts):
        raise ConfigError(f"privacy= accounts for a plain sum, and algorithm {name} has a sum of its own: take {INSTEAD}")
    if how.delta >= 1 / clients:
        raise ConfigError(
            f"privacy.delta={how.delta:g} would allow one of clients={clients} to be told in full: it must be below {1 / clients:g}"
        )


SUMMED = "summed"  # under which the server keeps the sums that were accounted for


@dataclasses.dataclass(frozen=True)
class Private:
    """A mechanism as a run has it: what clients say, what the server hears of it, and what that has told so far."""

    how: Mechanism
    crowd: Crowd
    dice: Dice  # where private randomness comes from

    def selects(self, layout: Layout) -> Selection:
        """Uploads are about everything at once."""
        return Selection(self.how.length(numbers(layout)), place=0)

    def form(self, upload: Message, public: Public) -> Message:
        """A private upload, as far as its form goes, instead of a plain one."""
        about = self.selects(public.layout)
        symbols = np.zeros(about.length, np.min_scalar_type(self.how.alphabet.size - 1) if self.how.alphabet.size else np.float32)
        return upload._replace(vectors={UPDATE: Vector(symbols, self.how.alphabet, NOTHING, about)}, real=public.real)

    def upload(self, client: Client, public: Public, secret: bytes) -> Message:
        """The private update, and nothing else of the client: its real numbers are the public ones."""
        words, about = self.dice(public, client.number, secret), self.selects(public.layout)
        symbols = self.how.says(vector(client, public, self.how.clip), public, words)
        upload = Message.of(symbols, self.how.alphabet, public.real)
        return Checks("algorithm 'of this run'", "privacy=").message(upload, public, {UPDATE: about})[0]

    def hear(self, tally: Tally, public: Public) -> Tally:
        """The tally that an algorithm would have without privacy, noise and all."""
        by = self.how.hears(tally.update.mean, tally.clients, public, self.dice(public, None, b"")).astype(np.float32)
        weights, real = apply(by, public, self.how.clip)
        return Tally(tally.clients, tally.clients, 1, {UPDATE: VectorTally(weights.astype(np.float64))}, real)

    def account(self, server: Server, clients: int, voters: int, present: int) -> Server:
        """The server after one more sum of so many clients, where `voters` were drawn among those who were `present`.

        Who was drawn and did not answer may not have been the only one: then nobody hides among those who were not drawn.
        """
        among = max(present, clients) if clients == voters else clients
        summed = once_more(self.summed(server), clients, among)
        return server._replace(states={**server.states, SUMMED: np.array(summed, np.int64)})

    def summed(self, server: Server) -> Summed:
        """The sums that were accounted for."""
        sums = server.states.get(SUMMED, np.zeros((0, 3), np.int64))
        if sums.dtype.kind != "i" or sums.ndim != 2 or sums.shape[1] != 3 or (sums < 1).any():
            raise RunError(f"the checkpoint is damaged: the sums that privacy= accounts for are {sums.shape} of {sums.dtype}")
        return tuple((clients, among, rounds) for clients, among, rounds in sums.tolist())

    def epsilon(self, summed: Summed, layout: Layout) -> float:
        """ε of such sums, given the layout of the model."""
        size, total = numbers(layout), np.zeros(len(ORDERS))
        for clients, among, rounds in summed:
            total = total + rounds * self.how.divergences(clients, self.crowd._replace(clients=among), size)
        return epsilon(total, self.how.delta)

    def over(self, summed: Summed, layout: Layout) -> float:
        """ε of such sums if that is above the budget, else 0."""
        spent = self.epsilon(summed, layout) if self.how.budget else 0.0
        return spent if spent > self.how.budget else 0.0

    def affords(self, summed: Summed, clients: int, among: int, layout: Layout) -> bool:
        """Whether a further sum, of so many clients among so many, stays within the budget."""
        return not self.over(once_more(summed, clients, among), layout)

    def refuse_small_budget(self, clients: int, among: int, layout: Layout) -> None:
        """Refuse a budget that is spent before the first sum, of so many clients among so many."""
        if cost := self.over(once_more((), clients, among), layout):
            raise ConfigError(
                f"privacy.budget={self.how.budget:g} is less than one round of {clients} clients costs, ε = {cost:.3g}: more "
                "clients, more noise or a smaller model cost less"
            )


# ---- what a client has to tell ------------------------------------------------------------------------------------------------


def numbers(layout: Layout) -> int:
    """How long the vector is."""
    return layout.count + layout.reals


def vector(client: Client, public: Public, clip: float) -> Floats:
    """(numbers,) what training changed, no longer than `clip`."""
    trained, moments = public.layout.trained, public.layout.reals - public.layout.trained
    changes = np.concatenate([change(client, public), (client.real - public.real)[:trained]])
    weights = shortened(changes, clip * np.sqrt(1 - STATISTICS if moments else 1))
    moved = _moved(client.real[trained:].astype(np.float64), public)
    moved = np.where(np.isfinite(moved), moved, 0.0).clip(-1, 1) * _unit(clip, moments)
    return shortened(np.concatenate([weights, moved]), clip)


def apply(by: Floats, public: Public, clip: float) -> tuple[Floats, Floats]:
    """The public weights and reals, moved by the mean of such vectors, noise and all."""
    count, trained = public.layout.count, public.layout.trained
    weights, reals, moved = np.split(by, [count, count + trained])
    moments = _moments(moved.astype(np.float64) / _unit(clip, len(moved)), public)
    return public.weights + weights, np.concatenate([public.real[:trained] + reals, moments]).astype(np.float32)


def shortened(values: npt.NDArray[np.floating], most: float) -> Floats:
    """The vector, shortened to a length if it is longer; zeros, if it is not finite."""
    exact = values.astype(np.float64)
    length = np.sqrt(np.square(exact).sum())
    if not np.isfinite(length):
        return np.zeros(len(values), np.float32)
    return (exact if length <= most else exact * (most / length)).astype(np.float32)


def _unit(clip: float, moments: int) -> float:
    """What 1 is worth among the statistics."""
    return float(clip * np.sqrt(STATISTICS / max(moments, 1)))


def _known(public: Public) -> tuple[Numbers, Numbers]:
    """The public mean and variance of every batch-norm input."""
    mean, square = public.real[public.layout.trained :].astype(np.float64).reshape(2, -1)
    return mean, np.maximum(square - mean**2, _ALIVE)


def _moved(moments: Numbers, public: Public) -> Numbers:
    """How far means moved, in public deviations; and mean squares around the public means, as shares of the public variances.

    Both are linear in the moments: their mean over clients is that of all data pooled.
    """
    (mean, square), (centre, variance) = moments.reshape(2, -1), _known(public)
    return np.concatenate([(mean - centre) / np.sqrt(variance), (square - 2 * centre * mean + centre**2) / variance - 1])


def _moments(moved: Numbers, public: Public) -> Numbers:
    """The moments after such a move."""
    (mean, square), (centre, variance) = moved.reshape(2, -1), _known(public)
    spread = variance * np.maximum(1 + square - mean**2, _LEFT)
    new = centre + mean * np.sqrt(variance)
    return np.concatenate([new, spread + new**2])
