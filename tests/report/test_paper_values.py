"""The paper's tables as data."""

from __future__ import annotations

import pytest

from bifl.experiment.settings import Experiment
from bifl.report import paper_values


def test_every_printed_cell_is_found_again() -> None:
    assert len(paper_values.CELLS) == 9 * 3 + 4 * 4
    for cell, printed in paper_values.CELLS.items():
        assert paper_values.value(paper_values.experiment_of(cell)) == printed


@pytest.mark.parametrize(
    ("preset", "overrides", "mean"),
    [
        ("mnist-iid", ["seed=4", "rounds=7", "workers=1", "wire=packed", "batchnorm=average", "reals=float32"], 97.17),
        ("mnist-iid", ["algorithm=biml_fit"], 97.17),
        ("mnist-nc3", ["algorithm=up_down"], 73.26),
        ("femnist-noniid", ["dataset.path=elsewhere"], 60.38),
        ("mnist-iid", ["participation=0.3"], None),
        ("mnist-iid", ["clients=50"], None),
        ("mnist-iid", ["lr=0.001"], None),
        ("mnist-iid", ["algorithm=up_only", "algorithm.beta=0.5"], None),
        ("mnist-nc3", ["algorithm=full"], None),
        ("femnist-iid", ["algorithm.alpha=1.25"], None),
        ("mnist5k-iid", [], None),
    ],
)
def test_a_run_is_a_cell_or_it_is_not(preset: str, overrides: list[str], mean: float | None) -> None:
    value = paper_values.value(Experiment.of(preset, overrides))
    assert (value and value.mean) == mean


def test_the_printed_order_is_the_printed_values() -> None:
    for better, worse in zip(paper_values.ORDER, paper_values.ORDER[1:], strict=False):
        printed = [[paper_values.CELLS[paper_values.Cell("mnist-iid", name)].mean for name in tier] for tier in (better, worse)]
        assert min(printed[0]) > max(printed[1])
