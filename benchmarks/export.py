"""What an exported model costs, and whether it computes the same.

    python benchmarks/export.py MODEL           sizes and the latency of one image; MODEL is a run's model of mnist_cnn
    python benchmarks/export.py MODEL mnist     the classes of all test images: onnxruntime and C beside PyTorch
    python benchmarks/export.py gemv            the fully connected layer of femnist_cnn, bits against floats
    python benchmarks/export.py MODEL har FILE.npz   500 windows of UCI HAR on an emulated Cortex-M4; MODEL is one of har_cnn

Every figure of time is a ratio: all candidates take turns within one run; of each the quickest turn counts, and the median one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from bifl.data.datasets import dataset
from bifl.experiment.model import Model
from bifl.export.c_model import Code, code_of, folder_of, generate
from bifl.export.raw import Normalisation, outputs, raw_inputs
from bifl.nn.batch import normalise
from bifl.nn.binarize import binarize, layers_of
from bifl.nn.models import femnist_cnn

FLAGS = ["-std=c99", "-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC"]
ARM_FLAGS = ["-std=c99", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-O2", "-ffp-contract=off"]
TURNS = 200
Candidate = Callable[[], object]


def library(folder: Path, name: str) -> ctypes.CDLL:
    """A folder's C as a library; the loop around it is C too, as on a device."""
    (folder / "again.c").write_text(
        '#include "model.h"\nvoid again(int n, const model_input *in, float *out, float *work)'
        "\n{\n    while (n--)\n        model_predict(in, out, work);\n}\n"
    )
    subprocess.run(["cc", *FLAGS, "-o", f"{name}.so", "model.c", "again.c", "-lm"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / f"{name}.so"))


def caller(built: ctypes.CDLL, code: Code, raw: np.ndarray[tuple[int, ...], np.dtype[np.generic]], times: int) -> Candidate:
    output, work = np.zeros(code.outputs, np.float32), np.zeros(max(code.memory.size, 1), np.float32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (raw, output, work)]
    kept = (raw, output, work)

    def call() -> object:
        built.again(times, *pointers)
        return kept

    return call


class Times(NamedTuple):
    """Seconds of one call."""

    best: float
    median: float


def turns(candidates: dict[str, tuple[Candidate, int]]) -> dict[str, Times]:
    """Turn after turn, each candidate's calls."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(TURNS):
        for name, (call, calls) in candidates.items():
            began = time.perf_counter()
            call()
            taken[name].append((time.perf_counter() - began) / calls)
    return {name: Times(min(times), median(times)) for name, times in taken.items()}


def report(times: dict[str, Times], unit: str) -> None:
    for name, (best, middle) in times.items():
        ratios = f"{best / times[unit].best:5.2f} × (median {middle / times[unit].median:.2f} ×) {unit}"
        print(f"{name:28} best {best * 1e6:7.1f} µs, median {middle * 1e6:7.1f}   {ratios}")


def repeated(call: Candidate, times: int) -> Candidate:
    def several() -> None:
        for _ in range(times):
            call()

    return several


def latency(path: Path) -> None:
    """One image: C, onnxruntime with one thread on the packed and on the float model, PyTorch with one thread."""
    import onnxruntime

    from bifl.export import onnx_file

    torch.set_num_threads(1)
    model = Model.read(path, trust=True)
    module = model.module().eval()
    code = code_of(model, module, model.shape, path)
    packed = onnx_file.contents(model, module, model.shape, path)
    floats = onnx_file.float_model(model, module, model.shape, path).SerializeToString()
    print(f"ONNX {len(packed):,} bytes packed, {len(floats):,} as floats; C {code.flash:,} bytes of flash, {code.ram:,} of RAM")
    raw = raw_inputs(model, model.shape, 1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    sessions = [onnxruntime.InferenceSession(file, options) for file in (packed, floats)]
    tensor = torch.from_numpy(raw)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name, text in folder_of(model, module, code, model.shape).items():
            (Path(folder) / name).write_text(text)
        times = turns(
            {
                "C": (caller(library(Path(folder), "model"), code, raw, 10), 10),
                "onnxruntime, packed": (repeated(lambda: sessions[0].run(None, {"input": raw}), 10), 10),
                "onnxruntime, float": (repeated(lambda: sessions[1].run(None, {"input": raw}), 10), 10),
                "PyTorch": (repeated(lambda: module(normalise(tensor, model.mean, model.std)), 5), 5),
            }
        )
    report(times, "onnxruntime, packed")


def agreement(path: Path, name: str) -> None:
    """Classes of all test images: onnxruntime and C beside PyTorch."""
    import onnxruntime

    from bifl.export import onnx_file

    model = Model.read(path, trust=True)
    module, data = model.module().eval(), dataset.make(name, dataset.parameters(name))
    raw = data.test_inputs.copy()
    with torch.inference_mode():
        wanted = module(normalise(torch.from_numpy(raw), model.mean, model.std)).numpy()
    session = onnxruntime.InferenceSession(onnx_file.contents(model, module, model.shape, path))
    scores = session.run(None, {"input": raw})[0]
    with tempfile.TemporaryDirectory() as folder:
        code = code_of(model, module, model.shape, path)
        for file, text in folder_of(model, module, code, model.shape).items():
            (Path(folder) / file).write_text(text)
        subprocess.run(["make", "-s", "predict"], cwd=folder, check=True)
        done = subprocess.run([f"{folder}/predict"], input=raw.tobytes(), capture_output=True, check=True)
    found = np.array(done.stdout.split(), np.int64)
    print(f"{len(raw):,} images; onnxruntime's scores within {np.abs(scores - wanted).max():.1e} of PyTorch's")
    answers = wanted.argmax(1)
    print(f"other classes than PyTorch's: onnxruntime {(scores.argmax(1) != answers).sum()}, C {(found != answers).sum()}")


def gemv() -> None:
    """3,136 × 2,048 weights times a vector: bits in C, floats by PyTorch's library."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = nn.Linear(3136, 2048)
    floats = torch.randn(2048, 3136)
    layer.weight.data = layer.weight.sign()
    how = Normalisation("float", 1.0, (0.0,), (1.0,))
    code = generate(nn.Sequential(layer).eval(), (3136,), how)
    raw = np.random.default_rng(0).normal(size=3136).astype(np.float32)
    vector = torch.from_numpy(raw)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.h").write_text(code.header("linear3"))
        (Path(folder) / "model.c").write_text(code.source("linear3"))
        bits = caller(library(Path(folder), "layer"), code, raw, 1)
        report(turns({"bits, C": (bits, 1), "floats, PyTorch's GEMV": (lambda: torch.mv(floats, vector), 1)}), "bits, C")
    whole = generate(signed(femnist_cnn(62)), (1, 28, 28), Normalisation("uint8_t", 255.0, (0.0,), (1.0,)))
    print(f"femnist_cnn: {whole.flash:,} bytes of flash, {whole.ram:,} of RAM")


