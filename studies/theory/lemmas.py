"""The lemmas of paper §6 as margins: how far each inequality is from being broken, relative to its terms.

A margin below −TOLERANCE is a violation. Everything is evaluated for many starting points of one quadratic at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from studies.theory.quadratics import Array, Quadratic

TOLERANCE = 1e-9  # rounding stays below 1e-12 of the terms
Bools = npt.NDArray[np.bool_]


class Starts(NamedTuple):
    """Points W̄ in [−1, 1]^N from which one step is judged; for a stack of quadratics every shape begins with its length."""

    aux: Array  # (S, N) W̄
    signs: Array  # (S, N) W^b = Sign(W̄)
    differ: Array  # (S,) K, elements in which W^b and W* differ
    gradient: Array  # (S, N) ∇F(W^b)
    growth: Array  # (S,) λ = ‖∇F(W^b)‖ / ‖∇F(W*)‖


class Judged(NamedTuple):
    """One claim at many starts."""

    applies: Bools  # (S,)
    margin: Array  # (S,)

    @property
    def broken(self) -> Bools:
        """Where the claim applies and is false."""
        return self.applies & (self.margin < -TOLERANCE)


def random_starts(random: np.random.Generator, quadratic: Quadratic, count: int) -> Starts:
    """K uniform in 1 … N, W̄ anywhere in the cell of its signs; a quarter on the cell's corners, where extremes lie."""
    size = quadratic.best.shape[-1]
    differ = random.integers(1, size + 1, count)
    ranks = random.random((count, size)).argsort(axis=1)
    signs = np.where(ranks < differ[:, None], -quadratic.best, quadratic.best)
    depth = 1 - random.random((count, size))  # in (0, 1]: Sign(W̄) must be the chosen sign on both sides
    corners = np.where(random.random((count, size)) < 0.5, 1.0, 1e-6)
    depth = np.where(random.random((count, 1)) < 0.25, corners, depth)
    return judged_from(quadratic, signs * depth)


def judged_from(quadratic: Quadratic, aux: Array) -> Starts:
    """All the lemmas speak of, at (S, N) points W̄."""
    signs = np.where(aux > 0, 1.0, -1.0)
    gradient = quadratic.gradient(signs)
    growth = norm(gradient) / norm(quadratic.gradient(quadratic.best))
    return Starts(aux, signs, np.sum(signs != quadratic.best, axis=-1).astype(np.float64), gradient, growth)


def norm(points: Array) -> Array:
    """‖·‖ over the last axis."""
    return np.asarray(np.sqrt(np.sum(points * points, axis=-1)), np.float64)


def _at_most(left: Array, right: Array) -> Array:
    return np.asarray((right - left) / (np.abs(left) + np.abs(right) + 1e-300), np.float64)


# ---- Lemma 1 and 2 ---------------------------------------------------------------------------------------------------


def descent(quadratic: Quadratic, starts: Starts) -> Judged:
    """Lemma 1, for the pairs (W̄, W^b)."""
    here, there = quadratic.gradient(starts.aux), starts.gradient
    step = starts.aux - starts.signs
    gain = np.sum(here * step, axis=-1) - norm(here - there) ** 2 / (2 * quadratic.beta)
    low, high = quadratic.value(starts.aux), quadratic.value(starts.signs)
    scale = low + high + np.abs(gain) + 1e-300
    return Judged(np.ones(gain.shape, np.bool_), (gain - (low - high)) / scale)


def distance(quadratic: Quadratic, starts: Starts) -> Judged:
    """Lemma 2.1: ‖W^b − V‖ ≤ 2‖W̄ − V‖, for V = W*."""
    margin = _at_most(norm(starts.signs - quadratic.best), 2 * norm(starts.aux - quadratic.best))
    return Judged(np.ones(margin.shape, np.bool_), margin)


def printed_cosine(differ: Array, size: int) -> Array:
    """The cosine of Lemma 2.2 as printed: √(K/N)."""
    return np.sqrt(differ / size)


def true_cosine(differ: Array, size: int) -> Array:
    """The smallest cosine there is, for W̄ in [−1, 1]^N.

    Where the signs differ |W̄ − V| = x lies in [1, 2], elsewhere in [0, 1], so with S = Σx and x² ≤ 3x − 2
    cos² ≥ S²/(K(3S − 3K + N)), whose minimum over S in [K, 2K] this is.
    """
    share = differ / size
    return np.sqrt(np.where(share <= 2 / 3, share, 4 / 3 * (1 - 1 / (3 * np.maximum(share, 2 / 3)))))


