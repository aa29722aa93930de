"""Sequences of events: one table with several rows for each entity, in the order of time.

    model = Sequences().fit(visits, entity="patient_id", time="date")
    model.sample(1000)  # the visits of 1,000 new patients

Columns that never change within an entity are its attributes (sex, year of birth). They are learned first,
then the number of events, and then event by event the time since the last one and the other columns, given
the attributes and the events before: a special case of `LinkedTables`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd

from ...errors import BadData, BadParameter
from ...parameters import Kind, bad, nearest, part, whole
from ...parties.ledger import Ledger
from ...people import check_unique_names
from ...results import JobResult
from ..cart import Cart
from ..columns import Column
from ..constraints import Combinations, Constraint, Ordered, Range, Unique
from ..generator import Generator, Watch
from .evaluate import LinkedEvaluation, evaluate_linked
from .keys import ForeignKey, Key, PrimaryKey, fail
from .model import LEARNED_ROWS, LinkedTables, load_linked

ENTITIES, EVENTS = "entities", "events"


@dataclass(frozen=True)
class Sequences(JobResult):
    """Learns events of entities over time, and samples new entities with their events."""

    generator: Any = part(
        Cart(), of=Kind("a generator", {"Cart": Cart}, Generator, "Cart(…)"), doc="draws columns given others"
    )
    rows: int = whole(LEARNED_ROWS, least=100, doc="events from which columns are learned, at most")
    seed: int = whole(0, least=0, doc="random seed of the fit")

    title: ClassVar[str] = "A generator of sequences"
    _linked: ClassVar[LinkedTables | None] = None

    def fit(
        self,
        frame: pd.DataFrame,
        entity: str,
        time: str,
        *,
        attributes: Sequence[str] | None = None,
        columns: Mapping[str, str | Column] | None = None,
        constraints: Sequence[Constraint] = (),
        floor: int | None = None,
        dependencies: bool = True,
        watch: Watch | None = None,
    ) -> Self:
        """Learn from one row per event, and return self.

        `entity` is the column that tells whose an event is, `time` a date or a number. `attributes` are
        columns of entities (default: all that never change within one). `columns` overrides what is
        inferred. Values that fewer than `floor` entities have (default: 10) are neither learned nor sampled.
        """
        tables = split_events(frame, entity, time, attributes)
        own = set(tables[ENTITIES].columns) - {entity}
        unknown = [c for c in columns or {} if c not in tables[EVENTS] and c not in own]
        names = [str(c) for c in frame.columns]
        fail(
            [f"columns: there is no column {c!r}. {nearest(c, names)}" for c in unknown],
            "Sequences",
            BadParameter,
        )
        declared: dict[str, dict[str, str | Column]] = {ENTITIES: {}, EVENTS: {}}
        for name, column in (columns or {}).items():
            declared[ENTITIES if name in own else EVENTS][name] = column
        linked = LinkedTables(self.generator, self.rows, self.seed).fit(
            tables,
            event_keys(entity),
            {EVENTS: time},
            tables=declared,
            constraints=[_place(c, own) for c in constraints],
            floor=floor,
            dependencies=dependencies,
            watch=watch,
        )
        linked.fitted.flat[:] = names
        return self.restore(linked)

    def restore(self, linked: LinkedTables) -> Self:
        """Set what was learned elsewhere and return self."""
        object.__setattr__(self, "_linked", linked)
        return self

    @property
    def linked(self) -> LinkedTables:
        """The two linked tables, entities and events."""
        if self._linked is None:
            raise BadParameter("Sequences is not fitted yet. Call fit(frame, entity, time) first.")
        return self._linked

    @property
    def value(self) -> Any:
        return self.linked.value

    @property
    def ledger(self) -> Ledger:
        return self.linked.ledger

    def to_dict(self) -> dict[str, Any]:
        return self.linked.to_dict()

    def _text(self) -> str:
        return repr(self) if self._linked is None else f"{self!r}\n{self.linked.ledger}"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text())}</pre>"

    def sample(self, n: int, seed: int = 0) -> pd.DataFrame:
        """Return the events of `n` synthetic entities, sorted by entity and time."""
        tables = self.linked.sample(n, seed)
        key = self.linked.schema.primary[ENTITIES][0]
        joined = tables[EVENTS].merge(tables[ENTITIES], on=key, how="left", validate="many_to_one")
        return joined[self.linked.fitted.flat]

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write what was learned to one file, for `load_sequences`."""
        return self.linked.save(path, force=force)


