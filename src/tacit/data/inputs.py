"""Rows of several tensors, and rows that are read when they are used.

`Inputs` and `Stored` behave as a tensor does where rows are selected, moved or counted, so that the same
code handles rows of one tensor, of several, and rows of a file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData


@dataclass(frozen=True, eq=False)
class Inputs:
    """Tensors with one entry per row each, by the name of the model's argument.

    Without names (`is_named=False`) they are the model's positional arguments, in order.
    """

    parts: dict[str, Tensor]
    is_named: bool = True

    @classmethod
    def of(cls, x: Mapping[str, Tensor] | Sequence[Tensor]) -> Inputs:
        """Return a dictionary of tensors, or a tuple of them, as one."""
        if isinstance(x, Mapping):
            return cls({str(k): v for k, v in x.items()})
        return cls({str(i): v for i, v in enumerate(x)}, is_named=False)

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def __iter__(self) -> Iterator[Inputs]:
        """Iterate over rows, as a tensor does."""
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Inputs:
        return self._with(lambda t: t[index])

    def __repr__(self) -> str:
        return f"<Inputs of {len(self)} rows: {self.describe()}>"

    def _with(self, change: Any) -> Inputs:
        return Inputs({k: change(v) for k, v in self.parts.items()}, self.is_named)

    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Return the positional and the named arguments of a model."""
        return ((), self.parts) if self.is_named else (tuple(self.parts.values()), {})

    def values(self) -> Any:
        """Return the tensors as the user gave them: a dictionary or a tuple."""
        return dict(self.parts) if self.is_named else tuple(self.parts.values())

    def describe(self) -> str:
        """Return names, types and shapes of one row."""
        each = ", ".join(f"{k} {t.dtype} {tuple(t.shape[1:])}" for k, t in self.parts.items())
        return each.replace("torch.", "")

    # as a tensor has them -----------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(iter(self.parts.values())).device

    @property
    def shape(self) -> torch.Size:
        """[N, K]: the number of rows, and of the values of one row."""
        return torch.Size([len(self), sum(math.prod(t.shape[1:]) for t in self.parts.values())])

    def to(self, device: Any) -> Inputs:
        """Return the same on a device; itself if it is there."""
        if all(t.device == torch.device(device) for t in self.parts.values()):
            return self
        return self._with(lambda t: t.to(device))

    def cpu(self) -> Inputs:
        return self.to("cpu")

    def double(self) -> Inputs:
        """Return real numbers as float64; integers stay."""
        return self._with(lambda t: t.double() if t.is_floating_point() else t)

    def index_select(self, dim: int, index: Tensor) -> Inputs:
        return self._with(lambda t: t.index_select(dim, index))

    def split(self, rows: int) -> Iterator[Inputs]:
        return (self[i : i + rows] for i in range(0, len(self), rows))

    def is_floating_point(self) -> bool:
        """Whether all values are real numbers, which have a mean."""
        return all(t.is_floating_point() for t in self.parts.values())


DTYPES = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}  # of inputs in memory
Change = Callable[[int, Any], Any]  # (place in the batch, a row) → a row


class Source(Protocol):
    """Rows that are not in memory, such as those of a file."""

    def __len__(self) -> int: ...
    def read(self, rows: np.ndarray, change: Change | None = None) -> Tensor | Inputs:
        """Return these rows, in this order, each changed if `change` is given."""
        ...

    def describe(self) -> str:
        """Return what a row is, in a few words."""
        ...


@dataclass(frozen=True, eq=False)
class Stored:
    """Rows that are read when a model is called: selecting some of them reads nothing.

    `transform` changes a row whenever it is trained on, with a generator that follows from (seed, round,
    party, step); it is not applied to rows that a model is evaluated on.
    """

    source: Source
    index: Tensor  # which rows of the source, in order
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    transform: Callable[[Any, torch.Generator], Any] | None = None

    @classmethod
    def of(cls, source: Source, transform: Callable[[Any, torch.Generator], Any] | None = None) -> Stored:
        """Return all rows of a source."""
        return cls(source, torch.arange(len(source)), transform=transform)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: Any) -> Stored:
        index = index.to(self.index.device) if isinstance(index, Tensor) else index
        return replace(self, index=self.index[index])

    def __repr__(self) -> str:
        return f"<Stored {len(self)} rows: {self.describe()}>"

    def describe(self) -> str:
        return self.source.describe()

    @cached_property
    def _sample(self) -> Tensor | Inputs:
        return self.source.read(np.zeros(1, dtype=np.int64))

    @property
    def shape(self) -> torch.Size:
        """[N, …] as if the rows were in memory, by the first row of the source."""
        return torch.Size([len(self), *self._sample.shape[1:]])

    def to(self, device: Any) -> Stored:
        return self if torch.device(device) == self.device else replace(self, device=torch.device(device))

    def cpu(self) -> Stored:
        return self.to("cpu")

    def index_select(self, dim: int, index: Tensor) -> Stored:
        return self[index]

    def split(self, rows: int) -> Iterator[Stored]:
        return (self[i : i + rows] for i in range(0, len(self), rows))

    def is_floating_point(self) -> bool:
        return self._sample.is_floating_point()

    def read(self) -> Tensor | Inputs:
        """Return the rows in memory, on their device."""
        return self.source.read(self.index.numpy()).to(self.device)

    def read_to_train(self, key: int) -> Tensor | Inputs:
        """Return the rows as a step trains on them: each changed by the transform."""
        if self.transform is None:
            return self.read()
        transform = self.transform

        def change(place: int, row: Any) -> Any:
            return transform(row, torch.Generator().manual_seed(_seed_of_row(key, place)))

        return self.source.read(self.index.numpy(), change).to(self.device)


