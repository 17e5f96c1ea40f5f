"""What the pages show, in its order: commands and Python programs; and how each is run in small.

README.md, CONTRIBUTING.md and the pages of docs/ show

- commands: every line of a fenced block without a language, and code between backticks that begins with one of `INLINE`;
- programs: blocks of ```python; `<!-- file: my.py -->` before one is the name under which the reader saves it.

Blocks of another language, such as ```text for what a command prints, are not run. Nor is what `<!-- not run: why -->` stands
before: on the line before a block, or on the line of the code between backticks.

In small (`in_small`) a run has at most 10 clients, half of whom take part at least, 2 rounds and 2 seeds; `bifl reproduce` shows
what is kept, all of the paper's studies where it is one of them, and takes few quadratics for the theory; a benchmark is given the
words in `BENCHMARKS` too. Everything else is run as it is written, except that

- a command that a sentence only names (`bifl server`) is asked for its help;
- `bifl server`, `client` and `federation up` are parsed by tests/test_docs.py and run by tests/test_docs_deployed.py, in one round;
- `make TARGET` is run dry and `pytest` only collects: .ci/run does both; what `pip` and `apt-get` install must be known;
- `RUN`, `MODEL` and `runs/<name>` stand for the page's newest run, and `…` for nothing.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from studies.cells import STUDIES

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
INLINE = re.compile(r"(bifl|make|pytest) |python benchmarks/|\.venv/bin/\w+ ")
DEPLOYED = ("server", "client", "federation")  # commands of bifl that need processes which talk to each other
CLIENTS, ROUNDS, SEEDS, SHARE = 10, 2, 2, 0.5
BENCHMARKS = {  # what makes minutes seconds
    "class_inference.py": "--page",
    "liars.py": "biml --seeds 0 --liars 1 --lie huge --set rounds=1 --set clients=4 --set workers=1",
    "privacy.py": "--epsilon --clients 100",
    "secure.py": "--clients 3 --rounds 2",
    "wire.py": "100000",
}
_SEEDS = re.compile(r"seeds=\d+(,\d+)*")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NOT_RUN, _FILE, _CODE = re.compile(r"<!-- not run: (.+?) -->"), re.compile(r"<!-- file: (\S+) -->"), re.compile(r"`([^`]+)`")


class Command(NamedTuple):
    """A command as it is written."""

    page: str
    line: int
    text: str
    why_not: str  # it is not run; empty where it is
    inline: bool  # between backticks in a sentence or a table

    @property
    def words(self) -> list[str]:
        """As a shell would read it."""
        return shlex.split(self.text, comments=True)

    @property
    def names_only(self) -> bool:
        """Whether a sentence speaks of the command, such as `bifl server`, and shows no use of it."""
        return self.inline and self.words[0] == "bifl" and [word for word in self.words[2:] if word != "up"] == []

    @property
    def deployed(self) -> bool:
        """Whether it needs processes that talk to each other."""
        return self.words[0] == "bifl" and self.words[1] in DEPLOYED and not self.names_only


class Program(NamedTuple):
    """A block of Python."""

    page: str
    line: int
    text: str
    why_not: str
    file: str  # the name under which the reader saves it; empty where none is said


def shown(text: str, page: str) -> Iterator[Command | Program]:
    """Everything that the text of a page shows.

    Raises:
        ValueError: it has a block that would be passed over.
    """
    end = 0
    if text.count("```") != 2 * len(found := _BLOCK.findall(text)):
        raise ValueError(f"{page}: a block begins or ends within a line, or does not end")
    if odd := {language for language, _ in found} - {"", "python", "text", "c"}:
        raise ValueError(f"{page}: blocks are commands (no language), python, text or c, not {', '.join(odd)}")
    if any(language == "text" and re.search(f"^({INLINE.pattern})", inner, re.MULTILINE) for language, inner in found):
        raise ValueError(f"{page}: a command is in a block of text")
    for block in _BLOCK.finditer(text):
        yield from _inline(text, end, block.start(), page)
        yield from _block(text, block, page)
        end = block.end()
    yield from _inline(text, end, len(text), page)


def _block(text: str, block: re.Match[str], page: str) -> Iterator[Command | Program]:
    """The commands of a block, or its program."""
    before = text[: block.start()].rpartition("\n\n")[2].splitlines()[-1:] or [""]
    marked, named = _NOT_RUN.fullmatch(before[0]), _FILE.fullmatch(before[0])
    why_not, line = marked.group(1) if marked else "", _line(text, block.start(2))
    if block.group(1) == "python":
        yield Program(page, line, block.group(2), why_not, named.group(1) if named else "")
    if not block.group(1):
        for command in re.finditer(r"(?:.*\\\n)*.+", block.group(2)):
            yield Command(
                page, line + block.group(2).count("\n", 0, command.start()), command.group().replace("\\\n", ""), why_not, False
            )


def _inline(text: str, start: int, end: int, page: str) -> Iterator[Command]:
    """The commands between backticks; a marker is for those after it on its line."""
    for code in _CODE.finditer(text, start, end):
        if INLINE.match(code.group(1)):
            marked = _NOT_RUN.findall(text, text.rfind("\n", 0, code.start()) + 1, code.start())
            yield Command(page, _line(text, code.start()), code.group(1), marked[-1] if marked else "", True)


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def commands(page: str) -> list[Command]:
    """Those of a page."""
    return [one for one in shown((ROOT / page).read_text(), page) if isinstance(one, Command)]


def python_blocks(page: str) -> list[str]:
    """The programs of a page."""
    return [one.text for one in shown((ROOT / page).read_text(), page) if isinstance(one, Program)]


def in_small(words: list[str], rounds: int = ROUNDS) -> list[str]:
    """A command of bifl's, or a benchmark, that takes seconds instead of minutes or hours."""
    match words:
        case ["bifl", "run" | "compare" | "tune" | "data" | "server" | "federation" as verb, *settings]:
            usual = {"data": {"clients": CLIENTS}, "run": {"clients": CLIENTS, "rounds": rounds}}
            usual["compare"] = usual["tune"] = usual["run"]
            said = {word.partition("=")[0] for word in settings}
            more = {} if "--resume" in words else usual.get(verb, {"rounds": rounds})
            return [*(_cut(word, rounds) for word in words), *(f"{key}={value}" for key, value in more.items() if key not in said)]
        case ["bifl", "reproduce", "theory"]:
            return [*words, "--quick"]
        case ["bifl", "reproduce", *rest] if "--quick" not in rest:
            return ["bifl", "reproduce", *_shown_with(rest), "--kept"]
        case ["python", script, *_]:
            return [*words, *shlex.split(BENCHMARKS.get(Path(script).name, ""))]
    return words


def _shown_with(words: list[str]) -> list[str]:
    """What shows a study, and others with it: pages name the same ones again and again, and drawing them takes seconds."""
    more = [word for word in words if word != "--kept" and not _SEEDS.fullmatch(word)]  # tables show all seeds that are kept
    paper = [name for name in more if name in STUDIES and STUDIES[name].of_paper]
    return ["all"] if paper and paper == more else more


def _cut(word: str, rounds: int) -> str:
    key, _, value = word.partition("=")
    match key:
        case "clients":
            return f"{key}={min(int(value), CLIENTS)}"
        case "rounds":
            return f"{key}={min(int(value), rounds)}"
        case "seeds":
            return f"{key}={','.join(value.split(',')[:SEEDS])}"
        case "participation":
            return f"{key}={max(float(value), SHARE)}"
    return word
