"""Damages files on purpose: bytes anywhere, fields where they matter, with checksums that fit."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bifl.codec.model_file import MAGIC

Dice = np.random.Generator
NESTED = "[" * 20_000
DEEP = '{"a":' * 20_000
HOSTILE: list[Any] = [
    None, True, -1, 0, 1, 2, 10**9, 2**62, 10**30, 10**400, -(10**400), 0.5, -1.5, 1e308, float("inf"), float("nan"),
    "", "x", "\0", "a\0b.npz", "x" * 5000, "../../x", "\ud800", "\x1b[2J", "10",
    [], [[]], [1, 2], [[1], [2, 3]], {}, {"name": 1}, {"name": "x.py:f"}, {"name": "mnist_cnn"},
]  # fmt: skip
EXTREMES = [b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f", b"\x01\0\0\0", b"\0\0\0\x80", b"\xff" * 8, bytes(8), b"\0\0\0\0\x01\0\0\0"]


def pick(dice: Dice, choices: Any) -> Any:
    return choices[int(dice.integers(len(choices)))]


def flip(raw: bytes, dice: Dice) -> bytes:
    damaged = bytearray(raw)
    for place in dice.integers(0, 8 * len(raw), int(dice.integers(1, 9))):
        damaged[place // 8] ^= 1 << int(place % 8)
    return bytes(damaged)


def cut(raw: bytes, dice: Dice) -> bytes:
    return raw[: int(dice.integers(len(raw)))]


def insert(raw: bytes, dice: Dice) -> bytes:
    place = int(dice.integers(len(raw) + 1))
    return raw[:place] + dice.bytes(int(dice.integers(1, 40))) + raw[place:]


def drop(raw: bytes, dice: Dice) -> bytes:
    place = int(dice.integers(len(raw)))
    return raw[:place] + raw[place + int(dice.integers(1, 40)) :]


def repeat(raw: bytes, dice: Dice) -> bytes:
    begin, end = sorted(int(place) for place in dice.integers(0, len(raw), 2))
    return raw[:end] + raw[begin:end][:2000] + raw[end:]


def overwrite(raw: bytes, dice: Dice) -> bytes:
    place = int(dice.integers(len(raw)))
    extreme: bytes = pick(dice, EXTREMES)
    return raw[:place] + extreme + raw[place + len(extreme) :]


ANYWHERE: list[Callable[[bytes, Dice], bytes]] = [flip, cut, insert, drop, repeat, overwrite]


def anywhere(raw: bytes, dice: Dice) -> bytes:
    return bytes(pick(dice, ANYWHERE)(raw, dice)) if raw else raw


def text(raw: bytes, dice: Dice) -> bytes:
    """Another number, word or bracket in a JSON or TOML text."""
    places = [match.span() for match in re.finditer(rb'-?\d[\d.e+-]*|"[^"]*"|true|false|[\[\]{},=]', raw)]
    begin, end = pick(dice, places)
    new = pick(dice, [*HOSTILE, NESTED, DEEP])
    spelled = new if new in (NESTED, DEEP) else json.dumps(new)
    return raw[:begin] + spelled.encode() + raw[end:]


def tree(value: Any, dice: Dice) -> Any:
    """A JSON value with something hostile somewhere in it."""
    if not isinstance(value, (dict, list)) or not value or dice.random() < 0.2:
        return pick(dice, HOSTILE)
    if isinstance(value, dict):
        key = pick(dice, list(value))
        if dice.random() < 0.1:
            return {other: value[other] for other in value if other != key}
        return value | {key: tree(value[key], dice)}
    place = int(dice.integers(len(value)))
    return [*value[:place], tree(value[place], dice), *value[place + 1 :]]


def json_text(raw: bytes, dice: Dice) -> bytes:
    return json.dumps(tree(json.loads(raw), dice)).encode()


def model_file(raw: bytes, dice: Dice) -> bytes:
    """A model file with a damaged header or message, under a checksum that fits."""
    (length,) = struct.unpack_from("<I", raw, len(MAGIC))
    start = len(MAGIC) + 4
    header, message = raw[start : start + length], raw[start + length : -4]
    if dice.random() < 0.7:
        header = pick(dice, [json_text, text, anywhere])(header, dice)
    else:
        inner = anywhere(message[:-4], dice)
        message = inner + struct.pack("<I", zlib.crc32(inner))
    body = MAGIC + struct.pack("<I", len(header)) + header + message
    return body + struct.pack("<I", zlib.crc32(body))


def zip_member(raw: bytes, dice: Dice) -> bytes:
    """A zip file with one damaged member, packed again so that sizes and checksums fit."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w", pick(dice, [0, 8, 12, 14])) as new:
        names = old.namelist() or ["nothing.npy"]
        victim, fate = pick(dice, names), dice.random()
        for name in names:
            data = old.read(name) if name in old.namelist() else b""
            if name == victim and fate < 0.1:
                continue
            if name == victim:
                data = _array(data, dice) if fate < 0.8 else anywhere(data, dice)
            new.writestr(name, data)
    return out.getvalue()


def _array(data: bytes, dice: Dice) -> bytes:
    """An array with another header, or another array."""
    if dice.random() < 0.3:
        arrays: list[Any] = [
            np.zeros(0), np.zeros((2, 2), ">f8"), np.full(7, np.nan, np.float32), np.array("x"), np.array(3), np.array([b"a"]),
            np.full((3, 3), 2**62), np.zeros((0, 5), np.uint8), np.zeros((1, 1, 1, 1), np.float16),
        ]  # fmt: skip
        out = io.BytesIO()
        np.save(out, pick(dice, arrays))
        return out.getvalue()
    shapes = [(10**12,), (-1,), (2**62, 2**62), (), (1,), (0, 10**18), ("a",), ((1,),), (1.5,), (3, 1)]
    types = ["<f4", "|O", "|S0", "<U1000000000", "|V8", "<i8", ">f2", "nonsense", [("a", "<f4")], "<M8[s]", "|b1"]
    header = repr({"descr": pick(dice, types), "fortran_order": pick(dice, [True, False, 3]), "shape": pick(dice, shapes)}).encode()
    if dice.random() < 0.3:
        header = anywhere(data[10:128], dice)
    if dice.random() < 0.1:
        header = b"(" * 5000
    version: bytes = pick(dice, [b"\1\0", b"\1\0", b"\2\0", b"\3\0"])
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data[128:]


def zip_structure(raw: bytes, dice: Dice) -> bytes:
    """A zip file with another number or bit in a local header, its directory or its end record."""
    marks = [match.start() for match in re.finditer(b"PK(\x01\x02|\x03\x04|\x05\x06)", raw)]
    damaged, mark = bytearray(raw), pick(dice, marks)
    place = min(mark + int(dice.integers(4, 46)), len(raw) - 8)
    if dice.random() < 0.3:  # the encryption bit, in the directory
        mark = pick(dice, [m for m in marks if raw[m : m + 4] == b"PK\x01\x02"])
        damaged[mark + 8] |= 1
    elif dice.random() < 0.5:
        extreme = pick(dice, EXTREMES)
        damaged[place : place + len(extreme)] = extreme
    else:
        damaged[place] ^= 1 << int(dice.integers(8))
    return bytes(damaged)
