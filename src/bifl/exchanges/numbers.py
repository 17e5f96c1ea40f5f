"""Exchanges in which clients say some numbers, and the server learns their sum: counts, mostly. A secure sum can hide each.

Numbers cross in double precision, as pairs of single-precision ones whose sums are exact: also under masks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from bifl.core.layout import Layout, Tensor
from bifl.core.message import Floats, Message, reals_only
from bifl.core.sides import ClientReply, ClientSide, ServerSide
from bifl.core.state import Public
from bifl.core.sums import Tally, Total, all_below
from bifl.errors import AlgorithmError, Refused
from bifl.exchanges.exchange import Summable
from bifl.secure import REAL_LIMIT

Sums = npt.NDArray[np.float64]
LARGEST = float(REAL_LIMIT)  # of a number: a secure sum takes no larger one


class Numbers(Summable):
    """Clients say numbers that are added up. A new one says how many there are, what they are of a client, and what they tell."""

    main = True
    computes = False

    @abstractmethod
    def length(self, public: Public) -> int:
        """How many numbers a client says."""

    @abstractmethod
    def count(self, side: ClientSide, public: Public) -> Sums:
        """The numbers of one client, all below `LARGEST`."""

    def problem(self, numbers: Sums, weight: int) -> str | None:
        """Why a client cannot say this that has declared to weigh so much; None if it can. Sums of what clients say pass too."""
        return None

    @abstractmethod
    def report(self, sums: Sums, clients: int) -> Mapping[str, float]:
        """What the sums over so many clients tell, by name."""

    def layout(self, public: Public) -> Layout:
        """The numbers, and what single precision leaves of them."""
        return Layout((), (), (Tensor(self.name, (2 * self.length(public),)),), ())

    def say(self, side: ClientSide, public: Public, *, uploads: bool) -> ClientReply:
        """Count."""
        numbers, length = np.asarray(self.count(side, public), np.float64), self.length(public)
        if numbers.shape != (length,):
            raise AlgorithmError(
                f"exchange '{self.name}': count returned numbers of shape {numbers.shape}; length says ({length},)"
            )
        if not all_below(LARGEST, numbers):
            raise Refused(f"exchange '{self.name}': its numbers are not finite, or too large to be added up: {LARGEST:.0f} or more")
        return ClientReply(reals_only(_halves(numbers)), side.client)

    def open(self, upload: Message, public: Public, server: ServerSide | None = None) -> Message:
        """The numbers, if they can be; each client's count once."""
        numbers = _whole(upload.real.astype(np.float64))
        problem = "a number is too large" if not all_below(LARGEST, numbers) else self.problem(numbers, upload.weight)
        if problem:
            raise Refused(f"what it has counted in the exchange '{self.name}' makes no sense: {problem}")
        return upload._replace(weight=1)

    def answer(self, total: Total, public: Public, server: ServerSide) -> tuple[ServerSide, Message]:
        """The sums."""
        sums = _whole(np.asarray(total.real.mean() * total.real.weight))
        return server.reporting(self.report(sums, total.clients)), reals_only(_halves(sums))

    def plausible(self, tally: Tally, public: Public, largest: int) -> bool:
        """Whether a sum under masks can be."""
        return self.problem(_whole(tally.real.astype(np.float64)) * tally.clients, 0) is None


def _halves(numbers: Sums) -> Floats:
    """Numbers in single precision, and then what that leaves of them."""
    coarse = numbers.astype(np.float32)
    return np.concatenate([coarse, (numbers - coarse).astype(np.float32)])


def _whole(halves: Sums) -> Sums:
    coarse, fine = np.split(halves, 2)
    whole: Sums = coarse + fine
    return whole
