"""Tagged shares with the operators of plain ones, so that `functions.py` and `model.py` serve both.

A `TaggedShare` wraps a tagged tensor (`tagged.py`). Its `+ - *`, sums and views act on the share and on the
share of the tag alike, modulo p; its shape is that of the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import prime


class TaggedShare:
    def __init__(self, data: Tensor):
        self.data = data  # [2, …]: the share and the share of its tag

    @classmethod
    def join(cls, share: Tensor, tag: Tensor) -> TaggedShare:
        """A share and its tag; without numbers in a dry run, where torch would stack in Python."""
        return cls(share.new_empty((2, *share.shape)) if share.is_meta else torch.stack([share, tag]))

    @property
    def shape(self) -> torch.Size:
        return self.data.shape[1:]

    @property
    def device(self) -> torch.device:
        return self.data.device

    def dim(self) -> int:
        return self.data.dim() - 1

    def __len__(self) -> int:
        return self.data.shape[1]

    def __iter__(self) -> Iterator[TaggedShare]:
        return (self[i] for i in range(len(self)))

    # linear operations --------------------------------------------------------------------------------------

    def __add__(self, other: TaggedShare) -> TaggedShare:
        return TaggedShare(prime.add(*_broadcast(self, other)))

    def __sub__(self, other: TaggedShare) -> TaggedShare:
        return TaggedShare(prime.sub(*_broadcast(self, other)))

    def __neg__(self) -> TaggedShare:
        return TaggedShare(prime.sub(torch.zeros_like(self.data), self.data))

    def __mul__(self, public: int | Tensor) -> TaggedShare:
        code = prime.from_signed(torch.as_tensor(public, device=self.device))
        shape = torch.broadcast_shapes(self.shape, code.shape)
        return TaggedShare(prime.mul(_expand(self.data, shape), code.expand(2, *shape)))

    __rmul__ = __mul__

    def sum(self, dim: int, keepdim: bool = False) -> TaggedShare:
        total = prime.total(self.data, _behind(dim))
        return TaggedShare(total.unsqueeze(_behind(dim)) if keepdim else total)

    # views --------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> TaggedShare:
        return TaggedShare(self.data[(slice(None), *(index if isinstance(index, tuple) else (index,)))])

    def unsqueeze(self, dim: int) -> TaggedShare:
        return TaggedShare(self.data.unsqueeze(_behind(dim)))

    def movedim(self, source: int, to: int) -> TaggedShare:
        return TaggedShare(self.data.movedim(_behind(source), _behind(to)))

    def transpose(self, a: int, b: int) -> TaggedShare:
        return TaggedShare(self.data.transpose(_behind(a), _behind(b)))

    def permute(self, *dims: int) -> TaggedShare:
        return TaggedShare(self.data.permute(0, *(d % self.dim() + 1 for d in dims)))

    def flatten(self, start: int, end: int = -1) -> TaggedShare:
        return TaggedShare(self.data.flatten(_behind(start), _behind(end)))

    def unfold(self, dim: int, size: int, step: int) -> TaggedShare:
        return TaggedShare(self.data.unfold(_behind(dim), size, step))

    def reshape(self, *shape: Any) -> TaggedShare:
        return TaggedShare(
            self.data.reshape(2, *(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape))
        )

    def expand(self, *shape: int) -> TaggedShare:
        return TaggedShare(_expand(self.data, torch.Size(shape)))

    def expand_as(self, other: TaggedShare) -> TaggedShare:
        return TaggedShare(_expand(self.data, other.shape))

    @classmethod
    def cat(cls, shares: Sequence[TaggedShare], dim: int = 0) -> TaggedShare:
        return cls(torch.cat([x.data for x in shares], _behind(dim)))

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Support torch.cat, stack, zeros_like and zero padding; torch refuses anything else."""
        if function is torch.zeros_like:
            return cls(torch.zeros_like(args[0].data))
        if function is F.pad:
            return cls(F.pad(args[0].data, args[1]))
        if function is torch.cat:
            return cls.cat(*args)
        if function is torch.stack:
            return cls(torch.stack([x.data for x in args[0]], _behind(*args[1:]) if args[1:] else 1))
        return NotImplemented


def _behind(dim: int) -> int:
    """A dimension of the value, counted in the tagged tensor."""
    return dim if dim < 0 else dim + 1


def _expand(x: Tensor, shape: torch.Size) -> Tensor:
    """A tagged tensor, broadcast to the value's shape."""
    return x.reshape(2, *[1] * (len(shape) - x.dim() + 1), *x.shape[1:]).expand(2, *shape)


def _broadcast(x: TaggedShare, y: TaggedShare) -> tuple[Tensor, Tensor]:
    if x.shape == y.shape:  # by far the most frequent case
        return x.data, y.data
    shape = torch.broadcast_shapes(x.shape, y.shape)
    return _expand(x.data, shape), _expand(y.data, shape)
