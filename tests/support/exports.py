"""Exported models for tests: modules as C and as ONNX, compiled and run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from bifl.core import Message
from bifl.core.forward import Forward
from bifl.experiment.declarations import Choice
from bifl.experiment.model import Model
from bifl.export import c_model
from bifl.export.c_model import Code
from bifl.export.raw import Normalisation
from bifl.nn.models import model
from bifl.nn.network import Network

PLAIN = Normalisation("float", 1.0, (0.0,), (1.0,))
STRICT = "-O1 -Wall -Wextra -Werror -pedantic"
SANITIZED = f"{STRICT} -g -fsanitize=address,undefined -fno-sanitize-recover=all"
Array = npt.NDArray[Any]


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where a program is missing, and say which; `.ci/run` installs all of them."""
    missing = [program for program in programs if not shutil.which(program)]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}, which is not installed here")


def scattered(module: nn.Module, signs: bool = True) -> nn.Module:
    """A module as training leaves one: norms that do something, and weights ±ϑ."""
    for layer in module.modules():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
        elif isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Linear)) and signs:
            layer.weight.data = layer.weight.sign() * layer.weight.abs().mean()
    return module.eval()


def saved(path: Path, name: str, forward: Forward, classes: int = 10, shape: tuple[int, ...] = (1, 28, 28)) -> Path:
    """A model file with random weights and norms, as a run would write it."""
    network, draw = Network(model.make(name, {}, classes), forward), np.random.default_rng(0)
    layout = network.layout
    norms = sum(spec.size for spec in layout.moments)
    means = draw.normal(size=norms)
    trained = [np.full(len(layout.layers), 0.1), draw.normal(0, 0.3, layout.trained - len(layout.layers))]
    reals = np.concatenate([*trained, means, means**2 + draw.uniform(0.5, 2, norms)]).astype(np.float32)
    symbols = draw.integers(0, forward.alphabet.size, layout.count).astype(np.uint8)
    message = Message.of(symbols, forward.alphabet, reals, round=3)
    Model(Choice(name, {}), classes, forward, 0.1307, 0.3081, message, network.constants.read(), shape=shape).save(path)
    return path


def write(folder: Path, code: Code, inputs: Array, outputs: Array) -> None:
    """The folder that `bifl export --c` writes, for a module."""
    c_model.write(c_model.contents(code, inputs, outputs, "a test"), folder)


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["make", "-s", "-C", folder, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def predict(folder: Path, inputs: Array, program: str = "predict") -> list[str]:
    done = subprocess.run([folder / program], input=inputs.tobytes(), capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


def numbers(lines: list[str]) -> Array:
    return np.array([[float(word) for word in line.split()] for line in lines], np.float32)


@torch.no_grad()
def scores(module: nn.Module, inputs: Array) -> Array:
    found: Array = module(torch.from_numpy(inputs)).numpy()
    return found
