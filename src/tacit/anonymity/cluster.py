"""Local recoding by clustering: similar rows share a class, which shows the lowest words that cover them.

Greedy k-member clustering after Byun, Kamra, Bertino, Li: "Efficient k-Anonymization Using Clustering
Techniques", DASFAA 2007 (Algorithm Greedy_k_member_clustering), on the distinct combinations of
quasi-identifiers, with three changes that reduce the loss:
  1. seeds are taken from the most common to the rarest, not furthest first;
  2. a seed joins an existing class if this costs less than starting one (the paper does so only with the last
     fewer-than-k rows);
  3. classes are then improved as long as the loss decreases: a class is dissolved into others, a row moves, a
     class of 2k or more rows is split.
Combinations of k rows or more are classes without change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..parameters import real, whole
from .forest import Forest, as_node
from .improve import Partition, improve
from .models import PrivacyModel, check_models
from .mondrian import cut_blocks
from .release import AnonymizationRequest, TableRelease, format_count, make_step, whole_table_fails
from .table import EncodedTable


@dataclass(frozen=True)
class Cluster:
    """Classes of at least k similar rows, each with its own levels.

    Minimizes the mean share of the domain (`metric="loss"`).
    """

    shortlist: int = whole(16, least=1, doc="nearest combinations a new class chooses its members from")
    patience: float = real(
        1.6, above=0, doc="maximum cost of joining an existing class, relative to starting a new one"
    )
    rounds: int = whole(12, least=0, doc="maximum number of improvement rounds")
    block: int = whole(
        20_000,
        least=100,
        doc="combinations clustered together; time grows with its square, so larger tables are cut first",
    )

    def run(self, table: EncodedTable, request: AnonymizationRequest) -> TableRelease:
        request.require_rows("cluster", table)
        request.require_per_class("cluster")
        forest = Forest(table.columns)
        alone = table.partition(np.arange(len(table.codes)), len(table.codes))
        is_anonymous = check_models(request.models, alone) & (table.counts > 0)
        rest = np.flatnonzero(~is_anonymous & (table.counts > 0))
        rows, others = int(table.counts[is_anonymous].sum()), int(table.counts[rest].sum())
        trace = [
            make_step(
                f"{format_count(rows)} in {format_count(int(is_anonymous.sum()), 'combination')} are "
                f"anonymous without change; {format_count(others)} in "
                f"{format_count(len(rest), 'combination')} are not.",
                anonymous=rows,
                others=others,
            )
        ]
        label = np.full(len(table.codes), -1, np.int64)
        label[is_anonymous] = np.arange(int(is_anonymous.sum()))
        records = [as_node(column) for column in forest.nodes(table.codes[is_anonymous]).T]
        for part in cut_blocks(table, rest, self.block) if len(rest) else []:
            partition = self._cluster(table, forest, part, request.k)
            for i, members in enumerate(partition.members):
                label[part[members]] = len(records)
                records.append(partition.node(i))
        records = _merge_until_satisfied(table, forest, label, records, request.models)
        share = np.array([forest.share(node) for node in records])
        loss = float(share[label] @ np.where(label >= 0, table.counts, 0)) / (table.rows * len(table.columns))
        trace.append(
            make_step(
                f"Clustering them gives {format_count(len(records), 'class')} in total; loss {loss:.4f}.",
                classes=len(records),
                loss=loss,
            )
        )
        record = np.where(table.inverse >= 0, label[table.inverse], -1)
        cells = forest.cells(np.array(records).T)
        levels: list[int | None] = [
            0 if not tree.level[c].any() else None for tree, c in zip(forest.trees, cells)
        ]
        return TableRelease(record, cells, [tree.words for tree in forest.trees], loss, levels, trace)

    def _cluster(self, table: EncodedTable, forest: Forest, part: np.ndarray, k: int) -> Partition:
        nodes, counts = forest.nodes(table.codes[part]), table.counts[part].astype(np.float32)
        rarity = np.zeros(len(part))
        for j, c in enumerate(table.columns):
            frequency = np.bincount(table.codes[:, j], table.counts, len(c.hierarchy))
            rarity -= np.log(np.maximum(frequency, 1))[table.codes[part, j]]
        partition = self._grow(forest, nodes, counts, np.argsort(rarity, kind="stable"), k)
        improve(forest, nodes, counts, partition, k, self.rounds)
        return partition

    def _grow(
        self, forest: Forest, nodes: np.ndarray, counts: np.ndarray, seeds: np.ndarray, k: int
    ) -> Partition:
        partition = Partition.empty(len(forest.fused), len(counts))
        is_free = np.ones(len(counts), bool)
        # the free combinations and some assigned since; where each of them is; which are still free
        places, free_nodes = np.arange(len(counts)), nodes
        at, is_left = np.arange(len(counts)), is_free.copy()
        taken, reach = 0, 0.0
        for seed in map(int, seeds):
            if not is_free[seed]:
                continue
            if taken > len(places) // 8:  # remove assigned combinations from the arrays, now and then
                places, free_nodes, taken = places[is_left], free_nodes[:, is_left], 0
                at[places] = np.arange(len(places))
                is_left = np.ones(len(places), bool)
            start = as_node(nodes[:, seed])
            distance = forest.shares(start, free_nodes)
            near, reach = self._find_nearest(distance, is_left, self.shortlist + k, reach)
            near = near[near != at[seed]]
            cost, near = distance[near], places[near]
            count, into, rise = float(counts[seed]), -1, np.inf
            if partition.number:
                joined, rises = partition.weigh(forest, start, count)
                into = int(rises.argmin())
                rise = float(rises[into])
            members, node, size, price = [seed], start, count, 0.0
            near_nodes, weight = nodes[:, near], counts[near]
            chosen: list[int] = []
            # the price of a class never falls as it grows: once joining another one costs less, it stays so
            while size < k and len(chosen) < len(near) and not rise < self.patience * price * count:
                if chosen:
                    cost = forest.shares(node, near_nodes)
                gain = (cost * (size + weight) - price * size) / weight
                gain[chosen] = np.inf
                best = int(gain.argmin())
                chosen.append(best)
                size, price = size + float(weight[best]), float(cost[best])
                node = forest.join(node, as_node(near_nodes[:, best]))
            if into >= 0 and (size < k or rise < self.patience * price * count):
                partition.put(forest, into, seed, count, start, float(joined[into]))
                is_free[seed] = is_left[at[seed]] = False
                taken += 1
                continue
            members.extend(near[chosen].tolist())
            is_free[members] = is_left[at[members]] = False
            taken += len(members)
            partition.add(members, node, size, price)
        return partition

    def _find_nearest(
        self, distance: np.ndarray, is_free: np.ndarray, number: int, reach: float
    ) -> tuple[np.ndarray, float]:
        """(the nearest free combinations, their largest distance).

        The reach of the last call is tried first: in most cases this avoids a partial sort.
        """
        within = np.flatnonzero((distance <= reach) & is_free)
        if len(within) < number:
            distance = np.where(is_free, distance, np.inf)
            if number + 1 < len(distance):
                within = np.argpartition(distance, number)[: number + 1]
            else:
                within = np.arange(len(distance))
            within = within[is_free[within]]
            return within, float(distance[within].max(initial=0.0))
        if len(within) > 8 * number:  # reach is too large for this dense a region
            within = within[np.argpartition(distance[within], number)[: number + 1]]
            reach = float(distance[within].max())
        return within, reach


def _merge_until_satisfied(
    table: EncodedTable,
    forest: Forest,
    label: np.ndarray,
    records: list[tuple[int, ...]],
    models: Sequence[PrivacyModel],
) -> list[tuple[int, ...]]:
    """Merge every class that violates a model with the nearest one, until none does; update `label` in place.

    Raise if the whole table as one class violates a model.
    """
    while True:
        classes = table.partition(label, len(records))  # −1: combinations that only the population has
        violating = np.flatnonzero(~check_models(models, classes))
        if not len(violating):
            return records
        if len(records) == 1:
            raise whole_table_fails()
        nodes, sizes = np.array(records).T, classes.sizes.astype(float)
        prices = np.array([forest.share(node) for node in records])
        merged, is_gone = np.arange(len(records)), np.zeros(len(records), bool)
        for a in map(int, violating):
            if is_gone[a]:
                continue
            joined = forest.shares(records[a], nodes)
            rise = joined * (sizes + sizes[a]) - prices * sizes
            rise[a] = np.inf
            rise[is_gone] = np.inf
            b = int(np.argmin(rise))
            if not np.isfinite(rise[b]):
                break
            is_gone[a] = True
            merged[merged == a] = b
            records[b] = forest.join(records[a], records[b])
            nodes[:, b], sizes[b], prices[b] = records[b], sizes[b] + sizes[a], float(joined[b])
        is_member = label >= 0
        label[is_member] = (np.cumsum(~is_gone) - 1)[merged[label[is_member]]]
        records = [r for r, gone in zip(records, is_gone) if not gone]
