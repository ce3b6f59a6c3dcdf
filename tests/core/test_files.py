"""Files that are written whole."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from idiolect.core import files


def test_shared_memory_can_be_saved(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    files.write_tensors(tmp_path / "w.safetensors", {"a": base[:3], "b": base, "c": base[::2]})
    assert load_file(tmp_path / "w.safetensors")["a"].tolist() == [0, 1, 2]