def _seed_of_row(key: int, place: int) -> int:
    """Return a seed below 2^63 for the row at this place of a step's batch."""
    digest = hashlib.blake2b(f"transform {key} {place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


Features = Tensor | Inputs | Stored  # the x of rows


def read(x: Features) -> Tensor | Inputs:
    """Return rows in memory."""
    return x.read() if isinstance(x, Stored) else x


def tensors_of(x: Features) -> list[Tensor]:
    """Return the tensors of rows."""
    x = read(x)
    return [x] if isinstance(x, Tensor) else list(x.parts.values())


def bytes_of_row(x: Features) -> int:
    """Return the size of one row."""
    return sum(t.numel() * t.element_size() for t in tensors_of(x[:1]))


def stack_rows(rows: Sequence[Tensor | Inputs]) -> Tensor | Inputs:
    """Return single rows as one; ValueError if they have different shapes."""
    first = rows[0]
    if isinstance(first, Tensor):
        return _stack("rows", [r for r in rows if isinstance(r, Tensor)])
    each = [r for r in rows if isinstance(r, Inputs)]
    return Inputs({k: _stack(k, [r.parts[k] for r in each]) for k in first.parts}, first.is_named)


def _stack(name: str, rows: list[Tensor]) -> Tensor:
    shapes = sorted({tuple(r.shape) for r in rows})
    if len(shapes) > 1:
        raise ValueError(f"{name} have different shapes, such as {shapes[0]} and {shapes[-1]}")
    return torch.stack(rows)


def concatenate(xs: Sequence[Features]) -> Features:
    """Return the rows of all, which have the same inputs."""
    if len(xs) == 1:
        return xs[0]
    each = [x for x in map(read, xs) if isinstance(x, Inputs)]
    if not each:
        return torch.cat([one_tensor("concatenate", x) for x in xs])
    first = each[0]
    return Inputs({k: torch.cat([x.parts[k] for x in each]) for k in first.parts}, first.is_named)


def blank_rows(x: Features, rows: int) -> Features:
    """Return rows of zeros with the same inputs."""
    x = x if isinstance(x, Tensor | Inputs) else read(x[:1])
    if isinstance(x, Tensor):
        return x.new_zeros(rows, *x.shape[1:])
    return Inputs({k: t.new_zeros(rows, *t.shape[1:]) for k, t in x.parts.items()}, x.is_named)


def one_tensor(owner: str, x: Features) -> Tensor:
    """Return rows that must be one tensor; BadData if they have several inputs."""
    if isinstance(x, Tensor):
        return x
    what = "have several inputs" if isinstance(x, Inputs) else "are read from files"
    raise BadData(
        f"{owner}: needs rows of one tensor in memory, and these {what} ({x.describe()}). "
        "Use data of one array in memory."
    )


def outline_of(x: Features) -> dict[str, Any]:
    """Return types and shapes of a row as plain values, from which `blank_from` makes rows of zeros."""
    x = x if isinstance(x, Tensor | Inputs) else read(x[:1])
    parts = {"": x} if isinstance(x, Tensor) else x.parts
    each = {k: [str(t.dtype).removeprefix("torch."), list(t.shape[1:])] for k, t in parts.items()}
    return {"parts": each, "is_named": isinstance(x, Inputs) and x.is_named}


def blank_from(outline: Mapping[str, Any], rows: int) -> Tensor | Inputs:
    """Return rows of zeros, by what `outline_of` returned."""
    parts = {
        k: torch.zeros(rows, *shape, dtype=DTYPES[dtype]) for k, (dtype, shape) in outline["parts"].items()
    }
    return parts[""] if set(parts) == {""} else Inputs(parts, bool(outline["is_named"]))


def is_outline(value: Any) -> bool:
    """Whether a value, which may come from a damaged file, is what `outline_of` returns."""
    return (
        isinstance(value, dict)
        and set(value) == {"parts", "is_named"}
        and isinstance(value["is_named"], bool)
        and isinstance(value["parts"], dict)
        and len(value["parts"]) > 0
        and all(
            isinstance(name, str)
            and isinstance(part, list)
            and len(part) == 2
            and part[0] in DTYPES
            and isinstance(part[1], list)
            and all(type(n) is int and n > 0 for n in part[1])
            for name, part in value["parts"].items()
        )
    )
