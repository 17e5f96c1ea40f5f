"""Counter-examples checked by hand-sized arithmetic: fractions, 50-digit square roots, itertools. No numpy, no shared code.

All of them are bowls F(w) = ½ β‖w − centre‖², ξ = β: the round case, in which every claim should be easiest.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from typing import NamedTuple

DIGITS = 50
Point = tuple[Fraction, ...]


class Bowl(NamedTuple):
    """F(w) = ½ beta ‖w − centre‖² and a place W̄ to stand."""

    beta: Fraction
    centre: Point
    aux: Point

    @property
    def best(self) -> Point:
        """W*, by enumeration."""
        cube = product((Fraction(-1), Fraction(1)), repeat=len(self.centre))
        return min(cube, key=lambda vertex: square(minus(vertex, self.centre)))

    @property
    def signs(self) -> Point:
        """W^b = Sign(W̄)."""
        return sign(self.aux)

    @property
    def differ(self) -> int:
        """K."""
        return sum(a != b for a, b in zip(self.signs, self.best, strict=True))

    def gradient(self, point: Point) -> Point:
        """∇F."""
        return tuple(self.beta * x for x in minus(point, self.centre))

    def step(self, eta: Fraction) -> Bowl:
        """W̄ ← W̄ − η∇F(Sign(W̄))."""
        return self._replace(aux=tuple(w - eta * g for w, g in zip(self.aux, self.gradient(self.signs), strict=True)))


def sign(point: Point) -> Point:
    """Sign(0) = −1, as everywhere."""
    return tuple(Fraction(1) if x > 0 else Fraction(-1) for x in point)


def minus(left: Point, right: Point) -> Point:
    """The difference."""
    return tuple(a - b for a, b in zip(left, right, strict=True))


def dot(left: Point, right: Point) -> Fraction:
    """The inner product."""
    return sum((a * b for a, b in zip(left, right, strict=True)), Fraction(0))


def square(point: Point) -> Fraction:
    """‖·‖²."""
    return dot(point, point)


def root(value: Fraction | int) -> Decimal:
    """√ to 50 digits; every strict inequality below has a margin of more than 1e-3."""
    with localcontext() as context:
        context.prec = DIGITS
        return (Decimal(Fraction(value).numerator) / Decimal(Fraction(value).denominator)).sqrt()


def numbers(*values: str) -> Point:
    """Fractions from text."""
    return tuple(map(Fraction, values))


# ---- the counter-examples --------------------------------------------------------------------------------------------

NARROW_ANGLE = (numbers("-1", "-1"), numbers("1/100", "1"))  # V, W̄
FAST_GROWTH = Bowl(Fraction(1), numbers("3/2"), numbers("-1"))
SLOW_GROWTH = Bowl(Fraction(1), numbers(*["1/2"] * 5), numbers(*["-1"] * 5))
MISLEADING_STEP = Bowl(Fraction(1), numbers("9/10", "1/100", "1/100"), numbers("-1/100", "1/100", "1/100"))
LONG_STEP, LONG_ETA = Bowl(Fraction(4), numbers("5/4"), numbers("-1/2")), Fraction(1, 2)
NEVER_DONE, SMALL_ETA = Bowl(Fraction(1), numbers(*["1/3"] * 3), numbers("-3/100", "-5/100", "-1/100")), Fraction(3, 100)


def narrow_angle() -> str | None:
    """Lemma 2.2 as printed: cos² of the angle against K/N."""
    corner, aux = NARROW_ANGLE
    jump, way = minus(sign(aux), corner), minus(aux, corner)
    cosine = dot(jump, way) ** 2 / (square(jump) * square(way))
    differ = sum(x != 0 for x in jump)
    if cosine >= Fraction(differ, len(aux)):
        return None
    return f"V = (−1, −1), W̄ = (0.01, 1): K = N = {differ}, cos = {root(cosine):.4f}, claimed ≥ 1"


def wrong_growth() -> str | None:
    """Lemma 3.1 as printed, broken on both sides."""
    fast, slow = _growth(FAST_GROWTH), _growth(SLOW_GROWTH)
    if fast[0] <= fast[2] or slow[0] >= slow[1]:
        return None
    above = f"above: F = ½(w − 3/2)², W^b = −1: λ = {fast[0]:.3g} > {fast[2]:.3g}"
    return f"{above}; below: F = ½‖w − ½·1‖², N = 5, W^b = −1: λ = {slow[0]:.3g} < {slow[1]:.4g}"


def _growth(bowl: Bowl) -> tuple[Decimal, Decimal, Decimal]:
    """λ and the printed bounds below and above it."""
    error = root(square(bowl.gradient(bowl.best)))
    reach = root((bowl.differ * bowl.beta) ** 2)
    return root(square(bowl.gradient(bowl.signs))) / error, (reach - error) / error, (reach + error) / error


def misleading_step() -> str | None:
    """Lemma 3.2 with form A: φ > 0, but every step, however short, leads away from W*."""
    bowl = MISLEADING_STEP
    phi = _form_a(bowl)
    inner = dot(bowl.gradient(bowl.signs), minus(bowl.aux, bowl.best))  # −½ d‖W̄ − η∇F − W*‖²/dη at η = 0
    if phi <= 0 or inner >= 0:
        return None
    where = "F = ½‖w − (0.9, 0.01, 0.01)‖², W̄ = (−0.01, 0.01, 0.01)"
    return f"{where}: λ = {_growth(bowl)[0]:.3f}, φ = {phi:.4f} > 0, yet ∇F(W^b)ᵀ(W̄ − W*) = −{-float(inner):.4f} < 0"


def long_step() -> str | None:
    """Lemma 3.2 with form B: a step that is allowed, and overshoots; clipped to 1 it would break the claim too."""
    before = square(minus(LONG_STEP.aux, LONG_STEP.best))
    after = square(minus(LONG_STEP.step(LONG_ETA).aux, LONG_STEP.best))
    phi = _form_a(LONG_STEP) * int(LONG_STEP.beta)
    if not (Decimal("0.5") < phi and after > before):
        return None
    return f"F = 2(w − 5/4)², W̄ = −0.5: φ = {phi:.3f}, but η = 0.5 takes ‖W̄ − W*‖² from {float(before)} to {float(after)}"


def _form_a(bowl: Bowl) -> Decimal:
    """Form A where ξ = β: (λ − 1)/√(β³λ²N(λ² + 1)) · (λ√(βK) − √(β(N − K)))."""
    size, differ, beta = len(bowl.aux), bowl.differ, bowl.beta
    growth = square(bowl.gradient(bowl.signs)) / square(bowl.gradient(bowl.best))  # λ²
    bracket = root(growth * beta * differ) - root(beta * (size - differ))
    return (root(growth) - 1) / root(beta**3 * growth * size * (growth + 1)) * bracket


def never_done() -> str | None:
    """Theorem 1: from K = N the path enters a cycle in which one weight is always wrong; the claim allows none."""
    path = [NEVER_DONE]
    for _ in range(4):
        path.append(path[-1].step(SMALL_ETA))
    cycle = path[4].aux == path[1].aux
    if not (cycle and path[0].differ == 3 and all(point.differ == 1 for point in path[1:])):
        return None
    where = "F = ½‖w − ⅓·1‖², N = 3, W̄₀ = (−0.03, −0.05, −0.01), η = 0.03"
    return f"{where}: K = 3, then 1 in every later step (a cycle of three), claimed (β − ξ)N/β = 0"
