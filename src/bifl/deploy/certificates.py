"""Certificates and keys of a federation, in one folder: its own authority, the server's certificate, a key pair per client.

ca.crt ca.key            the authority; clients get ca.crt, and ca.key stays here
server.pem server.key    what the server shows, valid for the given host names
client-0 client-0.pub    a client's private key, for that client alone, and what the server knows it by
clients.pub              all clients' public keys with their numbers, for every client: whom they trust in secure sums
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bifl.errors import ConfigError
from bifl.files import write_atomic, write_secret, writing

AUTHORITY, CERTIFICATE = "ca", "server"
LOCAL = ("localhost", "127.0.0.1")  # always in the certificate: the server's own processes come from there
YEARS = 2


def keys(options: argparse.Namespace) -> int:
    """Make certificates and keys: `bifl keys`."""
    for path in make_keys(options.out, options.host, options.clients):
        print(f"made {path}")
    print(f"client N gets {authority(options.out)}, {peers(options.out)} and {options.out}/client-N, and nothing else")
    return 0


def make_keys(folder: Path, hosts: Iterable[str], clients: int) -> list[Path]:
    """Make what is not there yet; replaces no file but the list of all public keys. The new files."""
    made: list[Path] = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        if not authority(folder).exists():
            made += _make_authority(folder)
        if not (folder / f"{CERTIFICATE}.pem").exists():
            made += _make_certificate(folder, list(dict.fromkeys([*hosts, *LOCAL])))
        for number in range(clients):
            if not client_key(folder, number).exists():
                made += _make_client(client_key(folder, number))
        numbered = [(known, path) for path in public_keys(folder) if (known := client_number(path)) is not None]
        listed = "".join(f"{known} {path.read_text().strip()}\n" for known, path in sorted(numbered))
        if not peers(folder).exists() or peers(folder).read_text() != listed:
            write_atomic(peers(folder), listed)
            made.append(peers(folder))
    return made


def authority(folder: Path) -> Path:
    """The certificate by which clients know the server."""
    return folder / f"{AUTHORITY}.crt"


def client_key(folder: Path, number: int) -> Path:
    """A client's private key."""
    return folder / f"client-{number}"


def public_keys(folder: Path) -> list[Path]:
    """The public keys of all clients that may take part."""
    return sorted(folder.glob("client-*.pub"))


def peers(folder: Path) -> Path:
    """All clients' public keys."""
    return folder / "clients.pub"


def client_number(public: Path) -> int | None:
    """The number of the client that a public key belongs to, by the file's name; None if that is not client-N.pub."""
    text = public.stem.removeprefix("client-")
    return int(text) if text.isascii() and text.isdecimal() and public.stem == f"client-{int(text)}" else None


def _make_authority(folder: Path) -> list[Path]:
    key, name = ec.generate_private_key(ec.SECP256R1()), _named("bifl authority")
    usage = x509.KeyUsage(
        False, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
    )
    certificate = (
        _dated(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _write_pair(folder / f"{AUTHORITY}.key", key, authority(folder), certificate.sign(key, hashes.SHA256()))


def _make_certificate(folder: Path, hosts: list[str]) -> list[Path]:
    secret = folder / f"{AUTHORITY}.key"
    if not secret.exists():
        raise ConfigError(f"'{folder}' has no {secret.name}: a server certificate can be made only where the authority's key is")
    issuer = x509.load_pem_x509_certificate(authority(folder).read_bytes())
    signer = serialization.load_pem_private_key(secret.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _dated(_named(hosts[0]), issuer.subject, key)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    shown = folder / f"{CERTIFICATE}.pem"
    return _write_pair(shown.with_suffix(".key"), key, shown, certificate.sign(signer, hashes.SHA256()))


def _make_client(path: Path) -> list[Path]:
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, none = serialization.Encoding, serialization.NoEncryption()
    public = key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    shown = path.with_suffix(".pub")
    write_atomic(shown, public + b"\n")
    write_secret(path, key.private_bytes(encoding.PEM, serialization.PrivateFormat.OpenSSH, none))  # last: the pair is complete
    return [path, shown]


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _dated(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=365 * YEARS)  # clocks differ
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _write_pair(secret: Path, key: ec.EllipticCurvePrivateKey, public: Path, certificate: x509.Certificate) -> list[Path]:
    encoding, none = serialization.Encoding.PEM, serialization.NoEncryption()
    write_secret(secret, key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, none))
    write_atomic(public, certificate.public_bytes(encoding))
    return [secret, public]
