"""Every claim of paper §6 on random quadratics: how often it was tried, applied, and broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from studies.theory import descent, exact, lemmas
from studies.theory.descent import Exchange
from studies.theory.lemmas import Bools, Judged, Starts
from studies.theory.quadratics import Array, Quadratic, bowl, random_quadratic, stack

STARTS = 64  # starting points W̄ per quadratic
WALK_SIZES = (1, 2, 3, 6, 12)
WALK_STARTS = 4
WALK_STEPS = 600
LEAST_PHI = 0.05  # in 1/β: walks with shorter steps would not end within WALK_STEPS
EASY_SIZE = 12
DRAWS = 200  # of the noise, where a claim is about a mean
VOTERS = (1, 2, 5, 10, 20, 50, 100)

HOLDS, FALSE, CORRECTED = "holds", "false", "holds as corrected"


class Finding(NamedTuple):
    """What became of one claim."""

    claim: str
    statement: str
    cases: int
    applicable: int  # cases that met the claim's conditions
    violations: int
    counterexample: str  # the smallest known, checked in exact arithmetic where there is one; empty if there is none
    verdict: str  # HOLDS, FALSE or CORRECTED


class Claim(NamedTuple):
    """A claim, and what is known of it besides random cases."""

    name: str
    statement: str
    if_unbroken: str = HOLDS  # CORRECTED for what the paper should have said
    example: Callable[[], str | None] = lambda: None

    def judge(self, judged: list[Judged], sizes: list[int]) -> Finding:
        """Add up; name the exact counter-example if there is one, else the smallest that came up."""
        broken = [(size, number) for number, (size, found) in enumerate(zip(sizes, judged, strict=True)) if found.broken.any()]
        example = self.example() or (f"random quadratic {min(broken)[1]}, N = {min(broken)[0]}" if broken else "")
        return Finding(
            claim=self.name,
            statement=self.statement,
            cases=sum(found.applies.size for found in judged),
            applicable=sum(int(found.applies.sum()) for found in judged),
            violations=sum(int(found.broken.sum()) for found in judged),
            counterexample=example,
            verdict=FALSE if example else self.if_unbroken,
        )


def check(cases: int = 3000, seed: int = 0) -> list[Finding]:
    """Judge every claim on `cases` random quadratics, and the theorems on a share of them; the same for the same arguments."""
    if cases < 1:
        raise ValueError("check needs one case or more")
    first, second = max(1, cases // 25), max(1, cases // 100)
    return [*_check_lemmas(cases, seed), *_check_first_theorem(first, seed), *_check_second_theorem(second, seed)]


# ---- lemmas ----------------------------------------------------------------------------------------------------------

Judge = Callable[[Quadratic, Starts], Judged]


def _worst_step(form: lemmas.Step) -> Judge:
    return lambda quadratic, starts: lemmas.step_helps(quadratic, starts, lemmas.worst_in_cell(starts), form)


LEMMAS: dict[Claim, Judge] = {
    Claim("Lemma 1", "F(W₁) − F(W₂) ≤ ∇F(W₁)ᵀ(W₁ − W₂) − ‖∇F(W₁) − ∇F(W₂)‖²/2β"): lemmas.descent,
    Claim("Lemma 2.1", "‖W^b − V‖ ≤ 2‖W̄ − V‖"): lemmas.distance,
    Claim("Lemma 2.2", "cos(W^b − V, W̄ − V) ≥ √(K/N)", example=exact.narrow_angle): (
        lambda quadratic, starts: lemmas.angle(quadratic, starts, lemmas.printed_cosine)
    ),
    Claim("Lemma 2.2, corrected", "cos² ≥ K/N if K ≤ 2N/3, else ≥ (4/3)(1 − N/3K)", CORRECTED): (
        lambda quadratic, starts: lemmas.angle(quadratic, starts, lemmas.true_cosine)
    ),
    Claim("Lemma 3.1", "(Kξ − ε)/ε ≤ λ ≤ (Kβ + ε)/ε", example=exact.wrong_growth): (
        lambda quadratic, starts: lemmas.growth_between(quadratic, starts, starts.differ)
    ),
    Claim("Lemma 3.1, corrected", "(2√K ξ − ε)/ε ≤ λ ≤ (2√K β + ε)/ε", CORRECTED): (
        lambda quadratic, starts: lemmas.growth_between(quadratic, starts, 2 * np.sqrt(starts.differ))
    ),
    Claim(
        "Lemma 3.2, form A", "every η < φ_A takes 4(φ_A − η)ηβξK or more off ‖W̄ − W*‖²; random W̄", example=exact.misleading_step
    ): (lambda quadratic, starts: lemmas.step_helps(quadratic, starts, starts.aux, lemmas.form_a)),
    Claim("Lemma 3.2, form A, worst W̄", "every η < φ_A does so; the worst W̄ with the same signs", example=exact.misleading_step): (
        _worst_step(lemmas.form_a)
    ),
    Claim("Lemma 3.2, form A, λ < 1", "every η < φ_A does so, where both factors of φ_A are negative; worst W̄"): (
        lambda quadratic, starts: lemmas.step_helps_backwards(quadratic, starts, lemmas.worst_in_cell(starts), lemmas.form_a)
    ),
    Claim("Lemma 3.2, form B", "every η < φ_B = β·φ_A does so; worst W̄", example=exact.long_step): _worst_step(lemmas.form_b),
    Claim(
        "Lemma 3.2, corrected", "every η < φ_C does so: arcsin(1/λ), the angle of 2.2 corrected; worst W̄", CORRECTED
    ): _worst_step(lemmas.form_c),
}


def _check_lemmas(cases: int, seed: int) -> Iterator[Finding]:
    random = np.random.default_rng([seed, 1])
    sizes: list[int] = []
    judged: dict[Claim, list[Judged]] = {claim: [] for claim in LEMMAS}
    for _ in range(cases):
        quadratic = random_quadratic(random)
        starts = lemmas.random_starts(random, quadratic, STARTS)
        sizes.append(len(quadratic.best))
        for claim, judge in LEMMAS.items():
            judged[claim].append(judge(quadratic, starts))
    return (claim.judge(found, sizes) for claim, found in judged.items())


# ---- theorems --------------------------------------------------------------------------------------------------------

FOR_GOOD = Claim("Theorem 1, for good", "from some step on K_t < (β − ξ)N/β + 1, always", example=exact.never_done)
ONCE = Claim("Theorem 1, once", "some step has K_t < (β − ξ)N/β + 1", example=exact.never_done)
GEOMETRIC = Claim(
    "Theorem 1, corrected",
    "while φ_C ≥ 2η, ‖W̄ − W*‖² falls by 1 − 4η²βξ/(N + 3) a step, so φ_C < 2η within T_0 = ln(4N)(N + 3)/(4η²βξ) steps",
    CORRECTED,
)


def _check_first_theorem(count: int, seed: int) -> Iterator[Finding]:
    random = np.random.default_rng([seed, 2])
    judged: dict[Claim, list[Judged]] = {FOR_GOOD: [], ONCE: [], GEOMETRIC: []}
    for size in WALK_SIZES:
        quadratics = stack([random_quadratic(random, size) for _ in range(count)])
        aux = -quadratics.best * random.random((count, WALK_STARTS, size))  # K = N: where the theorem promises most
        for_good, once = ends(quadratics, aux)
        judged[FOR_GOOD].append(for_good)
        judged[ONCE].append(once)
        judged[GEOMETRIC].append(decay(quadratics, aux))
    return (claim.judge(found, list(WALK_SIZES)) for claim, found in judged.items())


def _yes(applies: Bools, fine: np.bool_ | Bools) -> Judged:
    return Judged(applies, np.where(fine, 1.0, -1.0))


def ends(quadratics: Quadratic, aux: Array) -> tuple[Judged, Judged]:
    """Whether K stays small in the second half of a walk with η = φ_A/4, and whether it is ever small."""
    phi = lemmas.form_a(quadratics, lemmas.judged_from(quadratics, aux))
    path = descent.walk(quadratics, aux, phi / 4, WALK_STEPS, lemmas.form_a)
    applies = phi >= LEAST_PHI / quadratics.beta
    small = path.differ < descent.floor(quadratics) + 1
    return _yes(applies, small[WALK_STEPS // 2 :].all(axis=0)), _yes(applies, small.any(axis=0))


def decay(quadratics: Quadratic, aux: Array) -> Judged:
    """Whether the distance falls geometrically with η = φ_C/4 until φ_C < 2η, and that time comes by T_0."""
    phi = lemmas.form_c(quadratics, lemmas.judged_from(quadratics, aux))
    eta = phi / 4
    path = descent.walk(quadratics, aux, eta, WALK_STEPS, lemmas.form_c)
    applies = phi >= LEAST_PHI / quadratics.beta
    covered = np.logical_and.accumulate(path.phi >= 2 * eta, axis=0)
    rate = descent.least_decay(quadratics, np.maximum(eta, 0))
    allowed = (1 - rate) * path.distance[:-1] * (1 + lemmas.TOLERANCE)
    falls = (~covered[:-1] | (path.distance[1:] <= allowed)).all(axis=0)
    in_time = covered.sum(axis=0) <= np.log(4 * quadratics.best.shape[-1]) / np.maximum(rate, 1e-300)
    return _yes(applies, falls & in_time)


def identical_clients() -> str | None:
    """Theorem 2: clients without noise are copies of each other, and a hundred of them need as long as one."""
    sure = bowl(np.random.default_rng(0), 1.0, np.ones(1))
    one, many = (_needed(0, stack([sure]), voters, descent.voted, noise=0.0)[0] for voters in (1, 100))
    return (
        f"clients that all see the true gradient are copies of one: T_0 = {one:.0f} for M = 1 and M = 100" if one == many else None
    )


def _needed(seed: int, quadratics: Quadratic, voters: int, exchange: Exchange, noise: float = descent.NOISE) -> Array:
    return descent.rounds_needed(np.random.default_rng([seed, 3, voters]), quadratics, voters, exchange, noise)


def easy_quadratics(count: int, seed: int) -> Quadratic:
    """A stack with N = 12, β/ξ = 1.2 and the minimiser close to a vertex: T_0 exists for almost all."""
    random = np.random.default_rng([seed, 4])
    centres = random.choice([-1.0, 1.0], (count, EASY_SIZE)) * random.normal(1, 0.1, (count, EASY_SIZE))
    return stack([bowl(random, 1.2, centre) for centre in centres])


def rounds_by_voters(count: int, seed: int, exchange: Exchange, noise: float = descent.NOISE) -> Array:
    """(len(VOTERS), count) T_0 for every M and quadratic; inf where K never stayed small."""
    quadratics = easy_quadratics(count, seed)
    needed = np.stack([_needed(seed, quadratics, voters, exchange, noise) for voters in VOTERS])
    return np.where(np.isnan(needed), np.inf, needed)


SECOND_THEOREM: dict[Claim, Exchange] = {
    Claim("Theorem 2, BiML", "T_0(M) ≤ 2·T_0(1)/M with votes and ML-PU", example=identical_clients): descent.voted,
    Claim(
        "Theorem 2, mean", "T_0(M) ≤ 2·T_0(1)/M if the server averages M noisy updates", example=identical_clients
    ): descent.averaged,
}
LESS_NOISE = Claim(
    "Theorem 2, corrected",
    "E‖W̄_{t+1} − W*‖² ≤ ‖W̄_t − W*‖² − 4(φ_C − η)ηβξK + η²Nσ²/M: more voters divide the noise, not the time",
    CORRECTED,
)


def _check_second_theorem(count: int, seed: int) -> Iterator[Finding]:
    voters = np.array(VOTERS)[:, None]
    for claim, exchange in SECOND_THEOREM.items():
        needed = rounds_by_voters(count, seed, exchange)
        tried = (voters > 1) & np.isfinite(needed[0])
        yield claim.judge([_yes(tried, needed <= np.ceil(2 * needed[0] / voters))], [EASY_SIZE])
    random = np.random.default_rng([seed, 7])
    judged = []
    for size in WALK_SIZES:
        quadratics = stack([random_quadratic(random, size) for _ in range(count)])
        aux = -quadratics.best * random.random((count, WALK_STARTS, size))
        judged += [noisy_step(random, quadratics, aux, number) for number in VOTERS]
    yield LESS_NOISE.judge(judged, [size for size in WALK_SIZES for _ in VOTERS])


def noisy_step(random: np.random.Generator, quadratics: Quadratic, aux: Array, voters: int) -> Judged:
    """Lemma 3.2 on average over many averaged updates of M clients who stand at the same W̄; η = φ_C/2."""
    starts = lemmas.judged_from(quadratics, aux)
    phi = lemmas.form_c(quadratics, starts)
    eta, beta = phi / 2, quadratics.beta
    deviation = descent.NOISE * beta / np.sqrt(voters)  # the mean of M independent Gaussians is one Gaussian
    noise = deviation[..., None] * random.normal(size=(DRAWS, *aux.shape))
    after = lemmas.norm(np.clip(aux - eta[..., None] * (starts.gradient + noise), -1, 1) - quadratics.best) ** 2
    before = lemmas.norm(aux - quadratics.best) ** 2
    allowed = before - 4 * (phi - eta) * eta * beta * quadratics.xi * starts.differ + eta**2 * aux.shape[-1] * deviation**2
    chance = 5 * after.std(axis=0) / np.sqrt(DRAWS)  # what DRAWS samples may be off by
    return Judged((phi > lemmas.TOLERANCE / beta) & (starts.growth > 1), (allowed - after.mean(axis=0) + chance) / before)
