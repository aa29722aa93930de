"""Products of two shared factors that were masked once each, for the trees of `shared_trees.py`.

    f = x − a and g = y − b are open, a and b shared:   [x ∘ y] = [a ∘ b] + f ∘ [b] + [a] ∘ g + f ∘ g

Nothing is opened for the product itself; the dealer knows a and b and sends [a ∘ b] (`beaver.py` with both
factors fixed). Vectors of a tree's nodes are masked so that the mask of a right child is that of its parent
less that of its left sibling, as the vectors are: only left children are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .beaver import MaskedFactor, MaskedFactors
from .context import RingContext
from .dealer import Request, Values
from .tape import Parts

Factor = MaskedFactor[Tensor]


def join_children(parents: Tensor, left: Tensor) -> Tensor:
    """channels × nodes × …, of the left children → of both: child 2k is left, 2k + 1 right."""
    return torch.stack([left, parents - left], 2).flatten(1, 2)


def sum_cells(vectors: Tensor, cells: Tensor) -> Tensor:
    """channels × nodes × rows, rows × cells → channels × nodes × cells, of the root or the left children."""
    fresh = vectors if vectors.shape[1] == 1 else vectors[:, 0::2]
    return (fresh.flatten(0, 1) @ cells).reshape(*fresh.shape[:2], cells.shape[1])


def take_left(vectors: Tensor, sides: Tensor) -> Tensor:
    """channels × nodes × rows, nodes × rows → the rows of each node that go left."""
    return vectors * sides


def take_left_rows(vectors: Tensor, sides: Tensor) -> Tensor:
    """As `take_left`, of the last channel alone."""
    return vectors[-1:] * sides


def place_values(members: Tensor, values: Tensor) -> Tensor:
    """1 × leaves × rows, leaves → the value of each row's leaf."""
    return values @ members[0]


PRODUCTS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sums": sum_cells,
    "left": take_left,
    "left rows": take_left_rows,
    "values": place_values,
}


@dataclass(frozen=True)
class JointMask(Request):
    """The masks of several columns side by side become one; nothing is dealt."""

    name: str
    parts_of: tuple[str, ...]

    def uniform(self) -> Parts:
        return {}

    def derive(self, uniform: Values, masks: Values) -> Values:
        masks[self.name] = torch.cat([masks.pop(part) for part in self.parts_of], 1)
        return {}


@dataclass(frozen=True)
class NodeMask(Request):
    """A mask of left children; that of both children follows from the parents' (its last channels).

    The name stands for the newest mask: each tree has its own, and needs no older one.
    """

    name: str
    shape: tuple[int, ...]
    parent: str = ""

    def uniform(self) -> Parts:
        return {"b": (self.shape, torch.int64)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        b = uniform["b"]
        masks[self.name] = join_children(masks[self.parent][-len(b) :], b) if self.parent else b
        return {}


@dataclass(frozen=True)
class MaskProduct(Request):
    """[a ∘ b] of two named masks."""

    product: str
    x: str
    y: str
    shape: tuple[int, ...]

    def uniform(self) -> Parts:
        return {}

    def derived(self) -> Parts:
        return {"c": (self.shape, torch.int64)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {"c": PRODUCTS[self.product](masks[self.x], masks[self.y])}


async def mask_nodes(ctx: RingContext, name: str, values: Tensor, parent: Factor | None = None) -> Factor:
    """Mask a shared factor; with a parent it is the left children's, and the result that of both children."""
    above = "" if parent is None or parent.name is None else parent.name
    b = (await ctx.stock.take(NodeMask(name, tuple(values.shape), above)))["b"]
    (f,) = await ctx.open(MaskedFactors, values - b)
    if parent is not None:
        last = len(values)
        f, b = join_children(parent.f[-last:], f), join_children(parent.b[-last:], b)
    return MaskedFactor(name, f, b)


async def multiply(ctx: RingContext, product: str, x: Factor, y: Factor) -> Tensor:
    """[x ∘ y], not truncated and without an opening."""
    assert x.name is not None
    assert y.name is not None
    apply = PRODUCTS[product]
    shape = tuple(apply(*(torch.empty(t.f.shape, dtype=torch.int64, device="meta") for t in (x, y))).shape)
    c = (await ctx.stock.take(MaskProduct(product, x.name, y.name, shape)))["c"]
    if c.is_meta:
        return c
    return c + apply(x.f, y.b + y.f if ctx.first else y.b) + apply(x.b, y.f)
