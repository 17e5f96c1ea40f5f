"""Connections of the server's port, bounded: seconds until a request's head is there, its length, connections of one address."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD = 20.0  # seconds in which the head of a request must come
PER_ADDRESS = 256  # connections that one address may hold; this machine's own may hold any number

_held: Counter[str] = Counter()


class BoundedConnection(H11Protocol):  # type: ignore[misc,unused-ignore]
    """uvicorn's connection by h11, which bounds a head to 64 kB (the other one, httptools, does not)."""

    _address = ""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or close it at once."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        _held[self._address] += 1
        if _held[self._address] > PER_ADDRESS and not _is_loopback(self._address):
            transport.abort()
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head that has begun must end in time."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._timer is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove a closed connection from the count."""
        self._stop_waiting()
        _held[self._address] -= 1
        if not _held[self._address]:
            del _held[self._address]
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(HEAD, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
