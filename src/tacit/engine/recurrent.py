"""The gradient of a network of characters, written out for a whole stack of clients: an embedding, layers of
LSTM, a linear layer.

torch has no rule to stack its own LSTM, so clients would go one by one, and a step of one is a hundred little
products that wait for each other. Here every product is of all clients at once. What does not have to wait is
done before or after the walk through time: what a layer reads from below is one product, and so is each
weight's gradient. The first layer reads nothing but characters: what it makes of each of them is one row of a
table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dense import by_logits
from .layers import Characters


class Cell(NamedTuple):
    """One LSTM layer's place in the flat vector."""

    below: slice  # [4·hidden, width of what it reads]
    before: slice  # [4·hidden, hidden]
    bias_below: slice
    bias_before: slice
    width: int
    hidden: int


class Chain(NamedTuple):
    """A network of characters: its embedding, its layers, its answer, and whether it answers after every
    character or after the last.
    """

    embedding: slice
    letters: int
    cells: list[Cell]
    weight: slice
    bias: slice
    every: bool

    def row(self, length: int, learns: bool) -> int:
        """Bytes that a row of so many tokens takes on its way: one layer at a time and what the next one
        reads, or, to learn, all of them and the way back.
        """
        hidden = self.cells[0].hidden
        # four gates, and twice what they were made of; c, h, the same h laid out anew and the h below it; the
        # answers
        if not learns:
            return 4 * length * (16 * hidden + self.letters)
        back = (
            10 * hidden + 3 * self.letters
            # by the gates, twice for a moment, by c and by h; by the answers, their softmax, which letter
            # each
            # was
        )
        return 4 * length * (8 * len(self.cells) * hidden + back)


def chain_of(module: nn.Module, slots: list[Any]) -> Chain | None:
    """The network, if the module is that of `tacit.models.LSTM` as it was built, all of it to be learnt; None
    otherwise.
    """
    if type(module) is not Characters or any(
        "forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks for m in module.modules()
    ):
        return None
    letters, embedding, hidden, layers, every = module.built
    with torch.device("meta"):
        again = Characters(letters, embedding, hidden, layers, every)
    at = {s.name: slice(s.start, s.stop) for s in slots}
    same = (
        repr(again) == repr(module)
        and module.every == every
        and [(k, p.shape) for k, p in again.named_parameters()] == [(s.name, s.shape) for s in slots]
    )
    if not same or not all(
        p.requires_grad for p in module.parameters()
    ):  # somebody has put his hand to it since
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
    """Of S models w [S, D], each on its own batch of rows x [S, B, T] with labels y, [S, B] or [S, B, T]; a
    label of −1 is none.
    """
    (s, b, t), g = x.shape, torch.empty_like(w, memory_format=torch.contiguous_format)
    letters = _by_moment(x)
    walked: list[_Walked] = []
    for cell in net.cells:
        walked.append(
            _walk(
                cell, w, _of_letters(net, w, letters) if not walked else _from_below(cell, w, walked[-1].h), b
            )
        )
    h = walked[-1].h if net.every else walked[-1].h[:, -b:]
    delta = by_logits(_last(net, w, h), *_shares(net, y, live))
    torch.bmm(delta.mT, h, out=g[:, net.weight].view(s, net.letters, -1))
    torch.sum(delta, 1, out=g[:, net.bias])
    by_h = torch.bmm(delta, _part(w, net.weight, net.letters))
    by_h = by_h if net.every else F.pad(by_h, (0, 0, (t - 1) * b, 0))
    for i in reversed(range(len(walked))):
        by_h = walked[i].back(w, g, by_h, walked[i - 1].h if i else None)
    _letters_back(net, w, g, letters, by_h)
    return g


def answers(net: Chain, w: Tensor, x: Tensor) -> Tensor:
    """What S models w [S, D] answer, each on its own rows x [S, B, T]: [S, B, letters], or [S, B, T,
    letters].
    """
    s, b, t = x.shape
    h = None
    for cell in net.cells:
        h = _walk(cell, w, _of_letters(net, w, _by_moment(x)) if h is None else _from_below(cell, w, h), b).h
    assert h is not None
    return _last(net, w, h).view(s, t, b, -1).transpose(1, 2) if net.every else _last(net, w, h[:, -b:])


def _by_moment(x: Tensor) -> Tensor:
    """[S, B, T] → [S, T·B]: the rows of a moment side by side."""
    return x.transpose(1, 2).reshape(len(x), -1)


def _last(net: Chain, w: Tensor, h: Tensor) -> Tensor:
    return torch.baddbmm(w[:, None, net.bias], h, _part(w, net.weight, net.letters).mT)


