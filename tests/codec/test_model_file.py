"""A model file is read as it was written, and so is one whose message is of the wire's first version."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from bifl.codec import model_file
from bifl.errors import DataError
from tests.support.messages import SMALL

CONSTANTS = np.array([0.5, -2.0], np.float32)


def test_what_was_written_is_read() -> None:
    facts, message, constants = model_file.parts(model_file.whole({"name": "x", "constants": 2}, SMALL, CONSTANTS))
    assert (facts, message, constants.tolist()) == ({"name": "x", "constants": 2}, SMALL, [0.5, -2.0])


def test_a_message_of_the_first_version_is_read_as_one_of_the_second() -> None:
    """They differ in the version and the checksum alone; a damaged one is left as it is, for the decoder to refuse."""
    old = SMALL[:4] + b"\1" + SMALL[5:-4]
    old += zlib.crc32(old).to_bytes(4, "little")
    assert model_file.embedded(model_file.whole({}, old, CONSTANTS[:0])) == SMALL
    damaged = old[:-1] + bytes([old[-1] ^ 1])
    assert model_file.embedded(model_file.whole({}, damaged, CONSTANTS[:0])) == damaged


def test_a_damaged_file_is_refused() -> None:
    data = model_file.whole({}, SMALL, CONSTANTS[:0])
    for damaged in (b"BIFLMODX" + data[8:], data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:]):
        with pytest.raises(DataError):
            model_file.parts(damaged)
