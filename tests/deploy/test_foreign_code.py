"""Foreign code against real processes: a bundle of a stranger's runs neither on a server nor on clients of bifl. Slow: minutes.

pytest -m deployment tests/deploy/test_foreign_code.py
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bifl.deploy.flower import bundle, gate
from bifl.deploy.flower.programs import TOKEN
from bifl.processes import tied
from tests.deploy.test_flower import PATIENCE, Town

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(" " in sys.prefix, reason="Flower's SuperLink cannot run from a path with a blank"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads the environment of a process in /proc"),
]
LINK = "target"
WITH_TOKEN = """
import sys
from flwr.cli.app import app
from flwr.supercore.protobuf.client import ProtobufClient

class Shown:
    def intercept(self, context, call_next):
        context.request.headers[{header!r}] = {token!r}
        return call_next(context)

plain = ProtobufClient.__init__

def showing(self, url, *, interceptors=(), **more):
    plain(self, url, interceptors=[*interceptors, Shown()], **more)

ProtobufClient.__init__ = showing
app()
"""

MARK = """
import os, sys
from pathlib import Path
if "MALLORY" not in os.environ:  # on his own machine it may run
    (Path({marks!r}) / str(os.getpid())).write_text(" ".join(sys.orig_argv))
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    ask = [Message(RecordDict({{"x": ConfigRecord({{"y": 1}})}}), dst_node_id=node, message_type="train") for node in nodes]
    replies = grid.send_and_receive(ask, timeout=600)
    said = [reply.error.reason if reply.has_error() else "ran" for reply in replies]
    Path({replies!r}).write_text(json.dumps(said))
"""
CLIENT = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)
"""
PROJECT = """
[project]
name = "{name}"
version = "0.1.0"
description = "x"
license = "Apache-2.0"
dependencies = ["a-package-of-mallory"]
[tool.flwr.app]
publisher = "{publisher}"
[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"
[tool.flwr.app.config]
"""


class Foreign:
    """A bundle that leaves a mark wherever it is imported."""

    def __init__(self, folder: Path, name: str, publisher: str, package: str) -> None:
        self.app, self.name, self.marks, self.replies = folder / "app", f"{publisher}/{name}", folder / "marks", folder / "replies"
        code = self.app / package.replace(".", "/")
        code.mkdir(parents=True)
        self.marks.mkdir()
        (self.app / "pyproject.toml").write_text(PROJECT.format(name=name, publisher=publisher, package=package))
        for path in {code, code.parent} - {self.app}:
            (path / "__init__.py").write_text(MARK.format(marks=str(self.marks)))
        (code / "server_app.py").write_text(MARK.format(marks=str(self.marks)) + SERVER.format(replies=str(self.replies)))
        (code / "client_app.py").write_text(MARK.format(marks=str(self.marks)) + CLIENT)

    def imported_by(self) -> list[str]:
        """Command lines of the processes that ran any of it."""
        return [path.read_text() for path in self.marks.iterdir()]

    def said(self) -> list[str]:
        return list(json.loads(self.replies.read_text()))


@pytest.fixture
def foreign(tmp_path: Path) -> list[Foreign]:
    """One that says who it is, and one that calls itself, and its package, bifl."""
    return [
        Foreign(tmp_path / "plain", "evil", "mallory", "evil"),
        Foreign(tmp_path / "renamed", "bifl", "bifl", "bifl.deploy"),
    ]


class Mallory:
    """Someone with ca.crt, Flower's programs and, if he got hold of it, the server's token."""

    def __init__(self, town: Town) -> None:
        self.home, self.town = town.folder / "mallory", town
        self.home.mkdir()
        certificate = json.dumps(str(town.folder / "keys/ca.crt"))
        link = f'address = "127.0.0.1:{town.port}"\nroot-certificates = {certificate}\n'
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "{LINK}"\n[superlink.{LINK}]\n{link}')
        self.environment = dict(os.environ) | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PYTHONPATH": "",
            "MALLORY": "1",
        }

    def call(self, *words: str | Path, token: str = "") -> subprocess.CompletedProcess[str]:
        """A command of Flower's; with a token, one that shows it."""
        program, *rest = map(str, words)
        shows = [sys.executable, "-c", WITH_TOKEN.format(header=gate.TOKEN, token=token)]
        command = [*(shows if token else [program]), *rest]
        return subprocess.run(
            command, env=self.environment, cwd=self.home, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def serve(self) -> subprocess.Popen[bytes]:
        """A SuperLink of Flower's own, with the certificates that clients trust."""
        keys = self.town.folder / "keys"
        words = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.town.port), "--enable-supernode-auth"]
        words += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.pem")]
        words += ["--ssl-keyfile", str(keys / "server.key")]
        with (self.town.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                tied(words), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path)
    try:
        yield town
    finally:
        town.close()


