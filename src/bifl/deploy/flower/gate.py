"""Who may call what on the port of a SuperLink: an ASGI application in front of Flower's, and connections that are bounded.

Flower serves everything on one port: the calls of clients, of whoever holds the rounds (runtime), and those that start and stop
runs (control), which ask for no credentials. The gate lets strangers make a fixed list of calls, by exact method and path;
everything else needs a token, which only the server's own two processes have.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

TOKEN = "x-bifl-token"  # the header that carries it
FLEET: Mapping[str, tuple[str, ...]] = {
    "/health": ("GET", "HEAD"),
    **{
        f"/v1/fleet/{call}": ("POST",)
        for call in (
            "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
            "push-object", "pull-object", "confirm-message-received",
        )
    },
}  # fmt: skip
SMALL = 2**16  # bytes of a request's body that are read from anybody
LARGE = 2**29  # bytes that are read from a registered client
SILENCE = 60.0  # seconds in which some of a body must come
UPLOAD = 900.0  # seconds in which all of it must come
HEAD = 20.0  # seconds in which the head of a request must come
PER_ADDRESS = 256  # connections that one address may hold; this machine's own may hold any number


class Rejection(NamedTuple):
    """An HTTP answer that the gate gives itself; the request does not reach Flower."""

    status: int
    reason: str


CLOSED = Rejection(
    403, "this port serves the calls of registered clients only; starting and stopping runs is for the server's operator"
)
AMBIGUOUS = Rejection(400, "a request's length must be given once, as Content-Length or as chunks")
STRANGER = Rejection(401, f"more than {SMALL} bytes are taken from registered clients only")
TOO_LARGE = Rejection(413, f"a request may have {LARGE} bytes at most")
TOO_SLOW = Rejection(408, "the request did not come in time")


class Gate:
    """An ASGI application that passes on to another what is allowed: with the token anything, otherwise what is public.

    Only if headers show the key of a `registered` client, a body of more than `SMALL` bytes is read.
    """

    def __init__(
        self, app: Application, token: str, public: Mapping[str, tuple[str, ...]], registered: Callable[[Headers], bool]
    ) -> None:
        self._app, self._token, self._public, self._registered = app, token.encode("ascii"), public, registered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._trusted(scope)):
            await self._app(scope, receive, send)
            return
        got = self._rejection(scope) or await self._body(scope, receive)
        if isinstance(got, Rejection):
            await _answer(scope, send, got)
            return
        await self._app(scope, _replay(got, receive), send)

    def _trusted(self, scope: Scope) -> bool:
        shown = _values(scope, TOKEN.encode())
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._token)

    def _rejection(self, scope: Scope) -> Rejection | None:
        """Why a stranger's request is refused, as far as its head tells. Paths are compared as they were sent, not decoded."""
        if scope["type"] != "http" or scope["query_string"] or scope["raw_path"] != scope["path"].encode():
            return CLOSED
        if scope["method"] not in self._public.get(scope["path"], ()):
            return CLOSED
        if len(_values(scope, b"content-length") + _values(scope, b"transfer-encoding")) > 1:
            return AMBIGUOUS
        return None

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Rejection:
        """What Flower would read without a limit, and before it asks who sends it."""
        parts: list[bytes] = []
        size, limit, ends = 0, SMALL, time.monotonic() + UPLOAD
        while True:
            try:
                message = await asyncio.wait_for(receive(), min(SILENCE, max(0.0, ends - time.monotonic())))
            except TimeoutError:
                return TOO_SLOW
            if message["type"] != "http.request":
                return TOO_SLOW  # gone: nobody reads the answer
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit == SMALL:
                if not await asyncio.to_thread(self._registered, scope["headers"]):
                    return STRANGER
                limit = LARGE
            if size > limit:
                return TOO_LARGE
            if not message.get("more_body", False):
                return b"".join(parts)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _replay(body: bytes, receive: Receive) -> Receive:
    """A body that was read already; what follows it comes from the connection."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


async def _answer(scope: Scope, send: Send, rejection: Rejection) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = json.dumps({"detail": rejection.reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": rejection.status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


# ---- connections -----------------------------------------------------------------------------------------------------

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
