"""What is tested is written down, version by version, with hashes."""

import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s]+)", re.MULTILINE)


def pinned(file: str) -> dict[str, str]:
    found = PINNED.findall((ROOT / file).read_text())
    return {name.lower().replace("_", "-"): version for name, version in found}


def test_the_lock_has_the_versions_of_the_constraints_and_a_hash_for_each() -> None:
    assert pinned("requirements.lock") == pinned("constraints.txt")
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    named = [line for line in lines if not line.startswith("#")]
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}$", line) for line in named)


def test_every_package_that_is_needed_is_pinned() -> None:
    """Also what dependencies depend on, as far as it is installed here."""
    wanted, seen = ["idiolect"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        if name != "idiolect":
            assert name.lower().replace("_", "-") in pinned("constraints.txt"), name
        for need in needs:
            if "extra ==" not in need:
                wanted.append(re.split(r"[ ;<>=!~\[(]", need)[0])
