"""Does the server's memory grow with the number of clients? Uploads are decoded and counted one at a time, so it should not.

python benchmarks/memory.py

Two measurements, each as a ratio of 1,000 clients to 10: the peak of decoding and tallying a round's uploads alone, and the peak
of the whole server process of a simulation (its clients live in worker processes).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import numpy as np

from bifl import codec
from bifl.core import BINARY, FLOAT32, Message, mean

COUNT, REALS = 81_958, 572  # mnist_cnn
FEW, MANY = 10, 1000
SERVER = """
import json, resource, sys, bifl
for record in bifl.simulate(bifl.Experiment(algorithm=sys.argv[1], clients=int(sys.argv[2]), rounds=2, workers=2)): pass
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
"""


def tally_peak(clients: int, floats: bool) -> int:
    """Peak bytes of decoding and tallying that many uploads, one at a time."""
    generator = np.random.default_rng(0)
    symbols = generator.random(COUNT, np.float32) if floats else generator.integers(0, 2, COUNT).astype(np.uint8)
    upload = codec.encode(Message.of(symbols, FLOAT32 if floats else BINARY, generator.random(REALS, np.float32), weight=600))
    tracemalloc.start()
    mean(codec.decode(upload) for _ in range(clients))
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


def server_peak(clients: int, algorithm: str) -> int:
    """Peak resident bytes of the server process over two rounds of mnist5k."""
    done = subprocess.run([sys.executable, "-c", SERVER, algorithm, str(clients)], capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout))


def show(name: str, few: int, many: int) -> None:
    print(f"{name:34s} {FEW} clients {few / 1e6:7.2f} MB   {MANY:,} clients {many / 1e6:7.2f} MB   ratio {many / few:.3f}")


def main() -> None:
    for name, floats in (("tally of 1-bit ballots", False), ("tally of float32 weights", True)):
        show(name, tally_peak(FEW, floats), tally_peak(MANY, floats))
    for algorithm in ("biml", "fedavg"):
        show(f"server process, {algorithm}", server_peak(FEW, algorithm), server_peak(MANY, algorithm))


if __name__ == "__main__":
    main()
