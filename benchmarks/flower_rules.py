"""Flower's own robust sums as rules of bifl, so that both stand in one table: the functions that its strategies call.

    bifl run algorithm=fedavg robust=benchmarks/flower_rules.py:flower_krum attack=flip attack.share=0.3

They are sums of arrays of floats, so they take updates, not ballots: those they would turn into numbers that are no counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from flwr.server.strategy import aggregate

from bifl.core import Algorithm, Floats, Message, Public, Tally, mean
from bifl.robust.rule import UPDATES, Rule, check_share, robust

Arrays = list[npt.NDArray[np.float32]]
Sum = Callable[[list[tuple[Arrays, int]]], Arrays]


def _total(uploads: Sequence[Message], public: Public, trust: Floats, *, sums: Callable[[int], Sum]) -> tuple[Tally, Floats]:
    results = [([upload.update.values(), upload.real, upload.update.scales], upload.weight) for upload in uploads]
    weights, real, scales = sums(len(uploads))(results)
    tally = mean(uploads)._replace(real=real.astype(np.float32)).with_update(scales=scales.astype(np.float32))
    return tally.with_update(mean=weights.astype(np.float64)), trust


def _only_updates(algorithm: Algorithm, kind: str) -> str:
    return "" if kind == UPDATES else f"Flower's sums are of floats, and these are {kind}"


def _rule(sums: Callable[[int], Sum]) -> Rule:
    return Rule(partial(_total, sums=sums), _only_updates)


@robust
def flower_median() -> Rule:
    """FedMedian's sum."""
    return _rule(lambda count: aggregate.aggregate_median)


@robust
def flower_trimmed(share: float = 0.2) -> Rule:
    """FedTrimmedAvg's sum, with `beta` = share."""
    trimmed = partial(aggregate.aggregate_trimmed_avg, proportiontocut=check_share(share))
    return _rule(lambda count: trimmed)


@robust
def flower_krum(share: float = 0.2) -> Rule:
    """Multi-Krum: `num_malicious_clients` is that share of the uploads, `num_clients_to_keep` all others."""
    check_share(share)

    def krum(count: int) -> Sum:
        liars = math.floor(share * count + 1e-9)
        return partial(aggregate.aggregate_krum, num_malicious=liars, to_keep=count - liars)

    return _rule(krum)
