"""The attacks of `benchmarks/class_inference.py` find what is there to be found, and nothing in noise."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bifl.core.layout import Layout, Tensor
from bifl.experiment.settings import Experiment

SHADOWS, TARGETS, CLASSES = 60, 40, 5
NOISE = 0.12  # of an AUC of 200 pairs: three deviations


def script(name: str) -> Any:
    """A module of the benchmarks, which are scripts in a folder of their own."""
    spec = spec_from_file_location(f"benchmark_{name}", Path(__file__).parents[2] / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


curious, watched = script("curious"), script("watched")


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_auc_is_the_share_of_pairs_in_the_right_order(answers: list[tuple[int, bool]]) -> None:
    scores, truth = [score for score, _ in answers], [held for _, held in answers]
    pairs = list(product([s for s, held in answers if held], [s for s, held in answers if not held]))
    right = sum(one > other for one, other in pairs) + 0.5 * sum(one == other for one, other in pairs)
    assert curious.auc(scores, truth) == pytest.approx(right / len(pairs) if pairs else np.nan, nan_ok=True)


def told(dice: np.random.Generator, loudness: float) -> tuple[Any, Any, Any]:
    """Features of clients, in which the numbers of their images are hidden, and these numbers."""
    images = dice.integers(0, 2, (SHADOWS + TARGETS, CLASSES)) * dice.integers(1, 30, (SHADOWS + TARGETS, CLASSES))
    features = dice.normal(size=(len(images), 300)) + loudness * np.log1p(images) @ dice.normal(size=(CLASSES, 300))
    source = curious.Source(features[:SHADOWS], features[SHADOWS:])
    return source, images[:SHADOWS].astype(float), images[SHADOWS:] > 0


def test_a_planted_signal_is_found_and_none_in_noise() -> None:
    dice = np.random.default_rng(0)
    loud, known, truth = told(dice, 0.2)
    assert curious.auc(curious.learnt([loud], [], known), truth) > 0.95
    for seed in range(3):
        silent, known, truth = told(np.random.default_rng(seed), 0.0)
        assert curious.auc(curious.learnt([silent], [], known), truth) == pytest.approx(0.5, abs=NOISE)


def test_a_hint_is_used_whichever_way_it_points() -> None:
    dice = np.random.default_rng(1)
    silent, known, truth = told(dice, 0.0)
    hint = curious.Source(*(-1.0 * (held > 0) + dice.normal(0, 0.3, held.shape) for held in (known, truth)))
    assert curious.auc(curious.learnt([silent], [hint], known), truth) > 0.95


def test_no_guess_of_a_shadow_client_comes_from_itself() -> None:
    """There are more features than clients: whoever guesses with what was learnt from the same client is always right."""
    silent, known, _ = told(np.random.default_rng(2), 0.0)
    guesses = curious.guessed(silent, np.log1p(known)).shadows
    assert curious.auc(guesses, known > 0) == pytest.approx(0.5, abs=NOISE)


def test_one_number_a_class_is_read_where_it_lies() -> None:
    specs = (Tensor("norm.weight", (3,)), Tensor("norm.bias", (3,)))
    layout = Layout(
        ("scores",), (Tensor("scores.weight", (3, 4), 0), Tensor("scores.bias", (3,), 0)), specs, (Tensor("norm", (3,)),)
    )
    rows = np.array([[1.0, 1, 1, 1], [1, 1, 1, 1], [-1, 1, -1, 1]])
    weights = np.append(rows.ravel(), [9, 9, 9])[None]
    real = np.array([[7, 1, 2, 3, 4, 5, 6]])  # ϑ, γ, β
    moments = np.array([[1, 1, 1, 2, 3, 4]])
    found = curious.simple(layout, weights, real.astype(float), moments.astype(float))
    assert found["γ"].tolist() == [[1, 2, 3]]
    assert found["β"].tolist() == [[4, 5, 6]]
    assert found["variance"].tolist() == [[1, 2, 3]]
    assert found["rows"].argmax() == 2
    fixed = Layout(layout.layers, layout.coded, (), layout.moments)
    assert set(curious.simple(fixed, weights, real[:, :1].astype(float), moments.astype(float))) == {"rows", "variance"}


def test_shadow_clients_are_heard_and_not_counted(small: Path) -> None:
    data = {"name": "npz", "path": str(small)}
    experiment = Experiment(
        algorithm="biml", dataset=data, model="mlp", clients=4, workers=1, partition="by_class", batch=32
    ).changed({"partition.classes_per_client": 5})
    few, many = (list(watched.watch(experiment, [1, 2], deals)) for deals in (1, 2))
    for one, other in zip(few, many, strict=True):
        assert all(np.array_equal(*parts) for parts in zip(one.targets, other.targets, strict=True))
        assert (len(one.shadows.images), len(other.shadows.images)) == (4, 8)
    assert few[0].targets.images.sum() > 0
    both = few[1].targets.summed([np.array([0, 1])])
    np.testing.assert_allclose(both.weights[0], few[1].targets.weights[:2].mean(0))
