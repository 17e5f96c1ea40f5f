"""What an algorithm or a rule returns is checked where it enters: a mistake is one sentence that names it and the function."""

from __future__ import annotations

from typing import Any

import numpy as np

from bifl.core.local_step import Local
from bifl.core.message import Alphabet, Floats, Message, Selection
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
    if np.shape(found.mean) != (public.layout.count,):
        raise _wrong(whose, function, f"mean of shape {np.shape(found.mean)}", f"({public.layout.count},)")
    _floats(whose, function, "real", found.real, public.layout.reals)
    return found


def opened(name: str, found: Any, public: Public) -> Message:
    """What `reads` returned: something of every weight; or, as it came, all that a selection from place 0 on speaks of."""
    whose = f"algorithm '{name}'"
    if not isinstance(found, Message):
        raise _wrong(whose, "reads", f"a {type(found).__name__}", "the upload: upload._replace(symbols=…, alphabet=FLOAT32)")
    about = found.about
    _symbols(whose, "reads", found, public.layout.count if about is None or about.place != 0 else about.length)
    _floats(whose, "reads", "real", found.real, public.layout.reals)
    _floats(whose, "reads", "scales", found.scales, np.size(found.scales))
    return found


def sent(name: str, function: str, found: Any, public: Public, about: Selection | None) -> tuple[Message, Floats | None]:
    """What `upload` or `broadcast` returned: the message, and what is kept in memory, if anything."""
    whose = f"algorithm '{name}'"
    memory = None
    if isinstance(found, Sent):
        found, memory = found
        _floats(whose, function, "memory", memory, None)
    if not isinstance(found, Message):
        raise _wrong(whose, function, f"a {type(found).__name__}", "a Message, or Sent(message, memory)")
    _symbols(whose, function, found, public.layout.count if about is None else about.length)
    _floats(whose, function, "real", found.real, public.layout.reals)
    _floats(whose, function, "scales", found.scales, np.size(found.scales))
    return found, memory


def _symbols(whose: str, function: str, message: Message, count: int) -> None:
    symbols, alphabet = message.symbols, message.alphabet
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
