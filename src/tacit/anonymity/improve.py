"""Local search over a partition into classes: what the greedy choice got wrong is put right, as long as the
loss falls.

A class costs size × share of its node. Three moves, the dearest classes first, each class touched once a
round:
  dissolve  a class's members go to the classes where they raise the loss least;
  move      a member of a class with more than k rows goes to a cheaper place;
  split     a class of 2k rows or more becomes two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .forest import Forest

CHUNK = 512  # members weighed against every class at once


@dataclass
class Partition:
    """Classes under construction: nodes as an array for distances, members as lists."""

    array: np.ndarray  # [fused columns, room]
    sizes: np.ndarray
    prices: np.ndarray  # share of the domain a row of the class loses, all columns together
    members: list[list[int]]

    @classmethod
    def empty(cls, columns: int, room: int) -> Partition:
        return cls(
            np.zeros((columns, room), np.intp), np.zeros(room, np.float32), np.zeros(room, np.float32), []
        )

    @property
    def number(self) -> int:
        return len(self.members)

    @property
    def nodes(self) -> list[tuple[int, ...]]:
        return [self.node(i) for i in range(self.number)]

    def node(self, i: int) -> tuple[int, ...]:
        return tuple(int(x) for x in self.array[:, i])

    @property
    def cost(self) -> float:
        return float((self.sizes[: self.number] * self.prices[: self.number]).sum())

    def add(self, members: list[int], node: tuple[int, ...], size: float, price: float) -> None:
        i = self.number
        self.members.append(members)
        self.array[:, i], self.sizes[i], self.prices[i] = node, size, price

    def dearer(self, forest: Forest, node: tuple[int, ...], size: float) -> tuple[np.ndarray, np.ndarray]:
        """(price of each class joined with this, by how much the loss rises)."""
        n = self.number
        joined = forest.shares(node, self.array[:, :n])
        return joined, joined * (self.sizes[:n] + size) - self.prices[:n] * self.sizes[:n]

    def put(
        self, forest: Forest, i: int, member: int, size: float, node: tuple[int, ...], price: float
    ) -> None:
        self.members[i].append(member)
        self.array[:, i] = forest.join(self.node(i), node)
        self.sizes[i] += size
        self.prices[i] = price

    def reset(
        self, forest: Forest, i: int, members: list[int], nodes: np.ndarray, counts: np.ndarray
    ) -> None:
        node = spanned(forest, members, nodes)
        self.members[i] = members
        self.array[:, i], self.sizes[i], self.prices[i] = node, counts[members].sum(), forest.share(node)

    def without(self, gone: set[int]) -> None:
        keep = [i for i in range(self.number) if i not in gone]
        n = len(keep)
        self.array[:, :n], self.sizes[:n], self.prices[:n] = (
            self.array[:, keep],
            self.sizes[keep],
            self.prices[keep],
        )
        self.members = [self.members[i] for i in keep]


def spanned(forest: Forest, members: list[int], nodes: np.ndarray) -> tuple[int, ...]:
    """The lowest node above all members."""
    node = tuple(int(x) for x in nodes[:, members[0]])
    for m in members[1:]:
        node = forest.join(node, tuple(int(x) for x in nodes[:, m]))
    return node


def improve(
    forest: Forest, nodes: np.ndarray, counts: np.ndarray, made: Partition, k: int, rounds: int
) -> Partition:
    for _ in range(rounds):
        before = made.cost
        _round(forest, nodes, counts, made, k)
        if (
            before - made.cost < 2e-3 * before
        ):  # a round that finds less than two thousandths is not worth its time
            break
    return made


def _places(
    forest: Forest,
    nodes: np.ndarray,
    counts: np.ndarray,
    made: Partition,
    wanted: np.ndarray,
    home: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(the class where each wanted member raises the loss least, other than its own; by how much)."""
    n = made.number
    into, rise = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.float32)
    sizes, paid = made.sizes[:n], made.prices[:n] * made.sizes[:n]
    for lo in range(0, len(wanted), CHUNK):
        chunk = wanted[lo : lo + CHUNK]
        joined = np.zeros((len(chunk), n), np.float32)
        for f, mine, theirs in zip(forest.fused, nodes[:, chunk], made.array[:, :n]):
            distinct, which = np.unique(mine, return_inverse=True)
            joined += np.stack([f.row(int(a))[theirs] for a in distinct])[which]
        joined *= sizes + counts[chunk][:, None]
        joined -= paid
        joined[np.arange(len(chunk)), home[chunk]] = np.inf
        into[lo : lo + CHUNK] = joined.argmin(axis=1)
        rise[lo : lo + CHUNK] = joined[np.arange(len(chunk)), into[lo : lo + CHUNK]]
    return into, rise


