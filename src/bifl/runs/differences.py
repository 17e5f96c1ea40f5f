"""What runs of the same seeds tell of a difference: intervals by Student's t, and equivalence within a margin (TOST).

Two runs of one seed share the split, the start and the order of draws, so their difference swings less than either. Differences are
in points, 100 times that of two scores. All functions of numbers are pure.

>>> [round(end, 3) for end in interval([0.1, 0.3, 0.2])]
[-0.048, 0.448]
>>> verdict([0.1, 0.3, 0.2], margin=0.1), more_seeds([0.1, 0.3, 0.2], margin=0.1)
(<Verdict.OPEN: 'not decided'>, 1)
>>> verdict([0.01, -0.02, 0.03], margin=0.1)
<Verdict.LEVEL: 'level'>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.special import stdtrit

from bifl.errors import ConfigError
from bifl.registry import short
from bifl.runs.folder import Result
from bifl.runs.record import tested
from bifl.runs.results import LAST, Series

CONFIDENCE = 0.95
EQUIVALENCE = 0.9  # an interval of 90 % within the margin is what two one-sided tests of 5 % each ask for
MARGIN = 0.1  # points within which two algorithms count as equally good
FEW = 5  # seeds below which an interval is wide for their number alone
ONE = "one seed: no interval"
MOST = 1000  # seeds that anybody would add


class Verdict(StrEnum):
    """What some differences say."""

    LEVEL = "level"
    BETTER = "better"
    WORSE = "worse"
    OPEN = "not decided"


class Interval(NamedTuple):
    """Where a mean difference lies."""

    low: float
    high: float


def reach(count: int, confidence: float = CONFIDENCE) -> float:
    """How many standard errors an interval of so many differences reaches to either side."""
    return float(stdtrit(count - 1, (1 + confidence) / 2))


def interval(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Where the mean difference of all seeds lies; None of fewer than two, whose spread nobody knows."""
    if len(differences) < 2:
        return None
    half = reach(len(differences), confidence) * stdev(differences) / sqrt(len(differences))
    return Interval(fmean(differences) - half, fmean(differences) + half)


def verdict(differences: Sequence[float], margin: float = MARGIN) -> Verdict:
    """What differences to another algorithm say of this one; whatever is level within the margin is neither better nor worse."""
    inner, outer = interval(differences, EQUIVALENCE), interval(differences)
    if inner is None or outer is None:
        return Verdict.OPEN
    if -margin < inner.low and inner.high < margin:
        return Verdict.LEVEL
    return Verdict.BETTER if outer.low > 0 else Verdict.WORSE if outer.high < 0 else Verdict.OPEN


def more_seeds(differences: Sequence[float], margin: float = MARGIN) -> int | None:
    """How many more seeds would decide, if mean and spread stayed as they are; None if more than anybody would add."""
    if len(differences) < 2:
        return None
    mean, spread = abs(fmean(differences)), stdev(differences)
    for more in range(MOST + 1):
        count = len(differences) + more
        inner, outer = (reach(count, share) * spread / sqrt(count) for share in (EQUIVALENCE, CONFIDENCE))
        if mean + inner < margin or outer < mean:
            return more
    return None


# ---- of runs ------------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """How one algorithm differs from another, seed by seed."""

    label: str
    points: list[float]
    margin: float
    why_none: str = ""  # where there is no pair

    @property
    def verdict(self) -> str:
        """In words."""
        if len(self.points) < 2:
            return self.why_none or ONE
        found = verdict(self.points, self.margin)
        if found is Verdict.LEVEL:
            return f"level within {self.margin:g} points"
        if found is not Verdict.OPEN:
            return str(found)
        more = more_seeds(self.points, self.margin)
        if more is None:
            return f"not decided, nor by {MOST:,} more seeds like these"
        return f"not decided: {more} more seed{'s' * (more != 1)} like these would"


def checked_margin(margin: float | None) -> float:
    """The margin of an equivalence, or a refusal."""
    if margin is not None and not 0 < margin <= 100:
        raise ConfigError(f"--margin must be more than 0 and at most 100 points, not {margin:g}")
    return margin or MARGIN


def reference(labels: Sequence[str], named: str | None) -> int:
    """The place of the one that others are compared with: the first, or that of this label or algorithm."""
    for place, label in enumerate(labels):
        if named in (None, label, short(label), re.split("[+ ]", short(label))[0]):
            return place
    raise ConfigError(f"--against must be one of {', '.join(map(short, labels))}, not '{named}'")


def differences(series: Sequence[Series], other: Series, margin: float = MARGIN) -> list[Difference]:
    """Of all but the one that they are compared with."""
    return [_difference(one, other, margin) for one in series if one is not other]


def _difference(one: Series, other: Series, margin: float) -> Difference:
    if one.rounds != other.rounds:
        return Difference(
            one.label, [], margin, f"{one.rounds} round{'s' * (one.rounds != 1)}, {short(other.label)} {other.rounds}"
        )
    theirs = {result.experiment.seed: result for result in other.furthest}
    pairs = [(result, theirs[seed]) for result in one.furthest if (seed := result.experiment.seed) in theirs]
    alike = [(this, that) for this, that in pairs if _alike(this, that)]
    points = [100 * (score(this) - score(that)) for this, that in alike]
    known = [point for point in points if isfinite(point)]
    why = "" if known else "no seed in common" if not pairs else "another version or data" if not alike else "not evaluated"
    return Difference(one.label, known, margin, why)


def _alike(this: Result, that: Result) -> bool:
    """Whether two runs are of one version and, as far as both tell, on the same data."""
    return this.version == that.version and (not this.data or not that.data or this.data == that.data)


def score(result: Result) -> float:
    """What a run ends with: the mean of its last rounds, as far as they were evaluated; of a shorter run the last evaluation."""
    records = result.records
    last = [record for record in records[-LAST:] if record.evaluated] if len(records) >= LAST else tested(records)[-1:]
    return fmean(record.score for record in last) if last else float("nan")


def remark(found: Sequence[Difference], rounds: int) -> str:
    """What a table of differences is of, and how far to trust it, in a sentence."""
    what = f"mean of each run's last {LAST} rounds" if rounds >= LAST else "last round"
    seeds = min((len(one.points) for one in found if one.points), default=0)
    text = f"{what}, this less the other, run by run of the same seed; level: its 90 % interval is within the margin (TOST)"
    return f"{text}; {hint}" if (hint := few(seeds)) else text


def few(seeds: int) -> str:
    """How wide intervals of few seeds are; nothing where there are none, or seeds enough."""
    if not 2 <= seeds < FEW:
        return ""
    return f"of {seeds} seeds an interval reaches {reach(seeds):.1f} standard errors to either side, of {FEW} {reach(FEW):.1f}"


def no_interval(found: Sequence[Difference], other: str) -> str:
    """Why none of these differences has an interval, in a sentence; empty where one has."""
    if any(len(one.points) > 1 for one in found):
        return ""
    reasons = {
        short(one.label): "take several seeds, such as seeds=0,1,2,3,4" if one.verdict == ONE else one.verdict for one in found
    }
    same = len(set(reasons.values())) == 1
    told = next(iter(reasons.values())) if same else "; ".join(f"{label}: {reason}" for label, reason in reasons.items())
    return f"differences to {short(other)} have no interval: {told}"
