"""A server's SuperLink: Flower's application behind the gate, in a process of its own, and what the server asks of it.

    python -P -m bifl.deploy.flower.superlink HOST PORT KEYS DATABASE

Flower's own command also starts a program that runs whatever app a run brings. This one starts nothing: the rounds are held by the
process that started it, which has a token for the calls that the gate keeps from everyone else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import ssl
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.constant import TIMESTAMP_HEADER, SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto import control_pb2, runtime_pb2
from flwr.serverapp import Grid
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes, verify_signature
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app

from bifl.deploy import certificates
from bifl.deploy.flower import bundle, gate
from bifl.deploy.flower.programs import TOKEN, last_words, start, stop, without_proxy
from bifl.errors import RunError
from bifl.files import writing

READY = 180.0  # seconds that the SuperLink may take to start, or to answer, on a busy machine
_BUSY = (500, 502, 503, 504)  # answers after which a call is made again
_Result = TypeVar("_Result")
_Client = TypeVar("_Client", ControlHttpClient, RuntimeHttpClient)


class SuperLink:
    """A SuperLink with TLS and node authentication; a context, so that it does not outlive us.

    Only we can start or stop runs: we have a token that is made anew with every start, and kept nowhere. Its database and its log
    are in `folder`; `keys` is a folder of `certificates`.
    """

    def __init__(self, folder: Path, keys: Path, host: str, port: int) -> None:
        self._folder, self._keys, self._host, self._port = folder.resolve(), keys.resolve(), host, port
        self._address = f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"  # where we reach it from here
        self._log, self._token = self._folder / "superlink.log", secrets.token_hex(32)
        self._registered: list[Path] = []
        self._numbers: dict[int, int] = {}

    def __enter__(self) -> SuperLink:
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        os.environ.update(without_proxy())
        words: list[str | Path] = [self._host, str(self._port), self._keys, self._folder / "link.db"]
        self._process = start("superlink", words, self._folder, self._log, token=self._token)
        try:
            trusted = ssl.create_default_context(cafile=str(certificates.authority(self._keys)))
            self.invoke(lambda: httpx.get(f"https://{self._address}/health", verify=trusted, trust_env=False).raise_for_status())
        except BaseException:
            stop(self._process)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._process)

    def invoke(self, call: Callable[[], _Result]) -> _Result:
        """The result of a call, which is made again while the SuperLink is busy. (Flower calls this a retry invoker.)"""
        ends = time.monotonic() + READY
        while True:
            try:
                return call()
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if self._process.poll() is not None:
                    raise RunError(f"Flower's SuperLink ended: {last_words(self._log)}") from error
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise RunError(f"'{self._keys}' does not fit {self._address}: {error}") from None
                busy = not isinstance(error, httpx.HTTPStatusError) or error.response.status_code in _BUSY
                if not busy or time.monotonic() > ends:
                    raise RunError(f"Flower's SuperLink does not answer ({error}): see '{self._log}'") from error
            time.sleep(0.2)

    def _client(self, kind: type[_Client], *more: Any) -> _Client:
        """Flower's client for one of its interfaces, whose calls carry the token."""
        authority = certificates.authority(self._keys).read_bytes()
        interceptors = [RuntimeVersionHttpInterceptor("bifl"), _ShowToken(self._token), *more]
        retry: Any = self
        return kind.from_server_address(self._address, False, authority, interceptors, retry_invoker=retry)

    def numbers(self) -> Mapping[int, int]:
        """Which client each node is, by its key. New keys in the folder are registered: they are added while a server runs."""
        paths = certificates.public_keys(self._keys)
        if paths == self._registered:
            return self._numbers
        keys = {_public_key(path): certificates.client_number(path) for path in paths}
        with contextlib.closing(self._client(ControlHttpClient)) as control:
            nodes = {node.public_key: node.node_id for node in control.ListNodes(control_pb2.ListNodesRequest()).nodes_info}
            for key in keys.keys() - nodes.keys():
                nodes[key] = control.RegisterNode(control_pb2.RegisterNodeRequest(public_key=key)).node_id
        self._numbers = {nodes[key]: number for key, number in keys.items() if number is not None}
        self._registered = paths
        return self._numbers

    @contextlib.contextmanager
    def grid(self) -> Iterator[Grid]:
        """Start a run of the installed app; the grid by which its rounds, which are held here, reach the nodes."""
        app = Fab(bundle.installed().digest, bundle.content(), {})
        with contextlib.closing(self._client(ControlHttpClient)) as control:
            run = control.StartRun(control_pb2.StartRunRequest(fab=fab_to_proto(app))).run_id
        grid = HttpGrid(token=self._claim(run))
        client = grid._client = self._client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(grid._token))
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        task = client.PullTaskInput(runtime_pb2.PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, run, task.context.node_id
        grid.set_run(run_from_proto(task.run))
        try:
            yield grid
        finally:
            if heartbeat.is_running:
                heartbeat.stop()
            with contextlib.suppress(RunError):  # it is about to end in any case
                client.PushTaskOutput(runtime_pb2.PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))
            grid.close()

    def _claim(self, run: int) -> str:
        """What shows that a run is ours to hold. Runs of servers that were killed before are passed over."""
        wanted = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        with contextlib.closing(self._client(RuntimeHttpClient)) as runtime:
            while (task := runtime.AcquireTask(wanted)).token:
                if task.task.run_id == run:
                    return str(task.token)
        raise RunError(f"Flower's SuperLink did not start the run: see '{self._log}'")


class _ShowToken:
    """One of Flower's interceptors: every call carries the token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        context.request.headers[gate.TOKEN] = self._token
        return call_next(context)


def _public_key(path: Path) -> bytes:  # as Flower knows it
    try:
        key: Any = load_ssh_public_key(path.read_bytes())
        return public_key_to_bytes(key)
    except (OSError, ValueError) as error:
        raise RunError(f"'{path}' cannot be read as a public key: {error}") from error


def registered(app: Any, headers: gate.Headers) -> bool:
    """Whether a request is signed with the key of a registered client. Flower checks it again, with the time and the body."""
    shown = {name.decode("latin-1"): value for name, value in headers}
    try:
        key = b64decode(shown[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()], validate=True)
        signature = b64decode(shown[FLEET_HTTP_SIGNATURE_HEADER.lower()], validate=True)
        if not verify_signature(bytes_to_public_key(key), shown[TIMESTAMP_HEADER.lower()], signature):
            return False
        return app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None
    except (KeyError, ValueError, TypeError):
        return False


def main() -> None:
    """Be the SuperLink until a signal comes."""
    host, port, folder, database = sys.argv[1:]
    token = os.environ.get(TOKEN, "")
    if not token:
        sys.exit(f"bifl: {TOKEN} is not set: bifl server starts this program with it")
    os.environ["FLWR_DATABASE"] = database
    app = create_app()
    app.state.enable_supernode_auth = True
    keys = Path(folder)
    uvicorn.run(
        gate.Gate(app, token, gate.FLEET, partial(registered, app)),
        host=host, port=int(port), http=gate.BoundedConnection, ws="none",
        ssl_certfile=keys / f"{certificates.CERTIFICATE}.pem", ssl_keyfile=str(keys / f"{certificates.CERTIFICATE}.key"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
