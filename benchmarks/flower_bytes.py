"""Bytes on the real wire: a federation over TLS whose clients reach the server through a proxy that counts.

    python benchmarks/flower_bytes.py --clients 10 --rounds 10 biml fedavg --set batchnorm=average

Payload is what bifl counts, the wire's messages; the rest is TLS, HTTP, Flower's envelopes and its polling.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from bifl.deploy.certificates import make_keys
from bifl.deploy.flower.programs import free_port, stop
from bifl.processes import tied

BIFL = [sys.executable, "-m", "bifl.cli"]


class Proxy:
    """Passes connections on and counts their bytes."""

    def __init__(self, target: int) -> None:
        self.up = self.down = 0
        self._target, self._lock = target, threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            near, _ = self._door.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()  # the server is not up yet: the client tries again
                continue
            threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(65536):
                with self._lock:
                    self.up, self.down = self.up + len(data) * up, self.down + len(data) * (not up)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Bytes(NamedTuple):
    """Of a run, per client and round."""

    algorithm: str
    rounds: int
    accuracy: float
    seconds: float
    payload_up: float
    payload_down: float
    wire_up: float
    wire_down: float


class Town:
    """A federation of one run, in a folder in which it can be stopped and continued."""

    def __init__(self, folder: Path, algorithm: str, clients: int, rounds: int, settings: list[str]) -> None:
        self._folder, self._algorithm, self._clients, self._rounds = folder, algorithm, clients, rounds
        self._settings = [f"algorithm={algorithm}", f"clients={clients}", f"rounds={rounds}", *settings]
        self._processes: list[subprocess.Popen[bytes]] = []

    def go(self, seconds: float) -> None:
        """Run on, for so long at most, and count."""
        (self._folder / "keys").mkdir(parents=True, exist_ok=True)
        make_keys(self._folder / "keys", ["localhost", "127.0.0.1"], self._clients)
        try:
            port, again = free_port(), (self._folder / "run/server.json").exists()
            if again:
                port = json.loads((self._folder / "run/server.json").read_text())["port"]
            proxy = Proxy(port)
            fresh = ["--listen", f"127.0.0.1:{port}", "--keys", "keys", "--out", "run", *self._settings]
            server = self._start("server", "server", *(["--resume", "run"] if again else fresh))
            for n in range(self._clients):
                where = f"127.0.0.1:{proxy.port}"
                self._start(f"c{n}", "client", "--server", where, "--ca", "keys/ca.crt", "--key", f"keys/client-{n}")
            self._count(proxy, server, time.monotonic() + seconds)
        finally:
            for process in reversed(self._processes):
                stop(process)

    def _count(self, proxy: Proxy, server: subprocess.Popen[bytes], ends: float) -> None:
        """Between the ends of rounds only: the introductions are not typical."""
        done, first = len(self.records()), None
        while server.poll() is None and time.monotonic() < ends:
            if len(self.records()) > done:
                done, mark = len(self.records()), (proxy.up, proxy.down)
                if first is not None:
                    self._add(mark[0] - first[0], mark[1] - first[1])
                first = mark
            time.sleep(0.05)
        if server.poll() is None:
            server.send_signal(signal.SIGINT)
        server.wait()

    def _add(self, up: int, down: int) -> None:
        path = self._folder / "wire.json"
        old = json.loads(path.read_text()) if path.exists() else [0, 0, 0]
        path.write_text(json.dumps([old[0] + up, old[1] + down, old[2] + 1]))

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = tied([*BIFL, *words])
            process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process)
        return process

    def records(self) -> list[dict[str, float]]:
        """The rounds so far."""
        lines = self._folder / "run/rounds.jsonl"
        return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []

    def result(self) -> Bytes:
        """Payload of all rounds, wire of those that were counted."""
        records = self.records()
        up, down, counted = json.loads((self._folder / "wire.json").read_text())
        each = self._clients * len(records)
        sent, received = (sum(record[key] for record in records) / each for key in ("up_bytes", "down_bytes"))
        seconds = sorted(record["seconds"] for record in records)[len(records) // 2]
        wire = up / counted / self._clients, down / counted / self._clients
        return Bytes(self._algorithm, len(records), records[-1]["accuracy"], seconds, sent, received, *wire)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="+")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--folder", type=Path, default=Path("flower-bytes"), help="called again, runs in it are continued")
    parser.add_argument("--seconds", type=float, default=3600, help="to spend on each algorithm this time")
    options = parser.parse_args()
    found = []
    for name in options.algorithms:
        town = Town(options.folder.resolve() / name, name, options.clients, options.rounds, options.set)
        if len(town.records()) < options.rounds:
            town.go(options.seconds)
        if len(town.records()) < options.rounds:
            raise SystemExit(f"{name}: {len(town.records())} of {options.rounds} rounds; continue with the same command")
        found.append(town.result())
    draw(found, options.folder / "flower-bytes.png")
    print(f"{'per client and round':20} {'payload up':>12} {'wire up':>12} {'payload down':>13} {'wire down':>12} {'s/round':>8}")
    for row in found:
        print(
            f"{row.algorithm:20} {row.payload_up:12,.0f} {row.wire_up:12,.0f} {row.payload_down:13,.0f} {row.wire_down:12,.0f} "
            f"{row.seconds:8.1f}"
        )
    by_name = {row.algorithm: row for row in found}
    if {"biml", "fedavg"} <= set(by_name):
        one, all_bits = by_name["biml"], by_name["fedavg"]
        print(f"fedavg/biml, up: payload {all_bits.payload_up / one.payload_up:.1f}, wire {all_bits.wire_up / one.wire_up:.1f}")


def draw(found: list[Bytes], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 2.6), layout="constrained")
    for axes, way in zip(figure.subplots(1, 2), ("up", "down"), strict=True):
        for place, row in enumerate(found):
            payload, wire = getattr(row, f"payload_{way}") / 1000, getattr(row, f"wire_{way}") / 1000
            axes.barh(place, wire, color="0.8", label=None if place else "wire")
            axes.barh(place, payload, height=0.5, color="C0", label=None if place else "payload")
            axes.text(wire, place, f" {payload:.1f} in {wire:.1f}", va="center", fontsize=8)
        axes.set_yticks(range(len(found)), [row.algorithm for row in found])
        axes.set_xlim(0, 1.65 * max(getattr(row, f"wire_{way}") for row in found) / 1000)
        axes.set_xlabel(f"kB {way} per client and round")
        axes.legend(loc="lower right", frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
