"""Write requirements.lock: every package of constraints.txt with the SHA-256 of the file pip takes.

    python .ci/write_lock.py

The hashes are those of CPython 3.11 on Linux x86-64, where the suite runs.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """\
# Written by `make lock`: what is tested here, with hashes (CPython 3.11, Linux x86-64).
# pip install --require-hashes -r requirements.lock && pip install --no-deps .
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        words += ["-c", str(ROOT / "constraints.txt"), f"{ROOT}[dev,deploy]"]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    lines = []
    for one in found:
        name, version = one["metadata"]["name"], one["metadata"]["version"]
        if name == "idiolect":
            continue
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        # A local build such as 2.13.0+cpu is asked for by its public version.
        lines.append(f"{name}=={version.partition('+')[0]} --hash=sha256:{digest}")
    text = HEAD + "\n".join(sorted(lines, key=str.lower)) + "\n"
    (ROOT / "requirements.lock").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
