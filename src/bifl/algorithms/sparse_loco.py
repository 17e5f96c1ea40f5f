"""SparseLoCo (Sarfi et al., 2025; Covenant-72B): of every chunk the largest changes, in two bits each, with a memory that decays.

What a client could not say it remembers, a little less in every round (`decay`), and adds to its next change. So it needs clients
that come again, and pays most with few of them. Its authors send places of 12 bits; our coder takes what places are worth.
"""

from __future__ import annotations

import numpy as np

from bifl import core
from bifl.algorithms.quantised import average_of, change_and_error
from bifl.core import Alphabet, Client, Message, Public

LEVELS = Alphabet("none, or one of four levels", 5)  # 0: nothing is said; then far below 0, below 0, above 0, far above 0


def values_of(message: Message, chunk: int) -> core.Floats:
    """(count,) the change that an upload tells."""
    symbols = message.update.symbols.astype(np.int64)
    levels = message.update.scales.reshape(-1, 2)[np.arange(len(symbols)) // chunk]
    sizes = np.where((symbols == 1) | (symbols == 4), levels[:, 1], levels[:, 0])
    return np.where(symbols == 0, np.float32(0), np.where(symbols > 2, sizes, -sizes)).astype(np.float32)


@core.register
def sparse_loco(most: int = 64, chunk: int = 4096, decay: float = 0.95, down: str = "float") -> core.Algorithm:
    """SparseLoCo: of every `chunk` weights the `most` largest changes, in two bits each; clients remember the others.

    Take it where few clients take part in every round; those that come and go lose what they remember.
    """
    core.require(1 <= most <= chunk, "most", most, f"from 1 to algorithm.chunk, {chunk}")
    core.require(0 <= decay <= 1, "decay", decay, "from 0 to 1")

    def upload(client: Client, public: Public) -> core.Sent:
        """Of every chunk the largest; of those, the larger ones and the others count as the mean magnitude of their kind."""
        change = change_and_error(client, public, decay)
        symbols, scales = np.zeros(len(change), np.uint8), []
        for begin in range(0, len(change), chunk):
            part, said = change[begin : begin + chunk], symbols[begin : begin + chunk]
            places = np.argpartition(np.abs(part), -min(most, len(part)))[-most:]
            sizes = np.abs(part[places])
            large = sizes > sizes.mean()
            said[places] = np.where(part[places] > 0, 3 + large, 2 - large)
            scales += [float(sizes[kind].mean()) if kind.any() else 0.0 for kind in (~large, large)]
        message = Message.of(symbols, LEVELS, client.real, np.array(scales, np.float32))
        return core.Sent(message, memory=change - values_of(message, chunk))

    def reads(message: Message, public: Public) -> Message:
        return core.apply_change(message, public, values_of(message, chunk)).with_update(scales=core.NOTHING)

    return average_of(upload, reads, down, keeps=("memory",))
