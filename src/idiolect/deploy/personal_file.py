"""A site's personal model as files: what it predicts with after the server's last word.

STATE/models/EXPERIMENT.safetensors  weights under the names of the plain nn.Module
STATE/models/EXPERIMENT.json         what they are: method, model, round, test result
"""

from pathlib import Path
from typing import Any

from idiolect.core import files
from idiolect.core.tree import Tree


def write_personal(folder: Path, experiment: str, model: Tree, card: dict[str, Any]) -> Path:
    """Replace both files, each in one step."""
    models = folder / "models"
    models.mkdir(exist_ok=True, mode=0o700)
    path = models / f"{experiment}.safetensors"
    files.remove_drafts(models, "*.json", "*.safetensors")  # of a process that was killed here
    files.write_json(path.with_suffix(".json"), card)
    files.write_tensors(path, model, private=True)
    return path
