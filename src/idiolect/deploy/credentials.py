"""Certificates and node keys: a folder at the server, one private key at each site.

DIR/ca.pem, ca.key          the federation's certificate authority; sites need ca.pem
DIR/server.pem, server.key  the server's certificate and private key
DIR/clients/client_3.pub    keys that may take part, by client id
DIR/clients/client_3        its private half, if it was made here: move it to site 3
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from idiolect.errors import UserError

CERTIFICATE_DAYS = 825


@dataclass(frozen=True)
class Credentials:
    """The server's folder, checked."""

    ca: Path
    cert: Path
    key: Path
    clients: dict[int, Path]  # public keys by client id


def read(folder: Path) -> Credentials:
    """The files a server needs; says what is missing."""
    found = Credentials(
        folder / "ca.pem", folder / "server.pem", folder / "server.key", client_keys(folder)
    )
    for path in (found.ca, found.cert, found.key):
        if not path.is_file():
            raise UserError(f"{path} is missing; make it with `idiolect keys {folder}`")
    if not found.clients:
        raise UserError(
            f"{folder / 'clients'} holds no public key; make them with "
            f"`idiolect keys {folder} --clients N` or copy each site's client_ID.pub there"
        )
    return found


def check_site(ca: Path, key: Path) -> None:
    """Refuse files that no connection could be made with: Flower would be started in vain."""
    from cryptography import x509  # type: ignore[import-not-found]
    from cryptography.exceptions import UnsupportedAlgorithm  # type: ignore[import-not-found]
    from cryptography.hazmat.primitives import (  # type: ignore[import-not-found]
        serialization as form,
    )

    try:
        x509.load_pem_x509_certificate(ca.read_bytes())
    except (OSError, ValueError):
        raise UserError(f"--ca {ca} holds no certificate; it is the federation's ca.pem") from None
    try:
        form.load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(
            f"--key {key} holds no private key; it is client_ID, as `idiolect keys` makes it, "
            "without .pub"
        ) from None


def client_keys(folder: Path) -> dict[int, Path]:
    found = {}
    for path in sorted((folder / "clients").glob("client_*.pub")):
        name = re.fullmatch(r"client_(\d+)\.pub", path.name)
        if name is not None:
            found[int(name[1])] = path
    return found


def make_server(folder: Path, hosts: Sequence[str]) -> list[Path]:
    """An authority and the server's certificate for these names; existing files are kept."""
    from cryptography import x509  # type: ignore[import-not-found]
    from cryptography.hazmat.primitives import hashes  # type: ignore[import-not-found]
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec  # type: ignore[import-not-found]
    from cryptography.x509.oid import (  # type: ignore[import-not-found]
        ExtendedKeyUsageOID,
        NameOID,
    )

    if (folder / "server.pem").exists():
        return []
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = datetime.datetime.now(datetime.UTC)

    def draft(name: str, issuer: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        subject, by = (
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)]) for who in (name, issuer)
        )
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(by)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_DAYS))
        )

    ca_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = "Idiolect federation"
    ca = (
        draft(authority, authority, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False)
        .sign(ca_key, hashes.SHA384())
    )
    names = x509.SubjectAlternativeName([_host_name(h) for h in dict.fromkeys(hosts)])
    cert = (
        draft("Idiolect server", authority, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(names, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
        )
        .sign(ca_key, hashes.SHA384())
    )
    pem = (form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return [
        write_private(folder / "ca.key", ca_key.private_bytes(*pem)),
        _write_public(folder / "ca.pem", ca.public_bytes(form.Encoding.PEM)),
        write_private(folder / "server.key", key.private_bytes(*pem)),
        _write_public(folder / "server.pem", cert.public_bytes(form.Encoding.PEM)),
    ]


def make_client(folder: Path, client: int) -> list[Path]:
    """A site's node key (EC P-384, OpenSSH form, as Flower reads it); an existing one is kept."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec  # type: ignore[import-not-found]

    private = folder / "clients" / f"client_{client}"
    public = private.with_suffix(".pub")
    private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if private.exists() or public.exists():
        return []
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    shown = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return [
        write_private(private, secret),
        _write_public(public, shown + f" client_{client}\n".encode()),
    ]


def _usage(authority: bool):  # type: ignore[no-untyped-def]
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str):  # type: ignore[no-untyped-def]
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_private(path: Path, content: bytes) -> Path:
    """Write a file that only its owner can read, from the first byte on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return path


def _write_public(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
