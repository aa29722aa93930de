"""Local recoding by clustering: rows that are near share a class, and a class shows in each column the lowest
word that covers it.

Greedy k-member clustering after Byun, Kamra, Bertino, Li: "Efficient k-Anonymization Using Clustering
Techniques", DASFAA 2007 (Algorithm Greedy_k_member_clustering), on the distinct combinations of
quasi-identifiers, with three changes that matter for the loss:
  seeds are taken from the most common to the rarest, not furthest first; a seed joins a finished class when
  that costs less than founding one (the paper does so only with the last fewer-than-k rows); then classes are
  improved: one is dissolved into others, a row moves, a class of 2k or more is split, as long as the loss
  falls.
Combinations of k rows or more are classes as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..parameters import real, whole
from .encoded import Encoded
from .forest import Forest
from .improve import Partition, improve
from .models import Classes, Model, held
from .mondrian import blocks
from .release import Release, Request, count, told, whole_fails


@dataclass(frozen=True)
class Cluster:
    """Classes of at least k near rows, each with its own levels. The loss minimised is the mean share of the
    domain (`metric="loss"`).
    """

    shortlist: int = whole(16, least=1, doc="nearest combinations a new class chooses its members from")
    patience: float = real(
        1.6, above=0, doc="how much dearer than a new class's price a place in an old one may be"
    )
    rounds: int = whole(12, least=0, doc="rounds of improvement at most")
    block: int = whole(
        20_000,
        least=100,
        doc="combinations clustered together: time grows with its square, so larger tables are cut first",
    )

    def run(self, table: Encoded, request: Request) -> Release:
        request.class_by_class("cluster")
        forest = Forest(table.columns)
        own = held(request.models, Classes(table, np.arange(len(table.codes)), len(table.codes))) & (
            table.counts > 0
        )
        rest = np.flatnonzero(~own & (table.counts > 0))
        trace = [
            told(
                f"{count(int(table.counts[own].sum()))} in {count(int(own.sum()), 'combination')} are "
                "anonymous as they are; "
                f"{count(int(table.counts[rest].sum()))} in {count(len(rest), 'combination')} are not.",
                anonymous=int(table.counts[own].sum()),
                others=int(table.counts[rest].sum()),
            )
        ]
        label = np.full(len(table.codes), -1, np.int64)
        label[own] = np.arange(int(own.sum()))
        records = [tuple(int(x) for x in column) for column in forest.nodes(table.codes[own]).T]
        for part in blocks(table, rest, self.block) if len(rest) else []:
            made = self._block(table, forest, part, request.k)
            for members, node in zip(made.members, made.nodes):
                label[part[members]] = len(records)
                records.append(node)
        records = _until_held(table, forest, label, records, request.models)
        share = np.array([forest.share(node) for node in records])
        loss = float(share[label] @ np.where(label >= 0, table.counts, 0)) / (table.rows * len(table.columns))
        trace.append(
            told(
                f"They are clustered: {count(len(records), 'class')} in all, loss {loss:.4f}.",
                classes=len(records),
                loss=loss,
            )
        )
        record = np.where(table.inverse >= 0, label[table.inverse], -1)
        cells = forest.cells(np.array(records).T)
        levels: list[int | None] = [
            0 if not tree.level[c].any() else None for tree, c in zip(forest.trees, cells)
        ]
        return Release(record, cells, [tree.words for tree in forest.trees], loss, levels, trace)

    def _block(self, table: Encoded, forest: Forest, part: np.ndarray, k: int) -> Partition:
        nodes, counts = forest.nodes(table.codes[part]), table.counts[part].astype(np.float32)
        rarity = np.zeros(len(part))
        for j, c in enumerate(table.columns):
            often = np.bincount(table.codes[:, j], table.counts, len(c.hierarchy))
            rarity -= np.log(np.maximum(often, 1))[table.codes[part, j]]
        made = self._greedy(forest, nodes, counts, np.argsort(rarity, kind="stable"), k)
        return improve(forest, nodes, counts, made, k, self.rounds)

    def _greedy(
        self, forest: Forest, nodes: np.ndarray, counts: np.ndarray, seeds: np.ndarray, k: int
    ) -> Partition:
        made = Partition.empty(len(forest.fused), len(counts))
        free = np.ones(len(counts), bool)
        places, near_nodes = np.arange(len(counts)), nodes
        taken, reach = 0, 0.0
        for seed in map(int, seeds):
            if not free[seed]:
                continue
            if taken > len(places) // 8:  # drop who is taken from the arrays, now and then
                keep = free[places]
                places, near_nodes, taken = places[keep], np.ascontiguousarray(near_nodes[:, keep]), 0
            start = tuple(int(x) for x in nodes[:, seed])
            far = forest.shares(start, near_nodes)
            near, reach = self._nearest(far, free[places], self.shortlist + k, reach)
            near = places[near]
            near = near[near != seed]
            members, node, size, price = [seed], start, float(counts[seed]), 0.0
            offered, weight = nodes[:, near], counts[near]
            open_ = np.ones(len(near), bool)
            while size < k and open_.any():
                cost = forest.shares(node, offered)
                gain = np.where(open_, (cost * (size + weight) - price * size) / weight, np.inf)
                best = int(np.argmin(gain))
                open_[best] = False
                members.append(int(near[best]))
                size, price = size + float(weight[best]), float(cost[best])
                node = forest.join(node, tuple(int(x) for x in offered[:, best]))
            if made.number:
                joined, rises = made.dearer(forest, start, float(counts[seed]))
                into = int(np.argmin(rises))
                if size < k or rises[into] < self.patience * price * float(counts[seed]):
                    made.put(forest, into, seed, float(counts[seed]), start, float(joined[into]))
                    free[seed] = False
                    taken += 1
                    continue
            free[members] = False
            taken += len(members)
            made.add(members, node, size, price)
        return made

    def _nearest(
        self, far: np.ndarray, free: np.ndarray, wanted: int, reach: float
    ) -> tuple[np.ndarray, float]:
        """(the nearest of those who are free, how far they lie). The last answer's reach is tried first:
        mostly it saves ordering everybody.
        """
        within = np.flatnonzero((far <= reach) & free)
        if len(within) < wanted:
            far = np.where(free, far, np.inf)
            within = (
                np.argpartition(far, wanted)[: wanted + 1] if wanted + 1 < len(far) else np.arange(len(far))
            )
            within = within[free[within]]
            return within, float(far[within].max(initial=0.0))
        if len(within) > 8 * wanted:  # too far for this dense a place
            within = within[np.argpartition(far[within], wanted)[: wanted + 1]]
            reach = float(far[within].max())
        return within, reach


def _until_held(
    table: Encoded,
    forest: Forest,
    label: np.ndarray,
    records: list[tuple[int, ...]],
    models: tuple[Model, ...],
) -> list[tuple[int, ...]]:
    """Merge every class that fails a model with the one nearest to it, until none fails; if all are one and
    it fails, nothing can be published.
    """
    while True:
        there = label >= 0
        shifted = np.where(
            there, label, len(records)
        )  # combinations of the population alone: a class of their own, which nobody asks about
        fine = held(models, Classes(table, shifted, len(records) + 1))[: len(records)]
        failing = np.flatnonzero(~fine)
        if not len(failing):
            return records
        if len(records) == 1:
            raise whole_fails()
        nodes = np.array(records).T
        sizes = np.bincount(label[there], table.counts[there], len(records))
        prices = np.array([forest.share(node) for node in records])
        merged, gone = np.arange(len(records)), np.zeros(len(records), bool)
        for a in map(int, failing):
            if gone[a]:
                continue
            joined = forest.shares(records[a], nodes)
            rise = joined * (sizes + sizes[a]) - prices * sizes
            rise[a] = np.inf
            rise[gone] = np.inf
            b = int(np.argmin(rise))
            if not np.isfinite(rise[b]):
                break
            gone[a] = True
            merged[merged == a] = b
            records[b] = forest.join(records[a], records[b])
            nodes[:, b], sizes[b], prices[b] = records[b], sizes[b] + sizes[a], float(joined[b])
        new = np.cumsum(~gone) - 1
        label[there] = new[merged[label[there]]]
        records = [r for r, lost in zip(records, gone) if not lost]
