"""vqSGD (Gandikota et al., AISTATS 2021): of every group one vertex of a cross-polytope, drawn so that the mean is right.

The nearest ancestor of `murmur`, which tells the loudest coordinate of a rotated vector where this draws one of the vector itself.
One number says how far the vertices are: the largest sum of magnitudes of a group. In groups that are nearer to 0 a vertex is drawn
at random where the change says nothing: opposite ones are equally likely, and cancel in the mean.
"""

from __future__ import annotations

import numpy as np

from bifl import core
from bifl.algorithms.murmur import Code, compress_uploads
from bifl.core import UPDATE, Algorithm, Floats, Vector


def say(change: Floats, size: int, dice: np.random.Generator) -> Vector:
    """A vertex of every group, and how far all of them are."""
    padded = np.zeros(core.groups(len(change), size) * size, np.float64)
    padded[: len(change)] = change
    rows = padded.reshape(-1, size)
    sums = np.abs(rows).sum(1, keepdims=True)
    far = max(float(sums.max()), 1e-30)
    # vertex i with |x_i| / far, and what is left to all alike
    shares = (np.abs(rows) + (far - sums) / size).cumsum(1)
    places = np.minimum((dice.random((len(rows), 1)) * far >= shares).sum(1), size - 1)
    chosen = rows[np.arange(len(rows)), places]
    left = (far - sums[:, 0]) / size
    meant = dice.random(len(rows)) * (np.abs(chosen) + left) < np.abs(chosen)
    positive = np.where(meant, chosen > 0, dice.random(len(rows)) < 0.5)
    symbols = (2 * places + positive).astype(np.uint16)
    return Vector(symbols, core.loud_alphabet(size), np.array([far], np.float32))


def hear(vector: Vector, size: int, count: int, dice: np.random.Generator) -> Floats:
    """(count,) what such vertices stand for."""
    values: Floats = core.spread(vector.symbols, size, count) * vector.scales[0]
    return values


@core.register
def vqsgd(group: int = 0, down: str = "float") -> Algorithm:
    """vqSGD: of every `group` weights one vertex of a cross-polytope, drawn so that the mean is right; by default as murmur groups.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    average = Algorithm(core.floats, core.means, core.replace, forward=core.real, keeps=())
    return core.compress_broadcast(compress_uploads(average, group, {UPDATE: Code(say, hear, "vertex")}), down)
