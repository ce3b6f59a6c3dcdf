"""What a simulation starts from: a device, an engine, a model that fits, initial weights."""

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from idiolect.core import devices
from idiolect.core.augmentation import Change
from idiolect.core.clients import SHARE
from idiolect.core.local import Loss
from idiolect.core.method import cross_entropy
from idiolect.core.net import Net, initial_tree
from idiolect.core.storage import KEEP
from idiolect.core.tree import Tree
from idiolect.data import Federation
from idiolect.engine.engine import Engine, lacks_variance, takes_whole_numbers
from idiolect.engine.loop import LoopEngine
from idiolect.engine.ranks import gpu_of_this_rank
from idiolect.engine.stacked import StackedEngine
from idiolect.errors import UserError, did_you_mean

Learn = tuple[Loss | None, Change | None]  # the user's own loss, and changes of batches
ENGINES: dict[str, type[Engine]] = {"loop": LoopEngine, "stacked": StackedEngine}
# tf32: float32 values, of whose fraction a network's products on a GPU see the first 10 bits.
# bf16: networks compute in bfloat16; their parameters, and what is done with them, are float32.
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "tf32": torch.float32,
    "bf16": torch.float32,
}


def compute_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise did_you_mean(name, DTYPES, "dtype")
    return DTYPES[name]


def products_dtype(name: str) -> torch.dtype | None:
    """What networks compute in, where it is not the type of their parameters."""
    return torch.bfloat16 if name == "bf16" else None


def allow_tf32(name: str, device: torch.device) -> None:
    """Let the GPU multiply in TF32 if asked to, for the whole process. PyTorch's default would use
    it for convolutions unasked."""
    if name == "tf32" and device.type != "cuda":
        raise UserError("dtype tf32 needs a GPU; use --dtype float32")
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    torch.backends.cudnn.allow_tf32 = name == "tf32"


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}'; use auto, cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device 'cuda' asked for but this machine has none; use --device cpu")
    return gpu_of_this_rank(found)


def check_batch_norm(model: nn.Module, federation: Federation, batch_size: object) -> None:
    """BatchNorm over single values has no variance: say so before a client of one sample trains."""
    lonely = [i for i in federation.seen if len(federation.train[i]) == 1]
    if not (lonely or batch_size == 1):
        return
    try:
        with torch.no_grad():
            x = federation.x[:1]
            if not takes_whole_numbers(model, federation.x):
                x = x.to(next(model.parameters()).dtype)
            deepcopy(model).train()(x)
    except ValueError as error:
        if not lacks_variance(error):
            raise
        what = f"client {lonely[0]} has one training sample" if lonely else "method.batch_size is 1"
        fix = "raise split.min_size" if lonely else "raise method.batch_size"
        raise UserError(
            f"{what}, too few for the model's BatchNorm; {fix} or use GroupNorm"
        ) from None


def with_frozen_weights(model: nn.Module, given: Mapping[str, Tensor] | None) -> nn.Module:
    """The model with the given values of the parameters that do not train."""
    still = [n for n, p in model.named_parameters() if not p.requires_grad]
    values = {n: torch.as_tensor(given[n]) for n in still if n in given} if given else {}
    if not values:
        return model
    model = deepcopy(model)
    try:
        model.load_state_dict(values, strict=False)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"the initial weights do not fit the frozen layers: {reason}") from None
    return model


def with_given_weights(net: Net, start: Tree, given: Mapping[str, Tensor] | None) -> Tree:
    """Replace starting values by given ones, names and shapes checked. What a module has besides
    the tree's leaves (other names of them, frozen layers, counters) may be given, unused."""
    out, others = dict(start), set(net.module.state_dict()) - set(start)
    for name, value in (given or {}).items():
        if name in others or name.endswith("num_batches_tracked"):
            continue
        if name not in start:
            raise did_you_mean(name, start, "parameter in the initial weights")
        if tuple(value.shape) != tuple(start[name].shape):
            raise UserError(
                f"initial weight '{name}' has shape {tuple(value.shape)}, "
                f"the model needs {tuple(start[name].shape)}"
            )
        if not bool(torch.isfinite(torch.as_tensor(value)).all()):
            raise UserError(f"initial weight '{name}' holds NaN or infinite values")
        out[name] = torch.as_tensor(value).to(start[name])
    return out


def pick_engine(
    name: str,
    federation: Federation,
    model: nn.Module,
    seed: int,
    device: torch.device,
    dtype: str,
    keep: str = "auto",
    learn: Learn = (None, None),
) -> Engine:
    if name not in ENGINES:
        raise did_you_mean(name, ENGINES, "engine")
    given: dict[str, Any] = {"seed": seed, "device": device, "dtype": compute_dtype(dtype)}
    given["products"] = products_dtype(dtype)
    given["away"] = _samples_stay_on_host(federation, device, keep)
    chosen = ENGINES[name](federation, model, **given)
    chosen.learn_by(*learn)
    reason = _cannot_stack(chosen, model) if name == "stacked" else None
    if reason and isinstance(chosen, StackedEngine) and chosen.lay_by_planes():
        reason = _cannot_stack(chosen, model)  # it may have counted on how images lie
    if reason:
        warnings.warn(
            f"the model cannot be stacked ({reason}); using the loop engine, which is slower",
            stacklevel=4,
        )
        chosen = LoopEngine(federation, model, **given)
        chosen.learn_by(*learn)
    return chosen


def _samples_stay_on_host(federation: Federation, device: torch.device, keep: str) -> bool:
    """Whether samples stay in host memory: if asked for, or if they would fill the GPU."""
    if keep not in KEEP:
        raise did_you_mean(keep, KEEP, "place to keep clients (keep)")
    if keep != "auto" or device.type != "cuda":
        return keep in ("host", "disk")
    return federation.x.nbytes > SHARE * devices.free_memory(device)


def _cannot_stack(engine: Engine, model: nn.Module) -> str | None:
    """Try one tiny training step of two stacked clients."""
    if isinstance(engine, StackedEngine) and engine.misfit:
        return engine.misfit
    start = initial_tree(model, engine.net, engine.dtype)
    local = engine.local([0, 0], 0)
    two = {n: v.to(engine.device).expand(2, *v.shape).clone() for n, v in start.items()}
    try:
        local.sgd(cross_entropy, two, lr=0.0, steps=1, batch_size=2, purpose="probe")
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return str(error).splitlines()[0]
    return None
