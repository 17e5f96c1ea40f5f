"""Workers as processes of this machine, one for each job; of a single job the worker is this process.

A request and what comes of it are any objects over a pipe, large arrays in memory that is handed over. A pipe copies what it
carries several times, a few hundred kilobytes at a turn. Arrays of `LARGE` bytes or more are written once into memory that has no
name, and the pipe carries its descriptor: the receiver maps it and is its only owner, as long as it keeps the arrays. Nothing is
left of it if either end is killed. The two ends must not send at the same time.
"""

from __future__ import annotations

import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import accumulate
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, BinaryIO, cast

from bifl.data.datasets import Dataset
from bifl.data.inputs import map_dataset, save
from bifl.engine.backends.transfer import dumps, loads
from bifl.engine.worker import Call, Job, Worker, Workers
from bifl.errors import BiflError, RunError
from bifl.files import writing
from bifl.processes import KEEPS_MEMORY

LARGE = 2**18  # bytes
_ALIGNED = 64  # arrays begin at multiples of this: a line of the processor's cache
_NO_MORE = None  # follows the last result of a call


@contextmanager
def processes(jobs: Sequence[Job], data: Dataset) -> Iterator[Workers]:
    """Workers with these jobs; none outlives the context."""
    if len(jobs) == 1:
        yield Worker(jobs[0], data)
        return
    with ExitStack() as stack:
        yield _Processes(_start(jobs, data, stack))


class _Processes(Workers):
    """The server's ends of the pipes."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def ask(self, calls: Mapping[int, Call[Any]]) -> Iterator[Any]:
        """What comes of calls to some workers at the same time, as it comes."""
        waiting = [self._pipes[rank] for rank in calls]
        for pipe, call in zip(waiting, calls.values(), strict=True):
            with _alive():
                send(pipe, call)
        while waiting:
            for ready in wait(waiting):
                pipe = cast("Connection", ready)
                result = _receive(pipe)
                if result is _NO_MORE:
                    waiting.remove(pipe)
                else:
                    yield result


def _start(jobs: Sequence[Job], data: Dataset, stack: ExitStack) -> list[Connection]:
    """Pipes to processes that are ready; the stack ends them."""
    paths = os.pathsep.join(path for path in sys.path if path)  # what this process can import, and not the current folder (-P)
    environment = KEEPS_MEMORY | os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    program = f"from {__name__} import main; main()"
    # the workers map the data into memory and the folder is gone before the first round: nothing is left if we are killed later
    with tempfile.TemporaryDirectory(prefix="bifl-") as name:
        folder = Path(name)
        with writing(folder):
            save(data, folder)
        pipes = []
        for job in jobs:
            ours, theirs = Pipe()
            pipes.append(stack.enter_context(ours))
            with theirs:
                descriptor = theirs.fileno()
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", program, str(descriptor)], env=environment, pass_fds=[descriptor],
                    stdin=subprocess.DEVNULL, start_new_session=True,  # Ctrl-C is for us
                )  # fmt: skip
            stack.callback(_end, process)
            start = dumps((job, folder), job.run, data)
            with _alive():
                send(ours, start)
        for pipe in pipes:
            _receive(pipe)  # ready, or why not
    return pipes


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _receive(pipe: Connection) -> Any:
    with _alive():
        result = receive(pipe)
    if isinstance(result, BiflError):
        raise result
    return result


@contextmanager
def _alive() -> Iterator[None]:
    """Turn what a pipe raises whose other end is gone into one sentence."""
    try:
        yield
    except (EOFError, OSError) as error:
        text = "a worker process ended unexpectedly, perhaps for want of memory: try again with fewer workers"
        raise RunError(text) from error


def main() -> None:
    """Serve the server's calls, over the pipe whose number it gave us, until it hangs up."""
    with Connection(int(sys.argv[1])) as server:
        try:
            job, folder = loads(receive(server))
            worker = Worker(job, map_dataset(folder))
            send(server, _NO_MORE)  # ready
            while True:
                for result in receive(server)(worker):
                    send(server, result)
                send(server, _NO_MORE)
        except (EOFError, ConnectionError):
            return  # the server is gone
        except Exception as error:
            if not isinstance(error, BiflError):  # a mistake in an algorithm, most likely: its author wants to see where
                traceback.print_exc()
                error = RunError(f"a client failed with {type(error).__name__}: {error}")
            with suppress(ConnectionError):
                send(server, error)


# ---- any object over a pipe --------------------------------------------------------------------------------------------


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
        memory.write(buffer)
    memory.flush()


def _nameless() -> BinaryIO:
    """A file that is gone when it is closed: in memory where the system offers that."""
    try:
        return open(os.memfd_create("bifl"), "wb")
    except (AttributeError, OSError):  # not on this system, or not allowed
        return tempfile.TemporaryFile("wb")
