"""Which layers are coded: convolutions of any kind and linear ones always, all but norms where the forward is real."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bifl import binarize
from bifl.core.forward import binary, real
from bifl.core.state import Client
from bifl.nn.batch import Samples
from bifl.nn.models import model
from bifl.nn.network import Network
from bifl.nn.optimizers import adam, sgd
from bifl.training.local import Plan, train

CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, bias=False), (4, 8)),
    (nn.Conv1d(4, 6, 3, groups=2, dilation=2), (4, 8)),
    (nn.Conv2d(4, 6, 3, groups=2), (4, 5, 5)),
    (nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    (nn.ConvTranspose1d(4, 6, 3, stride=2), (4, 8)),
    (nn.ConvTranspose2d(4, 6, 2), (4, 3, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS, ids=str)
def test_a_convolution_of_any_kind_is_binary(layer: nn.Module, shape: tuple[int, ...]) -> None:
    network = Network(nn.Sequential(binarize(layer), nn.Flatten()))
    assert {spec.owner for spec in network.layout.coded} == {"0"}
    assert network.layout.affine == ()
    network.show(*network.initial(), binary)
    weights: Tensor = network.module.get_submodule("0").weight  # type: ignore[assignment]
    assert set(weights.ravel().tolist()) == {-1.0, 1.0}
    assert network.scores({"input": torch.randn(2, *shape)}).shape[0] == 2


class Sentence(nn.Module):
    """An embedding, a recurrent layer, a transformer's layer, and a parameter of its own."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True)
        self.mixed = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.places, self.scores = nn.Parameter(torch.randn(5, 8)), nn.Linear(8, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.scores(self.mixed(self.gru(self.words(tokens) + self.places)[0]).mean(1))
        return found


def test_a_real_forward_codes_all_but_norms() -> None:
    layout = Network(Sentence(), real).layout
    assert {spec.owner for spec in layout.affine} == {"mixed.norm1", "mixed.norm2"}
    assert {"words.weight", "gru.weight_hh_l0", "mixed.self_attn.in_proj_weight", ".places"} < {spec.name for spec in layout.coded}
    assert layout.count == sum(parameter.numel() for parameter in Sentence().parameters()) - 32
    some = Network(Sentence(), binary).layout
    assert {spec.owner for spec in some.coded} == {"mixed.self_attn.out_proj", "mixed.linear1", "mixed.linear2", "scores"}


def test_all_of_it_is_trained() -> None:
    torch.manual_seed(0)
    network = Network(Sentence(), real)
    aux, reals = network.initial()
    samples = Samples(torch.randint(0, 20, (32, 5)), torch.arange(32) % 3, 0.0, 1.0)
    client = Client(aux, aux, reals, 32)
    after, _ = train(client, network, real, samples, torch.arange(32), Plan(adam(), 0.01, 8, 1))
    still = [
        spec.name for spec, part in zip(network.layout.coded, network.layout.split(after.aux != aux), strict=True) if not part.any()
    ]
    assert still == []
    network.show(after.aux, after.real, real)
    shown = network.scores({"input": samples.inputs})
    network.show(aux, after.real, real)
    assert not torch.allclose(shown, network.scores({"input": samples.inputs}))


def test_a_sparse_embedding_is_trained() -> None:
    network = Network(nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Flatten(), nn.Linear(4, 2)), real)
    aux, reals = network.initial()
    samples = Samples(torch.tensor([[0, 1], [1, 3]]), torch.tensor([0, 1]), 0.0, 1.0)
    after, _ = train(Client(aux, aux, reals, 2), network, real, samples, torch.arange(2), Plan(sgd(), 0.1, 2, 1))
    assert (after.aux != aux)[:8].reshape(4, 2).all(1).tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"), [("har_cnn", (9, 128), 6, 32_870), ("mlp", (1, 28, 28), 10, 118_794)]
)
def test_networks_take_their_inputs(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    module = model.make(name, {}, classes)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    network = Network(module)
    assert network.misfit({"input": torch.zeros(1, *shape)}, (classes,)) is None
    assert network.layout.count > 0.98 * parameters
    assert np.isfinite(network.scores({"input": torch.randn(2, *shape)}).detach().numpy()).all()
