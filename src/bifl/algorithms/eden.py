"""EDEN (Vargaftik et al., 2022): updates in a random rotation, signs of a share p of the coordinates and one scale.

Without p it takes as many coordinates as make about ten signs of every coordinate from all voters together: the error of the mean
update is then about a seventh of an update's square, whoever many vote (docs/research.md).
"""

from __future__ import annotations

import numpy as np

from bifl import core
from bifl.core import BINARY, UPDATE, Algorithm, Client, Message, Public, Selection, Selections

ENOUGH = 10  # signs of a coordinate from all voters together


def length(public: Public, p: float) -> int:
    """How many coordinates an upload tells of: a share p; 0 takes as many as the voters of a round need together."""
    return max(1, round((p or min(1.0, ENOUGH / public.voters)) * public.layout.count))


@core.register
def eden(p: float = 0.0, forward: str = "real", down: str = "float") -> Algorithm:
    """FedAvg by signs of a share p of the rotated update; p=0 chooses it by the number of voters.

    Take it to compare with: docs/results.md has the methods of the field side by side.
    """
    core.require(0 <= p <= 1, "p", p, "a share of the coordinates, from 0 (chosen by the number of voters) to 1")

    def window(public: Public, sender: int) -> slice:
        """Of which coordinates it tells, once the vector is rolled: a random rotation has no special ones, so neighbours do."""
        start = int(public.stream(sender, "coordinates").integers(core.rotated_length(public.layout.count)))
        return slice(start, start + length(public, p))

    def selects(public: Public, sender: int | None) -> Selections:
        return {UPDATE: None if sender is None else Selection(length(public, p))}

    def upload(client: Client, public: Public) -> Message:
        """Signs, and the scale that makes the mean of many such uploads right: Σx²/Σ|x|."""
        rotated = core.rotate(core.change(client, public), public.stream(client.number, "rotation"))
        chosen = np.tile(rotated, 2)[window(public, client.number)]
        scale = np.square(rotated, dtype=np.float64).sum() / max(float(np.abs(rotated).sum(dtype=np.float64)), 1e-30)
        return Message.of((chosen > 0).astype(np.uint8), BINARY, client.real, np.array([scale], np.float32))

    def reads(upload: Message, public: Public) -> Message:
        sender, total = upload.sender or 0, core.rotated_length(public.layout.count)
        rotated = np.zeros(2 * total, np.float32)
        rotated[window(public, sender)] = upload.update.values() * (upload.update.scales[0] * np.float32(total / length(public, p)))
        by = core.unrotate(rotated[:total] + rotated[total:], public.layout.count, public.stream(sender, "rotation"))
        return core.apply_change(upload, public, by)

    algorithm = Algorithm(
        upload, core.means, core.replace, reads=reads, selects=selects, forward=core.forward_of(forward), keeps=()
    )
    return core.compress_broadcast(algorithm, down)
