"""What a network sends as real numbers, in a sentence for whoever starts a run.

>>> from torch import nn
>>> from bifl.nn.network import Network
>>> network = Network(nn.Sequential(nn.Embedding(4, 2), nn.BatchNorm1d(2), nn.Linear(4, 3)))
>>> sentence(network)
'12 of 27 parameters (44 %) are not coded by the algorithm but sent as reals= says: 0 (Embedding), 1 (BatchNorm1d)'
"""

from __future__ import annotations

import sys
from collections import Counter

from bifl.nn.network import Network

NOTABLE = 0.05  # share of the parameters
NAMED = 4  # layers


def real_layers(network: Network) -> dict[str, int]:
    """Layers whose parameters are not coded, as `name (kind)`, largest first, with how many parameters these are."""
    kinds = {name: type(child).__name__ for name, child in network.module.named_modules()}
    sizes: Counter[str] = Counter()
    for spec in network.layout.affine:
        sizes[f"{spec.owner} ({kinds[spec.owner]})" if spec.owner else kinds[""]] += spec.size
    return dict(sizes.most_common())


def sentence(network: Network) -> str | None:
    """How many parameters are sent as real numbers and which layers they are of; None if they are few."""
    layers = real_layers(network)
    real, total = sum(layers.values()), network.layout.parameters - len(network.layout.layers)
    if real <= NOTABLE * total:
        return None
    names, more = ", ".join(list(layers)[:NAMED]), len(layers) - NAMED
    others = f" and {more} more" if more > 0 else ""
    share = f"{real / total:.0%}".replace("%", " %")
    return f"{real:,} of {total:,} parameters ({share}) are not coded by the algorithm but sent as reals= says: {names}{others}"


def remark(*networks: Network) -> None:
    """Tell a person at the terminal of the first network of which it is worth telling."""
    if text := next(filter(None, map(sentence, networks)), None):
        print(f"bifl: {text}", file=sys.stderr)
