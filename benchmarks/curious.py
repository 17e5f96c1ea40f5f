"""Attacks on uploads: "does client i hold class c?", as numbers that are larger where the attacker believes it.

The simple ones look at one number a class. The strong one is a classifier of everything together, learnt from shadow clients, whose
images the attacker knows. What it learns from a shadow client it never tries on the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from bifl.core.layout import Layout

Numbers = npt.NDArray[np.float64]
Truth = npt.NDArray[np.bool_]

STRENGTHS = 10.0 ** np.arange(-4, 3)  # of the ridge, in units of the features' mean square
FOLDS = 4
QUIET = 1e-3  # a feature that moves less than this share of the loudest one is not blown up


def auc(scores: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """The chance that a random pair that is true scores above a random one that is not; ties count half. NaN if one kind lacks."""
    flat, true = np.ravel(scores), np.ravel(truth).astype(np.bool_)
    positives, negatives = int(true.sum()), int((~true).sum())
    if not positives or not negatives:
        return float("nan")
    ranks = rankdata(flat)
    return float((ranks[true].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def simple(layout: Layout, weights: Numbers, real: Numbers, moments: Numbers) -> dict[str, Numbers]:
    """(clients, classes) scores that need no shadow clients, by name.

    A client that lacks a class makes its score constant and small: γ, β and the score's variance are smaller than another's, and
    the class's row of the last linear layer moves as the rows of the other classes do that it lacks.

    Args:
        layout: of the network; its last coded layer gives the class scores.
        weights: (clients, count) changes.
        real: (clients, trained) changes.
        moments: (clients, moments) E[x], then E[x²].
    """
    found: dict[str, Numbers] = {}
    ends = pairwise(accumulate((spec.size for spec in layout.affine), initial=len(layout.layers)))
    affine = {spec.name: slice(*end) for spec, end in zip(layout.affine, ends, strict=True)}
    if layout.moments and (norm := layout.moments[-1].name + ".weight") in affine:
        found["γ"] = real[:, affine[norm]]
        found["β"] = real[:, affine[layout.moments[-1].name + ".bias"]]
    rows = last_rows(layout, weights)
    size, common = np.linalg.norm(rows, axis=2), rows.mean(1, keepdims=True)
    found["rows"] = -(rows * common).sum(2) / np.maximum(size * np.linalg.norm(common, axis=2), 1e-12)
    if moments.shape[1]:
        found["variance"] = central(moments)[:, -layout.moments[-1].size :]
    return found


def central(moments: Numbers) -> Numbers:
    """(clients, moments) means and variances of E[x] and E[x²]."""
    mean, square = np.split(moments, 2, axis=1)
    return np.concatenate([mean, square - mean**2], axis=1)


def last_rows(layout: Layout, weights: Numbers) -> Numbers:
    """(clients, classes, inputs) the part of coded vectors that makes the class scores."""
    parts = pairwise(accumulate((spec.size for spec in layout.coded), initial=0))
    placed = [(spec, slice(*ends)) for spec, ends in zip(layout.coded, parts, strict=True) if len(spec.shape) > 1]
    spec, part = placed[-1]
    return weights[:, part].reshape(len(weights), spec.shape[0], -1)


class Source(NamedTuple):
    """Something that the attacker looks at, of shadow clients and of those whose classes it wants to know."""

    shadows: Numbers  # (shadows, …)
    targets: Numbers  # (targets, …)


def learnt(features: Sequence[Source], hints: Sequence[Source], images: Numbers) -> Numbers:
    """(targets, classes) how sure a classifier is that was learnt from shadow clients.

    First a ridge regression guesses for every block of features how many images of each class there are, then a logistic
    regression of all classes together, on these guesses and on the hints, whether there are any.

    Args:
        features: blocks of any length.
        hints: (clients, classes) each.
        images: (shadows, classes) how many of each class a shadow client has.
    """
    columns = [guessed(block, np.log1p(images)) for block in features]
    columns += [Source(*(_normal(part, hint.shadows) for part in hint)) for hint in hints]
    known, wanted = (np.stack(parts, axis=2) for parts in zip(*columns, strict=True))
    middle, spread = known.mean((0, 1)), np.maximum(known.std((0, 1)), 1e-12)
    weights = logistic(((known - middle) / spread).reshape(-1, len(columns)), (images > 0).ravel())
    return np.asarray((wanted - middle) / spread @ weights[:-1] + weights[-1])


def guessed(block: Source, wanted: Numbers) -> Source:
    """(…, classes) guesses by ridge regression: those of each shadow client by what was learnt from other ones.

    Args:
        block: features.
        wanted: (shadows, classes) what is to be guessed.
    """
    folds = np.arange(len(wanted)) % FOLDS
    tried = np.zeros((len(STRENGTHS), *wanted.shape))
    for fold in range(FOLDS):
        out = folds == fold
        tried[:, out] = _ridge(block.shadows[~out], wanted[~out], block.shadows[out])
    best = int(np.square(tried - wanted).sum((1, 2)).argmin())
    return Source(tried[best], _ridge(block.shadows, wanted, block.targets)[best])


def _ridge(known: Numbers, wanted: Numbers, others: Numbers) -> Numbers:
    """(strengths, others, classes) There are more features than clients, so it is solved for the clients."""
    near, far = _normal(known, known), _normal(others, known)
    square = max(float(np.square(near).sum()) / len(near), 1e-12)
    usual, eye = wanted.mean(0), np.eye(len(near))
    inner, outer = near @ near.T / square, far @ near.T / square
    return np.stack([outer @ np.linalg.solve(inner + strength * eye, wanted - usual) + usual for strength in STRENGTHS])


def _normal(values: Numbers, known: Numbers) -> Numbers:
    """Values in units of the known ones' deviation, feature by feature."""
    spread = known.std(0)
    return np.asarray((values - known.mean(0)) / np.maximum(spread, max(QUIET * float(spread.max(initial=0)), 1e-12)))


def logistic(features: Numbers, truth: Truth, strength: float = 1.0, steps: int = 30) -> Numbers:
    """(features + 1,) weights of a logistic regression, the last is the constant; Newton's method."""
    given = np.column_stack([features, np.ones(len(features))])
    ridge = strength * np.diag([*np.ones(features.shape[1]), 1e-6])
    weights = np.zeros(given.shape[1])
    for _ in range(steps):
        sure = 1 / (1 + np.exp(-np.clip(given @ weights, -30, 30)))
        slope = given.T @ (sure - truth) + ridge @ weights
        weights = weights - np.linalg.solve((given.T * (sure * (1 - sure))) @ given + ridge, slope)
    return weights
