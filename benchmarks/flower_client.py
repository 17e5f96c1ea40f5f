"""What a client's process costs: its imports, a turn, a measurement, and the memory at its peak.

    python benchmarks/flower_client.py

This is a client's process from the first import to its first answer, without Flower's own part; the folder is that of a client of
ten on mnist5k. Under `bifl client` all but the work is paid once, under Flower's own SuperNode with every message.
"""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROCESSES = 3
RUN = "0" * 16


def once(folder: str, deed: str) -> dict[str, float]:
    """In a new process: seconds of the processor for each step, whatever else it is busy with; MB at the peak."""
    laps: dict[str, float] = {}
    began = time.process_time()

    def lap(name: str) -> None:
        nonlocal began
        laps[name], began = time.process_time() - began, time.process_time()

    import torch  # noqa: F401

    lap("import torch")
    import flwr.clientapp  # noqa: F401

    lap("import flwr")
    from bifl.core.sides import Request
    from bifl.deploy.client.client_state import ClientState
    from bifl.deploy.client.operator_choices import Operator
    from bifl.deploy.protocol import Terms
    from bifl.experiment.settings import Experiment

    lap("import bifl")
    state = ClientState(Path(folder), RUN, Operator(0), print)
    if deed == "hello":
        words = shlex.join(Experiment(algorithm="biml", clients=10).words())
        worker = state.greet(Terms(words, 10, (1, 28, 28), 0.1307, 0.3081, 0.0))
    elif (opened := state.open(0)) is not None:
        worker = opened
    else:
        raise SystemExit("there is nothing in the folder")
    lap("open")
    if deed == "turn":
        worker.reply("ballot", Request(0, False, True))
    elif deed == "measure":
        worker.reply("statistics", Request(0, False, True))
    lap("work")
    return laps | {"MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(once(*sys.argv[1:])))
        return
    columns = ("import torch", "import flwr", "import bifl", "open", "work", "MB")
    print(f"{'':10}" + "".join(f"{name:>14}" for name in columns))
    with tempfile.TemporaryDirectory() as folder:
        for deed in ("hello", "turn", "measure"):
            command = [sys.executable, __file__, folder, deed]
            runs = [json.loads(subprocess.check_output(command)) for _ in range(PROCESSES)]
            medians = {name: sorted(run[name] for run in runs)[PROCESSES // 2] for name in columns}
            print(f"{deed:10}" + "".join(f"{medians[name]:14.2f}" for name in columns))


if __name__ == "__main__":
    main()
