"""What the documentation shows is what runs: every command and every program, in small (tests/support/documented.py says how)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, cached_property, wraps
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bifl
from bifl.cli import main
from bifl.cli.commands import parser
from bifl.data.arrays import from_npz
from bifl.data.datasets import dataset
from bifl.data.inputs import Dataset
from bifl.engine.simulator import simulate
from bifl.experiment.settings import Experiment
from tests.support.commands import Run
from tests.support.documented import PAGES, ROOT, Command, Program, in_small, python_blocks, shown

TOOLS = {"test": "gcc", "qemu": "qemu-system-arm"}  # what a target of an exported model's Makefile needs


class Reader:
    """Somebody who does what a page shows, in a folder of their own that is a clone of bifl as far as the pages need one."""

    def __init__(self, folder: Path, digits: Path, collector: Collector) -> None:
        self.folder, self._names, self._collector = folder, {"__name__": "__main__"}, collector
        for kept in ("cells", "attacks"):
            shutil.copytree(ROOT / "results" / kept, folder / "results" / kept, copy_function=os.symlink)  # many, and never changed
        shutil.copy(ROOT / "results/privacy.jsonl", folder / "results")
        shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
        shutil.copytree(ROOT / "docs", folder / "docs")
        shutil.copy(digits, folder / "mine.npz")
        (folder / "images.raw").write_bytes(np.load(digits)["test_images"][:3].tobytes())

    def follow(self, text: str, page: str) -> None:
        """Do everything that a page shows; files are saved first, because sentences name them before they show them."""
        found = list(shown(text, page))
        for program in found:
            if isinstance(program, Program) and program.file:
                (self.folder / program.file).write_text(program.text)
                assert f"{program.file}:" in text, f"{page}:{program.line}: no command names {program.file}"
        for one in found:
            if not one.why_not:
                try:
                    self._run(one) if isinstance(one, Program) else self._do(one)
                except (Exception, SystemExit) as error:
                    raise AssertionError(f"{page}:{one.line}: {one.text}\n{type(error).__name__}: {error}") from error

    def _run(self, program: Program) -> None:
        """A program of a page knows what those before it have defined; what the reader saves is run by whoever names the file."""
        if program.file:
            return
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(program.text, program.file or f"{program.page}:{program.line}", "exec"), self._names)

    def _do(self, command: Command) -> None:
        if command.deployed:
            parser().parse_args([word for word in command.words[1:] if word != "…"])  # tests marked `deployment` run them
            return
        words = [self._meant(word, "--trust" in command.words) for word in command.words if word != "…"]
        match words:
            case ["bifl", *own] if command.names_only:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                    try:
                        code: int | str | None = main([*own, "--help"])
                    except SystemExit as ended:
                        code = ended.code
                assert code == 0, said.getvalue()
            case ["bifl", "reproduce" | "list", *_]:
                _once(tuple(in_small(words)))
            case ["bifl", "compare", *settings] if all("=" in word for word in settings):
                _once(("bifl", "compare", *sorted(in_small(words)[2:])))
            case ["bifl", *_]:
                _call(tuple(in_small(words)))
            case ["python", script, *_]:
                _benchmark(self.folder / script, in_small(words)[2:])
            case ["make", "-C", _, target]:
                if shutil.which(TOOLS[target]):
                    _shell(words, self.folder)
            case ["make", *rest]:
                _shell(["make", "-n", *rest], ROOT)  # .ci/run makes run, test and processors
            case ["pip", "install", wanted]:
                assert wanted[5:-1] in (metadata("bifl").get_all("Provides-Extra") or [])
            case ["apt-get", "install", *packages]:
                assert {*packages} <= {*(ROOT / ".ci/run").read_text().split()}
            case [program, *rest] if Path(program).name == "pytest":
                self._collector.check(rest)
            case _:
                _shell(["bash", "-c", command.text], self.folder)

    def _meant(self, word: str, trust: bool) -> str:
        """What a word of a pattern stands for: the newest run, or its model; without --trust one that names no Python file."""
        for pattern, end in (("runs/<name>", ""), ("runs/…", ""), ("RUN", ""), ("MODEL", "/model")):
            if pattern in word.split("="):
                runs = [path for path in (self.folder / "runs").glob("*/config.toml") if trust or ".py:" not in path.read_text()]
                newest = max(runs, key=lambda path: path.stat().st_mtime_ns)
                return word.replace(pattern, f"runs/{newest.parent.name}{end}")
        return word


def _call(words: tuple[str, ...]) -> None:
    """A command of bifl's, within this process."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main(list(words[1:]))
    assert code == 0, f"{shlex.join(words)}: {said.getvalue()}"


