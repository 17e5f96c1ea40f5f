"""Does the server's memory grow with the number of clients? Uploads are decoded and counted one at a time, so it should not.

python benchmarks/memory.py
"""

from __future__ import annotations

import tracemalloc

import numpy as np

from bifl import wire
from bifl.algorithm import BINARY, FLOAT32, Message, mean

COUNT, REALS = 81_958, 572  # mnist_cnn


def peak(clients: int, floats: bool) -> int:
    """Peak bytes of decoding and tallying that many uploads, one at a time."""
    generator = np.random.default_rng(0)
    symbols = generator.random(COUNT, np.float32) if floats else generator.integers(0, 2, COUNT).astype(np.uint8)
    upload = wire.encode(Message(symbols, FLOAT32 if floats else BINARY, generator.random(REALS, np.float32), weight=600))
    tracemalloc.start()
    mean(wire.decode(upload) for _ in range(clients))
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


def main() -> None:
    print("peak memory of decoding and tallying one round's uploads of mnist_cnn")
    for name, floats in (("1-bit ballots", False), ("float32 weights", True)):
        few, many = peak(10, floats), peak(1000, floats)
        print(f"{name:16s} 10 clients {few / 1e6:6.2f} MB   1,000 clients {many / 1e6:6.2f} MB   ratio {many / few:.3f}")


if __name__ == "__main__":
    main()
