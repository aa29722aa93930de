"""Local search over a partition into classes, as long as the loss decreases.

A class costs size × share of its node. There are three moves, most expensive classes first; each class is
changed at most once per round:
  dissolve  the members of a class move to the classes where they increase the loss least;
  move      a member of a class with more than k rows moves to a cheaper class;
  split     a class of 2k rows or more becomes two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .forest import Forest, as_node

CHUNK = 512  # members compared with every class at once
MIN_GAIN = 2e-3  # relative decrease of the loss below which another round is not worth its time
CHEAP = 0.6  # members of classes below this part of the average price have little to gain
MAX_RISE = 3  # a move that costs more than this many times the member's price is never worth it


@dataclass
class Partition:
    """Classes under construction: nodes as an array for distances, members as lists."""

    array: np.ndarray  # [fused columns, capacity]
    sizes: np.ndarray
    prices: np.ndarray  # share of the domain a row of the class loses, over all columns
    members: list[list[int]]

    @classmethod
    def empty(cls, columns: int, capacity: int) -> Partition:
        sizes, prices = np.zeros(capacity, np.float32), np.zeros(capacity, np.float32)
        return cls(np.zeros((columns, capacity), np.intp), sizes, prices, [])

    @property
    def number(self) -> int:
        return len(self.members)

    def node(self, i: int) -> tuple[int, ...]:
        return as_node(self.array[:, i])

    @property
    def cost(self) -> float:
        return float((self.sizes[: self.number] * self.prices[: self.number]).sum())

    def add(self, members: list[int], node: tuple[int, ...], size: float, price: float) -> None:
        i = self.number
        self.members.append(members)
        self.array[:, i], self.sizes[i], self.prices[i] = node, size, price

    def weigh(self, forest: Forest, node: tuple[int, ...], size: float) -> tuple[np.ndarray, np.ndarray]:
        """(price of each class joined with this node, increase of the loss)."""
        n = self.number
        joined = forest.shares(node, self.array[:, :n])
        return joined, joined * (self.sizes[:n] + size) - self.prices[:n] * self.sizes[:n]

    def put(
        self, forest: Forest, i: int, member: int, size: float, node: tuple[int, ...], price: float
    ) -> None:
        """Add a member to class i."""
        self.members[i].append(member)
        self.array[:, i] = forest.join(self.node(i), node)
        self.sizes[i] += size
        self.prices[i] = price

    def reset(
        self, forest: Forest, i: int, members: list[int], nodes: np.ndarray, counts: np.ndarray
    ) -> None:
        """Replace the members of class i."""
        node = forest.span(members, nodes)
        self.members[i] = members
        self.array[:, i], self.sizes[i], self.prices[i] = node, counts[members].sum(), forest.share(node)

    def remove(self, dissolved: set[int]) -> None:
        keep = [i for i in range(self.number) if i not in dissolved]
        n = len(keep)
        self.array[:, :n] = self.array[:, keep]
        self.sizes[:n], self.prices[:n] = self.sizes[keep], self.prices[keep]
        self.members = [self.members[i] for i in keep]


def improve(
    forest: Forest, nodes: np.ndarray, counts: np.ndarray, partition: Partition, k: int, rounds: int
) -> None:
    """Improve the partition in place."""
    for _ in range(rounds):
        before = partition.cost
        _run_round(forest, nodes, counts, partition, k)
        if before - partition.cost < MIN_GAIN * before:
            break


def _find_targets(
    forest: Forest,
    nodes: np.ndarray,
    counts: np.ndarray,
    partition: Partition,
    candidates: np.ndarray,
    home: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(the other class where each candidate increases the loss least, the increase)."""
    n = partition.number
    target, rise = np.zeros(len(candidates), np.int64), np.zeros(len(candidates), np.float32)
    sizes, paid = partition.sizes[:n], partition.prices[:n] * partition.sizes[:n]
    for low in range(0, len(candidates), CHUNK):
        chunk = candidates[low : low + CHUNK]
        joined = np.zeros((len(chunk), n), np.float32)
        for f, members, classes in zip(forest.fused, nodes[:, chunk], partition.array[:, :n]):
            distinct, which = np.unique(members, return_inverse=True)
            joined += np.stack([f.row(int(a))[classes] for a in distinct])[which]
        joined *= sizes + counts[chunk][:, None]
        joined -= paid
        joined[np.arange(len(chunk)), home[chunk]] = np.inf
        target[low : low + CHUNK] = joined.argmin(axis=1)
        rise[low : low + CHUNK] = joined[np.arange(len(chunk)), target[low : low + CHUNK]]
    return target, rise


