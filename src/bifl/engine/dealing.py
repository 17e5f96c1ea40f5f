"""Which worker runs which clients: each about as many images as the others, since a round waits for the last worker.

>>> dealer = Dealer([range(5), range(3), range(2)], workers=2, fixed=False)
>>> dealer.deal([0, 1, 2])
{0: 0, 1: 1, 2: 1}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from heapq import heapify, heapreplace

from bifl.data.shared import Drawn


class Dealer:
    """Deals clients out to workers.

    Clients that remember something stay with the worker that keeps it. The others go to whoever has least to do in a round: of ten
    clients that are drawn from a hundred, one of two workers would otherwise have six or more.

    Args:
        parts: images of each client.
        workers: how many there are.
        fixed: whether clients stay with their worker.
    """

    def __init__(self, parts: Sequence[Sized], workers: int, fixed: bool) -> None:
        self._count, self.fixed = workers, fixed
        # those who draw when they are asked all draw the same number, and may be a billion
        self._sizes = None if isinstance(parts, Drawn) else [len(part) for part in parts]
        self._owners: Mapping[int, int] = {} if self._sizes is None else self._even(range(len(parts)))
        self._dealt: dict[int, int] = {}

    def owner(self, number: int) -> int:
        """The worker that has a client's samples and what it remembers."""
        return self._owners.get(number, number % self._count)

    def begin(self) -> None:
        """A round begins: whoever takes part in it stays with one worker until its end."""
        self._dealt = {}

    def deal(self, numbers: Iterable[int]) -> dict[int, int]:
        """The worker of each of these clients."""
        numbers = list(numbers)
        if self.fixed:
            return {number: self.owner(number) for number in numbers}
        self._dealt |= self._even([number for number in numbers if number not in self._dealt])
        return {number: self._dealt[number] for number in numbers}

    def _even(self, numbers: Iterable[int]) -> dict[int, int]:
        """Each in turn, the largest first, to the worker with the fewest images so far."""
        loads = [(0, worker) for worker in range(self._count)]
        heapify(loads)
        found = {}
        for number in sorted(numbers, key=self._size, reverse=True):
            load, worker = loads[0]
            found[number] = worker
            heapreplace(loads, (load + self._size(number), worker))
        return found

    def _size(self, number: int) -> int:
        return 1 if self._sizes is None else self._sizes[number]
