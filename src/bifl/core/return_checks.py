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


def client(name: str, found: Any, public: Public) -> Client:
    """What `update` returned."""
    whose = f"algorithm '{name}'"
    if not isinstance(found, Client):
        raise _wrong(whose, "update", f"a {type(found).__name__}", "the client: client._replace(aux=…)")
    _floats(whose, "update", "aux", found.aux, public.layout.count)
    _floats(whose, "update", "memory", found.memory, None)
    _floats(whose, "update", "scales", found.scales, np.size(found.scales))
    return found


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


def public(name: str, found: Any, before: Public) -> Public:
    """What `absorb` returned."""
    whose = f"algorithm '{name}'"
    if not isinstance(found, Public):
        raise _wrong(whose, "absorb", f"a {type(found).__name__}", "the public state: public._replace(weights=…)")
    _floats(whose, "absorb", "weights", found.weights, before.layout.count)
    _floats(whose, "absorb", "real", found.real, before.layout.reals)
    _floats(whose, "absorb", "scales", found.scales, np.size(found.scales))
    if found.vectors.keys() != before.vectors.keys():
        names, wanted = (" and ".join(map(repr, sorted(vectors))) or "none" for vectors in (found.vectors, before.vectors))
        raise _wrong(whose, "absorb", f"the public vectors {names}", f"{wanted}, as `selects` says of the broadcast")
    for vector, values in found.vectors.items():
        _floats(whose, "absorb", f"vectors['{vector}']", values, before.layout.count)
    return found


def selections(name: str, found: Any) -> Selections:
    """What `selects` returned."""
    whose, wanted = f"algorithm '{name}'", "what each vector is about: {'update': None}"
    if not isinstance(found, Mapping):
        raise _wrong(whose, "selects", f"a {type(found).__name__}", wanted)
    if UPDATE not in found or len(found) > MOST_VECTORS or not all(map(is_name, found)):
        names = ", ".join(map(repr, found))
        wanted = f"up to {MOST_VECTORS} names of 1 to {LONGEST_NAME} letters from a to z or _, and one of them '{UPDATE}'"
        raise _wrong(whose, "selects", f"vectors called {names}", wanted)
    return found


def tally(name: str, found: Any, public: Public) -> Tally:
    """What `aggregate` returned."""
    return _tally(f"algorithm '{name}'", "aggregate", found, public)


def robust_sum(name: str, found: Any, public: Public) -> tuple[Tally, Floats]:
    """What the `total` of a robust rule returned: the tally, and what the server remembers of its clients."""
    whose = f"robust={name}"
    if not isinstance(found, tuple) or len(found) != 2:  # a tally alone is a tuple too
        raise _wrong(whose, "total", f"a {type(found).__name__}", "two things: a Tally, and the trust that the server remembers")
    counted, trust = found
    _floats(whose, "total", "memory", trust, None)
    return _tally(whose, "total", counted, public), trust


def _tally(whose: str, function: str, found: Any, public: Public) -> Tally:
    if not isinstance(found, Tally):
        raise _wrong(whose, function, f"a {type(found).__name__}", "a Tally")
    for vector in found.vectors.values():
        if np.shape(vector.mean) != (public.layout.count,):
            raise _wrong(whose, function, f"mean of shape {np.shape(vector.mean)}", f"({public.layout.count},)")
    _floats(whose, function, "real", found.real, public.layout.reals)
    return found


def opened(name: str, found: Any, public: Public) -> Message:
    """What `reads` returned: something of every weight; or, as it came, all that a selection from place 0 on speaks of."""
    whose = f"algorithm '{name}'"
    if not isinstance(found, Message):
        raise _wrong(whose, "reads", f"a {type(found).__name__}", "the upload: upload.with_update(symbols=…, alphabet=FLOAT32)")
    for vector in found.vectors.values():
        about = vector.about
        _vector(whose, "reads", vector, public.layout.count if about is None or about.place != 0 else about.length)
    _floats(whose, "reads", "real", found.real, public.layout.reals)
    return found


def sent(name: str, function: str, found: Any, public: Public, abouts: Selections) -> tuple[Message, Floats | None]:
    """What `upload` or `broadcast` returned: the message, told what it is about, and what is kept in memory, if anything."""
    whose = f"algorithm '{name}'"
    memory = None
    if isinstance(found, Sent):
        found, memory = found
        _floats(whose, function, "memory", memory, None)
    if not isinstance(found, Message):
        raise _wrong(whose, function, f"a {type(found).__name__}", "a Message, or Sent(message, memory)")
    if not isinstance(found.vectors, Mapping):
        wanted = "Message.of(symbols, alphabet, real), or Message.of({'update': Vector(symbols, alphabet)}, real)"
        raise _wrong(whose, function, f"a Message with a {type(found.vectors).__name__} for its vectors", wanted)
    if found.vectors.keys() != abouts.keys():
        names, wanted = (" and ".join(map(repr, sorted(vectors))) for vectors in (found.vectors, abouts))
        raise _wrong(whose, function, f"the vectors {names}", f"{wanted}, as `selects` says")
    for vector, about in abouts.items():
        _vector(whose, function, found.vectors[vector], public.layout.count if about is None else about.length)
    _floats(whose, function, "real", found.real, public.layout.reals)
    about_each = {vector: found.vectors[vector]._replace(about=about) for vector, about in abouts.items()}
    return found._replace(vectors=about_each), memory


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
        found = f"{alphabet.name} symbols from {symbols.min()} to {symbols.max()}"
        raise _wrong(whose, function, found, f"from 0 to {alphabet.size - 1}")


def _floats(whose: str, function: str, what: str, found: Any, size: int | None) -> None:
    """A float32 array of a length; None stands for any shape."""
    if not isinstance(found, np.ndarray) or found.dtype != np.float32:
        kind = found.dtype if isinstance(found, np.ndarray) else type(found).__name__
        raise _wrong(whose, function, f"{what} of {kind}", "float32: .astype(np.float32)")
    if size is not None and found.shape != (size,):
        raise _wrong(whose, function, f"{what} of shape {found.shape}", f"({size},)")
    if what == "memory" and not np.isfinite(found).all():
        raise _wrong(whose, function, "a memory that holds NaN or infinity", "finite")


def _wrong(whose: str, function: str, found: str, wanted: str) -> AlgorithmError:
    return AlgorithmError(f"{whose}: {function} returned {found}; it must be {wanted}")
