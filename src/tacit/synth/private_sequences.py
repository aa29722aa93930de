"""Sequences of events with an (ε, δ) guarantee for entities: a patient with all visits, added or removed.

    model = synth.PrivateSequences(epsilon=1.0, max_events=20, max_gap="400D").fit(
        visits, entity="patient", time="date", attributes=["sex"],
        columns={"sex": synth.categorical(["F", "M"]), "date": synth.timestamp("2015", "2020", days=True),
                 "ward": synth.categorical(["A", "B"])},
    )
    model.sample(1000)

Everything is learned from two tables in which an entity has at most one row, so that noise for one row is
noise for one entity:

    start   attributes, number of events, time and columns of the first event
    step    one pair of consecutive events of each entity, chosen at random by the operating system:
            attributes, number of events, columns before, time in between, columns after

With one row for each entity, counts are smaller than with all of its events, and the noise is smaller by the
same factor: m rows of an entity need m times the noise. A step has columns that are known when it is drawn
(attributes, number, columns before). Each of the others depends on one other column, which may be a known
one; the pairs are selected and measured as by MST (`mst.py`). Half of ρ is for each table.

Domains, the attributes, the largest number of events and the longest time between two are declared. Later
events of an entity are left out, and longer times are clipped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from ..accounting.discrete import rho_of
from ..errors import BadParameter
from ..parameters import bad, check, nearest, real, whole
from ..parties.ledger import Ledger
from ..parties.secret import Secret
from ..people import check_unique_names, encode_person
from ..results import JobResult, encode_plain
from .columns import Column, continuous, integer
from .graphical import Model
from .marginals import Curator, Grid, Support, make_secret, marginal_spend, private_ledger
from .mst import mst
from .private import INSECURE_SEED, declared_table
from .table import Table

COUNT, GAP = "(events)", "(gap)"


@dataclass(frozen=True)
class Step:
    """A column given one other, as cells: probabilities [parent, column]."""

    parent: int
    column: int
    table: np.ndarray


@dataclass
class FittedSequences:
    """Everything that was released about the entities. It may be published."""

    entity: str
    time: Column
    attributes: Table
    events: Table
    names: list[str]  # of the published table, in order
    start: Model
    start_support: Support
    steps: list[Step]  # in an order in which parents come first
    step_support: Support
    ledger: Ledger = field(repr=False)


@dataclass(frozen=True)
class PrivateSequences(JobResult):
    """Learns events of entities over time under differential privacy, and samples new entities."""

    epsilon: float = real(1.0, above=0, doc="ε: how much one entity may change what is released")
    delta: float = real(
        1e-9,
        above=0,
        below=1,
        doc="δ: the probability that ε does not hold; choose it far below 1 / number of entities",
    )
    max_events: int = whole(20, least=2, most=1000, doc="most events of an entity; later ones are left out")
    # longest time between two events: a number, or text like "365D" for dates; None: the whole time
    max_gap: float | str | None = None
    bins: int = whole(16, least=2, most=1024, doc="cells of a numeric column, of equal width")
    steps: int = whole(300, least=1, doc="maximum steps of mirror descent")
    max_cells: int = whole(1_000_000, least=4, doc="maximum cells of a pair of columns")
    insecure_seed: int | None = whole(None, least=0, none=True, doc=INSECURE_SEED)

    title: ClassVar[str] = "A private generator of sequences"
    _fitted: ClassVar[FittedSequences | None] = None

    def fit(
        self,
        frame: pd.DataFrame,
        entity: str,
        time: str,
        *,
        columns: Table | Mapping[str, Column],
        attributes: Sequence[str] = (),
    ) -> Self:
        """Learn from one row per event, and return self.

        `columns` declares every column that is learned, with the time; others are left out. `attributes` are
        those that do not change within an entity; the first event decides. Events without an entity are left
        out.
        """
        check(self)
        _check_one_level(frame, entity)
        table = declared_table(columns, frame, "PrivateSequences")
        table.check_unspent("PrivateSequences: declare them from public knowledge.")
        check_unique_names(frame, "PrivateSequences")
        frame = frame.set_axis([str(c) for c in frame.columns], axis=1)
        clock = _find_time(table, entity, time, attributes)
        own = Table(tuple(c for c in table.modeled if c.name in attributes))
        events = Table(tuple(c for c in table.modeled if c.name not in attributes and c.name != time))
        # whose an event is must be known; a message about one event would reveal it
        if entity in frame:
            frame = frame[frame[entity].notna()].reset_index(drop=True)
        people = encode_person(frame, entity, [c.name for c in table.columns], "PrivateSequences")
        secret = make_secret(self.insecure_seed)
        grids = self._grids(own, events, clock)
        start, step = _entity_rows(frame, people, own, events, clock, grids, self.max_events, secret)
        rho = rho_of(self.epsilon, self.delta)
        first = Curator(start, grids.start.sizes, rho / 2, secret)
        model, support = mst(first, self.steps, self.max_cells)
        second = Curator(step, grids.step.sizes, rho / 2, secret)
        given = range(len(own.columns) + 1 + len(events.columns))
        chain, step_support = mst(second, self.steps, self.max_cells, given)
        total = replace(first, rho=rho, spent=first.spent + second.spent)
        spend = replace(
            marginal_spend("PrivateSequences (discrete Gaussian marginals)", self.epsilon, self.delta, total),
            unit=f"entity (all events of one {entity}, added or removed)",
        )
        names = [c for c in frame.columns if c == entity or c in {m.name for m in table.modeled}]
        fitted = FittedSequences(
            entity, clock, own, events, names, model, support, _order_steps(chain, given), step_support,
            private_ledger(spend, secret),
        )  # fmt: skip
        return self.restore(fitted)

    def _grids(self, own: Table, events: Table, clock: Column) -> _Grids:
        number = replace(integer(1, self.max_events), name=COUNT)
        gap = self._gap_column(clock)
        before = tuple(replace(c, name=f"before {c.name}") for c in events.columns)
        return _Grids(
            Grid((*own.columns, number, *events.columns, clock), self.bins),
            Grid((*own.columns, number, *before, gap, *events.columns), self.bins),
            _unit(clock, self._longest(clock)),
        )

    def _longest(self, clock: Column) -> float:
        """The longest time between two events, in seconds for dates."""
        if self.max_gap is None:
            return clock.ends[1] - clock.ends[0]
        try:
            longest = (
                pd.Timedelta(self.max_gap).total_seconds()
                if clock.kind == "datetime"
                else float(self.max_gap)
            )
        except (ValueError, TypeError):
            longest = math.nan
        if not (math.isfinite(longest) and longest > 0):
            like = "a time like '365D'" if clock.kind == "datetime" else "a number above 0"
            raise bad("PrivateSequences", "max_gap", self.max_gap, like)
        return longest

    def _gap_column(self, clock: Column) -> Column:
        """Times in between on a logarithmic scale: short ones are frequent."""
        longest = self._longest(clock)
        return replace(continuous(0.0, math.log1p(longest / _unit(clock, longest))), name=GAP)

    @property
    def fitted(self) -> FittedSequences:
        """Everything that was learned."""
        if self._fitted is None:
            raise BadParameter(
                "PrivateSequences is not fitted yet. Call fit(frame, entity, time, columns=…) first."
            )
        return self._fitted

    @property
    def ledger(self) -> Ledger:
        """The privacy spent by fitting; sampling spends nothing more."""
        return self.fitted.ledger

    @property
    def value(self) -> FittedSequences:
        return self.fitted

    def to_dict(self) -> dict[str, Any]:
        """Return parameters, columns and ledger as plain values."""
        fitted = self.fitted
        return encode_plain(
            {
                "parameters": asdict(self),
                "attributes": fitted.attributes.to_dict(),
                "events": fitted.events.to_dict(),
                "time": fitted.time.to_dict(),
                "ledger": fitted.ledger,
            }
        )

    def _text(self) -> str:
        return repr(self) if self._fitted is None else f"{self!r}\n{self.ledger}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text())}</pre>"

    def sample(self, n: int, seed: int = 0) -> pd.DataFrame:
        """Return the events of `n` synthetic entities, sorted by entity and time.

        A sequence ends early if its next event would be after the declared end of time.
        """
        fitted = self.fitted
        for name, value, least in (("n", n, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise bad("sample", name, value, f"a whole number of at least {least}")
        rng = np.random.default_rng([seed, 7])
        grids = self._grids(fitted.attributes, fitted.events, fitted.time)
        a, e = len(fitted.attributes.columns), len(fitted.events.columns)
        codes = fitted.start_support.expand(fitted.start.sample(n, rng), rng)
        numbers = grids.start.to_numbers(codes, rng)
        who, at, counts, now = np.arange(n), codes[:, a + 1 : a + 1 + e], numbers[:, a], numbers[:, -1]
        parts = [(who, fitted.time.fit_to_domain(now), numbers[:, a + 1 : a + 1 + e])]
        for rank in range(2, self.max_events + 1):
            going = counts[who] >= rank
            who, at, now = who[going], at[going], now[going]
            if not len(who):
                break
            gap, at, values = self._advance(grids, codes[who, : a + 1], at, rng)
            now = now + gap
            inside = now <= fitted.time.ends[1]
            who, at, now, values = who[inside], at[inside], now[inside], values[inside]
            parts.append((who, fitted.time.fit_to_domain(now), values))
        return self._join(parts, numbers[:, :a], n)

    def _advance(
        self, grids: _Grids, known: np.ndarray, before: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the time until the next event and its columns: seconds or numbers, cells, values."""
        fitted = self.fitted
        first = known.shape[1] + before.shape[1]
        place = fitted.step_support.place
        codes = np.zeros((len(before), len(place)), np.int64)
        codes[:, :first] = np.column_stack([place[j][c] for j, c in enumerate(np.hstack([known, before]).T)])
        for s in fitted.steps:
            edge = np.cumsum(s.table, axis=1)[codes[:, s.parent]]
            codes[:, s.column] = (
                (rng.random(len(codes))[:, None] * edge[:, -1:] >= edge)
                .sum(axis=1)
                .clip(max=edge.shape[1] - 1)
            )
        codes = fitted.step_support.expand(codes, rng)
        numbers = grids.step.to_numbers(codes, rng)
        return np.expm1(numbers[:, first]) * grids.unit, codes[:, first + 1 :], numbers[:, first + 1 :]

    def _join(
        self, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], attributes: np.ndarray, n: int
    ) -> pd.DataFrame:
        fitted = self.fitted
        who, now, values = (np.concatenate(p) for p in zip(*parts))
        order = np.lexsort((np.concatenate([np.full(len(p[0]), k) for k, p in enumerate(parts)]), now, who))
        who, now, values = who[order], now[order], values[order]
        events = (
            fitted.events.to_frame(fitted.events.fit_to_domain(values)) if values.shape[1] else pd.DataFrame()
        )
        own = (
            fitted.attributes.to_frame(fitted.attributes.fit_to_domain(attributes)).iloc[who]
            if attributes.shape[1]
            else pd.DataFrame(index=who)
        ).reset_index(drop=True)
        out = pd.concat([own, events], axis=1)
        out[fitted.entity] = who + 1
        out[fitted.time.name] = fitted.time.to_series(now)
        return out[fitted.names]

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write what was released to one file, for `load_private_sequences`."""
        from .saved_sequences import save_sequences

        return save_sequences(self, path, force)

    def restore(self, fitted: FittedSequences) -> Self:
        """Set what was learned elsewhere and return self."""
        object.__setattr__(self, "_fitted", fitted)  # frozen: parameters stay those of the fit
        return self


def _check_one_level(frame: object, entity: object) -> None:
    if isinstance(frame, pd.DataFrame) and isinstance(entity, str):
        return
    given = f"{len(frame)} tables" if isinstance(frame, Mapping) else f"entity={entity!r}"
    raise BadParameter(
        f"PrivateSequences: {given}; it learns one table of events and one column that tells whose they are, "
        "so that ε is for an entity with all of its events. A second level (such as drugs within the visits "
        "of patients) is not supported: noise for it is not derived. Keep the column of the upper level "
        "(patients) as `entity` and drop the other one, or use LinkedTables, which has no ε, and measure the "
        "risk with evaluate_linked."
    )


@dataclass(frozen=True)
class _Grids:
    start: Grid
    step: Grid
    unit: float  # of times in between


def _unit(clock: Column, longest: float) -> float:
    """The time from which on the scale of times in between is logarithmic."""
    return clock.step or longest / 1000


def _find_time(table: Table, entity: str, time: str, attributes: Sequence[str]) -> Column:
    names = [c.name for c in table.modeled]
    problems = [
        f"columns: {c!r} is not declared. {nearest(str(c), names)}"
        for c in (time, *attributes)
        if c not in names
    ]
    if entity in [c.name for c in table.columns]:
        problems.append(f"columns: {entity!r} tells whose an event is; it is not learned. Leave it out.")
    if time in attributes:
        problems.append(f"{time!r} is the time, and no attribute.")
    if not problems and not table.modeled[names.index(time)].is_number:
        problems.append(
            f"{time!r} is {table.modeled[names.index(time)].kind}; the time is a date or a number."
        )
    if problems:
        raise BadParameter("PrivateSequences: " + " ".join(problems))
    return replace(table.modeled[names.index(time)], missing=False)


def _entity_rows(
    frame: pd.DataFrame,
    people: np.ndarray,
    own: Table,
    events: Table,
    clock: Column,
    grids: _Grids,
    most: int,
    secret: Secret,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the two tables of cells, at most one row for each entity.

    Every event is read alone; one with an undeclared value or without a time is left out silently.
    """
    a, e = len(own.columns), len(events.columns)
    cells = Grid((*own.columns, *events.columns, clock), grids.start.bins).assign(frame)
    valid = (cells >= 0).all(axis=1)
    cells, people = cells[valid], people[valid]
    now = np.clip(clock.to_numbers_or_nan(frame[clock.name])[valid], *clock.ends)
    order = np.lexsort((now, people))
    cells, people, now = cells[order], people[order], now[order]
    counts = np.bincount(people, minlength=int(people.max()) + 1 if len(people) else 0)
    first = np.cumsum(counts) - counts
    counts, first = counts[counts > 0], first[counts > 0]
    number = np.minimum(counts, most)
    coded = _encode_one(grids.start, a, number)
    start = np.column_stack([cells[first, :a], coded, cells[first, a:]])
    long = np.flatnonzero(number >= 2)
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(secret.bytes(16), "big")))
    at = first[long] + rng.integers(0, number[long] - 1)  # the earlier event of a pair
    gap = np.log1p((now[at + 1] - now[at]) / grids.unit)
    gaps = _encode_one(grids.step, a + 1 + e, gap)
    step = np.column_stack(
        [cells[first[long], :a], coded[long], cells[at, a : a + e], gaps, cells[at + 1, a : a + e]]
    )
    return start, step


