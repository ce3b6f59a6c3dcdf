"""Cells of recurrent layers: what one step of time does with the gates from its inputs and from its
own last state, and the step's derivative. On a GPU GRU and LSTM are one kernel of PyTorch each."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

Stepped = tuple[Tensor, Tensor | None, Tensor]  # hidden state, memory, what the derivative needs
Back = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # to gates, own gates, state, memory


class RecurrentCell(ABC):
    """Of any number of clients and samples: the last axis is that of the units or gates."""

    bias_inside = False  # the gates of the own state are not just added to those of the inputs

    @abstractmethod
    def step(self, given: Tensor, own: Tensor, h: Tensor, c: Tensor | None) -> Stepped: ...

    @abstractmethod
    def back(
        self, g: Tensor, m: Tensor | None, work: Tensor, c: Tensor | None, new_c: Tensor | None
    ) -> Back:
        """From the gradients of the new state and memory; what goes to the old state besides the
        own gates may be overwritten."""

    # The same where PyTorch has a kernel for it.

    def fused_step(self, given: Tensor, own: Tensor, h: Tensor, c: Tensor | None) -> Stepped:
        return self.step(given, own, h, c)

    def fused_back(
        self, g: Tensor, m: Tensor | None, work: Tensor, c: Tensor | None, new_c: Tensor | None
    ) -> Back:
        return self.back(g, m, work, c, new_c)


class GruCell(RecurrentCell):
    """Gates: reset, update, new."""

    bias_inside = True

    def step(self, given: Tensor, own: Tensor, h: Tensor, c: Tensor | None) -> Stepped:
        (ir, iz, i_new), (hr, hz, h_new) = given.chunk(3, -1), own.chunk(3, -1)
        r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
        new = torch.tanh(i_new + r * h_new)
        return new + z * (h - new), None, torch.cat([r, z, new, h, h_new], -1)

    def back(
        self, g: Tensor, m: Tensor | None, work: Tensor, c: Tensor | None, new_c: Tensor | None
    ) -> Back:
        r, z, new, h, h_new = work.chunk(5, -1)
        to_new = g * (1 - z) * (1 - new * new)
        to_z = g * (h - new) * z * (1 - z)
        to_r = to_new * h_new * r * (1 - r)
        own = torch.cat([to_r, to_z, to_new * r], -1)
        return torch.cat([to_r, to_z, to_new], -1), own, g * z, None

    def fused_step(self, given: Tensor, own: Tensor, h: Tensor, c: Tensor | None) -> Stepped:
        new, work = torch.ops.aten._thnn_fused_gru_cell(_flat(given), _flat(own), _flat(h))
        return new.view_as(h), None, work.view(*h.shape[:-1], -1)

    def fused_back(
        self, g: Tensor, m: Tensor | None, work: Tensor, c: Tensor | None, new_c: Tensor | None
    ) -> Back:
        back = torch.ops.aten._thnn_fused_gru_cell_backward(_flat(g), _flat(work), False)
        given, own, to_h = (x.view(*g.shape[:-1], -1) for x in back[:3])
        return given, own, to_h, None


class LstmCell(RecurrentCell):
    """Gates: input, forget, candidate, output."""

    def step(self, given: Tensor, own: Tensor, h: Tensor, c: Tensor | None) -> Stepped:
        i, f, new, o = (given + own).chunk(4, -1)
        i, f, new, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(new), torch.sigmoid(o)
        assert c is not None
        memory = f * c + i * new
        return o * torch.tanh(memory), memory, torch.cat([i, f, new, o], -1)

    def back(
        self, g: Tensor, m: Tensor | None, work: Tensor, c: Tensor | None, new_c: Tensor | None
    ) -> Back:
        i, f, new, o = work.chunk(4, -1)
        assert c is not None
        assert new_c is not None
        bent = torch.tanh(new_c)
        to_c = g * o * (1 - bent * bent)
        to_c = to_c if m is None else to_c + m
        to_i, to_f = to_c * new * i * (1 - i), to_c * c * f * (1 - f)
        to_new, to_o = to_c * i * (1 - new * new), g * bent * o * (1 - o)
        gates = torch.cat([to_i, to_f, to_new, to_o], -1)
        return gates, gates, None, to_c * f

    def fused_step(self, given: Tensor, own: Tensor, h: Tensor, c: Tensor | None) -> Stepped:
        assert c is not None
        cell = torch.ops.aten._thnn_fused_lstm_cell
        new, memory, work = cell(_flat(given), _flat(own), _flat(c))
        return new.view_as(c), memory.view_as(c), work.view(*c.shape[:-1], -1)

    def fused_back(
        self, g: Tensor, m: Tensor | None, work: Tensor, c: Tensor | None, new_c: Tensor | None
    ) -> Back:
        assert c is not None
        assert new_c is not None
        to_memory = None if m is None else _flat(m)
        given = (_flat(g), to_memory, _flat(c), _flat(new_c), _flat(work), False)
        gates, to_c, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*given)
        gates = gates.view(*g.shape[:-1], -1)
        return gates, gates, None, to_c.view_as(c)


class PlainCell(RecurrentCell):
    """One gate, bent by tanh or cut by ReLU."""

    def __init__(self, nonlinearity: str):
        self._tanh = nonlinearity == "tanh"

    def step(self, given: Tensor, own: Tensor, h: Tensor, c: Tensor | None) -> Stepped:
        new = torch.tanh(given + own) if self._tanh else torch.relu(given + own)
        return new, None, new

    def back(
        self, g: Tensor, m: Tensor | None, work: Tensor, c: Tensor | None, new_c: Tensor | None
    ) -> Back:
        gate = g * (1 - work * work) if self._tanh else g * (work > 0)
        return gate, gate, None, None


def of(layer: Any) -> RecurrentCell:
    """The cell of PyTorch's recurrent layer."""
    if isinstance(layer, nn.GRU):
        return GRU
    return LSTM if isinstance(layer, nn.LSTM) else PLAIN[layer.nonlinearity]


GRU, LSTM = GruCell(), LstmCell()
PLAIN = {name: PlainCell(name) for name in ("tanh", "relu")}


def _flat(x: Tensor) -> Tensor:
    """The kernels take a matrix: a row for every sample of every client."""
    return x.reshape(-1, x.shape[-1])
