"""What a network may be made of: tied and frozen parameters, buffers, recurrent layers; in runs and in saved models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bifl
from bifl.core import Client
from bifl.core.forward import Forward, Latent, binary, real
from bifl.engine.loop import loop
from bifl.engine.simulator import simulate
from bifl.errors import DataError
from bifl.experiment.model import Model
from bifl.experiment.settings import Experiment
from bifl.nn.batch import Samples
from bifl.nn.binarize import binarize
from bifl.nn.models import mnist_cnn, model
from bifl.nn.network import Network, PlainNetwork
from bifl.nn.optimizers import adam
from bifl.nn.sent import sentence
from bifl.training.local import Plan, train
from tests.support.commands import Run, refused
from tests.support.workers import beside

pytestmark = pytest.mark.floats
BOTH = pytest.mark.parametrize("kind", [Network, PlainNetwork])


def samples(count: int = 20) -> Samples:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 1, 2, 2), generator=generator, dtype=torch.uint8)
    return Samples(images, torch.randint(0, 3, (count,), generator=generator), 0.5, 0.25)


def trained(network: Network, forward: Forward = real) -> Client:
    aux, start = network.initial()
    plan = Plan(adam(), 0.01, 10, 2)
    return train(Client(aux, aux, start, 20, 0), network, forward, samples(), torch.arange(20), plan)[0]


def tied() -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    module[3].weight = module[1].weight
    return module


def test_tied_parameters_lie_in_the_vector_once_and_their_gradients_add() -> None:
    network = Network(tied(), real)
    assert [spec.name for spec in network.layout.coded] == ["1.weight", "1.bias", "3.bias", "5.weight", "5.bias"]
    aux = torch.from_numpy(network.initial()[0]).requires_grad_()
    batch = samples().batch(slice(None))
    network.module.train()
    network.learn(Latent(aux, aux.detach()), torch.ones(3), real, batch)
    module = tied()
    nn.functional.cross_entropy(module(batch["input"]), batch["target"]).backward()  # type: ignore[no-untyped-call]
    expected = module[1].weight.grad
    assert aux.grad is not None
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(aux.grad[:16], expected.ravel())


@pytest.mark.parametrize("forward", [real, binary])
def test_tied_parameters_stay_tied(forward: Forward) -> None:
    network = Network(tied(), forward)
    client = trained(network, forward)
    network.show(client.aux, client.real, forward)
    module = network.ordinary()
    assert module.get_submodule("1").weight is module.get_submodule("3").weight
    assert not torch.equal(module.get_parameter("1.weight"), tied().get_parameter("1.weight"))


def test_a_tied_embedding_computes_with_the_coded_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.scores = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
            self.scores.weight = self.embedding.weight

        def forward(self, images: Tensor) -> Tensor:
            scores: Tensor = self.scores(self.embedding((images.flatten(1) > 0).long()).mean(1))
            return scores

    network = Network(Tied())
    assert [spec.name for spec in network.layout.coded] == ["scores.weight"]
    assert network.layout.affine == ()
    network.show(*network.initial(), binary)
    assert isinstance(network.module, Tied)
    assert network.module.embedding.weight is network.module.scores.weight
    assert set(network.module.embedding.weight.abs().ravel().tolist()) == {1}


def frozen(kind: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), kind(), nn.Linear(5, 3))
    module[1].requires_grad_(False)
    module[2].weight.requires_grad_(False)
    return module


@BOTH
@pytest.mark.parametrize("forward", [real, binary])
def test_frozen_parameters_are_not_trained_nor_sent(kind: type[Network], forward: Forward) -> None:
    network = kind(frozen(), forward)
    assert [spec.name for spec in (*network.layout.coded, *network.layout.affine)] == ["4.weight", "4.bias", "2.bias"]
    client = trained(network, forward)
    network.show(client.aux, client.real, forward)
    module, before = network.ordinary(), frozen()
    for name in ("1.weight", "1.bias", "2.weight"):
        assert torch.equal(module.get_parameter(name), before.get_parameter(name))
        assert not module.get_parameter(name).requires_grad
    assert not torch.equal(module.get_parameter("2.bias"), before.get_parameter("2.bias"))


def test_frozen_layers_give_both_engines_the_same_gradients() -> None:
    fast, plain = (trained(kind(frozen(), real)) for kind in (Network, PlainNetwork))
    np.testing.assert_allclose(fast.aux, plain.aux, atol=1e-4)
    np.testing.assert_allclose(fast.real, plain.real, atol=1e-4)


def test_a_frozen_layer_that_binarize_chose_keeps_its_signs() -> None:
    network = Network(binarize(frozen()))
    network.show(*network.initial(), binary)
    assert set(network.module.get_parameter("1.weight").abs().ravel().tolist()) == {1}


class Drifting(nn.Module):
    """A layer with buffers of every kind, all but the first of which training changes."""

    mixing: Tensor
    average: Tensor
    steps: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mixing", torch.randn(4, 4))  # random: a saved model must hold it
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.5).add_(x.mean(0))
                self.last = x[-1].clone()
                self.steps += 1
        return x @ self.mixing + self.average + self.last + self.steps


def test_buffers_do_not_leak_from_one_training_into_the_next() -> None:
    torch.manual_seed(0)
    network = Network(nn.Sequential(nn.Flatten(), Drifting(), nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)), real)
    once, twice = trained(network), trained(network)
    assert once.aux.tobytes() == twice.aux.tobytes()
    assert once.real.tobytes() == twice.real.tobytes()


@model
def instance_normed(classes: int) -> nn.Module:
    """Its norm keeps statistics of its input, as batch-norm does."""
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(256, classes))


@model
def drifting(classes: int) -> nn.Module:
    """Frozen and tied parameters, and buffers of every kind."""
    module = nn.Sequential(
        nn.Conv2d(1, 4, 7, stride=7), nn.Flatten(), nn.Linear(64, 4), nn.Tanh(), Drifting(), nn.Linear(4, 4), nn.Linear(4, 4),
        nn.Linear(4, classes),
    )  # fmt: skip
    module[2].requires_grad_(False)
    module[6].weight = module[5].weight
    return module


@pytest.mark.parametrize(
    ("name", "batchnorm"), [("instance_normed", "recalibrate"), ("instance_normed", "average"), ("drifting", "recalibrate")]
)
def test_one_and_two_workers_the_loop_and_the_saved_model_agree(name: str, batchnorm: str, small: Path, tmp_path: Path) -> None:
    data = {"name": "npz", "path": str(small)}
    experiment = Experiment(algorithm="biml", dataset=data, model=name, clients=3, rounds=2, workers=1, batchnorm=batchnorm)
    simulation = simulate(experiment)
    records = list(simulation)
    both = list(beside(experiment.changed({"workers": "2"})))
    assert [(record.accuracy, record.loss) for record in records] == [(record.accuracy, record.loss) for record in both]
    *_, (_, public) = loop(experiment)
    assert public.weights.tobytes() == simulation.public.weights.tobytes()
    assert public.real.tobytes() == simulation.public.real.tobytes()

    simulation.model().save(tmp_path / "model")
    loaded = simulation.setup.data
    metrics, loss = Model.read(tmp_path / "model").metrics(loaded)
    assert metrics["accuracy"] == records[-1].accuracy
    assert loss == pytest.approx(records[-1].loss, rel=1e-5)
    network = bifl.load(tmp_path / "model")
    images = (torch.tensor(loaded.test_inputs).float() / 255 - torch.tensor(loaded.mean)) / torch.tensor(loaded.std)
    with torch.no_grad():
        right = (network(images).argmax(1).numpy() == loaded.test_labels).mean()
    assert right == pytest.approx(records[-1].accuracy, abs=1e-6)


def test_a_model_file_with_too_few_constants_is_refused(small: Path, tmp_path: Path) -> None:
    experiment = Experiment(
        algorithm="biml", dataset={"name": "npz", "path": str(small)}, model="drifting", clients=2, rounds=1, workers=1
    )
    simulation = simulate(experiment)
    list(simulation)
    saved = simulation.model()
    assert len(saved.constants) == 64 * 4 + 4 + 16 + 4, "the frozen layer, and Drifting's two persistent buffers of floats"
    file = tmp_path / "model"
    replace(saved, constants=saved.constants[:-1]).save(file)
    with pytest.raises(DataError, match="drifting has 280 constants, the file holds 279"):
        Model.read(file)


def test_recurrent_layers_are_trained() -> None:
    """They keep a second list of their weights, which follows."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.scores = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

        def forward(self, images: Tensor) -> Tensor:
            scores: Tensor = self.scores(self.lstm(images[:, 0])[0][:, -1])
            return scores

    network = Network(Rows())
    before = network.initial()[1]
    after = trained(network, binary).real
    assert np.all(before[1:] != after[1:])
    network.show(network.initial()[0], after, binary)
    batch = samples().batch(slice(None))
    shown = network.scores(batch)
    network.show(*network.initial(), binary)
    assert not torch.allclose(shown, network.scores(batch))


