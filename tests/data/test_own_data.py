"""A user's arrays and LEAF's folders: what is read, and how every damage is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from bifl.data.arrays import normaliser
from bifl.data.datasets import Dataset, dataset
from bifl.deploy.client.operator_choices import local_images
from bifl.deploy.client.own_data import check_data
from bifl.deploy.protocol import Refusal, Terms
from bifl.errors import BiflError, ConfigError, DataError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from tests.support.commands import Run, refused

TERMS = Terms("", 62, (1, 28, 28), 0.1, 0.3, 0.2)
GOOD: dict[str, Any] = {
    "images": np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4),
    "labels": np.array([0, 1, 2, 0, 1, 2], np.uint8),
    "users": np.array(["eve", "bob", "bob", "eve", "ann", "ann"]),
}


def saved(path: Path, **changes: Any) -> Path:
    np.savez(path, **{name: array for name, array in (GOOD | changes).items() if array is not None})
    return path


def test_a_users_arrays(tmp_path: Path) -> None:
    data = dataset.make("npz", {"path": str(saved(tmp_path / "mine.npz"))})
    assert data.inputs.shape == (6, 1, 4, 4)
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.users is not None
    assert data.users.tolist() == [2, 1, 1, 2, 0, 0]
    assert data.classes == 3
    assert len(data.test_inputs) == len(data.test_labels) == 0
    assert (data.mean, data.std) == pytest.approx((GOOD["images"].mean() / 255, GOOD["images"].std() / 255))


@pytest.mark.parametrize(
    ("shape", "expected"), [((6, 3, 8, 8), (3, 8, 8)), ((6, 8, 8, 3), (3, 8, 8)), ((6, 8, 8, 1), (1, 8, 8)), ((6, 5, 7), (1, 5, 7))]
)
def test_channels_first_or_last(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    data = dataset.make("npz", {"path": str(saved(tmp_path / "mine.npz", images=np.zeros(shape, np.uint8)))})
    assert data.inputs.shape[1:] == expected


def test_test_images_by_split_by_name_or_by_share(tmp_path: Path) -> None:
    split = dataset.make("npz", {"path": str(saved(tmp_path / "a.npz", split=np.array([0, 0, 1, 0, 1, 0])))})
    assert (split.labels.tolist(), split.test_labels.tolist()) == ([0, 1, 0, 2], [2, 1])
    assert split.users is not None
    assert split.users.tolist() == [2, 1, 2, 0]
    own = {"test_images": GOOD["images"][:2], "test_labels": GOOD["labels"][:2]}
    named = dataset.make("npz", {"path": str(saved(tmp_path / "b.npz", **own))})
    assert (len(named.labels), named.test_labels.tolist()) == (6, [0, 1])
    share = dataset.make("npz", {"path": str(saved(tmp_path / "c.npz")), "test_share": 0.5})
    assert share.users is not None
    assert sorted(share.users.tolist()) == [0, 1, 2], "one of two from each user"


@pytest.mark.parametrize("name", ["rec.csv", "REC.CSV", "rec.xlsx"])
def test_a_table_is_told_how_it_becomes_an_npz_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("person,activity,x\n1,2,3\n")
    for read in (lambda: dataset.make("npz", {"path": str(tmp_path / name)}), lambda: check_data(str(tmp_path / name))):
        with pytest.raises(BiflError, match=r"is a table .* numpy\.savez\(.*docs/sensors\.md"):
            read()


def test_the_normaliser_is_exact_over_blocks() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2500, 1, 3, 3), np.uint8)
    assert normaliser(images) == pytest.approx((images.mean() / 255, images.std() / 255))
    assert normaliser(np.zeros((2, 1, 2, 2), np.uint8)) == (0, 1), "no division by zero later"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": None}, "has no array 'images'"),
        ({"labels": None}, "has no array 'labels'"),
        ({"images": np.zeros((6, 4, 4))}, "images in .* must be uint8"),
        ({"images": np.zeros((6, 4), np.uint8)}, r"must be \(n, height, width\)"),
        ({"images": np.zeros((6, 0, 4), np.uint8)}, r"must be \(n, height, width\)"),
        ({"images": np.zeros((5, 4, 4), np.uint8)}, "labels in .* one per sample, 5 in all"),
        ({"labels": np.array([0, 1, 2, 0, 1, -1])}, "labels in .* must run from 0 to 2, not from -1"),
        ({"labels": np.array(list("abcdef"))}, "labels in .* must be numbers, not <U1: np.unique"),
        ({"classes": np.array(["a", "b"])}, "must run from 0 to 1, not from 0 to 2"),
        ({"users": np.zeros(5, np.int64)}, "users in .* per sample, 6 in all"),
        ({"split": np.array([0, 0, 0, 0, 0, 2])}, "split .* must run from 0 to 1"),
        ({"split": np.ones(6, np.int64)}, "no training samples"),
        ({"test_images": GOOD["images"]}, "no test_labels"),
        (
            {"test_images": np.zeros((2, 5, 5), np.uint8), "test_labels": np.zeros(2, np.int64)},
            "test_images in .* are not like images",
        ),
        ({"images": np.array([{}], object)}, "cannot be read"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    path = saved(tmp_path / "mine.npz", **changes)
    with pytest.raises(DataError, match=sentence) as caught:
        dataset.make("npz", {"path": str(path)})
    assert "mine.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["empty", "no zip", "cut", "flipped"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = saved(tmp_path / "mine.npz")
    raw = path.read_bytes()
    flipped = raw[:150] + bytes([raw[150] ^ 255]) + raw[151:]
    path.write_bytes({"empty": b"", "no zip": b"something else", "cut": raw[:-40], "flipped": flipped}[damage])
    with pytest.raises(DataError, match=r"mine\.npz' cannot be read as \.npz"):
        dataset.make("npz", {"path": str(path)})


def test_writers_are_found_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIFL_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"mnist_writers\.npz' does not exist"):
        dataset.make("mnist-writers", {})
    saved(tmp_path / "mnist_writers.npz", users=None, writers=np.arange(6), split=np.array([0, 0, 0, 0, 0, 1]))
    data = dataset.make("mnist-writers", {})
    assert data.users is not None
    assert (data.users.tolist(), data.classes, data.mean, len(data.test_labels)) == ([0, 1, 2, 3, 4], 10, 0.1307, 1)
    saved(tmp_path / "other.npz", users=None)
    with pytest.raises(DataError, match="no array 'writers'"):
        dataset.make("mnist_writers", {"path": str(tmp_path / "other.npz")})


def leaf_file(users: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }


def leaf(folder: Path, *files: dict[str, Any]) -> Path:
    (folder / "data" / "all_data").mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(files):
        (folder / "data" / "all_data" / f"all_data_{number}.json").write_text(json.dumps(content))
    return folder


def test_femnist_from_leafs_folder(tmp_path: Path) -> None:
    shades = [[shade / 255] * 784 for shade in range(10)]
    folder = leaf(
        tmp_path,
        leaf_file({"f2": (shades[:6], [61, 1, 2, 3, 4, 5])}),
        leaf_file({"f1": (shades[6:], [9, 8, 7, 6]), "f3": ([], [])}),
    )
    data = dataset.make("femnist", {"path": str(folder), "test_share": 0.5})
    assert data.classes == 62
    assert data.inputs.shape == (5, 1, 28, 28)
    truth = dict(enumerate([61, 1, 2, 3, 4, 5, 9, 8, 7, 6]))
    assert data.labels.tolist() == [truth[shade] for shade in data.inputs[:, 0, 0, 0].tolist()]
    assert data.test_labels.tolist() == [truth[shade] for shade in data.test_inputs[:, 0, 27, 27].tolist()]
    assert data.users is not None
    assert data.users.tolist() == [1, 1, 1, 0, 0], "numbered by name"
    mine = local_images(str(folder), TERMS, Experiment(), 0)
    assert sorted(mine.labels.tolist()) == sorted(truth.values()), "bifl client --data takes the same folder, all of it"
    half = dataset.make("femnist", {"path": str(folder), "share": 0.5, "test_share": 0.0})
    assert len(half.labels) in (4, 6), "whole users are chosen"
    with pytest.raises(ConfigError, match=r"dataset\.share"):
        dataset.make("femnist", {"path": str(folder), "share": 0.0})


def test_a_client_without_data_does_not_take_what_lies_in_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, array in GOOD.items():
        np.save(tmp_path / f"{name}.npy", array)
    assert len(local_images(str(tmp_path), TERMS, Experiment(), 0).labels) == 6
    with pytest.raises(Refusal, match="the server has no dataset"):
        local_images("", TERMS, Experiment(dataset="remote"), 0)


PIXELS = [[0.5] * 784]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ({"users": []}, "has no 'num_samples'"),
        (leaf_file({"a": (PIXELS, [62])}), "labels of user a must run from 0 to 61"),
        (leaf_file({"a": (PIXELS, ["q"])}), "labels of user a must be whole numbers"),
        (leaf_file({"a": (PIXELS, [1])}) | {"num_samples": [2]}, "1 x, 1 y and num_samples 2"),
        (leaf_file({"a": (PIXELS, [1])}) | {"num_samples": []}, "names 1 users but 0 num_samples"),
        (leaf_file({"a": (PIXELS, [1])}) | {"user_data": {}}, "has no 'a'"),
        (leaf_file({"a": ([[0.5] * 783], [1])}), "784 pixels"),
        (leaf_file({"a": ([[0.5] * 784, [0.5] * 3], [1, 2])}), "damaged"),
        (leaf_file({"a": ([[1.5] * 784], [1])}), "pixels must be from 0 to 1"),
    ],
)
def test_damaged_leaf_files_are_refused_by_name(tmp_path: Path, content: Any, sentence: str) -> None:
    (tmp_path / "all_data_0.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=sentence) as caught:
        dataset.make("femnist", {"path": str(tmp_path)})
    assert "all_data_0.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def celebrities(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    pictures = folder / "raw" / "img_align_celeba"
    pictures.mkdir(parents=True)
    for name, colour in {"1.png": (255, 0, 0), "2.png": (0, 255, 0), "3.png": (0, 0, 255)}.items():
        image.new("RGB", (178, 218), colour).save(pictures / name)
    return leaf(folder, leaf_file({"2": (["1.png", "3.png"], [0, 1]), "10": (["2.png"], [1])}))


def test_celeba_from_leafs_folder(tmp_path: Path) -> None:
    data = dataset.make("celeba", {"path": str(celebrities(tmp_path)), "test_share": 0.0})
    assert data.inputs.shape == (3, 3, 84, 84)
    assert data.inputs[:, :, 5, 5].tolist() == [[255, 0, 0], [0, 0, 255], [0, 255, 0]]
    assert data.labels.tolist() == [0, 1, 1]
    assert (data.classes, data.mean, data.std) == (2, 0, 1 / 255), "raw pixels"


@pytest.mark.parametrize(
    ("damage", "sentence"), [("missing", "2.png' does not exist"), ("cut", "2.png' is not a picture"), ("all", "img_align_celeba")]
)
def test_missing_or_damaged_pictures_are_refused_by_name(tmp_path: Path, damage: str, sentence: str) -> None:
    folder = celebrities(tmp_path)
    victim = folder / "raw" / "img_align_celeba" / "2.png"
    if damage == "cut":
        victim.write_bytes(victim.read_bytes()[:40])
    elif damage == "missing":
        victim.unlink()
    else:
        (folder / "raw").rename(folder / "elsewhere")
    with pytest.raises(DataError, match=sentence):
        dataset.make("celeba", {"path": str(folder)})


class Hub:
    """A stand-in for flwr_datasets.FederatedDataset."""

    reachable = True

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def load_split(self, split: str) -> Any:
        if not self.reachable:
            raise ConnectionError("no route\nto host")
        image = pytest.importorskip("PIL.Image")
        rows = [{"image": image.new("L", (28, 28), 50 * n), "writer_id": f"w{n % 2}", "character": n} for n in range(4)]
        return Table(rows)


class Table(list[Any]):
    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Hub]:
    module = ModuleType("flwr_datasets")
    monkeypatch.setattr(Hub, "reachable", True)
    module.FederatedDataset = Hub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flwr_datasets", module)
    monkeypatch.setenv("BIFL_DATA", str(tmp_path))
    return Hub


def test_femnist_from_the_hub(hub: type[Hub]) -> None:
    data: Dataset = dataset.make("femnist", {"test_share": 0.5})
    assert data.inputs[:, 0, 3, 3].tolist() == [50 * label for label in data.labels]
    assert data.users is not None
    assert data.users.tolist() == (data.labels % 2).tolist()
    assert len(data.labels) == len(data.test_labels) == 2


def test_no_hub_ends_in_one_sentence(hub: type[Hub], monkeypatch: pytest.MonkeyPatch, here: Run) -> None:
    monkeypatch.setattr(Hub, "reachable", False)
    assert "flwrlabs/femnist could not be fetched (ConnectionError: no route)" in refused(here("run", "dataset=femnist"))
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    assert "pip install 'bifl[datasets]'" in refused(here("run", "dataset=celeba"))
    assert "dataset.path" in refused(here("run", "dataset=npz"))


def test_a_network_that_does_not_fit_is_refused_before_training(tmp_path: Path, here: Run) -> None:
    path = saved(tmp_path / "mine.npz", images=np.zeros((6, 3, 28, 28), np.uint8))
    sentence = refused(here("run", "dataset=npz", f"dataset.path={path}", "clients=2"))
    assert (
        "model 'mnist_cnn' does not take the inputs of dataset 'npz', 3 classes of 28×28 RGB: it takes 1 channel, the" in sentence
    )


@pytest.mark.parametrize(
    ("model", "shape", "end"),
    [
        ("resnet10", (28, 28), "it takes 3 channels, the data have 1: model.channels=1"),
        ("har_cnn", (3, 128), "it takes 9 channels, the data have 3: model.channels=3"),
        ("mnist_cnn", (3, 28, 28), "it takes 1 channel, the data have 3"),
        ("har_cnn", (28, 28, 3), "it takes 2 dimensions, the data have 3; model.channels=9 can be changed"),
        ("mnist_cnn", (4, 128), "it takes 3 dimensions, the data have 2"),  # which PyTorch takes for one grey image
        ("mlp", (64,), "it takes 784 numbers, the data have 64: model.inputs=64"),
        ("mnist_cnn", (32, 32), "its layer linear3 takes 784 numbers and is given 1,024"),
    ],
)
def test_a_network_says_what_it_takes_and_how_it_would_fit(model: str, shape: tuple[int, ...], end: str, tmp_path: Path) -> None:
    kind = np.uint8 if 28 in shape or 32 in shape else np.float32
    path = saved(tmp_path / "mine.npz", images=np.arange(6 * np.prod(shape)).reshape(6, *shape).astype(kind))
    with pytest.raises(ConfigError, match=f": {end}$"):
        build(Experiment(dataset={"name": "npz", "path": str(path)}, model=model, clients=2))
