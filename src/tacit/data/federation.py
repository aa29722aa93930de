"""Data sets, and federations: the same rows partitioned across parties."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, check, nearest
from .inputs import Features, one_tensor
from .notebook import show_counts, show_sizes

if TYPE_CHECKING:
    from .pipeline import Pipeline
    from .skews import ByColumn, Skew
    from .subgroups import Subgroups
    from .tables import Table
    from .vertical import Vertical


# label counts in a summary: those of 20,000 tokens at each of 100 parties would fill a report
MOST_COUNTS = 10**6
MOST_SHOWN = 50  # parties in a notebook


class Rows(NamedTuple):
    """Examples and their labels, one per row.

    `x` is float32 (or int64 tokens), or several tensors; `y` int64 classes or float32 targets. Rows of tokens
    may have a class for each token, [N, T]; −1 is none.
    """

    x: Features
    y: Tensor

    def take(self, index: Any) -> Rows:
        """Return these rows."""
        return Rows(self.x[index], self.y[index])

    def to(self, device: Any) -> Rows:
        """Return the rows on a device."""
        return Rows(self.x.to(device), self.y.to(device))

    def matrix(self, owner: str) -> Tensor:
        """Return x as one tensor; BadData that names `owner` if rows have several inputs or are in files."""
        return one_tensor(owner, self.x)


class Holdings(NamedTuple):
    """Which rows each party holds: party k has `index[start[k]:start[k + 1]]`.

    Two flat arrays stay small and fast with 100,000 parties; 100,000 small tensors do not.
    """

    index: Tensor  # type: ignore[assignment]  # the rows, not tuple.index
    start: Tensor

    def of(self, k: int) -> Tensor:
        return self.index[int(self.start[k]) : int(self.start[k + 1])]

    @property
    def sizes(self) -> Tensor:
        return self.start[1:] - self.start[:-1]

    @property
    def owner(self) -> Tensor:
        """The party of each entry of `index`."""
        return torch.repeat_interleave(torch.arange(len(self.start) - 1), self.sizes)

    @classmethod
    def from_lists(cls, lists: list[Any]) -> Holdings:
        sizes = torch.tensor([0] + [len(rows) for rows in lists])
        flat = [torch.as_tensor(rows, dtype=torch.int64) for rows in lists]
        return cls(torch.cat(flat) if flat else torch.empty(0, dtype=torch.int64), sizes.cumsum(0))

    @classmethod
    def from_owners(cls, index: np.ndarray, owner: np.ndarray, parties: int) -> Holdings:
        """Build from an owner for each row: `owner[i]` holds row `index[i]`; keeps the order in a party."""
        order = np.argsort(owner, kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=parties))])
        return cls(
            torch.from_numpy(np.ascontiguousarray(index[order], dtype=np.int64)),
            torch.from_numpy(start.astype(np.int64)),
        )


@dataclass(frozen=True)
class Federation:
    """The rows of all parties in one tensor, and which party holds which of them.

    `rows` are the training and held-out rows of all parties; `train` and `held` say which rows belong to
    which party, and are disjoint. `test` is the global test set. In a simulation one process has all rows; a
    real party has only its own. `notes` are remarks about how the rows were partitioned and encoded.
    `pipeline` says how rows of a table were encoded, if all parties encode alike, and `spent` what privacy
    its statistics cost, if they have noise. `persons` are numbers of people, if rows belong to some.
    """

    name: str
    rows: Rows
    train: Holdings
    held: Holdings
    test: Rows
    classes: int | None  # None: regression
    parties: tuple[str, ...]
    skew: Skew | None = None
    seed: int = 0
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pipeline: Pipeline | None = None
    spent: dict[str, Any] | None = None  # the values of a ledger's `Spend`
    # the data set it was split from, which has the columns that rows are grouped by
    source: Dataset | None = field(default=None, repr=False, compare=False)
    subgroups: Subgroups | None = field(default=None, repr=False, compare=False)  # that metrics are split by
    persons: Tensor | None = field(default=None, repr=False, compare=False)  # whose each row of `rows` is

    def __len__(self) -> int:
        return len(self.parties)

    def __repr__(self) -> str:
        sizes = (
            f"{self.sizes.min()} to {self.sizes.max()} rows each" if len(self) else "no rows"
        )  # never the rows themselves, which may be personal data
        return (
            f"<Federation {self.name!r}: {len(self)} parties, {sizes}, {len(self.test.y)} test rows, "
            f"{_task_name(self.classes)}>"
        )

    @property
    def sizes(self) -> Tensor:
        """The number of rows of each party, held-out rows included."""
        return self.train.sizes + self.held.sizes

    @property
    def owner(self) -> Tensor:
        """The party of every row of `rows`."""
        owner = torch.empty(len(self.rows.y), dtype=torch.int64)
        for holdings in (self.train, self.held):
            owner[holdings.index] = holdings.owner
        return owner

    def at(self, round: int) -> Rows:
        """Return the rows of this round. Only ConceptDrift changes them over rounds."""
        return self.rows if self.skew is None else self.skew.at(self, round)

    def test_at(self, round: int) -> Rows:
        """Return the global test set of this round. Only ConceptDrift changes it over rounds."""
        return self.test if self.skew is None else self.skew.test_at(self, round)

    def party(self, k: int | str) -> Federation:
        """Return the rows of party k, without the global test set, which is the server's."""
        if isinstance(k, str):
            if k not in self.parties:
                raise BadData(f"{self.name}: there is no party {k!r}. {nearest(k, list(self.parties[:50]))}")
            k = self.parties.index(k)
        mine, held = self.train.of(k), self.held.of(k)
        index = torch.cat([mine, held])
        rows = Rows(self.rows.x[index], self.rows.y[index])
        here = torch.arange(len(index))
        # The skew stays, because a concept drifts at a real party as in simulation. The rows already have the
        # effects of `partition` and `alter`.
        return replace(
            self,
            rows=rows,
            train=Holdings.from_lists([here[: len(mine)]]),
            held=Holdings.from_lists([here[len(mine) :]]),
            test=Rows(rows.x[:0], rows.y[:0]),
            parties=(self.parties[k],),
            source=None,
            persons=None if self.persons is None else self.persons[index],
            # with a global test set, the server counts the subgroups of its rows, and nobody else any
            subgroups=None if self.subgroups is None or len(self.test.y) else self.subgroups.select(index),
        )

    def outline(self) -> dict[str, Any]:
        """Return the part of `summary` that does not depend on the rows.

        For private runs: publishing more would not be covered by ε.
        """
        labels = self.labels or tuple(str(c) for c in range(self.classes or 0))
        return {
            "name": self.name,
            "parties": list(self.parties),
            "sizes": [],
            "labels": list(labels),
            "counts": None,
            "shift": None,
        }

    def summary(self) -> dict[str, Any]:
        """Return sizes, label counts and feature shift of each party, as plain values."""
        counts = None
        if self.classes is not None and self.classes * len(self) <= MOST_COUNTS:
            y, owner = self.rows.y, self.owner
            there = y >= 0
            of_label = owner.view(-1, *[1] * (y.dim() - 1)).expand_as(y)
            cell = of_label[there] * self.classes + y[there]
            shape = (len(self), self.classes)
            counts = torch.bincount(cell, minlength=math.prod(shape)).reshape(shape).tolist()
        return {
            **self.outline(),
            "sizes": self.sizes.tolist(),
            "counts": counts,
            "shift": self._shift(),
            "test_rows": len(self.test.y),
            "held_rows": len(self.held.index),
        }

    def _repr_html_(self) -> str:
        """Show sizes and notes in a notebook, never rows; all text is escaped."""
        shown = list(zip(self.parties, self.sizes.tolist()))[:MOST_SHOWN]
        more = len(self) - len(shown)
        return show_sizes(
            repr(self),
            ["party", "rows"],
            [(party, f"{rows:,}") for party, rows in shown],
            f"{more:,} more parties" if more else "",
            self.notes,
        )

    def _shift(self) -> list[float] | None:
        """Return |mean − pooled mean| / pooled standard deviation of each party.

        Averaged over the features that vary."""
        if not isinstance(self.rows.x, Tensor) or not self.rows.x.is_floating_point():
            return None  # tokens have no mean, and rows of a file are not read for one
        x = self.rows.x.reshape(len(self.rows.y), -1)
        std, mean = torch.std_mean(x, dim=0, correction=0)
        varies = std > 1e-12
        if not varies.any():
            return [0.0] * len(self)
        rows = Holdings.from_owners(np.arange(len(x)), self.owner.numpy(), len(self))
        shift = []
        many = max(1, 2**22 // x.shape[1])  # 16 MiB at a time, for any number of rows and parties
        for first in range(0, len(self), many):
            start = rows.start[first : first + many + 1]
            sizes = start[1:] - start[:-1]
            here = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
            sums = torch.zeros(len(sizes), x.shape[1])
            for index, party in zip(
                torch.split(rows.index[start[0] : start[-1]], many), torch.split(here, many)
            ):
                sums.index_add_(0, party, x[index])
            shift += ((sums / sizes.clamp(min=1)[:, None] - mean).abs() / std)[:, varies].mean(dim=1).tolist()
        return shift

    def plot(self, path: Any = None) -> Any:
        """Draw labels × parties as a heat map, with sizes and feature shift; save it to `path`, if any."""
        from ..report import figures

        figure: Any = figures.federation(self.summary())
        if path is not None:
            figure.save(path)
        return figure


@dataclass(frozen=True)
class Dataset:
    """Rows that are not partitioned yet; `groups` are columns that say where a row came from (a hospital).

    A data set made from a table keeps the raw `table`. Its rows are encoded but not standardized (a missing
    number is NaN), because the statistics depend on who holds the rows. `split`, `by` and `centralize`
    standardize them.
    """

    name: str
    rows: Rows
    test: Rows
    classes: int | None
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    groups: dict[str, np.ndarray] = field(default_factory=dict)
    test_groups: dict[str, np.ndarray] = field(default_factory=dict)
    table: Table | None = None
    persons: np.ndarray | None = None  # whose each row is; the rows of one person stay together
    pipeline: Pipeline | None = None  # how the rows were encoded, once `centralize` has

    def __len__(self) -> int:
        return len(self.rows.y)

    def __repr__(self) -> str:
        return (
            f"<Dataset {self.name!r}: {len(self)} rows, {len(self.test.y)} test rows, "
            f"{_task_name(self.classes)}>"
        )

    def _repr_html_(self) -> str:
        """Show sizes in a notebook: of each class, but for small counts, and the columns; never rows."""
        classes, y = self.classes or 0, self.rows.y
        rows: list[tuple[str, str]] = []
        notes: list[str] = []
        if 0 < classes <= MOST_SHOWN and y.dim() == 1:
            counts = torch.bincount(y[y >= 0], minlength=classes).numpy()
            rows, notes = show_counts(self.labels or [str(k) for k in range(classes)], counts)
        names = self.columns if self.table is None else self.table.recipe.inputs  # no values of categories
        if self.pipeline is not None:
            names = self.pipeline.recipe.inputs
        columns = [*names[:MOST_SHOWN], *(["…"] if len(names) > MOST_SHOWN else [])]
        groups = [f"parties can be made by {', '.join(map(repr, self.groups))}"] if self.groups else []
        return show_sizes(
            repr(self),
            ["label", "rows"],
            rows,
            f"{len(names)} column{'s' * (len(names) != 1)}: {', '.join(columns)}" if columns else "",
            [*notes, *groups],
        )

    def column(self, name: str, test: bool = False) -> np.ndarray | None:
        """Return a column's values as text, "" where there is none; None if the test set does not have it."""
        groups = self.test_groups if test else self.groups
        if name in groups:
            return groups[name].astype(str)
        values = None if self.table is None else self.table.values(name, test)
        if values is None and not test:
            known = list(self.groups) + (
                [] if self.table is None else [str(c) for c in self.table.frame.columns]
            )
            raise BadData(
                f"{self.name} has no column {name!r} to partition by. "
                + (nearest(name, known) if known else "It has none at all.")
            )
        return values

    def split(
        self,
        parties: int | None,
        skew: Skew | None = None,
        seed: int = 0,
        held_fraction: float = 0.1,
        min_size: int | None = None,
    ) -> Federation:
        """Partition the rows across `parties` by `skew` (default: IID).

        Every row goes to exactly one party; only `Dirichlet(variant="party")` leaves rows unused. Each party
        holds out `held_fraction` of its rows for evaluation and keeps at least one row for training.
        `min_size` is the smallest number of rows of a party: by default 10, as in NIID-Bench, or half of an
        equal share if that is less.
        """
        from .skews import IID, SKEWS, ByColumn, Skew

        skew = IID() if skew is None else skew
        if not isinstance(skew, Skew):
            name = getattr(skew, "__name__", skew)
            hint = next((f"Write data.{k}(…)." for k in SKEWS if k.lower() == str(name).lower()), "")
            raise bad(
                "split",
                "skew",
                name,
                f"a skew with its parameters: {', '.join(f'{k}(…)' for k in SKEWS)}",
                hint,
            )
        check(skew)
        data = self
        if isinstance(skew, ByColumn):
            if self.table is not None:
                data = self.table.without(self, skew.column)
            groups, sizes = len(skew.names(data, 0)), skew.sizes(data)
            if parties is not None and parties != groups:
                raise bad(
                    "split",
                    "parties",
                    parties,
                    f"{groups}, the number of different values in {skew.column!r}",
                    "Or leave it None.",
                )
            parties, min_size = groups, 1 if min_size is None else min_size
        fits = f"a whole number from 1 to {len(data)}, the number of rows of {self.name}"
        check_whole("split", "parties", parties, 1, len(data), fits)
        assert parties is not None
        share, what = len(data) // parties, "an equal share of the rows"
        if isinstance(skew, ByColumn):
            share, what = (
                int(min(sizes)),
                f"the rows of the smallest party, {names_of_smallest(skew, data)!r}",
            )
            what += ". Or merge small parties, or leave them out, with min_rows=… and small='merge' or 'drop'"
        min_size = min(10, max(1, share // 2)) if min_size is None else min_size
        fits = f"a whole number from 1 to {share}, {what}"
        check_whole("split", "min_size", min_size, 1, share, fits)
        check_whole("split", "seed", seed, 0)
        check_fraction("split", "held_fraction", held_fraction)
        fed = _partition(data, parties, skew, int(seed), float(held_fraction), int(min_size))
        return replace(fed, source=self) if len(fed.rows.y) == len(self) else fed

    def centralize(self) -> Dataset:
        """Return the data set for training in one place.

        Numbers of a table are standardized by the training rows, and a missing number becomes their mean.
        """
        return self if self.table is None else self.table.centralize(self)

    def vertical(self, into: Mapping[str, Iterable[Any]], label_at: str) -> Vertical:
        """Split the columns across parties, like `into={"bank": ["age"], "shop": ["basket"]}`.

        Columns are given by name, or by position in data without names; columns of no party are dropped.
        The label is at `label_at`.
        """
        from .vertical import split_columns

        return split_columns(self, into, label_at)

    def by(
        self,
        column: str,
        seed: int = 0,
        held_fraction: float = 0.1,
        min_size: int = 1,
        min_rows: int | None = None,
        small: str = "refuse",
        missing_party: str = "refuse",
    ) -> Federation:
        """Make one party for each value of `column`, named after it.

        Parties with fewer than `min_rows` rows are refused, merged into one party "small parties"
        (`small="merge"`), or left out ("drop"); with `small` alone, `min_rows` is 20. Rows without a value
        are refused, left out (`missing_party="drop"`), or make a party of that name.
        """
        from .skews import ByColumn

        skew = ByColumn(str(column), min_rows, small, missing_party)
        return self.split(None, skew, seed=seed, held_fraction=held_fraction, min_size=min_size)


def check_one_label(owner: str, data: Federation | Dataset) -> None:
    """Raise BadData if rows have a label for each token, where one label per row is needed."""
    if data.rows.y.dim() > 1:
        raise BadData(
            f"{owner}: every row of {data.name} has a label for each token, and one label per row is needed. "
            "Use another data set."
        )


def _task_name(classes: int | None) -> str:
    return "a number to predict" if classes is None else f"{classes} classes"


def check_whole(
    owner: str, name: str, value: Any, least: int, most: float = math.inf, must_be: str = ""
) -> None:
    """Raise BadParameter unless the value is an integer from `least` to `most`; `must_be` says what it is."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
        raise bad(owner, name, value, must_be or f"a whole number of at least {least}")


def check_fraction(owner: str, name: str, value: Any) -> None:
    """Raise BadParameter unless the value is a share below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise bad(owner, name, value, "a number of at least 0 and below 1")


def party_names(parties: int) -> tuple[str, ...]:
    """Return p00, p01, …, padded so that they sort."""
    width = len(str(parties))
    return tuple(f"p{k:0{width}d}" for k in range(parties))


def names_of_smallest(skew: ByColumn, data: Dataset) -> str:
    return skew.names(data, 0)[int(np.argmin(skew.sizes(data)))]


def _note_shared_people(persons: np.ndarray, owner: np.ndarray) -> list[str]:
    """Note that some people have rows at several parties, which real parties cannot see."""
    pairs = np.unique(np.stack([persons, owner]), axis=1)[0]
    if len(pairs) == len(np.unique(pairs)):
        return []
    return [
        "Some people have rows at more than one party. Here they are training rows, held-out rows or test "
        "rows at all of them; real parties do not know whom they share, so theirs may be on different sides."
    ]


def _partition(
    data: Dataset, parties: int, skew: Skew, seed: int, held_fraction: float, min_size: int
) -> Federation:
    from .people import hold_out_people, partition_people
    from .skews import ByColumn, top_up

    # One random stream for each decision: another held-out share must not change the partition.
    partition_rng, held_rng, alter_rng = (np.random.default_rng([seed, stream]) for stream in range(3))
    names = skew.names(data, parties)
    notes: list[str] = [*skew.notes(data)]
    if data.persons is None or isinstance(skew, ByColumn):
        lists = skew.partition(data, parties, partition_rng, min_size)
    else:
        lists = partition_people(skew, data, parties, partition_rng, min_size)
    if skew.tops_up and data.persons is None and min(map(len, lists)) < min_size:
        notes.append(
            f"{skew}: no draw gave all {parties} parties {min_size} rows; the smallest parties got "
            "rows of the largest."
        )
        lists = top_up(lists, min_size, partition_rng)
    sizes = np.fromiter(map(len, lists), dtype=np.int64, count=parties)
    if sizes.min() < min_size:
        small = int(sizes.argmin())
        raise BadData(
            f"{skew} gives party {names[small]!r} {sizes[small]} rows of {data.name}; each needs at least "
            f"{min_size}. "
            "Use fewer parties, a smaller min_size or a milder skew."
        )
    index, owner = np.concatenate(lists), np.repeat(np.arange(parties), sizes)
    rows, kept = data.rows, None
    if len(index) < len(data):  # only Dirichlet's party variant leaves rows over
        rows, kept = Rows(rows.x[torch.from_numpy(index)], rows.y[torch.from_numpy(index)]), index
        if not isinstance(skew, ByColumn):  # whose own notes say so
            notes.append(
                f"{skew}: not all rows are used; the others belong to no party."
            )  # without their number: private runs publish their notes
        index = np.arange(len(index))
    at_least_one = (sizes > 1) & (held_fraction > 0)
    n_held = np.minimum(
        np.maximum(np.floor(sizes * held_fraction + 0.5).astype(np.int64), at_least_one), sizes - 1
    )
    persons = np.empty(0) if data.persons is None else data.persons[index if kept is None else kept]
    draws = None if data.table is None else data.table.draw(rows.y, seed, "held", kept)
    if draws is not None:  # an ε is claimed: each row or person by itself
        from .holding import is_drawn

        order, is_held = np.arange(len(index)), is_drawn(draws, held_fraction)[index]
    elif data.persons is None:
        order = np.lexsort((held_rng.random(len(index)), owner))  # a random order within each party
        position = np.arange(len(index)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_held = position < np.repeat(n_held, sizes)
    else:
        order, is_held = hold_out_people(persons, owner, n_held, held_rng)
    if len(persons):
        notes += _note_shared_people(persons, owner)
    index, owner = index[order], owner[order]
    train, held = (Holdings.from_owners(index[mask], owner[mask], parties) for mask in (~is_held, is_held))
    fed = Federation(
        data.name,
        rows,
        train,
        held,
        data.test,
        data.classes,
        names,
        skew,
        seed,
        data.columns,
        data.labels,
        tuple(notes),
        pipeline=data.pipeline,
        persons=None
        if data.persons is None
        else torch.from_numpy(data.persons if kept is None else data.persons[kept]),
    )
    if data.table is not None:
        fed = data.table.standardize(fed, skew.test_owner(data, names), kept)
    if kept is not None:
        fed = replace(fed, source=_keep_rows(data, kept))
    return replace(fed, rows=skew.alter(fed, alter_rng))


def _keep_rows(data: Dataset, kept: np.ndarray) -> Dataset:
    """Return the data set with these training rows alone."""
    at, table = torch.from_numpy(kept), data.table
    return replace(
        data,
        rows=Rows(data.rows.x[at], data.rows.y[at]),
        groups={name: values[kept] for name, values in data.groups.items()},
        table=table and replace(table, frame=table.frame.iloc[kept].reset_index(drop=True)),
        persons=None if data.persons is None else data.persons[kept],
    )
