"""A client's end: one of Flower's SuperNodes, watched."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from bifl.errors import RunError
from bifl.flower.processes import last_words, stop, supernode
from bifl.screen import console

_LOOK = 0.3  # seconds between two looks at what it says
_AGAIN = 5.0  # seconds until one that was refused tries again


class SuperNode(NamedTuple):
    """One SuperNode, started again whenever it ends."""

    server: str
    authority: Path
    key: Path
    config: dict[str, str | int]
    state: Path

    def stay(self, patience: float) -> None:
        """Take part until interrupted.

        Raises:
            RunError: the server refuses us for longer than `patience` seconds.
        """
        out = console()
        log = self.state / "supernode.log"
        refused_since: float | None = None
        while True:
            begin = log.stat().st_size if log.exists() else 0
            process = supernode(self.server, self.authority, self.key, self.config, self.state / "flower", log)
            try:
                admitted = _wait_for_admission(process, log, begin)
                if admitted:
                    out.print(f"client {self.config['partition-id']} is connected to {self.server}", soft_wrap=True)
                    refused_since = None
                process.wait()
            finally:
                stop(process)
            why = log.read_bytes()[begin:].decode(errors="replace")
            if "CERTIFICATE_VERIFY_FAILED" in why:
                raise RunError(
                    f"{self.server} shows a certificate that '{self.authority}' does not vouch for: is it the right server?"
                )
            refused = not admitted and "2004" in why
            refused_since = (refused_since or time.monotonic()) if refused else None
            if refused_since is not None and time.monotonic() > refused_since + patience:
                raise RunError(f"{self.server} refuses the key '{self.key}': it is not registered there (bifl server does that)")
            reason = "the server refuses the key, or has not noticed yet that we were gone" if refused else last_words(log)
            out.print(f"not connected: {reason}; trying again in {_AGAIN:g} s", soft_wrap=True)
            time.sleep(_AGAIN)


def _wait_for_admission(process: subprocess.Popen[bytes], log: Path, begin: int) -> bool:
    """Whether a SuperNode was admitted before it ended."""
    while True:
        ended = process.poll() is not None
        with log.open("rb") as file:
            file.seek(begin)
            if b"SuperNode ID:" in file.read():
                return True
        if ended:
            return False
        time.sleep(_LOOK)
