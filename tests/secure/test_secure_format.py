"""The bytes of a secure sum (docs/wire-format.md): golden, given what is random. They change only with the format's version."""

from __future__ import annotations

import hashlib
import itertools
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bifl import codec
from bifl.codec.format import digest_of, state_digest
from bifl.core.message import NOTHING, Message, Votes
from bifl.core.state import Public
from bifl.core.sums import Weighing
from bifl.data.inputs import Dataset
from bifl.exchanges.exchange import BYTE_ALPHABET
from bifl.exchanges.secure_sum import CommonGround
from bifl.experiment.settings import Experiment, agreed
from bifl.experiment.setup import build
from bifl.secure import cards, primitives
from bifl.secure.identities import SimulatedKeys, verified
from bifl.secure.integers import Field, Fields, Parts, Sum, add_pair
from tests.support.secure_round import NEVER, SUM, Table

ALL = range(4)


class Fixed:
    """Signatures that are the same in every run; ECDSA's are not."""

    least = 0

    def sign(self, number: int, data: bytes) -> bytes:
        return hashlib.sha384(struct.pack("<I", number) + data).digest() * 2

    def signed(self, number: int, data: bytes, signature: bytes) -> bool:
        return signature == self.sign(number, data)


def short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


@pytest.fixture
def table() -> Table:
    """Four clients whose secrets are counted up instead of drawn."""
    table, numbers = Table([600, 450, 300, 600]), itertools.count(1)
    table.random = lambda size: hashlib.sha256(b"%d" % next(numbers)).digest()[:size]
    table.identity = Fixed()  # type: ignore[assignment]
    return table


def test_every_message_of_a_round_is_golden(table: Table) -> None:
    """Client 3 is lost after it has dealt shares."""
    card = table.member(0).keys(NEVER)
    table.notes[0].clear()
    sum_state, rosters = table.keys(ALL)
    said = {number: table.member(number).shares(rosters[number]) for number in ALL}
    sum_state, dealt = table.shares(sum_state, rosters, ALL)
    masked = table.masked(0, dealt[0])
    sum_state, survivors = table.uploads(sum_state, dealt, range(3))
    signatures = table.agree(sum_state, survivors, range(3))
    revealed = table.member(0).reveal(SUM, signatures[0], table.place)
    found = {
        "card": card, "roster": rosters[0], "dealt": said[0], "shares": dealt[0], "masked": masked, "survivors": survivors[0],
        "signature": table.member(0).agree(SUM, survivors[0], table.place), "signatures": signatures[0], "revealed": revealed,
    }  # fmt: skip
    assert {name: (len(data), short(data)) for name, data in found.items()} == GOLDEN


GOLDEN = {
    "card": (224, "5dfa9e58dd675595"),
    "roster": (928, "4c494b3abb3aeb79"),
    "dealt": (240, "dffba8c785a17849"),
    "shares": (252, "216bfd2ee5ec56ae"),
    "masked": (46, "af001a20942e8fb2"),
    "survivors": (12, "ad5dc1478de06a4c"),
    "signature": (96, "553d775cf0122eb2"),
    "signatures": (300, "d03098d935c2a312"),
    "revealed": (67, "b7804958b03a3387"),
}


def test_a_card_and_what_is_signed(table: Table) -> None:
    data = table.member(2).keys(b"h" * 32)
    channel, mask_key, commitment, history, signature = data[:32], data[32:64], data[64:96], data[96:128], data[128:]
    assert history == b"h" * 32
    assert len(signature) == 96
    terms = hashlib.sha256(b"bifl circle 1 " + struct.pack("<III", 4, 3, 2) + b"ballot " + table.terms.agreed).digest()
    signed = b"bifl keys 3 " + struct.pack("<III", 1, 2, 300) + terms + channel + mask_key + commitment + history
    assert signature == Fixed().sign(2, signed)
    row = cards.roster([cards.Card(2, 300, data[:128], signature)])
    assert row == struct.pack("<II", 2, 300) + data


def test_a_signature_is_of_one_run() -> None:
    own = SimulatedKeys(7, run="0123456789abcdef")
    plain = own.sign(2, b"text")
    assert verified(own.public(2), b"bifl run 1 0123456789abcdef text", plain)
    assert own.signed(2, b"text", plain)
    assert not SimulatedKeys(7, run="0123456789abcde0").signed(2, b"text", plain)


