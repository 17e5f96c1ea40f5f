"""What clients that lie about real numbers cost: accuracy of the last five rounds, with and without bounds.

    python benchmarks/liars.py                      # docs/security.md's table: about 50 minutes
    python benchmarks/liars.py biml --seeds 0 --liars 2 --lie huge --set rounds=5

Liars replace all real parameters and statistics of their messages, as the server reads them; their ballots are honest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from unittest import mock

import numpy as np

from bifl.core import Floats, Message, Public
from bifl.engine.simulator import simulate
from bifl.exchanges.bounds import Bounds
from bifl.experiment import run
from bifl.experiment.settings import Experiment

LARGE = 2.0**30
LAST = 5  # rounds
LIES: dict[str, Callable[[Floats], Floats]] = {
    "huge": lambda real: np.full_like(real, LARGE),
    "minus": lambda real: np.full_like(real, -LARGE),
    "fixed": lambda real: np.where(np.random.default_rng(5).random(len(real)) < 0.5, -1, 1).astype(np.float32) * LARGE,
    "thirty": lambda real: np.full_like(real, 30),
    "zero": np.zeros_like,
}


def lying(liars: int, lie: str, bounded: bool) -> type[Bounds]:
    """A server whose first few clients lie, and who bounds what it reads or believes everything."""

    class Lied(Bounds):
        def _said(self, upload: Message, statistics: int) -> Message:
            if (upload.sender or 0) >= liars:
                return upload
            real: Floats = LIES[lie](upload.real)
            half = np.split(real[statistics:], 2)
            if len(half[0]):  # a variance as large as it can be beside the mean
                real[statistics:] = np.concatenate([half[0], np.abs(half[1]) * LARGE])
            return upload._replace(real=real)

        def ballot(self, upload: Message, public: Public) -> Message:
            said = self._said(upload, public.layout.trained)
            return super().ballot(said, public) if bounded else said

        def statistics(self, uploads: Iterable[Message], public: Public) -> list[Message]:
            said = [self._said(upload, 0) for upload in uploads]
            return super().statistics(said, public) if bounded else said

    return Lied


def accuracy(experiment: Experiment, liars: int, lie: str, bounded: bool) -> float:
    """Mean of the last rounds, in percent."""
    with mock.patch.object(run, "Bounds", lying(liars, lie, bounded)):
        records = list(simulate(experiment.changed({"workers": 1})))  # in this process, where the server is the one above
    return float(100 * np.mean([record.accuracy for record in records][-LAST:]))


def main() -> None:
    """Print a line for each algorithm and number of liars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=["biml", "fedavg"])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--liars", default="0,1,2,3,4")
    parser.add_argument("--lie", choices=LIES, action="append")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    for algorithm in options.algorithms:
        cases = [(0, "none", False)] + [
            (int(n), lie, True) for n in options.liars.split(",") for lie in options.lie or ["huge", "fixed"]
        ]
        for liars, lie, bounded in dict.fromkeys((n, lie if n else "none", bounded) for n, lie, bounded in cases):
            found = [
                accuracy(Experiment.of(None, [f"algorithm={algorithm}", f"seed={seed}", *options.set]), liars, lie, bounded)
                for seed in options.seeds.split(",")
            ]
            text = " ".join(f"{value:.2f}" for value in found)
            print(
                f"{algorithm:8} {liars} liars {lie:7} {'bounds' if bounded else 'no bounds':9} {np.mean(found):6.2f}  ({text})",
                flush=True,
            )


if __name__ == "__main__":
    main()
