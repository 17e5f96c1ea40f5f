"""What `bifl summary` and `bifl inspect` say of a device."""

from __future__ import annotations

from pathlib import Path

from bifl.core.forward import binary
from tests.support.commands import Run, refused
from tests.support.exports import saved


def test_summary_counts_flash_memory_and_operations(here: Run) -> None:
    shown = " ".join(here("summary", "mnist_cnn", "algorithm=biml").stdout.split())
    assert "conv2 + norm2 + pool2 + tanh2 448 B 16.3 kB 452,368 784" in shown  # 14·14·16·144 additions, 7·7·16 norms
    assert "all 11.7 kB 17.1 kB 647,910 4,030" in shown


def test_summary_takes_the_shape_of_an_input(here: Run) -> None:
    assert "all" in here("summary", "celeba_cnn", "input=3x84x84").stdout
    assert "say what one input looks like, as in input=1x28x28" in here("summary", "mnist_cnn", "input=1x9x9").stdout
    assert "input must be sizes such as 1x28x28, not '28,28'" in refused(here("summary", "mnist_cnn", "input=28,28"))


def test_inspect_counts_the_same_of_a_model(here: Run, tmp_path: Path) -> None:
    saved(tmp_path / "model", "mnist_cnn", binary)
    assert "all 11.7 kB 17.1 kB 647,910 4,030" in " ".join(here("inspect", tmp_path / "model").stdout.split())
    saved(tmp_path / "older", "mnist_cnn", binary, shape=())
    assert "does not say what one input looks like" in " ".join(here("inspect", tmp_path / "older").stdout.split())
