"""What files claim is checked before memory is allocated for it, and paths before they reach the operating system."""

from __future__ import annotations

import gzip
import io
import json
import resource
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bifl import npz
from bifl.data.datasets import dataset
from bifl.errors import ConfigError, DataError
from bifl.experiment import config_file
from bifl.experiment.settings import Experiment
from tests.experiment.test_trust import with_header
from tests.support.commands import Run, refused

ROOM = 300_000_000  # bytes beyond what the process has: a third of what any of these files would take


@pytest.fixture
def little_memory() -> Iterator[None]:
    """As if memory were short: whoever allocates what a file claims gets a MemoryError."""
    used = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(used.split()[1]) + ROOM, hard))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def saved(path: Path, **changes: Any) -> Path:
    images, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4)
    arrays: dict[str, Any] = {"images": images, "labels": labels, "test_images": images, "test_labels": labels} | changes
    np.savez_compressed(path, **arrays)
    return path


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        (30_000_000, "cannot tell 30000000 classes apart"),
        (80_000, "has 8,160,948 coded and 320,532 real numbers, the file holds 81,958 and 572"),
        (-10, "cannot tell -10 classes apart"),
        (0, "cannot tell 0 classes apart"),
        (10.0, "cannot tell 10.0 classes apart"),
        ("10", "cannot tell 10 classes apart"),
    ],
)
def test_a_models_classes_fit_its_weights(finished: Path, tmp_path: Path, here: Run, classes: object, reason: str) -> None:
    (tmp_path / "model").write_bytes(with_header((finished / "model").read_bytes(), classes=classes))
    assert reason in refused(here("inspect", tmp_path / "model"))


@pytest.mark.parametrize("changes", [{"std": 0}, {"std": float("nan")}, {"mean": float("inf")}, {"mean": 10**400}])
def test_a_models_pixels_are_numbers(finished: Path, tmp_path: Path, here: Run, changes: dict[str, Any]) -> None:
    (tmp_path / "model").write_bytes(with_header((finished / "model").read_bytes(), **changes))
    assert "is not a model file" in refused(here("inspect", tmp_path / "model"))


def test_labels_beyond_a_models_classes_are_refused(finished: Path, tmp_path: Path, here: Run) -> None:
    file = saved(tmp_path / "more.npz", labels=np.array([0, 1, 2, 11]), test_labels=np.array([0, 1, 2, 11]))
    assert "label 11" in refused(here("eval", finished / "model", "npz", f"path={file}"))


@pytest.mark.usefixtures("little_memory")
def test_arrays_that_unpack_to_a_thousand_times_their_file(finished: Path, tmp_path: Path, here: Run) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": (1000, 1000, 1000)})
        for _ in range(1000):
            member.write(bytes(10**6))
    sentence = refused(here("eval", finished / "model", "npz", f"path={path}"))
    assert "would unpack to 1,000,000,128, and more than 100 times a file's size is not read" in sentence


