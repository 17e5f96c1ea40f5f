"""The verbs of the table, against their definitions written out."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifl import core
from bifl.core import BINARY, FLOAT32, NOTHING, UPDATE, Client, Message, Public, Server, Tally, VectorTally, Votes, rules
from bifl.core.layout import Layout
from bifl.core.rules import blend, blend_signs, floats, majority, means, ml_pu, replace, rounded_votes, sign, signs, votes
from bifl.errors import ConfigError

AUX = np.array([0.5, -0.25, 0.0, 1.0], np.float32)
EMPTY = Layout((), (), (), ())


def client_of(aux: np.ndarray[tuple[int], np.dtype[np.float32]], weight: int = 600, voted: bool = True) -> Client:
    return Client(aux, aux, NOTHING, weight, voted=voted)


def shared_after(news: Message) -> Public:
    return core.take_over(Public(0, 0, EMPTY, np.zeros(4, np.float32), NOTHING), news)


def test_sign_of_zero_is_minus_one_everywhere() -> None:
    assert sign(AUX).tolist() == [1, -1, -1, 1]
    assert signs(client_of(AUX), shared_after(Message.of(AUX, FLOAT32, NOTHING))).update.symbols.tolist() == [1, 0, 0, 1]


def test_votes_majority_and_means_say_the_same_tally() -> None:
    ballots = [[1, 0, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]
    tally = core.mean(Message.of(np.array(b, np.uint8), BINARY, NOTHING, weight=600) for b in ballots)
    public = shared_after(Message.of(AUX, FLOAT32, NOTHING))
    assert votes(tally, public, Server()).update.symbols.tolist() == [4, 1, 2, 1]
    assert votes(tally, public, Server()).update.alphabet == Votes(4, 600)
    assert (
        votes(tally, public, Server()).update.values().tolist()
        == means(tally, public, Server()).update.values().tolist()
        == [1, -0.5, 0, -0.5]
    )
    assert majority(tally, public, Server()).update.values().tolist() == [1, -1, -1, -1]  # a tie is −1


@given(st.integers(1, 400), st.integers(3, 300), st.integers(1, 1000))
def test_rounded_votes_are_near_and_worth_as_much(total: int, levels: int, unit: int) -> None:
    """W̃ is off by half a level at most, and all votes together weigh what they weighed, but for the rounding of the unit."""
    counts = np.arange(total + 1)
    tally = Tally(total, total, unit, {UPDATE: VectorTally(2 * counts / total - 1, counts)}, NOTHING)
    public = shared_after(Message.of(AUX, FLOAT32, NOTHING))
    exact, news = (rule(tally, public, Server()) for rule in (votes, partial(rounded_votes, levels=levels)))
    assert news.update.alphabet.size <= max(levels, 2)
    assert np.abs(news.update.values() - exact.update.values()).max() <= 1 / (news.update.alphabet.size - 1) + 1e-6
    assert isinstance(news.update.alphabet, Votes)
    assert abs(news.update.alphabet.total * news.update.alphabet.unit - total * unit) <= news.update.alphabet.total
    if total < levels:
        assert np.array_equal(news.update.symbols, exact.update.symbols)


def test_blend_and_replace() -> None:
    news = Message.of(np.array([4, 1, 2, 1]), Votes(4), NOTHING)
    public = shared_after(news)
    assert replace(client_of(AUX), public, news).aux.tolist() == [1, -0.5, 0, -0.5]
    assert blend(client_of(AUX), public, news, beta=0.25).aux.tolist() == [0.625, -0.3125, 0, 0.625]
    assert blend_signs(client_of(AUX), public, news, beta=0.25).aux.tolist() == [0.625, -0.4375, -0.25, 0.5]


@pytest.mark.parametrize("voted", [True, False])
@pytest.mark.parametrize("weight", [300, 600, 1200])
def test_ml_pu_is_the_definition(weight: int, voted: bool) -> None:
    """M_i = |D|/|D_i| and M_P = (w̃ + 1)·M_i/2, weight by weight."""
    total, unit, alpha = 200, 300, 1.25
    generator = np.random.default_rng(weight)
    aux = generator.uniform(-1, 1, 500).astype(np.float32)
    own = weight // unit
    counts = generator.integers(own, total - own + 1, 500)
    news = Message.of(counts, Votes(total, unit), NOTHING)
    public = shared_after(news)
    expected = []
    for w, w_mean in zip(aux, public.weights, strict=True):
        voters = total * unit / weight
        positive = (float(w_mean) + 1) * voters / 2
        agree = np.clip(positive if w > 0 else voters - positive, 1 if voted else 0, voters)  # w̃ is rounded to float32
        expected.append(np.clip(alpha * float(rules.exact_ratio(agree, voters, voted)) * w, -1, 1))
    updated = ml_pu(client_of(aux, weight, voted), public, news, alpha=alpha).aux
    np.testing.assert_allclose(updated, expected, atol=2e-5)
    assert updated.dtype == np.float32


def test_rules_that_need_ballots_say_so() -> None:
    public = shared_after(Message.of(AUX, FLOAT32, NOTHING))
    tally = core.mean([floats(client_of(AUX), public)])
    with pytest.raises(ConfigError, match="upload of signs"):
        votes(tally, public, Server())
    with pytest.raises(ConfigError, match="broadcast of votes"):
        ml_pu(client_of(AUX), public, Message.of(AUX, FLOAT32, NOTHING), alpha=1.25)
