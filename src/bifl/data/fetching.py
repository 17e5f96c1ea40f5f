"""Whether data that are not here may be fetched: not for a picture in a report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_allowed = ContextVar("fetching", default=True)


@contextmanager
def local_only() -> Iterator[None]:
    """Take what is on this machine, or refuse."""
    before = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(before)


def allowed() -> bool:
    """Whether to try."""
    return _allowed.get()
