"""What the secure sum costs: seconds of the processor and bytes a round, beside the same run without it, as ratios.

    python benchmarks/secure.py                                  # 10 and 100 clients, biml: some minutes
    python benchmarks/secure.py --clients 10 --set algorithm=fedavg

One process is all clients and the server, so the seconds are those of all together, whatever else the machine does. A signature
that many clients check is checked once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

from bifl.engine.simulator import simulate
from bifl.experiment.settings import Experiment, pairs
from bifl.runs.record import Record


def measured(experiment: Experiment) -> tuple[float, float, float]:
    """Seconds a round, and bytes up and down for each client: medians of all rounds but the first."""
    records: list[Record] = []
    ends = [time.process_time()]
    for record in simulate(experiment):
        records.append(record)
        ends.append(time.process_time())
    records, seconds = records[1:], statistics.median(end - begin for begin, end in pairwise(ends[1:]))
    up = statistics.median(record.up_bytes / record.clients for record in records)
    return seconds, up, statistics.median(record.down_bytes / record.clients for record in records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings")
    options = parser.parse_args()
    print("| clients | | processor s a round | bytes up | bytes down |\n|---|---|---|---|---|")
    for clients in options.clients:
        experiment = Experiment(algorithm="biml", clients=clients, rounds=options.rounds, workers=1).changed(pairs(options.set))
        plain = measured(experiment)
        secure = measured(experiment.changed({"secure_sum": True}))
        for name, (seconds, up, down) in (("plain", plain), ("secure", secure)):
            print(f"| {clients} | {name} | {seconds:.2f} | {up:,.0f} | {down:,.0f} |")
        ratios = " | ".join(f"{two / one:.2f}" for one, two in zip(plain, secure, strict=True))
        print(f"| {clients} | ratio | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
