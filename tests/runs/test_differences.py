"""Differences between runs of the same seeds: the laws of intervals and tests, and which runs are pairs."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from bifl.data.fingerprint import Loaded
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment
from bifl.report.page import _compared
from bifl.report.summary import settings
from bifl.runs.differences import (
    FEW,
    MARGIN,
    Verdict,
    checked_margin,
    differences,
    interval,
    more_seeds,
    no_interval,
    reach,
    reference,
    remark,
    score,
    verdict,
)  # fmt: skip
from bifl.runs.folder import Result
from bifl.runs.record import Record
from bifl.runs.results import Series
from tests.support.commands import Run, refused
from tests.support.series import series

POINTS = st.lists(st.integers(-5000, 5000).map(lambda number: number / 1000), min_size=2, max_size=30)
MARGINS = st.floats(0.01, 3)


@given(POINTS)
def test_intervals_are_those_of_a_paired_t_test(points: list[float]) -> None:
    assume(np.std(points) > 1e-9)
    expected = stats.ttest_rel(points, [0] * len(points)).confidence_interval(0.95)
    assert interval(points) == pytest.approx((expected.low, expected.high))


@given(POINTS, MARGINS)
def test_level_is_what_two_one_sided_tests_say(points: list[float], margin: float) -> None:
    assume(np.std(points) > 1e-9)
    above = stats.ttest_1samp(points, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(points, margin, alternative="less").pvalue
    assume(abs(max(above, below) - 0.05) > 1e-6)
    assert (verdict(points, margin) is Verdict.LEVEL) == (max(above, below) < 0.05)


@given(POINTS, MARGINS)
def test_a_verdict_turns_with_the_sign_and_the_order_does_not_matter(points: list[float], margin: float) -> None:
    turned = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    found = verdict(points, margin)
    assert verdict([-point for point in points], margin) is turned.get(found, found)
    assert verdict(sorted(points), margin) is found


@given(POINTS, MARGINS)
def test_so_many_more_seeds_would_decide(points: list[float], margin: float) -> None:
    """Tried with the same mean and spread: half of the seeds above, half below."""
    assume(verdict(points, margin) is Verdict.OPEN)
    more = more_seeds(points, margin)
    assume(more is not None and more < 200)
    assert more is not None
    count = len(points) + more
    assert more > 0
    for seeds, decided in ((count, True), (count - 1, False)):
        shape = np.resize([1.0, -1.0], seeds) - (seeds % 2) / seeds
        again = fmean(points) + shape / np.std(shape, ddof=1) * np.std(points, ddof=1)
        assert (verdict(again.tolist(), margin) is not Verdict.OPEN) == decided


@pytest.mark.parametrize("points", [[], [0.3]])
def test_one_seed_tells_nothing(points: list[float]) -> None:
    assert interval(points) is None
    assert more_seeds(points, 0.1) is None
    assert verdict(points, 0.1) is Verdict.OPEN


def test_what_never_differs_is_level() -> None:
    assert verdict([0.0] * 3, 0.1) is Verdict.LEVEL
    assert verdict([0.5] * 2, 0.1) is Verdict.BETTER


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf"), 101.0])
def test_what_is_no_margin_is_refused(margin: float) -> None:
    with pytest.raises(ConfigError, match="--margin must be more than 0 and at most 100 points"):
        checked_margin(margin)
    assert checked_margin(None) == MARGIN


# ---- of runs ------------------------------------------------------------------------------------------------------------


def records(*scores: float) -> list[Record]:
    return [Record(n + 1, score, 0.1, 0.1, 2, 100, 200, 100, 0.5, 1.5, 0.1, 1.0) for n, score in enumerate(scores)]


FEDAVG = series("fedavg", records(0.5, 0.9), records(0.5, 0.92), algorithm="fedavg")


def test_runs_of_a_seed_are_a_pair() -> None:
    other = series("biml", records(0.6, 0.91), records(0.6, 0.90))
    (found,) = differences([FEDAVG, other], FEDAVG, 0.1)
    assert found.points == pytest.approx([1.0, -2.0])
    turned = Series(other.label, other.furthest[::-1])
    assert differences([turned], FEDAVG, 0.1)[0].points == pytest.approx([-2.0, 1.0])


def test_scores_are_means_of_the_last_rounds_that_were_evaluated() -> None:
    long = series("biml", records(0.1, *[0.5] * 9, 0.7))
    assert score(long.furthest[0]) == pytest.approx((0.5 * 9 + 0.7) / 10)
    assert score(FEDAVG.furthest[0]) == 0.9
    blind = records(*[0.1] * 9, 0.8, 0.6, float("nan"))
    blind[-1] = blind[-1]._replace(loss=float("nan"))
    assert score(series("biml", blind).furthest[0]) == pytest.approx((0.1 * 7 + 0.8 + 0.6) / 9)


def elsewhere(one: Series) -> Series:
    data = Loaded(1, 1, 2, "classes", "5 float32", "0" * 64, "0" * 64)
    return Series(one.label, [result._replace(data=data) for result in one.furthest])


def test_what_is_no_pair_says_why() -> None:
    other = series("biml", records(0.6, 0.91), records(0.6, 0.90))
    far = Series(other.label, [r._replace(experiment=r.experiment.changed({"seed": 7 + n})) for n, r in enumerate(other.furthest)])
    old = Series(other.label, [r._replace(version="0.1") for r in other.furthest])
    said = [one.verdict for one in differences([far, old, series("biml", records(0.6))], FEDAVG, 0.1)]
    assert said == ["no seed in common", "another version or data", "1 round, fedavg 2"]
    assert differences([elsewhere(other)], FEDAVG, 0.1)[0].points, "runs of earlier versions do not tell their data"
    moved = elsewhere(FEDAVG)
    moved = Series(moved.label, [r._replace(data=r.data and r.data._replace(test=2)) for r in moved.furthest])
    assert differences([elsewhere(other)], moved, 0.1)[0].verdict == "another version or data"


def test_why_there_is_no_interval_is_what_applies() -> None:
    other = series("biml", records(0.6, 0.91), records(0.6, 0.90))
    far = Series("far", [r._replace(experiment=r.experiment.changed({"seed": 7 + n})) for n, r in enumerate(other.furthest)])
    single, short_one = series("single", records(0.6, 0.9)), series("short", records(0.6))

    def said(*those: Series) -> str:
        return no_interval(differences(those, FEDAVG, 0.1), "fedavg")

    assert said(single) == "differences to fedavg have no interval: take several seeds, such as seeds=0,1,2,3,4"
    assert said(far, far) == "differences to fedavg have no interval: no seed in common"
    assert said(far, short_one) == "differences to fedavg have no interval: far: no seed in common; short: 1 round, fedavg 2"
    assert said(far, other) == ""


def test_the_report_shows_rows_without_a_pair(tmp_path: Path) -> None:
    alone: dict[str, Any] = {"clients": 2, "workers": 1, "rounds": 2}
    seeds = {"fedavg": (0, 1), "biml": (0, 1), "up_down": (7, 8)}
    results = [
        Result(f"{name}-{seed}", Experiment(algorithm=name, seed=seed, **alone), records(0.5, 0.9 + seed / 1000))
        for name, several in seeds.items() for seed in several
    ]  # fmt: skip
    (group,) = settings(results)
    found = _compared(group.series, "fedavg", 0.1)
    assert {one.label: row[3] for one, row in found["differences"]}["up_down"] == "no seed in common"
    (group,) = settings([result for result in results if result.experiment.algorithm.name != "biml"])
    found = _compared(group.series, "fedavg", 0.1)
    assert (found["differences"], found["differing"]) == ([], "differences to fedavg have no interval: no seed in common")


def test_whom_to_compare_with() -> None:
    labels = ["/far/my.py:mine+beta=1", "murmur+group=32", "fedavg lr=0.1"]
    assert [reference(labels, name) for name in (None, "mine", "murmur", "murmur+group=32", "fedavg")] == [0, 0, 1, 1, 2]
    with pytest.raises(ConfigError, match=r"--against must be one of mine.beta=1, murmur.group=32, fedavg lr=0.1, not 'eden'"):
        reference(labels, "eden")


def test_few_seeds_are_said_to_be_few() -> None:
    found = differences([series("biml", records(0.6, 0.91), records(0.6, 0.90))], FEDAVG, 0.1)
    assert "of 2 seeds an interval reaches 12.7 standard errors to either side, of 5 2.8" in remark(found, 2)
    assert reach(FEW) < 2.8 < reach(FEW - 1)


def test_compare_and_the_report_say_it(here: Run, tmp_path: Path) -> None:
    words = ["algorithms=fedavg,up_down", "clients=2", "rounds=1", "workers=1", "--out", tmp_path / "both"]
    assert "--against must be one of fedavg, up_down, not 'x'" in refused(here("compare", *words, "--against", "x"))
    assert not (tmp_path / "both").exists()
    done = here("compare", *words, "seeds=0,1", "--against", "up_down").stdout
    assert "difference to up_down" in done
    assert re.search(r"fedavg +\+\d+\.\d\d +-?\+?\d.* … \+\d.* 2 +", done)
    assert "12.7 standard errors" in done
    assert "kB up" in done
    here("report", tmp_path / "both", "-o", tmp_path / "page.html", "--margin", "90")
    page = (tmp_path / "page.html").read_text()
    assert "difference to fedavg" in page
    assert "level within 90 points" in page or "not decided" in page
    single = here("compare", *words[:-1], tmp_path / "one").stdout
    assert "differences to fedavg have no interval: take several seeds, such as seeds=0,1,2,3,4" in single
