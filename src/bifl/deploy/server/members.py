"""Who takes part: nodes become clients by answering a greeting with their number, and are held to what they declare.

Which client a node is, is known by its key: Flower's SuperLink lets a node in by its key and gives it an id, and keys/client-N.pub
says which client the key belongs to. Where the server does not know the keys (a SuperLink or an app of your own) a node is the
client that it says it is.

A ballot weighs as many votes as its client has images, which nobody but the client can count: so each declares the number once, and
one whose number is out of all proportion is not counted unless the server's operator says so (docs/deploy.md). The limit is

    times the median of what the others have declared:  half as many times as there are others, at least 2, at most 10
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from bifl.core.sums import LARGEST_WEIGHT
from bifl.deploy import protocol
from bifl.errors import RunError, quoted
from bifl.files import write_atomic, writing
from bifl.runs.events import JOINED, REFUSED, Tell

DECLARED = "declared.json"  # in the run's folder
LEAST_TIMES, MOST_TIMES = 2, 10  # the median
_DIGEST = 64  # letters, at most


def times(others: int) -> float:
    """How many times the median of the others a client may count for."""
    return min(max(others / 2, LEAST_TIMES), MOST_TIMES)


def over(images: Mapping[int, float], chosen: float = 0) -> dict[int, float]:
    """The clients that have more images than they may, each with its limit; one that the operator has `chosen`, unless 0."""
    others = len(images) - 1
    if not chosen and others < 1:
        return {}
    ranked = sorted(images.values())
    limits = {who: chosen or times(others) * _median_without(ranked, count) for who, count in images.items()}
    return {who: limits[who] for who, count in images.items() if count > limits[who]}


def _median_without(ranked: Sequence[float], value: float) -> float:
    """The median of all but one of the values, which are in order."""
    place, others = bisect_left(ranked, value), len(ranked) - 1
    middle = {(others - 1) // 2, others // 2}
    return mean(ranked[rank + (rank >= place)] for rank in middle)


class Declared:
    """What clients have declared so far, in a file that outlives the server if there is one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = None if folder is None else folder / DECLARED
        self.images: dict[int, int] = {} if self._path is None else _read(self._path)

    def problem(self, number: int, images: int) -> str | None:
        """Why a client cannot declare this; None if it can."""
        before = self.images.get(number, images)
        if before != images:
            return f"it has declared {before} images before and says {images} now: the number cannot change during a run"
        return None

    def add(self, number: int, images: int) -> None:
        """Hold a client to its number of images."""
        if self.images.get(number) == images:
            return
        self.images[number] = images
        if self._path is not None:
            with writing(self._path):
                write_atomic(self._path, json.dumps({str(who): self.images[who] for who in sorted(self.images)}))


def _read(path: Path) -> dict[int, int]:
    try:
        images = {int(who): count for who, count in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"cannot read '{path}': {error}; without it clients could declare other numbers of images") from error
    if not all(type(count) is int and 1 <= count <= LARGEST_WEIGHT for count in images.values()):
        raise RunError(f"'{path}' holds a number of images that no client can have: it was changed or damaged")
    return images


@dataclass
class Member:
    """A node that has introduced itself."""

    node: int
    number: int
    images: int
    digest: str  # of the public state as this client knows it


