"""How do time and memory grow with the number of clients?

python benchmarks/scale.py [clients …]      (default 100 1000 10000; adds its table to benchmarks/results.md)

biml on mnist_cnn, six images a client, every client in every round, three rounds: 10,000 clients hold as many images as MNIST has.
Every number of clients runs in a process of its own. Memory is what the processes themselves hold, and beside it the part of their
state that lies in a file which is mapped into memory: the system drops that part when memory is short.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results.md"
TITLE = "## Growth with the number of clients"
RUN = """
import json, os, sys
import numpy as np
import bifl
from bifl.data.datasets import Dataset, dataset

@dataset
def bench_few() -> Dataset:
    "Six random digits a client."
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (6 * CLIENTS, 1, 28, 28), np.uint8), draw.integers(0, 10, 6 * CLIENTS)
    return Dataset(images, labels, images[:100], labels[:100], 10, 0.1307, 0.3081)

def memory(process):
    "Bytes of its own, bytes of mapped files."
    lines = dict(line.split(":") for line in open(f"/proc/{process}/status") if line.startswith("Rss"))
    return [1024 * int(lines[name].split()[0]) for name in ("RssAnon", "RssFile")]

CLIENTS = int(sys.argv[1])
seconds = []
for record in bifl.simulate(bifl.Experiment(dataset="bench_few", clients=CLIENTS, rounds=3, workers=2)):
    seconds.append(record.seconds)
    if record.round == 3:
        workers = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        sizes = [memory(worker) for worker in workers]
        print(json.dumps([min(seconds[1:]), memory("self")[0], sum(own for own, _ in sizes), sum(mapped for _, mapped in sizes)]))
"""


def measure(clients: int) -> str:
    """A line of the table."""
    done = subprocess.run([sys.executable, "-c", RUN, str(clients)], capture_output=True, text=True, check=True)
    seconds, server, workers, mapped = json.loads(done.stdout)
    sizes = " | ".join(f"{size / 1e6:,.0f}" for size in (server, workers, mapped))
    return f"| {clients:,} | {seconds:.2f} | {1e3 * seconds / clients:.2f} | {sizes} |"


def main() -> None:
    table = [
        TITLE,
        "",
        "`python benchmarks/scale.py`: biml on mnist_cnn, six images a client, all clients in every round, two workers.",
        "",
        "| clients | s per round | ms per client | server MB | workers MB, both | of mapped files MB |",
        "|---|---|---|---|---|---|",
    ]
    for clients in [int(word) for word in sys.argv[1:]] or [100, 1000, 10_000]:
        table.append(measure(clients))
        print(table[-1], flush=True)
    kept = RESULTS.read_text().partition(TITLE)[0] if RESULTS.exists() else ""
    RESULTS.write_text(kept + "\n".join(table) + "\n")


if __name__ == "__main__":
    main()