def _run_round(forest: Forest, nodes: np.ndarray, counts: np.ndarray, partition: Partition, k: int) -> None:
    n = partition.number
    if n < 2:
        return
    home = np.zeros(len(counts), np.int64)
    for i, members in enumerate(partition.members):
        home[members] = i
    sizes, prices = partition.sizes, partition.prices  # changed in place below
    is_expensive = prices[:n] >= CHEAP * float(np.average(prices[:n], weights=sizes[:n]))
    candidates = np.flatnonzero(is_expensive[home])
    target, rise = _find_targets(forest, nodes, counts, partition, candidates, home)
    position = np.full(len(counts), -1, np.int64)
    position[candidates] = np.arange(len(candidates))
    is_changed, dissolved = np.zeros(n, bool), set()
    paid = prices[:n] * sizes[:n]
    np.add.at(total := np.zeros(n), home[candidates], rise)
    cost = np.where(is_expensive, total, np.inf)  # of dissolving each class
    for i in map(int, np.argsort(cost - paid, kind="stable")):  # dissolve
        if cost[i] >= paid[i]:
            break
        members = partition.members[i]
        targets = target[position[members]]
        if is_changed[i] or is_changed[targets].any() or len(set(targets.tolist())) < len(members):
            continue
        for m, into in zip(members, map(int, targets)):
            node = as_node(nodes[:, m])
            price = forest.share(forest.join(partition.node(into), node))
            partition.put(forest, into, m, float(counts[m]), node, price)
            is_changed[into] = True
        is_changed[i] = True
        dissolved.add(i)
    gain = rise - prices[home[candidates]] * counts[candidates]
    for c in map(int, np.argsort(gain, kind="stable")):  # move
        m = int(candidates[c])
        a, b = int(home[m]), int(target[c])
        too_small = sizes[a] - counts[m] < k
        if is_changed[a] or is_changed[b] or too_small or rise[c] > MAX_RISE * prices[a] * counts[m]:
            continue
        rest = [x for x in partition.members[a] if x != m]
        left = forest.share(forest.span(rest, nodes)) * float(sizes[a] - counts[m])
        if left + float(rise[c]) < float(paid[a]) - 1e-6:
            partition.reset(forest, a, rest, nodes, counts)
            partition.reset(forest, b, [*partition.members[b], m], nodes, counts)
            is_changed[a] = is_changed[b] = True
    partition.remove(dissolved)
    for i in range(partition.number):
        if sizes[i] >= 2 * k and prices[i] > 0 and partition.number < partition.array.shape[1]:
            _split(forest, nodes, counts, partition, i, k)


def _split(
    forest: Forest, nodes: np.ndarray, counts: np.ndarray, partition: Partition, i: int, k: int
) -> None:
    """Start two classes from two distant members; assign the others where they cost least.

    The smaller class grows first, until it has k rows.
    """
    members = partition.members[i]
    inside = nodes[:, members]
    first = int(np.argmax(forest.shares(as_node(inside[:, 0]), inside)))
    second = int(np.argmax(forest.shares(as_node(inside[:, first]), inside)))
    if first == second:
        return
    sides = [[first], [second]]
    spans = [as_node(inside[:, s]) for s in (first, second)]
    weight = counts[members]
    sizes = [float(weight[first]), float(weight[second])]
    free = [x for x in range(len(members)) if x not in (first, second)]
    while free:
        best: tuple[float, int, int] | None = None
        for side in (0, 1) if min(sizes) >= k else (int(sizes[1] < sizes[0]),):
            joined = forest.shares(spans[side], inside[:, free])
            rise = joined * (sizes[side] + weight[free]) - forest.share(spans[side]) * sizes[side]
            x = int(np.argmin(rise))
            if best is None or rise[x] < best[0]:
                best = float(rise[x]), side, free[x]
        assert best is not None
        _, side, x = best
        sides[side].append(x)
        spans[side] = forest.join(spans[side], as_node(inside[:, x]))
        sizes[side] += float(weight[x])
        free.remove(x)
    cost = sum(forest.share(spans[s]) * sizes[s] for s in (0, 1))
    if min(sizes) >= k and cost < float(partition.prices[i] * partition.sizes[i]) - 1e-6:
        partition.reset(forest, i, [members[x] for x in sides[0]], nodes, counts)
        partition.add([members[x] for x in sides[1]], spans[1], sizes[1], forest.share(spans[1]))
