"""CIFAR-10 from every container and nothing but CIFAR-10, UNIPEN's characters, a LEAF folder that trains, networks for them."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bifl.data import cifar, fetching
from bifl.data.datasets import dataset
from bifl.data.unipen import spread
from bifl.errors import BiflError, ConfigError, DataError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from bifl.nn.models import model
from bifl.nn.network import Network
from tests.support.archives import npm, packed
from tests.support.commands import Run

IMAGES = 4
NAMES = ["data_batch_1", "data_batch_2", "test_batch"]


def tables() -> dict[str, Any]:
    """Batches as (n, 3073) bytes."""
    dice = np.random.default_rng(0)
    labels = {name: dice.integers(0, 10, (IMAGES, 1), np.uint8) for name in NAMES}
    return {name: np.hstack([labels[name], dice.integers(0, 256, (IMAGES, cifar.PIXELS), np.uint8)]) for name in NAMES}


TABLES = tables()
FAMILY = cifar.Family({name: hashlib.sha256(table.tobytes()).hexdigest() for name, table in TABLES.items()}, IMAGES)


def pickled(table: Any) -> bytes:
    """A batch as Python 2 pickled it: `data` is an array whose bytes are a string, `labels` a list."""
    pixels = table[:, 1:].tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85q\x04U\x01bq\x05\x87Rq\x06"
        b"(K\x01K" + bytes([len(table)]) + b"M\x00\x0c\x86cnumpy\ndtype\nq\x07U\x02u1q\x08K\x00K\x01\x87Rq\x09"
        b"(K\x03U\x01|q\x0aNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + len(pixels).to_bytes(4, "little") + pixels + b"q\x0btb"
    )  # fmt: skip
    labels = b"]q\x0c(" + b"".join(b"K" + bytes([label]) for label in table[:, 0]) + b"e"
    return bytes(b"\x80\x02}q\x01(U\x04data" + array + b"U\x06labels" + labels + b"U\x0bbatch_labelU\x01xu.")


def picture(table: Any) -> bytes:
    rows = table[:, 1:].reshape(len(table), 3, -1).transpose(0, 2, 1)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(rows)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIFL_DATA", str(tmp_path))
    return tmp_path


def check_arrays() -> None:
    images, labels, test_images, test_labels = cifar.load(FAMILY)
    assert images.shape == (2 * IMAGES, 3, 32, 32)
    assert labels.tolist() == [*TABLES[NAMES[0]][:, 0], *TABLES[NAMES[1]][:, 0]]
    assert test_labels.tolist() == TABLES["test_batch"][:, 0].tolist()
    assert np.array_equal(test_images.reshape(IMAGES, -1), TABLES["test_batch"][:, 1:])


@pytest.mark.parametrize("place", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-py"])
def test_cifar_from_a_folder(folder: Path, place: str) -> None:
    (folder / place).mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        if place.endswith("py"):
            (folder / place / name).write_bytes(pickled(table))
        else:
            (folder / place / f"{name}.bin").write_bytes(table.tobytes())
    with fetching.local_only():
        check_arrays()


def test_the_pickles_of_this_test_are_such_as_python_reads() -> None:
    found = pickle.loads(pickled(TABLES["test_batch"]).replace(b"numpy.core", b"numpy._core"), encoding="latin-1")
    assert np.array_equal(found["data"], TABLES["test_batch"][:, 1:])
    assert found["labels"] == TABLES["test_batch"][:, 0].tolist()


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harm"),))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (pickle.dumps(Hostile()), "0 bytes of pixels|bytes of pixels and 0 labels"),
        (pickled(TABLES["test_batch"])[:-9000], "cannot be read as a batch"),
        (b"", "cannot be read as a batch"),
        (b"\x80\x02T\xff\xff\xff\x7f" + b"x" * 20, "cannot be read as a batch"),
        (pickled(TABLES["data_batch_2"]), "sha256 differs"),
    ],
    ids=["code", "short", "empty", "long string", "another"],
)
def test_other_pickles_are_refused_and_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes, sentence: str) -> None:
    monkeypatch.chdir(folder)
    for name, table in TABLES.items():
        (folder / name).write_bytes(pickled(table))
    (folder / "test_batch").write_bytes(raw)
    with pytest.raises(DataError, match=sentence):
        cifar.load(FAMILY)
    assert not (folder / "harm").exists()


def test_cifar_from_its_authors_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"cifar-10-batches-bin/{name}.bin": table.tobytes() for name, table in TABLES.items()}
    monkeypatch.setattr(cifar, "ARCHIVE", packed(folder / "a.tar.gz", files).as_uri())
    check_arrays()
    monkeypatch.setattr(cifar, "ARCHIVE", "file:///nowhere")
    with fetching.local_only():
        check_arrays()  # it was kept


def pictures() -> dict[str, bytes]:
    """What npm's package holds."""
    labels = [table[:, 0].tolist() for table in TABLES.values()]
    lists = {"train_lables.json": json.dumps(labels[0] + labels[1]).encode(), "test_lables.json": json.dumps(labels[2]).encode()}
    return {f"{name}.png": picture(table) for name, table in TABLES.items()} | lists


