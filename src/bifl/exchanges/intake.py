"""How an upload is taken in, by whoever adds up: decoded, checked, opened and counted, as a whole or not at all.

The readable loop, a worker and the server of a deployment do the same. A server that did not make the uploads itself says whom each
one should be from, and then nothing is believed that can be checked. (Imports no torch: apps that only compress may not have it.)
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy.typing as npt

from bifl import codec
from bifl.codec import Context, field_error
from bifl.core.message import UPDATE, Message, Vector
from bifl.core.sides import ServerSide
from bifl.core.state import Public
from bifl.core.sums import LARGEST_TRAINED, Total, all_below
from bifl.exchanges.exchange import Exchange


class Sender(NamedTuple):
    """Whom an upload should be from."""

    number: int
    weight: int  # as it has declared


class Receipt(NamedTuple):
    """What an upload that was counted has cost."""

    size: int  # bytes
    ideal: float | None  # the same, if the coder were ideal


class Intake:
    """Takes in the uploads of one exchange.

    Args:
        exchange: that they belong to.
        public: the public state.
        context: of the exchange's messages.
        server: what the server knows of the round; None where another adds up for it.

    Attributes:
        total: the sum of all that was taken in.
    """

    def __init__(self, exchange: Exchange, public: Public, context: Context, server: ServerSide | None = None) -> None:
        self._exchange, self._public, self._server = exchange, public, server
        self._context = exchange.uploads_in(context)
        self.total = exchange.total(public)

    def take(self, data: bytes, sender: Sender | None = None) -> Receipt:
        """Count an upload.

        Args:
            data: the upload.
            sender: whom it should be from; None for one that was made here.

        Raises:
            Exception: it cannot be counted, and nothing of it was.
        """
        upload = codec.decode(data, self._context)
        if sender is not None:
            refuse_misfit(upload, sender, self._form)
        opened = self._exchange.open(upload, self._public, self._server)
        if sender is not None:
            self._try(opened)
        self.total.add(opened)
        return Receipt(len(data), codec.ideal_size(data, upload, self._context))

    @cached_property
    def _form(self) -> Message:
        return self._exchange.form(self._public)

    def _try(self, opened: Message) -> None:
        """Count an upload alone first, so that nothing in it can spoil what the others have said."""
        alone = self._exchange.total(self._public)
        alone.add(opened)
        if isinstance(alone, Total):
            tally = alone.tally()
            finite(tally.real, *(part for vector in tally.vectors.values() for part in (vector.mean, vector.scales)))
        else:  # what is made of several uploads may need several
            finite(opened.real, *(part for vector in opened.vectors.values() for part in (vector.values(), vector.scales)))


def refuse_misfit(upload: Message, sender: Sender, form: Message) -> None:
    """Refuse what can be read and yet cannot be counted.

    Raises:
        WireError: as for what cannot be read.
    """
    if upload.sender != sender.number:
        raise field_error("sender", f"is from client {upload.sender}, not from {sender.number}")
    if upload.weight != sender.weight:
        raise field_error("weight", f"weighs {upload.weight} images, the client has {sender.weight}")
    finite(*numbers(upload))
    if upload.vectors.keys() != form.vectors.keys():
        names, wanted = (", ".join(sorted(vectors)) for vectors in (upload.vectors, form.vectors))
        raise field_error("further", f"holds the vectors {names}, this algorithm's uploads hold {wanted}")
    for name, vector in upload.vectors.items():
        _refuse_other_vector(name, vector, form.vectors[name])


def _refuse_other_vector(name: str, vector: Vector, form: Vector) -> None:
    which = "" if name == UPDATE else f"in the vector '{name}': "
    if vector.alphabet != form.alphabet:
        raise field_error(
            "alphabet", f"{which}is spelled in {vector.alphabet.name}, this algorithm's uploads in {form.alphabet.name}"
        )
    if len(vector.scales) != len(form.scales):
        raise field_error("scales", f"{which}has {len(vector.scales)} scales, this algorithm's uploads have {len(form.scales)}")


def numbers(message: Message) -> list[npt.NDArray[Any]]:
    """All numbers of a message that its alphabets do not bound."""
    vectors = message.vectors.values()
    symbols = [vector.symbols for vector in vectors if vector.alphabet.size == 0]
    return [message.real, *(vector.scales for vector in vectors), *symbols]


def finite(*vectors: npt.NDArray[Any]) -> None:
    """Check that all numbers are finite and below `LARGEST_TRAINED`.

    Raises:
        WireError: one is not.
    """
    if not all_below(LARGEST_TRAINED, *vectors):
        raise field_error("body", "holds numbers that are not finite or far too large")
