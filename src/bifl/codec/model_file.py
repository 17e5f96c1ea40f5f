"""A model as one file: magic "BIFLMODL", a JSON header (its length before it as 4 bytes, little-endian), one message of the wire
with the weights, the network's constants as float32 if there are any (the header's "constants" says how many), and the CRC-32 of
all that.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bifl.codec.format import of_this_version
from bifl.core.message import Floats
from bifl.errors import BiflError, DataError
from bifl.files import parse_json

MAGIC = b"BIFLMODL"
_NUMBER = struct.Struct("<I")


def whole(facts: dict[str, Any], message: bytes, constants: Floats) -> bytes:
    """The file's contents."""
    header = json.dumps(facts).encode()
    body = MAGIC + _NUMBER.pack(len(header)) + header + message + constants.astype("<f4").tobytes()
    return body + _NUMBER.pack(zlib.crc32(body))


def parts(data: bytes) -> tuple[dict[str, Any], bytes, Floats]:
    """The facts of a model file's header, its message and its constants."""
    if not data.startswith(MAGIC):
        raise DataError(f"it does not start with {MAGIC.decode()}")
    body = data[: -_NUMBER.size]
    if zlib.crc32(body) != _NUMBER.unpack_from(data, len(body))[0]:
        raise DataError("its checksum does not fit, it was damaged or cut short")
    start = len(MAGIC) + _NUMBER.size
    end = start + int(_NUMBER.unpack_from(data, len(MAGIC))[0])
    facts = parse_json(body[start:end])
    size = facts.get("constants", 0)
    if type(size) is not int or not 0 <= 4 * size <= len(body) - end:
        raise DataError(f"it cannot hold {size} constants")
    cut = len(body) - 4 * size
    return facts, of_this_version(body[end:cut]), np.frombuffer(body[cut:], "<f4").astype(np.float32)


def embedded(data: bytes) -> bytes:
    """The message in a model file's bytes."""
    return parts(data)[1]


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn what damaged contents raise into one sentence."""
    try:
        yield
    except BiflError as error:
        raise DataError(f"'{path}' is not a model file of this program: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error) as error:
        raise DataError(f"'{path}' is not a model file of this program: its header is damaged ({error})") from error