_once = cache(_call)  # several pages show them, and none needs what they leave


def _shell(words: list[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


class Collector:
    """A process that collects tests, one command after the other: it imports torch once for all of them."""

    PROGRAM = """
import contextlib, io, json, sys, pytest
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(["--collect-only", "--capture=no", *json.loads(line)])
    print(json.dumps([code, said.getvalue()]), flush=True)
"""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, str]] = {}

    @cached_property
    def process(self) -> subprocess.Popen[str]:
        """Started where a page shows a test."""
        command = [sys.executable, "-c", self.PROGRAM]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def check(self, words: list[str]) -> None:
        """The tests that a command selects are there; for those with a marker only the files that name it are read."""
        asked = list(words)
        if words[:1] == ["-m"]:
            files = (ROOT / "tests").rglob("test_*.py")
            asked += [str(path) for path in files if re.search(rf"mark\.{words[1]}\b", path.read_text())]
            assert asked != words, f"no test is marked {words[1]}"
        line = json.dumps(asked)
        if line not in self._known:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            print(line, file=self.process.stdin, flush=True)
            self._known[line] = json.loads(self.process.stdout.readline())
        code, said = self._known[line]
        assert code == 0, f"pytest {shlex.join(words)}: {said[-2000:]}"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """One for all pages."""
    made = Collector()
    yield made
    if "process" in vars(made):
        made.process.communicate()  # the end of what it reads ends it


def _benchmark(script: Path, words: list[str]) -> None:
    """A benchmark, within this process. It imports its neighbours anew: what they registered in another test is forgotten."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(sys, "argv", [str(script), *words])
        patch.syspath_prepend(script.parent)
        before = {path.stem: sys.modules.pop(path.stem, None) for path in script.parent.glob("*.py")}
        try:
            runpy.run_path(str(script), run_name="__main__")
        finally:
            for name, module in before.items():
                sys.modules.pop(name, None)
                if module is not None:
                    sys.modules[name] = module


@pytest.fixture
def reader(tmp_path: Path, small: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Somebody for whom every dataset is small, on a machine with one core: no run needs processes of its own."""
    dice = np.random.default_rng(0)
    digits = from_npz(small)
    people = np.repeat(np.arange(10), 501)
    windows = Dataset(
        dice.normal(size=(200, 9, 128)).astype(np.float32), np.arange(200) % 6, dice.normal(size=(60, 9, 128)).astype(np.float32),
        np.arange(60) % 6, 6, (0.0,) * 9, (1.0,) * 9, np.arange(200) % 10,
    )  # fmt: skip
    chosen = np.arange(len(people)) % len(digits.labels)
    written = digits._replace(inputs=digits.inputs[chosen], labels=digits.labels[chosen], users=people)
    factories: dict[str, Any] = {
        "mnist5k": lambda: digits,
        "mnist": lambda: digits,
        "fashion_mnist": lambda: digits,
        "mnist_writers": lambda path="": written,
        "uci_har": lambda path="": windows,
    }
    for name, factory in factories.items():
        dataset(wraps(dataset.factory(name))(factory))  # until the test ends, as everything that a test registers
    monkeypatch.setattr("bifl.experiment.settings.cores", lambda: 1)
    monkeypatch.chdir(tmp_path)
    return Reader(tmp_path, small, collector)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs(page: str, reader: Reader) -> None:
    reader.follow((ROOT / page).read_text(), page)


