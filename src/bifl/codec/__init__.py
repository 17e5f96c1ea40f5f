"""How a message is spelled: every byte that crosses between server and client is made and read here."""

# ruff: noqa: I001
# fmt: off
from bifl.codec.context import BYTE, EXACT, SHORT, SIGN, Context, Precision
from bifl.codec.format import (
    CODERS, KINDS, Header, VectorHeader, WireError, bits_by_weight, decode, encode, field_error, free_numbers, ideal_size,
    read_header, refuse_infinite,
)

__all__ = [
    "BYTE", "CODERS", "EXACT", "KINDS", "SHORT", "SIGN", "Context", "Header", "Precision", "VectorHeader", "WireError",
    "bits_by_weight", "decode", "encode", "field_error", "free_numbers", "ideal_size", "read_header",
    "refuse_infinite",
]
