"""What the secure sum costs: seconds and bytes a round, beside the same run without it, as ratios.

    python benchmarks/secure.py                                  # 10 and 100 clients, biml: some minutes
    python benchmarks/secure.py --clients 10 --set algorithm=fedavg

All clients share this machine's cores, so the seconds are those of all clients together. A signature that many clients check is
checked once a process.
"""

from __future__ import annotations

import argparse
import statistics

from bifl.engine.simulator import simulate
from bifl.experiment.settings import Experiment, pairs
from bifl.runs.record import Record


def measured(experiment: Experiment) -> tuple[float, float, float]:
    """Seconds a round, and bytes up and down for each client: medians of all rounds but the first."""
    records: list[Record] = list(simulate(experiment))[1:]
    seconds = statistics.median(record.seconds for record in records)
    up = statistics.median(record.up_bytes / record.clients for record in records)
    return seconds, up, statistics.median(record.down_bytes / record.clients for record in records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings")
    options = parser.parse_args()
    print("| clients | | s a round | bytes up | bytes down |\n|---|---|---|---|---|")
    for clients in options.clients:
        experiment = Experiment(clients=clients, rounds=options.rounds).changed(pairs(options.set))
        plain = measured(experiment)
        secure = measured(experiment.changed({"secure_sum": True}))
        for name, (seconds, up, down) in (("plain", plain), ("secure", secure)):
            print(f"| {clients} | {name} | {seconds:.2f} | {up:,.0f} | {down:,.0f} |")
        ratios = " | ".join(f"{two / one:.2f}" for one, two in zip(plain, secure, strict=True))
        print(f"| {clients} | ratio | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
