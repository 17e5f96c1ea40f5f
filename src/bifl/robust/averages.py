"""Means without what stands out: of every weight (median, trimmed mean, bounded votes), and of whole uploads (Krum, by length).

Of ballots the trimmed mean leaves out a share of the votes on either side of every count. That is also the most likely number of
honest votes if a share of the clients turn theirs: of honest votes p and liars ε, p(1 − ε) + (1 − p)ε are counted.
Every client counts once for updates, however many images it has; votes count by images, as always.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from bifl.core import VOTES, Algorithm, Floats, Message, Public, Tally, Votes, mean
from bifl.errors import ConfigError
from bifl.robust import rule
from bifl.robust.rule import Numbers, Rule, robust


def central_sum(centre: Callable[[Numbers], Numbers], recount: Callable[[Tally], Tally]) -> rule.Sum:
    """The centre of every number, (uploads, numbers) → (numbers,); of ballots the votes counted anew."""

    def centre_of(rows: Sequence[Floats]) -> Numbers:
        return centre(np.stack(rows).astype(np.float64))

    def total(uploads: Sequence[Message], public: Public, trust: Floats) -> tuple[Tally, Floats]:
        real = centre_of([upload.real for upload in uploads]).astype(np.float32)
        scales = centre_of([upload.update.scales for upload in uploads]).astype(np.float32)
        tally = mean(uploads)._replace(real=real).with_update(scales=scales)
        if tally.update.votes is not None:
            return recount(tally), trust
        parts = rule.blocks(public.layout.count)
        columns = [centre_of([upload.update.alphabet.values(upload.update.symbols[part]) for upload in uploads]) for part in parts]
        return tally.with_update(mean=np.concatenate(columns)), trust

    return total


def vote_tally(tally: Tally, positive: Numbers, total: int) -> Tally:
    """A tally of so many positive votes of so many."""
    counts = positive.astype(np.int64)
    return tally._replace(total=total).with_update(votes=counts, mean=2 * (counts.astype(np.float64) / total) - 1)


# ---- the median ------------------------------------------------------------------------------------------------------------


def middle(rows: Numbers) -> Numbers:
    """The median of every column."""
    return np.asarray(np.median(rows, axis=0), np.float64)


def majority(tally: Tally) -> Tally:
    """The majority, as if all had voted so; a tie counts as −1."""
    assert tally.update.votes is not None
    return vote_tally(tally, np.where(2 * tally.update.votes > tally.total, tally.total, 0), tally.total)


@robust
def median() -> Rule:
    """The median of every weight; of ballots the majority, as if all had voted so."""
    return Rule(central_sum(middle, majority))


# ---- the trimmed mean --------------------------------------------------------------------------------------------------------


@robust
def trimmed_mean(share: float = 0.2) -> Rule:
    """The mean of every weight without the largest and the smallest `share` of the uploads; of ballots, votes."""
    rule.check_share(share)

    def cut_of(count: int) -> int:
        """How many are left out on either side, so that something is left."""
        return min(rule.liars_of(share, count), (count - 1) // 2)

    def inner_mean(rows: Numbers) -> Numbers:
        cut = cut_of(len(rows))
        return np.asarray(np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0), np.float64)

    def inner_votes(tally: Tally) -> Tally:
        assert tally.update.votes is not None
        cut = cut_of(tally.total)
        left = tally.total - 2 * cut
        return vote_tally(tally, np.clip(tally.update.votes - cut, 0, left), left)

    return Rule(central_sum(inner_mean, inner_votes), too_few=partial(rule.nobody, share=share))


# ---- a bounded step ----------------------------------------------------------------------------------------------------------


def no_counts(algorithm: Algorithm, kind: str) -> str:
    """Why votes have no last step: they are not counted, or the counts are not broadcast."""
    if kind != rule.BALLOTS:
        return "it bounds how far vote counts move, and there are no ballots; norm_clip bounds updates"
    if algorithm.broadcasts != VOTES:
        return "it bounds how far vote counts move, and no counts are broadcast; trimmed_mean or credibility do not need them"
    return ""


@robust
def bounded_step(step: float = 0.2) -> Rule:
    """Vote counts move by at most a share `step` of all votes in a round, or by one vote if that is more."""
    if not 0 < step <= 1:
        raise ConfigError(f"robust.step must be a share of the votes, above 0 and at most 1, not {step}")

    def total(uploads: Sequence[Message], public: Public, trust: Floats) -> tuple[Tally, Floats]:
        tally = mean(uploads)
        if tally.update.votes is None:  # of an algorithm whose uploads are no ballots in every round
            raise ConfigError("robust=bounded_step bounds vote counts, and these uploads are no ballots: use norm_clip")
        if public.news is None or not isinstance(public.news.update.alphabet, Votes):
            return tally, trust
        last = public.news.update.symbols / public.news.update.alphabet.total * tally.total
        reach = max(1.0, step * tally.total) + 1e-9  # of few clients one vote: counts must not freeze
        lowest, highest = np.maximum(np.ceil(last - reach), 0), np.minimum(np.floor(last + reach), tally.total)
        return vote_tally(tally, np.clip(tally.update.votes, lowest, highest), tally.total), trust

    return Rule(total, no_counts)


# ---- Krum (Blanchard et al., 2017) --------------------------------------------------------------------------------------------


@robust
def krum(share: float = 0.2, keep: int = 0) -> Rule:
    """Multi-Krum: the mean of the `keep` uploads nearest to their neighbours; 0 keeps all but the assumed `share` of liars."""
    rule.check_share(share)
    if keep < 0:
        raise ConfigError(f"robust.keep must be a number of uploads, or 0 for all but the assumed liars, not {keep}")

    def total(uploads: Sequence[Message], public: Public, trust: Floats) -> tuple[Tally, Floats]:
        count = len(uploads)
        honest = count - rule.liars_of(share, count)
        inner = rule.products(uploads, public)
        squares = np.diag(inner)
        distances = np.maximum(squares[:, None] + squares[None, :] - 2 * inner, 0)
        np.fill_diagonal(distances, np.inf)
        scores = np.sort(distances, axis=1)[:, : max(1, min(count - 1, honest - 2))].sum(1)
        nearest = np.argsort(scores, kind="stable")[: min(keep or count, honest)]
        return mean([uploads[place] for place in sorted(nearest.tolist())]), trust

    def unfit(uploads: int) -> str:
        left = uploads - rule.liars_of(share, uploads)
        if keep > left:
            return f"robust.keep={keep} is more than the {left} that are left without the assumed share of {share:g}"
        return rule.nobody(uploads, share=share)

    return Rule(total, too_few=unfit)


# ---- bounds on lengths --------------------------------------------------------------------------------------------------------


def no_updates(algorithm: Algorithm, kind: str) -> str:
    """Why there is nothing to shorten."""
    return "" if kind == rule.UPDATES else f"it bounds the length of updates, and {kind} are all of one length; use credibility"


@robust
def norm_clip(reach: float = 1.0) -> Rule:
    """Updates longer than `reach` times the median length are shortened to that."""
    rule.check_reach(reach)

    def total(uploads: Sequence[Message], public: Public, trust: Floats) -> tuple[Tally, Floats]:
        return mean(rule.shorten(uploads, public, reach)), trust

    return Rule(total, no_updates)
