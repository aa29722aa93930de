"""Drawing the rows of one linked table (see `rows`): one child of every parent at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...errors import BadData
from ..constraints import row_keys
from ..generator import CHUNK, Generator
from .across import Place
from .given import Block, Context, count_column
from .learn import linked_context
from .lookups import Dealer
from .rows import RowModel

TRIES = 30  # draws of a row until it satisfies all constraints; afterwards it is left out
PARENT = ""  # stands for the parent among the tables of a key
MAX_LOST = 0.01  # share of the rows that may be left out, apart from those whose key would repeat


@dataclass
class SyntheticRows:
    """The drawn rows, sorted by parent and rank, in numbers."""

    x: np.ndarray
    parent: np.ndarray
    rank: np.ndarray
    counts: np.ndarray  # children of each parent, as drawn
    links: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class DrawnTarget:
    """The synthetic rows of a table that others link to."""

    own: Context


@dataclass
class _Step:
    """Candidates for one row each."""

    x: np.ndarray
    gap: np.ndarray
    links: list[np.ndarray]
    valid: np.ndarray


class Drawing:
    """Draws children for the parents described by `base`, or `n` rows without parents."""

    def __init__(
        self,
        model: RowModel,
        generator: Generator,
        base: Context,
        above: Mapping[Place, np.ndarray],
        targets: Mapping[str, DrawnTarget],
        unique_key: tuple[list[str], list[str]] | None,
        has_parent: bool,
        rng: np.random.Generator,
    ):
        self.model, self.generator, self.rng = model, generator, rng
        self.base, self.above, self.targets, self.unique_key = base, above, targets, unique_key
        n, c = len(base.x), len(model.columns)
        self.counts = np.ones(n, np.int64)
        if has_parent:
            block = model.blocks["count"]
            assert block is not None
            self.counts = self._draw_until_valid(block, base.x)[:, 0].astype(np.int64)
            drawn = self.counts.astype(np.float64)[:, None]
            high = float(block.table.columns[0].high or 0)
            self.base = base.beside(Context((count_column("(length)", high),), drawn))
        self.dealers = [self._make_dealer(i) for i in range(len(model.links))]
        self.seen = np.zeros(n, np.int64)
        self.previous, self.before, self.total, self.number = (np.full((n, c), np.nan) for _ in range(4))
        self.total[:], self.number[:] = 0.0, 0.0
        self.gap = np.full(n, np.nan)
        self.used: set[bytes] = set()
        self.lost = 0

    def _draw_until_valid(self, block: Block, context: np.ndarray) -> np.ndarray:
        x, valid = block.draw(self.generator, context, self.rng)
        for _ in range(TRIES):
            again = np.flatnonzero(~valid)
            if not len(again):
                break
            x[again], valid[again] = block.draw(self.generator, context[again], self.rng)
        return x

    def _make_dealer(self, i: int) -> Dealer:
        link, block = self.model.links[i], self.model.blocks[f"count.{i}"]
        own = self.targets[link.table].own
        assert block is not None
        counts = self._draw_until_valid(block, own.x)[:, 0].astype(np.int64)
        return Dealer(link.cells.assign(own.x), counts, link.cells.size, self.rng)

    def run(self) -> SyntheticRows:
        """Draw all rows."""
        parts: list[tuple[np.ndarray, _Step]] = []
        for k in range(int(self.counts.max(initial=0))):
            active = np.flatnonzero(self.counts > k)
            starting = (self.seen[active] == 0) | (not self.model.has_next)
            for phase, rows in (("first", active[starting]), ("next", active[~starting])):
                for first in range(0, len(rows), CHUNK):
                    parts += self._draw_valid(phase, rows[first : first + CHUNK])
        c = len(self.model.columns)
        parent = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in parts)])
        x = np.concatenate([np.zeros((0, c)), *(s.x for _, s in parts)])
        links = {
            link.table: np.concatenate([np.zeros(0, np.int64), *(s.links[i] for _, s in parts)])
            for i, link in enumerate(self.model.links)
        }
        wanted = int(self.counts.sum())
        if self.lost > MAX_LOST * wanted:
            raise BadData(
                f"LinkedTables: {self.lost:,} of {wanted:,} rows of {self.model.name} satisfy the "
                f"constraints in none of {TRIES} draws. Relax the constraints of this table, or correct the "
                "rows that it is compared with."
            )
        keys: list[np.ndarray] = [np.arange(len(parent))]
        j = self.model.time_index
        if j is not None and not self.model.has_next:
            keys.append(x[:, j])
        order = np.lexsort((*keys, parent))
        parent, x = parent[order], x[order]
        counts = np.bincount(parent, minlength=len(self.counts))
        rank = np.arange(len(parent)) - (np.cumsum(counts) - counts)[parent]
        return SyntheticRows(x, parent, rank, self.counts, {t: link[order] for t, link in links.items()})

    def _draw_valid(self, phase: str, rows: np.ndarray) -> list[tuple[np.ndarray, _Step]]:
        parts = []
        for attempt in range(TRIES):
            step = self._draw_once(phase, rows, last=attempt == TRIES - 1)
            fits = step.valid
            repeated = self._find_repeats(rows, step, fits)
            accepted = np.flatnonzero(fits & ~repeated)
            taken = _Step(
                step.x[accepted], step.gap[accepted], [k[accepted] for k in step.links], fits[accepted]
            )
            self._remember(rows[accepted], taken)
            parts.append((rows[accepted], taken))
            left = np.flatnonzero(~fits | repeated)
            if not len(left):
                return parts
            rows, broken = rows[left], int((~fits).sum())
        self.lost += broken
        return parts

    def _find_repeats(self, rows: np.ndarray, step: _Step, fits: np.ndarray) -> np.ndarray:
        """Which rows would repeat a unique key; the keys of the others are noted as used."""
        repeated = np.zeros(len(rows), dtype=bool)
        sets: list[tuple[bytes, np.ndarray, np.ndarray]] = []
        for k, u in enumerate(self.model.unique):
            sets.append((bytes([k]), *u.keys(step.x, self.model.table)))
        if self.unique_key is not None:
            columns, linked = self.unique_key
            parts = [rows.astype(np.float64)] if PARENT in linked else []
            parts += [step.x[:, self.model.table.column_index(c)] for c in columns]
            order = [k.table for k in self.model.links]
            parts += [step.links[order.index(t)].astype(np.float64) for t in linked if t != PARENT]
            sets.append((b"key", row_keys(np.column_stack(parts)), np.ones(len(rows), dtype=bool)))
        if not sets:
            return repeated
        for i in np.flatnonzero(fits).tolist():
            keys = [mark + key[i].tobytes() for mark, key, counted in sets if counted[i]]
            repeated[i] = any(k in self.used for k in keys)
            if not repeated[i]:
                self.used.update(keys)
        return repeated

    def _remember(self, rows: np.ndarray, step: _Step) -> None:
        self.before[rows] = self.previous[rows]
        self.previous[rows] = step.x
        self.total[rows] += np.nan_to_num(step.x)
        self.number[rows] += ~np.isnan(step.x)
        self.gap[rows] = step.gap
        self.seen[rows] += 1

    def _draw_once(self, phase: str, rows: np.ndarray, last: bool) -> _Step:
        model = self.model
        context = self.base.take(rows)
        above = {place: values[rows] for place, values in self.above.items()}
        x, gap = np.full((len(rows), len(model.columns)), np.nan), np.full(len(rows), np.nan)
        valid = np.ones(len(rows), dtype=bool)
        if phase == "next":
            n = self.number[rows]
            mean = np.divide(self.total[rows], n, out=np.full(n.shape, np.nan), where=n > 0)
            context = context.beside(
                model.memory(
                    self.previous[rows],
                    self.before[rows],
                    mean,
                    self.seen[rows].astype(np.float64),
                    self.gap[rows],
                )
            )
        j = model.time_index
        if j is not None:
            if phase == "next" and model.chain is not None:
                x[:, j] = self.previous[rows, model.table.column_index(model.chain)]
                gap = x[:, j] - self.previous[rows, j]
            else:
                drawn, valid = self._block(f"{phase}.time").draw(self.generator, context.x, self.rng)
                x[:, j], gap, inside = self._place_in_time(phase, drawn[:, 0], rows, above)
                valid &= inside | last
            context = model.timed(context, x[:, j], gap if phase == "next" else None)
        links = []
        for i, link in enumerate(model.links):
            block = self._block(f"{phase}.link.{i}")
            codes, good = block.draw(self.generator, context.x, self.rng)
            values = np.array([*block.table.columns[0].values, -1], np.int64)
            cells = values[np.where(np.isnan(codes[:, 0]), len(values) - 1, codes[:, 0]).astype(np.int64)]
            links.append(self.dealers[i].deal(cells))
            valid &= good
            context = context.beside(linked_context(link.table, self.targets[link.table].own, links[-1]))
        rest = model.blocks.get(f"{phase}.rest")
        if rest is not None:
            x[:, model.rest], good = rest.draw(self.generator, context.x, self.rng)
            valid &= good
            x = model.from_offsets(x, above)
        return _Step(x, gap, links, valid & model.valid(x, above))

    def _block(self, name: str) -> Block:
        block = self.model.blocks[name]
        assert block is not None
        return block

    def _place_in_time(
        self, phase: str, drawn: np.ndarray, rows: np.ndarray, above: Mapping[Place, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the times, the times since the previous rows, and which times are within the domain."""
        model, j = self.model, self.model.time_index
        assert j is not None
        column = model.columns[j]
        offset = next((o for o in model.offsets if o.column == model.time), None)
        high = np.inf if column.high is None else column.high + (column.step or 0) / 2
        if phase == "next":
            base, sign = self.previous[rows, j], 1
        elif offset is not None:
            base, sign = model.reference(offset, self.previous[rows], above), offset.sign
        else:
            return drawn, np.full(len(rows), np.nan), np.ones(len(rows), dtype=bool)
        value = base + sign * drawn
        placed = model.publish(j, value, base, sign)
        gap = placed - base if phase == "next" else np.full(len(rows), np.nan)
        return placed, gap, value <= high
