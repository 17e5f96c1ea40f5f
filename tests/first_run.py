"""Whether `make run` prints what docs/first-run.md says it does.

    make run | tee FILE && python -m tests.first_run FILE

An accuracy may differ from README's mean of three seeds by three of their deviations and one of the thousand test images; bits per
parameter by 1 %.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent.parent / "docs" / "first-run.md"
IMAGE, DEVIATIONS, BITS = 0.1, 3, 0.01
_ROW = re.compile(r"^  (\w+) +([\d.]+) +[\d.]+ +[\d.]+ \wB +[\d.]+ \wB +([\d.]+) +([\d.]+) +[\d.]+ *$", re.MULTILINE)


class Row(NamedTuple):
    """What the table says of an algorithm."""

    accuracy: float  # %
    up: float  # bits per parameter
    down: float


class Spread(NamedTuple):
    """Accuracies of several seeds, in %."""

    mean: float
    deviation: float


def rows(text: str) -> dict[str, Row]:
    """The table, by algorithm."""
    return {name: Row(*map(float, numbers)) for name, *numbers in _ROW.findall(text)}


def spreads(page: str) -> dict[str, Spread]:
    """What docs/first-run.md says of seeds 0, 1 and 2, in the order of its table."""
    sentence = page.partition("With seeds 0, 1 and 2")[2].partition("%")[0]
    found = [Spread(float(mean), float(deviation)) for mean, deviation in re.findall(r"([\d.]+) ± ([\d.]+)", sentence)]
    return dict(zip(rows(page), found, strict=True))


def differences(printed: str, page: str) -> list[str]:
    """What `make run` printed and docs/first-run.md does not say, a sentence each."""
    ours, theirs, spread = rows(printed), rows(page), spreads(page)
    if ours.keys() != theirs.keys():
        return [f"make run's table has {', '.join(ours) or 'no rows'}; docs/first-run.md has {', '.join(theirs)}"]
    found = []
    for name, row in ours.items():
        mean, deviation = spread[name]
        if abs(row.accuracy - mean) > DEVIATIONS * deviation + IMAGE:
            found.append(f"{name}: {row.accuracy:.2f} % is not within {DEVIATIONS} deviations of {mean:.2f} ± {deviation:.2f} %")
        for way, bits, said in (("up", row.up, theirs[name].up), ("down", row.down, theirs[name].down)):
            if abs(bits - said) > BITS * said:
                found.append(f"{name}: {bits:.3f} bit per parameter {way}, docs/first-run.md says {said:.3f}")
    return found


if __name__ == "__main__":
    found = differences(Path(sys.argv[1]).read_text(), PAGE.read_text())
    sys.exit("\n".join(found) if found else 0)