def relabelled(raw: bytes, **fields: Any) -> bytes:
    """An .npz file whose labels have another header."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "labels.npy":
                header = repr({"descr": "<i8", "fortran_order": False, "shape": (4,)} | fields).encode()
                data = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data[128:]
            new.writestr(name, data)
    return out.getvalue()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"shape": (10**9,)}, "by its header, but has 32 bytes"),
        ({"shape": (-4,)}, "by its header, but has 32 bytes"),
        ({"shape": (2**62, 2**62)}, "by its header, but has 32 bytes"),
        ({"shape": (10**9,), "descr": "|S0"}, "neither numbers nor texts"),
        ({"descr": "|O"}, "neither numbers nor texts"),
        ({"descr": [("a", "<i8")]}, "neither numbers nor texts"),
    ],
)
def test_an_array_is_as_long_as_its_header_says(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    file = saved(tmp_path / "mine.npz")
    file.write_bytes(relabelled(file.read_bytes(), **fields))
    with pytest.raises(npz.Damaged, match=reason):
        npz.read(file)


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """The same megabyte under many names: each is small, together they are not."""
    file = saved(tmp_path / "mine.npz", images=np.random.default_rng(0).integers(0, 256, (40, 28, 28), np.uint8))
    raw = file.read_bytes()
    start = raw.index(b"PK\1\2")
    size = struct.unpack_from("<HHH", raw, start + 28)
    entry = raw[start : start + 46 + sum(size)]
    names = [entry[:46] + bytes([65 + n]) + entry[47:] for n in range(10)]
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 10, 10, sum(map(len, names)), start, 0)
    file.write_bytes(raw[:start] + b"".join(names) + end)
    with pytest.raises(npz.Damaged, match=r"its arrays take .* in a file of"):
        npz.read(file)


def test_a_label_does_not_make_a_network_of_any_size(finished: Path, tmp_path: Path, here: Run) -> None:
    for label, reason in ((2**40, "at most 100,000 can be told apart"), (5000, "set dataset.classes=5001")):
        file = saved(tmp_path / "mine.npz", labels=np.array([0, 1, 2, label]))
        assert reason in refused(here("run", "dataset=npz", f"dataset.path={file}", "clients=2"))


@pytest.mark.usefixtures("little_memory")
def test_a_cell_that_unpacks_to_any_length(tmp_path: Path, here: Run) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(500):
            file.write(bytes(10**6))
    assert "unpacks to more than 67,108,864 bytes" in refused(here("report", path))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nested_json(finished: Path, tmp_path: Path, here: Run, opening: str) -> None:
    nested = opening * 100_000
    (tmp_path / "all_data_0.json").write_text(nested)
    assert "nested too deeply" in refused(here("eval", finished / "model", "femnist", f"path={tmp_path}"))
    raw = (finished / "model").read_bytes()
    header = json.dumps({"model": {"name": "mnist_cnn"}}).encode()
    body = raw[:8] + struct.pack("<I", len(nested)) + nested.encode() + raw[12 + len(header) :]
    (tmp_path / "model").write_bytes(body[:-4] + struct.pack("<I", zlib.crc32(body[:-4])))
    assert "nested too deeply" in refused(here("inspect", tmp_path / "model"))


def test_a_nested_config(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("rounds = " + "[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        config_file.read(tmp_path / "config.toml")


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "a\0b"], ["eval", "a\0b", "mnist5k"], ["eval", "{model}", "npz", "path=a\0b"], ["run", "--out", "a\0b"],
        ["run", "--resume", "a\0b"], ["run", "dataset=npz", "dataset.path=a\0b"], ["run", "algorithm=a\0b.py:c"],
        ["compare", "--resume", "a\0b"], ["compare", "algorithms=a\0b.py:c"], ["report", "a\0b"],
        ["report", "{model}", "-o", "a\0b"],
        ["data", "--out", "a\0b"], ["summary", "a\0b.py:c"], ["reproduce", "table1", "--work", "a\0b"], ["keys", "--out", "a\0b"],
    ],
)  # fmt: skip
def test_a_nul_character_in_an_argument(finished: Path, here: Run, words: list[str]) -> None:
    assert "NUL character" in refused(here(*(word.format(model=finished / "model") for word in words)))


@pytest.mark.parametrize(
    "settings",
    [
        {"dataset": {"name": "npz", "path": "a\0b"}}, {"dataset": {"name": "femnist", "path": "a\0b"}},
        {"algorithm": "a\0b.py:c"}, {"model": {"name": "a\0b.py:c"}}, {"partition": "\0"},
    ],
)  # fmt: skip
def test_a_nul_character_in_a_setting(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="NUL character"):
        Experiment(**settings)


def test_a_nul_character_in_a_config(finished: Path, tmp_path: Path) -> None:
    config = (finished / "config.toml").read_text().replace('name = "mnist5k"', 'name = "npz"\npath = "a\\u0000b"')
    (tmp_path / "config.toml").write_text(config)
    with pytest.raises(ConfigError, match=r"dataset\.path must not hold a NUL character"):
        config_file.read(tmp_path / "config.toml")


def test_a_message_shows_no_control_characters(tmp_path: Path, here: Run) -> None:
    sentence = refused(here("inspect", tmp_path / "a\x1b[2J\nb"))
    assert r"a\x1b[2J\nb" in sentence


def test_a_path_that_is_too_long(tmp_path: Path, here: Run) -> None:
    for words in (["dataset=npz", f"dataset.path={'x' * 5000}.npz"], [f"algorithm={'x' * 5000}.py:mine"]):
        refused(here("run", *words))


def test_remote_images_of_any_size_are_refused() -> None:
    for parameters in ({"height": 10**6, "width": 10**6}, {"classes": 10**7}):
        with pytest.raises(ConfigError, match="dataset=remote takes at most"):
            dataset.make("remote", parameters)
    with pytest.raises(DataError, match="does not exist"):
        dataset.make("npz", {"path": "nowhere.npz"})
