"""How a client's gradients become steps: the words and numbers that both engines share.

What an optimizer remembers is a tree with these leaves, `name` being a leaf that trains:

    velocity/name              SGD with momentum
    first/name, second/name    Adam and AdamW: means of the gradient and of its square
    taken                      Adam and AdamW: steps so far
"""

from typing import Literal

Optimizer = Literal["sgd", "adam", "adamw"]
BETA_1, BETA_2 = 0.9, 0.999  # of Adam, as published
EPSILON = 1e-8
CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_
