"""Who takes part: nodes become clients by answering a greeting with their number, and are held to what they declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bifl.deploy import checks, protocol
from bifl.deploy.client_numbers import Numbers
from bifl.deploy.declared_sizes import Declared
from bifl.runs.events import JOINED, REFUSED, Tell


@dataclass
class Member:
    """A node that has introduced itself."""

    node: int
    number: int
    images: int
    digest: str  # of the public state as this client knows it


class Members:
    """The clients of a run.

    Args:
        clients: how many there may be.
        model: fingerprint of the run's model.
        declared: what clients have declared so far.
        numbers: which client a node is, where that is known.
        most: images that one client may count for; 0 leaves it to `declared.over`.
        tell: takes a sentence for a person.

    Attributes:
        barred: clients that have more images than they may, each with the sentence that tells why.
        alike: whether every client counts once, as `privacy=` has it.
    """

    def __init__(self, clients: int, model: str, declared: Declared, numbers: Numbers, most: int, tell: Tell) -> None:
        self._clients, self._model, self._most, self._tell = clients, model, most, tell
        self._declared, self._numbers = declared, numbers
        self._by_number: dict[int, Member] = {}
        self._online: set[int] = set()  # nodes
        self._strangers: set[int] = set()  # nodes that may not take part
        self._unbound: set[int] = set()  # nodes that were told of because they have no number
        self._judged: set[int] = set()  # whose declarations counted when this round began
        self.barred: dict[int, str] = {}
        self.alike = False

    def __getitem__(self, number: int) -> Member:
        return self._by_number[number]

    def __contains__(self, number: object) -> bool:
        return number in self._by_number

    def present(self) -> dict[int, Member]:
        """The connected clients, by number."""
        return {number: member for number, member in sorted(self._by_number.items()) if member.node in self._online}

    def voting(self) -> dict[int, Member]:
        """The connected clients that may take part."""
        return {number: member for number, member in self.present().items() if number not in self.barred}

    def online(self, node: int) -> bool:
        """Whether a node is connected."""
        return node in self._online

    def failed(self) -> int:
        """How many nodes are there and could not become clients."""
        return len(self._strangers)

    def see(self, online: set[int]) -> set[int]:
        """Update the list of connected nodes; return those that have not introduced themselves."""
        self._online = set(online)
        self._strangers &= online  # one that left may come back as somebody else
        known = {member.node for member in self._by_number.values()} | self._strangers
        numbers = self._numbers.known()
        if numbers is None:
            return online - known
        for node in online - numbers.keys() - self._unbound:
            self._unbound.add(node)
            self._tell(f"node {node} has a key that is none of the run's client-N.pub: it is not asked for anything", REFUSED)
        return (online & numbers.keys()) - known

    def lose(self, node: int) -> None:
        """Mark a node as offline until it is seen again."""
        self._online.discard(node)

    def forget(self, number: int) -> None:
        """A client must introduce itself again."""
        self._by_number.pop(number, None)

    def leave_out(self, node: int) -> None:
        """Send a node no more requests while it stays connected."""
        self._strangers.add(node)

    def turn_away(self, node: int, reason: str, claimed: int | None = None) -> None:
        """Leave a node out, and tell why."""
        self.leave_out(node)
        number = (self._numbers.known() or {}).get(node, claimed)
        self._tell(f"{_name(node, number)} refused: {reason}", REFUSED, number)

    def number(self, node: int, claimed: object) -> int | None:
        """Which client a node is that has not introduced itself: as its key says, or where keys are not known, as it says."""
        bound = self._numbers.known()
        if bound is not None:
            return bound.get(node)
        return claimed if isinstance(claimed, int) and 0 <= claimed < self._clients else None

    def welcome(self, node: int, said: Mapping[str, Any]) -> None:
        """Make a node that has introduced itself a client, or turn it away."""
        problem = protocol.other_version(said.get(protocol.VERSION), "it", "the server")
        problem = problem or checks.misfit(said, self._clients, self._model)
        if problem is not None:
            self.turn_away(node, problem)
            return
        member = Member(node, said["number"], said["images"], said["digest"])
        problem = self._stolen(node, member.number) or self._declared.problem(member.number, member.images)
        if self.alike and member.images != 1:
            problem = f"it would count for {member.images} images, and with privacy= every client counts for 1"
        if problem is not None:
            self.turn_away(node, problem, member.number)
            return
        self._declared.add(member.number, member.images)
        self._by_number[member.number] = member
        there = f"{len(self.present())} of {self._clients}"
        self._tell(f"client {member.number} is there, with {member.images} images: {there}", JOINED, member.number)
        if member.number not in self._judged:  # judged alone, so that it does not matter who else comes in this round
            found = self._declared.over(self._most, self._judged | {member.number})
            self._bar({number: limit for number, limit in found.items() if number == member.number})

    def judge(self) -> None:
        """Decide from all declarations who may take part in the coming round."""
        self._judged = set(self._declared.images)
        found = self._declared.over(self._most)
        for number in self.barred.keys() - found.keys():
            del self.barred[number]
            self._tell(f"client {number} may take part from now on: others have declared as many images", client=number)
        self._bar(found)

    def _bar(self, found: Mapping[int, float]) -> None:
        for number, limit in found.items():
            if number not in self.barred:
                images = self._declared.images[number]
                self.barred[number] = (
                    f"it has declared {images} images, and one client may declare {limit:.0f} here: if the number is right, the "
                    f"server's operator lets it in with --max-images {images}"
                )
                self._tell(f"client {number} refused: {self.barred[number]}", REFUSED, number)

    def _stolen(self, node: int, number: int) -> str | None:
        """Why a node may not have a number; None if it may."""
        numbers = self._numbers.known()
        if numbers is not None and numbers.get(node) != number:
            return f"it says that it is client {number}, and its key is that of client {numbers.get(node)}"
        there = self.present().get(number)
        return None if there is None or there.node == node else f"client {number} is there already"


def _name(node: int, number: int | None) -> str:
    return f"node {node}" if number is None else f"client {number} (node {node})"
