"""Federations from a `torch.utils.data.Dataset` or `IterableDataset` per party."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from ..errors import BadData
from ..parameters import bad
from .arrays import from_arrays
from .federation import Federation, check_whole
from .inputs import Features, Inputs, Stored, concatenate
from .row_sources import (
    ArraySource,
    Collate,
    DatasetSource,
    in_batches,
    join_rows,
    write_rows,
)

KEEP = ("memory", "disk", "source")
LABELS = ("labels", "label", "y", "target")  # the key of the label in items that are dictionaries
BLOCK = 256  # rows that are read at a time while a data set is loaded
PARTY = "party"  # the column of the parties' names


def from_torch(
    parties: Mapping[str, Any],
    *,
    test: Any = None,
    label: str | None = None,
    collate: Collate | None = None,
    transform: Callable[[Any, torch.Generator], Any] | None = None,
    keep: str = "memory",
    folder: str | Path | None = None,
    limit: int | None = None,
    classes: int | None = None,
    regression: bool = False,
    name: str = "torch",
    held_fraction: float = 0.1,
    seed: int = 0,
) -> Federation:
    """Make a federation of one data set per party: `{"a": Dataset, "b": Dataset}`.

    An item is (x, y), or a dictionary with the label under `label` (by default "labels", "label", "y" or
    "target"), whose other entries are the model's named inputs; x may be a dictionary or a tuple, too.

    keep: "memory" reads all rows once. "disk" reads them once and writes them to a file (in `folder`), from
    which batches are read. "source" reads the items of map-style data sets whenever they are trained on; only
    labels are read at the start. With "disk" and "source" clients run one by one.

    collate: a function that joins a list of x, as torch's `collate_fn`, where rows have different shapes;
    with keep="source" it is called for each batch. transform: changes the x of a row whenever it is trained
    on, `transform(x, rng)` with a `torch.Generator` that follows from (seed, round, party, step). limit: the
    number of rows to read at most of each IterableDataset; needed if it has no length.

    `test` is a data set for the global test set. Without it, models are tested on the `held_fraction` of its
    rows that each party holds out.
    """
    _check(parties, keep, limit, name)
    reader = _Reader(name, label, collate, limit)
    names = [str(party) for party in parties]
    sets = [*parties.values(), *([] if test is None else [test])]
    of = [*(f"party {party!r}" for party in names), *([] if test is None else ["the test set"])]
    xs, ys = reader.load(sets, of, keep, folder)
    if transform is not None:
        xs = [_with_transform(name, x, transform) for x in xs]
    train, labels = xs[: len(names)], ys[: len(names)]
    data = from_arrays(
        _together(train),
        np.concatenate(labels),
        test=None if test is None else (xs[-1], ys[-1]),
        test_fraction=0.0,
        classes=classes,
        regression=regression,
        name=name,
        tokens=not train[0].is_floating_point(),
        groups={PARTY: np.repeat(names, [len(y) for y in labels])},
    )
    return data.by(PARTY, seed=seed, held_fraction=held_fraction)


def _check(parties: Any, keep: str, limit: Any, name: str) -> None:
    if not isinstance(parties, Mapping) or not parties:
        given = type(parties).__name__ if parties else parties
        raise bad(name, "parties", given, "a dictionary of a data set for each party")
    if keep not in KEEP:
        raise bad(name, "keep", keep, f"one of {', '.join(map(repr, KEEP))}")
    if limit is not None:
        check_whole(name, "limit", limit, 1)


def _with_transform(name: str, x: Features, transform: Any) -> Stored:
    if isinstance(x, Stored):
        return Stored(x.source, x.index, x.device, transform)
    parts, is_named = ({"": x}, False) if isinstance(x, Tensor) else (x.parts, x.is_named)
    return Stored.of(ArraySource(name, dict(parts), is_named), transform)


def _together(xs: list[Any]) -> Features:
    """Return the rows of all parties; those of one source stay there."""
    if isinstance(xs[0], Stored):
        first = xs[0]
        if all(x.source is first.source for x in xs):
            return Stored(first.source, torch.cat([x.index for x in xs]), first.device, first.transform)
    return concatenate(xs)


@dataclass(frozen=True)
class _Reader:
    """Reads items: what is x and what is y, and how they are joined."""

    name: str
    label: str | None
    collate: Collate | None
    limit: int | None

    def load(
        self, sets: list[Any], of: list[str], keep: str, folder: str | Path | None
    ) -> tuple[list[Features], list[np.ndarray]]:
        """Return x and y of each data set."""
        if keep == "source":
            return self._refer(sets, of)
        ys: list[np.ndarray] = []
        if keep == "disk":
            labels: list[Any] = []
            sizes = []

            def rows() -> Iterator[Tensor | Inputs]:
                for data, what in zip(sets, of):
                    before = len(labels)
                    for batch in in_batches(self._items(data, what), BLOCK):
                        labels.extend(y for _, y in batch)
                        yield join_rows(f"{self.name}, {what}", [x for x, _ in batch], self.collate)
                    sizes.append(len(labels) - before)

            whole = Stored.of(write_rows(self.name, rows(), folder))
            ends = np.cumsum([0, *sizes])
            xs: list[Features] = [whole[int(a) : int(b)] for a, b in pairwise(ends)]
            ys = [_labels(self.name, what, labels[a:b]) for what, a, b in zip(of, ends, ends[1:])]
            return xs, ys
        # one call for all rows: a collate function fills sequences up to the longest of all parties
        items = [list(self._items(data, what)) for data, what in zip(sets, of)]
        ys = [_labels(self.name, what, [y for _, y in each]) for what, each in zip(of, items)]
        joined = join_rows(self.name, [x for each in items for x, _ in each], self.collate)
        ends = np.cumsum([0, *(len(y) for y in ys)])
        if len(joined) != ends[-1]:
            raise BadData(
                f"{self.name}: collate returns {len(joined)} rows for {ends[-1]}. Return one for each."
            )
        return [joined[int(a) : int(b)] for a, b in pairwise(ends)], ys

    def _refer(self, sets: list[Any], of: list[str]) -> tuple[list[Features], list[np.ndarray]]:
        for data, what in zip(sets, of):
            if isinstance(data, IterableDataset):
                raise BadData(
                    f"{self.name}, {what}: the rows of an IterableDataset cannot be read by their number, so "
                    "keep='source' does not work. Use keep='disk' or 'memory'."
                )
        ys = [
            _labels(self.name, what, [y for _, y in self._items(data, what)]) for data, what in zip(sets, of)
        ]
        whole = Stored.of(DatasetSource(self.name, tuple(sets), self._x, self.collate))
        ends = np.cumsum([0, *map(len, ys)])
        return [whole[int(a) : int(b)] for a, b in pairwise(ends)], ys

    def _items(self, data: Any, what: str) -> Iterator[tuple[Any, Any]]:
        """Return (x, y) of every row; BadData if there is none."""
        read = 0
        for item in self._rows(data, what):
            yield self._x(item), self._y(item, what)
            read += 1
        if not read:
            raise BadData(f"{self.name}, {what}: there are no rows. Leave the party out, or give it some.")

    def _rows(self, data: Any, what: str) -> Iterator[Any]:
        if isinstance(data, IterableDataset):
            if self.limit is None and not isinstance(data, Sized):
                raise BadData(
                    f"{self.name}, {what}: an IterableDataset without a length may never end. Say limit=…, "
                    "the number of rows to read at most."
                )
            for i, item in enumerate(data):
                if self.limit is not None and i >= self.limit:
                    return
                yield item
            return
        if not isinstance(data, Sized) or isinstance(data, str | Mapping):
            raise BadData(
                f"{self.name}, {what}: expected a torch Dataset with a length, or an IterableDataset, got a "
                f"{type(data).__name__}."
            )
        for i in range(len(data)):
            yield data[i]  # type: ignore[index]

    def _key(self, item: Mapping[str, Any]) -> str | None:
        known = LABELS if self.label is None else (self.label,)
        return next((key for key in known if key in item), None)

    def _x(self, item: Any) -> Any:
        if isinstance(item, Mapping):
            key = self._key(item)
            rest = {k: v for k, v in item.items() if k != key}
            return next(iter(rest.values())) if set(rest) == {"x"} else rest
        return item[0]

    def _y(self, item: Any, what: str) -> Any:
        if isinstance(item, Mapping):
            key = self._key(item)
            if key is None:
                wanted = repr(self.label) if self.label else "one of " + ", ".join(map(repr, LABELS))
                raise BadData(
                    f"{self.name}, {what}: an item has the entries {', '.join(map(repr, item))}, and no "
                    f"label ({wanted}). Say label=…."
                )
            return item[key]
        if isinstance(item, tuple | list) and len(item) == 2:
            return item[1]
        raise BadData(
            f"{self.name}, {what}: an item is a {type(item).__name__}"
            f"{f' of {len(item)}' if isinstance(item, tuple | list) else ''}; expected (x, y), or a "
            "dictionary with a label."
        )


def _labels(name: str, what: str, ys: Iterable[Any]) -> np.ndarray:
    each = [y.detach().cpu().numpy() if isinstance(y, Tensor) else y for y in ys]
    if any(y is None for y in each):
        raise BadData(f"{name}, {what}: row {next(i for i, y in enumerate(each) if y is None)} has no label.")
    try:
        return np.asarray(each)
    except ValueError:
        raise BadData(
            f"{name}, {what}: labels have different shapes. Fill labels of tokens up to one length, with −1 "
            "where there is none."
        ) from None