class Members:
    """The clients of a run, at most so many.

    Attributes:
        by_number: the nodes that have introduced themselves.
        online: the connected nodes.
        strangers: connected nodes that could not become clients, and why: they are sent no more requests.
        barred: clients that have more images than they may, and why they may not take part.
    """

    def __init__(
        self, clients: int, model: str, declared: Declared, numbers: Callable[[], Mapping[int, int]] | None, most: int, alike: bool,
        tell: Tell,
    ) -> None:  # fmt: skip
        self._clients, self._model, self._declared, self._tell = clients, model, declared, tell
        # images that one client may count for (0 leaves it to `over`); whether each counts once, as `privacy=` has it
        self._most, self._alike = most, alike
        self._numbers = numbers  # which client a node is, where that is known
        self._unbound: set[int] = set()  # nodes that were told of because they have no number
        self._judged: set[int] = set()  # whose declarations counted when this round began
        self.by_number: dict[int, Member] = {}
        self.online: set[int] = set()
        self.strangers: dict[int, str] = {}
        self.barred: dict[int, str] = {}

    def present(self) -> dict[int, Member]:
        """The connected clients, by number."""
        return {number: member for number, member in sorted(self.by_number.items()) if member.node in self.online}

    def voting(self) -> dict[int, Member]:
        """The connected clients that may take part."""
        return {number: member for number, member in self.present().items() if number not in self.barred}

    def see(self, online: set[int]) -> set[int]:
        """Update the list of connected nodes; return those that have not introduced themselves."""
        self.online = set(online)
        # one that left may come back as somebody else
        self.strangers = {node: why for node, why in self.strangers.items() if node in online}
        new = online - {member.node for member in self.by_number.values()} - self.strangers.keys()
        if self._numbers is None:
            return new
        numbers = self._numbers()
        for node in online - numbers.keys() - self._unbound:
            self._unbound.add(node)
            self._tell(f"node {node} has a key that is none of the run's client-N.pub: it is not asked for anything", REFUSED)
        return new & numbers.keys()

    def who(self, node: int, claimed: object) -> tuple[int | None, str]:
        """Which client a node is, as its key says or, where keys are not known, as it says; and how to call it."""
        if self._numbers is not None:
            number = self._numbers().get(node)
        else:
            number = claimed if type(claimed) is int and 0 <= claimed < self._clients else None
        return number, f"node {node}" if number is None else f"client {number}"

    def welcome(self, node: int, introduction: Mapping[str, Any]) -> None:
        """Make a node that has introduced itself a client, or leave it out and tell why."""
        problem = protocol.other_version(introduction.get(protocol.VERSION), "it", "the server")
        problem = problem or self._problem(node, introduction)
        if problem is not None:
            claimed = introduction.get("number") if introduction.get("model") == self._model else None  # or it is no client of ours
            number, name = self.who(node, claimed)
            self.strangers[node] = f"{name}: {problem}"
            self._tell(f"{name if number is None else f'{name} (node {node})'} refused: {problem}", REFUSED, number)
            return
        member = Member(node, introduction["number"], introduction["images"], introduction["digest"])
        self._declared.add(member.number, member.images)
        self.by_number[member.number] = member
        there = f"{len(self.present())} of {self._clients}"
        self._tell(f"client {member.number} is there, with {member.images} images: {there}", JOINED, member.number)
        if member.number not in self._judged:  # judged alone, so that it does not matter who else comes in this round
            among = self._judged | {member.number}
            limits = over({number: self._declared.images[number] for number in among}, self._most)
            self._bar({number: limit for number, limit in limits.items() if number == member.number})

    def _problem(self, node: int, introduction: Mapping[str, Any]) -> str | None:
        """Why a node that introduces itself so cannot be one of the clients; None if it can."""
        number, images, digest = (introduction.get(name) for name in ("number", "images", "digest"))
        if type(number) is not int or type(images) is not int or type(digest) is not str or len(digest) > _DIGEST:
            return "its introduction makes no sense"
        if not 0 <= number < self._clients:
            return f"its number {number} is none of 0 to {self._clients - 1}"
        if not 1 <= images <= LARGEST_WEIGHT // self._clients:  # at most so many that all together can be added up
            return f"it cannot hold {images} images"
        if introduction.get("model") != self._model:
            return f"it has another model, {quoted(introduction.get('model'))}"
        return self._clash(node, number, images)

    def _clash(self, node: int, number: int, images: int) -> str | None:
        """Why a node cannot be this client with so many images, by what is known of the client; None if it can."""
        bound, _ = self.who(node, number)
        if bound != number:
            return f"it says that it is client {number}, and its key is that of client {bound}"
        there = self.present().get(number)
        if there is not None and there.node != node:
            return f"client {number} is there already"
        if self._alike and images != 1:
            return f"it would count for {images} images, and with privacy= every client counts for 1"
        return self._declared.problem(number, images)

    def judge(self) -> None:
        """Decide from all declarations who may take part in the coming round."""
        self._judged = set(self._declared.images)
        limits = over(self._declared.images, self._most)
        for number in self.barred.keys() - limits.keys():
            del self.barred[number]
            self._tell(f"client {number} may take part from now on: others have declared as many images", client=number)
        self._bar(limits)

    def _bar(self, limits: Mapping[int, float]) -> None:
        for number, limit in limits.items():
            if number not in self.barred:
                images = self._declared.images[number]
                self.barred[number] = (
                    f"it has declared {images} images, and one client may declare {limit:.0f} here: if the number is right, the "
                    f"server's operator lets it in with --max-images {images}"
                )
                self._tell(f"client {number} refused: {self.barred[number]}", REFUSED, number)