def test_all_agree_on_settings_and_model() -> None:
    """Whatever of it differs, keys are of no use to each other; files may lie anywhere, and data are everyone's own."""
    setup = build(experiment := Experiment(algorithm="biml", clients=4, secure_sum=True))
    public, data = setup.public, setup.data

    def terms(other: Experiment, state: Public = public, data: Dataset = data) -> bytes:
        return CommonGround(("ballot",), 4, 0, agreed(other, data), Weighing.ONCE).terms(state, 1).agreed

    vectors = [vector.astype("<f4").tobytes() for vector in (public.weights, public.real, public.scales)]
    parts = [agreed(experiment, data).encode(), f"{public.layout.fingerprint} 0 0".encode(), *vectors, b""]
    assert terms(experiment) == hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()
    lines = {"lr=0.005,0.002,0.001", "colluders=0", "model=:mnist_cnn", "classes=10", "shape=1,28,28", "kind=bytes"}
    assert lines <= {*agreed(experiment, data).splitlines()}
    assert terms(experiment, data=data._replace(labels=data.labels[:9], std=tuple(np.atleast_1d(data.std)))) == terms(experiment)
    same = {"rounds": 99, "workers": 3, "dataset": "fashion-mnist", "device": "cpu"}
    assert {terms(experiment.changed({key: value})) for key, value in same.items()} == {terms(experiment)}
    weights = public.weights.copy()
    weights[-1] += 1
    others = [terms(experiment.changed({key: value})) for key, value in {"lr": 0.1, "seed": 1, "algorithm.alpha": 2.5}.items()]
    others += [terms(experiment, public._replace(weights=weights)), terms(experiment, public._replace(round=1))]
    others += [
        terms(experiment, data=other) for other in (data._replace(mean=9.0), data._replace(std=1e6), data._replace(classes=9))
    ]
    counts = [Message.of(np.ones(public.layout.count, np.uint8), Votes(4, unit), public.real) for unit in (1, 100)]
    others += [terms(experiment, public._replace(news=news)) for news in counts]
    assert len({*others, terms(experiment)}) == 11


def test_lists_are_rows_that_begin_with_a_number() -> None:
    assert cards.addressed([(1, b"ab"), (300, b"cd")]) == b"\1\0\0\0ab\x2c\1\0\0cd"
    text = cards.survivors_text(bytes(32), "ballot", [0, 2])
    assert text == b"bifl survivors 1 " + bytes(32) + b"ballot " + struct.pack("<II", 0, 2)


def test_a_mark_is_of_one_share() -> None:
    share = bytes(range(16))
    text = b"bifl share 1 " + struct.pack("<IIIBB", 9, 4, 5, 1, 1) + share
    terms = cards.SumTerms(9, ("ballot", "statistics"), 3, 2, 2)
    assert terms.mark(4, 5, cards.Secret(1, own_mask=True), share) == hashlib.sha256(text).digest()[:16]


def test_such_bytes_are_a_message_of_256_levels() -> None:
    message = Message.of(np.frombuffer(b"\0\xff\x10", np.uint8), BYTE_ALPHABET, NOTHING, NOTHING, 3, 450, 7)
    data = codec.encode(message)
    assert (data[5], data[6], data[7], data[28:44]) == (1, 5, 0, bytes(16))  # an upload, levels, packed; no model, no context
    assert struct.unpack("<III", data[12:24]) == (7, 3, 450)
    assert struct.unpack("<I", data[44:48]) == (256,)
    assert data[68:-4] == b"\0\xff\x10"


def test_masks_are_key_streams_of_keys_for_one_purpose() -> None:
    """A pair's mask of four numbers of 5 bits and two of 33: bytes and words of eight bytes of two streams of ChaCha20."""
    seed, other = bytes(16), primitives.public_key(bytes(range(16)))
    form = Fields((Field(4, 5),), (Field(2, 33),))
    parts: Parts = [np.zeros(4, np.uint8), np.zeros(2, np.uint64)]
    add_pair(parts, seed, other, Sum(SUM, form, b"the terms"), 1, peers=True)
    shared = HKDF(hashes.SHA256(), 32, None, b"bifl secure sum 1 ballot pairthe terms").derive(exchanged(seed, other))
    for part, name, mask in ((parts[0], b"symbols", 31), (parts[1], b"numbers", 2**33 - 1)):
        key = HKDF(hashes.SHA256(), 32, None, b"bifl secure sum 1 " + name).derive(shared)
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(part.nbytes))
        assert part.tolist() == [word & mask for word in np.frombuffer(stream, part.dtype).tolist()]


def exchanged(seed: bytes, other: bytes) -> bytes:
    private = HKDF(hashes.SHA256(), 32, None, b"bifl secure sum 1 private key").derive(seed)
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(other))


def test_no_two_states_have_one_digest() -> None:
    """What ends the scales could begin a broadcast: a server could tell clients different states, and have them agree."""
    assert len({digest_of(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""], [b"", b"abc"])}) == 5
    public = build(Experiment(algorithm="biml", clients=4)).public
    one = public._replace(real=public.real[:-1], scales=public.real[-1:])  # the same numbers in the same order
    other = public._replace(scales=public.scales[:0])
    assert state_digest(one, ()) != state_digest(other, ())