LSTM = """
from torch import nn
from bifl.nn.models import model

class Rows(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.lstm, self.scores = nn.LSTM(28, 8, batch_first=True), nn.Linear(8, classes)

    def forward(self, images):
        return self.scores(self.lstm(images[:, 0])[0][:, -1])

@model
def rows(classes: int) -> nn.Module:
    return Rows(classes)

"""
NORMED = """
from torch import nn
from bifl.nn.models import model

@model
def lines(classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d((1, classes)), nn.Flatten(), nn.LayerNorm(classes))
"""


def test_a_run_says_what_it_sends_as_floats(tmp_path: Path, small: Path, here: Run) -> None:
    (tmp_path / "mine.py").write_text(LSTM)
    words = [f"model={tmp_path}/mine.py:rows", "dataset=npz", f"dataset.path={small}", "clients=2", "rounds=1", "workers=1"]
    done = here("run", "algorithm=biml", *words, "--out", tmp_path / "run")
    assert done.returncode == 0
    assert (
        "bifl: 1,216 of 1,306 parameters (93 %) are not coded by the algorithm but sent as reals= says: lstm (LSTM)\n"
        in done.stderr
    )
    done = here("compare", *words, "algorithms=biml", "--out", tmp_path / "compare")
    assert "(93 %) are not coded" in done.stderr


def test_what_cannot_be_coded_is_named(tmp_path: Path, small: Path, here: Run) -> None:
    (tmp_path / "mine.py").write_text(NORMED)
    said = refused(here("run", "algorithm=biml", f"model={tmp_path}/mine.py:lines", "dataset=npz", f"dataset.path={small}"))
    assert "finds nothing to code in model 'lines': it codes trainable convolutions and linear layers" in said
    assert "trainable layers are 2 (LayerNorm)" in said


def test_a_few_floats_are_not_worth_a_sentence() -> None:
    assert sentence(Network(mnist_cnn(10))) is None
