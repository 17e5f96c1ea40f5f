"""Credibility: an upload counts as far as it agrees with most of the others (after FedVote, Yue et al., 2022).

Agreement of two uploads is the cosine of what they say. Of ballots a weight counts the more the more it is contested: that two
agree where all do says nothing about either, and who trains on wrong labels differs from the others on the contested weights
alone. An upload's score is the *median* of its agreements with the others, so that a minority that agrees with itself gains
nothing by it. What counts is how far a score lies below the usual one, in units of what is tolerated: three quarters of the usual
score.

Uploads that are noise for the most part (`murmur`, `eden`) can be judged all the same: of n weights the noise of a cosine is
1/√n, far below what honest updates have in common. A median or a distance of single coordinates sees that noise alone.

Late in training, and where clients have different classes, honest updates have little in common. A round tells the less the
smaller the usual score is beside the spread of the scores above it; a round that tells nothing costs nobody credit and changes no
trust. The server remembers: what counts is the lesser of this round's trust and that of the rounds before, which is lost at once
and regained slowly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from bifl.core.exact_sum import LARGEST_WEIGHT
from bifl.core.message import Floats, Message
from bifl.core.state import Public
from bifl.core.sums import Tally, mean
from bifl.errors import ConfigError
from bifl.robust.rule import UPDATES, Numbers, Rule, kind_of, lengths, products, robust, shortened

TOLERATED = 0.75  # of the usual score
SPREADS = 4.0  # of the scores above it that must not exceed what is tolerated, in a round that tells all
LOST = 0.5  # of the trust before, by an upload that no honest client would send
LEVELS = 4  # of credit between them: weights stay whole numbers


def middle_of(numbers: Numbers) -> float:
    """The median, of an even number of numbers the larger of the two: three who agree outweigh two who do."""
    return float(np.sort(numbers)[len(numbers) // 2])


def contested(rows: Numbers) -> Numbers:
    """(weights,) how far uploads of −1 to 1 are from saying the same, from 0 to 1.

    One more is counted who abstains: where few agree, others might not.
    """
    usual: Numbers = rows.sum(axis=0) / (len(rows) + 1)
    return 1 - usual * usual


def agreements(uploads: Sequence[Message], public: Public) -> Numbers:
    """(uploads,) the median cosine of each upload with the others."""
    inner = products(uploads, public, None if kind_of(uploads[0]) == UPDATES else contested)
    norms = np.sqrt(np.maximum(np.diag(inner), 1e-30))
    cosines = inner / norms[:, None] / norms[None, :]
    others = ~np.eye(len(uploads), dtype=bool)
    return np.array([middle_of(row[other]) for row, other in zip(cosines, others, strict=True)])


def trusted(scores: Numbers) -> tuple[Numbers, float]:
    """(uploads,) from 1 for the usual score and above, over ½ for one that is lower by what is tolerated, to 0.

    And how much the round tells, from 0 to 1.
    """
    usual = middle_of(scores)
    above = scores[scores > usual] - usual  # liars are below
    noise = SPREADS * float(above.mean()) if len(above) else 0.0
    tolerance = max(TOLERATED * usual, noise, 1e-9)
    return 1 - np.clip((usual - scores) / tolerance / 2, 0, 1), max(TOLERATED * usual / tolerance, 0.0)


def credit(trust: Numbers) -> npt.NDArray[np.int64]:
    """(uploads,) LEVELS-ths of its weight that an upload counts for: nothing up to a trust of ½, everything from ¾."""
    return np.rint(LEVELS * np.clip(4 * trust - 2, 0, 1)).astype(np.int64)


def remembered(trust: Floats, senders: Sequence[int]) -> Floats:
    """(clients,) the server's trust with room for all senders; it begins by trusting."""
    size = max(len(trust), max(senders) + 1)
    return np.concatenate([trust, np.ones(size - len(trust), np.float32)])


def weighed(uploads: Sequence[Message], levels: npt.NDArray[np.int64]) -> Tally:
    """The mean of uploads that count for so many LEVELS-ths of their weight."""
    if sum(upload.weight for upload in uploads) * LEVELS > LARGEST_WEIGHT:
        levels = np.where(2 * levels < LEVELS, 0, LEVELS)  # no room for fractions
    common = math.gcd(*levels.tolist())
    times = (levels // common).tolist()
    tally = mean(upload._replace(weight=upload.weight * own) for upload, own in zip(uploads, times, strict=True) if own)
    return tally._replace(unit=max(1, round(tally.unit * common / LEVELS)))


def believed(uploads: Sequence[Message], public: Public, trust: Floats, *, memory: float, reach: float) -> tuple[Tally, Floats]:
    """The mean of uploads as far as they are credible, none of them much longer than most."""
    if len(uploads) < 2:
        return mean(uploads), trust
    found, telling = trusted(agreements(uploads, public))
    senders = [upload.sender or 0 for upload in uploads]
    trust = remembered(trust, senders)
    before = trust[senders]
    pace = np.where(found < before, LOST, 1 - memory)
    trust[senders] = (before + telling * pace * (found - before)).astype(np.float32)
    now = 1 - telling * (1 - found)
    levels = credit(np.minimum(now, trust[senders]))
    if not levels.any():
        levels = credit(now)  # that of the usual score is full
    if kind_of(uploads[0]) == UPDATES:
        long = lengths(uploads, public)
        most = reach * float(np.median(long))
        uploads = [shortened(upload, public, own, most) for upload, own in zip(uploads, long, strict=True)]
    return weighed(uploads, levels), trust


@robust
def credibility(memory: float = 0.8, reach: float = 2.0) -> Rule:
    """Uploads count as far as they agree with most others, now and before; updates longer than `reach` medians are shortened."""
    if not 0 <= memory < 1:
        raise ConfigError(f"robust.memory must be from 0 (this round alone counts) to below 1, not {memory}")
    if not 0 < reach < math.inf:
        raise ConfigError(f"robust.reach must be a number greater than 0, not {reach}")
    return Rule(partial(believed, memory=memory, reach=reach))
