"""Everything secret goes through here: X25519, HKDF, ChaCha20 and ChaCha20-Poly1305 of `cryptography`, Shamir's secret sharing over
GF(2¹²⁸), random bytes of the operating system. Of these only the sharing is our own: it makes the shares that `pycryptodome` makes,
which recovers secrets here, fifty times as fast.

>>> one, other = secrets.token_bytes(SECRET), secrets.token_bytes(SECRET)
>>> agree_key(one, public_key(other), b"test") == agree_key(other, public_key(one), b"test")
True
>>> parts, _ = split([one, other], 2, 3)
>>> combine({1: parts[0], 3: parts[2]}) == one
True
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SECRET = 16  # bytes of a seed and of a share: 128 bits, what pycryptodome shares
PUBLIC = 32  # bytes of a public key
DIGEST = 32
TAG = 16  # bytes that sealing adds
Random = Callable[[int], bytes]  # so many random bytes
_ONCE = bytes(12)  # a nonce: every key seals one letter


def derive_key(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose."""
    return HKDF(hashes.SHA256(), 32, None, b"bifl secure sum 1 " + purpose).derive(secret)


@lru_cache(maxsize=256)  # a client agrees with every other one, and making the key takes as long as agreeing
def _private(own: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(derive_key(own, b"private key"))


def public_key(own: bytes) -> bytes:
    """The public key that belongs to a seed."""
    return _private(own).public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def agree_key(own: bytes, theirs: bytes, purpose: bytes) -> bytes:
    """32 bytes that only the owners of two keys know; a ValueError, if the other key is none."""
    return derive_key(_private(own).exchange(X25519PublicKey.from_public_bytes(theirs)), purpose)


_ANY = bytes(SECRET)  # a seed that hides nothing: whether a key is one does not depend on whom it is tried with


def is_key(theirs: bytes) -> bool:
    """Whether clients can agree on something with a public key: points of small order give zeros to everybody."""
    try:
        agree_key(_ANY, theirs, b"a trial")
    except ValueError:
        return False
    return True


def commitment(own: bytes) -> bytes:
    """What tells later whether a seed is the one that was meant."""
    return hashlib.sha256(b"bifl self mask" + own).digest()


def keystream(key: bytes, length: int) -> bytes:
    """Bytes that look random to whoever lacks the key; a key is used for one stream."""
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(length))


def seal(key: bytes, data: bytes, about: bytes) -> bytes:
    """A letter that only who has the key can read or change; `about` goes in the open, unchanged."""
    return ChaCha20Poly1305(key).encrypt(_ONCE, data, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """What was sealed; None if anything was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_ONCE, sealed, about)
    except InvalidTag:
        return None


_LANE = 160  # bits for an element of GF(2¹²⁸) and what multiplying it by a share's index, of 20 bits at most, carries


def split(secret: Sequence[bytes], least: int, count: int, random: Random = secrets.token_bytes) -> list[list[bytes]]:
    """Shares of secrets, any `least` of which tell one and fewer nothing; share i of each belongs to index i + 1.

    The secrets are the constant terms of polynomials whose other coefficients are random. All are evaluated at once: in lanes of
    one long integer, which is multiplied by the index, a small polynomial, and reduced by x¹²⁸ + x⁷ + x² + x + 1.
    """
    terms = [[random(SECRET) for _ in secret] for _ in range(least - 1)] + [list(secret)]
    packed = [sum(int.from_bytes(one, "big") << _LANE * lane for lane, one in enumerate(row)) for row in terms]
    low = sum(((1 << 128) - 1) << _LANE * lane for lane in range(len(secret)))
    high = sum(((1 << _LANE - 128) - 1) << _LANE * lane for lane in range(len(secret)))
    shares: list[list[bytes]] = [[] for _ in secret]
    for index in range(1, count + 1):
        bits = [bit for bit in range(index.bit_length()) if index >> bit & 1]
        value = 0
        for term in packed:
            product = 0
            for bit in bits:
                product ^= value << bit
            over = product >> 128 & high
            value = product & low ^ over ^ over << 1 ^ over << 2 ^ over << 7 ^ term
        for lane, row in enumerate(shares):
            row.append((value >> _LANE * lane & (1 << 128) - 1).to_bytes(SECRET, "big"))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from exactly as many shares as are needed, by index."""
    return Shamir.combine(list(shares.items()), False)
