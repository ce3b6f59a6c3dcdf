"""Where a program may write: a folder below the one it was started in."""

from pathlib import Path
from types import SimpleNamespace


class HydraConfig:
    @staticmethod
    def get() -> SimpleNamespace:
        return SimpleNamespace(runtime=SimpleNamespace(output_dir=str(Path("outputs").absolute())))