def angle(quadratic: Quadratic, starts: Starts, least_cosine: Callable[[Array, int], Array]) -> Judged:
    """Lemma 2.2: the angle between W^b − V and W̄ − V, for V = W*."""
    jump, way = starts.signs - quadratic.best, starts.aux - quadratic.best
    cosine = np.sum(jump * way, axis=-1) / (norm(jump) * norm(way))
    return Judged(np.ones(cosine.shape, np.bool_), cosine - least_cosine(starts.differ, quadratic.best.shape[-1]))


# ---- Lemma 3 ---------------------------------------------------------------------------------------------------------


def growth_between(quadratic: Quadratic, starts: Starts, reach: Array) -> Judged:
    """Lemma 3.1: (reach·ξ − ε)/ε ≤ λ ≤ (reach·β + ε)/ε, where reach is K (printed) or 2√K (what ‖W^b − W*‖ is)."""
    error = norm(quadratic.gradient(quadratic.best))
    low = _at_most(reach * quadratic.xi, norm(starts.gradient) + error)
    high = _at_most(norm(starts.gradient), reach * quadratic.beta + error)
    return Judged(np.ones(low.shape, np.bool_), np.minimum(low, high))


Step = Callable[[Quadratic, Starts], Array]


def form_a(quadratic: Quadratic, starts: Starts) -> Array:
    """φ as printed in form A, the one whose unit is that of a step."""
    return form_b(quadratic, starts) / quadratic.beta


def form_b(quadratic: Quadratic, starts: Starts) -> Array:
    """φ as printed in form B."""
    third = np.arctan(1 / starts.growth)
    return _phi(quadratic, starts, printed_cosine(starts.differ, quadratic.best.shape[-1]), third)


def form_c(quadratic: Quadratic, starts: Starts) -> Array:
    """φ with the proof's steps put right: the true angle of Lemma 2.2, arcsin(1/λ) for arctan(1/λ), form A's 1/β."""
    third = np.arcsin(np.minimum(1, 1 / starts.growth))
    return _phi(quadratic, starts, true_cosine(starts.differ, quadratic.best.shape[-1]), third) / quadratic.beta


def _phi(quadratic: Quadratic, starts: Starts, cosine: Array, third: Array) -> Array:
    first = np.arccos(np.sqrt(quadratic.xi / quadratic.beta))
    return (1 - 1 / starts.growth) * np.cos(first + np.arccos(np.minimum(1, cosine)) + third)


def worst_in_cell(starts: Starts) -> Array:
    """(S, N) the W̄ with the same signs from which the step helps least; it is linear in W̄, so a corner of the cell."""
    return np.where(starts.gradient * starts.signs > 0, 0.0, starts.signs)


def step_helps(quadratic: Quadratic, starts: Starts, aux: Array, form: Step) -> Judged:
    """Lemma 3.2 for every η in (0, φ) at once: ‖W̄ − η∇F(W^b) − W*‖² < ‖W̄ − W*‖² − 4(φ − η)ηβξK.

    Divided by η this is linear in η, so it holds on the whole interval if it holds at both ends.
    Where λ < 1 both factors of φ can be negative: that is not counted as φ > 0, see `step_helps_backwards`.
    """
    phi = form(quadratic, starts)
    applies = (phi > TOLERANCE / quadratic.beta) & (starts.growth > 1)
    inner = np.sum(starts.gradient * (aux - quadratic.best), axis=-1)
    at_zero = _at_most(2 * phi * quadratic.beta * quadratic.xi * starts.differ, inner)
    at_phi = _at_most(phi * norm(starts.gradient) ** 2, 2 * inner)
    return Judged(applies, np.minimum(at_zero, at_phi))


def step_helps_backwards(quadratic: Quadratic, starts: Starts, aux: Array, form: Step) -> Judged:
    """Lemma 3.2 taken at its word: φ > 0 although λ < 1 and the cosine is negative."""
    backwards = (form(quadratic, starts) > TOLERANCE / quadratic.beta) & (starts.growth < 1)
    return step_helps(quadratic, starts, aux, form)._replace(applies=backwards)
