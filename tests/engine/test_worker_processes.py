"""Objects between server and workers arrive as they were, small and large, in order."""

from __future__ import annotations

import os
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from bifl.engine.backends import worker_processes as channel


def crossed(*things: Any) -> list[Any]:
    """What the other end of a pipe receives of these, sent one after the other."""
    ours, theirs = Pipe()

    def speak() -> None:
        for thing in things:
            channel.send(ours, thing)

    with ours, theirs:
        sender = Thread(target=speak)
        sender.start()
        found = [channel.receive(theirs) for _ in things]
        sender.join()
    return found


def test_large_and_small_arrays_arrive_as_they_were() -> None:
    """Two large ones in a row as well: neither is written over the other; and sizes that end anywhere."""
    large = [np.arange(size, dtype=np.int64).astype(kind) for size, kind in ((100_001, "u1"), (40_000, "i8"), (300_003, "f4"))]
    large.append(np.full(channel.LARGE + 1, 7, np.uint8))
    things: list[Any] = [{"all": large, "few": np.arange(3), "text": "x"}, ("second", large[1] + 1), None]
    found = crossed(*things)
    for given, arrived in zip([*large, things[0]["few"]], [*found[0]["all"], found[0]["few"]], strict=True):
        assert (arrived.dtype, arrived.tolist()) == (given.dtype, given.tolist())
    assert found[1][1].tolist() == (large[1] + 1).tolist()
    assert (found[0]["text"], found[2]) == ("x", None)


def test_what_arrived_belongs_to_the_receiver() -> None:
    given = np.zeros(channel.LARGE, np.float64)
    (arrived,) = crossed(given)
    arrived += 1
    assert (given.max(), arrived.min()) == (0, 1)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors can be counted on Linux only")
def test_memory_goes_with_what_is_in_it() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert len(crossed(np.zeros(channel.LARGE), np.zeros(channel.LARGE))) == 2
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("nameless", [None, "refused"])
def test_arrays_cross_where_there_is_no_memory_without_a_name(nameless: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system does not know it, or a sandbox forbids it."""
    if nameless is None:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    else:
        monkeypatch.setattr(os, "memfd_create", lambda name: os.open("/nowhere/at/all", os.O_RDWR), raising=False)
    given = np.arange(channel.LARGE)
    (arrived,) = crossed(given)
    assert arrived.tolist() == given.tolist()


def test_what_cannot_be_sent_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who fails to send a large array can still say so."""

    monkeypatch.setattr(os, "memfd_create", lambda name: os.open("/dev/full", os.O_RDWR), raising=False)  # that takes no bytes
    ours, theirs = Pipe()
    with ours, theirs:
        with pytest.raises(OSError, match="Invalid argument"):
            channel.send(ours, np.zeros(channel.LARGE))
        channel.send(ours, "why")
        assert channel.receive(theirs) == "why"


def test_a_sender_that_died_halfway_is_the_end() -> None:
    """It said that a large array follows, and was gone before it handed it over."""
    ours, theirs = Pipe()
    with theirs:
        with ours:
            ours.send([channel.LARGE])
            ours.send_bytes(b"")
        with pytest.raises((EOFError, OSError)):
            channel.receive(theirs)
