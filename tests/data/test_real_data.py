"""UNIPEN's characters, a LEAF folder that trains, networks for data of many kinds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bifl.data.arrays import spread
from bifl.data.datasets import dataset
from bifl.errors import BiflError, ConfigError, DataError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.nn.models import model
from bifl.nn.network import Network
from bifl.registry import first_line
from tests.support.commands import Run

# ---- UNIPEN ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def characters(tmp_path: Path) -> Path:
    dice = np.random.default_rng(0)
    users = np.repeat(np.arange(6), [10, 20, 30, 40, 50, 50])
    images = dice.integers(0, 256, (200, 28, 28), np.uint8)
    np.savez(tmp_path / "unipen.npz", images=images, labels=np.arange(200) % 62, users=users)
    return tmp_path / "unipen.npz"


def test_unipen(characters: Path) -> None:
    data = dataset.make("unipen", {"path": str(characters), "images": 100})
    assert (len(data.labels), len(data.test_labels), data.classes) == (89, 11, 62)
    assert data.users is not None
    assert len(np.unique(data.users)) == 6, "of every writer some"
    whole = dataset.make("unipen", {"path": str(characters)})
    assert (len(whole.labels), len(whole.test_labels)) == (178, 22)
    for settings, sentence in (({"images": 201}, "from 0, for all, to the 200"), ({"test_share": 1.0}, "below 1")):
        with pytest.raises(ConfigError, match=sentence):
            dataset.make("unipen", {"path": str(characters), **settings})
    np.savez(characters, images=np.zeros((4, 28, 28), np.uint8), labels=np.arange(4))
    with pytest.raises(DataError, match="the array 'users'"):
        dataset.make("unipen", {"path": str(characters)})


def test_a_choice_is_spread_over_the_groups() -> None:
    groups = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], [100, 50, 10]))
    chosen = spread(groups, 16)
    assert chosen.sum() == 16
    assert np.bincount(groups[chosen]).tolist() == [10, 5, 1]
    assert spread(groups, 160).all()
    assert not spread(groups, 0).any()


def test_presets_have_the_papers_rates_for_femnist() -> None:
    ours, paper = Experiment.of("unipen-iid"), Experiment.of("femnist-iid")
    assert (ours.lr, ours.lr_steps, ours.clients, ours.model) == (paper.lr, paper.lr_steps, paper.clients, paper.model)
    assert ours.algorithm.parameters["alpha"] == 1.75
    assert (ours.dataset.parameters["images"] - 5500) / ours.clients == 500


# ---- LEAF ------------------------------------------------------------------------------------------------------------


def test_a_folder_of_leafs_trains(tmp_path: Path, here: Run) -> None:
    """In the form of LEAF's own files: writers with some dozens of images, white paper as 1."""
    dice = np.random.default_rng(0)
    writers = {f"f{number:04d}_{number}": int(dice.integers(20, 40)) for number in range(4)}
    people = {}
    for name, count in writers.items():
        ink = np.round(1 - dice.random((count, 784)) * (dice.random((count, 784)) < 0.1), 3)
        people[name] = {"x": ink.tolist(), "y": dice.integers(0, 62, count).tolist()}
    for file, part in enumerate((list(writers)[:3], list(writers)[3:])):
        content = {
            "users": part,
            "num_samples": [writers[name] for name in part],
            "user_data": {name: people[name] for name in part},
        }
        (tmp_path / f"all_data_{file}.json").write_text(json.dumps(content))
    words = ["dataset=femnist", f"dataset.path={tmp_path}", "model=cnn4", "partition=by_user", "clients=4", "workers=1"]
    done = here("run", *words, "algorithm=fedavg", "rounds=1", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "round 1/1" in done.stdout


# ---- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("cnn4", (1, 28, 28), 10, 390_880),
        ("cifar_cnn", (3, 32, 32), 10, 1_183_456),
        ("resnet10", (3, 32, 32), 10, 4_903_242),
        ("har_cnn", (9, 128), 6, 32_870),
        ("mlp", (28, 28), 10, 118_794),
    ],
)
def test_networks_have_as_many_parameters_as_they_say(name: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    module = model.make(name, {}, classes)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters
    assert f"{parameters:,} parameters" in first_line(model.factory(name))
    assert Network(module).misfit({"input": torch.zeros(1, *shape)}, (classes,)) is None


def test_shortcuts_count() -> None:
    """A block without convolutions is its shortcut."""
    module = model.make("resnet10", {}, 10).eval()
    block = module.get_submodule("block2")
    images = torch.randn(1, 64, 8, 8).abs()
    torch.nn.init.zeros_(block.get_submodule("norm2").get_parameter("weight"))
    assert torch.equal(block(images), images)


def test_a_picture_of_another_size_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "small.npz", images=np.zeros((40, 3, 8, 8), np.uint8), labels=np.arange(40) % 10)
    with pytest.raises(BiflError, match="cifar_cnn"):
        build(Experiment.of("cifar10-iid", ["dataset=npz", f"dataset.path={tmp_path}/small.npz", "clients=4"]))