def load_sequences(path: str | Path) -> Sequences:
    """Load what `Sequences.save` wrote; it samples the same events as before."""
    linked = load_linked(path)
    if not linked.fitted.flat:
        raise BadData(f"{path} contains linked tables, not sequences. Load it with load_linked.")
    return Sequences(linked.generator, linked.rows, linked.seed).restore(linked)


def event_keys(entity: str) -> list[Key]:
    """The keys of a table of entities and a table of their events."""
    return [PrimaryKey(ENTITIES, entity), ForeignKey(EVENTS, entity, ENTITIES)]


def split_events(
    frame: pd.DataFrame, entity: str, time: str, attributes: Sequence[str] | None = None
) -> dict[str, pd.DataFrame]:
    """Split one row per event into entities with their attributes, and events."""
    if not isinstance(frame, pd.DataFrame):
        raise BadData(f"Sequences: expected a pandas DataFrame, got {type(frame).__name__}.")
    check_unique_names(frame, "Sequences")
    frame = frame.set_axis([str(c) for c in frame.columns], axis=1)
    names = list(frame.columns)
    problems = [
        f"there is no column {c!r}. {nearest(str(c), names)}"
        for c in (entity, time, *(attributes or ()))
        if c not in names
    ]
    if entity == time or {entity, time} & set(attributes or ()):
        problems.append("entity, time and attributes must be different columns.")
    fail(problems, "Sequences", BadParameter)
    missing = int(frame[entity].isna().sum())
    if missing:
        problems.append(f"{missing:,} rows have no {entity!r}, so it is unknown whose they are. Drop them.")
    groups = frame.groupby(entity, sort=False)
    rest = [c for c in names if c not in (entity, time)]
    constant = [c for c in rest if (groups[c].nunique(dropna=False) <= 1).all()]
    problems += [
        f"{c!r} is not an attribute: it changes within {int((groups[c].nunique(dropna=False) > 1).sum()):,} "
        "entities. Leave it out of `attributes`."
        for c in attributes or ()
        if c not in constant
    ]
    if not problems and len(groups) == len(frame):
        problems.append(
            f"every {entity!r} has one row, so there are no sequences. Use Cart, or another entity."
        )
    fail(problems, "Sequences")
    own = constant if attributes is None else list(attributes)
    entities = frame[[entity, *own]].drop_duplicates(entity).reset_index(drop=True)
    return {ENTITIES: entities, EVENTS: frame.drop(columns=own)}


def evaluate_sequences(
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    entity: str,
    time: str,
    holdout: pd.DataFrame | None = None,
    *,
    attributes: Sequence[str] | None = None,
    columns: Mapping[str, str | Column] | None = None,
) -> LinkedEvaluation:
    """Compare synthetic events with the real ones: see `evaluate_linked`.

    `holdout` are the events of entities that were not learned from.
    """
    tables = split_events(real, entity, time, attributes)
    own = [c for c in tables[ENTITIES] if c != entity]
    if holdout is not None:
        both = set(real[entity]) & set(holdout[entity]) if entity in holdout else set()
        if both:
            raise bad(
                "evaluate_sequences",
                "holdout",
                f"a table with {len(both):,} entities of the real one",
                "the events of entities that were not learned from",
            )
    declared: dict[str, dict[str, str | Column]] = {ENTITIES: {}, EVENTS: {}}
    for name, column in (columns or {}).items():
        declared[ENTITIES if name in own else EVENTS][name] = column
    others = [None if f is None else split_events(f, entity, time, own) for f in (synthetic, holdout)]
    assert others[0] is not None
    return evaluate_linked(tables, others[0], event_keys(entity), {EVENTS: time}, others[1], tables=declared)


def _place(c: Constraint, own: set[str]) -> Constraint:
    """Name the table of every column of a constraint."""

    def name(column: str) -> str:
        return f"{ENTITIES if column in own else EVENTS}.{column}"

    if isinstance(c, Range):
        return Range(name(c.column), c.low, c.high)
    if isinstance(c, Ordered):
        return Ordered(name(c.small), name(c.large), c.strictly)
    if isinstance(c, Unique):
        return Unique(*map(name, c.columns))
    return Combinations(*map(name, c.columns), allowed=c.allowed)
