"""Bytes on the real wire: a federation over TLS whose clients reach the server through a proxy that counts.

    python benchmarks/flower_bytes.py --clients 10 --rounds 10 biml fedavg

Payload is what bifl counts, the wire's messages; the rest is TLS, HTTP, Flower's envelopes and its polling.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from bifl.flower.keys import make_keys
from bifl.flower.processes import free_port, stop, tied

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
    accuracy: float
    seconds: float
    payload_up: float
    payload_down: float
    wire_up: float
    wire_down: float


def measure(algorithm: str, clients: int, rounds: int, settings: list[str]) -> Bytes:
    folder = Path(tempfile.mkdtemp(prefix="bifl-bytes-"))
    port = free_port()
    proxy = Proxy(port)
    make_keys(folder / "keys", ["localhost", "127.0.0.1"], clients)
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(tied([*BIFL, *words]), cwd=folder, stdout=log, stderr=log, start_new_session=True)
        processes.append(process)
        return process

    experiment = [f"algorithm={algorithm}", f"clients={clients}", f"rounds={rounds}", *settings]
    server = start("server", "server", "--listen", f"127.0.0.1:{port}", "--keys", "keys", "--out", "run", *experiment)
    try:
        lines = folder / "run/rounds.jsonl"
        for n in range(clients):
            start(f"c{n}", "client", "--server", f"127.0.0.1:{proxy.port}", "--ca", "keys/ca.crt", "--key", f"keys/client-{n}")
        while not (lines.exists() and lines.read_text().count("\n")):  # introductions and the first round are not typical
            time.sleep(0.05)
            if server.poll() is not None:
                raise SystemExit((folder / "server.log").read_text())
        up, down = proxy.up, proxy.down
        server.wait()
        up, down = proxy.up - up, proxy.down - down
    finally:
        for process in reversed(processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in reversed(processes):
            stop(process)
    records = [json.loads(line) for line in lines.read_text().splitlines()][1:]
    shutil.rmtree(folder)
    each = clients * len(records)
    sent, received = (sum(record[key] for record in records) / each for key in ("up_bytes", "down_bytes"))
    seconds = sum(record["seconds"] for record in records) / len(records)
    return Bytes(algorithm, records[-1]["accuracy"], seconds, sent, received, up / each, down / each)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="+")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--keep", type=Path, help="add the results to this file, and draw those that are in it")
    options = parser.parse_args()
    found = [measure(name, options.clients, options.rounds, options.set) for name in options.algorithms]
    if options.keep:
        old = json.loads(options.keep.read_text()) if options.keep.exists() else []
        found = [Bytes(**row) for row in old if row["algorithm"] not in options.algorithms] + found
        options.keep.write_text(json.dumps([row._asdict() for row in found], indent=1) + "\n")
        draw(found, options.keep.with_suffix(".png"))
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
        axes.set_xlim(0, 1.45 * max(getattr(row, f"wire_{way}") for row in found) / 1000)
        axes.set_xlabel(f"kB {way} per client and round")
        axes.legend(loc="lower right", frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
