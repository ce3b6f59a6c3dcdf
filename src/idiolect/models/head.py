"""Which layer of a network is its head: the one that makes the logits in a forward pass, whatever
the order in which layers were registered; or the one the user names (`model.head`)."""

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from idiolect.core.net import HEAD_DOUBT, HEAD_GIVEN, HEAD_MARK, NO_HEAD, layer_called_head
from idiolect.errors import UserError, did_you_mean


def name_head(model: nn.Module, pattern: str) -> None:
    """Take the layer whose name fits the pattern as head. If several fit, one of them holds all the
    others."""
    names = [n for n, _ in model.named_modules() if n]
    fit = [n for n in names if fnmatchcase(n, pattern)]
    if not fit:
        raise did_you_mean(pattern, names, "layer for model.head")
    outer = [n for n in fit if not any(n.startswith(f"{other}.") for other in fit)]
    if len(outer) > 1:
        raise UserError(f"model.head={pattern} fits {', '.join(outer)}; name one of them")
    setattr(model, HEAD_GIVEN, outer[0])


class HeadWatch:
    """Watches one forward pass of a model, and marks the layer its output comes from. Where a layer
    is called `head`, or the user named one, only that is watched.

    What a linear layer returns is cut off from what made it, so a gradient of the model's output
    reaches just the layers after which no other linear layer comes."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.given: str | None = getattr(model, HEAD_GIVEN, None)
        self.called = layer_called_head(model)
        self.made: list[tuple[str, Tensor, Tensor]] = []  # name, leaf and output, by call
        self.hooks: list[RemovableHandle] = []

    def __enter__(self) -> "HeadWatch":
        only = self.given or self.called
        for name, layer in self.model.named_modules():
            if name == only if only else isinstance(layer, nn.Linear):
                self.hooks.append(layer.register_forward_hook(self._note(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _note(self, name: str) -> Any:
        def note(layer: nn.Module, given: Any, out: Any) -> Any:
            if not isinstance(out, Tensor) or not out.is_floating_point():
                return out
            leaf = out.detach().requires_grad_(torch.is_grad_enabled())
            shown = leaf.clone()  # a leaf could not be changed in place
            self.made.append((name, leaf, shown))
            return shown

        return note

    def mark(self, out: Tensor) -> None:
        """Note the head on the model, or why there is none."""
        for mark in (HEAD_MARK, HEAD_DOUBT):
            if hasattr(self.model, mark):
                delattr(self.model, mark)
        last = self._last(out)
        sure = len(last) == 1 and self._calls(last[0]) == 1 and self._is_output(last[0], out)
        if self.given is not None:
            if not sure:
                raise UserError(
                    f"model.head={self.given}: the model's output is not what this layer makes; "
                    "name the layer, or the block, that computes last"
                )
        elif sure:
            setattr(self.model, HEAD_MARK, last[0][0])
        elif self.called:
            doubt = "the model's output is not what its layer 'head' makes alone"
            setattr(self.model, HEAD_DOUBT, doubt)
        elif not last:
            setattr(self.model, HEAD_DOUBT, NO_HEAD)
        else:
            names = ", ".join(dict.fromkeys(name for name, *_ in last))
            doubt = f"it is not clear which layer makes the model's logits ({names}?)"
            setattr(self.model, HEAD_DOUBT, doubt)

    def _last(self, out: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """The calls of watched layers that the output comes from directly."""
        same = [one for one in self.made if one[2] is out]
        if same or not self.made or not out.requires_grad:
            return same
        leaves = [leaf for _, leaf, _ in self.made]
        grads = torch.autograd.grad(out.sum(), leaves, retain_graph=True, allow_unused=True)
        return [one for one, grad in zip(self.made, grads, strict=True) if grad is not None]

    def _calls(self, call: tuple[str, Tensor, Tensor]) -> int:
        """How often the layer was called: what is called twice is part of the body, too."""
        return sum(name == call[0] for name, *_ in self.made)

    def _is_output(self, call: tuple[str, Tensor, Tensor], out: Tensor) -> bool:
        """Whether the layer's output is the model's, or nothing but a factor or a softmax comes
        after it: what a method computes by body and head is then what the model computes."""
        _, leaf, made = call
        if made is out:
            return True
        weights = [p for p in self.model.parameters() if p.requires_grad]
        grads = torch.autograd.grad(
            out.sum(), [leaf, *weights], retain_graph=True, allow_unused=True
        )
        if out.ndim != 2 or leaf.shape != out.shape or any(g is not None for g in grads[1:]):
            return False
        told, own = (x.detach() - x.detach().mean(1, keepdim=True) for x in (out, leaf))
        factor = (told * own).sum() / own.square().sum().clamp_min(torch.finfo(own.dtype).tiny)
        return bool(torch.allclose(told, factor * own, rtol=1e-4, atol=1e-6))
