"""start=MODEL: a run that begins with a model file; what does not fit is refused, and its identity is the file's contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bifl
from bifl.deploy.client.operator_choices import permitted
from bifl.deploy.protocol import Refusal
from bifl.engine.loop import loop
from bifl.engine.round import run_folder
from bifl.engine.simulator import simulated_clients
from bifl.errors import BiflError, ConfigError
from bifl.experiment import config_file
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment, identity
from bifl.experiment.setup import build
from bifl.nn.models import model
from bifl.runs.folder import RunFolder
from bifl.runs.record import Record
from studies import keeping
from tests.support.federation import deploy, neighbours, quick, same, simulated
from tests.support.grid import Clock
from tests.support.workers import beside

SMALL: dict[str, Any] = {"algorithm": "biml", "clients": 4, "rounds": 2, "workers": 1, "model": {"name": "mlp", "hidden": 8}}
ALGORITHMS = ("biml", "fedavg", "fttq")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained model of each kind: binary, real and ternary."""
    folder = tmp_path_factory.mktemp("models")
    for name in ALGORITHMS:
        simulation = bifl.simulate(Experiment(**SMALL | {"algorithm": name}))
        list(simulation)
        simulation.model().save(folder / name)
    return {name: folder / name for name in ALGORITHMS}


def test_a_run_begins_as_good_as_its_model(models: dict[str, Path]) -> None:
    for algorithm, forward in (("biml", "binary"), ("fedavg", "real")):
        setup = build(Experiment(**SMALL | {"algorithm": algorithm}, start=str(models[algorithm])))
        first = Model.of(setup.run, setup.data, setup.public, setup.run.algorithm.at(1).forward)
        known = Model.read(models[algorithm])
        assert known.forward.name == forward
        (metrics, loss), (known_metrics, known_loss) = first.metrics(setup.data), known.metrics(setup.data)
        assert (metrics["accuracy"], loss) == pytest.approx((known_metrics["accuracy"], known_loss), abs=1e-6)
        assert np.array_equal(first.message.update.symbols, known.message.update.symbols)


@pytest.mark.parametrize("theirs", ALGORITHMS)
@pytest.mark.parametrize("ours", ALGORITHMS)
def test_every_kind_of_model_starts_every_kind_of_run(models: dict[str, Path], ours: str, theirs: str) -> None:
    cold, warm = (build(Experiment(**SMALL | {"algorithm": ours}, start=start)).public for start in ("", str(models[theirs])))
    assert cold.weights.shape == warm.weights.shape
    assert cold.real.shape == warm.real.shape
    agreed = float(np.mean((cold.weights > 0) == (warm.weights > 0)))
    assert agreed < 0.99  # it is another
    assert np.isfinite(warm.weights).all()
    if ours == "biml":
        assert np.abs(warm.weights).max() <= 1


SLEEPERS = {"participation": 0.5, "idle": "sleep"}


@pytest.mark.parametrize("settings", [{}, SLEEPERS, {"algorithm": "fedavg"}], ids=str)
def test_a_warm_start_is_the_same_in_every_runtime(models: dict[str, Path], settings: dict[str, Any], tmp_path: Path) -> None:
    experiment = Experiment(**SMALL | {"rounds": 3, "start": str(models["biml"])} | settings)
    *_, (_, public) = loop(experiment)
    alone, two = (beside(experiment.changed({"workers": workers})) for workers in (1, 2))
    records = list(alone), list(two)
    assert [record._replace(seconds=0) for record in records[0]] == [record._replace(seconds=0) for record in records[1]]
    assert alone.public.weights.tobytes() == two.public.weights.tobytes() == public.weights.tobytes()
    for rounds in (1, 3):  # continued
        resumed = bifl.simulate(experiment.changed({"rounds": rounds}), folder=tmp_path / "state")
        list(resumed)
    assert resumed.public.weights.tobytes() == public.weights.tobytes()


@pytest.mark.parametrize("settings", [{}, SLEEPERS], ids=str)
def test_nodes_are_sent_what_a_server_starts_with(
    models: dict[str, Path], settings: dict[str, Any], tmp_path: Path, clock: Clock, small: Path
) -> None:
    experiment = quick(small, **SMALL | {"rounds": 3, "start": str(models["biml"])} | settings)
    deploy(neighbours(tmp_path, 4), tmp_path / "deployed", experiment)
    same(simulated(tmp_path / "simulated", experiment), tmp_path / "deployed")
    first, cold = (simulate_first(one) for one in (experiment, experiment.changed({"start": ""})))
    taking_part = 2 if settings else 4
    assert first.down_bytes - cold.down_bytes > 4 * taking_part * build(experiment).public.layout.parameters  # all floats, to each


