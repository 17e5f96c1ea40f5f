"""Whether datasets may be downloaded: not while a report is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed = ContextVar("fetching", default=True)


@contextmanager
def local_only() -> Iterator[None]:
    """Use only data on this machine within this block; downloads raise."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed() -> bool:
    """Whether a dataset may be downloaded now."""
    return _allowed.get()
