"""Layers kept real, told as how training changed them: right on average, short, the same at both ends, and safe to read."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bifl.codec import BYTE, SHORT, SIGN, Context, Precision, WireError, decode, encode, read_header
from bifl.codec.reals import read_changes, spell_changes
from bifl.core import BINARY, Floats, Message, Public
from bifl.core.layout import Layout, Tensor
from bifl.errors import ConfigError
from bifl.experiment.settings import Experiment
from bifl.experiment.setup import build
from tests.support.messages import CHECKSUM, checked

AFFINE = (
    Tensor("norm.weight", (3,)), Tensor("norm.bias", (3,)), Tensor("last.weight", (4, 3)), Tensor("last.bias", (4,)),
    Tensor("grouped.weight", (2,)),
)  # fmt: skip
LAYOUT = Layout(("a",), (Tensor("a.weight", (8,), 0),), AFFINE, (Tensor("norm", (3,)),))
KEPT = slice(7, 23)  # last.weight and last.bias
OTHERS = [0, 23, 24]  # ϑ, and a norm without statistics
START = np.concatenate([np.ones(7), np.linspace(-1, 1, 16), np.ones(2), np.zeros(3), np.ones(3)]).astype(np.float32)
FORMS = pytest.mark.parametrize(("precision", "bits"), [(BYTE, 8), (SIGN, 1)], ids=["byte", "sign"])


def context_of(precision: Precision = SIGN, start: Floats = START) -> Context:
    public = Public(0, 0, LAYOUT, np.zeros(8, np.float32), start)
    return Context(LAYOUT, 1, precision, public, start=start[KEPT])


def upload_of(changes: npt.ArrayLike, sender: int | None = 0) -> Message:
    """A message of someone whose layers kept real have changed so."""
    real = START.copy()
    real[KEPT] += np.asarray(changes, np.float32)
    return Message.of(np.zeros(8, np.uint8), BINARY, real, sender=sender, round=1)


SOME = np.concatenate([np.linspace(-0.01, 0.02, 12), [0.5, -0.1, 0, 0.3]])  # another range in each tensor


def test_layers_kept_real_are_those_with_a_matrix() -> None:
    assert [tensor.name for tensor in LAYOUT.kept] == ["last.weight", "last.bias"]
    assert np.flatnonzero(LAYOUT.of_kept).tolist() == list(range(7, 23))


@FORMS
@given(
    changes=arrays.arrays(np.float32, 16, elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    draws=arrays.arrays(np.float64, 16, elements=st.floats(0.001, 0.999)),
)
def test_errors_are_half_a_step_at_most(precision: Precision, bits: int, changes: Floats, draws: npt.NDArray[np.float64]) -> None:
    data = spell_changes(changes.astype(np.float64), LAYOUT, bits, draws)
    assert data is not None
    largest = np.repeat([np.abs(changes[:12]).max(), np.abs(changes[12:]).max()], [12, 4]).astype(np.float64)
    assert np.all(np.abs(read_changes(data, LAYOUT, bits, draws) - changes) <= largest / (2**bits - 1) * (1 + 1e-6))


@FORMS
def test_the_mean_of_many_uploads_is_right(precision: Precision, bits: int) -> None:
    """The error of each is uniform within half a step, whatever the change: 5 deviations of the mean, 16 numbers."""
    context, clients = context_of(precision), 300
    read = [decode(encode(upload_of(SOME, client), context), context).real[KEPT] for client in range(clients)]
    half = np.repeat([0.02, 0.5], [12, 4]) / (2**bits - 1)
    errors = np.array(read, np.float64) - START[KEPT] - SOME
    assert np.all(np.abs(errors.mean(0)) < 5 * half / (3 * clients) ** 0.5)
    assert errors.std(0) == pytest.approx(half / 3**0.5, rel=0.15)


@FORMS
def test_a_change_takes_that_many_bits_and_everything_else_stays(precision: Precision, bits: int) -> None:
    message, context, short = upload_of(SOME), context_of(precision), context_of(SHORT)
    data, longer = encode(message, context), encode(message, short)
    assert len(longer) - len(data) == 4 * 16 - 2 * 4 - 2 * bits, "16 float32, against a scale for each of two tensors and bits"
    read, whole = decode(data, context).real, decode(longer, short).real
    assert np.delete(read, np.arange(7, 23)).tolist() == np.delete(whole, np.arange(7, 23)).tolist()
    assert read[OTHERS].tolist() == message.real[OTHERS].tolist()


def test_broadcasts_have_8_bits_either_way() -> None:
    assert encode(upload_of(SOME, None), context_of(BYTE)) == encode(upload_of(SOME, None), context_of(SIGN))


def test_golden_bytes() -> None:
    """A change here is a new version of the format."""
    layout = Layout((), (), (Tensor("last.weight", (2, 5)),), ())
    start = np.arange(10, dtype=np.float32)
    real = start + np.linspace(-0.25, 0.25, 10, dtype=np.float32)
    message = Message.of(np.zeros(0, np.uint8), BINARY, real, sender=7, weight=600, round=3)
    context = Context(layout, 3, SIGN, start=start)
    assert encode(message, context).hex(" ", -4) == (
        "4249464c 02010100 06000100 03000000 07000000 58020000 00000000 1ce098b8 45c58770 7ea44dd8 e4980f34 "
        "00000000 00000000 0a000000 00000000 00000000 06000000 0000803e 03c08fa3 e1db"
    )
    assert decode(encode(message, context), context).real.tolist() == [
        -0.24513229727745056, 0.6803423762321472, 1.7320866584777832, 2.8727073669433594, 3.990964889526367,
        4.930761814117432, 6.29845666885376, 7.039256572723389, 8.268878936767578, 9.260597229003906,
    ]  # fmt: skip


def test_what_did_not_change_is_read_as_it_was() -> None:
    context = context_of()
    assert decode(encode(upload_of(np.zeros(16)), context), context).real[KEPT].tolist() == START[KEPT].tolist()


def test_the_coder_of_the_symbols_changes_no_number() -> None:
    context = context_of()
    packed = replace(context, known=None)
    one, other = (decode(encode(upload_of(SOME), each), each).real[KEPT].tolist() for each in (context, packed))
    assert one == other


@pytest.mark.parametrize("known", [True, False])
def test_nobody_reads_changes_of_other_numbers(known: bool) -> None:
    ours, theirs = context_of(), context_of(start=START + np.float32(0.5))
    if not known:
        ours, theirs = replace(ours, known=None), replace(theirs, known=None)
    with pytest.raises(WireError, match="was coded in context"):
        decode(encode(upload_of(SOME), ours), theirs)


def test_a_newcomer_is_told_by_name_what_it_lacks() -> None:
    context = context_of()
    with pytest.raises(WireError, match="was coded in context"):
        decode(encode(upload_of(SOME), context), Context(LAYOUT, 1, SIGN))
    others = context_of(SHORT)
    forged = bytearray(encode(upload_of(SOME), replace(others, start=None))[:-CHECKSUM])
    forged[10] = 1
    with pytest.raises(WireError, match="can be read only by who knows what they changed from"):
        decode(checked(bytes(forged)), replace(others, start=None))


@pytest.mark.parametrize("start", [START, np.where(np.arange(len(START)) == 7, np.float32(np.inf), START)], ids=["", "diverged"])
def test_changes_that_are_not_finite_are_sent_as_they_are(start: Floats) -> None:
    message, context = upload_of([np.inf, *np.zeros(15)]), context_of(start=start)
    data = encode(message, context)
    assert read_header(data).change_bits == 0
    assert decode(data, context).real[KEPT].tolist() == message.real[KEPT].tolist()


@pytest.mark.parametrize(
    ("offset", "field", "reason"),
    [
        (10, b"\2", "changes of layers kept real have 2 bits: 8 or 1"),
        (8, b"\0", "8 or 1, beside rounded numbers"),
        (11, b"\1", "the padding is not zero"),
        (36, bytes(8), "changes of layers kept real name no context"),
        (10, b"\x08", "are too few"),
        (69 + 12, b"\0\0\x80\xbf", "largest change of a layer kept real is negative or not finite"),
        (69 + 12, b"\0\0\xc0\x7f", "largest change of a layer kept real is negative or not finite"),
        (69 + 12, b"\0\0\x80\x7f", "largest change of a layer kept real is negative or not finite"),
    ],
)
def test_hostile_bytes_are_refused(offset: int, field: bytes, reason: str) -> None:
    context = context_of()
    body = bytearray(encode(upload_of(SOME), context)[:-CHECKSUM])
    body[offset : offset + len(field)] = field
    with pytest.raises(WireError, match=reason):
        decode(checked(bytes(body)), context)


@FORMS
@given(place=st.integers(0, 200), value=st.integers(0, 255))
def test_any_byte_may_be_another(precision: Precision, bits: int, place: int, value: int) -> None:
    context = context_of(precision)
    body = bytearray(encode(upload_of(SOME), context)[:-CHECKSUM])
    body[place % len(body)] = value
    with contextlib.suppress(WireError):
        decode(checked(bytes(body)), context)


def test_a_liar_moves_layers_kept_real_no_further_than_training_could() -> None:
    """1e30 said of every number, by a client of 100 samples: two steps of Adam at 0.005, twice that, and the wire's rounding."""
    setup = build(Experiment(clients=4, algorithm="fttq", reals="sign"))
    ballot, public = setup.run.ballot, setup.public
    context, kept = ballot.context(public), public.layout.of_kept
    form = ballot.form(public)
    lie = form._replace(real=form.real + np.float32(1e30), sender=1, weight=100, round=1)
    upload = decode(encode(lie, context), context)
    assert np.abs(upload.real[: len(kept)][kept]).max() > 1e29, "it is read as it was said"
    moved = np.abs(ballot.open(upload, public).real - public.real)[: len(kept)][kept]
    assert 0 < moved.max() <= 2 * 0.005 * 2 + 2**-6 * 1.001


@pytest.mark.parametrize("word", ["byte", "sign"])
def test_a_secure_sum_refuses_what_could_not_shorten_it(word: str) -> None:
    with pytest.raises(ConfigError, match=f"reals={word} shortens single uploads, and with secure_sum=true"):
        Experiment(algorithm="biml", secure_sum=True, reals=word)


def test_a_network_without_such_layers_says_the_same_bytes() -> None:
    one, other = (build(Experiment(clients=2, algorithm="biml", reals=word)) for word in ("short", "sign"))
    message = one.run.ballot.form(one.public)._replace(sender=0, round=1)
    assert encode(message, one.run.ballot.context(one.public)) == encode(message, other.run.ballot.context(other.public))