def simulate_first(experiment: Experiment) -> Record:
    return next(iter(bifl.simulate(experiment)))


def test_what_a_run_began_with_is_its_contents(models: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    copy.write_bytes(models["biml"].read_bytes())
    one, other = (Experiment(**SMALL, start=str(path)) for path in (models["biml"], copy))
    assert one.start.startswith(f"{models['biml']}@")
    assert one != other
    assert identity(one) == identity(other)
    assert keeping.name(one) == keeping.name(other) != keeping.name(Experiment(**SMALL))
    assert config_file.parse(config_file.to_toml(one)) == one
    folder = RunFolder.start(tmp_path / "run", other.changed({"rounds": 1}))
    list(run_folder(folder, build(other.changed({"rounds": 1})), simulated_clients))
    copy.write_bytes(models["fedavg"].read_bytes())
    with pytest.raises(ConfigError, match="is another model than the one that was given"):
        build(other)


def test_a_run_goes_on_without_the_model_that_it_began_with(models: dict[str, Path], tmp_path: Path) -> None:
    """The checkpoint has everything, once a round is complete."""
    copy = tmp_path / "elsewhere"
    copy.write_bytes(models["biml"].read_bytes())
    experiment = Experiment(**SMALL, start=str(copy))
    whole = RunFolder.start(tmp_path / "whole", experiment)
    list(run_folder(whole, build(experiment), simulated_clients))
    first = RunFolder.start(tmp_path / "run", experiment.changed({"rounds": 1}))
    list(run_folder(first, build(first.experiment), simulated_clients))
    RunFolder.start(tmp_path / "begun", experiment)
    copy.unlink()
    again = RunFolder.resume(tmp_path / "run", {"rounds": "2"})
    list(run_folder(again, build(again.experiment), simulated_clients))
    assert again.model.read_bytes() == whole.model.read_bytes()
    assert str(copy) in (tmp_path / "run/config.toml").read_text()
    with pytest.raises(ConfigError, match="cannot read model"):
        build(RunFolder.resume(tmp_path / "begun").experiment)


@model
def frozen_head(classes: int, value: float = 1.0) -> nn.Module:
    head = nn.Linear(8, classes)
    with torch.no_grad():
        head.weight.fill_(value)
    head.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.Tanh(), head)


def test_what_does_not_fit_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    good = models["biml"].read_bytes()
    (tmp_path / "text").write_text("no model")
    (tmp_path / "cut").write_bytes(good[:-30])
    (tmp_path / "large").write_bytes(good + bytes(3 * 10**6))
    for name, reason in {"text": "does not start with", "cut": "checksum", "large": "larger than any model"}.items():
        with pytest.raises(BiflError, match=reason):
            build(Experiment(**SMALL, start=str(tmp_path / name)))
    with pytest.raises(ConfigError, match=r"is no model of this run's network .*: give model= and its parameters"):
        build(Experiment(clients=4, start=str(models["biml"])))  # mnist_cnn
    with pytest.raises(ConfigError, match="names no file"):
        bifl.simulate(Experiment(**SMALL, start="@0123456789abcdef"))
    with pytest.raises(ConfigError, match="names no file"):
        RunFolder.start(tmp_path / "run", Experiment(**SMALL, start="@0123456789abcdef"))
    assert not (tmp_path / "run").exists()
    list(first := bifl.simulate(Experiment(**SMALL | {"model": "frozen_head"})))
    first.model().save(tmp_path / "frozen")
    build(Experiment(**SMALL | {"model": "frozen_head", "start": str(tmp_path / "frozen")}))
    with pytest.raises(ConfigError, match="other frozen parameters"):
        build(Experiment(**SMALL | {"model": {"name": "frozen_head", "value": 2.0}, "start": str(tmp_path / "frozen")}))


def test_a_client_opens_no_file_that_a_server_starts_with(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    assert permitted(f"start={tmp_path}/secret@0123456789abcdef", (), own_data=True).start == "@0123456789abcdef"
    with pytest.raises(Refusal, match="start must be a path and a digest"):
        permitted(f"start={tmp_path}/secret", (), own_data=True)
