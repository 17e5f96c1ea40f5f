"""What a secure sum of ballots tells where clients have different numbers of images: the table of docs/security.md.

    python benchmarks/unequal_sums.py

A vote weighs as many images as its client has, and all know these numbers. Where the numbers of one set of clients alone add up to
a weight's sum, everyone's vote is read off it.
"""

from __future__ import annotations

from statistics import mean

import numpy as np

SETTINGS = ((3, 100, 1000), (5, 300, 700), (10, 400, 600), (10, 3000, 9000), (15, 3000, 9000))  # clients, least and most images
DRAWS, WEIGHTS = 5, 4000


def read(clients: int, least: int, most: int, dice: np.random.Generator) -> float:
    """The share of weights at which all votes are known by their sum."""
    images = dice.integers(least, most, clients)
    votes = dice.integers(0, 2, (WEIGHTS, clients))
    everyone = (np.arange(2**clients)[:, None] >> np.arange(clients)) & 1  # all ways to vote
    sums, ways = np.unique(everyone @ images, return_counts=True)
    return float(np.mean(ways[np.searchsorted(sums, votes @ images)] == 1))


def main() -> None:
    dice = np.random.default_rng(1)
    for clients, least, most in SETTINGS:
        share = mean(read(clients, least, most, dice) for _ in range(DRAWS))
        print(f"{clients:3} clients with {least} to {most} images: all votes are read at {share:.1%} of the weights")


if __name__ == "__main__":
    main()
