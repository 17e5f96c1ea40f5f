"""What an algorithm returns is checked where it enters: a mistake is one sentence that names the algorithm and the function."""

from __future__ import annotations

from typing import Any

import numpy as np

from bifl.core.message import Alphabet, Floats, Message, Selection
from bifl.core.state import Client, Public, Sent
from bifl.core.sums import Tally
from bifl.errors import AlgorithmError


def client(name: str, found: Any, public: Public) -> Client:
    """What `update` returned."""
    if not isinstance(found, Client):
        raise _wrong(name, "update", f"a {type(found).__name__}", "the client: client._replace(aux=…)")
    _floats(name, "update", "aux", found.aux, public.layout.count)
    _floats(name, "update", "memory", found.memory, None)
    _floats(name, "update", "scales", found.scales, np.size(found.scales))
    return found


def public(name: str, found: Any, before: Public) -> Public:
    """What `absorb` returned."""
    if not isinstance(found, Public):
        raise _wrong(name, "absorb", f"a {type(found).__name__}", "the public state: public._replace(weights=…)")
    _floats(name, "absorb", "weights", found.weights, before.layout.count)
    _floats(name, "absorb", "real", found.real, before.layout.reals)
    _floats(name, "absorb", "scales", found.scales, np.size(found.scales))
    return found


def tally(name: str, found: Any, public: Public) -> Tally:
    """What `aggregate` returned."""
    if not isinstance(found, Tally):
        raise _wrong(name, "aggregate", f"a {type(found).__name__}", "a Tally")
    if np.shape(found.mean) != (public.layout.count,):
        raise _wrong(name, "aggregate", f"mean of shape {np.shape(found.mean)}", f"({public.layout.count},)")
    _floats(name, "aggregate", "real", found.real, public.layout.reals)
    return found


def trust(name: str, found: Any) -> Floats:
    """What a robust sum remembers."""
    _floats(name, "robust", "memory", found, None)
    return np.asarray(found, np.float32)


def opened(name: str, found: Any, public: Public) -> Message:
    """What `reads` returned: something of every weight; or, as it came, all that a selection from place 0 on speaks of."""
    if not isinstance(found, Message):
        raise _wrong(name, "reads", f"a {type(found).__name__}", "the upload: upload._replace(symbols=…, alphabet=FLOAT32)")
    about = found.about
    _symbols(name, "reads", found, public.layout.count if about is None or about.place != 0 else about.length)
    _floats(name, "reads", "real", found.real, public.layout.reals)
    _floats(name, "reads", "scales", found.scales, np.size(found.scales))
    return found


def sent(name: str, function: str, found: Any, public: Public, about: Selection | None) -> tuple[Message, Floats | None]:
    """What `upload` or `broadcast` returned: the message, and what is kept in memory, if anything."""
    memory = None
    if isinstance(found, Sent):
        found, memory = found
        _floats(name, function, "memory", memory, None)
    if not isinstance(found, Message):
        raise _wrong(name, function, f"a {type(found).__name__}", "a Message, or Sent(message, memory)")
    _symbols(name, function, found, public.layout.count if about is None else about.length)
    _floats(name, function, "real", found.real, public.layout.reals)
    _floats(name, function, "scales", found.scales, np.size(found.scales))
    return found, memory


def _symbols(name: str, function: str, message: Message, count: int) -> None:
    symbols, alphabet = message.symbols, message.alphabet
    if not isinstance(alphabet, Alphabet):
        raise _wrong(name, function, f"alphabet {alphabet!r}", "an Alphabet, such as BINARY")
    if not isinstance(symbols, np.ndarray) or symbols.shape != (count,):
        shape = getattr(symbols, "shape", type(symbols).__name__)
        raise _wrong(name, function, f"symbols of shape {shape}", f"({count},): one per coded weight, or as `selects` says")
    if alphabet.size == 0:
        if symbols.dtype != np.float32:
            raise _wrong(name, function, f"{alphabet.name} symbols of {symbols.dtype}", "float32: .astype(np.float32)")
        return
    if symbols.dtype.kind not in "ui":
        raise _wrong(name, function, f"{alphabet.name} symbols of {symbols.dtype}", "unsigned integers: .astype(np.uint8)")
    if len(symbols) and not 0 <= int(symbols.min()) <= int(symbols.max()) < alphabet.size:
        found = f"{alphabet.name} symbols from {symbols.min()} to {symbols.max()}"
        raise _wrong(name, function, found, f"from 0 to {alphabet.size - 1}")


def _floats(name: str, function: str, what: str, found: Any, size: int | None) -> None:
    """A float32 array of a length; None stands for any shape."""
    if not isinstance(found, np.ndarray) or found.dtype != np.float32:
        kind = found.dtype if isinstance(found, np.ndarray) else type(found).__name__
        raise _wrong(name, function, f"{what} of {kind}", "float32: .astype(np.float32)")
    if size is not None and found.shape != (size,):
        raise _wrong(name, function, f"{what} of shape {found.shape}", f"({size},)")
    if what == "memory" and not np.isfinite(found).all():
        raise _wrong(name, function, "a memory that holds NaN or infinity", "finite")


def _wrong(name: str, function: str, found: str, wanted: str) -> AlgorithmError:
    return AlgorithmError(f"algorithm '{name}': {function} returned {found}; it must be {wanted}")
