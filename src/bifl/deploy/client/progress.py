r"""What a client tells its operator, in words: to Flower's log, and from a client's node through a pipe to `bifl client`.

>>> sentence("trained", {"round": 3, "images": 400, "loss": 0.4142, "bytes": 5600})
'round 3: trained on 400 images, loss 0.41, 5.60 kB up'
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bifl.errors import quoted
from bifl.files import size

Tell = Callable[..., None]  # an event and its facts, such as `tell_log` takes; it never raises: training goes on
PROBLEM = "problem"
_MARK = "bifl: "  # how a problem begins in the pipe
_LONGEST = 900  # characters of a sentence: a line stays below the 4,096 bytes that a pipe takes at once
_READ = 2**16  # bytes: as many as a pipe holds
log = logging.getLogger("flwr")


def tell_log(event: str, **facts: str | int | float) -> None:
    """Tell Flower's log."""
    (log.error if event == PROBLEM else log.info)(quoted(sentence(event, facts), _LONGEST))


def tell_pipe(pipe: int) -> Tell:
    """Tells `bifl client` through a pipe as well, unless that is full, or closed."""
    os.set_blocking(pipe, False)

    def tell(event: str, **facts: str | int | float) -> None:
        tell_log(event, **facts)
        line = (_MARK if event == PROBLEM else "") + quoted(sentence(event, facts), _LONGEST) + "\n"
        with contextlib.suppress(OSError):
            os.write(pipe, line.encode())

    return tell


def read_pipe(pipe: int) -> Iterator[tuple[str, bool]]:
    """What came since the last look, if the pipe is not to be waited for: sentences, and whether each is a problem."""
    with contextlib.suppress(BlockingIOError):
        for line in os.read(pipe, _READ).decode(errors="replace").splitlines():
            yield line.removeprefix(_MARK), line.startswith(_MARK)


def sentence(event: str, facts: Mapping[str, Any]) -> str:
    """An event in words."""
    match event:
        case "joined":
            held = f", {facts['held']:d} held out to evaluate on" if facts["held"] else ""
            run = f"joined a run of {facts['rounds']:d} rounds as client {facts['number']:d}"
            return f"{run}: {facts['images']:d} images to train on{held}"
        case "trained":
            sent = f"{size(facts['bytes'])} up" if facts["bytes"] else "no upload asked for"
            loss = f" loss {facts['loss']:.2f}," if "loss" in facts else ""
            return f"round {facts['round']:d}: trained on {facts['images']:d} images,{loss} {sent}"
        case "finished":
            return f"the run is finished after {facts['rounds']:d} rounds; waiting for the next one (Ctrl-C to stop)"
        case _:  # a notice or a problem
            return str(facts["text"])
