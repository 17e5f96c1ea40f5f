"""Starts and stops Flower's programs. They end when this process ends."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bifl.deploy import certificates
from bifl.deploy.bundle import APP
from bifl.deploy.launcher import ENVIRONMENT, launched
from bifl.errors import RunError
from bifl.files import writing
from bifl.processes import tied

ADMITTED = "SuperNode ID:"  # in the log of a node that the server has let in
NODES = "nodes.json"  # which node is which client, in Flower's part of the run's folder
LINK = "bifl"  # what Flower's configuration calls our server
READY = 180.0  # seconds that one of Flower's programs may take to start, on a busy machine


def new_token() -> str:
    """A secret by which the processes of one server recognise each other."""
    return secrets.token_hex(32)


def environment(home: Path, token: str) -> dict[str, str]:
    """The environment of Flower's programs: files go to `home`, no telemetry. Only this user can read it while they run."""
    here = {name: _with_here(os.environ.get(name, "")) for name in ("no_proxy", "NO_PROXY")}
    return dict(os.environ) | here | {
        ENVIRONMENT: token,
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_INTERNAL_GRPC_CONTROL_API": "0",  # ports that the gate does not guard
        "FLWR_INTERNAL_GRPC_FLEET_API": "0",
        "OMP_NUM_THREADS": "1",  # training uses one thread whatever is there: results must not depend on it
    }  # fmt: skip


def _with_here(hosts: str) -> str:
    return ",".join(filter(None, [hosts, "localhost", "127.0.0.1"]))


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(command: list[str | Path], home: Path, token: str, log: Path) -> subprocess.Popen[bytes]:
    """Start one of Flower's programs; its output goes to `log`."""
    with writing(log), log.open("ab") as output:
        return subprocess.Popen(
            tied(launched(command)), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=environment(home, token), start_new_session=True,  # Ctrl-C is for us
        )  # fmt: skip


def stop(process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """End a program and its children: SIGTERM first, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def refuse_blanks(environment: str = sys.prefix) -> None:
    """Raise where Flower 1.41's SuperLink cannot run: it lists folders of its own with blanks between them, and makes no tables."""
    if any(character.isspace() for character in environment):
        raise RunError(f"Flower's SuperLink cannot run from a path with a blank: make another environment than '{environment}'")


class Link:
    """A SuperLink with TLS and node authentication; a context, so that it does not outlive us.

    Only its own processes and we can start or stop runs: they have a token that is made anew with every start, and kept nowhere.

    Args:
        folder: for its database, its log and Flower's configuration.
        keys: their folder, see `certificates`.
        host: address to listen on.
        port: to listen on.
    """

    def __init__(self, folder: Path, keys: Path, host: str, port: int) -> None:
        self._folder, self._keys, self._host, self._port = folder.resolve(), keys.resolve(), host, port
        self._process: subprocess.Popen[bytes] | None = None
        self._registered: set[Path] = set()
        self._token = new_token()

    @property
    def log(self) -> Path:
        """What Flower says."""
        return self._folder / "superlink.log"

    @property
    def _address(self) -> str:
        """Where we reach it from here."""
        return f"{'127.0.0.1' if self._host in ('0.0.0.0', '::') else self._host}:{self._port}"

    def __enter__(self) -> Link:
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        here = self._keys
        config = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = {json.dumps(self._address)}\n'
        with writing(self._folder):
            (self._folder / "config.toml").write_text(
                f"{config}root-certificates = {json.dumps(str(certificates.authority(here)))}\n"
            )
        self._process = start(
            ["flower-superlink", "--host", self._host, "--port", str(self._port), "--ssl-ca-certfile", certificates.authority(here),
             "--ssl-certfile", here / "server.pem", "--ssl-keyfile", here / "server.key", "--enable-supernode-auth",
             "--database", self._folder / "link.db"],
            self._folder, self._token, self.log,
        )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            stop(self._process)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            stop(self._process)

    def check(self) -> None:
        """Raise if it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise RunError(f"Flower's SuperLink ended: {last_words(self.log)}")

    def _wait(self) -> None:
        trusted = ssl.create_default_context(cafile=str(certificates.authority(self._keys)))
        plain = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
        ends = time.monotonic() + READY
        while True:
            self.check()
            try:
                plain.open(f"https://{self._address}/health", timeout=5).close()
                return
            except urllib.error.URLError as error:
                if isinstance(error.reason, ssl.SSLCertVerificationError):
                    raise RunError(f"'{self._keys}' does not fit {self._address}: {error.reason.verify_message}") from None
            except OSError:
                pass
            if time.monotonic() > ends:
                raise RunError(f"Flower's SuperLink did not start within {READY:g} s: see '{self.log}'")
            time.sleep(0.2)

    def register(self, public: Iterable[Path]) -> list[Path]:
        """Let clients with these keys take part, each under the number of its key; those that are new to us."""
        every = sorted(public)
        new = [path for path in every if path not in self._registered]
        if new:
            self._insist(["register", self._address, certificates.authority(self._keys), self._folder / NODES, *every])
            self._registered |= set(new)
        return new

    def run(self, config: Mapping[str, str | int | float | bool]) -> str:
        """Start the app; the run's number."""
        path = self._folder / "run.toml"
        with writing(self._folder):
            path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))
        said = self._call(["flwr", "run", APP, LINK, "-c", path, "--format", "json"])
        return str(_json(said)["run-id"])

    def status(self, run: str) -> str:
        """What Flower says of a run: running, finished:completed, …"""
        said = self._call(["flwr", "list", LINK, "--run-id", run, "--format", "json"])
        try:
            (found,) = _json(said)["runs"]
            return str(found["status"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"Flower says nothing of run {run}: {said.strip()}") from error

    def _insist(self, command: list[str | Path]) -> str:
        """Call, and call again: a SuperLink whose first two requests come at once may fail one of them, as it makes its tables."""
        for _ in range(4):
            try:
                return self._call(command)
            except RunError:
                time.sleep(1)
        return self._call(command)

    def _call(self, command: list[str | Path]) -> str:
        asked = " ".join(map(str, command[:2]))
        own = environment(self._folder, self._token)
        try:
            done = subprocess.run(launched(command), env=own, capture_output=True, text=True, check=False, timeout=120)
        except subprocess.TimeoutExpired:
            raise RunError(f"Flower did not answer '{asked}' for two minutes") from None
        if done.returncode:
            raise RunError(f"Flower refused '{asked}': {(done.stderr or done.stdout).strip()}")
        return done.stdout


def _json(text: str) -> Any:
    """The JSON in what Flower's tools print; there may be other lines before."""
    return json.loads(text[text.index("{") :])


def supernode(
    server: str, authority: Path, key: Path, config: Mapping[str, str | int], home: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start a client's node."""
    return start(["node", server, authority, key, json.dumps(config)], home, "", log)


def last_words(log: Path) -> str:
    """The end of a log, in one line."""
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return (" ".join(lines[-3:])[-400:] or "it said nothing") + f" (see '{log}')"


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end us as Ctrl-C does, with everything tidied up."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
