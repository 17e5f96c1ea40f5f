"""Experiments by name: a few settings, and a text that says what to expect. The paper's train with the paper's algorithm.

>>> preset_of(["mnist-iid", "rounds=3"]), pairs(["rounds=3"])
(('mnist-iid', ['rounds=3']), {'rounds': '3'})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bifl.errors import ConfigError
from bifl.registry import nearest


class Preset(NamedTuple):
    """Settings on top of the defaults."""

    about: str
    settings: Mapping[str, Any]


_HUNDRED = {"model": "mnist_cnn", "clients": 100, "rounds": 100}
_MNIST = {**_HUNDRED, "dataset": "mnist", "algorithm": "biml"}
_FEMNIST = {
    "dataset": "femnist", "dataset.share": 0.1, "model": "femnist_cnn", "clients": 89, "rounds": 100,
    "lr": (3e-4, 1e-4, 5e-5), "algorithm": "biml", "algorithm.alpha": 1.75,
}  # fmt: skip
_CELEBA = {
    "dataset": "celeba", "dataset.share": 0.5, "model": "celeba_cnn", "clients": 100, "rounds": 100, "lr": (0.1, 0.05, 0.02),
    "algorithm": "biml",
}  # fmt: skip
_HAR = {
    "dataset": "uci_har", "model": "har_cnn", "partition": "by_user", "clients": 21, "rounds": 30, "local_epochs": 2,
    "lr": (0.002, 0.001, 0.0005), "lr_steps": (15, 22),
}  # fmt: skip
_UNIPEN = {key: value for key, value in _FEMNIST.items() if key != "dataset.share"} | {"dataset": "unipen"}
_CIFAR10 = {
    "dataset": "cifar10", "model": "cifar_cnn", "clients": 100, "participation": 0.1, "idle": "sleep", "rounds": 100,
    "local_epochs": 2, "optimizer": "sgd", "lr": (0.01,),
}  # fmt: skip
_BY_USER = {"partition": "by_user", "partition.at_least": 500}

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
    "fashion-iid": Preset("Fashion-MNIST, 100 clients of 600 images", {**_HUNDRED, "dataset": "fashion_mnist", "partition": "iid"}),
    "writers": Preset(
        "MNIST by writer: 100 clients, whole writers merged to more than 500 images",
        {**_HUNDRED, "dataset": "mnist_writers", **_BY_USER},
    ),
    "femnist-iid": Preset("Table I: a tenth of FEMNIST's writers, 89 clients, classes even", {**_FEMNIST, "partition": "iid"}),
    "femnist-noniid": Preset(
        "Table II: a tenth of FEMNIST's writers, 89 clients, whole writers merged to more than 500 images", {**_FEMNIST, **_BY_USER}
    ),
    "femnist-unbalanced": Preset(
        "a tenth of FEMNIST's writers, 18, 35 and 36 clients of 4, 2 and 1 shards", {**_FEMNIST, "partition": "unbalanced"}
    ),
    "har": Preset("UCI HAR: windows of phone sensors, 21 persons are the clients, UCI's other 9 the test set", _HAR),
    "unipen-iid": Preset(
        "UNIPEN's characters with the paper's rates for FEMNIST: 89 clients of 500 images, 5,500 to test, classes even",
        {**_UNIPEN, "dataset.images": 50_000, "partition": "iid"},
    ),
    "unipen-writers": Preset(
        "UNIPEN's characters with the paper's rates for FEMNIST: 89 clients, whole writers merged to more than 500 images",
        {**_UNIPEN, **_BY_USER},
    ),
    "cifar10-iid": Preset("CIFAR-10: 100 clients of 500 pictures, 10 of them a round", {**_CIFAR10, "partition": "iid"}),
    "celeba-iid": Preset("Table I: half of CelebA's celebrities, 100 clients, classes even", {**_CELEBA, "partition": "iid"}),
    "celeba-noniid": Preset(
        "Table II: half of CelebA's celebrities, 100 clients, whole celebrities merged to more than 500 images",
        {**_CELEBA, **_BY_USER},
    ),
}


def preset_of(words: Iterable[str]) -> tuple[str | None, list[str]]:
    """The word that is not key=value, if there is one, and the rest."""
    given = list(words)
    names = [word for word in given if "=" not in word]
    if len(names) > 1:
        raise ConfigError(f"only one preset can be given, not {' and '.join(names)}; settings are key=value")
    return (names[0] if names else None), [word for word in given if "=" in word]


def pairs(overrides: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a mapping."""
    pairs: dict[str, str] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"'{text}' is neither a preset nor key=value{nearest(text, PRESETS)}")
        if key in pairs:
            raise ConfigError(f"key '{key}' is given twice")
        pairs[key] = value
    return pairs
