"""Which layer of a network is its head: the one that makes the logits in a forward pass, whatever
the order in which layers were registered."""

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from idiolect.core.net import HEAD_MARK


class HeadWatch:
    """Watches one forward pass of a model and marks the linear layer its output comes from."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.made: list[tuple[str, Tensor]] = []  # in the order of calls
        self.hooks: list[RemovableHandle] = []

    def __enter__(self) -> "HeadWatch":
        for name, layer in self.model.named_modules():
            if isinstance(layer, nn.Linear):
                self.hooks.append(layer.register_forward_hook(self._note(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _note(self, name: str) -> Any:
        def note(layer: nn.Module, given: Any, out: Tensor) -> None:
            self.made.append((name, out))

        return note

    def mark(self, out: Tensor) -> None:
        """The layer whose output is the model's, else the last that was called."""
        if self.made:
            same = [name for name, value in self.made if value is out]
            setattr(self.model, HEAD_MARK, (same or [self.made[-1][0]])[-1])
