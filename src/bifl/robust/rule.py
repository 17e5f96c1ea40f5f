"""What a robust rule is: a sum of uploads that a minority of liars cannot steer, for any algorithm whose own sum is a mean.

It sees all uploads of a round together, as what they stand for (`Algorithm.reads`): ballots of signs, levels, or weights. That is
why it cannot be had beside a secure sum, and why it needs room for all uploads at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bifl.core import BINARY, NOTHING, Algorithm, Floats, Message, Public, Server, Tally
from bifl.core.algorithm import Algorithms, Checks
from bifl.errors import ConfigError
from bifl.registry import Registry

BALLOTS, LEVELS, UPDATES = "ballots", "levels", "updates"
TRUST = "trust"  # under which the server keeps what a rule remembers of the clients
_BLOCK = 2**14  # weights at a time: what is computed in between stays small

Numbers = npt.NDArray[np.float64]
Sum = Callable[[Sequence[Message], Public, Floats], tuple[Tally, Floats]]  # (uploads by sender, public state, trust) → …


def fits(*given: Any) -> str:
    """No reason why a rule makes no sense."""
    return ""


@dataclasses.dataclass(frozen=True)
class Rule:
    """A robust sum.

    Attributes:
        total: (uploads by sender, public state, trust) → (tally, new trust). Uploads are what they stand for; trust is what the
            server thinks of its clients, empty at first, of any shape, and is kept with the server's checkpoint.
        misfit: (algorithm, kind of its uploads) → why the rule makes no sense for it, or nothing.
        too_few: number of uploads in a round → why the rule makes no sense for so many, or nothing.
    """

    total: Sum
    misfit: Callable[[Algorithm, str], str] = fits
    too_few: Callable[[int], str] = fits


robust: Registry[Rule | None] = Registry("robust")


@robust
def none() -> None:
    """The algorithm's own sum: every upload counts by its images."""


def kind_of(upload: Message) -> str:
    """What an upload is, once it is read: `ballots` of signs, `levels`, or `updates`: weights, which have changed."""
    return UPDATES if upload.update.alphabet.size == 0 else BALLOTS if upload.update.alphabet == BINARY else LEVELS


@dataclasses.dataclass(frozen=True)
class RobustSum:
    """A rule as a run has it, with what it remembers in the server's state."""

    name: str  # by which errors call it
    rule: Rule

    def __call__(self, uploads: Sequence[Message], public: Public, server: Server) -> tuple[Server, Tally]:
        """What was counted, and the server with what the rule remembers."""
        result = self.rule.total(uploads, public, trust_of(server))
        check = Checks(f"robust={self.name}", "total")
        if not isinstance(result, tuple) or len(result) != 2:  # a tally alone is a tuple too
            wanted = "two things: a Tally, and the trust that the server remembers"
            raise check.error(f"a {type(result).__name__}", wanted)
        tally, trust = check.tally(result[0], public), result[1]
        check.memory(trust)
        return server._replace(states={**server.states, TRUST: trust}), tally


def trust_of(server: Server) -> Floats:
    """What a rule remembers of the clients; empty where there is none."""
    return server.states.get(TRUST, NOTHING)


def refuse_sum(algorithms: Algorithms) -> None:
    """Refuse a robust sum of an algorithm that has no uploads, or a sum of its own."""
    for algorithm in algorithms.parts:
        if algorithm.central:
            raise ConfigError(f"robust= needs clients that upload, and algorithm '{algorithm.name}' is centralised: leave it out")
        if algorithm.aggregate is not None:
            raise ConfigError(f"robust= replaces a mean, and algorithm '{algorithm.name}' has a sum of its own: leave it out")


def refuse_misfits(robust: RobustSum, algorithms: Algorithms, uploads: Sequence[Message], public: Public) -> None:
    """Refuse a rule that makes no sense for uploads of such forms, one of each part of the algorithm, or for so few."""
    name, rule = robust.name, robust.rule
    if reason := rule.too_few(public.voters):
        raise ConfigError(f"robust={name} does not fit {public.voters} uploads a round: {reason}")
    for algorithm, upload in zip(algorithms.parts, uploads, strict=True):
        if upload.update.about is not None and upload.update.about.place is not None:
            raise ConfigError(f"robust= reads uploads one by one, and of '{algorithm.name}' only the sum can be read: take murmur")
        if reason := rule.misfit(algorithm, kind_of(algorithm.reads(upload, public))):
            raise ConfigError(f"robust={name} does not fit algorithm '{algorithm.name}': {reason}")


# ---- what rules are made of ------------------------------------------------------------------------------------------------


def meaning(upload: Message, public: Public) -> Floats:
    """(count,) what an upload says: its votes or levels, or how its weights differ from the public ones."""
    return upload.update.values() - public.weights if upload.update.alphabet.size == 0 else upload.update.values()


def products(uploads: Sequence[Message], public: Public, weigh: Callable[[Numbers], Numbers] | None = None) -> Numbers:
    """(uploads, uploads) scalar products of what they say; `weigh`, of (uploads, weights), says how much each weight counts."""
    inner = np.zeros((len(uploads), len(uploads)))
    for part in blocks(public.layout.count):
        rows = np.stack([_part_of(upload, public, part) for upload in uploads])
        inner += (rows if weigh is None else rows * weigh(rows)) @ rows.T
    return inner


def _part_of(upload: Message, public: Public, part: slice) -> Numbers:
    values = upload.update.alphabet.values(upload.update.symbols[part]).astype(np.float64)
    return values - public.weights[part] if upload.update.alphabet.size == 0 else values


def blocks(count: int) -> Iterable[slice]:
    """All weights, some at a time."""
    return [slice(*ends) for ends in pairwise([*range(0, count, _BLOCK), count])]


def shorten(uploads: Sequence[Message], public: Public, reach: float) -> list[Message]:
    """Updates whose changes are no longer than `reach` times the median length; those that are not longer as they are."""
    sizes = [float(np.sqrt(np.square(meaning(upload, public), dtype=np.float64).sum())) for upload in uploads]
    most = reach * float(np.median(sizes))

    def shortened(upload: Message, factor: float) -> Message:
        return upload.with_update(symbols=(public.weights + np.float32(factor) * meaning(upload, public)).astype(np.float32))

    pairs = zip(uploads, sizes, strict=True)
    return [upload if size <= most else shortened(upload, most / size) for upload, size in pairs]


def check_share(share: float) -> float:
    """The share of liars that a rule must withstand, if it can be one."""
    if not 0 <= share < 0.5:
        raise ConfigError(f"robust.share must be the share of liars to withstand, from 0 to below 0.5, not {share}")
    return share


def liars_of(share: float, uploads: int) -> int:
    """How many uploads an assumed share of liars are."""
    return math.floor(share * uploads + 1e-9)


def nobody(uploads: int, *, share: float) -> str:
    """Why there is no liar to leave out, of so many uploads."""
    if share == 0 or liars_of(share, uploads):
        return ""
    enough = math.ceil(100 / uploads) / 100
    raised = f"set robust.share={enough:g} or more, or " if enough < 0.5 else ""
    return (
        f"the assumed share of {share:g} is nobody, and the sum the plain mean: {raised}take {math.ceil(1 / share - 1e-9)} or more"
    )


def check_reach(reach: float) -> float:
    """How many median lengths an update may have, if it can be so many."""
    if not 0 < reach < math.inf:
        raise ConfigError(f"robust.reach must be a number greater than 0, not {reach}")
    return reach
