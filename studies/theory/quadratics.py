"""Random strongly convex quadratics over {−1, 1}^N and their best vertex by brute force."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

USUAL_SIZES, LARGE_SIZES = (1, 12), (13, 20)
LARGE_SHARE = 0.02  # 2²⁰ vertices cost a thousand times more than 2¹⁰
MOST_CONDITION = 3.0  # β/ξ: beyond it hardly any vertex meets the condition φ > 0


class Quadratic(NamedTuple):
    """F(w) = ½ (w − centre)ᵀ matrix (w − centre), ξ-strongly convex and β-smooth; or a stack of them, see `stack`."""

    matrix: Array  # (N, N), eigenvalues in [xi, beta], both attained
    centre: Array  # (N,) the minimiser over all of ℝ^N
    xi: Array  # ()
    beta: Array  # ()
    best: Array  # (N,) W*, the minimiser over {−1, 1}^N

    def value(self, points: Array) -> Array:
        """F at (…, N) points."""
        away = points - self.centre
        return np.asarray(0.5 * np.sum((away @ self.matrix) * away, axis=-1), np.float64)

    def gradient(self, points: Array) -> Array:
        """∇F at (…, N) points."""
        return (points - self.centre) @ self.matrix


def stack(quadratics: list[Quadratic]) -> Quadratic:
    """Q quadratics of one size as one, for points of shape (Q, S, N): centre and best become (Q, 1, N), ξ and β (Q, 1)."""
    matrix, centre, xi, beta, best = (np.stack(parts) for parts in zip(*quadratics, strict=True))
    return Quadratic(matrix, centre[:, None], xi[:, None], beta[:, None], best[:, None])


def vertices(size: int) -> Array:
    """(2^size, size) all of {−1, 1}^size; row r holds the bits of r, the first weight as the highest bit."""
    bits = (np.arange(2**size)[:, None] >> np.arange(size)[::-1]) & 1
    return np.asarray(2.0 * bits - 1, np.float64)


def best_vertex(matrix: Array, centre: Array) -> Array:
    """W* by looking at all 2^N vertices, as a table of left half × right half: no (2^N, N) array is ever made."""
    middle = len(centre) // 2
    left, right = vertices(middle), vertices(len(centre) - middle)
    pull = matrix @ centre
    energy = left @ matrix[:middle, middle:] @ right.T
    energy += _own_energy(left, matrix[:middle, :middle], pull[:middle])[:, None]
    energy += _own_energy(right, matrix[middle:, middle:], pull[middle:])
    row, column = divmod(int(energy.argmin()), len(right))
    return np.concatenate([left[row], right[column]])


def _own_energy(points: Array, matrix: Array, pull: Array) -> Array:
    return np.asarray(0.5 * np.sum((points @ matrix) * points, axis=1) - points @ pull, np.float64)


def random_quadratic(random: np.random.Generator, size: int | None = None) -> Quadratic:
    """A quadratic on which the claims have something to say: β/ξ small, the minimiser near a vertex or inside the box."""
    if size is None:
        low, high = LARGE_SIZES if random.random() < LARGE_SHARE else USUAL_SIZES
        size = int(random.integers(low, high + 1))
    condition = 1 + (MOST_CONDITION - 1) * random.random() ** 3 if random.random() < 0.8 else 1.0
    vertex = random.choice([-1.0, 1.0], size)
    if random.random() < 0.5:
        centre = vertex + 10 ** random.uniform(-2, 0) * random.normal(size=size)
    else:
        undecided = random.random(size) < random.random()  # some weights hardly matter, the rest are clear
        centre = vertex * np.where(undecided, random.uniform(0, 0.1, size), random.uniform(0.7, 1.3, size))
    return bowl(random, condition, centre)


def bowl(random: np.random.Generator, condition: float, centre: Array) -> Quadratic:
    """A randomly turned quadratic with β/ξ = condition (1 if N = 1) around `centre`."""
    size = len(centre)
    condition = condition if size > 1 else 1.0
    xi = 10 ** random.uniform(-1, 1)  # β on both sides of 1: that is where the two printed forms of φ differ
    stretch = random.uniform(1, condition, size)
    stretch[0], stretch[-1] = 1, condition
    axes = np.linalg.qr(random.normal(size=(size, size)))[0]
    matrix = xi * (np.eye(size) if condition == 1 else (axes * stretch) @ axes.T)  # a round one exactly, without rounding
    return Quadratic(matrix, centre, np.asarray(xi), np.asarray(xi * condition), best_vertex(matrix, centre))
