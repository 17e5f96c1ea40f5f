"""Sums that a minority of liars cannot steer: their laws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from flwr.server.strategy.aggregate import aggregate_median, aggregate_trimmed_avg
from hypothesis import given
from hypothesis import strategies as st

from bifl.core import BINARY, FLOAT32, NOTHING, Floats, Message, Public, Tally, Votes, mean
from bifl.core.layout import Layout
from bifl.core.layout import Tensor as Spec
from bifl.core.sums import UploadList
from bifl.robust import robust
from bifl.robust.credibility import agreements, judge

LAYOUT = Layout(("layer",), (Spec("weights", (8,), 0),), (), ())
PUBLIC = Public(0, 1, LAYOUT, np.linspace(-1, 1, 8).astype(np.float32), np.ones(1, np.float32))
RULES = [name for name in robust.names() if name != "none"]
FOR_UPDATES = [name for name in RULES if name != "bounded_step"]
FOR_BALLOTS = [name for name in RULES if name != "norm_clip"]
NUMBERS = st.floats(-100, 100, width=32)


def update(values: object, number: int = 0, weight: int = 1) -> Message:
    weights = np.asarray(values, np.float32)
    return Message.of(weights, FLOAT32, weights[:1].copy(), sender=number, weight=weight)


def ballot(values: object, number: int = 0, weight: int = 1) -> Message:
    return Message.of(np.asarray(values, np.uint8), BINARY, np.zeros(1, np.float32), sender=number, weight=weight)


def total(name: str, uploads: list[Message], trust: Floats = NOTHING, public: Public = PUBLIC, **parameters: Any) -> Tally:
    return with_trust(name, uploads, trust, public, **parameters)[0]


def with_trust(
    name: str, uploads: list[Message], trust: Floats = NOTHING, public: Public = PUBLIC, **parameters: Any
) -> tuple[Tally, Floats]:
    rule = robust.make(name, parameters)
    assert rule is not None
    found = UploadList()
    for upload in uploads:
        found.add(upload)
    return rule.total(found.in_order(), public, trust)


def vectors(least: int = 3, most: int = 9) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(NUMBERS, min_size=8, max_size=8), min_size=least, max_size=most)


# ---- laws ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
def test_it_does_not_matter_who_comes_first(name: str, data: st.DataObject) -> None:
    bits = st.lists(st.lists(st.integers(0, 1), min_size=8, max_size=8), min_size=3, max_size=9)
    kinds: list[Any] = [(update, vectors())] * (name in FOR_UPDATES) + [(ballot, bits)] * (name in FOR_BALLOTS)
    for make, rows in kinds:
        uploads = [make(row, number, weight=1 + number % 2) for number, row in enumerate(data.draw(rows))]
        shuffled = data.draw(st.permutations(uploads))
        one, other = total(name, uploads), total(name, shuffled)
        assert one.update.mean.tobytes() == other.update.mean.tobytes()
        assert one.real.tobytes() == other.real.tobytes()


@pytest.mark.parametrize("name", ["median", "trimmed_mean"])
@given(honest=vectors(least=3, most=6), lies=vectors(least=1, most=2))
def test_a_minority_cannot_leave_the_honest_range(name: str, honest: list[list[float]], lies: list[list[float]]) -> None:
    uploads = [update(row, number) for number, row in enumerate([*honest, *lies])]
    parameters: dict[str, Any] = {} if name == "median" else {"share": len(lies) / len(uploads)}
    found = total(name, uploads, **parameters)
    known = np.array(honest, np.float32)
    assert np.all(found.update.mean >= known.min(0) - 1e-4)
    assert np.all(found.update.mean <= known.max(0) + 1e-4)
    assert known[:, 0].min() - 1e-4 <= found.real[0] <= known[:, 0].max() + 1e-4  # real parameters too


@given(rows=vectors(least=4))
def test_median_and_trimmed_mean_are_those_of_flower(rows: list[list[float]]) -> None:
    """docs/robust.md says so."""
    uploads = [update(row, number) for number, row in enumerate(rows)]
    results = [([upload.update.values(), upload.real], 1) for upload in uploads]
    pairs = [
        (total("median", uploads), aggregate_median(results)),
        (total("trimmed_mean", uploads, share=0.25), aggregate_trimmed_avg(results, 0.25)),
    ]
    for ours, theirs in pairs:
        assert np.allclose(ours.update.mean, theirs[0], atol=1e-4)
        assert np.allclose(ours.real, theirs[1], atol=1e-4)


@given(honest=st.integers(3, 7), liars=st.integers(1, 3), votes=st.lists(st.integers(0, 1), min_size=8, max_size=8))
def test_a_minority_cannot_turn_what_all_others_vote(honest: int, liars: int, votes: list[int]) -> None:
    if liars >= honest:
        return
    turned = [1 - vote for vote in votes]
    uploads = [ballot(turned if number < liars else votes, number, weight=50) for number in range(honest + liars)]
    truth = [1 if vote else -1 for vote in votes]
    settings: dict[str, Any] = {"median": {}, "trimmed_mean": {"share": liars / len(uploads)}, "credibility": {}}
    for name, parameters in settings.items():
        found = total(name, uploads, **parameters)
        assert found.update.mean.tolist() == truth, name
        assert found.update.votes is not None
        assert found.update.votes.tolist() == [found.total * vote for vote in votes]
        assert found.unit == 50


@given(lie=st.lists(st.floats(200, 1e6, width=32), min_size=8, max_size=8), liars=st.integers(1, 3))
def test_krum_leaves_out_who_is_far_from_the_others(lie: list[float], liars: int) -> None:
    dice = np.random.default_rng(liars)
    near = [update(dice.normal(0, 1, 8), number) for number in range(7)]
    far = [update(np.array(lie) * (number - 10.5), number) for number in range(7, 7 + liars)]
    for keep in (0, 7, 9):  # never more than are left without the liars
        found = total("krum", [*near, *far], share=liars / (7 + liars), keep=keep)
        assert found.update.mean.tobytes() == mean(near).update.mean.tobytes()


@given(vectors(), st.lists(NUMBERS, min_size=8, max_size=8))
def test_nobody_pulls_further_than_the_clip(honest: list[list[float]], lie: list[float]) -> None:
    known = [update(row, number) for number, row in enumerate(honest)]
    loud = update(1e4 * np.array(lie), len(honest))
    lengths = [float(np.linalg.norm(upload.update.values().astype(np.float64) - PUBLIC.weights)) for upload in [*known, loud]]
    found = total("norm_clip", [*known, loud]).update.mean - PUBLIC.weights
    assert np.linalg.norm(found) <= np.median(lengths) * 1.001 + 1e-3


def test_counts_move_by_a_step_at_most() -> None:
    news = Message.of(np.array([0, 2, 5, 10, 7, 5, 5, 5]), Votes(10), np.zeros(1, np.float32))
    public = PUBLIC._replace(news=news)
    found = total("bounded_step", [ballot([1, 0, 0, 0, 1, 1, 1, 1], number) for number in range(10)], public=public, step=0.2)
    assert found.update.votes is not None
    assert found.update.votes.tolist() == [2, 0, 3, 8, 9, 7, 7, 7]
    first = total("bounded_step", [ballot([1] * 8, number) for number in range(10)])  # there was no last count
    assert first.update.votes is not None
    assert first.update.votes.tolist() == [10] * 8


# ---- credibility -----------------------------------------------------------------------------------------------------------


def crowd(liars: int, noise: float, lie: float = -1.0) -> list[Message]:
    """Ten updates of 4,096 weights that have a direction in common, each in noise of its own; of liars it is turned."""
    dice = np.random.default_rng(3)
    common = dice.normal(0, 1, 4096)
    signs = [lie] * liars + [1.0] * (10 - liars)
    return [update(sign * common + noise * dice.normal(0, 1, 4096), number, 40) for number, sign in enumerate(signs)]


WIDE = PUBLIC._replace(layout=Layout(("layer",), (Spec("weights", (4096,), 0),), (), ()), weights=np.zeros(4096, np.float32))


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("liars", [0, 1, 4])
def test_liars_are_found_in_noise(liars: int, noise: float) -> None:
    """Also where nine tenths of an upload's square are noise, as of murmur's: there Krum and the median find nothing."""
    uploads = crowd(liars, noise)
    found, trust = with_trust("credibility", uploads, public=WIDE)
    assert found.update.mean.tobytes() == mean(uploads[liars:]).update.mean.tobytes()
    assert (found.clients, found.total, found.unit) == (10 - liars, 10 - liars, 40)
    assert np.all(trust[:liars] == np.float32(0.5))
    assert np.all(trust[liars:] > 0.9)


def ballots(honest: int, liars: int) -> list[Message]:
    """Ballots of 4,096 weights that are wrong about a tenth; of the last quarter of the weights liars believe the opposite."""
    dice = np.random.default_rng(3)
    common = dice.integers(0, 2, 4096)
    opposite = np.repeat([0, 0, 0, 1], 1024)
    truths = [common ^ opposite] * liars + [common] * honest
    return [ballot(truth ^ (dice.random(4096) < 0.1), number, 40) for number, truth in enumerate(truths)]


@pytest.mark.parametrize(("honest", "liars"), [(6, 4), (18, 12), (8, 2)])
def test_ballots_are_judged_where_they_differ(honest: int, liars: int) -> None:
    """Who trains on wrong labels votes like the others on most weights."""
    uploads = ballots(honest, liars)
    assert total("credibility", uploads, public=WIDE).update.mean.tobytes() == mean(uploads[liars:]).update.mean.tobytes()


@pytest.mark.parametrize("honest", [2, 3, 5, 30])
def test_honest_ballots_count_in_full(honest: int) -> None:
    """Few of them too, of whom some are nearer to the others by chance."""
    uploads = ballots(honest, 0)
    assert total("credibility", uploads, public=WIDE).update.mean.tobytes() == mean(uploads).update.mean.tobytes()


def test_too_loud_is_shortened() -> None:
    uploads = crowd(1, 0.3, lie=50.0)
    found = total("credibility", uploads, public=WIDE)
    assert np.linalg.norm(found.update.mean) < 1.3 * np.linalg.norm(mean(uploads[1:]).update.mean)


def test_credit_is_lost_at_once_and_regained_slowly() -> None:
    """Trust 0.5 after a lie and 0.25 after two, then 0.4, 0.52, 0.62, 0.69, 0.75: an eighth of a vote and less is none."""
    trust, counts = NOTHING, []
    for _ in range(2):
        found, trust = with_trust("credibility", crowd(1, 0.3), trust, WIDE)
        assert found.clients == 9
    for _ in range(5):
        found, trust = with_trust("credibility", crowd(0, 0.3), trust, WIDE)
        counts.append((found.total, found.unit))
    assert counts == [(9, 40), (9, 40), (19, 20), (39, 10), (10, 40)]


def test_a_round_that_tells_nothing_changes_nothing() -> None:
    """Updates without anything in common, as late in training, and one against them all: who lied before is left out, no other."""
    rows = [*np.eye(8), -np.ones(8)]
    uploads = [update(row, number, 40) for number, row in enumerate(rows)]
    public = PUBLIC._replace(weights=np.zeros(8, np.float32))
    before = np.array([0.2, 0.2, *[1.0] * 7], np.float32)
    found, trust = with_trust("credibility", uploads, before.copy(), public, reach=10.0)
    assert found.update.mean.tobytes() == mean(uploads[2:]).update.mean.tobytes()
    assert trust.tobytes() == before.tobytes()
    assert total("credibility", uploads, public=public, reach=10.0).update.mean.tobytes() == mean(uploads).update.mean.tobytes()


@pytest.mark.parametrize(
    ("scores", "deserved", "telling"),
    [
        ([0.4, 0.4, 0.4, 0.1, -0.2], [1, 1, 1, 0.5, 0], 1.0),  # three quarters of the usual score are tolerated
        ([0.4, 0.4, 0.4, 0.5, 0.1], [1, 1, 1, 1, 0.7], 0.6),  # noise of 5 × 0.1
        ([0.4, 0.4, 0.4, 0.41, 2.0, 0.1], [1, 1, 1, 1, 1, 0.5], 1.0),  # one is above on purpose
        ([-0.1, -0.1, -0.1, 0.0, -0.6], [1, 1, 1, 1, 0.5], 0.0),
        ([0.0, 0.0, 0.0], [1, 1, 1], 0.0),
    ],
)
def test_trust_that_scores_deserve(scores: list[float], deserved: list[float], telling: float) -> None:
    found, how_much = judge(np.array(scores), np.full(len(scores), 4))
    assert found == pytest.approx(np.array(deserved))
    assert how_much == pytest.approx(telling)


def test_who_has_no_credit_does_not_judge() -> None:
    """Three known liars of five who are drawn are the majority."""
    uploads = crowd(3, 0.3)[:5]
    known = np.array([0.05] * 3 + [1.0] * 2, np.float32)
    found, trust = with_trust("credibility", uploads, known, WIDE)
    assert found.update.mean.tobytes() == mean(uploads[3:]).update.mean.tobytes()
    assert trust[3:].tolist() == [1, 1]


def test_decoys_do_not_hide_liars() -> None:
    """Two of four liars send the mean of their honest updates, which is less noisy than others': it agrees with them too well."""
    uploads = crowd(0, 3.0)
    signals = [upload.update.symbols for upload in uploads[:4]]
    decoy = np.mean(signals, axis=0)
    lies = [update(decoy, 0, 40), update(decoy, 1, 40), update(-2 * signals[2], 2, 40), update(-2 * signals[3], 3, 40)]
    found = total("credibility", [*lies, *uploads[4:]], public=WIDE)
    assert found.update.mean.tobytes() == mean([*lies[:2], *uploads[4:]]).update.mean.tobytes()


