"""Certificates and keys of a federation, in one folder: its own authority, the server's certificate, a key pair per client.

ca.crt ca.key            the authority; clients get ca.crt, and ca.key stays here
server.pem server.key    what the server shows, valid for the given host names
client-0 client-0.pub    a client's private key, for that client alone, and what the server knows it by
clients.pub              all clients' public keys with their numbers, for every client: whom they trust in secure sums
"""

from __future__ import annotations

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
YEARS = 2


def make_keys(folder: Path, hosts: Iterable[str], clients: int) -> list[Path]:
    """Make what is not there yet; replaces no file but the list of all public keys. The new files.

    Raises:
        ConfigError: a server's certificate is wanted where the authority's key is not.
    """
    made: list[Path] = []
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        if not authority(folder).exists():
            made += _make_authority(folder)
        if not (folder / f"{CERTIFICATE}.pem").exists():
            made += _make_certificate(folder, list(hosts))
        for number in range(clients):
            if not client_key(folder, number).exists():
                made += _make_client(folder, number)
        made += _list_clients(folder)
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


def _list_clients(folder: Path) -> list[Path]:
    """The list of all clients' public keys, if it is new or has changed."""
    keys = {number: path.read_text().strip() for path in public_keys(folder) if (number := client_number(path)) is not None}
    text = "".join(f"{number} {key}\n" for number, key in sorted(keys.items()))
    path = peers(folder)
    return [] if path.exists() and path.read_text() == text else [_public(path, text.encode())]


def client_number(public: Path) -> int | None:
    """The number of the client that a public key belongs to, by the file's name; None if that is not client-N.pub."""
    text = public.stem.removeprefix("client-")
    return int(text) if text.isascii() and text.isdecimal() and public.stem == f"client-{int(text)}" else None


def _make_authority(folder: Path) -> list[Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bifl authority")])
    usage = x509.KeyUsage(
        False, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False
    )
    builder = _dated(x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()))
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return [write_secret(folder / f"{AUTHORITY}.key", _private(key)), _public(authority(folder), _shown(certificate))]


def _make_certificate(folder: Path, hosts: list[str]) -> list[Path]:
    if not (folder / f"{AUTHORITY}.key").exists():
        raise ConfigError(f"'{folder}' has no {AUTHORITY}.key: a server certificate can be made only where the authority's key is")
    issuer = x509.load_pem_x509_certificate(authority(folder).read_bytes())
    signer = serialization.load_pem_private_key((folder / f"{AUTHORITY}.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0])])
    builder = _dated(x509.CertificateBuilder().subject_name(name).issuer_name(issuer.subject).public_key(key.public_key()))
    certificate = (
        builder.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return [write_secret(folder / f"{CERTIFICATE}.key", _private(key)), _public(folder / f"{CERTIFICATE}.pem", _shown(certificate))]


def _make_client(folder: Path, number: int) -> list[Path]:
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, none = serialization.Encoding, serialization.NoEncryption()
    private = key.private_bytes(encoding.PEM, serialization.PrivateFormat.OpenSSH, none)
    public = key.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path = client_key(folder, number)
    # the secret last: it is what tells that a pair is complete
    shown = _public(path.with_suffix(".pub"), public + b"\n")
    return [write_secret(path, private), shown]


def _dated(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=365 * YEARS)  # clocks differ
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _shown(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _public(path: Path, data: bytes) -> Path:
    write_atomic(path, data)
    return path
