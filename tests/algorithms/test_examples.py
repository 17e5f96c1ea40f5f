"""Algorithms of one file each (support/algorithms.py): the same bytes in the loop, with one and two workers, on Flower's nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bifl.core import BINARY, Alphabet, Message, stream
from bifl.core.randomness import random_positions, random_signs
from bifl.engine.loop import loop
from bifl.engine.simulator import Simulation
from bifl.experiment.model import Model
from bifl.experiment.setup import build
from bifl.runs.folder import read_records
from tests.support.algorithms import hadamard
from tests.support.federation import deploy, neighbours, quick, same, simulated
from tests.support.grid import Clock

SHOWN = ("fedvote", "fedpm")  # their model is not the public weights, but what a forward of their own makes of those
GOLDEN_SIGNS = [1, -1, 1, -1, -1, -1, 1, 1, 1, 1, 1, -1]
GOLDEN_POSITIONS = [35, 42, 44, 56, 67, 89, 90, 97]
NAMES = ["example_eden", "example_feedback", "example_adam", "example_trimmed"]
OURS = [
    "murmur", "murmur+down=1of8", "murmur+forward=binary", "eden+p=0.3+down=ternary", "dither+down=16", "sign_majority", "ef_sign",
    "fedvote", "fedpm", "fedbat", "fedmrn", "qsgd", "top_k", "float16", "sparse_loco+chunk=256+most=8",
    "stc+one_in=20", "vqsgd",
]  # fmt: skip
NETWORK = {"name": "mlp", "hidden": 16}  # small: what trains it is not these tests' affair
# a worker's process builds what the settings name, and all others say to it what these do; who adds up: test_contract.py
IN_WORKERS = [*NAMES, "murmur+down=1of8", "ef_sign", "fedpm"]


def chosen(label: str) -> dict[str, str]:
    """An algorithm with its parameters after plus signs."""
    name, *parameters = label.split("+")
    return {"name": name} | dict(parameter.split("=") for parameter in parameters)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Callable[[str], Path]:
    """The run of an algorithm in one process, run once: what the others are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    return cache(lambda name: simulated(folder / name, quick(small, algorithm=chosen(name), model=NETWORK)))


@pytest.mark.parametrize("name", [*NAMES, *OURS])
def test_an_algorithm_is_the_same_everywhere(
    name: str, tmp_path: Path, small: Path, clock: Clock, alone: Callable[[str], Path]
) -> None:
    experiment = quick(small, algorithm=chosen(name), model=NETWORK)
    deploy(neighbours(tmp_path), tmp_path / "deployed", experiment)
    same(alone(name), tmp_path / "deployed")
    *_, (_, public) = loop(experiment)
    saved = Model.read(alone(name) / "model").message
    if saved.update.alphabet == BINARY:
        assert saved.update.symbols.tobytes() == (public.weights > 0).astype(np.uint8).tobytes()
    elif name not in SHOWN:
        assert saved.update.symbols.tobytes() == public.weights.tobytes()


@pytest.mark.parametrize("name", IN_WORKERS)
def test_two_workers_say_the_same_bytes(name: str, tmp_path: Path, small: Path, alone: Callable[[str], Path]) -> None:
    same(alone(name), simulated(tmp_path / "two", quick(small, algorithm=chosen(name), model=NETWORK, workers=2)))


@pytest.mark.parametrize("name", [*NAMES, *OURS])
def test_what_client_and_server_remember_outlives_a_kill(
    name: str, tmp_path: Path, small: Path, alone: Callable[[str], Path]
) -> None:
    """Each round is run by a new process, as far as state goes: nothing but the checkpoint crosses."""
    experiment = quick(small, algorithm=chosen(name), model=NETWORK)
    whole = alone(name)
    (tmp_path / "state").mkdir()
    for rounds in (1, 2, 3):
        resumed = Simulation(build(experiment.changed({"rounds": rounds})), tmp_path / "state")
        records = list(resumed)
    saved, last = whole / "model", tmp_path / "resumed"
    resumed.model().save(last)
    assert saved.read_bytes() == last.read_bytes()
    assert records[-1]._replace(seconds=0) == read_records(whole)[-1]._replace(seconds=0)


def test_a_quarter_of_the_coordinates_is_a_quarter_of_a_bit(tmp_path: Path, small: Path) -> None:
    path = simulated(tmp_path / "run", quick(small, algorithm="example_eden", rounds=1))
    padded, weights = 2**17, 81_958
    reals = 8 * 400  # bytes, at most: header, checksum, scale and the real numbers of mnist_cnn
    assert 8 * read_records(path)[0].up_bytes / 3 < 0.25 * padded + 8 * reals
    assert 0.25 * padded < 0.5 * weights


def test_a_rotation_is_its_own_inverse() -> None:
    values = stream(0, 1, 2, "test").normal(size=256).astype(np.float32)
    np.testing.assert_allclose(hadamard(hadamard(values)), values, atol=1e-6)


def test_four_levels_are_evenly_spaced() -> None:
    message = Message.of(np.arange(4, dtype=np.uint8), Alphabet("four levels", 4), np.zeros(0, np.float32))
    np.testing.assert_allclose(message.update.values(), [-1, -1 / 3, 1 / 3, 1], rtol=1e-6)


def test_random_signs_and_positions_are_golden() -> None:
    """Both ends derive them, perhaps with different versions of numpy: only its raw bits are used."""
    assert random_signs(stream(1, 2, 3, "rotation"), 12).tolist() == GOLDEN_SIGNS
    assert random_positions(stream(1, 2, None, "coordinates"), 100, 8).tolist() == GOLDEN_POSITIONS


def test_streams_of_other_names_rounds_and_senders_differ() -> None:
    names = [(1, 2, 3, "a"), (1, 2, 3, "b"), (1, 2, 4, "a"), (1, 2, None, "a"), (1, 3, 3, "a"), (2, 2, 3, "a"), (12, 2, 3, "a")]
    drawn = {stream(*name).integers(2**62) for name in names}
    assert len(drawn) == len(names)
