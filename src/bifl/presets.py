"""The paper's experiments by name. A preset is a few settings; its text says what to expect of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Preset(NamedTuple):
    """Settings on top of the defaults."""

    about: str
    settings: Mapping[str, Any]


_MNIST = {"dataset": "mnist", "model": "mnist_cnn", "clients": 100, "rounds": 100}

PRESETS: dict[str, Preset] = {
    "mnist5k-iid": Preset("5,000 embedded digits, 10 clients, 15 rounds: a first look in seconds", {"dataset": "mnist5k"}),
    "mnist-iid": Preset("Table I: full MNIST, 100 clients of 600 images, 100 rounds", {**_MNIST, "partition": "iid"}),
    "mnist-nc3": Preset(
        "Table II: full MNIST, every client has 3 class shards",
        {**_MNIST, "partition": "by_class", "partition.classes_per_client": 3},
    ),
    "mnist-nc5": Preset(
        "Table II: full MNIST, every client has 5 class shards",
        {**_MNIST, "partition": "by_class", "partition.classes_per_client": 5},
    ),
    "mnist-unbalanced": Preset("full MNIST, clients of 1,200, 600 and 300 images", {**_MNIST, "partition": "unbalanced"}),
}
