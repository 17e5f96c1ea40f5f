"""The check of what `make run` prints notices what it is for, and nothing else."""

from __future__ import annotations

import pytest

from tests.first_run import PAGE, differences, rows, spreads

TEXT = PAGE.read_text()


def printed(name: str, accuracy: float = 0.0, up: float = 0.0) -> str:
    """The page's own table, but for one algorithm."""
    row = rows(TEXT)[name]
    old = f"  {name:<8} {row.accuracy:>11.2f}"
    assert TEXT.count(old) == 1
    return TEXT.replace(old, f"  {name:<8} {row.accuracy + accuracy:>11.2f}").replace(f"{row.up:.3f}", f"{row.up * (1 + up):.3f}")


def test_the_pages_own_numbers_are_right() -> None:
    assert len(rows(TEXT)) == 5
    assert differences(TEXT, TEXT) == []


def test_those_of_another_processor_are_right_too() -> None:
    """The page tells what AVX-512 prints."""
    told = TEXT.partition("with AVX-512 `make run` prints ")[2].partition(". ")[0].replace(" and ", ", ").split(", ")
    text = TEXT
    for row, (name, accuracy) in zip(rows(TEXT).values(), zip(rows(TEXT), map(float, told), strict=True), strict=True):
        text = text.replace(f"  {name:<8} {row.accuracy:>11.2f}", f"  {name:<8} {accuracy:>11.2f}")
    assert text != TEXT
    assert differences(text, TEXT) == []


@pytest.mark.parametrize("name", rows(TEXT))
def test_a_worse_accuracy_is_told(name: str) -> None:
    far = 4 * spreads(TEXT)[name].deviation + 1
    assert [found.split(":")[0] for found in differences(printed(name, accuracy=-far), TEXT)] == [name]


@pytest.mark.parametrize("name", rows(TEXT))
def test_more_bits_are_told(name: str) -> None:
    assert differences(printed(name, up=0.005), TEXT) == []
    assert f"{name}: " in "\n".join(differences(printed(name, up=0.02), TEXT))


def test_no_table_is_told() -> None:
    assert "no rows" in differences("bifl: something went wrong", TEXT)[0]
