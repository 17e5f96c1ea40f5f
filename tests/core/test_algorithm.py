"""An algorithm's fields, its streams, and the checks of what its functions return: one sentence with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bifl
from bifl import core
from bifl.algorithms.paper import biml, fedavg
from bifl.core import BINARY, FLOAT32, NOTHING, UPDATE, Algorithm, Alphabet, Layout, Message, Public, Selection, Selections, Sent
from bifl.errors import AlgorithmError


def changed(**fields: Any) -> Callable[..., Any]:
    """A rule that returns what another does, with something else in it."""

    def change(found: Any) -> Any:
        return found._replace(**{name: value(getattr(found, name)) for name, value in fields.items()})

    return change


def changed_update(**fields: Any) -> Callable[..., Any]:
    """The same of the update of a message."""
    return lambda found: found.with_vectors({UPDATE: changed(**fields)(found.update)})


def renamed(found: Any) -> Any:
    """A message whose update has another name."""
    return found._replace(vectors={"weights": found.update})


LONG, DOUBLE = (lambda array: np.append(array, array[:1])), (lambda array: array.astype(np.float64))
WRONG: list[tuple[str, Callable[..., Any], str]] = [
    ("upload", changed_update(symbols=LONG), r"upload returned symbols of shape \(81959,\); it must be \(81958,\)"),
    ("upload", changed_update(symbols=lambda array: array.astype(np.float32)), "upload returned binary symbols of float32; it"),
    ("upload", changed_update(symbols=lambda array: array + 1), "upload returned binary symbols from 1 to 2; it must be from"),
    ("upload", changed_update(symbols=list), "upload returned symbols of shape list"),
    ("upload", changed_update(alphabet=lambda _: "binary"), "upload returned alphabet 'binary'; it must be an Alphabet"),
    ("upload", changed(real=DOUBLE), "upload returned real of float64; it must be float32"),
    ("upload", changed(real=LONG), r"upload returned real of shape"),
    ("upload", lambda found: found.update.symbols, "upload returned a ndarray; it must be a Message, or Sent"),
    ("upload", changed(vectors=list), "upload returned a Message with a list for its vectors; it must be Message.of"),
    ("upload", changed(vectors=lambda _: {UPDATE: 3}), r"upload returned a int among its vectors; it must be Vector\(symbols"),
    ("upload", renamed, "upload returned the vectors 'weights'; it must be 'update', as `selects` says"),
    ("absorb", changed(vectors=lambda _: {"x": NOTHING}), "absorb returned the public vectors 'x'; it must be none"),
    ("upload", lambda found: changed(memory=DOUBLE)(Sent(found, np.zeros(3, np.float32))), "upload returned memory of float64"),
    ("broadcast", changed_update(symbols=LONG), "broadcast returned symbols of shape"),
    ("broadcast", changed_update(scales=lambda _: np.zeros(2)), "broadcast returned scales of float64"),
    ("update", changed(aux=DOUBLE), "update returned aux of float64"),
    ("update", changed(aux=LONG), "update returned aux of shape"),
    ("update", lambda found: found.aux, "update returned a ndarray; it must be the client"),
    ("reads", changed_update(symbols=LONG), "reads returned symbols of shape"),
    ("reads", lambda found: found.update.symbols, "reads returned a ndarray; it must be the upload"),
    ("absorb", changed(scales=lambda _: [1.0]), "absorb returned scales of list"),
    ("update", changed(memory=lambda _: np.full(2, np.nan, np.float32)), "update returned a memory that holds NaN"),
    ("absorb", changed(weights=DOUBLE), "absorb returned weights of float64"),
    ("absorb", lambda found: None, "absorb returned a NoneType; it must be the public state"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "change", "sentence"), WRONG, ids=[f"{row[0]}-{row[2][:40]}" for row in WRONG])
def test_a_mistake_is_one_sentence(function: str, change: Callable[..., Any], sentence: str) -> None:
    """Before: an IndexError in the coder, or a RuntimeError in conv2d."""
    honest = biml()

    def mistaken() -> Algorithm:
        """BiML with a mistake."""
        functions = {name: getattr(honest, name) for name in ("upload", "broadcast", "update", "absorb", "reads")}
        right = functions[function]
        functions[function] = lambda *arguments: change(right(*arguments))
        return Algorithm(**functions, keeps=("aux",))

    core.register(mistaken)
    with pytest.raises(AlgorithmError, match=f"algorithm 'mistaken': {sentence}"):
        list(bifl.simulate(bifl.Experiment(algorithm="mistaken", clients=2, rounds=2, workers=1)))


def test_symbols_about_different_weights_are_not_averaged_as_they_are() -> None:
    """Each client says something of other weights: what that means for all weights is for `reads` to say."""
    honest = fedavg()

    @core.register
    def halves() -> Algorithm:
        """FedAvg of a half of the weights."""

        def selects(public: Any, sender: int | None) -> Selections:
            return {UPDATE: None if sender is None else Selection.of(np.arange(sender % 2, public.layout.count, 2))}

        def upload(client: Any, public: Any) -> Message:
            return Message.of(client.aux[client.number % 2 :: 2], FLOAT32, client.real)

        return Algorithm(upload, honest.broadcast, honest.update, selects=selects, forward=honest.forward, keeps=())

    with pytest.raises(AlgorithmError, match="algorithm 'halves': reads returned symbols of shape"):
        list(bifl.simulate(bifl.Experiment(algorithm="halves", clients=2, rounds=1, workers=1)))


def test_what_is_remembered_is_named_in_a_tuple() -> None:
    honest = biml()
    for wrong in ("aux", ("aux", "weights")):
        with pytest.raises(AlgorithmError, match="it must be a tuple of aux, start, scales, memory"):
            Algorithm(honest.upload, honest.broadcast, honest.update, keeps=wrong)  # type: ignore[arg-type]


def test_an_algorithm_s_streams_are_its_own() -> None:
    """Names that the engine uses for itself are free for algorithms."""
    public = Public(3, 4, Layout((), (), (), ()), NOTHING, NOTHING)
    for name in ("batches", "layers", "forward", "voters", "statistics", "holdout"):
        assert public.stream(1, name).integers(2**62) != core.stream(3, 5, 1, name).integers(2**62)


def test_symbols_of_any_alphabet_are_taken() -> None:
    """Before: what was neither binary nor ternary was spelled as vote counts, and could not be read."""
    levels = Alphabet("sixteen levels", 16)

    @core.register
    def sixteen() -> Algorithm:
        """Weights in sixteen levels."""
        honest = fedavg()

        def upload(client: Any, public: Any) -> Message:
            symbols = np.clip(np.rint((client.aux + 1) * 7.5), 0, 15).astype(np.uint8)
            return Message.of(symbols, levels, client.real)

        return Algorithm(upload, honest.broadcast, honest.update, forward=honest.forward, keeps=())

    (record,) = bifl.simulate(bifl.Experiment(algorithm="sixteen", clients=2, rounds=1, workers=1))
    assert 1 < record.up_bpp < 4
    assert Alphabet("another name", 2) == BINARY
