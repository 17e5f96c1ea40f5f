"""Processes: how many, how much memory they may take, and such as do not outlive who started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

# A killed parent cannot end its children: let the system do it, where it can (Linux: PR_SET_PDEATHSIG).
_DIE_WITH_PARENT = """
import ctypes, os, sys
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, 9)
os.execvp(sys.argv[1], sys.argv[1:])
"""

# For processes that train: glibc gives large blocks back as soon as they are free, and every step wants them back: page faults.
KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "536870912", "MALLOC_TOP_PAD_": "16777216"}


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that can be had, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def tied(command: Iterable[str | Path]) -> list[str]:
    """The command, so that it ends with who starts it."""
    return [sys.executable, "-S", "-c", _DIE_WITH_PARENT, *map(str, command)]
