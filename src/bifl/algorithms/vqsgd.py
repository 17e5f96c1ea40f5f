"""vqSGD (Gandikota et al., AISTATS 2021): of every group one vertex of a cross-polytope, drawn so that the mean is right.

The nearest ancestor of `murmur`, which tells the loudest coordinate of a rotated vector where this draws one of the vector itself.
One number says how far the vertices are: the largest sum of magnitudes of a group. In groups that are nearer to 0 a vertex is drawn
at random where the change says nothing: opposite ones are equally likely, and cancel in the mean.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from bifl import core
from bifl.algorithms.murmur import group_of
from bifl.algorithms.quantised import average_of
from bifl.core import Client, Message, Public


def upload(client: Client, public: Public, group: int) -> Message:
    """A vertex of every group, and how far all of them are."""
    change, size = core.change(client, public), group_of(public, group)
    padded = np.zeros(core.groups(len(change), size) * size, np.float64)
    padded[: len(change)] = change
    rows = padded.reshape(-1, size)
    sums = np.abs(rows).sum(1, keepdims=True)
    far = max(float(sums.max()), 1e-30)
    dice = public.stream(client.number, "vertex")
    # vertex i with |x_i| / far, and what is left to all alike
    shares = (np.abs(rows) + (far - sums) / size).cumsum(1)
    places = np.minimum((dice.random((len(rows), 1)) * far >= shares).sum(1), size - 1)
    chosen = rows[np.arange(len(rows)), places]
    left = (far - sums[:, 0]) / size
    meant = dice.random(len(rows)) * (np.abs(chosen) + left) < np.abs(chosen)
    positive = np.where(meant, chosen > 0, dice.random(len(rows)) < 0.5)
    symbols = (2 * places + positive).astype(np.uint16)
    return Message.of(symbols, core.loud_alphabet(size), client.real, np.array([far], np.float32))


def reads(message: Message, public: Public, group: int) -> Message:
    """The weights that an upload stands for."""
    vertices = core.spread(message.update.symbols, group_of(public, group), public.layout.count)
    return core.apply_change(message, public, vertices * message.update.scales[0])


def selects(public: Public, sender: int | None, inner: core.Selects, group: int) -> core.Selections:
    """Uploads are about groups of weights, the broadcast about all."""
    if sender is None:
        return inner(public, sender)
    return {core.UPDATE: core.Selection(core.groups(public.layout.count, group_of(public, group)))}


@core.register
def vqsgd(group: int = 0, down: str = "float") -> core.Algorithm:
    """vqSGD: of every `group` weights one vertex of a cross-polytope, drawn so that the mean is right; by default as murmur groups.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    wanted = f"from 0 (chosen by the number of voters) to {core.MOST_IN_GROUP}"
    core.require(0 <= group <= core.MOST_IN_GROUP, "group", group, wanted)
    algorithm = average_of(partial(upload, group=group), partial(reads, group=group), down)
    return replace(algorithm, selects=partial(selects, inner=algorithm.selects, group=group))
