"""The theory's checks can fail: each claim against another way to compute it, each counter-example, each picture."""

from __future__ import annotations

import io
from fractions import Fraction
from itertools import count, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from rich.console import Console
from torch import nn

from bifl.core import rules
from bifl.nn.models import mnist_cnn
from studies import theory
from studies.theory import curves, descent, exact, findings, lemmas, quadratics
from studies.theory.findings import CORRECTED, FALSE, HOLDS, Finding
from studies.theory.quadratics import Array, Quadratic

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def found() -> dict[str, Finding]:
    return {finding.claim: finding for finding in theory.check(cases=200, seed=1)}


# ---- quadratics ------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=st.integers(1, 9))
def test_brute_force_finds_the_best_vertex(seed: int, size: int) -> None:
    quadratic = quadratics.random_quadratic(np.random.default_rng(seed), size)
    assert len(quadratics.vertices(size)) == 2**size
    one_by_one = min(float(quadratic.value(np.array(vertex))) for vertex in product((-1.0, 1.0), repeat=size))
    assert set(quadratic.best) <= {-1, 1}
    assert quadratic.value(quadratic.best) == pytest.approx(one_by_one, rel=1e-9, abs=1e-12)


def test_a_large_one_has_no_better_neighbour() -> None:
    quadratic = quadratics.random_quadratic(np.random.default_rng(3), 20)
    flips = quadratic.best * np.where(np.eye(20) + np.eye(20, k=1) > 0, -1.0, 1.0)  # one weight, or two side by side
    assert np.all(quadratic.value(flips) >= quadratic.value(quadratic.best))


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=st.integers(1, 12))
def test_a_random_quadratic_is_as_convex_and_smooth_as_it_says(seed: int, size: int) -> None:
    quadratic = quadratics.random_quadratic(np.random.default_rng(seed), size)
    eigenvalues = np.linalg.eigvalsh(quadratic.matrix)
    assert eigenvalues[[0, -1]] == pytest.approx([float(quadratic.xi), float(quadratic.beta)], rel=1e-9)
    assert 1 <= quadratic.beta / quadratic.xi <= quadratics.MOST_CONDITION + 1e-9


def test_the_gradient_is_the_slope_of_the_value() -> None:
    random = np.random.default_rng(0)
    quadratic = quadratics.random_quadratic(random, 5)
    point = random.normal(size=5)
    slopes = [(quadratic.value(point + step) - quadratic.value(point - step)) / 2e-4 for step in 1e-4 * np.eye(5)]
    assert quadratic.gradient(point) == pytest.approx(np.array(slopes), rel=1e-6, abs=1e-8)


def test_a_stack_is_its_quadratics() -> None:
    random = np.random.default_rng(0)
    alone = [quadratics.random_quadratic(random, 4) for _ in range(3)]
    aux = random.uniform(-1, 1, (3, 5, 4))
    together = lemmas.form_c(quadratics.stack(alone), lemmas.judged_from(quadratics.stack(alone), aux))
    assert together == pytest.approx(
        np.stack([lemmas.form_c(q, lemmas.judged_from(q, a)) for q, a in zip(alone, aux, strict=True)])
    )


# ---- lemmas ----------------------------------------------------------------------------------------------------------


@given(
    aux=arrays.arrays(np.float64, st.integers(1, 12), elements=st.floats(-1, 1)),
    corner=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_the_corrected_angle_holds_in_the_box(aux: Array, corner: list[bool]) -> None:
    target = np.where(corner[: len(aux)], 1.0, -1.0)
    jump, way = np.where(aux > 0, 1.0, -1.0) - target, aux - target
    differ = np.count_nonzero(jump)
    if differ:
        cosine = jump @ way / (np.linalg.norm(jump) * np.linalg.norm(way))
        assert cosine >= lemmas.true_cosine(np.array(float(differ)), len(aux)) - 1e-9


@pytest.mark.parametrize(("differ", "size", "extreme"), [(1, 3, 0), (2, 3, 0), (3, 3, 1), (9, 12, 1), (12, 12, 4)])
def test_the_corrected_angle_is_attained(differ: int, size: int, extreme: int) -> None:
    way = np.array([2.0] * extreme + [1.0] * (differ - extreme) + [1.0] * (size - differ))  # |W̄ − V|: at its ends in each cell
    cosine = way[:differ].sum() / np.sqrt(differ) / np.linalg.norm(way)
    assert cosine == pytest.approx(float(lemmas.true_cosine(np.array(float(differ)), size)), abs=1e-12)


def one_step(quadratic: Quadratic, starts: lemmas.Starts, aux: Array, phi: Array, share: float) -> Array:
    """How much of Lemma 3.2's inequality is left for η = share·φ, straight from its text."""
    eta = share * phi
    after = np.sum((aux - eta[:, None] * starts.gradient - quadratic.best) ** 2, axis=1)
    before = np.sum((aux - quadratic.best) ** 2, axis=1)
    return np.asarray(before - 4 * (phi - eta) * eta * quadratic.beta * quadratic.xi * starts.differ - after)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, share=st.floats(0.001, 0.999))
