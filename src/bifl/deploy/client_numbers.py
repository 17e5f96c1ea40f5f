"""Which client a node is, by its key: a file that `bifl server` writes for its ServerApp.

Flower's SuperLink lets a node in by its key and gives it an id; keys/client-N.pub says which client the key belongs to. Without
such a file (a SuperLink of your own, an app of your own) a node is the client that it says it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bifl.errors import RunError
from bifl.files import write_atomic, writing

NODES = "nodes.json"  # in Flower's part of the run's folder


def write_numbers(path: Path, numbers: Mapping[int, int]) -> None:
    """Write down which client each node is."""
    with writing(path):
        write_atomic(path, json.dumps({str(node): number for node, number in numbers.items()}))


class Numbers:
    """The clients' numbers by node, read again whenever the file has changed: keys are added while a server runs."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._changed = path, 0
        self._known: dict[int, int] = {}

    def known(self) -> Mapping[int, int] | None:
        """Node → number; None where nodes are not bound to numbers. While the file is not there, no node has one."""
        if self._path is None:
            return None
        try:
            if (changed := self._path.stat().st_mtime_ns) != self._changed:
                self._known = {int(node): int(number) for node, number in json.loads(self._path.read_text()).items()}
                self._changed = changed
        except FileNotFoundError:
            self._known = {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise RunError(f"cannot read '{self._path}', which says which client a key belongs to: {error}") from error
        return self._known
