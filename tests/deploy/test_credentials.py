"""Certificates and node keys."""

from __future__ import annotations

import importlib.util
import ssl
import stat
from pathlib import Path

import pytest

from idiolect.deploy import credentials
from idiolect.errors import UserError

needs_cryptography = pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None, reason="comes with idiolect[deploy]"
)


@needs_cryptography
def test_keys_are_private_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made = credentials.make_server(folder, ["fl.example.org", "10.0.0.7", "127.0.0.1"])
    made += credentials.make_client(folder, 0)
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert (mode == 0o600) == (path.suffix in (".key", "")), path
    before = {path: path.read_bytes() for path in made}
    assert credentials.make_server(folder, ["other"]) == []
    assert credentials.make_client(folder, 0) == []
    assert {path: path.read_bytes() for path in made} == before
    found = credentials.read(folder)
    assert list(found.clients) == [0]
    context = ssl.create_default_context(cafile=str(found.ca))
    context.load_cert_chain(found.cert, found.key)


@needs_cryptography
def test_missing_keys_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="idiolect keys"):
        credentials.read(tmp_path)
    credentials.make_server(tmp_path, ["localhost"])
    with pytest.raises(UserError, match="holds no public key"):
        credentials.read(tmp_path)


@needs_cryptography
def test_files_that_a_site_cannot_use_are_named(tmp_path: Path) -> None:
    """Otherwise Flower is started again and again, and nobody is told why."""
    credentials.make_server(tmp_path, ["localhost"])
    credentials.make_client(tmp_path, 0)
    ca, key = tmp_path / "ca.pem", tmp_path / "clients/client_0"
    credentials.check_site(ca, key)
    with pytest.raises(UserError, match=r"client_0\.pub holds no private key"):
        credentials.check_site(ca, key.with_suffix(".pub"))
    with pytest.raises(UserError, match=r"client_0 holds no certificate"):
        credentials.check_site(key, key)
    with pytest.raises(UserError, match=r"ca\.key holds no private key"):
        credentials.check_site(ca, tmp_path / "ca.key")
