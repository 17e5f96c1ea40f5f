"""What clients that lie about real numbers cost: accuracy of the last five rounds, with and without bounds.

    python benchmarks/liars.py                      # docs/security.md's table: about 15 minutes on two cores
    python benchmarks/liars.py biml --seeds 0 --liars 2 --lie huge --set rounds=5

Liars replace all real parameters and statistics of their messages, as the server reads them; their ballots are honest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from bifl import wire
from bifl.algorithm import Message
from bifl.experiment import Experiment
from bifl.message import Floats
from bifl.runtime.bounds import Bounds
from bifl.runtime.pool import Pool
from bifl.runtime.simulate import simulate

LARGE = 2.0**30
LAST = 5  # rounds
LIES: dict[str, Callable[[Floats], Floats]] = {
    "huge": lambda real: np.full_like(real, LARGE),
    "minus": lambda real: np.full_like(real, -LARGE),
    "fixed": lambda real: np.where(np.random.default_rng(5).random(len(real)) < 0.5, -1, 1).astype(np.float32) * LARGE,
    "thirty": lambda real: np.full_like(real, 30),
    "zero": np.zeros_like,
}


def lying(liars: int, lie: str) -> type[Pool]:
    """Workers of which the first few clients lie."""

    class Lying(Pool):
        def opened(self, number: int, upload: bytes, context: wire.Context) -> Message | None:
            message = super().opened(number, upload, context)
            if message is None or number >= liars:
                return message
            real: Floats = LIES[lie](message.real)
            half = np.split(real[context.layout.trained :], 2)
            if len(half[0]):  # a variance as large as it can be beside the mean
                real[context.layout.trained :] = np.concatenate([half[0], np.abs(half[1]) * LARGE])
            return message._replace(real=real)

    return Lying


def accuracy(experiment: Experiment, liars: int, lie: str, bounded: bool) -> float:
    """Mean of the last rounds, in percent; 0 if the run ends before."""
    simulation = simulate(experiment)
    setattr(simulation, "_clients", lambda: lying(liars, lie)(simulation.world, None, {}))  # noqa: B010
    if not bounded:
        setattr(simulation, "_bounds", Unbounded(simulation.world))  # noqa: B010
    return float(100 * np.mean([record.accuracy for record in simulation][-LAST:]))


class Unbounded(Bounds):
    """Believes everything."""

    def ballot(self, upload: Message, shared: object) -> Message:
        """As it came."""
        return upload

    def statistics(self, uploads: object, shared: object) -> list[Message]:
        """As they came."""
        return list(uploads)  # type: ignore[call-overload,no-any-return]


def main() -> None:
    """Print a line for each algorithm and number of liars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=["biml", "fedavg"])
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--liars", default="0,1,2")
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
