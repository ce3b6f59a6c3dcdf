"""Starting weights from files: one safetensors file, or a folder as a run exports it.

In an export of adapters the frozen base lies once beside the clients' files, as base.safetensors.
"""

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from idiolect.errors import UserError

BASE = "base.safetensors"


def load_init(path: Path) -> tuple[dict[str, Tensor] | None, dict[int, dict[str, Tensor]]]:
    """A starting point: one weights file, or a folder as exported (server and/or clients)."""
    if path.is_file():
        return _load(path), {}
    server = path / "server.safetensors"
    clients = {
        int(file.stem.removeprefix("client_")): _load(file)
        for file in sorted(path.glob("client_*.safetensors"))
        if file.stem.removeprefix("client_").isdigit()
    }
    if not server.exists() and not clients:
        raise UserError(
            f"init: {path} holds neither server.safetensors nor client_0000.safetensors files"
        )
    return (_load(server) if server.exists() else None), clients


def check_clients(ids: Collection[int], clients: int, source: str) -> None:
    """Weights are for clients that there are; for those of another federation they mean nothing."""
    unknown = sorted(set(ids) - set(range(clients)))
    if not unknown:
        return
    names = ", ".join(f"client_{i:04d}" for i in unknown[:3]) + (", …" if unknown[3:] else "")
    if len(unknown) == len(ids):
        raise UserError(
            f"init: {source} has {names}, but the clients are 0 to {clients - 1}; name weights of "
            "this federation"
        )
    warnings.warn(f"init: {names} in {source} are not used: there is no such client", stacklevel=4)


def check_complete(
    given: Mapping[str, Tensor] | None, model: Mapping[str, Tensor], source: str
) -> None:
    """A starting point is whole: a weight left random by a slip in its name would go unnoticed.
    Adapters may be missing: they start beside a base that was trained without them."""
    if given is None:
        return
    for name in model:
        leaf = name.rpartition(".")[2]
        if name not in given and leaf != "num_batches_tracked" and not leaf.startswith("lora_"):
            raise UserError(f"init: {source} lacks the model's weight '{name}'")


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; of a client's adapters, with the base that lies beside them."""
    from safetensors.torch import load_file

    base = path.parent / BASE
    beside = path.name.startswith(("client_", "server.")) and base.exists()
    return {**(load_file(base) if beside else {}), **load_file(path)}


def _load(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        return read_weights(path)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"init: {path} is not a readable safetensors file ({reason})") from None
