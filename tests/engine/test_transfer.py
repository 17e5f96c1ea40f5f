"""An algorithm and a network reach worker processes: by name where they have one, as code where they have not."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from torch import nn

import bifl
from bifl.algorithms.paper import up_down
from bifl.core.algorithm import Algorithm, register
from bifl.experiment.settings import Experiment
from bifl.nn.models import model
from bifl.runs.record import Record

CODE = """
from dataclasses import replace
from functools import lru_cache

from torch import nn

from bifl.algorithms.paper import up_down
from bifl.core.algorithm import Algorithm, register
from bifl.nn.models import model


@lru_cache
def levels(voters: int) -> tuple[float, ...]:
    return tuple(2 * votes / voters - 1 for votes in range(voters + 1))


@lru_cache(maxsize=1)
def hidden() -> int:
    return 8


class Scores(nn.Sequential):
    pass


def upload(*given):
    assert levels(2) == (-1, 0, 1)
    return up_down().upload(*given)


@register
def {name}(beta: float = 1.0) -> Algorithm:
    'With a cache at module level.'
    return replace(up_down(beta), upload=upload)


@model
def {name}_network(classes: int) -> nn.Module:
    return Scores(nn.Flatten(), nn.Linear(784, hidden()), nn.BatchNorm1d(hidden()), nn.Tanh(), nn.Linear(hidden(), classes))
"""


def records(algorithm: str, network: str, workers: int) -> list[Record]:
    experiment = Experiment(algorithm=algorithm, model=network, clients=4, rounds=2, workers=workers)
    return [record._replace(seconds=0) for record in bifl.simulate(experiment)]


def test_a_file_with_a_cache_at_module_level_reaches_the_workers(tmp_path: Path) -> None:
    (tmp_path / "cached.py").write_text(CODE.format(name="cached"))
    names = f"{tmp_path}/cached.py:cached", f"{tmp_path}/cached.py:cached_network"
    assert records(*names, workers=2) == records(*names, workers=1)


def test_workers_run_the_file_as_it_was_read(tmp_path: Path) -> None:
    """An edit during a long comparison must not give the server and its workers different algorithms."""
    (tmp_path / "edited.py").write_text(CODE.format(name="edited"))
    names = f"{tmp_path}/edited.py:edited", "edited_network"  # once the file was run, short names will do
    alone = records(*names, workers=1)
    experiment = Experiment(algorithm=names[0], model=names[1], clients=4, rounds=2, workers=2)
    (tmp_path / "edited.py").write_text("raise SystemExit")
    assert [record._replace(seconds=0) for record in bifl.simulate(experiment)] == alone


def test_what_a_function_of_a_file_defines_need_not_be_pickled(tmp_path: Path) -> None:
    """The worker runs the file, which may hold what no pickle can: a lock, an open file."""
    (tmp_path / "locked.py").write_text("""
from threading import Lock

from bifl.algorithms.paper import up_down
from bifl.core.algorithm import register

lock = Lock()


def define():
    def behind_a_lock(beta: float = 1.0):
        with lock:
            return up_down(beta)

    register(behind_a_lock)


define()
""")
    names = f"{tmp_path}/locked.py:behind_a_lock", "mlp"
    assert records(*names, workers=2) == records(*names, workers=1)


def test_what_a_function_defines_reaches_the_workers() -> None:
    steps = [0.5]

    @lru_cache
    def width() -> int:
        return 6

    @register
    def defined_in_a_test() -> Algorithm:
        """Of a function's body."""
        return up_down(beta=steps[0])

    @model
    def network_of_a_test(classes: int) -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(784, width()), nn.BatchNorm1d(width()), nn.Tanh(), nn.Linear(width(), classes)]
        return nn.Sequential(*layers)

    names = "defined_in_a_test", "network_of_a_test"
    assert records(*names, workers=2) == records(*names, workers=1)


def test_what_a_script_defines_reaches_the_workers() -> None:
    setting = "algorithm='scripted', model='scripted_network', rounds=1, clients=2, workers=2"
    run = f"import bifl\nfor record in bifl.simulate(bifl.Experiment({setting})):\n    print(record.round)\n"
    script = CODE.format(name="scripted") + run
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")