def test_if_nobody_has_credit_this_round_alone_counts() -> None:
    uploads = crowd(0, 0.3)
    nobody = np.full(10, 0.1, np.float32)
    assert total("credibility", uploads, nobody, WIDE).update.mean.tobytes() == mean(uploads).update.mean.tobytes()


def test_equal_ballots_agree() -> None:
    uploads = [ballot([0, 1] * 4, number) for number in range(4)]
    assert agreements(uploads, PUBLIC, np.full(4, 4)) == pytest.approx(np.ones(4))


def test_where_nobody_agrees_all_count() -> None:
    uploads = [update(sign * np.eye(8)[place], place) for place, sign in enumerate([1, -1] * 4)]
    found = total("credibility", uploads, public=PUBLIC._replace(weights=np.zeros(8, np.float32)))
    assert found.update.mean.tobytes() == mean(uploads).update.mean.tobytes()
    alone = update(np.ones(8), 3)
    assert total("credibility", [alone]).update.mean.tobytes() == mean([alone]).update.mean.tobytes()


# ---- few uploads, shares near one half, weights that have no common divisor -----------------------------------------------


def test_counts_of_few_clients_move_by_a_vote() -> None:
    news = Message.of(np.array([0, 1, 2, 3, 4, 2, 1, 3]), Votes(4, 100), np.zeros(1, np.float32))
    uploads = [ballot([1, 0, 1, 0, 0, 0, 1, 0], number, 100) for number in range(4)]
    found = total("bounded_step", uploads, public=PUBLIC._replace(news=news), step=0.2)
    assert found.update.votes is not None
    assert found.update.votes.tolist() == [1, 0, 3, 2, 3, 1, 2, 2]


