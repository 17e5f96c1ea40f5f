"""What privacy costs: ε and accuracy with `privacy=poisson_binomial`, beside the ε of Gaussian noise of the same size.

python benchmarks/privacy.py                       # the table of docs/privacy.md: many minutes
python benchmarks/privacy.py --epsilon             # ε alone: seconds
python benchmarks/privacy.py --networks linear --clients 100
"""

from __future__ import annotations

import argparse
import math
from statistics import mean
from typing import NamedTuple

from torch import nn

from bifl.engine.simulator import simulate
from bifl.experiment.run import make_network
from bifl.experiment.settings import Experiment
from bifl.nn.models import model
from bifl.privacy import Crowd
from bifl.privacy.accounting import epsilon, gaussian_divergences
from bifl.privacy.mechanism import numbers
from bifl.privacy.poisson_binomial import RandomBits

ROUNDS, DELTA, REACH, LAST = 10, 1e-5, 4.0, 3
THETA = {100: 0.2, 1000: 0.1, 10_000: 0.05}  # by the number of clients


def linear(classes: int) -> nn.Module:
    """A linear classifier of pictures of 14×14: 1,970 weights."""
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(196, classes))


class Training(NamedTuple):
    """How a network is trained, and how many clients are simulated at most."""

    lr: float
    most: int


NETWORKS = {"linear": Training(0.02, 10_000), "mnist_cnn": Training(0.005, 1000)}


def experiment(network: str, clients: int, **privacy: float | str) -> Experiment:
    """Fifty images a client, drawn from all of mnist5k; two steps a round."""
    settings = {"batchnorm": "average", "partition": "shared", "partition.images": 50, "clients": clients, "rounds": ROUNDS}
    settings |= {"algorithm": "fedavg", "batch": 25, "lr": NETWORKS[network].lr, "lr_steps": (), "model": network}
    return Experiment().changed(settings | {key.replace("_", "."): value for key, value in privacy.items()})


def accuracy(what: Experiment) -> str:
    """In %, mean of the last rounds."""
    return f"{100 * mean([record.accuracy for record in simulate(what)][-LAST:]):.1f} %"


def spent(network: str, clients: int) -> tuple[float, float, float]:
    """The noise's length in the mean update, in clips; ε after all rounds; ε of Gaussian noise of that length."""
    theta, length = THETA[clients], numbers(make_network(experiment(network, clients), 10).layout)
    noise = REACH / (2 * theta * math.sqrt(clients))
    bits = RandomBits(1.0, REACH, theta).divergences(clients, Crowd(clients), length)
    gaussian = gaussian_divergences(noise * clients / math.sqrt(length) / 2)
    return noise, epsilon(ROUNDS * bits, DELTA), epsilon(ROUNDS * gaussian, DELTA)


def learnt(network: str, clients: int) -> str:
    """The accuracy, and how many clients were simulated: fewer with a larger θ have the same noise in their mean."""
    simulated = min(clients, NETWORKS[network].most)
    theta = THETA[clients] * math.sqrt(clients / simulated)
    how: dict[str, float | str] = {"privacy": "poisson_binomial", "privacy_theta": theta, "privacy_reach": REACH}
    return f"{accuracy(experiment(network, simulated, **how))} ({simulated} simulated)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--clients", type=int, nargs="+", choices=THETA, default=list(THETA))
    parser.add_argument("--epsilon", action="store_true", help="ε alone, nothing is trained")
    options = parser.parse_args()
    model(linear)
    print("| network | clients | θ | noise, clips | ε | ε, Gaussian | accuracy |\n|---|---|---|---|---|---|---|")
    for network in options.networks:
        if not options.epsilon:
            print(f"| {network} | 100 | – | 0 | none | none | {accuracy(experiment(network, 100))} |", flush=True)
        for clients in options.clients:
            noise, bits, gaussian = spent(network, clients)
            told = "" if options.epsilon else learnt(network, clients)
            print(f"| {network} | {clients} | {THETA[clients]} | {noise:.2f} | {bits:.3g} | {gaussian:.3g} | {told} |", flush=True)


if __name__ == "__main__":
    main()
