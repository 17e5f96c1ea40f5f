"""How far one client may pull what is averaged: its real numbers are taken only within bounds.

A ballot moves a vote count by one, but batch-norm, ϑ and the layers kept real are averaged, and a mean follows its largest liar.

- Trained numbers start from the public ones: they may differ by `REACH` · stride · lr · steps, and by what the wire rounds.
- Statistics of a new network may differ much from the last ones, but clients differ little from each other. First they are taken
  within bounds around their median (`CAPS`, `VARIED`), which fewer than half cannot move beyond the others, however far they lie.
  What is left of lies is then averaged again and again, each time within narrower bounds around the last average (`STAGES`): a
  mean may differ by a share of the deviation, a variance may be larger by that share, and, within narrow bounds, smaller. The
  first median is of numbers bounded by the public statistics (`WIDEST`), or, where there are none yet, by those of noise in the
  same network (`UNKNOWN`).
- Statistics of training, which ballots carry with `batchnorm=average`, are bounded by the public ones alone: liars in the first
  round are forgotten only by and by.

The caps are wider than honest clients with similar data differ, so that where nobody lies all that counts is the mean. The
constants were chosen by experiment: docs/security.md says what they cost, and what liars can still do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bifl.core import FLOAT32, NOTHING, Floats, Layout, Message, Public, Tally
from bifl.core.algorithm import Algorithms
from bifl.data.inputs import Form
from bifl.nn.network import Network
from bifl.training.evaluation import noise_squares
from bifl.training.local import Plan

REACH = 2.0
WIDEST = 4.0  # deviations that the mean of a batch-norm's input may move from round to round
TRAINING = 1.0  # the same of statistics of training: two liars of ten could keep 4 open
CAPS = (2.0, 0.5)  # deviations around the median; the first finds it again where all moved further than the widest bounds
VARIED = (4.0, 3.0)  # times that a variance may be smaller or larger than the median
STAGES = (0.5, *[0.25] * 2, *[0.125] * 2, *[0.0625] * 4)
NARROW = 0.25  # within bounds narrower than this a variance may not be smaller either
QUIET = 0.1  # a channel's variance counts as at least this share of its layer's mean: it may wake up
UNKNOWN = 512.0  # times E[x²] of noise: real images have been seen to give up to 400 times that
_ROUNDING = 2.0**-6  # of uploads on the wire; relative, above 1
_POOLED = 6.0  # times: 1 + 6·4 is more than 1 + 4 + 4², and so it is with 1 instead of 4
_SCALES = 2.0  # times
_LAST_DIGITS, _GRAIN = 2.0**-20, 2.0**-31  # errors of sums, relative and absolute: no variance at all may come out below 0
_ALIVE = 1e-5  # batch-norm's own ε: variances below it are none

Numbers = npt.NDArray[np.float64]


class Bounds:
    """Bounds the uploads of one run, for its server.

    Args:
        plan: round → how clients train in it.
        network: that they train.
        algorithm: says how the network uses its weights.
        form: of one input.
    """

    def __init__(self, plan: Callable[[int], Plan], network: Network, algorithm: Algorithms, form: Form) -> None:
        self._plan, self._network, self._algorithm, self._form = plan, network, algorithm, form
        self._of_noise: dict[int, Floats] = {}  # by round

    def reach(self, public: Public, weight: int) -> float:
        """How far training may move a number in the coming round, of a client with so many samples."""
        how = self._plan(public.round + 1)
        epochs, steps = (1, how.steps) if how.steps else (how.epochs, -(-weight // how.batch))
        return REACH * how.lr * how.optimizer.stride * epochs * steps

    def ballot(self, upload: Message, public: Public) -> Message:
        """What a client uploads after training."""
        trained = public.layout.trained
        known = public.real[:trained]
        reach = self.reach(public, upload.weight) + _ROUNDING * np.maximum(1, np.abs(known))
        bounded = np.clip(upload.real[:trained], known - reach, known + reach)
        moments = self._widely(upload.real[trained:], public, TRAINING, first=public.round == 0)
        return upload._replace(real=_join(bounded, moments))

    def statistics(self, uploads: Iterable[Message], public: Public) -> list[Message]:
        """What clients measure of the network that was broadcast; in one order, whoever was first."""
        in_order = sorted(uploads, key=lambda upload: upload.sender or 0)
        if not in_order:
            return []
        bounded = [self.measured(upload, public).real for upload in in_order]
        for cap in CAPS:
            centre = middle(bounded)
            bounded = [within(upload.real, centre, cap, public.layout, VARIED) for upload in in_order]
        capped, weights = bounded, [upload.weight for upload in in_order]
        for stage in STAGES:
            centre = np.average(bounded, 0, weights).astype(np.float32)
            varied = (1 + stage if stage < NARROW else math.inf, 1 + stage)
            bounded = [within(real, centre, stage, public.layout, varied) for real in capped]
        return [upload._replace(real=real) for upload, real in zip(in_order, bounded, strict=True)]

    def measured(self, upload: Message, public: Public) -> Message:
        """One client's statistics within what is known before anyone speaks: all that can be done where nobody sees them."""
        return upload._replace(real=self._widely(upload.real, public, WIDEST, first=_unmeasured(public)))

    def plausible_ballot(self, real: Floats, public: Public, largest: int) -> bool:
        """Whether real numbers can be the mean of bounded ones, of clients that weigh at most `largest`."""
        trained = public.layout.trained
        upload = Message.of(NOTHING, FLOAT32, real, weight=2 * largest)
        reached = np.array_equal(self.ballot(upload, public).real[:trained], real[:trained])
        return reached and self._pooled(real[trained:], public, TRAINING, first=public.round == 0)

    def plausible_statistics(self, real: Floats, public: Public) -> bool:
        """Whether statistics can be pooled of bounded ones."""
        return self._pooled(real, public, WIDEST, first=_unmeasured(public))

    def plausible_scales(self, tally: Tally, public: Public, largest: int, form: Callable[[float], Message]) -> bool:
        """Whether the scales of all vectors can be means of honest ones, given how far weights have moved → an upload's form."""
        scales = {name: vector.scales for name, vector in tally.vectors.items() if len(vector.scales)}
        if not scales:
            return True
        reach = self.reach(public, largest)
        honest = form(reach).vectors
        return all(np.all(np.abs(means) <= _SCALES * np.abs(honest[name].scales) + reach) for name, means in scales.items())

    def _pooled(self, moments: Floats, public: Public, share: float, *, first: bool) -> bool:
        """Whether moments can be the mean of bounded ones: their variance holds that of the clients' means too."""
        nearest = self._widely(moments, public, _POOLED * (WIDEST if first else share), first=first)
        return np.allclose(nearest, moments, _LAST_DIGITS, _GRAIN)

    def _widely(self, moments: Floats, public: Public, share: float, *, first: bool) -> Floats:
        """Moments within what is known before anyone speaks."""
        if not len(moments):
            return moments
        if not first:
            return within(moments, public.real[public.layout.trained :], share, public.layout, (math.inf, 1 + share))
        if public.round not in self._of_noise:
            forward = self._algorithm.at(max(public.round, 1)).forward
            self._of_noise[public.round] = noise_squares(self._network, public, forward, self._form)
        return within_square(moments, UNKNOWN * max(1.0, share / WIDEST) * self._of_noise[public.round])


