"""How do time and memory grow with the number of clients, registered or voting?

    python benchmarks/scale.py                          all rows; writes its table into benchmarks/results.md
    python benchmarks/scale.py fedavg:100000:100 …      some rows, algorithm:registered:voters; writes nothing

mnist_cnn, six images a client (partition=shared), three rounds. Every row runs in a process of its own. Memory is what the
processes themselves hold, and beside it the part of their state that lies in a file which is mapped into memory: the system drops
that part when memory is short. The server's seconds are those of the processor.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results.md"
TITLE = "## Growth with the number of clients"
ROWS = (
    "biml:100:100", "biml:1000:1000", "biml:10000:10000", "fedavg:1000:100", "fedavg:100000:100", "fedavg:1000:1000",
    "fedavg:100000:1000",
)  # fmt: skip
RUN = """
import json, os, sys, time
import numpy as np
import bifl
from bifl.data.datasets import Dataset, dataset

@dataset
def bench_few() -> Dataset:
    "Random digits."
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (60_000, 1, 28, 28), np.uint8), draw.integers(0, 10, 60_000)
    return Dataset(images, labels, images[:100], labels[:100], 10, 0.1307, 0.3081)

def memory(process):
    "Bytes of its own, bytes of mapped files."
    lines = dict(line.split(":") for line in open(f"/proc/{process}/status") if line.startswith("Rss"))
    return [1024 * int(lines[name].split()[0]) for name in ("RssAnon", "RssFile")]

algorithm, clients, voters = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
words = ["dataset=bench_few", "partition=shared", "partition.images=6", f"clients={clients}", f"participation={voters / clients!r}"]
seconds, own, began = [], [], time.process_time()
for record in bifl.simulate(bifl.Experiment.of(None, [*words, f"algorithm={algorithm}", "rounds=3", "workers=2"])):
    seconds.append(record.seconds)
    own.append(time.process_time() - began)
    began = time.process_time()
    if record.round == 3:
        workers = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        sizes = [memory(worker) for worker in workers]
        sums = [sum(sizes) for sizes in zip(*sizes)]
        print(json.dumps([min(seconds[1:]), min(own[1:]), memory("self")[0], *sums]))
"""


def measure(algorithm: str, clients: int, voters: int) -> str:
    """A line of the table."""
    command = [sys.executable, "-c", RUN, algorithm, str(clients), str(voters)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, own, server, workers, mapped = json.loads(done.stdout)
    sizes = " | ".join(f"{size / 1e6:,.0f}" for size in (server, workers, mapped))
    times = f"{seconds:.2f} | {1e3 * seconds / voters:.2f} | {own:.2f} ({own / seconds:.0%})"
    return f"| {algorithm} | {clients:,} | {voters:,} | {times} | {sizes} |"


def main() -> None:
    table = [
        TITLE,
        "",
        "`python benchmarks/scale.py`: mnist_cnn, six images a client (partition=shared), two workers.",
        "",
        "| algorithm | registered | voters | s per round | ms per voter | server's s | server MB | workers MB | mapped files MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sys.argv[1:] or ROWS:
        algorithm, clients, voters = row.split(":")
        table.append(measure(algorithm, int(clients), int(voters)))
        print(table[-1], flush=True)
    if len(sys.argv) == 1:
        kept = RESULTS.read_text().partition(TITLE)[0] if RESULTS.exists() else ""
        RESULTS.write_text(kept + "\n".join(table) + "\n")


if __name__ == "__main__":
    main()
