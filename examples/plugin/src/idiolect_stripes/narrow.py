"""A plain module: the parameters of its constructor are its settings."""

from math import prod

from torch import Tensor, nn


class Narrow(nn.Module):
    """One hidden layer of few units."""

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits
