"""The deployments that the pages show, between real processes: as written, but for one round (support/documented.py)."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.deploy.test_flower import Town, town
from tests.support.commands import bifl, rounds
from tests.support.documented import PAGES, ROOT, Command, Program, commands, in_small, shown

__all__ = ["town"]
pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(" " in sys.prefix, reason="Flower's SuperLink cannot run from a path with a blank"),
]
SHOWN = [command for page in PAGES for command in commands(page) if command.deployed and not command.why_not]
UP = {command.text.partition("#")[0].strip(): command for command in SHOWN if command.words[1] == "federation"}
BY_HAND = sorted({command.page for command in SHOWN if command.words[1] == "server" and not command.inline})


def in_one_round(command: Command) -> list[str]:
    return in_small(command.words, rounds=1)[1:]


@pytest.mark.parametrize("text", [text for text in UP if "--resume" not in text])
def test_a_federation_on_this_machine(text: str, town: Town) -> None:
    town.finish(town.start("server", *in_one_round(UP[text])))
    (run,) = (town.folder / "runs").iterdir()
    assert [record["clients"] for record in rounds(run)] == [3]


def test_a_page_says_how_a_federation_is_continued(town: Town) -> None:
    """The server and all clients of a run that was stopped."""
    up = next(command for text, command in UP.items() if "--resume" not in text)
    first = town.start("server", *up.words[1:])
    runs = town.folder / "runs"
    town.wait(lambda: any(path.read_text() for path in runs.glob("*/rounds.jsonl")), first)
    first.terminate()
    assert first.wait() == 130
    (resume,) = (command.words[1:] for text, command in UP.items() if "--resume" in text)
    town.finish(town.start("server", *(word.replace("<name>", next(runs.iterdir()).name) for word in resume)))
    (run,) = runs.iterdir()
    assert [record["clients"] for record in rounds(run)] == [3, 3, 3]


@pytest.mark.parametrize("page", BY_HAND)
def test_machines_that_are_set_up_by_hand(page: str, town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bifl keys` and `bifl server` in one folder, `bifl client` in one folder each, with the files that the page says.

    All machines are this one, and port 8000 is a free one.
    """
    found = [command for command in commands(page) if command.words[0] == "bifl" and not command.inline and not command.why_not]
    words = {command.words[1]: here(in_one_round(command), town.port) for command in found}
    server, clients = town.folder / "server", [town.folder / f"client-{number}" for number in range(3)]
    for folder in (server, *clients):
        folder.mkdir()
    if "keys" in words:
        assert bifl(*words["keys"], cwd=server).returncode == 0
    listen = [] if "--listen" in words["server"] else ["--listen", f"127.0.0.1:{town.port}"]
    serving = town.start("server", *words["server"], *listen, cwd=server)
    town.wait(lambda: "listening" in town.said("server"), serving)
    for number, folder in enumerate(clients):
        for name in ("ca.crt", f"client-{number}"):
            shutil.copy(server / "keys" / name, folder)
        monkeypatch.chdir(folder)
        make_data(page)
        own = [word.replace("client-0", f"client-{number}") for word in words["client"]]
        town.start(f"client-{number}", *own, cwd=folder)
    town.finish(serving)
    (run,) = (server / "runs").iterdir()
    assert [record["clients"] for record in rounds(run)] == [3]


def here(words: list[str], port: int) -> list[str]:
    return [word.replace("fl.example.org", "localhost").replace("HOST", "localhost").replace(":8000", f":{port}") for word in words]


def make_data(page: str) -> None:
    """Run the programs of a page that write files."""
    for program in shown((ROOT / page).read_text(), page):
        if isinstance(program, Program) and "np.savez(" in program.text:
            exec(program.text, {"__name__": "__main__"})
