"""Errors a person caused and can mend: each is one sentence, shown without a traceback, exit code 2."""

from __future__ import annotations


def printable(text: object) -> str:
    r"""One line without control characters: messages quote files and names that others chose.

    >>> print(printable("a\nb"))
    a\nb
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in str(text))


def quoted(value: object, longest: int = 200) -> str:
    r"""What a stranger said, in one printable line of at most so many characters: short enough to stand inside a sentence.

    >>> print(quoted("x\nfinished \x1b[31mred"), quoted({"rounds": 3}), quoted("a" * 1000, 10))
    x\nfinished \x1b[31mred {'rounds': 3} aaaaaaaaa…
    """
    text = value if isinstance(value, str) else repr(value)
    shown = printable(text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


class BiflError(Exception):
    """Base of everything that the command line reports as one sentence."""


class ConfigError(BiflError):
    """A key, value or combination of them that cannot be run."""


class Untrusted(BiflError):
    """A file that names Python code, which nobody has allowed to run."""


class DataError(BiflError):
    """A data file that is missing, damaged or not what its name says."""


class RunError(BiflError):
    """A run that cannot begin or go on: its folder, a checkpoint, another process, the network or who is there do not allow it."""


class Busy(RunError):
    """A run folder that another process is at work in."""


class Diverged(BiflError):
    """Training left the range of numbers (NaN or infinite)."""


class AlgorithmError(BiflError):
    """An algorithm returned something that cannot be used: a mistake of its author's."""


class Refused(BiflError):
    """One end does not go along with the other.

    A client: what it was asked could uncover somebody, in a secure sum or by noise that is drawn twice, or cannot be done.
    A server: a plain upload is well-formed, and says what no client can have counted or measured.
    """
