"""Three pictures: decay against the bound, rounds against voters, the curves of ML-PU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bifl.core import rules
from bifl.show.plot import PALETTE, save
from studies.theory import descent, lemmas
from studies.theory.curves import logarithm, ml_pu_curves
from studies.theory.descent import Walk
from studies.theory.findings import EASY_SIZE, VOTERS, easy_quadratics, rounds_by_voters
from studies.theory.lemmas import Bools
from studies.theory.quadratics import Array, Quadratic, bowl, stack

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, RED, SKY, BLACK = PALETTE
RUNS = 60
STEPS = 60
ETA = 0.04  # in 1/β


def draw(folder: Path, runs: int = RUNS, seed: int = 0) -> list[Path]:
    """Write theory-decay.png, theory-voters.png and ml-pu.png into an existing folder."""
    pictures = {"theory-decay.png": _decay(runs, seed), "theory-voters.png": _voters(runs, seed), "ml-pu.png": _ml_pu()}
    for name, figure in pictures.items():
        save(figure, folder / name, dpi=90)
    return [folder / name for name in pictures]


def _pair(sharey: bool = False) -> tuple[Figure, Axes, Axes]:
    from matplotlib.figure import Figure  # takes a second to import: only when something is drawn

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=sharey)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, left, right


# ---- Theorem 1 -------------------------------------------------------------------------------------------------------


def _decay(runs: int, seed: int) -> Figure:
    figure, left, right = _pair()
    near, inside = easy_quadratics(runs, seed), _inside(runs, seed)
    path = _walk_from_afar(near, seed)
    bound, covered = _bound(near, path)
    told = int(np.sum(np.mean(covered, axis=(1, 2)) >= 0.5)) + 1
    start = path.distance[0]
    _band(left, path.distance / start, BLUE, "walks")
    left.plot(
        np.median(bound / start, axis=(1, 2))[:told], color=RED, linestyle="--", label="bound of Lemma 3.2, corrected, while φ > η"
    )
    left.set(xlabel="step", ylabel="‖W̄ − W*‖², share of the start", yscale="log", title="distance to W*, minimiser near a vertex")
    left.set_yticks([1, 0.7, 0.5, 0.4, 0.3], ["1", "0.7", "0.5", "0.4", "0.3"])
    left.minorticks_off()
    _band(right, path.differ, BLUE, "minimiser near a vertex")
    _band(right, _walk_from_afar(inside, seed).differ, ORANGE, "minimiser inside the box")
    limit = float(np.mean(descent.floor(near)))
    right.axhline(limit, color=BLACK, linestyle=":", label=f"(β − ξ)N/β = {limit:.0f}, Theorem 1's end")
    right.set(xlabel="step", ylabel="K", title=f"weights that differ from W*, of {EASY_SIZE}")
    for axes in (left, right):
        axes.legend(frameon=False, loc="upper right")
    figure.suptitle("Theorem 1: median and 10–90 % of the walks")
    return figure


def _inside(runs: int, seed: int) -> Quadratic:
    random = np.random.default_rng([seed, 5])
    centres = random.choice([-1.0, 1.0], (runs, EASY_SIZE)) * random.uniform(0, 0.5, (runs, EASY_SIZE))
    return stack([bowl(random, 1.2, centre) for centre in centres])


def _walk_from_afar(quadratics: Quadratic, seed: int) -> Walk:
    random = np.random.default_rng([seed, 6])
    aux = -quadratics.best * random.uniform(0.5, 1, quadratics.best.shape)
    return descent.walk(quadratics, aux, ETA / quadratics.beta, STEPS, lemmas.form_c)


def _bound(quadratics: Quadratic, path: Walk) -> tuple[Array, Bools]:
    """The distance that Lemma 3.2 allows, and for which steps; from the first φ ≤ η on it says nothing more."""
    eta = ETA / quadratics.beta
    gain = 4 * (path.phi - eta) * eta * quadratics.beta * quadratics.xi * path.differ
    covered = np.logical_and.accumulate(path.phi > eta, axis=0)
    left = path.distance[0] - np.cumsum(np.where(covered, gain, 0), axis=0)
    return np.concatenate([path.distance[:1], left[:-1]]), covered


def _band(axes: Axes, values: Array, color: str, label: str) -> None:
    """Median and middle eight tenths over all runs."""
    low, middle, high = np.percentile(values.reshape(len(values), -1), [10, 50, 90], axis=1)
    axes.plot(middle, color=color, linewidth=1.8, label=label)
    axes.fill_between(np.arange(len(values)), low, high, color=color, alpha=0.2, linewidth=0)


# ---- Theorem 2 -------------------------------------------------------------------------------------------------------


def _voters(runs: int, seed: int) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    rules = {"BiML, votes and ML-PU": descent.voted, "the server averages": descent.averaged, "the server adds up": descent.summed}
    for (label, exchange), color, marker in zip(rules.items(), (BLUE, ORANGE, GREEN), "osD", strict=True):
        middle = np.median(rounds_by_voters(runs, seed, exchange), axis=1)
        slopes = f"slope {_slope(middle, 20)} up to M = 20, {_slope(middle, 100)} up to 100"
        axes.plot(VOTERS, middle, color=color, marker=marker, linewidth=1.8, label=f"{label}: {slopes}")
    without = np.median(rounds_by_voters(runs, seed, descent.averaged, noise=0.0))
    axes.plot(VOTERS, middle[0] / np.array(VOTERS), color=BLACK, linestyle=":", label="T_0(1)/M, as Theorem 2 says: slope −1")
    axes.axhline(without, color=RED, linestyle="--", label="one client without noise")
    axes.set_ylim(1, 2000)  # room for the legend; no rounds below one
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="voters M",
        ylabel="rounds T_0 until K stays small, median",
        title="Theorem 2: do more voters finish sooner?",
    )
    axes.set_xticks(VOTERS, [str(voters) for voters in VOTERS])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False, loc="upper left")
    return figure


def _slope(rounds: Array, most_voters: int) -> str:
    """Of log T_0 against log M, by least squares."""
    voters = np.array(VOTERS)
    used = voters <= most_voters
    return _signed(np.polyfit(np.log(voters[used]), np.log(rounds[used]), 1)[0], 2)


def _signed(number: float, digits: int) -> str:
    return f"{number:+.{digits}f}".replace("-", "−")


# ---- ML-PU -----------------------------------------------------------------------------------------------------------


def _ml_pu() -> Figure:
    figure, left, right = _pair(sharey=True)
    curves = ml_pu_curves()
    left.plot(curves.agree, curves.ratio, ".", color=BLUE, markersize=5, label="r, exact")
    left.plot(curves.agree, curves.printed, color=ORANGE, label=_formula("the paper's fit", rules.FIT))
    left.plot(
        curves.agree, logarithm(curves.agree, *curves.ratio_fit), "--", color=BLACK, label=_formula("our fit", curves.ratio_fit)
    )
    left.set(ylabel="r = μ̂ / w̄", title="the printed constants fit r …")
    right.plot(curves.agree, curves.location, ".", color=GREEN, markersize=5, label="û, exact")
    right.plot(curves.agree, curves.printed, color=ORANGE, label="the paper's fit")
    right.set(ylabel="û = μ̂ / σ̂", title="… and not û, which the text names")
    for axes in (left, right):
        axes.set_xlabel("votes of 100 that agree with mine")
        axes.legend(frameon=False, loc="lower right")
    return figure


def _formula(name: str, constants: tuple[float, float, float]) -> str:
    a1, a2, a3 = constants
    return f"{name}: {_signed(a1, 3)} {_signed(a2, 3)} ln(a {_signed(a3, 3)})"
