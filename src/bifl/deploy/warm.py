"""A process that has imported what a client's turn needs, and forks a process for each of a client's messages.

Flower gives every message a process of its own, and importing torch, Flower and bifl takes three seconds of a processor in each: a
round with a secure sum has five exchanges or eight. Here it is paid once. The process ends with who started it, and when nothing
was asked of it for a while, so that a client that waits all day holds no memory for it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

IDLE = 300.0  # seconds without a request after which it ends
_LONGEST = 2**16  # bytes of a request: the words of a command line
SUPPORTED = sys.platform == "linux"  # elsewhere a fork after such imports is not safe


class WarmProcess:
    """Starts such a process when it is first needed, and asks it.

    Args:
        command: that starts it.
        popen: as of `subprocess`.
    """

    def __init__(self, command: Sequence[str], popen: Callable[..., Any] = subprocess.Popen) -> None:
        self._command, self._popen = command, popen
        self._socket: socket.socket | None = None

    def start(self, words: Sequence[str]) -> bool:
        """Let a process run a command; False where it could not."""
        for _ in range(2):  # the first one may just have ended, having been idle
            try:
                if self._socket is None:
                    self._socket = self._begun()
                self._socket.sendall(json.dumps(list(words)).encode() + b"\n")
                if self._socket.recv(1):
                    return True
            except OSError:
                pass
            if self._socket is not None:
                self._socket.close()
            self._socket = None
        return False

    def _begun(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._popen(list(self._command), stdin=theirs.fileno())
        return ours


def serve(run: Callable[[list[str]], None], asked: socket.socket, idle: float = IDLE) -> None:
    """Fork for every request until nobody asks any more.

    Args:
        run: what a fork does with the words of a request.
        asked: where requests come from: a line of JSON each, answered with one byte when the fork is there.
        idle: seconds to wait for a request.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    rest = b""
    while len(rest) < _LONGEST and select.select([asked], [], [], idle)[0] and (data := asked.recv(_LONGEST)):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not os.fork():
                _be(run, json.loads(line), asked)
            asked.sendall(b"\0")


def _be(run: Callable[[list[str]], None], words: list[str], asked: socket.socket) -> None:
    """Be the fork: never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, asked.fileno())  # requests are for the parent alone; it is standard input, too
        os.close(nothing)
        run(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
