"""Credibility: an upload counts as far as it agrees with most of the others (after FedVote, Yue et al., 2022).

Agreement of two uploads is the cosine of what they say; of ballots a weight counts the more the more it is contested. A score is
the *median* of agreements with the others who have credit. What counts is how far it lies below the usual score, in units of
what is tolerated, and less where the round tells little: where honest updates have little in common. The server remembers trust; an
upload counts by the lesser of what the server remembers and what this round tells. Why so: docs/robust.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from bifl.core import Floats, Message, Public, Tally, mean
from bifl.core.sums import LARGEST_WEIGHT
from bifl.errors import ConfigError
from bifl.robust.rule import BALLOTS, UPDATES, Numbers, Rule, check_reach, kind_of, products, robust, shorten

TOLERATED = 0.75  # of the usual score
SPREADS = 5.0  # of the scores above the usual one: a round tells all if they are less than what is tolerated
LOST = 0.5  # of the way down that trust goes in such a round
FULL = 4  # credit, in quarters: weights stay whole numbers

Credits = npt.NDArray[np.int64]  # (uploads,) from 0 to FULL


def middle_of(numbers: Numbers, says: Credits) -> float:
    """The median of numbers that count so often; of two the larger: three who agree outweigh two who do."""
    says = says if says.any() else np.ones_like(says)
    order = np.argsort(numbers)
    heard = np.cumsum(says[order])
    return float(numbers[order][np.searchsorted(heard, heard[-1] / 2, side="right")])


def contested(ballots: Numbers) -> Numbers:
    """(weights,) how far votes of ±1 are from being the same, from 0 to 1."""
    usual: Numbers = ballots.sum(axis=0) / (len(ballots) + 1)  # one more abstains: where few agree, others might not
    return 1 - usual * usual


def agreements(uploads: Sequence[Message], public: Public, says: Credits) -> Numbers:
    """(uploads,) the median cosine of each upload with the others, who have so much to say."""
    inner = products(uploads, public, contested if kind_of(uploads[0]) == BALLOTS else None)
    norms = np.sqrt(np.maximum(np.diag(inner), 1e-30))
    cosines = inner / norms[:, None] / norms[None, :]
    others = ~np.eye(len(uploads), dtype=bool)
    return np.array([middle_of(row[other], says[other]) for row, other in zip(cosines, others, strict=True)])


def judge(scores: Numbers, says: Credits) -> tuple[Numbers, float]:
    """(uploads,) trust that scores deserve, and how much they tell, from 0 to 1.

    Trust is 1 for the usual score and above, ½ for one that is lower by what is tolerated, and 0 for twice as much.
    """
    usual = middle_of(scores, says)
    above = np.sort(scores[scores > usual]) - usual
    noise = SPREADS * float(above[(len(above) - 1) // 2]) if len(above) else 0.0  # the lower median: some may be above on purpose
    tolerance = max(TOLERATED * usual, noise, 1e-9)
    return 1 - np.clip((usual - scores) / tolerance / 2, 0, 1), max(TOLERATED * usual / tolerance, 0.0)


def credit(trust: Numbers | Floats) -> Credits:
    """(uploads,) quarters of its weight that an upload counts for: nothing up to a trust of ½, everything from ¾."""
    return np.asarray(np.rint(FULL * np.clip(4 * trust - 2, 0, 1)), np.int64)


def weigh(uploads: Sequence[Message], credits: Credits) -> Tally:
    """The mean of uploads that count for so many quarters of their weight."""
    quarters = math.gcd(*[upload.weight * own for upload, own in zip(uploads, credits.tolist(), strict=True)])
    uneven = quarters % FULL > 0 and kind_of(uploads[0]) == BALLOTS  # a vote stands for whole images; means have no votes
    if uneven or sum(upload.weight for upload in uploads) * FULL > LARGEST_WEIGHT:
        credits = np.where(credits < min(FULL // 2, credits.max()), 0, FULL)  # no room for fractions
    common = math.gcd(*credits.tolist())
    times = (credits // common).tolist()
    tally = mean(upload._replace(weight=upload.weight * own) for upload, own in zip(uploads, times, strict=True) if own)
    return tally._replace(unit=max(1, tally.unit * common // FULL))


def believe(uploads: Sequence[Message], public: Public, trust: Floats, *, memory: float, reach: float) -> tuple[Tally, Floats]:
    """The mean of uploads as far as they are credible, none of them much longer than most."""
    if len(uploads) < 2:
        return mean(uploads), trust
    senders = [upload.sender or 0 for upload in uploads]
    newcomers = max(0, max(senders) + 1 - len(trust))
    trust = np.concatenate([trust, np.ones(newcomers, np.float32)])
    before = trust[senders]
    says = credit(before)
    deserved, telling = judge(agreements(uploads, public, says), says)
    pace = np.where(deserved < before, LOST, 1 - memory)
    trust[senders] = (before + telling * pace * (deserved - before)).astype(np.float32)
    now = 1 - telling * (1 - deserved)
    credits = credit(np.minimum(now, trust[senders]))
    if not credits.any():
        credits = credit(now)  # that of the usual score is full
    if kind_of(uploads[0]) == UPDATES:
        uploads = shorten(uploads, public, reach)
    return weigh(uploads, credits), trust


@robust
def credibility(memory: float = 0.8, reach: float = 2.0) -> Rule:
    """Uploads count as far as they agree with most others, now and before; updates longer than `reach` medians are shortened."""
    if not 0 <= memory < 1:
        raise ConfigError(f"robust.memory must be from 0 (trust is regained at once) to below 1, not {memory}")
    return Rule(partial(believe, memory=memory, reach=check_reach(reach)))