def test_the_corrected_step_helps(seed: int, share: float) -> None:
    random = np.random.default_rng(seed)
    quadratic = quadratics.random_quadratic(random)
    starts = lemmas.random_starts(random, quadratic, 32)
    phi = lemmas.form_c(quadratic, starts)
    left = one_step(quadratic, starts, starts.aux, phi, share)
    assert np.all(left[(phi > 0) & (starts.growth > 1)] > -1e-9)


def test_both_ends_of_the_interval_tell_of_all_steps() -> None:
    random = np.random.default_rng(0)
    seen = 0
    for _ in range(100):
        quadratic = quadratics.random_quadratic(random)
        starts = lemmas.random_starts(random, quadratic, 32)
        judged = lemmas.step_helps(quadratic, starts, starts.aux, lemmas.form_b)
        phi = lemmas.form_b(quadratic, starts)
        tried = [one_step(quadratic, starts, starts.aux, phi, share) for share in (1e-6, 0.25, 0.5, 0.75, 1 - 1e-6)]
        some_step_fails = np.any(np.stack(tried) < -1e-6 * np.abs(phi), axis=0)
        assert not np.any(some_step_fails & judged.applies & ~judged.broken)
        seen += int((some_step_fails & judged.broken).sum())
    assert seen > 100


def test_no_point_of_a_cell_is_worse_than_the_worst() -> None:
    random = np.random.default_rng(0)
    quadratic = quadratics.random_quadratic(random, 8)
    starts = lemmas.random_starts(random, quadratic, 500)
    gains = [np.sum(starts.gradient * (aux - quadratic.best), axis=1) for aux in (lemmas.worst_in_cell(starts), starts.aux)]
    assert np.all(gains[0] <= gains[1] + 1e-9)


# ---- counter-examples ------------------------------------------------------------------------------------------------


def test_printed_claims_have_their_counter_examples() -> None:
    for example in (exact.narrow_angle, exact.wrong_growth, exact.misleading_step, exact.long_step, exact.never_done):
        assert example(), example.__name__
    assert "cos = 0.9499" in str(exact.narrow_angle())
    assert findings.identical_clients()


def test_a_point_that_breaks_nothing_is_no_counter_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "NARROW_ANGLE", (exact.numbers("-1", "-1"), exact.numbers("1", "1")))
    monkeypatch.setattr(exact, "MISLEADING_STEP", exact.MISLEADING_STEP._replace(centre=exact.numbers("1", "9/10", "9/10")))
    monkeypatch.setattr(exact, "LONG_ETA", Fraction(1, 10))
    monkeypatch.setattr(exact, "NEVER_DONE", exact.NEVER_DONE._replace(centre=exact.numbers("1/2", "1/3", "1/3")))
    for example in (exact.narrow_angle, exact.misleading_step, exact.long_step, exact.never_done):
        assert example() is None, example.__name__


@pytest.mark.parametrize(("bowl", "form"), [(exact.MISLEADING_STEP, lemmas.form_a), (exact.LONG_STEP, lemmas.form_b)])
def test_exact_and_floating_arithmetic_agree(bowl: exact.Bowl, form: lemmas.Step) -> None:
    centre, beta = np.array(bowl.centre, float), np.asarray(float(bowl.beta))
    matrix = beta * np.eye(len(centre))
    quadratic = Quadratic(matrix, centre, beta, beta, quadratics.best_vertex(matrix, centre))
    starts = lemmas.judged_from(quadratic, np.array([bowl.aux], float))
    assert tuple(quadratic.best) == bowl.best
    assert lemmas.step_helps(quadratic, starts, starts.aux, form).broken.all()
    assert not lemmas.step_helps(quadratic, starts, starts.aux, lemmas.form_c).broken.any()


# ---- findings --------------------------------------------------------------------------------------------------------


def test_what_holds_and_what_does_not(found: dict[str, Finding]) -> None:
    for claim, finding in found.items():
        expected = CORRECTED if "corrected" in claim else HOLDS if claim in {"Lemma 1", "Lemma 2.1"} else FALSE
        assert finding.verdict == expected, claim
        assert 0 <= finding.violations <= finding.applicable <= finding.cases, claim
        assert (finding.violations == 0) or expected == FALSE, claim
        assert bool(finding.counterexample) == (expected == FALSE), claim
    assert found["Lemma 3.2, corrected"].applicable > 0.3 * found["Lemma 3.2, corrected"].cases
    assert found["Lemma 3.2, form A, worst W̄"].violations > 0


def test_the_seed_alone_decides() -> None:
    assert theory.check(cases=5, seed=7) == theory.check(cases=5, seed=7)
    assert theory.check(cases=5, seed=7)[2] != theory.check(cases=5, seed=8)[2]


def test_no_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="one case"):
        theory.check(cases=0)