@pytest.fixture
def no_author(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "ARCHIVE", "file:///nowhere")


@pytest.mark.usefixtures("no_author")
def test_cifar_from_pictures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(folder, monkeypatch, cifar.NPM_PACKAGE, pictures())
    check_arrays()
    assert (folder / "cifar10/cifar-10-batches-bin/test_batch.bin").read_bytes() == TABLES["test_batch"].tobytes()


@pytest.mark.parametrize("order", list(permutations(NAMES)), ids=",".join)
@pytest.mark.parametrize("source", ["author", "npm"])
def test_cifar_is_the_same_in_whatever_order_it_is_packed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str, order: tuple[str, ...]
) -> None:
    files = {f"cifar-10-batches-bin/{name}.bin": TABLES[name].tobytes() for name in order}
    archive = packed(folder / "a.tar.gz", files).as_uri() if source == "author" else "file:///nowhere"
    monkeypatch.setattr(cifar, "ARCHIVE", archive)
    there = pictures()
    npm(folder, monkeypatch, cifar.NPM_PACKAGE, {f"{name}.png": there.pop(f"{name}.png") for name in order} | there)
    check_arrays()


@pytest.mark.parametrize("order", list(permutations(NAMES)), ids=",".join)
def test_cifar_is_the_same_in_whatever_order_its_source_names_the_batches(
    folder: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    monkeypatch.setattr(cifar, "_from_author", lambda family: {name: TABLES[name].tobytes() for name in order})
    check_arrays()
    with fetching.local_only():
        check_arrays()  # as it was kept


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"test_batch.png": picture(TABLES["test_batch"][:2])},
            r"not one of CIFAR-10's batches, .* \(it is \(1024, 2\) RGB",
        ),
        ({"test_batch.png": b"\x89PNG"}, "not one of CIFAR-10's batches"),
        ({"test_lables.json": b"[1, 2, 3, 999]"}, "could be fetched neither"),
        ({"test_lables.json": b"{"}, "could be fetched neither"),
        ({"test_lables.json": b"7"}, "could be fetched neither"),
        ({"data_batch_1.png": picture(TABLES["test_batch"])}, "could be fetched neither"),
    ],
    ids=["fewer", "damaged", "large label", "no JSON", "no list", "others"],
)
@pytest.mark.usefixtures("no_author")
def test_other_pictures_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, bytes], sentence: str
) -> None:
    npm(folder, monkeypatch, cifar.NPM_PACKAGE, pictures() | changes)
    with pytest.raises(DataError, match=sentence):
        cifar.load(FAMILY)
    assert not (folder / "cifar10").exists()


def test_members_are_bounded(tmp_path: Path) -> None:
    with packed(tmp_path / "a.tgz", {"a": b"123"}).open("rb") as file, pytest.raises(ValueError, match="more than 2 bytes"):
        fetching.members(file, ["a"], 2)


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
    assert f"{parameters:,} parameters" in model.summary(name)
    assert Network(module).misfit({"input": torch.zeros(1, *shape)}, (classes,)) is None


def test_shortcuts_count() -> None:
    """A block without convolutions is its shortcut."""
    module = model.make("resnet10", {}, 10).eval()
    block = module.get_submodule("block2")
    images = torch.randn(1, 64, 8, 8).abs()
    torch.nn.init.zeros_(block.get_submodule("norm2").get_parameter("weight"))
    assert torch.equal(block(images), images)


def test_a_picture_of_another_size_is_refused(folder: Path) -> None:
    np.savez(folder / "small.npz", images=np.zeros((40, 3, 8, 8), np.uint8), labels=np.arange(40) % 10)
    with pytest.raises(BiflError, match="cifar_cnn"):
        build(Experiment.of("cifar10-iid", ["dataset=npz", f"dataset.path={folder}/small.npz", "clients=4"]))
