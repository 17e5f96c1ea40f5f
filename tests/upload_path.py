"""Counts the path of one upload: the files of bifl whose functions are called in a round of `biml`, by folder.

    python -m tests.upload_path                    this tree
    python -m tests.upload_path --src OTHER/src    another, with the same tests' federation

The second round is recorded, in all processes: what happens once, before the first, is no part of it. Imports do not count, nor
does what numba compiled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = 'algorithm="biml", clients=3, rounds=3, dataset="mnist5k"'

RECORDER = """\
import mmap, os, sys, threading
from pathlib import Path

folder, package = Path(os.environ["UPLOAD_PATH"]), os.environ["UPLOAD_PACKAGE"]
switch = mmap.mmap(os.open(folder / "switch", os.O_RDWR), 1)
called = os.open(folder / "called", os.O_WRONLY | os.O_APPEND)
seen = set()
FUNCTION = 1  # CO_OPTIMIZED: modules and classes that are made do not have it

def note(frame, event, argument):
    if event == "call" and switch[0]:
        code = frame.f_code
        if code not in seen:
            seen.add(code)
            if code.co_flags & FUNCTION and code.co_filename.startswith(package):
                os.write(called, (code.co_filename + "\\n").encode())

def record(on):
    switch[0] = on

threading.setprofile(note)
sys.setprofile(note)
"""

SECOND_ROUND = """
next(rounds)
sitecustomize.record(True)
next(rounds)
sitecustomize.record(False)
"""

SIMULATION = f"""\
import sitecustomize
import bifl
rounds = iter(bifl.simulate(bifl.Experiment({SETTINGS}, workers=WORKERS)))
{SECOND_ROUND}"""

DEPLOYMENT = f"""\
import sitecustomize
from pathlib import Path
import bifl
from bifl.deploy.server_app import federate
from tests.support.grid import LocalGrid, Node
grid = LocalGrid({{100 + number: Node(number, Path(f"state-{{number}}")) for number in range(3)}})
rounds = iter(federate(grid, bifl.Experiment({SETTINGS}, workers=1)))
{SECOND_ROUND}"""

PROGRAMS = {
    "simulator, one worker": SIMULATION.replace("WORKERS", "1"),
    "simulator, two workers": SIMULATION.replace("WORKERS", "2"),
    "deployment": DEPLOYMENT,
}


def files_called(source: Path, program: str) -> list[Path]:
    """The files of the package in `source` whose functions a program calls in its second round."""
    package = source.resolve() / "bifl"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(RECORDER)  # Python imports it first, in workers too
        (folder / "switch").write_bytes(b"\0")
        (folder / "called").touch()
        around = os.environ | {
            "PYTHONPATH": os.pathsep.join([name, str(source.resolve()), str(ROOT)]),
            "UPLOAD_PATH": name,
            "UPLOAD_PACKAGE": f"{package}{os.sep}",
        }
        done = subprocess.run([sys.executable, "-c", program], env=around, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        return [Path(line).relative_to(package) for line in sorted(set((folder / "called").read_text().splitlines()))]


def table(files: list[Path], source: Path) -> str:
    """The files by folder, with their lines."""
    folders = defaultdict(list)
    for file in files:
        lines = len((source / "bifl" / file).read_text().splitlines())
        folders[str(file.parent)].append(f"{file.stem} {lines}")
    rows = [f"| {folder} | {len(names)} | {', '.join(names)} |" for folder, names in folders.items()]
    return "\n".join(["| folder | files | names and lines |", "|---|---|---|", *rows])


def main() -> None:
    """Count for all ways of running a round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="where the package lies")
    source = parser.parse_args().src
    for name, program in PROGRAMS.items():
        files = files_called(source, program)
        print(f"{name}: {len(files)} files in {len({file.parent for file in files})} folders\n\n{table(files, source)}\n")


if __name__ == "__main__":
    main()
