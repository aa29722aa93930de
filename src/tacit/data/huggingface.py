"""Federations from a data set of Hugging Face's `datasets` (the extra `hf`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, MissingExtra
from ..parameters import bad, nearest
from .arrays import from_arrays
from .federation import Dataset, Federation
from .inputs import Change, Inputs, Stored
from .padding import pad as fill_up
from .row_sources import join_rows, to_tensor

KEEP = ("memory", "source")
MASK = "attention_mask"  # the input that says which steps of a sequence are real


def from_huggingface(
    dataset: Any,
    by: str | None = None,
    *,
    label: str = "label",
    columns: str | Sequence[str] | None = None,
    test: Any = None,
    pad: float | None = None,
    transform: Callable[[Any, torch.Generator], Any] | None = None,
    keep: str = "memory",
    classes: int | None = None,
    regression: bool = False,
    name: str = "huggingface",
    held_fraction: float = 0.1,
    seed: int = 0,
) -> Federation | Dataset:
    """Make a federation of a `datasets.Dataset`: one party for each value of the column `by`.

    Without `by`, a data set to `split` is returned. The other columns, or those in `columns`, are the model's
    named inputs; a single name instead of a list makes one tensor of that column. A `DatasetDict` has the
    splits "train" and, if any, "test".

    pad: fills sequences of different lengths up with this value, and adds an `attention_mask` where there is
    none. keep: "memory" reads all rows once; "source" leaves them in the data set's Arrow files and reads
    them batch by batch, so that clients run one by one and a batch is filled up to its own longest row.
    transform: as in `from_torch`. Without a test set, models are tested on the rows that parties hold out.
    """
    datasets = _import_datasets()
    if keep not in KEEP:
        raise bad(name, "keep", keep, f"one of {', '.join(map(repr, KEEP))}")
    if isinstance(dataset, datasets.DatasetDict):
        if "train" not in dataset:
            raise BadData(f"{name}: no split of {', '.join(dataset)} is named 'train'. Give one of them.")
        test = dataset.get("test") if test is None else test
        dataset = dataset["train"]
    for what, part in (("data set", dataset), ("test set", test)):
        if part is not None and not isinstance(part, datasets.Dataset):
            hint = ""
            if isinstance(part, datasets.IterableDataset):
                hint = " Give streamed rows to data.from_torch, with limit=…."
            found = type(part).__name__
            raise BadData(f"{name}: expected a datasets.Dataset as the {what}, got a {found}.{hint}")
        if part is not None and len(part) == 0:
            raise BadData(f"{name}: the {what} has no rows.")
    known = dataset.column_names
    for option, column in (("label", label), ("by", by)):
        if column is not None and column not in known:
            raise BadData(f"{name}: there is no column {column!r} ({option}). {nearest(column, known)}")
    inputs = [c for c in known if c not in (label, by)] if columns is None else columns
    named = [inputs] if isinstance(inputs, str) else list(inputs)
    if missing := [c for c in named if c not in known]:
        raise BadData(f"{name}: there is no column {missing[0]!r}. {nearest(missing[0], known)}")
    if not named:
        raise BadData(f"{name}: there are no columns besides the label and {by!r}. Give the model's inputs.")
    is_one = isinstance(inputs, str)
    x, y = _load(name, dataset, named, label, is_one, pad, keep)
    tested = None
    if test is not None:
        tested = _load(name, test, named, label, is_one, pad, keep)
        if keep == "memory":
            x, tested = _same_length(x, tested[0], pad), (_same_length(tested[0], x, pad), tested[1])
    of_label = dataset.features[label]
    data = from_arrays(
        x,
        y,
        test=tested,
        test_fraction=0.0,
        classes=of_label.num_classes if isinstance(of_label, datasets.ClassLabel) else classes,
        labels=of_label.names if isinstance(of_label, datasets.ClassLabel) else (),
        regression=regression,
        name=name,
        tokens=is_one and not x.is_floating_point(),
        groups={} if by is None else {by: np.asarray(_column(dataset, by)).astype(str)},
        transform=transform,
    )
    return data if by is None else data.by(by, seed=seed, held_fraction=held_fraction)


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra("data.from_huggingface", "hf", "datasets") from error
    return datasets


def _column(dataset: Any, column: str) -> Any:
    return dataset.select_columns([column]).with_format("numpy")[:][column]


def _load(
    name: str, dataset: Any, columns: list[str], label: str, is_one: bool, pad: float | None, keep: str
) -> tuple[Any, np.ndarray]:
    y = _column(dataset, label)
    if y.dtype == object and any(v is None for v in y.tolist()):
        raise BadData(f"{name}: a row has no {label!r}. Fill or drop it: dataset.filter(…).")
    _check_nulls(name, dataset, columns)
    source = ArrowRows(
        name, dataset.select_columns(columns).with_format("numpy"), tuple(columns), is_one, pad
    )
    return Stored.of(source) if keep == "source" else source.read(np.arange(len(dataset))), y


def _check_nulls(name: str, dataset: Any, columns: list[str]) -> None:
    for column in columns:
        if not dataset.data.column(column).null_count:  # of all rows of its files, selected or not
            continue
        missing = dataset.select_columns([column]).with_format("arrow")[:][column].null_count
        if missing:
            raise BadData(f"{name}: {missing} rows have no {column!r}. Fill or drop them: dataset.filter(…).")


def _same_length(x: Any, other: Any, pad: float | None) -> Any:
    """Return sequences filled up to the length of those of another part of the data."""
    if pad is None:
        return x
    if isinstance(x, Tensor):
        return _lengthen(x, other, pad)
    return Inputs({k: _lengthen(t, other.parts[k], 0 if k == MASK else pad) for k, t in x.parts.items()})


def _lengthen(t: Tensor, other: Tensor, value: float) -> Tensor:
    if t.dim() < 2 or other.shape[1] <= t.shape[1]:
        return t
    return torch.cat([t, t.new_full((len(t), other.shape[1] - t.shape[1], *t.shape[2:]), value)], 1)


@dataclass(frozen=True)
class ArrowRows:
    """Rows of a `datasets.Dataset`, which are memory-mapped Arrow files."""

    name: str
    dataset: Any
    columns: tuple[str, ...]
    is_one: bool  # one tensor, not named inputs
    pad: float | None

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: np.ndarray, change: Change | None = None) -> Tensor | Inputs:
        batch = self.dataset[rows.tolist()]
        if change is not None:
            each = ({c: batch[c][i] for c in self.columns} for i in range(len(rows)))
            changed = [change(i, row[self.columns[0]] if self.is_one else row) for i, row in enumerate(each)]
            if self.pad is None:
                return join_rows(self.name, changed)
            if self.is_one:
                batch = {self.columns[0]: changed}
            else:
                batch = {c: [row[c] for row in changed] for c in changed[0]}
        parts: dict[str, Tensor] = {}
        masks: list[Tensor] = []
        for column, values in batch.items():
            parts[column] = self._part(column, values, masks)
        if self.is_one:
            return next(iter(parts.values()))
        if masks and MASK not in parts:
            parts[MASK] = masks[0]
        return Inputs(parts)

    def _part(self, column: str, values: Any, masks: list[Tensor]) -> Tensor:
        ragged = len({np.shape(v) for v in values}) > 1
        if self.pad is not None and np.ndim(values[0]) > 0:  # always: else the inputs would vary by batch
            filled, mask = fill_up(list(values), 0 if column == MASK else self.pad)
            masks.append(mask)
            return filled
        if ragged:
            raise BadData(
                f"{self.name}: the rows of {column!r} have different lengths. Say pad=…, the value to "
                "fill them up with, or fill them up with the tokenizer (padding='max_length')."
            )
        try:
            return to_tensor(f"{self.name}, {column!r}", np.stack([np.asarray(v) for v in values]))
        except (TypeError, ValueError):
            raise BadData(
                f"{self.name}: the column {column!r} does not contain numbers or arrays of numbers. Encode "
                "it first, such as text with a tokenizer (dataset.map), or leave it out with columns=[…]."
            ) from None

    def describe(self) -> str:
        return ", ".join(self.columns)
