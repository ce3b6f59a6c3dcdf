"""seal.json: what a run was started with, written before its first round.

A run goes on only with the settings and the own code it began with. A run directory may come from
anyone, so the permission to load own code is signed with a secret of the user that no run directory
holds: the code of a run that this user started here is loaded again, that of others is not.
"""

import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from idiolect.core import files, own_code
from idiolect.core.text import shortened
from idiolect.errors import UserError
from idiolect.runs.config import Config, changed_keys, digest, own_names

FILE = "seal.json"
PER_CODE = ("of", "name", "sha256")
START_AGAIN = "start again with another --out"


def write(out: Path, config: Config) -> None:
    """Seal the settings, and the own code they name, which the user has allowed by now."""
    named = own_names(config).items()
    code = [{"of": k, "name": n, "sha256": own_code.fingerprint(n)} for k, n in named] or None
    sealed = {"settings": config, "code": code}
    secret = _secret(make=True) if code else None
    mac = _signature(sealed, secret) if secret else None
    files.write_json(out / FILE, {**sealed, "signature": mac})


def check(out: Path, config: Config, note: Callable[[str], None]) -> None:
    """Refuse to go on with other settings or other code than the run began with."""
    sealed = read(out)
    if sealed is None:
        note(f"{out} has no {FILE}: whether its settings were edited is not known")
        return
    changed = changed_keys(sealed["settings"], config)
    if changed:
        told = [
            f"{shortened(key, 40)} ({shortened(repr(was), 40)}, now {shortened(repr(now), 40)})"
            for key, (was, now) in changed.items()
        ]
        keys = ", ".join(told[:5]) + (f" and {len(told) - 5} more" if told[5:] else "")
        raise UserError(
            f"{out / 'config.yaml'} was edited since the run started: {keys}; put it back, or "
            f"{START_AGAIN}"
        )
    for code in _codes(sealed):
        if own_code.fingerprint(code["name"]) != code["sha256"]:
            raise UserError(
                f"the code of {code['of']} '{code['name']}' changed since {out} was started; put it"
                f" back, or {START_AGAIN}"
            )


def approved(out: Path, config: Config) -> set[str]:
    """Own code of this run that the user allowed when the run was started: its seal is signed by
    this user and holds these settings."""
    sealed = read(out)
    secret = _secret() if sealed and sealed.get("signature") else None
    if sealed is None or secret is None:
        return set()
    signature = str(sealed.pop("signature"))
    ours = hmac.compare_digest(signature.encode(), _signature(sealed, secret).encode())
    same = digest(sealed["settings"]) == digest(config)
    return {code["name"] for code in _codes(sealed)} if ours and same else set()


def code(out: Path) -> dict[str, str]:
    """SHA-256 of the own code a run began with, by its name."""
    return {one["name"]: one["sha256"] for one in _codes(read(out) or {})}


def read(out: Path) -> dict[str, Any] | None:
    """The seal; None where a run has none, as those of earlier versions."""
    try:
        sealed = dict(json.loads((out / FILE).read_text(encoding="utf-8")))
        if not isinstance(sealed["settings"], dict):
            raise ValueError("no settings")
        if not all(isinstance(code[k], str) for code in _codes(sealed) for k in PER_CODE):
            raise ValueError("no code")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {out / FILE}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{out / FILE} is damaged; put it back, or {START_AGAIN}") from None
    return sealed


def _codes(sealed: Mapping[str, Any]) -> list[dict[str, str]]:
    """The own code of a seal; earlier versions knew that of a model only."""
    code = sealed.get("code") or []
    return [{"of": "model", **code}] if isinstance(code, dict) else [dict(one) for one in code]


def _signature(sealed: Mapping[str, Any], secret: bytes) -> str:
    text = json.dumps(sealed, sort_keys=True)
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def secret_file() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "idiolect" / "seal.key"


def _secret(make: bool = False) -> bytes | None:
    """The user's secret, which nobody else can read; None where there is none and none can be
    kept, so that the user is asked again."""
    path = secret_file()
    if make:
        with suppress(OSError, RuntimeError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
    try:
        with path.open("rb") as file:
            about, secret = os.fstat(file.fileno()), file.read()
    except OSError:
        return None
    if about.st_mode & 0o077 or (hasattr(os, "getuid") and about.st_uid != os.getuid()):
        raise UserError(f"others can read {path}; delete it, a new one is made when needed")
    return secret if len(secret) == 32 else None