def knock(town: Town, path: str, body: bytes = b"") -> int:
    """The status with which the port answers a call without credentials."""
    trusted = ssl.create_default_context(cafile=str(town.folder / "keys/ca.crt"))
    plain = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
    ask = urllib.request.Request(f"https://127.0.0.1:{town.port}{path}", data=body, method="POST")
    ask.add_header("content-type", "application/protobuf")
    try:
        return int(plain.open(ask, timeout=60).status)
    except urllib.error.HTTPError as error:
        return error.code


def look_up(program: str, word: str) -> Path:
    """A process, as somebody with its account can read it."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_text().split("\0")
            if program in command and any(word in argument for argument in command):
                return process
    raise AssertionError(f"no {program}")


def token_of(process: Path) -> str:
    lines = (process / "environ").read_text().split("\0")
    return next(line for line in lines if line.startswith(TOKEN)).partition("=")[2]


def listening(process: Path) -> set[str]:
    """The sockets on which a process waits for connections."""
    own = {os.readlink(file) for file in (process / "fd").iterdir() if file.exists() or file.is_symlink()}
    rows = [row.split() for name in ("tcp", "tcp6") for row in (process / "net" / name).read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


def test_a_stranger_starts_nothing_and_not_even_the_operator_runs_foreign_code(town: Town, foreign: list[Foreign]) -> None:
    """While a real run goes on, which then ends as if nothing had been."""
    words = ["algorithm=fedavg", "clients=2", "workers=1", "rounds=1", "batchnorm=average", "--out", "run", "--min-clients", "2"]
    server = town.server(*words)
    town.client(0)
    town.wait(lambda: "client 0 is there" in town.said("server"), server)
    mallory = Mallory(town)
    for evil in foreign:
        refused = mallory.call("flwr", "run", evil.app, LINK)
        assert refused.returncode != 0
        assert "for the server's operator" in refused.stderr
    for path in ("control/list-runs", "control/register-node", "control/stop-run", "runtime/acquire-task", "fleet/register-node"):
        assert knock(town, f"/v1/{path}") == 403
    assert knock(town, "/v1/fleet/pull-messages") == 401  # passed on to Flower, which asks for a registered key
    assert knock(town, "/v1/fleet/push-object", bytes(gate.SMALL + 1)) == 401  # fedavg's uploads are larger, and pass
    assert not listening(look_up("bifl.deploy.flower.supernode", str(town.folder / "state-0")))  # a client opens no port

    token = token_of(look_up("bifl.deploy.flower.superlink", str(town.folder)))
    for evil in foreign:
        started = mallory.call("flwr", "run", evil.app, LINK, "--format", "json", token=token)
        number = json.loads(started.stdout[started.stdout.index("{") :])["run-id"]
        for _ in range(3):  # each takes seconds; whoever would start an app looks once a second
            time.sleep(1)
            assert status_of(mallory, number, token) == "pending"  # as it stays: nobody starts the app of any run
            assert evil.imported_by() == []
    town.client(1)
    assert "round 1/1" in town.finish(server)
    assert [evil.imported_by() for evil in foreign] == [[], []]
    assert not [path for path in town.folder.rglob("apps") if path.is_dir()]  # where Flower would unpack them


def status_of(mallory: Mallory, number: str, token: str) -> str:
    said = mallory.call("flwr", "list", LINK, "--run-id", number, "--format", "json", token=token).stdout
    (run,) = json.loads(said[said.index("{") :])["runs"]
    return str(run["status"])


def test_clients_of_a_malicious_server_run_none_of_its_code(town: Town, foreign: list[Foreign]) -> None:
    """A SuperLink of plain Flower runs the bundles itself, and hands them to our clients, who trust its certificate."""
    mallory = Mallory(town)
    server = mallory.serve()
    try:
        town.wait(lambda: "Uvicorn running" in town.said("server"), server)
        for number in range(2):
            registered = mallory.call("flwr", "supernode", "register", town.folder / f"keys/client-{number}.pub", LINK)
            assert registered.returncode == 0, registered.stderr
            town.client(number)
        for evil in foreign:
            started = mallory.call("flwr", "run", evil.app, LINK)
            assert started.returncode == 0, started.stderr
            town.wait(evil.replies.exists, server)
            name = f"refused to run the app bundle '{evil.name}' 0.1.0 (SHA-256 "
            assert len(evil.said()) == 2
            assert all(name in said and bundle.installed().digest in said for said in evil.said())
            for number in range(2):
                assert name in (town.folder / f"state-{number}/supernode.log").read_text()
            assert evil.imported_by() == []
    finally:
        server.terminate()
        server.wait()