def _round(forest: Forest, nodes: np.ndarray, counts: np.ndarray, made: Partition, k: int) -> None:
    n = made.number
    if n < 2:
        return
    home = np.zeros(len(counts), np.int64)
    for i, members in enumerate(made.members):
        home[members] = i
    typical = float(np.average(made.prices[:n], weights=made.sizes[:n]))
    wanted = np.flatnonzero(
        made.prices[home] >= 0.6 * typical
    )  # members of cheap classes have little to gain
    into, rise = _places(forest, nodes, counts, made, wanted, home)
    at = np.full(len(counts), -1, np.int64)
    at[wanted] = np.arange(len(wanted))
    touched, gone = np.zeros(n, bool), set()
    paid = made.prices[:n] * made.sizes[:n]
    needed = np.full(n, np.inf)
    np.add.at(bill := np.zeros(n), home[wanted], rise)
    weighed = made.prices[:n] >= 0.6 * typical
    needed[weighed] = bill[weighed]
    for i in map(int, np.argsort(needed - paid, kind="stable")):  # dissolve
        if needed[i] >= paid[i]:
            break
        members = made.members[i]
        targets = into[at[members]]
        if touched[i] or touched[targets].any() or len(set(targets.tolist())) < len(members):
            continue
        for m, target in zip(members, map(int, targets)):
            node = tuple(int(x) for x in nodes[:, m])
            made.put(
                forest, target, m, float(counts[m]), node, forest.share(forest.join(made.node(target), node))
            )
            touched[target] = True
        touched[i] = True
        gone.add(i)
    for w in map(int, np.argsort(rise - made.prices[home[wanted]] * counts[wanted], kind="stable")):  # move
        m = int(wanted[w])
        a, b = int(home[m]), int(into[w])
        if (
            touched[a]
            or touched[b]
            or made.sizes[a] - counts[m] < k
            or rise[w] > 3 * made.prices[a] * counts[m]
        ):
            # too small to lend anybody, or a place so dear that the lender would have to gain as much again,
            # twice
            continue
        rest = [x for x in made.members[a] if x != m]
        left = forest.share(spanned(forest, rest, nodes)) * float(made.sizes[a] - counts[m])
        if left + float(rise[w]) < float(paid[a]) - 1e-6:
            made.reset(forest, a, rest, nodes, counts)
            made.reset(forest, b, [*made.members[b], m], nodes, counts)
            touched[a] = touched[b] = True
    made.without(gone)
    for i in range(made.number):
        if made.sizes[i] >= 2 * k and made.prices[i] > 0 and made.number < made.array.shape[1]:
            _split(forest, nodes, counts, made, i, k)


def _split(forest: Forest, nodes: np.ndarray, counts: np.ndarray, made: Partition, i: int, k: int) -> None:
    """Two far members found two classes; the others go where they cost least, the smaller side first until it
    has k.
    """
    members = made.members[i]
    mine = nodes[:, members]
    first = int(np.argmax(forest.shares(tuple(int(x) for x in mine[:, 0]), mine)))
    second = int(np.argmax(forest.shares(tuple(int(x) for x in mine[:, first]), mine)))
    if first == second:
        return
    sides = [[first], [second]]
    spans = [tuple(int(x) for x in mine[:, s]) for s in (first, second)]
    weight = counts[members]
    sizes = [float(weight[first]), float(weight[second])]
    free = [x for x in range(len(members)) if x not in (first, second)]
    while free:
        best: tuple[float, int, int] | None = None
        for side in (0, 1) if min(sizes) >= k else (int(sizes[1] < sizes[0]),):
            joined = forest.shares(spans[side], mine[:, free])
            rise = joined * (sizes[side] + weight[free]) - forest.share(spans[side]) * sizes[side]
            x = int(np.argmin(rise))
            if best is None or rise[x] < best[0]:
                best = float(rise[x]), side, free[x]
        assert best is not None
        _, side, x = best
        sides[side].append(x)
        spans[side] = forest.join(spans[side], tuple(int(v) for v in mine[:, x]))
        sizes[side] += float(weight[x])
        free.remove(x)
    cost = sum(forest.share(spans[s]) * sizes[s] for s in (0, 1))
    if min(sizes) >= k and cost < float(made.prices[i] * made.sizes[i]) - 1e-6:
        made.reset(forest, i, [members[x] for x in sides[0]], nodes, counts)
        made.add([members[x] for x in sides[1]], spans[1], sizes[1], forest.share(spans[1]))