def _shares(net: Chain, y: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
    """The labels as the answers stand, and the share of the mean loss that each of them has; one of −1 has
    none.
    """
    share = live / live.sum(1, keepdim=True).clamp(min=1)
    if not net.every:
        return y, share
    there = y >= 0
    return _by_moment(y.clamp(min=0)), _by_moment(there * (share / there.sum(2).clamp(min=1))[..., None])


def _of_letters(net: Chain, w: Tensor, letters: Tensor) -> Tensor:
    """[S, T·B, 4·hidden]: what the first layer reads, looked up in a table of what it makes of each
    letter.
    """
    cell = net.cells[0]
    table = _from_below(cell, w, _part(w, net.embedding, net.letters))
    return table.gather(1, letters[..., None].expand(-1, -1, table.shape[2]))


def _letters_back(net: Chain, w: Tensor, g: Tensor, letters: Tensor, by_gates: Tensor) -> None:
    """The embedding's gradient and that of the first layer's weights for it. As a product, because adding up
    on a GPU where letters meet has no fixed order.
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
    """One matrix of every client. For a GPU a copy: its faster products take numbers four at a time, and in
    the flat vectors few matrices begin at a multiple of four. Where all clients still share one vector there
    is one matrix, and nothing to copy.
    """
    part = w[:, at].view(len(w), rows, -1)
    return part.clone(memory_format=torch.contiguous_format) if w.is_cuda and w.stride(0) else part


class _Walked:
    """One layer's way through time, and what its way back needs. `read` is what it reads from below, [S, T·B,
    4·hidden], and becomes its gates: in, forget, new and out.
    """

    def __init__(self, cell: Cell, w: Tensor, read: Tensor, b: int):
        self.cell, self.b = cell, b
        self.weight = _part(w, cell.before, 4 * cell.hidden)
        self.h = self._forth(read)

    def _forth(self, read: Tensor) -> Tensor:
        self.gates, n = read, self.cell.hidden
        self.c, self.tanh_c, h = (read.new_empty(*read.shape[:2], n) for _ in range(3))
        before = None
        for at in self._moments():
            gates, c = read[:, at], self.c[:, at]
            if before is not None:
                gates.baddbmm_(h[:, before], self.weight.mT)
            gates[..., : 2 * n].sigmoid_()
            gates[..., 2 * n : 3 * n].tanh_()
            gates[..., 3 * n :].sigmoid_()
            into, forget, new, out = gates.split(n, -1)
            torch.mul(into, new, out=c)
            if before is not None:
                c.addcmul_(forget, self.c[:, before])
            torch.tanh(c, out=self.tanh_c[:, at])
            torch.mul(out, self.tanh_c[:, at], out=h[:, at])
            before = at
        return h

    def _moments(self) -> list[slice]:
        return [slice(i, i + self.b) for i in range(0, self.gates.shape[1], self.b)]

    def _by_gates(self, by_h: Tensor) -> Tensor:
        b, n = self.b, self.cell.hidden
        into, forget, new, out = self.gates.split(n, -1)
        by_gates = (
            self.gates - self.gates * self.gates
        )  # first how steep each gate is (the new one is a tanh), times what it is multiplied with
        by_gates[..., 2 * n : 3 * n] = 1 - new * new
        by_gates[..., :n] *= new
        by_gates[:, b:, n : 2 * n] *= self.c[:, :-b]
        by_gates[:, :b, n : 2 * n] = 0  # there was nothing to forget
        by_gates[..., 2 * n : 3 * n] *= into
        by_gates[..., 3 * n :] *= self.tanh_c
        by_c = out * (1 - self.tanh_c * self.tanh_c)
        later = None
        for at in reversed(self._moments()):
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
        """From the gradient by what came out, [S, T·B, hidden], which it may write into, to that by what came
        from below; of the first layer, to that by what it read.
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


class _Fused(_Walked):
    """The same with the kernels of torch's own LSTM on a GPU, which take all gates of a moment at once: four
    launches a moment there and back, and not thirteen. They want a moment's rows side by side, so what goes
    through time is laid out anew before and after.
    """

    def _forth(self, read: Tensor) -> Tensor:
        s, b, n = len(read), self.b, self.cell.hidden
        moments = read.view(s, -1, b, 4 * n).transpose(0, 1).reshape(-1, s * b, 4 * n)
        before, c = torch.zeros_like(moments[0]), read.new_zeros(s * b, n)
        h: list[Tensor] = []
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []  # c before a moment and after it, and the gates
        for moment in moments:
            if h:
                before = torch.bmm(h[-1], self.weight.mT).view(s * b, 4 * n)
            out, after, gates = _CELL(moment, before, c)
            self.kept.append((c, after, gates))
            h.append(out.view(s, b, n))
            c = after
        return torch.stack(h, 1).view(s, -1, n)

    def _by_gates(self, by_h: Tensor) -> Tensor:
        s, b, n = len(by_h), self.b, self.cell.hidden
        dh, dc, out = by_h.view(s, -1, b, n).transpose(0, 1).contiguous(), None, []
        for t in reversed(range(len(self.kept))):
            by_gates, dc, _ = _CELL_BACK(dh[t].view(s * b, n), dc, *self.kept[t], False)
            out.append(by_gates.view(s, b, 4 * n))
            if t:
                dh[t - 1].baddbmm_(out[-1], self.weight)
        return torch.stack(out[::-1], 1).view(s, -1, 4 * n)


# not a part of torch's public interface: where they are gone, the long way is taken
_CELL: Any = getattr(torch.ops.aten, "_thnn_fused_lstm_cell", None)
_CELL_BACK: Any = getattr(torch.ops.aten, "_thnn_fused_lstm_cell_backward_impl", None)


def _walk(cell: Cell, w: Tensor, read: Tensor, b: int) -> _Walked:
    return (_Fused if w.is_cuda and _CELL and _CELL_BACK else _Walked)(cell, w, read, b)
