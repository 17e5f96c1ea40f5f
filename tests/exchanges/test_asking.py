"""What clients are asked without training: counts of their inputs, and how a model does, the same in every runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl import codec
from bifl.core.layout import Layout, Tensor
from bifl.core.state import Client
from bifl.data.inputs import FLOATS, Form
from bifl.deploy.server.nodes import run_name
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.engine.worker import ClientTools, LocalSide
from bifl.errors import ConfigError, DataError, Refused
from bifl.exchanges.exchange import main_of
from bifl.exchanges.input_counts import normalised_by
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.nn.batch import Samples
from bifl.runs.folder import read_records
from tests.secure.test_secure_runs import nodes
from tests.support.commands import Run, refused
from tests.support.federation import deploy, neighbours, quick, same, simulated, spoiled, told
from tests.support.grid import Clock

ASKED: dict[str, Any] = {"exchange": "inputs", "algorithm": "fedavg", "rounds": 1}


def windows(folder: Path, deviation: float = 3.0) -> Path:
    """Samples of two channels, far from 0, and which class they are of."""
    dice = np.random.default_rng(0)
    labels = dice.integers(0, 3, 60)
    inputs = (dice.normal(0, deviation, (60, 2, 5)) + np.array([100.0, -7.0])[:, None]).astype(np.float32)
    np.savez(folder / "windows.npz", inputs=inputs, labels=labels, split=np.repeat([0, 1], [50, 10]).astype(np.uint8))
    return folder / "windows.npz"


@pytest.mark.parametrize("secure", [False, True])
def test_counts_are_those_of_all_samples(tmp_path: Path, secure: bool) -> None:
    path = windows(tmp_path)
    model = {"name": "mlp", "inputs": 10}
    experiment = Experiment(
        **ASKED, dataset={"name": "npz", "path": str(path)}, clients=5, model=model, secure_sum=secure, workers=1
    )
    (record,) = simulate(experiment)
    with np.load(path) as arrays:
        inputs, labels = arrays["inputs"][:50].astype(np.float64), arrays["labels"][:50]
    report = record.report
    assert report is not None
    assert (report["clients"], report["samples"], report["missing"]) == (5, 50, 0)
    assert [report[f"class {place}"] for place in range(3)] == np.bincount(labels).tolist()
    for channel in range(2):
        assert report[f"mean {channel}"] == pytest.approx(inputs[:, channel].mean(), abs=1e-6)
        assert report[f"std {channel}"] == pytest.approx(inputs[:, channel].std(), rel=1e-6)
    assert record.up_bytes > 0
    assert record.metrics is None


@pytest.mark.parametrize("secure", [False, True])
def test_missing_values_are_counted_and_nobody_trains_on_them(tmp_path: Path, secure: bool) -> None:
    path = windows(tmp_path)
    arrays = dict(np.load(path))
    arrays["inputs"][:10, 1, :2] = np.nan  # two of five values of a channel, in a fifth of the samples
    np.savez(path, **arrays)
    given: dict[str, Any] = {
        "dataset": {"name": "npz", "path": str(path)},
        "clients": 5,
        "model": {"name": "mlp", "inputs": 10},
        "workers": 1,
    }
    (record,) = simulate(Experiment(**ASKED, **given, secure_sum=secure))
    report, inputs = record.report, arrays["inputs"][:50, 1].astype(np.float64)
    assert report is not None
    assert report["missing"] == pytest.approx(10 * 2 / (50 * 2 * 5))
    weights = (~np.isnan(inputs)).mean(1)
    assert report["mean 1"] == pytest.approx(np.nan_to_num(inputs).mean(1).sum() / weights.sum(), abs=1e-6)
    with pytest.raises(DataError, match="sample 0 holds NaN, a missing value"):
        build(Experiment(**given))


@pytest.mark.parametrize("settings", [{}, {"secure_sum": True}], ids=str)
def test_the_loop_and_the_simulator_count_the_same(small: Path, settings: dict[str, Any]) -> None:
    experiment = quick(small, **ASKED | settings)
    ((news, public),) = loop(experiment)
    simulation = simulate(experiment)
    (record,) = simulation
    assert public.round == simulation.public.round == 1
    assert record.report is not None
    assert news.real[0] == record.report["samples"] == 399


def test_a_federation_says_the_same_bytes(tmp_path: Path, small: Path, clock: Clock) -> None:
    experiment = quick(small, **ASKED)
    deploy(neighbours(tmp_path), tmp_path / "deployed", experiment)
    alone = tmp_path / "simulated"
    simulated(alone, experiment)
    for name in ("deployed", "simulated"):
        assert not (tmp_path / name / "model").exists(), "nobody has trained one"
        (tmp_path / name / "model").touch()
    same(alone, tmp_path / "deployed")
    assert read_records(alone)[0].report == {**(read_records(tmp_path / "deployed")[0].report or {}), "samples": 399}


def test_nodes_count_under_masks(tmp_path: Path, small: Path, keys: Path, clock: Clock) -> None:
    experiment = quick(small, **ASKED, secure_sum=True)
    (record,) = deploy(nodes(tmp_path, keys), tmp_path / "run", experiment, keys=keys)
    (alone,) = simulate(experiment)
    assert record.report == alone.report
    assert record.report is not None
    assert record.report["samples"] == 399


def test_sums_under_masks_are_of_one_round(small: Path) -> None:
    """Over rounds other clients are drawn, and sums that can be subtracted tell what each has."""
    with pytest.raises(ConfigError, match=r"exchange=inputs with secure_sum=true is for one round, .* set rounds=1, not 12"):
        build(quick(small, **ASKED | {"secure_sum": True, "rounds": 12, "clients": 4, "participation": 0.75}))
    assert len(list(simulate(quick(small, **ASKED | {"rounds": 2})))) == 2


def test_counts_under_masks_need_no_test_samples(tmp_path: Path, small: Path) -> None:
    """Nothing is evaluated, so that nothing is held out either."""
    with np.load(small) as arrays:
        np.savez(tmp_path / "bare.npz", images=arrays["images"], labels=arrays["labels"])
        samples = len(arrays["labels"])
    setup = build(quick(tmp_path / "bare.npz", **ASKED, secure_sum=True))
    assert not any(map(len, setup.shards))
    (record,) = simulate(quick(tmp_path / "bare.npz", **ASKED, secure_sum=True))
    assert record.report is not None
    assert record.report["samples"] == samples - samples % 3


def test_a_client_takes_part_in_one_sum_whatever_the_server_asks(small: Path) -> None:
    setup = build(quick(small, **ASKED, secure_sum=True))
    tools = ClientTools(setup.run, Samples.of(setup.data.inputs, setup.data.labels, setup.data), setup.parts)
    side = LocalSide(tools, Client(setup.public.weights, setup.public.weights, setup.public.real, 1), setup.public, voted=False)
    masked = main_of(setup.run.exchanges)
    with pytest.raises(Refused, match="a second sum in the exchange 'inputs', which must be of one round"):
        masked.say(side, setup.public._replace(round=1), uploads=True)


def clients_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "clients.jsonl").read_text().splitlines()[-1])["clients"]
    return rows


def lying(change: Any) -> Any:
    """A client that says other numbers than it has counted; of everything else it says what it should."""

    def spoil(data: bytes) -> bytes:
        context = codec.Context(Layout((), (), (Tensor("inputs", (codec.read_header(data).reals,)),), ()), 1)
        upload = codec.decode(data, context)
        real = upload.real.copy()
        change(real)
        return codec.encode(upload._replace(real=real), context)

    return spoil


def change_at(place: int, value: float) -> Any:
    def change(real: np.ndarray[Any, Any]) -> None:
        real[place] = value

    return change


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 1e6), (0, 1.0), (1, -5.0), (1, 500.0), (11, 200.0), (12, -3.0), (12, 150.0), (13, 0.0), (13, 1e20), (12, np.nan)],
    ids=str,
)
def test_a_count_that_cannot_be_is_refused(tmp_path: Path, small: Path, clock: Clock, place: int, value: float) -> None:
    """Samples, a class, missing values, Σx and Σx² of pixels; the others' counts are what they would be without this client."""
    grid = neighbours(tmp_path)
    grid.nodes[102].app = spoiled(lying(change_at(place, value)), "inputs")
    (record,) = deploy(grid, tmp_path / "run", quick(small, **ASKED), least=2, deadline=1)
    assert "client 2 refused" in told(tmp_path / "run")
    assert record.report is not None
    assert (record.refused, record.report["clients"], record.report["samples"]) == (1, 2, 266)


