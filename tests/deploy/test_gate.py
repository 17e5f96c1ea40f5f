"""The gate in front of Flower's port, on real connections: strangers reach a fixed list of calls, whatever they send."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from bifl.deploy.flower import gate
from bifl.deploy.flower.gate import FLEET, TOKEN, BoundedConnection, Gate, Receive, Scope, Send

SECRET = "0123456789abcdef"
SIGNED = b"signature: of a registered client\r\n"
PULL = "/v1/fleet/pull-messages"


class Behind:
    """What Flower would be, and what reached it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.seen.append((scope["method"], scope["path"]))
        self.bodies.append(body)
        answer = hashlib.sha256(body).hexdigest().encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
        await send({"type": "http.response.body", "body": answer})


class Port:
    """A real server with the gate, and strangers who speak to it."""

    def __init__(self) -> None:
        self.behind = Behind()
        app = Gate(self.behind, SECRET, FLEET, lambda headers: any(name == b"signature" for name, _ in headers))
        config = uvicorn.Config(app, port=0, http=BoundedConnection, ws="none", lifespan="off", log_level="critical")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.number: int = self.server.servers[0].sockets[0].getsockname()[1]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.number), timeout=60)

    def say(self, *parts: bytes, count: int = 1) -> list[bytes]:
        """The answers to these bytes; fewer than `count` if the server ends the connection before."""
        with self.connect() as line:
            try:
                for part in parts:
                    line.sendall(part)
            except OSError:
                pass  # it stopped listening, as it may
            return read(line, count)

    def rant(self, data: bytes) -> None:
        """Say something that may have no end, and wait until the server has ended the connection."""
        with pytest.MonkeyPatch.context() as patch, self.connect() as line:
            patch.setattr(gate, "HEAD", 0.1)
            patch.setattr(gate, "SILENCE", 0.1)
            patch.setattr(self.server.config, "timeout_keep_alive", 0.1)
            line.sendall(data)
            read(line, 1000)


def read(line: socket.socket, count: int) -> list[bytes]:
    """So many answers, each as its status and its body."""
    answers: list[bytes] = []
    with line.makefile("rb") as file:
        try:
            while len(answers) < count and (status := file.readline()):
                length = 0
                while header := file.readline().strip():
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                body = file.read(length) if length else file.read()  # without a length, until the end
                answers.append(status.removeprefix(b"HTTP/1.1 ")[:3] + b" " + body)
        except ConnectionResetError:
            pass
    return answers


@pytest.fixture(scope="module")
def open_port() -> Iterator[Port]:
    port = Port()
    yield port
    port.server.should_exit = True
    port.thread.join()


@pytest.fixture
def port(open_port: Port) -> Port:
    open_port.behind.seen.clear()
    open_port.behind.bodies.clear()
    return open_port


def status(answers: list[bytes]) -> bytes:
    (answer,) = answers
    return answer[:3]


def request(method: str = "POST", target: str = PULL, body: bytes = b"", headers: bytes = b"") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n".encode() + headers + b"\r\n" + body


CLOSED = [
    ("POST", "/v1/control/start-run"), ("POST", "/v1/control/stop-run"), ("POST", "/v1/control/register-node"),
    ("POST", "/v1/runtime/acquire-task"), ("POST", "/v1/fleet/register-node"), ("POST", "/v1/fleet/unregister-node"),
    ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/"), ("GET", PULL), ("PUT", PULL), ("OPTIONS", PULL), ("post", PULL),
    ("POST", "/health"), ("POST", PULL + "/"), ("POST", "/" + PULL), ("POST", PULL.upper()), ("POST", PULL + "?x=1"),
    ("POST", "/v1/fleet/../control/start-run"), ("POST", "/v1/fleet/./pull-messages"),
    ("POST", "/v1/fleet/%2e%2e/control/start-run"),
    ("POST", "/v1/%66leet/pull-messages"), ("POST", "/v1/fleet/pull%2Dmessages"), ("POST", "http://x" + PULL),
    ("POST", "https://x/v1/control/start-run"), ("POST", PULL + ";/../../control/start-run"), ("POST", "*"), ("CONNECT", "x:443"),
    ("POST", "/v1\\fleet\\pull-messages"), ("POST", PULL + "%00"), ("POST", PULL + "#/v1/control/start-run"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "target"), CLOSED)
