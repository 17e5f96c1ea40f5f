"""Where a worker keeps its clients between their turns, if they are too many for its memory: in a file that is mapped into it.

The file has no name and is gone with the process. The operating system keeps in memory what fits there, and reads the rest back
when a client's turn comes. Results do not depend on it.

>>> import numpy as np
>>> from bifl.core.state import Client
>>> fresh = np.zeros(5000, np.float32)
>>> store = ClientStore(fresh)
>>> store[7] = Client(fresh + 1, fresh, fresh, weight=600)
>>> store[7].start is fresh, float(store[7].aux.sum())
(True, 5000.0)
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bifl.core.message import Floats
from bifl.core.state import Client
from bifl.errors import RunError

LIMIT = 2**30  # bytes of clients' state that a worker keeps in ordinary memory
BLOCK = 2**28  # bytes by which the file grows
_ITEM = 4  # bytes of a float32


class ClientStore(dict[int, Client]):
    """Clients by number; `aux`, `start` and `memory` of those that are put here go into the file.

    Args:
        fresh: what all clients share before their first round: kept once, in memory.
        folder: where to make the file; None for the system's temporary folder.
    """

    def __init__(self, fresh: Floats, folder: Path | None = None) -> None:
        super().__init__()
        self._fresh = fresh
        self._file = tempfile.TemporaryFile(dir=folder, prefix="bifl-clients-")  # noqa: SIM115  (open as long as the process)
        self._slots: dict[tuple[int, str], Floats] = {}
        self._free: Floats = fresh[:0]  # the rest of the last block

    def __setitem__(self, number: int, client: Client) -> None:
        arrays = {field: getattr(client, field) for field in ("aux", "start", "memory")}
        # copied before anything is written: what comes may be what is stored here, under another name
        copies = {field: array.copy() for field, array in arrays.items() if array is not self._fresh}
        stored: dict[str, Any] = {field: self._stored(number, field, array) for field, array in copies.items()}
        super().__setitem__(number, client._replace(**stored))

    def _stored(self, number: int, field: str, array: Floats) -> Floats:
        slot = self._slots.get((number, field))
        if slot is None or slot.shape != array.shape:
            slot = self._slots[number, field] = self._room(array.size).reshape(array.shape)
        slot[...] = array
        return slot

    def _room(self, size: int) -> Floats:
        if size > self._free.size:
            self._free = self._block(max(size, BLOCK // _ITEM))
        room, self._free = self._free[:size], self._free[size:]
        return room

    def _block(self, size: int) -> Floats:
        end = os.fstat(self._file.fileno()).st_size
        try:  # reserved now: a full disk noticed on writing to a mapped page would be the end of the process
            os.posix_fallocate(self._file.fileno(), end, size * _ITEM)
        except OSError as error:
            raise RunError(f"no room for more than {end / 1e9:.1f} GB of clients' state: {error.strerror}") from error
        return np.memmap(self._file, np.float32, "r+", end, (size,)).view(np.ndarray)