def _encode_one(grid: Grid, j: int, values: np.ndarray) -> np.ndarray:
    """Return the cells of one column of a grid."""
    column = grid.columns[j]
    return Grid((column,), grid.bins).assign(pd.DataFrame({column.name: values}))[:, 0]


def _order_steps(model: Model, given: Sequence[int]) -> list[Step]:
    """Direct the pairs of the tree away from the given columns."""
    reached = set(given)
    steps: list[Step] = []
    pairs = [c for c in model.tree.cliques if len(c) == 2]
    while True:
        edge = next(((a, b) for a, b in pairs if (a in reached) != (b in reached)), None)
        if edge is None:
            left = [j for j in range(len(model.sizes)) if j not in reached]
            if not left:
                return steps
            # a column whose pairs are all too large: it is independent
            steps.append(Step(0, left[0], np.tile(model.marginal((left[0],)), (model.sizes[0], 1))))
            reached.add(left[0])
            continue
        parent, column = edge if edge[0] in reached else edge[::-1]
        joint = model.marginal((parent, column))
        weight = joint.sum(axis=1, keepdims=True)
        alone = model.marginal((column,))[None]
        table = np.where(weight > 1e-12, joint / np.maximum(weight, 1e-12), alone)
        steps.append(Step(parent, column, table))
        reached.add(column)
