"""Compile the loops of training and coding now, not while somebody waits for a first run: python -m bifl.engine.precompile

Numba keeps what it compiles beside the package, or in the user's cache directory where that cannot be written. Later processes load
it from there. One small round of a network of each kind compiles what runs of such networks need.
"""

from __future__ import annotations

from bifl.engine.simulator import simulate
from bifl.experiment.settings import Experiment

_RUNS = ("algorithm=biml", "algorithm=murmur", "algorithm=fedavg model=mlp", "algorithm=biml model=cnn4 batchnorm=average")


def main() -> None:
    """Run a round of two clients each."""
    for words in _RUNS:
        small = ["clients=2", "partition=shared", "partition.images=4", "rounds=1", "workers=1"]
        for _ in simulate(Experiment.of(None, [*small, *words.split()])):
            pass


if __name__ == "__main__":
    main()
