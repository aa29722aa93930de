"""Parameters as one flat vector, and a module whose parameters are views of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .dense import Slot


def slots_of(named: Iterable[tuple[str, Tensor]]) -> list[Slot]:
    slots: list[Slot] = []
    for name, tensor in named:
        at = slots[-1].stop if slots else 0
        slots.append(Slot(name, at, at + tensor.numel(), tensor.shape, tensor.dtype))
    return slots


def join(slots: list[Slot], values: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat([values[s.name].reshape(-1).to(dtype) for s in slots])


def split(slots: list[Slot], flat: Tensor) -> dict[str, Tensor]:
    # one split: its gradient is one concatenation, while that of each slice would be a whole vector
    pieces = torch.split(flat, [s.stop - s.start for s in slots])
    return {s.name: piece.view(s.shape).to(s.dtype) for s, piece in zip(slots, pieces)}


class ThreadModules(threading.local):
    """A thread's own module, and a private task's per-example gradients of it."""

    ghost: Any = None
    is_checked = False  # whether its gradients were compared with one example at a time
    modules: dict[int, FlatModule] | None = None

    def of_streams(self) -> dict[int, FlatModule]:
        self.modules = {} if self.modules is None else self.modules
        return self.modules


class FlatModule:
    """A module whose parameters are views of one flat tensor."""

    def __init__(
        self, module: nn.Module, slots: list[Slot], buffer_slots: list[Slot], compiles: bool = False
    ):
        self.module, self.buffer_slots = module, buffer_slots
        self.forward: Callable[[Tensor], Tensor] = torch.compile(module) if compiles else module
        self.values = [p for p in module.parameters() if p.requires_grad]
        self.floats = [b for b in module.buffers() if b.is_floating_point()]
        self.flat = torch.empty(sum(s.stop - s.start for s in slots), device=self.values[0].device)
        for p, s in zip(self.values, slots):
            p.data = self.flat[s.start : s.stop].view(s.shape)

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient by all trainable parameters as one vector: zero for unused ones."""
        each = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(torch.autograd.grad(loss, self.values, allow_unused=True), self.values)
        ]
        if not self.flat.is_cuda:
            return torch.cat([g.reshape(-1) for g in each])
        flat = torch.empty_like(self.flat)  # on a GPU, one copy of all is four times as fast as `cat`
        parts = flat.split([g.numel() for g in each])
        torch._foreach_copy_([part.view_as(g) for part, g in zip(parts, each)], each)
        return flat

    def load(self, w: Tensor, buffers: Tensor | None) -> None:
        self.flat.copy_(w)
        if buffers is not None:
            for slot, buffer in zip(self.buffer_slots, self.floats):
                buffer.copy_(buffers[slot.start : slot.stop].view(slot.shape))

    def buffers(self, dtype: torch.dtype) -> Tensor:
        return torch.cat([b.reshape(-1).to(dtype) for b in self.floats])
