"""Inputs of any kind from files, UCI HAR, and what a dataset or partition of one's own returns: checked before use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl.data.arrays import from_npz
from bifl.data.datasets import dataset
from bifl.data.har import CHANNELS
from bifl.data.inputs import Form
from bifl.errors import BiflError, ConfigError, DataError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from tests.support.commands import Run

ARRAYS = "x = np.zeros((4, 2), np.float32); y = np.arange(4)"


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        ("@dataset\ndef mine():\n    return 3", "dataset", r"must return a bifl.data.datasets.Dataset\(inputs, labels, "),
        (
            "@dataset\ndef mine():\n    x = np.zeros((4, 2)); y = np.arange(4)\n    return Dataset(x, y, x, y, 4, 0.0, 1.0)",
            "dataset",
            "dataset 'mine.*': inputs must be uint8, float16, float32, int32 or int64, not float64",
        ),
        (
            "@partition\ndef mine():\n    return lambda labels, *_: [labels]",
            "partition",
            "a partition is a fun",
        ),
        (
            "@partition\ndef mine():\n    return lambda *_: [np.array([0, 10**6])] * 10",
            "partition",
            r"\(labels, clients, generator, ",
        ),
        (
            "@dataset\ndef mine():\n    return open('/nowhere')",
            "dataset",
            r"Dataset\(inputs.*FileNotFoundError: .* \(mine.py, line 6\)",
        ),
        ("@dataset\ndef mine(path):\n    return 3", "dataset", "whose arguments all have defaults .* missing 1 required"),
        (
            f"@dataset\ndef mine():\n    {ARRAYS}\n    return Dataset(x, y, x, y, None, 0.0, 1.0)",
            "dataset",
            "classes must be from 1",
        ),
        (
            f"@dataset\ndef mine():\n    {ARRAYS}\n    return Dataset(x, y, x, y, 4, None, 1.0)",
            "dataset",
            "mean and std must be finite num",
        ),
        (f"@dataset\ndef mine():\n    {ARRAYS}\n    return Dataset(x, y, x, y, 4, 0.0, 0.0)", "dataset", "std must be .* above 0"),
        (
            f"@dataset\ndef mine():\n    {ARRAYS}\n    return Dataset(x, y, x, y, 4, (0, 0, 0), 1.0)",
            "dataset",
            "each of the 2 chan",
        ),
        (
            f"@dataset\ndef mine():\n    {ARRAYS}\n    return Dataset(x, y, x[:, :1], y, 4, 0.0, 1.0)",
            "dataset",
            "test_inputs in .* are not like inputs",
        ),
        (
            f"@dataset\ndef mine():\n    {ARRAYS}\n    return Dataset(x, y, x, y, 4, 0.0, 1.0, y[1:])",
            "dataset",
            "users must be a name",
        ),
        (
            "@partition\ndef mine(labels, clients, generator, users):\n    return []",
            "partition",
            "returns the one that deals, .* missing 4",
        ),
        ("@partition\ndef mine():\n    return 3", "partition", r"\(labels, clients, generator, users\) .* returned a int"),
        (
            "@partition\ndef mine():\n    return lambda labels: []",
            "partition",
            "a partition is a function .* takes 1 positional argument",
        ),
        (
            "@partition\ndef mine():\n    return lambda *_: 1 / 0",
            "partition",
            "ZeroDivisionError: division by zero .*mine.py, line 6",
        ),
    ],
)
def test_ones_own_data_is_checked(tmp_path: Path, body: str, kind: str, sentence: str) -> None:
    head = "import numpy as np\nfrom bifl.data.datasets import Dataset, dataset\nfrom bifl.data.partitions import partition\n"
    name = f"mine{abs(hash(body))}"  # a name is taken once
    (tmp_path / "mine.py").write_text(head + body.replace("mine", name))
    with pytest.raises((ConfigError, DataError), match=sentence):
        build(Experiment().changed({kind: f"{tmp_path}/mine.py:{name}"}))


def test_inputs_of_a_file(tmp_path: Path) -> None:
    good: dict[str, Any] = {"inputs": np.arange(24, dtype=np.float32).reshape(6, 2, 2), "labels": np.arange(6) % 2}
    np.savez(tmp_path / "good.npz", **good)
    data = from_npz(tmp_path / "good.npz", test_share=0.34)
    assert data.form == Form((2, 2), "floats", 0)
    assert np.allclose(data.mean, data.inputs.mean((0, 2)))
    assert np.allclose(data.std, data.inputs.std((0, 2)))
    (tmp_path / "arrays").mkdir()
    for name, array in good.items():
        np.save(tmp_path / "arrays" / f"{name}.npy", array)
    mapped = from_npz(tmp_path / "arrays")
    assert isinstance(mapped.inputs, np.memmap)
    assert np.array_equal(mapped.inputs, good["inputs"])
    (tmp_path / "arrays/inputs.npy").write_bytes((tmp_path / "arrays/inputs.npy").read_bytes()[:-1])
    with pytest.raises(DataError, match="by its header, but has"):
        from_npz(tmp_path / "arrays")


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        (np.array([[0.0], [-np.inf]], np.float32), "sample 1 holds infinity"),
        (np.array([[np.inf], [0]], np.float16), "sample 0 holds infinity"),
        (np.zeros((2, 3)), "not float64: save it with"),
        (np.zeros((2, 3), np.complex64), "neither numbers nor texts"),
        (np.array([[1], [-1]]), "tokens from 0 to"),
        (np.zeros(2, np.float32), r"\(n, …\)"),
        (np.zeros((2, 0), np.float32), r"\(n, …\)"),
        (np.array([[1], [1, 2]], object), "cannot be read"),
    ],
    ids=str,
)
def test_other_inputs_are_refused(tmp_path: Path, inputs: Any, sentence: str) -> None:
    np.savez(tmp_path / "bad.npz", inputs=inputs, labels=np.arange(2))
    with pytest.raises(DataError, match=sentence):
        from_npz(tmp_path / "bad.npz")


def test_uci_har_from_text_and_npz(tmp_path: Path) -> None:
    """The test set are UCI's persons, whatever the file says."""
    dice = np.random.default_rng(0)
    users, labels = np.array([1, 2, 3, 4, 5, 24]), np.arange(6)
    signals = dice.normal(size=(6, 9, 128)).astype(np.float32)
    np.savez(tmp_path / "har.npz", signals=signals, labels=labels, users=users, split=np.zeros(6, np.uint8))
    data = dataset.make("uci-har", {"path": str(tmp_path / "har.npz")})
    assert (data.labels.tolist(), data.test_labels.tolist(), data.classes) == ([0, 2, 4], [1, 3, 5], 6)
    for half, part in {"train": [0, 2, 4], "test": [1, 3, 5]}.items():
        folder = tmp_path / "text/UCI HAR Dataset" / half
        (folder / "Inertial Signals").mkdir(parents=True)
        for place, channel in enumerate(CHANNELS):
            np.savetxt(folder / "Inertial Signals" / f"{channel}_{half}.txt", signals[part, place])
        np.savetxt(folder / f"y_{half}.txt", labels[part] + 1, "%d")
        np.savetxt(folder / f"subject_{half}.txt", users[part], "%d")
    again = dataset.make("uci_har", {"path": str(tmp_path / "text")})
    assert np.allclose(again.inputs, data.inputs)
    assert again.labels.tolist() == data.labels.tolist()
    (tmp_path / "text/UCI HAR Dataset/test/y_test.txt").write_text("one\n")
    with pytest.raises(DataError, match=r"y_test.txt' is not one of UCI HAR's files"):
        dataset.make("uci_har", {"path": str(tmp_path / "text")})
    with pytest.raises(BiflError, match="holds no UCI HAR"):
        dataset.make("uci_har", {"path": str(tmp_path / "none")})


def test_names_of_persons_are_none_of_ucis_numbers(tmp_path: Path) -> None:
    """Nobody would be among UCI's nine test persons."""
    users = np.array(["1", "2", "2"])
    np.savez(tmp_path / "har.npz", signals=np.zeros((3, 9, 128), np.float32), labels=np.arange(3), users=users)
    with pytest.raises(DataError, match="must be the numbers that UCI gave the persons"):
        dataset.make("uci_har", {"path": str(tmp_path / "har.npz")})


def test_a_preset_for_windows(tmp_path: Path, here: Run) -> None:
    dice = np.random.default_rng(0)
    arrays: dict[str, Any] = {"inputs": dice.normal(size=(60, 9, 128)).astype(np.float32), "labels": np.arange(60) % 6}
    np.savez(tmp_path / "w.npz", **arrays, users=np.repeat(np.arange(1, 7), 10))
    words = ["har", f"dataset.path={tmp_path}/w.npz", "clients=2", "rounds=1", "workers=1"]
    done = here("run", *words, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "har" in here("list").stdout
    shown = here("inspect", tmp_path / "run/model").stdout
    assert "mean and deviation of each of 9 channels" in shown