def test_a_round_of_too_few_is_not_told(tmp_path: Path, small: Path, clock: Clock) -> None:
    grid = neighbours(tmp_path, 3)
    for number in (101, 102):
        grid.nodes[number].app = spoiled(lying(change_at(0, 1e6)), "inputs")
    with pytest.raises(Exception, match="too few ballots, 1 of 2"):
        deploy(grid, tmp_path / "run", quick(small, **ASKED), least=2, deadline=1)
    assert not read_records(tmp_path / "run")


def test_what_goes_with_training_is_not_asked_alone(small: Path) -> None:
    with pytest.raises(ConfigError, match="exchange 'statistics' goes with training"):
        build(quick(small, exchange="statistics"))
    with pytest.raises(ConfigError, match="privacy= and robust= are of training, and exchange=inputs is none"):
        build(quick(small, **ASKED | {"robust": "median"}))
    with pytest.raises(ConfigError, match="exchange=evaluation needs samples that clients hold out"):
        build(quick(small, exchange="evaluation"))
    with pytest.raises(ConfigError, match="no client tells results"):
        build(quick(small, exchange="evaluation", secure_sum=True))


# ---- a model on what clients hold out --------------------------------------------------------------------------------


def test_a_model_is_evaluated_over_the_clients_of_its_run(tmp_path: Path, small: Path, here: Run) -> None:
    run = (
        "dataset=npz",
        f"dataset.path={small}",
        "clients=3",
        "algorithm=biml",
        "rounds=2",
        "batch=32",
        "holdout=0.2",
        "workers=1",
    )
    assert here("run", *run, "--out", "run", cwd=tmp_path).returncode == 0
    done = here("eval", "run", "--clients", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    last = clients_of(tmp_path / "run")
    for row in last:
        assert [str(row["client"]), str(row["held"]), f"{row['accuracy']:.4g}"] in [line[:3] for line in table]
    assert ["all", str(sum(row["held"] for row in last))] in [line[:2] for line in table]


def test_who_holds_what_is_dealt_as_in_the_run(tmp_path: Path, small: Path, here: Run) -> None:
    """Where the server held samples of its own, clients had fewer; they are not tested on what they have trained on."""
    given = ("dataset=npz", f"dataset.path={small}", "clients=3", "rounds=1", "workers=1", "holdout=0.2", "model=mlp")
    assert here("run", *given, "algorithm=fttq", "--out", "run", cwd=tmp_path).returncode == 0
    done = here("eval", "run", "--clients", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = [line.split()[:3] for line in done.stdout.splitlines()]
    for row in clients_of(tmp_path / "run"):
        assert [str(row["client"]), str(row["held"]), f"{row['accuracy']:.4g}"] in table


def test_a_model_is_not_evaluated_on_what_it_was_trained_on(tmp_path: Path, small: Path, here: Run) -> None:
    given = ("dataset=npz", f"dataset.path={small}", "clients=3", "rounds=1", "workers=1", "model=mlp")
    assert here("run", *given, "--out", "run", cwd=tmp_path).returncode == 0
    done = here("eval", "run", "--clients", "holdout=0.2", cwd=tmp_path)
    assert "held out 0 of their samples and have trained on the others, so that holdout=0.2 would test on those" in refused(done)


def test_nodes_evaluate_a_model_that_they_are_sent(tmp_path: Path, small: Path, clock: Clock) -> None:
    simulated(tmp_path / "run", quick(small, holdout=0.2, rounds=1))
    settings = {"exchange": "evaluation", "algorithm": "fedavg", "rounds": 1, "holdout": 0.2}
    experiment = quick(small, **settings, start=str(tmp_path / "run/model"))
    (record,) = simulate(experiment)
    (served,) = deploy(neighbours(tmp_path), tmp_path / "served", experiment)
    assert served.report == record.report
    assert run_name(tmp_path / "served")
    rows = clients_of(tmp_path / "served")
    assert {row["client"]: row["held"] for row in rows} == {0: 27, 1: 27, 2: 27}


# ---- the command line ------------------------------------------------------------------------------------------------


def test_ask_prints_counts_and_bytes(tmp_path: Path, here: Run) -> None:
    done = here("ask", "dataset=npz", f"dataset.path={windows(tmp_path)}", "clients=4", "workers=1", "secure_sum=true")
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()]
    assert ["samples", "48"] in table
    assert any("up," in line and "down," in line for line in table)
    assert "dataset.means=" in done.stdout


def test_ask_may_be_asked_for_more_rounds(tmp_path: Path, here: Run) -> None:
    done = here("ask", "dataset=npz", f"dataset.path={windows(tmp_path)}", "clients=4", "workers=1", "rounds=2")
    assert done.returncode == 0, done.stderr
    assert ["samples", "48"] in [line.split() for line in done.stdout.splitlines()]


def test_counts_of_other_inputs_normalise_no_run(tmp_path: Path, here: Run) -> None:
    data = {"name": "npz", "path": str(windows(tmp_path))}
    given: dict[str, Any] = {"dataset": data, "clients": 4, "model": {"name": "mlp", "inputs": 10}}
    simulated(tmp_path / "asked", Experiment(**ASKED, **given, workers=1))
    for shape, kind in (("9,128", "floats"), ("2,5", "bytes")):
        words = ["dataset=remote", "dataset.classes=3", f"dataset.shape={shape}", f"dataset.kind={kind}"]
        done = here("federation", "up", "--asked", tmp_path / "asked", *words, cwd=tmp_path)
        assert f"inputs that are floats of shape 2,5, and those of this run are {kind} of shape {shape}" in refused(done)


def test_huge_inputs_are_counted_in_another_unit(tmp_path: Path) -> None:
    path = windows(tmp_path, deviation=3000.0)
    given: dict[str, Any] = {
        "dataset": {"name": "npz", "path": str(path)},
        "clients": 5,
        "model": {"name": "mlp", "inputs": 10},
        "workers": 1,
    }
    with pytest.raises(Exception, match=r"too large for their squares to be added up: divide them by more than exchange\.unit=1"):
        list(simulate(Experiment(**ASKED, **given)))
    (record,) = simulate(Experiment(**ASKED | {"exchange": {"name": "inputs", "unit": 1000.0}}, **given))
    with np.load(path) as arrays:
        inputs = arrays["inputs"][:50].astype(np.float64)
    report, form = record.report, Form((2, 5), FLOATS)
    assert report is not None
    assert report["mean 0"] == pytest.approx(inputs[:, 0].mean(), abs=1e-3)
    assert report["std 1"] == pytest.approx(inputs[:, 1].std(), rel=1e-6)
    assert normalised_by(report, form)["dataset.stds"].split(",")[1] == f"{report['std 1']:.6g}"


def test_a_server_takes_mean_and_deviation_from_what_clients_said(tmp_path: Path, here: Run) -> None:
    np.savez(tmp_path / "bare.npz", images=np.zeros((9, 8, 8), np.uint8), labels=np.arange(9))
    done = here("federation", "up", "--asked", tmp_path, "dataset=remote", cwd=tmp_path)
    assert f"'{tmp_path}' holds no mean and deviation of inputs" in refused(done)


def test_ask_without_a_network_needs_none_of_its_options(tmp_path: Path, here: Run) -> None:
    assert "--keys, --out, --min-clients and --deadline go with --listen" in refused(here("ask", "--deadline", "3", "clients=3"))