def signed(module: nn.Module) -> nn.Module:
    """A network whose layers are binary."""
    for _, layer, _ in layers_of(binarize(module)):
        assert isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear))
        layer.weight.data = layer.weight.sign()
    return module.eval()


def har(path: Path, windows: Path) -> None:
    """500 test windows on qemu's mps2-an386, beside PyTorch."""
    model = Model.read(path, trust=True)
    module, data = model.module().eval(), dataset.make("uci_har", {"path": str(windows)})
    chosen = np.linspace(0, len(data.test_inputs) - 1, 500).astype(int)
    raw, labels = np.ascontiguousarray(data.test_inputs[chosen], np.float32), np.asarray(data.test_labels)[chosen]
    answers = outputs(model, module, raw).argmax(1).numpy()
    code = code_of(model, module, model.shape, path)
    print(f"har_cnn: {code.flash:,} bytes of constants, {code.ram:,} of RAM")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in folder_of(model, module, code, model.shape).items():
            (folder / file).write_text(text)
        subprocess.run(["make", "-s", "predict", "predict.elf"], cwd=folder, check=True)
        counts = [instructions(folder, raw[:count]) for count in (1, 2)]
        found = np.array(emulated(folder, raw), np.int64)
        object_file = ["arm-none-eabi-gcc", *ARM_FLAGS, "-c", "model.c"]
        subprocess.run(object_file, cwd=folder, check=True)
        sections = subprocess.run(["arm-none-eabi-size", "model.o"], cwd=folder, capture_output=True, text=True, check=True)
    right = [(given == labels).mean() for given in (answers, found)]
    print(f"accuracy on {len(raw)} windows: PyTorch {right[0]:.1%}, Cortex-M4 {right[1]:.1%}")
    print(f"other class than PyTorch: {(found != answers).sum()} of {len(raw)}")
    print(f"instructions per window: {counts[1] - counts[0]:,}")
    print(f"model.c, code and constants:\n{sections.stdout}")


def board(folder: Path, *more: str) -> list[str]:
    machine = ["qemu-system-arm", "-machine", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none", *more]
    return [*machine, "-semihosting-config", "enable=on,target=native,arg=predict", "-kernel", str(folder / "predict.elf")]


def emulated(folder: Path, inputs: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> list[str]:
    done = subprocess.run(board(folder), input=inputs.tobytes(), capture_output=True, check=True)
    return done.stdout.decode().split()


def instructions(folder: Path, inputs: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> int:
    """That the emulator executes, one by one: its trace has a line for each. Millions of lines: they go through a pipe."""
    given, log = folder / "inputs", folder / "trace"
    given.write_bytes(inputs.tobytes())
    os.mkfifo(log)
    with given.open("rb") as source:
        command = board(folder, "-singlestep", "-d", "exec,nochain", "-D", str(log))
        with subprocess.Popen(command, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), log.open("rb") as lines:
            count = sum(line.startswith(b"Trace") for line in lines)
    log.unlink()
    return count


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["gemv"]:
            gemv()
        case [file, "har", windows]:
            har(Path(file), Path(windows))
        case [file, name]:
            agreement(Path(file), name)
        case [file]:
            latency(Path(file))
        case _:
            sys.exit(__doc__)
