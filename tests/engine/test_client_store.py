"""Clients whose state is kept in a file instead of memory: the same results, and a sentence where there is no room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bifl
from bifl.core.state import Client
from bifl.engine.client_store import ClientStore
from tests.engine.test_runtime import without_seconds
from tests.support.federation import quick


def test_clients_on_a_shelf_give_the_same_records(monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    experiment = quick(small)
    in_memory = without_seconds(list(bifl.simulate(experiment)))
    monkeypatch.setattr("bifl.engine.worker.LIMIT", 0)
    monkeypatch.setattr("bifl.engine.client_store.BLOCK", 2**16)  # a block for every client
    assert without_seconds(list(bifl.simulate(experiment))) == in_memory


def test_arrays_on_a_shelf_may_change_places() -> None:
    """What is put back may be what is stored there, under another name."""
    fresh = np.zeros(3000, np.float32)
    store = ClientStore(fresh)
    store[0] = Client(fresh + 1, fresh + 2, fresh, weight=1, memory=fresh + 3)
    stored = store[0]
    store[0] = stored._replace(aux=stored.start, start=stored.aux)
    assert [float(array[0]) for array in (store[0].aux, store[0].start, store[0].memory)] == [2, 1, 3]


def test_a_shelf_without_room_says_so() -> None:
    program = """
import resource, signal, numpy as np
from bifl.core import Client
from bifl.engine.client_store import ClientStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
fresh = np.zeros(3000, np.float32)
ClientStore(fresh)[0] = Client(fresh + 1, fresh, fresh, weight=1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "RunError: no room for more than 0.0 GB of clients' state" in done.stderr
