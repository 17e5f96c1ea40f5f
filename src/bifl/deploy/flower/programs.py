"""Starts and stops the two programs of a deployment, `superlink` and `supernode`. They end when this process ends."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bifl.errors import ConfigError, RunError, quoted
from bifl.files import writing
from bifl.processes import tied

ADMITTED = "SuperNode ID:"  # in the log of a node that the server has let in
TOKEN = "BIFL_TOKEN"  # in the environment, which only this user can read: the token by which a SuperLink knows its server
_PROBLEM = "bifl: "  # how the sentence of a problem begins in a client's pipe
_LONGEST = 900  # characters of a sentence: a line stays below the 4,096 bytes that a pipe takes at once
_READ = 2**16  # bytes: as many as a pipe holds


def without_proxy() -> dict[str, str]:
    """The environment's words by which this machine is reached directly."""
    hosts = ("localhost", "127.0.0.1")
    return {name: ",".join(filter(None, [os.environ.get(name, ""), *hosts])) for name in ("no_proxy", "NO_PROXY")}


def address(text: str) -> tuple[str, int]:
    """`host:port` as two things."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"an address is host:port, not '{text}'")
    return host.strip("[]"), int(port)


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(
    program: str, words: Iterable[str | Path], home: Path, log: Path, *, pipe: int | None = None, token: str = ""
) -> subprocess.Popen[bytes]:
    """Start a program, which may get a pipe and a token; Flower's files go to `home`, its output to `log`."""
    command = [sys.executable, "-P", "-m", f"bifl.deploy.flower.{program}", *words]
    environment = dict(os.environ) | without_proxy() | {
        TOKEN: token,
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_OIDC_ENABLED": "0",
        "FLWR_ENABLE_EVENT_LOG": "0",
        "OMP_NUM_THREADS": "1",  # training uses one thread whatever is there: results must not depend on it
    }  # fmt: skip
    with writing(log), log.open("ab") as output:
        return subprocess.Popen(
            tied(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
            pass_fds=[] if pipe is None else [pipe],
            start_new_session=True,  # Ctrl-C is for us
        )  # fmt: skip


def tell_pipe(pipe: int) -> Callable[[str, bool], None]:
    """Tells Flower's log, and `bifl client` through a pipe unless that is full, or closed: a sentence, and whether of a problem."""
    os.set_blocking(pipe, False)
    log = logging.getLogger("flwr")

    def tell(text: str, problem: bool) -> None:
        line = quoted(text, _LONGEST)
        (log.error if problem else log.info)("%s", line)
        with contextlib.suppress(OSError):
            os.write(pipe, f"{_PROBLEM if problem else ''}{line}\n".encode())

    return tell


def read_pipe(pipe: int) -> Iterator[tuple[str, bool]]:
    """What came since the last look, if the pipe is not to be waited for: sentences, and whether each is of a problem."""
    with contextlib.suppress(BlockingIOError):
        for line in os.read(pipe, _READ).decode(errors="replace").splitlines():
            yield line.removeprefix(_PROBLEM), line.startswith(_PROBLEM)


def stop(process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """End a program and its children: SIGTERM first, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def refuse_blanks(environment: str = sys.prefix) -> None:
    """Raise where Flower 1.41's SuperLink cannot run: it lists folders of its own with blanks between them, and makes no tables."""
    if any(character.isspace() for character in environment):
        raise RunError(f"Flower's SuperLink cannot run from a path with a blank: make another environment than '{environment}'")


def last_words(log: Path) -> str:
    """The end of a log, in one line."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return (" ".join(lines[-3:])[-400:] or "it said nothing") + f" (see '{log}')"


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end us as Ctrl-C does, with everything tidied up."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
