"""`bifl export`: ONNX in onnxruntime, C on this machine and on an emulated Cortex-M4, against PyTorch."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bifl.core.forward import binary, ternary
from bifl.data.datasets import dataset
from bifl.errors import DataError
from bifl.experiment.model import Model
from bifl.export.c_model import generate
from bifl.nn.models import model
from tests.support.commands import Run, refused
from tests.support.exports import PLAIN, SANITIZED, STRICT, Array, make, needs, predict, saved, scattered, scores, write

OWN = """
from torch import nn
import bifl
from bifl.nn.models import model

class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x):
        return nn.functional.relu(x + self.norm2(self.conv2(nn.functional.relu(self.norm1(self.conv1(x))))))

@model
def residual(classes: int) -> nn.Module:
    first = [nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU()]
    return bifl.binarize(nn.Sequential(*first, Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes)), keep=("6",))

@model
def odd(classes: int) -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.ELU(), nn.Flatten(), nn.LayerNorm(4 * 26 * 26), nn.Linear(4 * 26 * 26, classes)]
    return bifl.binarize(nn.Sequential(*layers))

class Deciding(nn.Sequential):
    def forward(self, x):
        return super().forward(x if x.isfinite().all() else x.nan_to_num())

@model
def deciding(classes: int) -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 13 * 13, classes)]
    return bifl.binarize(Deciding(*layers))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of mnist_cnn, and of two networks from a user's file."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "own.py").write_text(OWN)
    for name in ("paper", "residual", "odd", "deciding", "ternary"):
        (folder / name).mkdir()
    for name in ("residual", "odd", "deciding"):
        own = f"{folder / 'own.py'}:{name}"
        model.load(own)
        saved(folder / name / "model", own, binary)
    saved(folder / "paper" / "model", "mnist_cnn", binary)
    saved(folder / "ternary" / "model", "mnist_cnn", ternary)
    return folder


def of_pytorch(folder: Path, name: str, images: Array) -> Array:
    read = Model.read(folder / name / "model", trust=True)
    return scores(read.module(), (images.astype(np.float32) / 255 - np.float32(0.1307)) / np.float32(0.3081))


def digits() -> Array:
    return dataset.make("mnist5k", {}).test_inputs


@pytest.mark.parametrize(
    ("name", "most"), [("paper", 20_000), ("residual", 12_000), ("odd", 50_000), ("deciding", 8_000), ("ternary", 60_000)]
)
def test_onnx_gives_what_pytorch_gives(here: Run, trained: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    monkeypatch.chdir(trained)
    done = here("export", f"{name}/model", "--onnx", f"{name}.onnx", "--trust")
    assert done.returncode == 0, done.stderr
    file = trained / f"{name}.onnx"
    assert file.stat().st_size <= most, "weights are packed"
    graph = onnx.load(file)
    onnx.checker.check_model(graph, full_check=True)
    assert {opset.domain for opset in graph.opset_import} <= {"", "ai.onnx"}
    assert graph.opset_import[0].version >= 18
    norms = [node for node in graph.graph.node if node.op_type == "BatchNormalization"]
    assert len(norms) == (1 if name == "deciding" else 0), "where the code can be traced they are folded"
    assert {entry.key for entry in graph.metadata_props} >= {"classes", "network", "rounds", "weights"}
    session = runtime.InferenceSession(file)
    assert [one.name for one in (*session.get_inputs(), *session.get_outputs())] == ["input", "scores"]
    images = digits()
    for batch in (images, images[:1]):  # any size
        wanted = of_pytorch(trained, name, batch)
        found = session.run(None, {"input": batch})[0]
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        np.testing.assert_allclose(Model.read(f"{name}/model", trust=True).predict(batch), found, atol=1e-4)


def test_predict_takes_raw_inputs_as_the_dataset_has_them(trained: Path) -> None:
    images, read = digits()[:1100], Model.read(trained / "paper" / "model")  # more than are computed at a time
    wanted = of_pytorch(trained, "paper", images)
    np.testing.assert_allclose(read.predict(images), wanted, atol=1e-5)
    np.testing.assert_allclose(read.predict(images[:3, 0]), wanted[:3], atol=1e-5)  # as in most files, without channels
    assert read.predict(images[:0]).shape == (0, 10)
    for wrong in (images / 255, images[:, :, :9], images[0, 0, :, :]):
        with pytest.raises(DataError, match=r"mnist_cnn takes bytes of shape \(n, 1, 28, 28\), not "):
            read.predict(wrong)


@needs("cc", "make")
@pytest.mark.parametrize("name", ["paper", "residual", "ternary"])
def test_c_gives_the_same_classes(here: Run, trained: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(trained)
    done = here("export", f"{name}/model", "--c", f"{name}-c", "--trust")
    assert done.returncode == 0, done.stderr
    assert "flash" in done.stdout
    assert "RAM" in done.stdout
    folder = trained / f"{name}-c"
    make(folder, "test")
    found = predict(folder, digits())
    wanted = of_pytorch(trained, name, digits())
    ordered = np.sort(wanted, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 1e-4  # rounding decides ties
    assert clear.mean() > 0.99
    assert [int(line) for line in found] == np.where(clear, wanted.argmax(1), [int(line) for line in found]).tolist()


def test_mnist_cnn_fits_a_small_device(here: Run, trained: Path, tmp_path: Path) -> None:
    done = here("export", trained / "paper" / "model", "--c", tmp_path / "c")
    assert "flash 11.7 kB of weights, RAM 17.1 kB" in done.stdout
    header = (tmp_path / "c" / "model.h").read_text()
    assert "#define MODEL_FLASH_BYTES 11680 " in header
    assert "#define MODEL_RAM_BYTES 17144 " in header
    text = (tmp_path / "c" / "model.c").read_text()
    for word in ("malloc", "double", "math.h"):
        assert word not in text


@needs("gcc", "clang", "make")
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_both_compilers_accept_every_file_and_sanitizers_find_nothing(
    here: Run, trained: Path, tmp_path: Path, compiler: str
) -> None:
    assert here("export", trained / "paper" / "model", "--c", tmp_path).returncode == 0
    strict = SANITIZED if compiler == "gcc" else STRICT  # clang's sanitizers are a package of their own
    make(tmp_path, f"CC={compiler}", f"CFLAGS={strict}", "test")
    images = digits()[:50]
    sanitized = predict(tmp_path, images)
    make(tmp_path, "-B", f"CC={compiler}", "CFLAGS=-O3 -Werror", "predict")
    assert predict(tmp_path, images) == sanitized


@needs("arm-none-eabi-gcc", "qemu-system-arm", "make")
def test_a_cortex_m4_gives_the_same_numbers_to_the_last_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv1d(9, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2), nn.Tanh()]
    module = scattered(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 16, 6)))
    inputs = np.random.default_rng(0).normal(size=(20, 9, 32)).astype(np.float32)
    write(tmp_path, generate(module, (9, 32), PLAIN, classifies=False), inputs, scores(module, inputs))
    make(tmp_path, "predict", "predict.elf", "ARM_FLAGS=-mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16 -O2 -Werror")
    assert emulated(tmp_path, inputs) == predict(tmp_path, inputs)
    assert "0 outputs wrong" in make(tmp_path, "qemu").stdout