def test_strangers_reach_nothing_but_the_fleets_calls(port: Port, method: str, target: str) -> None:
    (answer,) = port.say(request(method, target))
    assert answer[:3] in (b"403", b"400")
    assert port.behind.seen == []


def test_the_fleets_calls_pass(port: Port) -> None:
    for path, methods in FLEET.items():
        for method in methods:
            assert status(port.say(request(method, path, headers=b"connection: close\r\n"))) == b"200"
    assert port.behind.seen == [(method, path) for path, methods in FLEET.items() for method in methods]


def test_flower_has_no_calls_of_the_fleet_that_the_gate_does_not_know() -> None:
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    fleet = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    assert fleet - FLEET.keys() == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}  # closed with keys anyway
    assert FLEET.keys() - fleet == {"/health"}


SMUGGLED = request("POST", "/v1/control/start-run")


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: %d\r\ntransfer-encoding: chunked\r\n" % (len(SMUGGLED) + 5),
        b"transfer-encoding: chunked\r\ncontent-length: 0\r\n",
        b"content-length: 0\r\ncontent-length: %d\r\n" % (len(SMUGGLED) + 5),
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding : chunked\r\n",
        b"content-length: -1\r\n",
        b"content-length: +0\r\n",
        b"content-length: 0x5\r\n",
        b"x\x00y: z\r\n",
    ],
)
def test_no_second_request_is_smuggled_in_a_body(port: Port, head: bytes) -> None:
    port.rant(b"POST " + PULL.encode() + b" HTTP/1.1\r\nhost: x\r\n" + head + b"\r\n0\r\n\r\n" + SMUGGLED)
    assert port.behind.seen == []


def test_a_folded_header_is_no_header_of_its_own(port: Port) -> None:
    port.rant(b"POST " + PULL.encode() + b" HTTP/1.1\r\nx: y\r\n content-length: 9\r\nhost: x\r\n\r\n" + SMUGGLED)
    assert set(zip(port.behind.seen, port.behind.bodies, strict=True)) <= {(("POST", PULL), b"")}


METHODS = st.sampled_from(["POST", "GET", "HEAD", "post", "PRI", "P\tOST", ""])
PIECES = st.sampled_from(
    ["/v1", "/fleet", "/control", "/runtime", "/pull-messages", "/start-run", "/..", "/.", "//", "%2e", "%2F", "?", "#", "\\", " ",
     "\t", "http://x", "/health", "\r", "\x00", "é", ";"]
)  # fmt: skip
LINES = st.sampled_from(
    [b"host: x", b"content-length: 0", b"content-length: 7", b"transfer-encoding: chunked", b" folded", b"connection: upgrade",
     b"upgrade: websocket", b"upgrade: h2c", b"x-forwarded-prefix: /v1/control", b"x-original-url: /v1/control/start-run",
     b"x-http-method-override: POST", b"x-bifl-token: ", b"x-bifl-token: 0", b"expect: 100-continue", b": x", b"x"]
)  # fmt: skip


@settings(max_examples=300)
@given(
    METHODS, st.lists(PIECES, max_size=6), st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", ""]), st.lists(LINES, max_size=5)
)
def test_whatever_is_sent_only_the_list_is_reached(
    open_port: Port, method: str, pieces: list[str], version: str, lines: list[bytes]
) -> None:
    open_port.behind.seen.clear()
    first = f"{method} {''.join(pieces)} {version}\r\n".encode()
    open_port.rant(first + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + SMUGGLED)
    assert all(method in FLEET.get(path, ()) for method, path in open_port.behind.seen)


