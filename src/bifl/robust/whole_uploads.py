"""Rules that look at whole uploads: Krum (Blanchard et al., 2017) and bounds on their lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from bifl.core.algorithm import Algorithm
from bifl.core.message import Floats, Message
from bifl.core.state import Public
from bifl.core.sums import Tally, mean
from bifl.errors import ConfigError
from bifl.robust.rule import UPDATES, Rule, assumed, nobody, products, reaching, robust, shortened


def nearest_uploads(uploads: Sequence[Message], public: Public, share: float, keep: int) -> list[int]:
    """The places of the uploads whose nearest neighbours are nearest, rising."""
    count = len(uploads)
    liars = math.floor(share * count + 1e-9)
    neighbours = max(1, min(count - 1, count - liars - 2))
    inner = products(uploads, public)
    squares = np.diag(inner)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * inner, 0)
    np.fill_diagonal(distances, np.inf)
    scores = np.sort(distances, axis=1)[:, :neighbours].sum(1)
    best = np.argsort(scores, kind="stable")[: min(keep or count, count - liars)]
    return sorted(best.tolist())


def chosen(uploads: Sequence[Message], public: Public, trust: Floats, *, share: float, keep: int) -> tuple[Tally, Floats]:
    """The mean of the uploads that Krum chooses."""
    return mean([uploads[place] for place in nearest_uploads(uploads, public, share, keep)]), trust


def unfit(uploads: int, *, share: float, keep: int) -> str:
    """Why Krum would leave nobody out, or keep liars, of so many uploads."""
    left = uploads - math.floor(share * uploads + 1e-9)
    if keep > left:
        return f"robust.keep={keep} is more than the {left} that are left without the assumed share of {share:g}"
    return nobody(uploads, share=share)


@robust
def krum(share: float = 0.2, keep: int = 0) -> Rule:
    """Multi-Krum: the mean of the `keep` uploads nearest to their neighbours; 0 keeps all but the assumed `share` of liars."""
    assumed(share)
    if keep < 0:
        raise ConfigError(f"robust.keep must be a number of uploads, or 0 for all but the assumed liars, not {keep}")
    return Rule(partial(chosen, share=share, keep=keep), too_few=partial(unfit, share=share, keep=keep))


def clipped(uploads: Sequence[Message], public: Public, trust: Floats, *, reach: float) -> tuple[Tally, Floats]:
    """The mean of updates none of which is much longer than most."""
    return mean(shortened(uploads, public, reach)), trust


def no_updates(algorithm: Algorithm, kind: str) -> str:
    """Why there is nothing to shorten."""
    return "" if kind == UPDATES else f"it bounds the length of updates, and {kind} are all of one length; use credibility"


@robust
def norm_clip(reach: float = 1.0) -> Rule:
    """Updates longer than `reach` times the median length are shortened to that."""
    return Rule(partial(clipped, reach=reaching(reach)), no_updates)