@needs("arm-none-eabi-gcc", "qemu-system-arm", "make")
def test_a_cortex_m4_tells_digits_apart(here: Run, trained: Path, tmp_path: Path) -> None:
    assert here("export", trained / "paper" / "model", "--c", tmp_path).returncode == 0
    make(tmp_path, "predict", "predict.elf")
    images = digits()[::10]
    assert emulated(tmp_path, images) == predict(tmp_path, images)


def emulated(folder: Path, inputs: Array) -> list[str]:
    """What predict.elf prints on qemu's board, its standard input the host's."""
    board = ["qemu-system-arm", "-machine", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none"]
    semihosting = ["-semihosting-config", "enable=on,target=native,arg=predict", "-kernel", str(folder / "predict.elf")]
    done = subprocess.run([*board, *semihosting], input=inputs.tobytes(), capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


def test_refusals_are_one_sentence_and_leave_nothing(
    here: Run, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    own, folder, file = trained / "odd" / "model", tmp_path / "c", tmp_path / "m.onnx"
    said = refused(here("export", own, "--c", folder, "--onnx", file, "--trust"))
    assert "cannot become C: layer '1' is a ELU; C has Conv1d, Conv2d, Linear" in said
    assert "--trust" in refused(here("export", own, "--c", folder))
    paper = trained / "paper" / "model"
    assert "needs --onnx FILE, --c DIR, or both" in refused(here("export", paper))
    assert "does not take inputs of shape 1×9×9" in refused(here("export", paper, "--c", folder, "--input", "1x9x9"))
    assert "--input must be sizes such as 1x28x28, not '1x-1'" in refused(here("export", paper, "--c", folder, "--input", "1x-1"))
    assert not folder.exists()
    assert not file.exists()


def test_files_that_an_export_did_not_write_are_kept(here: Run, trained: Path, tmp_path: Path) -> None:
    paper = trained / "paper" / "model"
    assert here("export", paper, "--c", tmp_path).returncode == 0
    assert here("export", paper, "--c", tmp_path).returncode == 0, "what it wrote itself it replaces"
    (tmp_path / "main.c").write_text("int main(void) { return 0; }")
    assert f"'{tmp_path / 'main.c'}' is in the way" in refused(here("export", paper, "--c", tmp_path))
    assert (tmp_path / "main.c").read_text() == "int main(void) { return 0; }"


def test_a_model_file_says_what_its_inputs_look_like(here: Run, trained: Path, tmp_path: Path) -> None:
    read = Model.read(trained / "paper" / "model")
    assert read.shape == (1, 28, 28)
    older = tmp_path / "older"
    older.write_bytes(read.__class__(**{**vars(read), "shape": ()}).to_bytes())
    assert "does not say what its inputs look like: say it, as in --input 1x28x28" in refused(
        here("export", older, "--c", tmp_path / "c")
    )
    assert here("export", older, "--c", tmp_path / "c", "--input", "1x28x28").returncode == 0


def test_a_model_whose_message_is_of_version_1_is_read(trained: Path) -> None:
    """It was written before messages had further vectors, and differs in nothing else."""
    model = trained / "paper" / "model"
    data = bytearray(model.read_bytes())
    start = 12 + int.from_bytes(data[8:12], "little")
    assert data[start : start + 5] == b"BIFL\2"
    data[start + 4] = 1
    data[-8:-4] = zlib.crc32(data[start:-8]).to_bytes(4, "little")
    older = model.with_name("of_version_1")
    older.write_bytes(data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little"))
    assert Model.read(older).to_bytes() == Model.read(model).to_bytes()


@needs("cc", "make")
def test_an_input_that_ends_too_early_is_an_error(here: Run, trained: Path, tmp_path: Path) -> None:
    assert here("export", trained / "paper" / "model", "--c", tmp_path).returncode == 0
    make(tmp_path, f"CFLAGS={STRICT}")
    done = subprocess.run([tmp_path / "predict"], input=bytes(784 + 1), capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stdout.count(b"\n") == 1
    assert b"ends in the middle of an array of 784 values" in done.stderr
