"""Everything secret goes through here, and nothing here is our own: X25519, HKDF, ChaCha20 and ChaCha20-Poly1305 of `cryptography`,
Shamir's secret sharing over GF(2¹²⁸) of `pycryptodome`, random bytes of the operating system.

>>> one, other = seed(), seed()
>>> agreed(one, public_key(other), b"test") == agreed(other, public_key(one), b"test")
True
>>> parts = split(one, 2, 3)
>>> combine({1: parts[0], 3: parts[2]}) == one
True
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

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
_ONCE = bytes(12)  # a nonce: every key seals one letter


def seed() -> bytes:
    """16 random bytes, of which keys are derived."""
    return secrets.token_bytes(SECRET)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """32 bytes for one purpose."""
    return HKDF(hashes.SHA256(), 32, None, b"bifl secure sum 1 " + purpose).derive(secret)


def _private(own: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(derived(own, b"private key"))


def public_key(own: bytes) -> bytes:
    """The public key that belongs to a seed."""
    return _private(own).public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def agreed(own: bytes, theirs: bytes, purpose: bytes) -> bytes:
    """32 bytes that only the owners of two keys know.

    Raises:
        ValueError: the other key is none.
    """
    return derived(_private(own).exchange(X25519PublicKey.from_public_bytes(theirs)), purpose)


_ANY = bytes(SECRET)  # a seed that hides nothing: whether a key is one does not depend on whom it is tried with


def is_key(theirs: bytes) -> bool:
    """Whether clients can agree on something with a public key: points of small order give zeros to everybody."""
    try:
        agreed(_ANY, theirs, b"a trial")
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


def split(secret: bytes, least: int, count: int) -> list[bytes]:
    """Shares of a secret, any `least` of which tell it and fewer nothing; share i belongs to index i + 1."""
    return [share for _, share in Shamir.split(least, count, secret, False)]


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from exactly as many shares as are needed, by index."""
    return Shamir.combine(list(shares.items()), False)
