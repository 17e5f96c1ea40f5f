"""How a message is spelled: every byte that crosses between server and client is made and read here."""

from bifl.wire.message import WireError, decode, encode

__all__ = ["WireError", "decode", "encode"]
