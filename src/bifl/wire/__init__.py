"""How a message is spelled: every byte that crosses between server and client is made and read here."""

from bifl.wire.context import Context
from bifl.wire.message import CODERS, KINDS, Header, WireError, bits_by_weight, decode, encode, ideal_size, read_header
from bifl.wire.reals import EXACT, SHORT, Precision

__all__ = [
    "CODERS", "EXACT", "KINDS", "SHORT", "Context", "Header", "Precision", "WireError", "bits_by_weight", "decode", "encode",
    "ideal_size", "read_header",
]  # fmt: skip