def test_a_broken_claim_without_an_exact_example_names_the_smallest_case() -> None:
    broken, fine = (lemmas.Judged(np.array([True]), np.array([margin])) for margin in (-1.0, 1.0))
    finding = findings.Claim("c", "s").judge([broken, fine, broken], [5, 1, 3])
    assert finding == Finding("c", "s", 3, 3, 2, "random quadratic 2, N = 3", FALSE)


# ---- theorems --------------------------------------------------------------------------------------------------------


def test_a_walk_is_the_update_of_the_paper() -> None:
    quadratic = quadratics.random_quadratic(np.random.default_rng(0), 6)
    aux = -0.5 * quadratic.best[None]
    path = descent.walk(quadratic, aux, np.array([0.05 / quadratic.beta]), 3, lemmas.form_c)
    for distance in path.distance:
        assert distance == pytest.approx(np.sum((aux - quadratic.best) ** 2, axis=1))
        aux = np.clip(aux - 0.05 / quadratic.beta * quadratic.gradient(np.where(aux > 0, 1.0, -1.0)), -1, 1)


def test_without_noise_more_voters_change_nothing_unless_they_add_up() -> None:
    for exchange in (descent.averaged, descent.voted):
        needed = findings.rounds_by_voters(3, 0, exchange, noise=0.0)
        assert np.all(needed == needed[0])
    added = findings.rounds_by_voters(3, 0, descent.summed, noise=0.0)
    assert np.all(added[1] < 0.7 * added[0])


def test_steady_means_steady() -> None:
    """The majority is right in rounds 4 to 9 and 13 to 25, if it is ever: the first time is too short."""
    quadratic = findings.easy_quadratics(2, 0)
    rounds = count(1)

    def scripted(before: Array, moves: Array, after: Array) -> Array:
        right = np.array([next(rounds) in {*range(4, 10), *range(13, 26)}, False])
        return np.asarray(np.where(right[:, None, None], 1, -1) * quadratic.best, np.float64)

    assert np.all(descent.floor(quadratic) + 1 <= quadratic.best.shape[-1]), "all wrong is not small"
    found = descent.rounds_needed(np.random.default_rng(0), quadratic, 1, scripted, limit=30)
    assert found == pytest.approx([13, np.nan], nan_ok=True)


# ---- ML-PU, tables, pictures -----------------------------------------------------------------------------------------


def test_the_curves_of_ml_pu() -> None:
    drawn = curves.ml_pu_curves()
    q = np.sqrt(drawn.location**2 + 4)
    assert drawn.location * (q - drawn.location) / 2 == pytest.approx(drawn.ratio, abs=1e-12)
    assert drawn.ratio_fit == pytest.approx(rules.FIT, abs=4e-3)
    assert np.abs(drawn.printed - drawn.ratio).max() < 0.2
    assert np.abs(drawn.printed - drawn.location).max() > 4


def test_the_tables_name_everything(found: dict[str, Finding]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(theory.table(found.values()))
    console.print(theory.statement_table(found.values()))
    console.print(theory.misprint_table())
    text = console.export_text()
    assert all(text.count(claim) >= 2 for claim in found)
    assert all(misprint.place in text for misprint in theory.MISPRINTS)


def test_the_page_has_every_claim_and_misprint(found: dict[str, Finding], tmp_path: Path) -> None:
    text = theory.write(list(found.values()), "about", [tmp_path / "a.png"], tmp_path).read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * (2 + len(found)) + 2 + len(theory.MISPRINTS)
    assert {row.replace("\\|", "").count("|") for row in rows} == {4, 5, 6}
    assert "W\\*" in text
    assert " W*" not in text
    assert "![a](a.png)" in text


def test_the_numbers_of_the_misprints() -> None:
    text = {misprint.place: " ".join(misprint) for misprint in theory.MISPRINTS}
    drawn = curves.ml_pu_curves()
    errors = [np.sqrt(np.mean((drawn.printed - exact) ** 2)) for exact in (drawn.ratio, drawn.location)]
    numbers = {
        "§3 constants": [
            f"{value:.3f}".replace("-", "−") for value in (drawn.printed[0], drawn.ratio[0], drawn.location[0], *errors)
        ],
        "§3 exponent": [f"{drawn.ratio[69]:.3f}"],
        "§4 FEMNIST MB": [f"{6_608_026 * 4 * clients / 1e6:.{digits}f}" for clients, digits in ((10, 2), (89, 1))],
        "§4 CelebA MB": [f"{31_078 * 4e-4:.2f}", f"{31_078 * 32e-4:.2f}", f"{31_078e-4 * np.log2(101):.1f}"],
        "§4 batch-norm": [
            str(sum(layer.num_features for layer in mnist_cnn(10).modules() if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))))
        ],
    }
    for place, expected in numbers.items():
        assert all(number in text[place] for number in expected), (place, expected)


def test_the_pictures_are_small(tmp_path: Path) -> None:
    paths = theory.draw(tmp_path, runs=2)
    assert [path.name for path in paths] == ["theory-decay.png", "theory-voters.png", "ml-pu.png"]
    assert all(1000 < path.stat().st_size < 100_000 for path in paths)
