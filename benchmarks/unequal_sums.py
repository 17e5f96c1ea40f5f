"""What a secure sum would tell if clients weighed by their images: the figures of docs/security.md on `weigh=`.

    python benchmarks/unequal_sums.py

All know everyone's number of images. Where the numbers of one set of clients alone add up to a weight's sum, everyone's vote could
be read off it. Floats are votes too after one step of Adam, which moves every weight by the learning rate, up or down.
"""

from __future__ import annotations

from statistics import mean

import numpy as np

from bifl.core import Client
from bifl.engine.worker import ClientTools, LocalSide
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.nn.batch import Samples

SETTINGS = ((3, 100, 1000), (5, 300, 700), (10, 400, 600), (10, 3000, 9000), (15, 3000, 9000))  # clients, least and most images
DRAWS, WEIGHTS = 5, 4000
SIZES = (701, 533, 619, 402, 577)  # images of the clients that upload floats
# one step, one step of all images, an epoch of batches of 64
FLOATS: tuple[list[str], ...] = (["local_steps=1"], ["batch=1024"], [])


def ways(clients: int) -> np.ndarray:
    """(2^clients, clients) all ways to vote, as 0 and 1."""
    found: np.ndarray = (np.arange(2**clients)[:, None] >> np.arange(clients)) & 1
    return found


def read(clients: int, least: int, most: int, dice: np.random.Generator) -> float:
    """The share of weights at which all votes are known by their sum."""
    images = dice.integers(least, most, clients)
    votes = dice.integers(0, 2, (WEIGHTS, clients))
    sums, counts = np.unique(ways(clients) @ images, return_counts=True)
    return float(np.mean(counts[np.searchsorted(sums, votes @ images)] == 1))


def read_floats(words: list[str]) -> float:
    """The share of weights at which the nearest way to vote tells the direction of all clients of `fedavg`, in round 1."""
    experiment = Experiment.of(None, ["algorithm=fedavg", f"clients={len(SIZES)}", *words])
    setup = build(experiment)
    public, samples = setup.public, Samples.of(setup.data.inputs, setup.data.labels, setup.data)
    tools = ClientTools(setup.run, samples, [setup.parts[number][:size] for number, size in enumerate(SIZES)])
    ballot = setup.run.exchanges[0]
    moved = []
    for number, size in enumerate(SIZES):
        client = Client(public.weights, public.weights, public.real, size, number)
        reply = ballot.say(LocalSide(tools, client, public, voted=True), public, uploads=True)
        assert reply.message is not None
        moved.append(reply.message.update.symbols.astype(np.float64) - public.weights)
    told = np.array(SIZES) @ np.array(moved)  # all that the server learns
    patterns = 2 * ways(len(SIZES)) - 1
    sums = experiment.lr[0] * patterns @ np.array(SIZES)
    guessed = patterns[np.abs(told[:, None] - sums).argmin(1)]
    return float(np.mean(np.all(guessed == np.sign(moved).T, axis=1)))


def main() -> None:
    dice = np.random.default_rng(1)
    for clients, least, most in SETTINGS:
        share = mean(read(clients, least, most, dice) for _ in range(DRAWS))
        print(f"{clients:3} clients with {least} to {most} images: all votes are read at {share:.1%} of the weights")
    for words in FLOATS:
        how = " ".join(["fedavg", *words])
        print(f"{how}, {len(SIZES)} clients: all directions are read at {read_floats(words):.1%} of the weights")


if __name__ == "__main__":
    main()
