"""What clients sign with: the node keys of a deployment, which `bifl keys` makes, or keys made of the seed in a simulation."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from bifl.errors import ConfigError
from bifl.secure.cards import SIGNATURE

_HASH = ec.ECDSA(hashes.SHA384())
_LARGEST = 2**22  # bytes of a list of keys
_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973  # of P-384


def _of_run(run: str, data: bytes) -> bytes:
    """What is signed: it is of no use in another run."""
    return b"bifl run 1 " + run.encode() + b" " + data


def signature(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """96 bytes: r and s."""
    half = SIGNATURE // 2
    return b"".join(part.to_bytes(half, "big") for part in decode_dss_signature(key.sign(data, _HASH)))


@lru_cache(maxsize=4096)  # in a simulation one process is many clients, which all see the same signatures
def verified(public: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key (SubjectPublicKeyInfo) has signed this."""
    if len(signature) != SIGNATURE:
        return False
    key = serialization.load_der_public_key(public)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    half = SIGNATURE // 2
    pair = encode_dss_signature(int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big"))
    try:
        key.verify(pair, data, _HASH)
    except InvalidSignature:
        return False
    return True


def _der(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


class Keys(ABC):
    """Clients' public keys, by which what they sign in a run is known."""

    def __init__(self, run: str) -> None:
        self._run = run

    @abstractmethod
    def public(self, number: int) -> bytes | None:
        """A client's public key (SubjectPublicKeyInfo); None of one that is not known."""

    def signed(self, number: int, data: bytes, signature: bytes) -> bool:
        """Whether a client has signed this."""
        public = self.public(number)
        return public is not None and verified(public, _of_run(self._run, data), signature)


class SimulatedKeys(Keys):
    """Keys of all clients, made of an experiment's seed: a simulation has nobody to hide them from.

    Attributes:
        least: clients that a sum must be of for one of them to sign it.
    """

    def __init__(self, seed: int, least: int = 0, run: str = "") -> None:
        super().__init__(run)
        self._seed, self.least = seed, least

    def public(self, number: int) -> bytes:
        """Any client's public key."""
        return _simulated(self._seed, number)[1]

    def sign(self, number: int, data: bytes) -> bytes:
        """Any client's signature."""
        return signature(_simulated(self._seed, number)[0], _of_run(self._run, data))


@lru_cache(maxsize=4096)
def _simulated(seed: int, number: int) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    secret = hashlib.sha512(f"bifl simulated client {seed} {number}".encode()).digest()
    key = ec.derive_private_key(1 + int.from_bytes(secret, "big") % (_ORDER - 1), ec.SECP384R1())
    return key, _der(key.public_key())


class NodeKeys(Keys):
    """A client's own private key, of the file `client-N`, and the public keys of all, of the file `clients.pub`.

    That has a line for each client with its number and its public key as in `client-N.pub`.

    Attributes:
        least: clients that a sum must be of for this one to sign it.
    """

    def __init__(self, key: Path, peers: Path, least: int = 0, run: str = "") -> None:
        super().__init__(run)
        self._own, self._peers, self.least = read_private_key(key), _read_peers(peers), least
        if _der(self._own.public_key()) not in self._peers.values():
            raise ConfigError(f"'{peers}' does not hold the public key of '{key}': take the list that was made with it")

    def public(self, number: int) -> bytes | None:
        """A client's public key; None of one that is not in the list."""
        return self._peers.get(number)

    def sign(self, number: int, data: bytes) -> bytes:
        """This client's signature, whatever its number."""
        return signature(self._own, _of_run(self._run, data))


class ServerKeys(Keys):
    """The public keys of all clients, as the server has them: a folder with `client-N.pub` for each, also such as come later."""

    def __init__(self, folder: Path, run: str) -> None:
        super().__init__(run)
        self._folder = folder
        self._known: dict[int, bytes] = {}

    def public(self, number: int) -> bytes | None:
        """A client's public key; None where its file is not there or cannot be read."""
        if number not in self._known:
            try:
                self._known[number] = _public_key((self._folder / f"client-{number}.pub").read_text())
            except (OSError, ValueError, UnsupportedAlgorithm):
                return None
        return self._known[number]


def _public_key(text: str) -> bytes:
    key = serialization.load_ssh_public_key(text.encode())
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError("it is no key on P-384")
    return _der(key)


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's private key, as `bifl keys` makes them, or the same as PEM."""
    try:
        data = path.read_bytes()
        kind = serialization.load_ssh_private_key if b"OPENSSH" in data[:64] else serialization.load_pem_private_key
        key = kind(data, None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"cannot read the private key '{path}': {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ConfigError(f"'{path}' is no private key on P-384, as bifl keys makes them")
    return key


def _read_peers(path: Path) -> Mapping[int, bytes]:
    """Clients' public keys by number."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it is longer than {_LARGEST} bytes")
        peers = {}
        for line in filter(None, path.read_text().splitlines()):
            number, _, text = line.partition(" ")
            key = _public_key(text)
            if not number.isascii() or not number.isdecimal() or int(number) in peers:
                raise ValueError(f"'{number[:20]}' is no number of a client, or there twice")
            peers[int(number)] = key
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"cannot read '{path}', the list of all clients' public keys: {error}") from error
    if len(set(peers.values())) != len(peers):
        raise ConfigError(f"'{path}' gives one key to several clients")
    return peers
