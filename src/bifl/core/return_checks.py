"""What an algorithm or a rule returns is checked where it enters: a mistake is one sentence that names it and the function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bifl.core.forward import Local
from bifl.core.message import LONGEST_NAME, MOST_VECTORS, UPDATE, Alphabet, Floats, Message, Selections, Vector, is_name
from bifl.core.state import Client, Public, Sent
from bifl.core.sums import Tally
from bifl.errors import AlgorithmError


def client(name: str, returned: Any, public: Public) -> Client:
    """What `update` returned."""
    whose = f"algorithm '{name}'"
    if not isinstance(returned, Client):
        raise _wrong(whose, "update", f"a {type(returned).__name__}", "the client: client._replace(aux=…)")
    _floats(whose, "update", "aux", returned.aux, public.layout.count)
    _floats(whose, "update", "memory", returned.memory, None)
    _floats(whose, "update", "scales", returned.scales, np.size(returned.scales))
    return returned


def local(name: str, given: Any, public: Public) -> Local:
    """What `local` returned."""
    whose = f"algorithm '{name}'"
    if not isinstance(given, Local):
        raise _wrong(whose, "local", f"a {type(given).__name__}", "a Local: Local(pull=0.01)")
    if given.correction is not None:
        _floats(whose, "local", "correction", given.correction, public.layout.count)
    if not 0 <= given.pull < np.inf:
        raise _wrong(whose, "local", f"pull {given.pull}", "0 or more")
    for what, part, size in zip(("weights", "real"), given.centre or (), (public.layout.count, public.layout.reals), strict=False):
        _floats(whose, "local", f"a centre's {what}", part, size)
    return given


def public(name: str, returned: Any, before: Public) -> Public:
    """What `absorb` returned."""
    whose = f"algorithm '{name}'"
    if not isinstance(returned, Public):
        raise _wrong(whose, "absorb", f"a {type(returned).__name__}", "the public state: public._replace(weights=…)")
    _floats(whose, "absorb", "weights", returned.weights, before.layout.count)
    _floats(whose, "absorb", "real", returned.real, before.layout.reals)
    _floats(whose, "absorb", "scales", returned.scales, np.size(returned.scales))
    if returned.vectors.keys() != before.vectors.keys():
        names, wanted = (" and ".join(map(repr, sorted(vectors))) or "none" for vectors in (returned.vectors, before.vectors))
        raise _wrong(whose, "absorb", f"the public vectors {names}", f"{wanted}, as `selects` says of the broadcast")
    for vector, values in returned.vectors.items():
        _floats(whose, "absorb", f"vectors['{vector}']", values, before.layout.count)
    return returned


def selections(name: str, returned: Any) -> Selections:
    """What `selects` returned."""
    whose, wanted = f"algorithm '{name}'", "what each vector is about: {'update': None}"
    if not isinstance(returned, Mapping):
        raise _wrong(whose, "selects", f"a {type(returned).__name__}", wanted)
    if UPDATE not in returned or len(returned) > MOST_VECTORS or not all(map(is_name, returned)):
        names = ", ".join(map(repr, returned))
        wanted = f"up to {MOST_VECTORS} names of 1 to {LONGEST_NAME} letters from a to z or _, and one of them '{UPDATE}'"
        raise _wrong(whose, "selects", f"vectors called {names}", wanted)
    return returned


def tally(name: str, returned: Any, public: Public) -> Tally:
    """What `aggregate` returned."""
    return _tally(f"algorithm '{name}'", "aggregate", returned, public)


def robust_sum(name: str, returned: Any, public: Public) -> tuple[Tally, Floats]:
    """What the `total` of a robust rule returned: the tally, and what the server remembers of its clients."""
    whose = f"robust={name}"
    if not isinstance(returned, tuple) or len(returned) != 2:  # a tally alone is a tuple too
        raise _wrong(whose, "total", f"a {type(returned).__name__}", "two things: a Tally, and the trust that the server remembers")
    counted, trust = returned
    _floats(whose, "total", "memory", trust, None)
    return _tally(whose, "total", counted, public), trust


def _tally(whose: str, function: str, returned: Any, public: Public) -> Tally:
    if not isinstance(returned, Tally):
        raise _wrong(whose, function, f"a {type(returned).__name__}", "a Tally")
    for vector in returned.vectors.values():
        if np.shape(vector.mean) != (public.layout.count,):
            raise _wrong(whose, function, f"mean of shape {np.shape(vector.mean)}", f"({public.layout.count},)")
    _floats(whose, function, "real", returned.real, public.layout.reals)
    return returned


def read_upload(name: str, returned: Any, public: Public) -> Message:
    """What `reads` returned: something of every weight; or, as it came, all that a selection from place 0 on speaks of."""
    whose = f"algorithm '{name}'"
    if not isinstance(returned, Message):
        raise _wrong(whose, "reads", f"a {type(returned).__name__}", "the upload: upload.with_update(symbols=…, alphabet=FLOAT32)")
    for vector in returned.vectors.values():
        about = vector.about
        _vector(whose, "reads", vector, public.layout.count if about is None or about.place != 0 else about.length)
    _floats(whose, "reads", "real", returned.real, public.layout.reals)
    return returned


def message(name: str, function: str, returned: Any, public: Public, abouts: Selections) -> tuple[Message, Floats | None]:
    """What `upload` or `broadcast` returned: the message, told what it is about, and what is kept in memory, if anything."""
    whose = f"algorithm '{name}'"
    memory = None
    if isinstance(returned, Sent):
        returned, memory = returned
        _floats(whose, function, "memory", memory, None)
    if not isinstance(returned, Message):
        raise _wrong(whose, function, f"a {type(returned).__name__}", "a Message, or Sent(message, memory)")
    if not isinstance(returned.vectors, Mapping):
        wanted = "Message.of(symbols, alphabet, real), or Message.of({'update': Vector(symbols, alphabet)}, real)"
        raise _wrong(whose, function, f"a Message with a {type(returned.vectors).__name__} for its vectors", wanted)
    if returned.vectors.keys() != abouts.keys():
        names, wanted = (" and ".join(map(repr, sorted(vectors))) for vectors in (returned.vectors, abouts))
        raise _wrong(whose, function, f"the vectors {names}", f"{wanted}, as `selects` says")
    for vector, about in abouts.items():
        _vector(whose, function, returned.vectors[vector], public.layout.count if about is None else about.length)
    _floats(whose, function, "real", returned.real, public.layout.reals)
    about_each = {vector: returned.vectors[vector]._replace(about=about) for vector, about in abouts.items()}
    return returned._replace(vectors=about_each), memory


def _vector(whose: str, function: str, vector: Vector, count: int) -> None:
    if not isinstance(vector, Vector):
        raise _wrong(whose, function, f"a {type(vector).__name__} among its vectors", "Vector(symbols, alphabet)")
    symbols, alphabet = vector.symbols, vector.alphabet
    _floats(whose, function, "scales", vector.scales, np.size(vector.scales))
    if not isinstance(alphabet, Alphabet):
        raise _wrong(whose, function, f"alphabet {alphabet!r}", "an Alphabet, such as BINARY")
    if not isinstance(symbols, np.ndarray) or symbols.shape != (count,):
        shape = getattr(symbols, "shape", type(symbols).__name__)
        raise _wrong(whose, function, f"symbols of shape {shape}", f"({count},): one per coded weight, or as `selects` says")
    if alphabet.size == 0:
        if symbols.dtype != np.float32:
            raise _wrong(whose, function, f"{alphabet.name} symbols of {symbols.dtype}", "float32: .astype(np.float32)")
        return
    if symbols.dtype.kind not in "ui":
        raise _wrong(whose, function, f"{alphabet.name} symbols of {symbols.dtype}", "unsigned integers: .astype(np.uint8)")
    if len(symbols) and not 0 <= int(symbols.min()) <= int(symbols.max()) < alphabet.size:
        returned = f"{alphabet.name} symbols from {symbols.min()} to {symbols.max()}"
        raise _wrong(whose, function, returned, f"from 0 to {alphabet.size - 1}")


def _floats(whose: str, function: str, what: str, returned: Any, size: int | None) -> None:
    """A float32 array of a length; None stands for any shape."""
    if not isinstance(returned, np.ndarray) or returned.dtype != np.float32:
        kind = returned.dtype if isinstance(returned, np.ndarray) else type(returned).__name__
        raise _wrong(whose, function, f"{what} of {kind}", "float32: .astype(np.float32)")
    if size is not None and returned.shape != (size,):
        raise _wrong(whose, function, f"{what} of shape {returned.shape}", f"({size},)")
    if what == "memory" and not np.isfinite(returned).all():
        raise _wrong(whose, function, "a memory that holds NaN or infinity", "finite")


def _wrong(whose: str, function: str, returned: str, wanted: str) -> AlgorithmError:
    return AlgorithmError(f"{whose}: {function} returned {returned}; it must be {wanted}")
