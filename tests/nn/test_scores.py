"""`scores=fixed`: γ and β of the class scores are neither trained nor sent, in any network and every runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bifl
from bifl import codec
from bifl.codec import model_file
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.errors import ConfigError, DataError
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.export.onnx_file import contents
from bifl.nn.models import mlp, mnist_cnn, model
from bifl.nn.network import Network, PlainNetwork
from bifl.nn.scores import fixed
from studies import keeping


@model
def short_cnn(classes: int) -> nn.Module:
    """The paper's order of layers in small."""
    first = [nn.Conv2d(1, 4, 5, stride=3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*first, nn.Linear(256, classes), nn.BatchNorm1d(classes))


@pytest.fixture
def words(small: Path) -> dict[str, Any]:
    data = {"name": "npz", "path": str(small)}
    return {"algorithm": "biml", "dataset": data, "model": "short_cnn", "clients": 3, "rounds": 2, "workers": 1, "scores": "fixed"}


def test_the_last_norm_is_frozen_and_no_other() -> None:
    module = fixed(mnist_cnn(10), 10)
    left = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert [name for name in left if name.startswith("norm")] == [
        f"norm{n}.{kind}" for n in (1, 2, 3) for kind in ("weight", "bias")
    ]
    assert {name for name, _ in module.named_parameters()} - set(left) == {"norm4.weight", "norm4.bias"}


@pytest.mark.parametrize(
    "tail", [(nn.LayerNorm(3),), (nn.BatchNorm1d(3), nn.LogSoftmax(1)), (nn.Sequential(nn.GroupNorm(1, 3)), nn.Identity())], ids=str
)
def test_any_norm_of_the_scores_wherever_it_lies(tail: tuple[nn.Module, ...]) -> None:
    network = Network(fixed(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), *tail), 3))
    assert network.layout.affine == ()


@pytest.mark.parametrize(
    "module", [mlp(10), nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7)), nn.Tanh()], ids=lambda m: type(m).__name__
)
def test_a_network_without_such_a_norm_is_refused(module: nn.Module) -> None:
    with pytest.raises(ConfigError, match="not in a norm of its 10 scores"):
        fixed(module, 10)


def test_the_refusal_says_what_to_do(words: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"scores=fixed has nothing to do: model 'mlp' ends in a layer Linear.*; leave it out"):
        build(Experiment(**words | {"model": "mlp"}))
    with pytest.raises(ConfigError, match="scores must be one of trained, fixed, not 'none'"):
        Experiment(scores="none")


def test_what_is_fixed_is_in_no_message(words: dict[str, Any]) -> None:
    sent, kept_back = (build(Experiment(**words | {"scores": scores})).run.network.layout for scores in ("trained", "fixed"))
    assert [spec.name for spec in sent.affine if spec not in kept_back.affine] == ["5.weight", "5.bias"]
    news, public = next(loop(Experiment(**words)))
    assert len(news.real) == len(public.real) == sent.reals - 20
    assert codec.read_header(codec.encode(news, codec.Context(kept_back, 1))).reals == sent.reals - 20


@pytest.mark.parametrize("kind", [Network, PlainNetwork])
def test_training_does_not_move_it(kind: type[Network], words: dict[str, Any]) -> None:
    experiment = Experiment(**words | {"algorithm": "fedavg"})
    *_, (_, public) = loop(experiment, kind)
    setup = build(experiment, kind)
    setup.run.network.show(public.weights, public.real, setup.run.algorithm.at(1).forward)
    norm = setup.run.network.ordinary().get_submodule("5")
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.weight.tolist() == [1] * 10
    assert norm.bias.tolist() == [0] * 10


def test_simulator_loop_and_files_agree(words: dict[str, Any], tmp_path: Path) -> None:
    experiment = Experiment(**words)
    simulation = simulate(experiment)
    records = list(simulation)
    *_, (_, public) = loop(experiment)
    assert public.weights.tobytes() == simulation.public.weights.tobytes()
    assert public.real.tobytes() == simulation.public.real.tobytes()
    simulation.model().save(tmp_path / "model")
    read, data = Model.read(tmp_path / "model"), simulation.setup.data
    assert read.scores == "fixed"
    assert read.metrics(data)[0]["accuracy"] == records[-1].accuracy
    images = (torch.from_numpy(data.test_inputs) / 255 - torch.tensor(data.mean)) / torch.tensor(data.std)
    with torch.no_grad():
        ours = bifl.load(tmp_path / "model")(images).numpy()
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(contents(read, read.module(), read.shape, "model"))
    np.testing.assert_allclose(session.run(None, {"input": data.test_inputs})[0], ours, atol=1e-4)


def test_a_model_starts_a_run_of_its_own_kind_alone(words: dict[str, Any], tmp_path: Path) -> None:
    simulation = simulate(Experiment(**words | {"rounds": 1}))
    list(simulation)
    simulation.model().save(tmp_path / "model")
    start = words | {"start": str(tmp_path / "model")}
    warm = build(Experiment(**start)).public
    assert warm.real.tobytes() == simulation.public.real.tobytes()
    with pytest.raises(ConfigError, match="is no model of this run's network"):
        build(Experiment(**start | {"scores": "trained"}))


def test_a_file_with_other_scores_is_refused(words: dict[str, Any], tmp_path: Path) -> None:
    setup = build(Experiment(**words))
    made = Model.of(setup.run, setup.data, setup.public, setup.run.algorithm.at(1).forward)
    facts, message, constants = model_file.parts(made.to_bytes())
    assert facts["scores"] == "fixed"
    for scores in ("none", ["fixed"]):
        (tmp_path / "model").write_bytes(model_file.whole(facts | {"scores": scores}, message, constants))
        with pytest.raises(DataError, match="is not a model file"):
            Model.read(tmp_path / "model")


def test_the_usual_setting_names_no_kept_run() -> None:
    usual = Experiment.of("mnist-nc3", ["algorithm.alpha=1.5"])
    assert keeping.name(usual.changed({"scores": "trained"})) == "mnist-by_class-3-m100-biml-alpha-1.5-s0-6e7b036b"
    assert keeping.name(usual.changed({"scores": "fixed"})) != keeping.name(usual)