def _unmeasured(public: Public) -> bool:
    """Whether nobody has measured the network yet: in the first round, and later if nobody's statistics came through."""
    mean, square = public.real[public.layout.trained :].reshape(2, -1)
    return public.round == 1 or bool(np.all(mean == 0) and np.all(square == 1))


def middle(moments: Sequence[Floats]) -> Floats:
    """(moments,) the median of means and that of variances, where every client counts once."""
    means, variances = zip(*map(_central, moments), strict=True)
    mean: Numbers = np.median(means, axis=0)
    return _join(mean, np.median(variances, axis=0) + mean**2)


def within(moments: Floats, centre: Floats, share: float, layout: Layout, varied: tuple[float, float]) -> Floats:
    """(moments,) E[x] and E[x²] as near to what was said as bounds around the centre, moments too, allow.

    A mean may differ by a share of the deviation; `varied` is how many times smaller a variance may be, and how many times larger.
    """
    mean, variance = _central(centre)
    sizes = [norm.size for norm in layout.moments]
    variance = np.maximum(variance, _ALIVE)
    means: Numbers = np.add.reduceat(variance, np.cumsum([0, *sizes[:-1]])) / sizes
    level = np.maximum(variance, QUIET * np.repeat(means, sizes))
    shift = share * np.sqrt(level)
    smaller, larger = varied
    return _clip(moments, (mean - shift, mean + shift), (variance / smaller, larger * level))


def within_square(moments: Floats, largest: Floats) -> Floats:
    """(moments,) the same where nothing is known but how large E[x²] may be."""
    root = np.sqrt(largest.astype(np.float64))
    return _clip(moments, (-root, root), (0 * root, root**2))


def _clip(moments: Floats, means: tuple[Numbers, Numbers], variances: tuple[Numbers, Numbers]) -> Floats:
    """Moments with means and variances from the least to the largest; those that fit stay as they are."""
    mean, variance = _central(moments)
    new_mean, new_variance = np.clip(mean, *means), np.clip(variance, *variances)
    fits = (new_mean == mean) & (new_variance == variance)
    return np.where(np.tile(fits, 2), moments, _join(new_mean, new_variance + new_mean**2))


def _central(moments: Floats) -> tuple[Numbers, Numbers]:
    """Mean and variance of E[x] and E[x²]."""
    first, second = moments.astype(np.float64).reshape(2, -1)
    return first, second - first**2


def _join(*parts: npt.NDArray[np.floating]) -> Floats:
    return np.concatenate(parts).astype(np.float32)
