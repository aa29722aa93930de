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


@dataclass
class Targets:
    """The other class where each combination increases the loss least, kept from round to round.

    It stays the best one of the classes that have not changed; only changed ones are compared again.
    """

    target: np.ndarray  # −1: not known
    rise: np.ndarray
    changed: np.ndarray  # classes that have changed since

    @classmethod
    def empty(cls, combinations: int) -> Targets:
        unknown = np.full(combinations, -1, np.int64)
        return cls(unknown, np.zeros(combinations, np.float32), np.zeros(0, np.int64))

    def update(
        self,
        forest: Forest,
        nodes: np.ndarray,
        counts: np.ndarray,
        partition: Partition,
        candidates: np.ndarray,
        home: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(the target of each candidate, the increase, whether either or its own class is new)."""
        target, rise = self.target[candidates], self.rise[candidates]
        is_known = target >= 0
        is_new = ~is_known | np.isin(home[candidates], self.changed)
        old, new = candidates[is_known], candidates[~is_known]
        if len(old) and len(self.changed):
            other, cost = _find_targets(forest, nodes, counts, partition, old, home, self.changed)
            best, least = target[is_known], rise[is_known]
            is_better = (cost < least) | ((cost == least) & (other < best))
            target[is_known], rise[is_known] = np.where(is_better, other, best), np.minimum(cost, least)
            is_new[is_known] |= is_better
        if len(new):
            every = np.arange(partition.number)
            target[~is_known], rise[~is_known] = _find_targets(
                forest, nodes, counts, partition, new, home, every
            )
        self.target[:] = -1  # the others were not compared with what has changed
        self.target[candidates], self.rise[candidates] = target, rise
        return target, rise, is_new

    def renumber(self, is_changed: np.ndarray, dissolved: set[int]) -> None:
        """Forget targets that have changed; count classes without the dissolved ones."""
        is_left = np.ones(len(is_changed), bool)
        is_left[list(dissolved)] = False
        number = np.where(is_left & ~is_changed, np.cumsum(is_left) - 1, -1)
        self.target = np.where(self.target >= 0, number[self.target], -1)
        self.changed = np.flatnonzero(is_changed[is_left])

    def mark(self, classes: list[int]) -> None:
        """Note that these classes have changed too."""
        self.target[np.isin(self.target, classes)] = -1
        self.changed = np.union1d(self.changed, np.array(classes, np.int64))


def improve(
    forest: Forest, nodes: np.ndarray, counts: np.ndarray, partition: Partition, k: int, rounds: int
) -> None:
    """Improve the partition in place."""
    targets = Targets.empty(len(counts))
    for _ in range(rounds):
        before = partition.cost
        _run_round(forest, nodes, counts, partition, targets, k)
        if before - partition.cost < MIN_GAIN * before:
            break


def _find_targets(
    forest: Forest,
    nodes: np.ndarray,
    counts: np.ndarray,
    partition: Partition,
    candidates: np.ndarray,
    home: np.ndarray,
    classes: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(that of these classes where each candidate increases the loss least, the increase).

    Its own class does not count.
    """
    target, rise = np.zeros(len(candidates), np.int64), np.zeros(len(candidates), np.float32)
    sizes = partition.sizes[classes]
    paid = partition.prices[classes] * sizes
    place = np.full(partition.number, -1, np.int64)
    place[classes] = np.arange(len(classes))
    for low in range(0, len(candidates), CHUNK):
        chunk = candidates[low : low + CHUNK]
        joined = np.zeros((len(chunk), len(classes)), np.float32)
        for f, members, others in zip(forest.fused, nodes[:, chunk], partition.array[:, classes]):
            distinct, which = np.unique(members, return_inverse=True)
            joined += np.stack([f.row(int(a)).take(others, mode="wrap") for a in distinct])[which]
        joined *= sizes + counts[chunk][:, None]
        joined -= paid
        own = place[home[chunk]]
        joined[own >= 0, own[own >= 0]] = np.inf
        best = joined.argmin(axis=1)
        target[low : low + CHUNK] = classes[best]
        rise[low : low + CHUNK] = joined[np.arange(len(chunk)), best]
    return target, rise


def _run_round(
    forest: Forest, nodes: np.ndarray, counts: np.ndarray, partition: Partition, targets: Targets, k: int
) -> None:
    n = partition.number
    if n < 2:
        return
    home = np.zeros(len(counts), np.int64)
    for i, members in enumerate(partition.members):
        home[members] = i
    sizes, prices = partition.sizes, partition.prices  # changed in place below
    is_expensive = prices[:n] >= CHEAP * float(np.average(prices[:n], weights=sizes[:n]))
    candidates = np.flatnonzero(is_expensive[home])
    target, rise, is_new = targets.update(forest, nodes, counts, partition, candidates, home)
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
        homes = target[position[members]]
        if is_changed[i] or is_changed[homes].any() or len(set(homes.tolist())) < len(members):
            continue
        for m, into in zip(members, map(int, homes)):
            node = as_node(nodes[:, m])
            price = forest.share(forest.join(partition.node(into), node))
            partition.put(forest, into, m, float(counts[m]), node, price)
            is_changed[into] = True
        is_changed[i] = True
        dissolved.add(i)
    own = home[candidates]
    price = prices[own] * counts[candidates]
    # what did not move in the last round does not move now, if nothing about it has changed
    movable = is_new & (sizes[own] - counts[candidates] >= k) & (rise <= MAX_RISE * price)
    order = np.argsort(rise - price, kind="stable")
    for c in order[movable[order]].tolist():  # move
        m, a, b = int(candidates[c]), int(own[c]), int(target[c])
        if is_changed[a] or is_changed[b]:
            continue
        rest = [x for x in partition.members[a] if x != m]
        left = forest.share(forest.span(rest, nodes)) * float(sizes[a] - counts[m])
        if left + float(rise[c]) < float(paid[a]) - 1e-6:
            partition.reset(forest, a, rest, nodes, counts)
            partition.reset(forest, b, [*partition.members[b], m], nodes, counts)
            is_changed[a] = is_changed[b] = True
    partition.remove(dissolved)
    is_first = not len(targets.changed)
    targets.renumber(is_changed, dissolved)
    split = []
    # a class that could not be split in the last round and has not changed cannot be split now
    for i in range(partition.number) if is_first else targets.changed.tolist():
        if sizes[i] >= 2 * k and prices[i] > 0 and partition.number < partition.array.shape[1]:
            n = partition.number
            _split(forest, nodes, counts, partition, i, k)
            split += [i, n] if partition.number > n else []
    targets.mark(split)


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
