"""Settings and fixtures for all tests: timing never decides, and a failure today is a failure tomorrow."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported: a second thread waits for a core that another process has

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from bifl.cli import main
from bifl.data.datasets import dataset
from bifl.deploy.certificates import make_keys
from bifl.deploy.server import requests
from bifl.experiment.settings import REGISTRIES
from tests.support.commands import BALLOTS, Run
from tests.support.grid import Clock

collect_ignore = ["base_install", "hostile"]  # looking for doctests would import them, and spoil messages and imports
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background shells let it be ignored, here and in what we start
settings.register_profile("bifl", deadline=None, derandomize=True)
settings.load_profile("bifl")

dataset(lru_cache(dataset.factory("mnist5k")))  # read once for all tests: they build many experiments


@pytest.fixture(autouse=True)
def usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screens as wide as they are without a terminal, whatever the caller's terminal or another package says."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def own_names() -> Iterator[None]:
    """What a test registers, and the user's files that it runs, are gone after it: other tests list the names there are."""
    known = {kind: dict(registry._factories) for kind, registry in REGISTRIES.items()}
    modules = set(sys.modules)
    yield
    for kind, registry in REGISTRIES.items():
        registry._factories = known[kind]
    for name in set(sys.modules) - modules:
        if name.startswith("bifl_user_"):
            del sys.modules[name]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of six clients, for federations of as many or fewer."""
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, ["localhost"], 6)
    return folder


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same within this process: for what needs no process of its own."""
    monkeypatch.chdir(Path.cwd())  # and back afterwards

    def run(*words: str | Path, cwd: Path | None = None, data: Path | None = None) -> subprocess.CompletedProcess[str]:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        if data is not None:
            monkeypatch.setenv("BIFL_DATA", str(data))
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, shown.out, shown.err)

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds that nobody disturbed, nor may disturb."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["run", *BALLOTS, "rounds=4", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A server's time passes only while it sleeps."""

    clock = Clock()
    monkeypatch.setattr(requests, "time", clock)
    monkeypatch.setattr(requests, "LOOK", 0.0)
    return clock


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tenth of the digits, for tests in which accuracy does not matter."""
    digits = dataset.make("mnist5k", {})
    path = tmp_path_factory.mktemp("digits") / "small.npz"
    arrays: dict[str, Any] = {"images": digits.inputs[::10], "labels": digits.labels[::10]}
    np.savez(path, **arrays, test_images=digits.test_inputs[::20], test_labels=digits.test_labels[::20])
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    """--fuzz: how many mutated messages and examples to try, and mutated files of each kind."""
    wanted = "number of mutated messages, of mutated files of each kind, and of Hypothesis' examples (default 100)"
    parser.addoption("--fuzz", default=None, type=int, help=wanted)


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are imported: their decorators read the profile."""
    if config.getoption("--fuzz"):
        settings.register_profile("fuzz", settings.get_profile("bifl"), max_examples=config.getoption("--fuzz"))
        settings.load_profile("fuzz")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first: at the end one process would work on it alone."""
    items.sort(key=lambda item: item.path.name != "test_docs.py")
