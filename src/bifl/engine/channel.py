"""Between the server and a worker: any object over a pipe, large arrays in memory that is handed over.

A pipe copies what it carries several times, a few hundred kilobytes at a turn. Arrays of `LARGE` bytes or more are written once
into memory that has no name, and the pipe carries its descriptor: the receiver maps it and is its only owner, as long as it keeps
the arrays. Nothing is left of it if either end is killed. The two ends must not send at the same time.
"""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
from contextlib import nullcontext
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, BinaryIO

LARGE = 2**18  # bytes
_ALIGNED = 64  # arrays begin at multiples of this: a line of the processor's cache


def send(to: Connection, thing: Any) -> None:
    """Send an object.

    Raises:
        OSError: the other end is gone, or there is no memory left; then nothing was sent.
    """
    large: list[memoryview] = []

    def within(buffer: pickle.PickleBuffer) -> bool:
        """Whether the pipe carries it."""
        small = buffer.raw().nbytes < LARGE
        if not small:
            large.append(buffer.raw())
        return small

    data = pickle.dumps(thing, 5, buffer_callback=within)
    with _nameless() if large else nullcontext() as memory:
        if memory is not None:
            _fill(memory, large)  # before anything is sent, as it may fail
        to.send([buffer.nbytes for buffer in large])
        to.send_bytes(data)
        if memory is not None:
            try:
                send_handle(to, memory.fileno(), 0)
            except RuntimeError as error:  # systems where the other end confirms
                raise ConnectionError(str(error)) from error


def receive(source: Connection) -> Any:
    """The next object that the other end sent.

    Raises:
        EOFError: the other end is gone.
        OSError: it is gone, or what it sent cannot be mapped.
    """
    sizes, data = source.recv(), source.recv_bytes()
    if not sizes:
        return pickle.loads(data)
    try:
        starts, descriptor = _starts(sizes), recv_handle(source)
    except RuntimeError as error:  # no descriptor came, or this process may have no more
        raise ConnectionError(str(error)) from error
    try:
        memory = memoryview(mmap.mmap(descriptor, starts[-1]))
    finally:
        os.close(descriptor)
    return pickle.loads(data, buffers=[memory[start : start + size] for start, size in zip(starts, sizes, strict=False)])


def _starts(sizes: list[int]) -> list[int]:
    """Where arrays of these sizes begin, and where the last of them ends."""
    return list(accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0))


def _fill(memory: BinaryIO, large: list[memoryview]) -> None:
    """Write these where the receiver will look for them."""
    starts = _starts([buffer.nbytes for buffer in large])
    memory.truncate(starts[-1])
    for start, buffer in zip(starts, large, strict=False):
        memory.seek(start)
        written = 0
        while written < buffer.nbytes:  # a write may take a part of it
            written += memory.write(buffer[written:])


def _nameless() -> BinaryIO:
    """A file that is gone when it is closed: in memory where the system offers that."""
    try:
        return open(os.memfd_create("bifl"), "wb", buffering=0)
    except (AttributeError, OSError):  # not on this system, or not allowed
        return tempfile.TemporaryFile("wb", buffering=0)
