"""Primary and foreign keys of linked tables: checks, links between rows, and new keys.

    keys = [
        PrimaryKey("patients", "patient_id"),
        PrimaryKey("visits", "patient_id", "visit_no"),
        ForeignKey("visits", "patient_id", "patients"),
        ForeignKey("drugs", ("patient_id", "visit_no"), "visits"),
    ]

The first foreign key of a table names its parent: the rows are that parent's children. Further foreign keys
are links to other tables. A key that follows from another one (drugs.patient_id, where the visit has the same
patient) is found in the rows and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ...errors import BadData, BadParameter
from ...parameters import nearest

EXAMPLES = 3  # wrong values that a message shows
MAX_INTEGER = 2**62  # new integer keys stay below it, so that none overflows


@dataclass(frozen=True, init=False)
class PrimaryKey:
    """Columns whose values, together, are different in every row of a table."""

    table: str
    columns: tuple[str, ...]

    def __init__(self, table: str, *columns: str):
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "columns", tuple(columns))


@dataclass(frozen=True, init=False)
class ForeignKey:
    """Columns of `table` that contain a primary key of the table `references`, in the same order."""

    table: str
    columns: tuple[str, ...]
    references: str

    def __init__(self, table: str, columns: str | Sequence[str], references: str):
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "columns", (columns,) if isinstance(columns, str) else tuple(columns))
        object.__setattr__(self, "references", references)

    def __str__(self) -> str:
        return f"{self.table}({', '.join(self.columns)}) → {self.references}"


Key = PrimaryKey | ForeignKey


@dataclass(frozen=True)
class Schema:
    """The tables, parents first, with their keys and the columns by which children are ordered.

    `foreign[table]` begins with the key of the parent. `implied` are foreign keys that follow from it.
    """

    tables: tuple[str, ...]
    primary: Mapping[str, tuple[str, ...]]
    foreign: Mapping[str, tuple[ForeignKey, ...]]
    order: Mapping[str, str] = field(default_factory=dict)
    implied: tuple[ForeignKey, ...] = ()

    def parent(self, table: str) -> str | None:
        """Return the table whose children the rows of `table` are."""
        keys = self.foreign.get(table, ())
        return keys[0].references if keys else None

    def ancestors(self, table: str) -> list[str]:
        """Return the parent, its parent and so on, up to the top entity."""
        out: list[str] = []
        above = self.parent(table)
        while above is not None:
            out.append(above)
            above = self.parent(above)
        return out

    @property
    def roots(self) -> list[str]:
        """Return the tables without a parent: the entities that are protected."""
        return [t for t in self.tables if self.parent(t) is None]

    def others(self, table: str) -> list[ForeignKey]:
        """Return the links of a table to other tables than its ancestors."""
        return [k for k in self.foreign.get(table, ())[1:] if k not in self.implied]

    def key_columns(self, table: str) -> list[str]:
        """Return all columns that are part of a key."""
        names = [*self.primary.get(table, ()), *(c for k in self.foreign.get(table, ()) for c in k.columns)]
        return list(dict.fromkeys(names))

    def to_dict(self) -> dict[str, Any]:
        return {
            "tables": list(self.tables),
            "primary": {t: list(c) for t, c in self.primary.items()},
            "foreign": [
                [k.table, list(k.columns), k.references] for t in self.tables for k in self.foreign[t]
            ],
            "order": dict(self.order),
            "implied": [[k.table, list(k.columns), k.references] for k in self.implied],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        keys = [ForeignKey(*k) for k in data["foreign"]]
        return cls(
            tuple(data["tables"]),
            {t: tuple(c) for t, c in data["primary"].items()},
            {t: tuple(k for k in keys if k.table == t) for t in data["tables"]},
            data["order"],
            tuple(ForeignKey(*k) for k in data["implied"]),
        )


def fail(problems: Sequence[str], owner: str, error: type[BadData] | type[BadParameter] = BadData) -> None:
    """Raise one error that lists all problems, if there are any."""
    if len(problems) == 1:
        raise error(f"{owner}: {problems[0]}")
    if problems:
        raise error(f"{owner}: {len(problems)} problems:\n" + "\n".join(f"- {p}" for p in problems))


def build_schema(
    frames: Mapping[str, pd.DataFrame],
    keys: Sequence[Key],
    order: Mapping[str, str] | None = None,
    owner: str = "LinkedTables",
) -> tuple[Schema, dict[ForeignKey, np.ndarray]]:
    """Check tables and keys; return the schema, and for every foreign key the parent row of each row.

    One error names all problems: missing tables and columns, cycles, duplicate keys, orphans.
    """
    order = dict(order or {})
    fail(_check_frames(frames), owner)
    fail(_check_declared(frames, keys, order), owner, BadParameter)
    primary = {k.table: k.columns for k in keys if isinstance(k, PrimaryKey)}
    foreign = {t: tuple(k for k in keys if isinstance(k, ForeignKey) and k.table == t) for t in frames}
    tables = _sort_tables(frames, foreign)
    problems = [p for t in tables if t in primary for p in _check_primary(t, frames[t], primary[t])]
    links: dict[ForeignKey, np.ndarray] = {}
    for t in tables:
        for k in foreign[t]:
            links[k], wrong = link_rows(k, frames[t], frames[k.references], primary[k.references])
            problems += wrong
            if not wrong and k == foreign[t][0] and (links[k] < 0).any():
                problems.append(
                    f"{k}: {int((links[k] < 0).sum()):,} rows have no parent, because {_names(k.columns)} is "
                    "missing. Fill the key in, drop these rows, or declare another foreign key first."
                )
    for t, column in order.items():
        missing = int(frames[t][column].isna().sum())
        if missing:
            problems.append(
                f"{t}: the order column {column!r} is missing in {missing:,} rows. Fill it in, or drop them."
            )
    fail(problems, owner)
    schema = Schema(tuple(tables), primary, foreign, order)
    return _with_implied(schema, links, owner), links


def _check_frames(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    if not frames:
        return ["there are no tables. Give a dictionary of data frames."]
    problems = []
    for t, frame in frames.items():
        if not isinstance(frame, pd.DataFrame):
            problems.append(f"{t}: expected a pandas DataFrame, got {type(frame).__name__}.")
            continue
        names = [str(c) for c in frame.columns]
        doubles = sorted({n for n in names if names.count(n) > 1})
        if doubles:
            problems.append(f"{t}: two columns are named {_names(doubles)}. Give each its own name.")
        if not len(frame):
            problems.append(f"{t}: the table has no rows.")
    return problems


def _check_declared(
    frames: Mapping[str, pd.DataFrame], keys: Sequence[Key], order: Mapping[str, str]
) -> list[str]:
    problems: list[str] = []
    primary = {k.table: k.columns for k in keys if isinstance(k, PrimaryKey)}

    def has_columns(table: str, columns: Sequence[str], what: str) -> None:
        if table not in frames:
            problems.append(f"{what}: there is no table {table!r}. {nearest(str(table), list(frames))}")
            return
        names = [str(c) for c in frames[table].columns]
        problems.extend(
            f"{what}: {table} has no column {c!r}. {nearest(str(c), names)}"
            for c in columns
            if c not in names
        )
        if not columns:
            problems.append(f"{what}: give at least one column.")
        if len(set(columns)) < len(columns):
            problems.append(f"{what}: a column is listed twice.")

    for i, k in enumerate(keys):
        if not isinstance(k, PrimaryKey | ForeignKey):
            problems.append(f"keys: expected PrimaryKey(…) or ForeignKey(…), got {k!r}.")
            continue
        has_columns(k.table, k.columns, repr(k))
        if k in keys[:i]:
            problems.append(f"{k!r} is given twice.")
        elif isinstance(k, PrimaryKey) and any(
            isinstance(o, PrimaryKey) and o.table == k.table for o in keys[:i]
        ):
            problems.append(f"{k.table}: two primary keys are given. Remove one of them.")
        if not isinstance(k, ForeignKey):
            continue
        if k.references not in frames:
            problems.append(
                f"{k!r}: there is no table {k.references!r}. {nearest(str(k.references), list(frames))}"
            )
        elif k.references not in primary:
            problems.append(
                f"{k!r}: {k.references} has no primary key. Declare it: PrimaryKey({k.references!r}, …)."
            )
        elif len(primary[k.references]) != len(k.columns):
            problems.append(
                f"{k!r}: it has {len(k.columns)} columns, and the primary key of {k.references} has "
                f"{len(primary[k.references])} ({', '.join(primary[k.references])}). Name as many."
            )
    for t, column in order.items():
        has_columns(t, (column,), f"order of {t!r}")
    return problems


def _sort_tables(
    frames: Mapping[str, pd.DataFrame], foreign: Mapping[str, tuple[ForeignKey, ...]]
) -> list[str]:
    """Return parents before children; raise for a cycle, with the tables on it."""
    done: list[str] = []
    while len(done) < len(frames):
        ready = [t for t in frames if t not in done and all(k.references in done for k in foreign[t])]
        if not ready:
            left = [t for t in frames if t not in done]
            at, path = left[0], []
            while at not in path:
                path.append(at)
                at = next(k.references for k in foreign[at] if k.references in left)
            cycle = [*path[path.index(at) :], at]
            raise BadParameter(
                f"LinkedTables: the foreign keys form a cycle: {' → '.join(cycle)}. No table of it can be "
                "generated first. Leave out one of the keys, and drop its column."
            )
        done += ready
    return done


def _check_primary(table: str, frame: pd.DataFrame, columns: tuple[str, ...]) -> list[str]:
    part = frame[list(columns)]
    missing = part.isna().any(axis=1)
    problems = []
    if missing.any():
        problems.append(
            f"{table}: the primary key {_names(columns)} is missing in {int(missing.sum()):,} rows. Fill it "
            "in."
        )
    doubled = part[~missing].duplicated(keep=False)
    if doubled.any():
        values = part[~missing][doubled].drop_duplicates()
        problems.append(
            f"{table}: {len(values):,} values of the primary key {_names(columns)} occur in several rows "
            f"({_examples(values)}). Remove the duplicates, or add a column to the key."
        )
    return problems


def link_rows(
    key: ForeignKey, child: pd.DataFrame, parent: pd.DataFrame, columns: tuple[str, ...]
) -> tuple[np.ndarray, list[str]]:
    """Return the parent row of each child row (−1: the key is missing), and the problems found."""
    above, below = np.zeros(len(parent), np.int64), np.zeros(len(child), np.int64)
    missing = child[list(key.columns)].isna().to_numpy()
    for own, their in zip(key.columns, columns):
        a, b = parent[their].reset_index(drop=True), child[own].reset_index(drop=True)
        if a.dtype != b.dtype and not (_is_number(a) and _is_number(b)):
            a, b = a.astype(object), b.astype(object)
        codes, distinct = pd.factorize(pd.concat([a, b], ignore_index=True))
        # numbered anew after every column, so that the products never overflow
        joint = np.concatenate([above, below]) * (len(distinct) + 1) + codes
        joint = np.unique(joint, return_inverse=True)[1].reshape(-1)
        above, below = joint[: len(parent)], joint[len(parent) :]
    at = np.full(int(max(above.max(initial=0), below.max(initial=0))) + 1, -1, np.int64)
    at[above] = np.arange(len(parent))
    link = np.where(missing.any(axis=1), -1, at[below])
    partly = missing.any(axis=1) & ~missing.all(axis=1)
    orphans = ~missing.any(axis=1) & (link < 0)
    problems = []
    if partly.any():
        problems.append(f"{key}: the key is missing in part in {int(partly.sum()):,} rows. Complete it.")
    if orphans.any():
        values = child.loc[orphans, list(key.columns)].drop_duplicates()
        types = [f"{child[a].dtype} and {parent[b].dtype}" for a, b in zip(key.columns, columns)]
        differ = [t for t in types if len(set(t.split(" and "))) > 1]
        problems.append(
            f"{key}: {int(orphans.sum()):,} rows are orphans, because {key.references} has no such key "
            f"({_examples(values)}). Remove them, or add their parents."
            + (f" The columns have different types: {', '.join(differ)}." if differ else "")
        )
    return link, problems


def _with_implied(schema: Schema, links: dict[ForeignKey, np.ndarray], owner: str) -> Schema:
    """Put the key of the parent first, and mark the keys of ancestors that follow from it."""
    foreign, problems = dict(schema.foreign), []
    implied: list[ForeignKey] = []
    for t in schema.tables:
        keys = list(foreign[t])
        for k in keys:  # a parent through which all others are reached comes first
            up = Schema(schema.tables, schema.primary, {**foreign, t: (k,)}, {}).ancestors(t)
            follow = [o for o in keys if o != k and _follows(o, k, up, foreign, links)]
            if len(follow) > sum(o in implied for o in keys) or k == keys[0]:
                foreign[t] = (k, *(o for o in keys if o != k))
                implied = [o for o in implied if o.table != t] + follow
        taken = set(foreign[t][0].columns) if keys else set()
        for k in foreign[t][1:]:
            if k not in implied and taken & set(k.columns):
                problems.append(
                    f"{k}: {_names(sorted(taken & set(k.columns)))} is part of another foreign key of {t}, "
                    "and neither follows from the other. Drop one of the keys."
                )
            taken |= set(k.columns)
    fail(problems, owner, BadParameter)
    return Schema(schema.tables, schema.primary, foreign, schema.order, tuple(implied))


def _follows(
    other: ForeignKey,
    key: ForeignKey,
    up: Sequence[str],
    foreign: Mapping[str, tuple[ForeignKey, ...]],
    links: dict[ForeignKey, np.ndarray],
) -> bool:
    """Whether `other` is the ancestor that is reached through `key`, in every row."""
    at, table = links[key], key.references
    while table != other.references:
        if not foreign[table] or table not in up:
            return False
        above = foreign[table][0]
        at, table = links[above][at], above.references
    return bool((at == links[other]).all())


def _is_number(series: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_bool_dtype(series.dtype)


def _names(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns))


def _examples(values: pd.DataFrame) -> str:
    """Format a few keys, as a user would look for them."""
    rows = [
        ", ".join(str(v) for v in row) for row in values.head(EXAMPLES).itertuples(index=False, name=None)
    ]
    return "; ".join(rows) + ("; …" if len(values) > EXAMPLES else "")