def test_with_the_token_everything_passes_and_only_with_the_right_one(port: Port) -> None:
    def shown(*tokens: str) -> bytes:
        lines = "".join(f"{TOKEN}: {token}\r\n" for token in tokens).encode()
        return status(port.say(request("POST", "/v1/control/start-run", headers=lines)))

    assert shown(SECRET) == b"200"
    assert port.behind.seen == [("POST", "/v1/control/start-run")]
    for wrong in ([""], ["0"], [SECRET[:-1]], [SECRET + "0"], [SECRET, SECRET], ["0", SECRET]):
        assert shown(*wrong) == b"403"
    assert len(port.behind.seen) == 1


def test_a_large_upload_of_a_registered_client_passes_unchanged(port: Port) -> None:
    body = bytes(range(251)) * 60_000  # 15 MB
    digest = b"200 " + hashlib.sha256(body).hexdigest().encode()
    assert port.say(request(target="/v1/fleet/push-object", body=body, headers=SIGNED)) == [digest]
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n" + SIGNED + b"\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:1], body[1:70_000], body[70_000:])]
    assert port.say(head, *chunks, b"0\r\n\r\n") == [digest]
    assert port.behind.bodies == [body, body]


def test_a_stranger_cannot_make_the_server_hold_much(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"x" * (gate.SMALL + 1)
    assert status(port.say(request(body=body))) == b"401"
    assert status(port.say(request(body=body[1:]))) == b"200"
    monkeypatch.setattr(gate, "LARGE", gate.SMALL + 1)
    assert status(port.say(request(body=body, headers=SIGNED))) == b"200"
    assert status(port.say(request(body=body + b"x", headers=SIGNED))) == b"413"
    assert len(port.behind.seen) == 2


def test_two_requests_on_one_connection(port: Port) -> None:
    answers = port.say(request(body=b"one") + request(target="/v1/fleet/push-object", body=b"two"), count=2)
    assert answers == [b"200 " + hashlib.sha256(body).hexdigest().encode() for body in (b"one", b"two")]
    assert port.behind.bodies == [b"one", b"two"]


def test_a_head_without_end_is_cut_off(port: Port) -> None:
    port.say(b"POST " + PULL.encode() + b" HTTP/1.1\r\n", *[b"x: %b\r\n" % (b"y" * 8000) for _ in range(40)])
    port.say(b"POST /" + b"x" * 300_000)
    assert port.behind.seen == []


def test_who_does_not_speak_is_not_waited_for(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    with port.connect() as second:
        second.sendall(request())
        assert status(read(second, 1)) == b"200"
        monkeypatch.setattr(gate, "HEAD", 0.1)
        monkeypatch.setattr(gate, "SILENCE", 0.1)
        second.sendall(b"POST /v1/fl")  # the second head of a connection, too
        assert read(second, 1) == []
    with port.connect() as silent, port.connect() as halting:
        halting.sendall(b"POST /v1/fl")
        assert read(silent, 1) == read(halting, 1) == []
    monkeypatch.undo()
    monkeypatch.setattr(gate, "SILENCE", 0.1)
    with port.connect() as uploading:
        uploading.sendall(request(body=b"xxx")[:-1])
        assert status(read(uploading, 1)) == b"408"


def test_one_address_holds_a_limited_number_of_connections(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port.server.config, "timeout_keep_alive", 600)
    monkeypatch.setattr(gate, "PER_ADDRESS", 2)
    monkeypatch.setattr(gate, "_is_loopback", lambda address: False)
    held = [port.connect() for _ in range(2)]
    for line in held:
        line.sendall(request())
        assert status(read(line, 1)) == b"200"
    assert port.say(request()) == []
    for line in held:
        line.close()
    for _ in range(3000):  # until the server has noticed that they are closed
        if answers := port.say(request()):
            break
        time.sleep(0.01)
    assert status(answers) == b"200"
