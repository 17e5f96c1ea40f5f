"""Messages as bytes: header, packed symbols, reals, scales, checksum.

offset  size  field
     0     4  magic "BIFL"
     4     1  version (0: the plain format; a coded one will be 1)
     5     1  alphabet: 1 binary, 2 ternary, 3 votes, 4 float32
     6     1  1 if the sender is a client, 0 if it is the server
     7     1  0
     8     4  round
    12     4  sender (0 for the server)
    16     8  weight |D_i|
    24     8  count of symbols
    32     8  votes: total     (else 0)
    40     8  votes: unit      (else 0)
    48     4  count of reals
    52     4  count of scales
    56        symbols, packed; reals and scales as little-endian float32
   end     4  CRC-32 of everything before

>>> import numpy as np
>>> from bifl.algorithm import BINARY, Message
>>> data = encode(Message(np.array([1, 0, 1], np.uint8), BINARY, np.zeros(0, np.float32)))
>>> len(data), decode(data).symbols
(61, array([1, 0, 1], dtype=uint8))
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from bifl.algorithm import BINARY, FLOAT32, TERNARY, Alphabet, Message, Shared, Votes
from bifl.errors import BiflError
from bifl.tally import LARGEST_WEIGHT
from bifl.wire.pack import pack, packed_size, unpack

MAGIC = b"BIFL"
VERSION = 0
_HEADER = struct.Struct("<4sBBBBIIQQQQII")
_CHECKSUM = struct.Struct("<I")
_VOTES = 3
_CODES = {BINARY: 1, TERNARY: 2, FLOAT32: 4}
_ALPHABETS = {code: alphabet for alphabet, code in _CODES.items()}
_LARGEST_TOTAL = 2**48  # more votes than there are images in the world; keeps all sums within int64


class WireError(BiflError, ValueError):
    """Bytes that are not a message, or not the one expected."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"bad message at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[WireError], tuple[int, str]]:
        return WireError, (self.offset, self.reason)  # errors cross from worker processes


def encode(message: Message, context: Shared | None = None) -> bytes:
    """Spell a message.

    Args:
        message: what to say.
        context: what both sides know already. The packed coder has no use for it.
    """
    alphabet = message.alphabet
    votes = (alphabet.total, alphabet.unit) if isinstance(alphabet, Votes) else (0, 0)
    symbols = pack(message.symbols, alphabet)
    header = _HEADER.pack(
        MAGIC, VERSION, _CODES.get(alphabet, _VOTES), message.sender is not None, 0, message.round, message.sender or 0,
        message.weight, len(message.symbols), *votes, len(message.real), len(message.scales),
    )  # fmt: skip
    body = b"".join((header, symbols, message.real.astype("<f4").tobytes(), message.scales.astype("<f4").tobytes()))
    return body + _CHECKSUM.pack(zlib.crc32(body))


def decode(data: bytes, context: Shared | None = None, expect: int | None = None) -> Message:
    """Read a message.

    Args:
        data: exactly one message.
        context: what both sides know already, as for `encode`.
        expect: how many symbols the receiver's model has; other messages are refused before they are unpacked.

    Raises:
        WireError: for every other sequence of bytes, naming offset and reason.
    """
    data = bytes(data)
    if len(data) < _HEADER.size + _CHECKSUM.size:
        raise WireError(len(data), f"cut short, a message has at least {_HEADER.size + _CHECKSUM.size} bytes")
    magic, version, code, has_sender, zero, round, sender, weight, count, total, unit, reals, scales = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise WireError(0, f"starts with {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise WireError(4, f"has version {version}, this program reads version {VERSION}")
    body = len(data) - _CHECKSUM.size
    if zlib.crc32(data[:body]) != _CHECKSUM.unpack_from(data, body)[0]:
        raise WireError(body, "the checksum does not fit: the message was damaged or cut short")
    alphabet = _alphabet(code, total, unit)
    if has_sender > 1 or zero or (sender and not has_sender):
        raise WireError(6, "sender flags are not 0 or 1")
    if not 1 <= weight <= LARGEST_WEIGHT:
        raise WireError(16, f"weight must be from 1 to {LARGEST_WEIGHT}, not {weight}")
    if expect is not None and count != expect:
        raise WireError(24, f"holds {count} symbols, the model has {expect}")
    ends = np.cumsum([_HEADER.size, packed_size(count, alphabet), 4 * reals, 4 * scales], dtype=object)
    if ends[-1] != body:
        raise WireError(24, f"is {len(data)} bytes long, its header calls for {ends[-1] + _CHECKSUM.size}")
    try:
        symbols = unpack(data[ends[0] : ends[1]], count, alphabet)
    except ValueError as error:
        raise WireError(int(ends[0]), str(error)) from None
    real = np.frombuffer(data[ends[1] : ends[2]], "<f4").astype(np.float32)
    own = np.frombuffer(data[ends[2] : ends[3]], "<f4").astype(np.float32)
    return Message(symbols, alphabet, real, own, sender if has_sender else None, weight, round)


def _alphabet(code: int, total: int, unit: int) -> Alphabet:
    if code == _VOTES:
        if not 1 <= total <= _LARGEST_TOTAL or not 1 <= unit <= _LARGEST_TOTAL:
            raise WireError(32, f"{total} votes in units of {unit} cannot be: both must be from 1 to 2^48")
        return Votes(total, unit)
    if code not in _ALPHABETS:
        raise WireError(5, f"alphabet {code} is unknown")
    if total or unit:
        raise WireError(32, "only vote counts have a total and a unit")
    return _ALPHABETS[code]
