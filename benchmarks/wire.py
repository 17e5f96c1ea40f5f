"""How fast messages are spelled and read, and ballots counted, on one core, beside numpy and a memory copy in the same run.

    python benchmarks/wire.py             # a message of femnist_cnn's size, 6.6 million weights
    python benchmarks/wire.py 100000      # of as many

Rates are million weights per second, the best of several; `of a copy` is the ratio to copying as many bytes as there are weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from bifl import codec
from bifl.core import BINARY, Message, Public, Votes
from bifl.core.layout import Layout, Tensor
from bifl.core.sums import mean

WEIGHTS = int(sys.argv[1]) if len(sys.argv) > 1 else 6_607_000
VOTERS = 89
REPEATS = 7


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def federation(layout: Layout) -> tuple[Public, Message, Message]:
    """Public state, ballot and broadcast as in a training under way: votes of a round resemble those of the last."""
    generator = np.random.default_rng(0)
    real = np.ones(layout.reals, np.float32)
    lean = generator.beta(0.5, 0.5, layout.count)
    before, news, after = (
        Message.of(generator.binomial(VOTERS, lean).astype(np.uint8), Votes(VOTERS), real, round=round) for round in (1, 2, 3)
    )
    ballot = Message.of((generator.random(layout.count) < lean).astype(np.uint8), BINARY, real, sender=0, round=3)
    return Public(0, 2, layout, news.update.values(), real, news=news, before=before), ballot, after


def rates() -> Iterator[tuple[str, float]]:
    """Name and weights per second of every piece of work."""
    layout = Layout(("layer",), (Tensor("layer.weight", (WEIGHTS,), 0),), (), ())
    public, ballot, news = federation(layout)
    preparing = best(lambda: codec.encode(ballot, codec.Context(layout, 3, codec.SHORT, public)))
    plain, context = codec.Context(layout, 3), codec.Context(layout, 3, codec.SHORT, public)
    bits = np.packbits(ballot.update.symbols)
    yield "memory copy of one byte per weight", WEIGHTS / best(ballot.update.symbols.copy)
    yield "numpy.packbits", WEIGHTS / best(lambda: np.packbits(ballot.update.symbols))
    yield "numpy.unpackbits", WEIGHTS / best(lambda: np.unpackbits(bits))
    for name, message, end in (
        ("packed ballot", ballot, plain),
        ("context ballot", ballot, context),
        ("context broadcast", news, context),
    ):
        data = codec.encode(message, end)
        size = f" ({8 * len(data) / WEIGHTS:.3f} bit)"
        write, read = best(partial(codec.encode, message, end)), best(partial(codec.decode, data, end))
        yield f"{name}, encode{size}", WEIGHTS / write
        yield f"{name}, decode{size}", WEIGHTS / read
        yield f"{name}, both", WEIGHTS / (write + read)
    yield "context ballot, encode, the context prepared for it alone", WEIGHTS / preparing
    packed = codec.encode(ballot, plain)
    ballots = VOTERS
    counting = best(lambda: mean(codec.decode(packed, plain) for _ in range(ballots)))
    yield "counting packed ballots, checksum and unpacking included", ballots * WEIGHTS / counting


def main() -> None:
    """Print the table."""
    copied = 0.0
    print(f"{WEIGHTS:,} weights, best of {REPEATS}\n{'':60s}{'M weights/s':>12s}{'of a copy':>12s}")
    for name, rate in rates():
        copied = copied or rate
        print(f"{name:60s}{rate / 1e6:12,.0f}{rate / copied:12.4f}")


if __name__ == "__main__":
    main()