@pytest.mark.parametrize("count", [1, 2, 9, 10])
def test_a_share_just_below_half_leaves_something(count: int) -> None:
    share = 0.4999999999
    updates = total("trimmed_mean", [update(np.full(8, number), number) for number in range(count)], share=share)
    assert updates.update.mean.tolist() == [(count - 1) / 2] * 8
    votes = total("trimmed_mean", [ballot([1, 0] * 4, number) for number in range(count)], share=share)
    assert votes.total >= 1
    assert votes.update.mean.tolist() == [1, -1] * 4


@pytest.mark.parametrize(
    "sizes", [[40] * 10, [401, 397, 389, 383, 379, 373, 367, 359, 353, 349], [4 * size for size in range(90, 100)]]
)
def test_a_vote_is_of_as_many_images_as_it_counts_for(sizes: list[int]) -> None:
    """One of ten has three quarters of its credit: total · unit are the others' images, and so much of its own, or all of them."""
    uploads = [upload._replace(weight=size) for upload, size in zip(ballots(10, 0), sizes, strict=True)]
    trust = np.ones(10, np.float32)
    trust[9] = 0.6
    found = total("credibility", uploads, trust, WIDE)
    left_out = sizes[9] // 4 if math.gcd(*sizes) % 4 == 0 else 0
    assert found.total * found.unit == sum(sizes) - left_out


def test_large_weights_leave_no_room_for_fractions() -> None:
    """The best count in full then."""
    large = [upload._replace(weight=2**28) for upload in crowd(0, 0.3)[:3]]
    few = np.array([0.45, 0.3, 0.3], np.float32)
    assert total("credibility", large, few, WIDE).update.mean.tobytes() == mean(large[:1]).update.mean.tobytes()
