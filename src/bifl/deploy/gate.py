"""Who may call what on the port of a SuperLink or a SuperNode: an ASGI application in front of Flower's.

Flower serves everything on one port: the calls of clients, of its own processes (runtime), and those that start and stop runs
(control), which ask for no credentials. The gate lets strangers make a fixed list of calls, by exact method and path; everything
else needs a token, which only the processes of the same server (or the same client) have in their environment.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

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


class Refusal(NamedTuple):
    """An HTTP answer that the gate gives itself; the request does not reach Flower."""

    status: int
    reason: str


CLOSED = Refusal(
    403, "this port serves the calls of registered clients only; starting and stopping runs is for the server's operator"
)
AMBIGUOUS = Refusal(400, "a request's length must be given once, as Content-Length or as chunks")
STRANGER = Refusal(401, f"more than {SMALL} bytes are taken from registered clients only")
TOO_LARGE = Refusal(413, f"a request may have {LARGE} bytes at most")
TOO_SLOW = Refusal(408, "the request did not come in time")


class Gate:
    """An ASGI application that passes on what is allowed.

    Args:
        app: Flower's.
        token: with this in its `TOKEN` header, a request may be anything.
        public: what strangers may call, methods by path.
        registered: whether headers show the key of a registered client; a body of more than `SMALL` bytes is not read without.
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
        got = self._refusal(scope) or await self._body(scope, receive)
        if isinstance(got, Refusal):
            await _answer(scope, send, got)
            return
        await self._app(scope, _replay(got, receive), send)

    def _trusted(self, scope: Scope) -> bool:
        shown = _values(scope, TOKEN.encode())
        return len(shown) == 1 and hmac.compare_digest(shown[0], self._token)

    def _refusal(self, scope: Scope) -> Refusal | None:
        """Why a stranger's request is refused, as far as its head tells. Paths are compared as they were sent, not decoded."""
        if scope["type"] != "http" or scope["query_string"] or scope["raw_path"] != scope["path"].encode():
            return CLOSED
        if scope["method"] not in self._public.get(scope["path"], ()):
            return CLOSED
        if len(_values(scope, b"content-length") + _values(scope, b"transfer-encoding")) > 1:
            return AMBIGUOUS
        return None

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Refusal:
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


async def _answer(scope: Scope, send: Send, refusal: Refusal) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = json.dumps({"detail": refusal.reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
