"""Runs with `privacy=`: what is sent, what is recorded, how they end; in simulator and loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl import codec
from bifl.core.message import BINARY, FLOAT32
from bifl.core.rotation import rotated_length
from bifl.data.arrays import from_npz
from bifl.data.datasets import dataset
from bifl.data.inputs import Dataset
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.errors import ConfigError, RunError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.privacy.mechanism import INSTEAD, numbers
from bifl.report.remarks import remarks
from bifl.report.summary import settings as grouped
from bifl.runs.folder import ended_early, ending_of
from bifl.runs.record import Ending
from bifl.runs.results import read
from tests.support.commands import Run, rounds
from tests.support.federation import named, quick, simulated

BITS: dict[str, Any] = {"privacy": {"name": "poisson_binomial", "theta": 0.2}}
NOISE: dict[str, Any] = {"privacy": "gaussian"}


def private(small: Path, **settings: Any) -> Experiment:
    """A small network, so that rounds are quick."""
    usual = {"algorithm": "fedavg", "batchnorm": "average", "model": {"name": "mlp", "hidden": 4}, "rounds": 2}
    return quick(small, **usual | settings)


# ---- in simulations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [BITS, NOISE, BITS | {"algorithm": "fedavgm", "participation": 0.7, "clients": 4}], ids=str)
def test_simulator_loop_and_secure_sum_agree(small: Path, how: dict[str, Any]) -> None:
    experiment = private(small, **how)
    simulation = simulate(experiment)
    records = list(simulation)
    for changes in ({}, {"secure_sum": True}):
        *_, (_, public) = loop(experiment.changed(changes))
        assert public.weights.tobytes() == simulation.public.weights.tobytes()
        assert public.real.tobytes() == simulation.public.real.tobytes()
    first, second = (record.epsilon for record in records)
    assert first is not None
    assert second is not None
    assert 0 < first < second
    assert np.isnan(records[0].train_loss)


@pytest.mark.parametrize(("how", "alphabet"), [(BITS, BINARY), (NOISE, FLOAT32)])
def test_nothing_is_sent_that_is_not_accounted(tmp_path: Path, small: Path, how: dict[str, Any], alphabet: object) -> None:
    """A message holds the bounded update, as bits or clipped; its weight is 1, its reals are the public ones."""
    experiment = private(small, rounds=1, partition="quantity", reals="float32", **how)
    setup = build(experiment)
    assert len({len(part) for part in setup.parts}) > 1
    folder = simulated(tmp_path / "run", experiment)
    length = numbers(setup.public.layout)
    ballot = setup.run.exchanges[0]
    for path in sorted((folder / "messages/round-00001").glob("ballot-0*")):
        message = codec.decode(path.read_bytes(), ballot.context(setup.public))
        assert message.weight == 1
        assert message.real.tobytes() == setup.public.real.tobytes()
        assert not len(message.update.scales)
        assert message.update.alphabet == alphabet
        assert len(message.update.symbols) == (rotated_length(length) if alphabet == BINARY else length)
        if alphabet == FLOAT32:
            assert np.linalg.norm(message.update.symbols) <= 1 + 1e-6
    rows = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    assert {(row["images"], row["train_loss"]) for row in rows[0].get("clients", rows)} == {(1, None)}


def test_a_training_that_diverges_is_not_told(small: Path) -> None:
    """It counts as no change: the round goes on, and the model stays finite."""
    simulation = simulate(private(small, rounds=1, lr=1e30, optimizer="sgd", **NOISE))
    (record,) = simulation
    assert record.clients == 3
    assert np.isfinite(simulation.public.weights).all()


@pytest.mark.parametrize("how", [BITS, NOISE])
def test_a_run_that_goes_on_has_spent_what_it_had(tmp_path: Path, small: Path, how: dict[str, Any]) -> None:
    experiment = private(small, rounds=3, **how)
    whole = [record.epsilon for record in simulate(experiment)]
    begun = simulate(experiment, folder=tmp_path)
    assert next(iter(begun)).epsilon == whole[0]
    begun.close()
    assert [record.epsilon for record in simulate(experiment, folder=tmp_path)] == whole[1:]


def test_a_budget_ends_the_run(tmp_path: Path, small: Path, here: Run) -> None:
    costs = [record.epsilon for record in simulate(private(small, rounds=3, **NOISE))]
    budget = (costs[1] + costs[2]) / 2  # type: ignore[operator]
    words = ["dataset=npz", f"dataset.path={small}", "algorithm=fedavg", "batchnorm=average", "model=mlp", "model.hidden=4"]
    words += ["clients=3", "rounds=9", "workers=1", "batch=32", "privacy=gaussian", f"privacy.budget={budget}"]
    words.append("evaluate_every=5")  # the last round is evaluated all the same
    done = here("run", *words, "--out", tmp_path / "run")
    assert done.returncode == 0
    before = rounds(tmp_path / "run")
    assert [(line["loss"] is None, line.get("ending")) for line in before] == [(True, None), (False, "budget")]
    assert (tmp_path / "run/model").is_file()
    assert "the run ends after round 2 of 9: ε = " in done.stdout
    assert "ε = " in done.stdout.split("privacy")[1]
    again = here("run", "--resume", tmp_path / "run")
    assert (again.returncode, rounds(tmp_path / "run")) == (0, before)
    assert "the run ends after round 2 of 9: ε = " in again.stdout
    (result,) = read([tmp_path / "run"]).results
    assert ending_of(result.experiment, result.records) is Ending.BUDGET
    (setting,) = grouped([result])
    assert any(f"ε = {costs[1]:.3g} for δ = 1e-05 after 2 rounds" in remark for remark in remarks(setting.series))


def test_a_comparison(tmp_path: Path, small: Path, here: Run) -> None:
    words = ["dataset=npz", f"dataset.path={small}", "batchnorm=average", "model=mlp", "model.hidden=4", "clients=3", "rounds=1"]
    done = here("compare", "algorithms=fedavg,fedavgm", *words, "workers=1", "privacy=gaussian", "--out", tmp_path / "both")
    assert done.returncode == 0, done.stderr
    spent = [rounds(path.parent)[0]["epsilon"] for path in (tmp_path / "both").glob("*/rounds.jsonl")]
    assert len(spent) == 2
    assert spent[0] == spent[1] > 0


def test_a_budget_that_allows_nothing(small: Path) -> None:
    with pytest.raises(ConfigError, match=r"privacy.budget=0.1 is less than one round of 3 clients costs, ε = "):
        list(simulate(private(small, privacy={"name": "gaussian", "budget": 0.1})))


@pytest.mark.parametrize("algorithm", named(INSTEAD))
def test_those_that_a_refusal_names_instead_are_private(small: Path, algorithm: str) -> None:
    assert build(private(small, algorithm=algorithm, **NOISE)).run.privacy is not None


def test_a_run_without_a_budget_did_not_end_early(small: Path) -> None:
    experiment = private(small, rounds=9, **NOISE)
    assert ended_early(experiment, [next(iter(simulate(experiment)))]) is None


def test_data_without_test_images_is_refused(small: Path) -> None:
    def no_tests() -> Dataset:
        data = from_npz(small)
        return data._replace(test_inputs=data.test_inputs[:0], test_labels=data.test_labels[:0])

    dataset(no_tests)
    with pytest.raises(ConfigError, match="the server needs test images of its own"):
        build(private(small, **NOISE).changed({"dataset": "no_tests"}))


OWN = '''
import numpy as np
from bifl.core import FLOAT32
from bifl.privacy import Mechanism, privacy
from bifl.privacy.accounting import ORDERS

@privacy
def all_of_it(delta: float = 1e-5) -> Mechanism:
    """Hides nothing, and says so."""
    return Mechanism(
        clip=1.0, delta=delta, says=lambda update, public, words: update, alphabet=FLOAT32,
        hears=lambda mean, clients, public, words: mean, divergences=lambda summed, crowd, count: np.full(len(ORDERS), 1000.0),
    )
'''


def test_a_mechanism_of_one_s_own(tmp_path: Path, small: Path) -> None:
    """One file, in two worker processes too."""
    (tmp_path / "mine.py").write_text(OWN)
    for workers in (1, 2):
        (record,) = simulate(private(small, rounds=1, privacy=f"{tmp_path}/mine.py:all_of_it", workers=workers))
        assert record.epsilon == pytest.approx(1000, rel=0.2)


def test_a_checkpoint_that_does_not_tell_what_was_spent_is_refused(tmp_path: Path, small: Path) -> None:
    """It would begin to count anew."""
    experiment = private(small, rounds=2, **NOISE)
    begun = simulate(experiment, folder=tmp_path)
    next(iter(begun))
    begun.close()
    path = tmp_path / "server.npz"
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files if name != "state summed"}
    np.savez(path, **arrays)
    with pytest.raises(RunError, match="tells what 0 of 1 rounds have cost"):
        simulate(experiment, folder=tmp_path)