WRONG = {
    "an inline command": "| see it | `bifl run no_such_key=1` |",
    "a block": "```\nbifl run\nbifl inspect no-such-file\n```",
    "a name": "`bifl srever` serves",
    "a program": "```python\nimport bifl\n\nbifl.no_such_function()\n```",
    "a benchmark": "`python benchmarks/no_such.py`",
    "a target": "`make no-such-target`",
    "an extra": "```\npip install 'bifl[no_such_extra]'\n```",
    "a test": "`pytest tests/no_such_test.py`",
    "another's program": "```\nno-such-program --help\n```",
    "a file that no command names": "<!-- file: mine.py -->\n```python\nx = 1\n```",
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_run_is_told_with_its_line(kind: str, reader: Reader) -> None:
    with pytest.raises(AssertionError, match=r"^page.md:\d: "):
        reader.follow(f"\n{WRONG[kind]}\n", "page.md")


@pytest.mark.parametrize("kind", [kind for kind, text in WRONG.items() if not text.startswith("<")])
def test_what_is_marked_is_not_run(kind: str, reader: Reader) -> None:
    block = "\n" if WRONG[kind].startswith("```") else ""
    reader.follow(f"<!-- not run: why -->{block}{WRONG[kind]}\n", "page.md")


PAGE = """# A page

Use `bifl run` or <!-- not run: hours -->`bifl run rounds=9` and `bifl list`,
`make run`.

```
bifl run a=1 \\
  b=2    # both
bifl list
```

<!-- not run: a cluster -->
```
flwr run
```

```text
it says something
```

<!-- file: my.py -->
```python
x = 1
```
"""


def test_a_page_is_read_in_its_order() -> None:
    found = [(one.line, one.text.split("#")[0].strip(), one.why_not) for one in shown(PAGE, "page.md")]
    assert found == [
        (3, "bifl run", ""), (3, "bifl run rounds=9", "hours"), (3, "bifl list", "hours"), (4, "make run", ""),
        (7, "bifl run a=1   b=2", ""), (9, "bifl list", ""), (14, "flwr run", "a cluster"), (23, "x = 1", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "block", ["```sh\nbifl run\n```", "- so:\n  ```\n  bifl run\n  ```", "```\nbifl run\n", "```text\nbifl run\n```"]
)
def test_a_block_that_nobody_would_run_is_told(block: str) -> None:
    with pytest.raises(ValueError, match=r"page.md"):
        list(shown(block, "page.md"))


@pytest.mark.floats
def test_the_worked_example_is_short_and_learns(tmp_path: Path) -> None:
    example, *_ = python_blocks("docs/adding-an-algorithm.md")
    assert example.count("\n") < 60
    path = tmp_path / "direction_vote.py"
    path.write_text(example)
    records = list(simulate(Experiment.of(None, [f"algorithm={path}:direction_vote", "rounds=8", "workers=1"])))
    assert records[-1].accuracy > 0.9  # 96.2 to 96.5 % with three seeds, on two processors
    assert records[-1].up_bpp < 1.25  # 1.04, a packed bit and batch-norm's numbers
    assert records[-1].down_bpp < 1.25


def test_the_page_on_sensors_reads_a_network_of_one_s_own(tmp_path: Path, here: Run) -> None:
    """As the page says: it is refused without trust."""
    (said,) = re.findall(r"`(bifl\.Model\.read\(.*?\))`", (ROOT / "docs/sensors.md").read_text())
    (tmp_path / "own.py").write_text(
        "from bifl.nn.models import har_cnn, model\n@model\ndef own(classes: int): return har_cnn(classes, 3)"
    )
    inputs = np.random.default_rng(0).normal(size=(12, 3, 16)).astype(np.float32)
    np.savez(tmp_path / "windows.npz", inputs=inputs, labels=np.arange(12) % 3)
    words = ["dataset=npz", "dataset.path=windows.npz", "model=own.py", "clients=2", "rounds=1", "workers=1"]
    assert here("run", *words, "--out", "run", cwd=tmp_path).returncode == 0
    assert eval(said, {"bifl": bifl, "path": "run/model"}).predict(inputs).shape == (12, 3)


def test_the_settings_on_training_are_accepted() -> None:
    """Every setting in the page's tables is an experiment."""
    page = (ROOT / "docs/training.md").read_text()
    lines = re.findall(r"^\|.*?`([a-z_]+[.=][^`]*)`", page, re.MULTILINE) + re.findall(r"\| `([a-z_]+=[^`]*)`", page)
    assert len(lines) > 10
    for line in lines:
        assert Experiment.of(None, [word for word in line.split() if "my_training" not in word])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", (ROOT / page).read_text())
    assert links or page == "docs/wire-format.md"
    for target, heading in links:
        if "://" not in target:
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), f"{page} links to {target}"
            assert not heading or heading in anchors(path), f"{page} links to {target}#{heading}"


def anchors(path: Path) -> list[str]:
    """What GitHub calls a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
