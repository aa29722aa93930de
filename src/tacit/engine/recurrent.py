"""The gradient of an LSTM language model, written out for a whole stack of clients.

The model is an embedding, LSTM layers and a linear layer. torch has no vmap rule for its LSTM, so clients
would run one by one, and a step of one client is about a hundred small products in sequence. Here every
product is over all clients. What does not depend on the previous time step is computed before or after the
loop over time: the input of a layer is one product, and so is each weight's gradient. The input of the
first layer is looked up in a table with one row for each token.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dense import CROSS_ENTROPY, Slot
from .layers import Characters


class Cell(NamedTuple):
    """The parts of the flat vector that belong to an LSTM layer."""

    below: slice  # [4·hidden, input width]
    before: slice  # [4·hidden, hidden]
    bias_below: slice
    bias_before: slice
    width: int
    hidden: int


class Chain(NamedTuple):
    """An LSTM language model; `every`: it predicts after every token, otherwise after the last."""

    embedding: slice
    letters: int
    cells: list[Cell]
    weight: slice
    bias: slice
    every: bool

    def row(self, length: int, learns: bool) -> int:
        """Bytes for a row of this many tokens: of one layer and its output, or, to train, of all layers."""
        hidden = self.cells[0].hidden
        # four gates and twice their inputs; c, h, a copy of h and the h of the layer below; the logits
        if not learns:
            return 4 * length * (16 * hidden + self.letters)
        # gradients by the gates (twice for a time step), c and h; by the logits, their softmax and the
        # one-hot tokens
        back = 10 * hidden + 3 * self.letters
        return 4 * length * (8 * len(self.cells) * hidden + back)


def chain_of(module: nn.Module, slots: list[Slot]) -> Chain | None:
    """The model, if the module is an unmodified, trainable `tacit.models.LSTM`; None otherwise."""
    if type(module) is not Characters or any(
        "forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in module.modules()
    ):
        return None
    letters, embedding, hidden, layers, every = module.built
    with torch.device("meta"):
        again = Characters(letters, embedding, hidden, layers, every)
    at = {s.name: s.part for s in slots}
    same = (
        repr(again) == repr(module)
        and module.every == every
        and [(k, p.shape) for k, p in again.named_parameters()] == [(s.name, s.shape) for s in slots]
    )
    if not same or not all(p.requires_grad for p in module.parameters()):  # modified after construction
        return None
    cells = [
        Cell(
            at[f"lstm.weight_ih_l{i}"],
            at[f"lstm.weight_hh_l{i}"],
            at[f"lstm.bias_ih_l{i}"],
            at[f"lstm.bias_hh_l{i}"],
            hidden if i else embedding,
            hidden,
        )
        for i in range(layers)
    ]
    return Chain(at["embed.weight"], letters, cells, at["out.weight"], at["out.bias"], every)


def gradient(net: Chain, w: Tensor, x: Tensor, y: Tensor, live: Tensor) -> Tensor:
    """The gradients of S models w [S, D], each on its own rows x [S, B, T] with labels y.

    Labels are [S, B] or [S, B, T]; −1 marks a missing label.
    """
    (s, b, t), g = x.shape, torch.empty_like(w, memory_format=torch.contiguous_format)
    letters = _by_time(x)
    passes: list[_LayerPass] = []
    for cell in net.cells:
        read = _from_below(cell, w, passes[-1].h) if passes else _of_letters(net, w, letters)
        passes.append(_forward(cell, w, read, b))
    h = passes[-1].h if net.every else passes[-1].h[:, -b:]
    delta = CROSS_ENTROPY.by_outputs(_logits(net, w, h), *_shares(net, y, live), None)
    torch.bmm(delta.mT, h, out=g[:, net.weight].view(s, net.letters, -1))
    torch.sum(delta, 1, out=g[:, net.bias])
    by_h = torch.bmm(delta, _part(w, net.weight, net.letters))
    by_h = by_h if net.every else F.pad(by_h, (0, 0, (t - 1) * b, 0))
    for i in reversed(range(len(passes))):
        by_h = passes[i].back(w, g, by_h, passes[i - 1].h if i else None)
    _letters_back(net, w, g, letters, by_h)
    return g


def answers(net: Chain, w: Tensor, x: Tensor) -> Tensor:
    """[S, B, tokens] or [S, B, T, tokens]: the logits of S models w [S, D] on their rows x [S, B, T]."""
    s, b, t = x.shape
    h = None
    for cell in net.cells:
        read = _of_letters(net, w, _by_time(x)) if h is None else _from_below(cell, w, h)
        h = _forward(cell, w, read, b).h
    assert h is not None
    return _logits(net, w, h).view(s, t, b, -1).transpose(1, 2) if net.every else _logits(net, w, h[:, -b:])


def _by_time(x: Tensor) -> Tensor:
    """[S, B, T] → [S, T·B]: ordered by time step."""
    return x.transpose(1, 2).reshape(len(x), -1)


def _logits(net: Chain, w: Tensor, h: Tensor) -> Tensor:
    return torch.baddbmm(w[:, None, net.bias], h, _part(w, net.weight, net.letters).mT)


def _shares(net: Chain, y: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """The labels in the order of the logits, and the weight of each in the mean loss; 0 for a missing
    label.
    """
    share = live / live.sum(1, keepdim=True).clamp(min=1)
    if not net.every:
        return y, share
    is_labeled = y >= 0
    return _by_time(y.clamp(min=0)), _by_time(
        is_labeled * (share / is_labeled.sum(2).clamp(min=1))[..., None]
    )


def _of_letters(net: Chain, w: Tensor, letters: Tensor) -> Tensor:
    """[S, T·B, 4·hidden]: the input of the first layer, looked up in a table with a row for each token."""
    table = _from_below(net.cells[0], w, _part(w, net.embedding, net.letters))
    return table.gather(1, letters[..., None].expand(-1, -1, table.shape[2]))


def _letters_back(net: Chain, w: Tensor, g: Tensor, letters: Tensor, by_gates: Tensor) -> None:
    """The gradients of the embedding and of the first layer's input weights.

    A matrix product, because scatter-add on a GPU has no fixed order.
    """
    cell, s = net.cells[0], len(w)
    which = (letters[:, None] == torch.arange(net.letters, device=w.device)[:, None]).to(
        w.dtype
    )  # [S, letters, T·B]
    by_table, embedding = torch.bmm(which, by_gates), _part(w, net.embedding, net.letters)
    torch.bmm(by_table.mT, embedding, out=g[:, cell.below].view(s, -1, cell.width))
    torch.bmm(
        by_table,
        _part(w, cell.below, 4 * cell.hidden),
        out=g[:, net.embedding].view(s, net.letters, cell.width),
    )


def _from_below(cell: Cell, w: Tensor, h: Tensor) -> Tensor:
    return torch.baddbmm(
        (w[:, cell.bias_below] + w[:, cell.bias_before])[:, None], h, _part(w, cell.below, 4 * cell.hidden).mT
    )


def _part(w: Tensor, at: slice, rows: int) -> Tensor:
    """One matrix of every client.

    On a GPU it is a copy: fast products need aligned matrices, and few matrices of a flat vector are. If all
    clients still share one vector, nothing is copied.
    """
    part = w[:, at].view(len(w), rows, -1)
    return part.clone(memory_format=torch.contiguous_format) if w.is_cuda and w.stride(0) else part


class _LayerPass:
    """The forward pass of a layer, with what its backward pass needs.

    `read` is its input, [S, T·B, 4·hidden], and is overwritten by its gates: input, forget, cell and output.
    """

    def __init__(self, cell: Cell, w: Tensor, read: Tensor, b: int):
        self.cell, self.b = cell, b
        self.weight = _part(w, cell.before, 4 * cell.hidden)
        self.h = self._forward(read)

    def _forward(self, read: Tensor) -> Tensor:
        self.gates, n = read, self.cell.hidden
        self.c, self.tanh_c, h = (read.new_empty(*read.shape[:2], n) for _ in range(3))
        before = None
        for at in self._time_steps():
            gates, c = read[:, at], self.c[:, at]
            if before is not None:
                gates.baddbmm_(h[:, before], self.weight.mT)
            gates[..., : 2 * n].sigmoid_()
            gates[..., 2 * n : 3 * n].tanh_()
            gates[..., 3 * n :].sigmoid_()
            into, forget, new, out = gates.chunk(4, -1)
            torch.mul(into, new, out=c)
            if before is not None:
                c.addcmul_(forget, self.c[:, before])
            torch.tanh(c, out=self.tanh_c[:, at])
            torch.mul(out, self.tanh_c[:, at], out=h[:, at])
            before = at
        return h

    def _time_steps(self) -> list[slice]:
        return [slice(i, i + self.b) for i in range(0, self.gates.shape[1], self.b)]

    def _by_gates(self, by_h: Tensor) -> Tensor:
        b, n = self.b, self.cell.hidden
        into, forget, new, out = self.gates.chunk(4, -1)
        # the derivative of each gate (a sigmoid; the cell gate is a tanh), times its factor in c or h
        by_gates = self.gates - self.gates * self.gates
        by_gates[..., 2 * n : 3 * n] = 1 - new * new
        by_gates[..., :n] *= new
        by_gates[:, b:, n : 2 * n] *= self.c[:, :-b]
        by_gates[:, :b, n : 2 * n] = 0  # the first time step has no previous c
        by_gates[..., 2 * n : 3 * n] *= into
        by_gates[..., 3 * n :] *= self.tanh_c
        by_c = out * (1 - self.tanh_c * self.tanh_c)
        later = None
        for at in reversed(self._time_steps()):
            dh, here = by_h[:, at], by_gates[:, at]
            if later is None:
                dc = dh * by_c[:, at]
            else:
                dh.baddbmm_(by_gates[:, later], self.weight)
                dc = torch.addcmul(dc * forget[:, later], dh, by_c[:, at])
            here[..., : 3 * n].view(len(here), b, 3, n).mul_(dc[:, :, None])
            here[..., 3 * n :].mul_(dh)
            later = at
        return by_gates

    def back(self, w: Tensor, g: Tensor, by_h: Tensor, below: Tensor | None) -> Tensor:
        """The gradient by the layer below, from that by h [S, T·B, hidden], which may be overwritten.

        For the first layer, the gradient by the gates.
        """
        cell, b, s, n = self.cell, self.b, len(w), self.cell.hidden
        by_gates = self._by_gates(by_h)
        torch.bmm(by_gates[:, b:].mT, self.h[:, :-b], out=g[:, cell.before].view(s, 4 * n, n))
        torch.sum(by_gates, 1, out=g[:, cell.bias_below])
        g[:, cell.bias_before] = g[:, cell.bias_below]
        if below is None:
            return by_gates
        torch.bmm(by_gates.mT, below, out=g[:, cell.below].view(s, 4 * n, cell.width))
        return torch.bmm(by_gates, _part(w, cell.below, 4 * n))


class _FusedPass(_LayerPass):
    """The same with torch's fused LSTM kernels on a GPU: four launches for a time step instead of thirteen.

    They need the rows of a time step to be contiguous, so tensors are reordered before and after the loop.
    """

    def _forward(self, read: Tensor) -> Tensor:
        s, b, n = len(read), self.b, self.cell.hidden
        steps = read.view(s, -1, b, 4 * n).transpose(0, 1).reshape(-1, s * b, 4 * n)
        before, c = torch.zeros_like(steps[0]), read.new_zeros(s * b, n)
        h: list[Tensor] = []
        self.saved: list[tuple[Tensor, Tensor, Tensor]] = []  # c before and after a time step, and the gates
        for step in steps:
            if h:
                before = torch.bmm(h[-1], self.weight.mT).view(s * b, 4 * n)
            out, after, gates = _CELL(step, before, c)
            self.saved.append((c, after, gates))
            h.append(out.view(s, b, n))
            c = after
        return torch.stack(h, 1).view(s, -1, n)

    def _by_gates(self, by_h: Tensor) -> Tensor:
        s, b, n = len(by_h), self.b, self.cell.hidden
        dh, dc, out = by_h.view(s, -1, b, n).transpose(0, 1).contiguous(), None, []
        for t in reversed(range(len(self.saved))):
            by_gates, dc, _ = _CELL_BACK(dh[t].view(s * b, n), dc, *self.saved[t], False)
            out.append(by_gates.view(s, b, 4 * n))
            if t:
                dh[t - 1].baddbmm_(out[-1], self.weight)
        return torch.stack(out[::-1], 1).view(s, -1, 4 * n)


# not part of torch's public interface: without them, the unfused pass is used
_CELL: Any = getattr(torch.ops.aten, "_thnn_fused_lstm_cell", None)
_CELL_BACK: Any = getattr(torch.ops.aten, "_thnn_fused_lstm_cell_backward_impl", None)


def _forward(cell: Cell, w: Tensor, read: Tensor, b: int) -> _LayerPass:
    return (_FusedPass if w.is_cuda and _CELL and _CELL_BACK else _LayerPass)(cell, w, read, b)
