"""Recurrent layers of K clients at once: every step of time is one batched product of all clients
and one cell; the gradients of the weights are one product over all steps of time.

Inside `grad`, and for LSTMs with a projection, the steps are written out in elementary operations,
which have derivatives of any order.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import PackedSequence

from idiolect.core.net import LiveWeights
from idiolect.engine.layers import linear, recurrent_cells
from idiolect.engine.layers.recurrent_cells import RecurrentCell
from idiolect.engine.layers.stack_function import in_transform, in_vmap, with_clients

State = tuple[Tensor, Tensor | None]  # hidden, and the memory of an LSTM


class StackedRecurrent(LiveWeights):
    """The plain layer, for one client of a stack."""

    @classmethod
    def replaces(cls, layer: nn.Module) -> bool:
        plain = (nn.RNN.forward, nn.GRU.forward, nn.LSTM.forward)
        return isinstance(layer, nn.RNNBase) and type(layer).forward in plain

    @classmethod
    def of(cls, kind: type[nn.Module]) -> type[nn.Module]:
        return type(f"Stacked{kind.__name__}", (cls, kind), {})

    def forward(self: Any, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        if isinstance(x, PackedSequence):
            if in_transform():
                raise NotImplementedError("packed sequences have another shape for every client")
            return super().forward(x, hx)  # type: ignore[misc]
        if not (in_transform() or x.is_cuda):
            return super().forward(x, hx)  # type: ignore[misc]
        lonely = x.ndim == 2  # one sample without a batch axis
        batch = 0 if self.batch_first and not lonely else 1
        x = x.unsqueeze(1) if lonely else x.movedim(batch, 1)
        given = (hx if isinstance(hx, tuple) else (hx, None)) if hx is not None else (None, None)
        first = [None if h is None else h.unsqueeze(1) if lonely else h for h in given]
        out, hidden, memory = self._layers(x, *first)
        out = out.squeeze(1) if lonely else out.movedim(1, batch)
        if lonely:
            hidden, memory = hidden.squeeze(1), memory if memory is None else memory.squeeze(1)
        return out, hidden if memory is None else (hidden, memory)

    def _layers(
        self: Any, x: Tensor, h: Tensor | None, c: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """`x [T, B, I]`; outputs, last hidden states and last memories of all layers."""
        lstm, last = isinstance(self, nn.LSTM), []
        for layer in range(self.num_layers):
            ways = []
            for back in range(2 if self.bidirectional else 1):
                at = layer * (2 if self.bidirectional else 1) + back
                hidden = x.new_zeros(x.shape[1], self.proj_size or self.hidden_size)
                memory = x.new_zeros(x.shape[1], self.hidden_size) if lstm else None
                start = (hidden if h is None else h[at], memory if c is None else c[at])
                out, end = self._pass(x.flip(0) if back else x, start, layer, back)
                ways.append(out.flip(0) if back else out)
                last.append(end)
            x = torch.cat(ways, -1) if len(ways) > 1 else ways[0]
            if self.dropout and self.training and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout)
        memories = torch.stack([m for _, m in last if m is not None]) if lstm else None
        return x, torch.stack([hidden for hidden, _ in last]), memories

    def _pass(self: Any, x: Tensor, start: State, layer: int, back: int) -> tuple[Tensor, State]:
        """One layer in one direction of time."""
        end = f"_l{layer}" + ("_reverse" if back else "")
        names = [f"{kind}{end}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        w_in, w, b_in, b = (getattr(self, n, None) for n in names)  # no biases: None
        assert w_in is not None
        assert w is not None
        cell = recurrent_cells.of(self)
        if b is not None and not cell.bias_inside:
            b_in, b = b_in + b, None
        gates = linear.better(x, w_in, b_in)
        if self.proj_size or (in_transform() and not in_vmap()):
            return written_out(cell, gates, start, w, b, getattr(self, f"weight_hr{end}", None))
        h, c = (None if s is None else s[None] for s in start)
        bias = None if b is None else b[None]
        out, memory, _ = RecurrentSteps.apply(gates[:, None], h, c, w[None], bias, cell)
        last = out[-1, 0], None if c is None else memory[-1, 0]
        return out.squeeze(1), last


def written_out(
    cell: RecurrentCell,
    gates: Tensor,
    start: State,
    w: Tensor,
    b: Tensor | None,
    project: Tensor | None,
) -> tuple[Tensor, State]:
    """`gates [T, B, G]` of one client, step by step."""
    (h, c), out = start, []
    for given in gates.unbind():
        h, c, _ = cell.step(given, F.linear(h, w, b), h, c)
        h = h if project is None else F.linear(h, project)
        out.append(h)
    return torch.stack(out), (h, c)


class RecurrentSteps(Function):
    """`gates [T, K, B, G]` from the inputs, first states `h`, `c` `[K, B, H]`, `w [K, G, H]`,
    `b [K, G]` -> outputs and memories `[T, K, B, H]`, and what the backward pass needs."""

    @staticmethod
    def forward(
        gates: Tensor, h: Tensor, c: Tensor | None, w: Tensor, b: Tensor | None, cell: RecurrentCell
    ) -> tuple[Tensor, Tensor, Tensor]:
        turned, bias = w.transpose(1, 2), None if b is None else b[:, None]
        step = cell.fused_step if gates.is_cuda else cell.step
        hidden, memory, work = [], [], []
        for given in gates.contiguous().unbind():
            own = torch.bmm(h, turned) if bias is None else torch.baddbmm(bias, h, turned)
            h, c, kept = step(given, own, h, c)
            hidden.append(h)
            work.append(kept)
            memory += [] if c is None else [c]
        out = torch.stack(hidden)
        return out, torch.stack(memory) if memory else out.new_empty(0), torch.stack(work)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, h, c, w, b, ctx.cell = inputs
        ctx.biased = b is not None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(h, c, w, *output)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_out: Tensor | None, to_memory: Tensor | None, _: Any
    ) -> tuple[Any, ...]:
        h, c, w, out, memory, work = ctx.saved_tensors
        back = ctx.cell.fused_back if out.is_cuda else ctx.cell.back
        before = [c, *memory[:-1].unbind()] if c is not None else [None] * len(out)
        to_h: Tensor | None = None
        to_c: Tensor | None = None
        to_gates, to_own = [], []
        for t in reversed(range(len(out))):
            g = _sum(to_h, None if to_out is None else to_out[t])
            m = _sum(to_c, None if to_memory is None or c is None else to_memory[t])
            g = torch.zeros_like(out[t]) if g is None else g
            given = None if c is None else memory[t]
            to_gate, own, to_h, to_c = back(g, m, work[t], before[t], given)
            to_h = torch.bmm(own, w) if to_h is None else to_h.baddbmm_(own, w)
            to_gates.append(to_gate)
            to_own.append(own)
        inputs = torch.stack(to_gates[::-1])
        own = torch.stack(to_own[::-1]) if ctx.cell.bias_inside else inputs
        seen = torch.cat([h[None], out[:-1]])
        to_w = torch.bmm(own.permute(1, 3, 0, 2).flatten(2), seen.transpose(0, 1).flatten(1, 2))
        return inputs, to_h, to_c, to_w, own.sum((0, 2)) if ctx.biased else None, None

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[Any, ...],
        gates: Tensor,
        h: Tensor,
        c: Tensor | None,
        w: Tensor,
        b: Tensor | None,
        cell: RecurrentCell,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """A further axis of clients joins the stack."""
        n = info.batch_size
        joined = [
            None if x is None else with_clients(x, d, n).flatten(0, 1)
            for x, d in zip((h, c, w, b), dims[1:], strict=False)
        ]
        gates = with_clients(gates, dims[0], n).movedim(0, 1).flatten(1, 2)
        out, memory, work = RecurrentSteps.apply(gates, *joined, cell)
        wide = out.unflatten(1, (n, -1)), work.unflatten(1, (n, -1))
        if c is None:
            return (wide[0], memory, wide[1]), (1, None, 1)  # type: ignore[return-value]
        return (wide[0], memory.unflatten(1, (n, -1)), wide[1]), (1, 1, 1)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
