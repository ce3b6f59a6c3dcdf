"""Known weaknesses of the packages in requirements.lock, by pip-audit; `make audit` runs it.

pip-audit asks pypi.org about every package, and where that does not answer it says that the first
package does not exist. So one page is asked for first.
"""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"
PINNED = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
AUDIT = (sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--requirement")


def main() -> int:
    name, version = PINNED.findall(LOCK.read_text(encoding="utf-8"))[0]
    page = f"https://pypi.org/pypi/{name}/{version}/json"
    try:
        with urllib.request.urlopen(page, timeout=20) as answer:
            json.load(answer)["vulnerabilities"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(
            f"nothing was checked: make audit needs a network with PyPI, and {page} does not "
            f"answer as it does there ({type(error).__name__})",
            file=sys.stderr,
        )
        return 2
    return subprocess.run([*AUDIT, str(LOCK)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
