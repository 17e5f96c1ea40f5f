"""How lines look in pictures and in the report: one algorithm has one colour and dash everywhere.

A place is a colour of the palette and a dash: the palette first with whole lines, then with the next dash.

>>> places({"biml": "biml", "biml alpha=3": "biml", "mine": "mine.py:mine"})
{'biml': 3, 'biml alpha=3': 5, 'mine': 6}
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, count

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")  # Okabe–Ito: safe for colour-blind eyes
ALGORITHMS = (  # by their places: a line here is a dash. Those that are usually compared have whole lines
    "fedavg", "murmur", "full", "biml", "up_down", "up_only", "baseline",
    "float16", "murmur_momentum", "fttq", "biml_fit", "sign_majority", "eden", "bnn",
    "fedavgm", "murmur_dealt", "fedvote", "biml_levels", "ef_sign", "dither", "top_k",
    "fedadam", "fedmrn", "fedpm", "hybrid", "fedbat", "up_only_literal", "qsgd",
)  # fmt: skip

_SELDOM = (5, 6)  # places that others take first: whole lines, in colours that few pictures have


def places(lines: Mapping[str, str], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """The places of a picture's lines by label: no two the same.

    Args:
        lines: the algorithms by label. Of several lines of one algorithm that with the shortest label has the algorithm's place.
        known: places that labels have in other pictures, to keep where they are free.
    """
    found: dict[str, int] = {}
    for label in sorted(lines, key=len):
        if lines[label] in ALGORITHMS and (place := ALGORITHMS.index(lines[label])) not in found.values():
            found[label] = place
    for label, place in (known or {}).items():
        if label in lines and place not in found.values():
            found.setdefault(label, place)
    for label in lines:
        found.setdefault(label, next(place for place in chain(_SELDOM, count()) if place not in found.values()))
    return {label: found[label] for label in lines}
