"""Sparse uploads: what they leave out is remembered, or right in the mean."""

from __future__ import annotations

import numpy as np
import pytest

from bifl.algorithms.sparse_loco import sparse_loco
from bifl.algorithms.stc import stc
from bifl.algorithms.vqsgd import vqsgd
from bifl.core import Algorithm, Client, Floats, Public, Sent
from bifl.core.layout import Layout, Tensor

COUNT = 1000
LAYOUT = Layout(("a", "b"), (Tensor("a.weight", (700,), 0), Tensor("b.weight", (300,), 1)), (), ())
START = np.linspace(-1, 1, COUNT, dtype=np.float32)
CHANGE = np.random.default_rng(0).standard_t(3, COUNT).astype(np.float32)
NOTHING = np.zeros(0, np.float32)


def public_of(seed: int = 0) -> Public:
    return Public(seed, 0, LAYOUT, START, np.zeros(LAYOUT.reals, np.float32), voters=10, clients=10)


def upload_of(algorithm: object, seed: int = 0, memory: Floats = NOTHING) -> tuple[Floats, Sent]:
    """The change that the server reads, and what was sent."""
    assert isinstance(algorithm, Algorithm)
    public = public_of(seed)
    client = Client(START + CHANGE, START, np.zeros(LAYOUT.reals, np.float32), weight=1, number=3, memory=memory)
    sent = Sent.of(algorithm.upload(client, public))
    message = sent.message._replace(sender=3)
    return algorithm.reads(message, public).update.symbols - START, sent


@pytest.mark.parametrize("algorithm", [sparse_loco(most=8, chunk=128), stc(one_in=50)], ids=["sparse_loco", "stc"])
def test_what_was_not_said_is_remembered(algorithm: Algorithm) -> None:
    told, sent = upload_of(algorithm)
    np.testing.assert_allclose(told + sent.memory, CHANGE, atol=1e-5)
    again, later = upload_of(algorithm, memory=sent.memory)
    decay = 0.95 if later.message.update.alphabet.size == 5 else 1
    np.testing.assert_allclose(again + later.memory, CHANGE + np.float32(decay) * sent.memory, atol=1e-5)


def test_sparse_loco_says_so_many_of_every_chunk_in_four_levels() -> None:
    told, _ = upload_of(sparse_loco(most=8, chunk=128))
    for begin in range(0, COUNT, 128):
        part, change = told[begin : begin + 128], CHANGE[begin : begin + 128]
        said = np.flatnonzero(part)
        assert set(said) == set(np.argsort(-np.abs(change))[:8])
        assert len(np.unique(np.abs(part[said]).round(3))) == 2
        assert (np.sign(part[said]) == np.sign(change[said])).all()
        assert np.abs(part[said]).sum() == pytest.approx(np.abs(change[said]).sum(), rel=1e-4)


def test_stc_says_the_largest_of_all_at_one_magnitude() -> None:
    told, sent = upload_of(stc(one_in=50))
    said = np.flatnonzero(told)
    assert set(said) == set(np.argsort(-np.abs(CHANGE))[:20])
    assert len(sent.message.update.scales) == 1
    np.testing.assert_allclose(np.abs(told[said]), np.abs(CHANGE[said]).mean(), rtol=1e-5)


def test_vqsgd_is_right_in_the_mean() -> None:
    algorithm, many = vqsgd(group=8), 3000
    told = np.array([upload_of(algorithm, seed)[0] for seed in range(many)])
    far = max(np.abs(CHANGE[begin : begin + 8]).sum() for begin in range(0, COUNT, 8))
    # a draw is 0 or ±far; the probability of a vertex is at most what its variance is over far²
    deviation = told.std(0) / np.sqrt(many)
    assert (np.abs(told) < 1e-3).sum() + (np.abs(np.abs(told) - far) < 1e-3).sum() == told.size
    assert (np.abs(told.mean(0) - CHANGE) < 5.5 * np.maximum(deviation, far / many)).all()  # 1,000 numbers: p < 1e-4
