"""What is shown before anything is trained: `bifl data` and `bifl summary`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bifl.experiment.presets import PRESETS
from bifl.experiment.settings import Experiment, compose
from bifl.experiment.setup import load
from bifl.privacy import secret_dice
from bifl.show.split_stats import count
from tests.support.commands import Run, refused


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_data_shows_every_client_and_draws_if_asked(here: Run, tmp_path: Path) -> None:
    done = here("data", "partition=by_class", "clients=10")
    assert done.returncode == 0, done.stderr
    assert "4,000 training and 1,000 test images, 28×28 grey, 10 classes; 3,990 dealt to 10 clients" in done.stdout
    experiment = Experiment(partition="by_class")
    counts = count(experiment, load(experiment)).counts
    for client, row in enumerate(counts):
        words = [str(client), str(row.sum()), *(str(n) if n else "·" for n in row)]
        assert " ".join(words) in " ".join(done.stdout.split())
    assert done.stdout.endswith("for a picture of it: --out FILE.png\n")
    assert not list(tmp_path.iterdir())
    assert here("data", "--out", "split.png").stdout.endswith("picture: split.png\n")
    assert (tmp_path / "split.png").read_bytes().startswith(b"\x89PNG")


def test_many_clients_are_summarised(here: Run, tmp_path: Path) -> None:
    done = here("data", "mnist5k-iid", "clients=40", "algorithm=fttq", "--out", tmp_path / "x.png")
    assert "80 held out on the server" in done.stdout
    assert "images 98 98 98 98 98 98.0" in " ".join(done.stdout.split())
    assert (tmp_path / "x.png").exists()


def test_data_counts_users(here: Run, tmp_path: Path) -> None:
    arrays = {"images": np.zeros((40, 4, 4), np.uint8), "labels": np.arange(40) % 20, "users": np.arange(40) // 10}
    np.savez(tmp_path / "mine.npz", **arrays)  # type: ignore[arg-type]
    done = here("data", "dataset=npz", "dataset.path=mine.npz", "partition=by_user", "clients=2")
    assert "40 training and 0 test images, 4×4 grey, 20 classes, 4 users; 40 dealt to 2 clients" in done.stdout
    assert "0 20 2 20 1" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["data", "partition=by_user"], "knows who made each sample"),
        (["data", "partition=dirichlet", "partition.concentration=0"], "partition.concentration must be greater than 0"),
        (["data", "partition=quantity", "partition.skew=-1"], "partition.skew must be 0 or more"),
        (["data", "--out", "nowhere/x.png"], "cannot write"),
        (["summary", "mnist_cn"], "did you mean 'mnist_cnn'?"),
        (["summary", "mnist_cnn", "classes=0"], "classes must be a whole number, 1 or more"),
    ],
)
def test_bad_input_ends_in_one_sentence(words: list[str], sentence: str, here: Run) -> None:
    assert sentence in refused(here(*words))


def test_summary_adds_up(here: Run) -> None:
    shown = " ".join(here("summary", "mnist_cnn", "algorithm=biml").stdout.split())
    assert "linear3 Linear 100×784 + 100 binary 78,500 1 9.82 kB" in shown
    assert "all 82,242 12.5 kB" in shown
    assert "26.3 times smaller than the 330 kB of float32" in shown
    ternary = " ".join(here("summary", "mnist_cnn", "algorithm=fttq").stdout.split())
    assert "linear3 Linear 100×784 + 100 ternary + real 78,500 1.6 + 32 16.1 kB" in ternary
    real = " ".join(here("summary", "mnist_cnn").stdout.split())  # as a run leaves it that nobody told otherwise
    assert "82,242 parameters in 330 kB, all of it float32" in real
    assert "6,608,026" in here("summary", "femnist_cnn", "classes=62").stdout


KEPT = """
import bifl
from torch import nn
from bifl.nn.models import model

@model
def kept(classes: int) -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, classes))
    return bifl.binarize(layers, keep=("4",))
"""


def test_summary_tells_what_real_layers_cost(here: Run, tmp_path: Path) -> None:
    """310 float32 of 1,950 binary weights and biases, ϑ, γ and β of 30 channels, and the 310 themselves."""
    (tmp_path / "kept.py").write_text(KEPT)
    shown = " ".join(here("summary", str(tmp_path / "kept.py"), "algorithm=biml").stdout.split())
    assert "310 of 2,321 trained numbers stay real (4): as float32 they cost 4.27 bits per parameter" in shown
    assert "others; 1.07 with reals=byte, 0.134 up and 1.07 down with reals=sign" in shown
    assert "stay real" not in here("summary", "mnist_cnn", "algorithm=biml").stdout
    assert "stay real" in here("summary", "mnist_cnn", "algorithm=fttq").stdout


def test_summary_shows_the_network_that_a_run_would_have(here: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", inputs=np.zeros((6, 2, 50), np.float32), labels=np.arange(6) % 3)
    words = ["dataset=npz", f"dataset.path={tmp_path / 'mine.npz'}", "model.channels=2"]
    shown = here("summary", "har_cnn", "algorithm=fedavg", *words).stdout
    assert "har_cnn, 3 classes, real forward" in shown
    assert "as C on a device" in shown  # its input's shape is the dataset's
    assert "har_cnn, 7 classes, binary forward" in here("summary", "har_cnn", "classes=7", "algorithm=biml", *words).stdout
    assert "mnist_cnn, 10 classes, real forward" in here("summary", "mnist_cnn", "mnist5k-iid").stdout
    np.savez(tmp_path / "mine.npz", inputs=np.zeros((6, 2, 50), np.float32), labels=np.linspace(-1, 1, 6, dtype=np.float32))
    assert "har_cnn, 1 outputs" in here("summary", "har_cnn", "task=regression", *words).stdout


def test_every_preset_is_a_valid_experiment() -> None:
    for name, preset in PRESETS.items():
        experiment = Experiment.of(name)
        settings = experiment.flat()
        assert {key: settings[key] for key in preset.settings} == preset.settings
        compose(experiment, secret_dice)  # raises where the algorithm does not take its parameters
    assert Experiment.of("femnist-noniid").lr == (3e-4, 1e-4, 5e-5)
    assert Experiment.of("femnist-iid").clients == 89
    assert Experiment.of("celeba-iid").lr == (0.1, 0.05, 0.02)


def test_a_dataset_without_test_images_can_be_trained_on_but_not_scored(here: Run, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 28, 28), np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(40) % 10)
    words = ["algorithm=biml", "dataset=npz", "dataset.path=mine.npz", "clients=2", "rounds=1", "workers=1"]
    done = here("run", *words, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "no test images" in refused(here("eval", "run/model", "npz", f"path={tmp_path / 'mine.npz'}"))
    assert os.path.getsize("run/model") < 13_000
