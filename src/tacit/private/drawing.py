"""Sources of rows: a loader, a data set, tensors, or a number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, BadParameter
from ..parameters import bad
from .dpsgd import DPSGD


@runtime_checkable
class RowTable(Protocol):
    """`tacit.data.Dataset` or `Federation`, which this package does not import."""

    @property
    def rows(self) -> Any: ...

    @property
    def test(self) -> Any: ...


@runtime_checkable
class MultiHolderTable(RowTable, Protocol):
    """`tacit.data.Dataset`, whose table may be prepared for several holders."""

    def centralize(self) -> RowTable: ...


@runtime_checkable
class Items(Protocol):
    """A map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


def read_rows(data: Any, s: DPSGD) -> tuple[int, Callable[[np.ndarray], Any] | None, int | None]:
    """Return (number of rows, function that fetches rows, the loader's batch size)."""
    from torch.utils import data as torch_data

    if isinstance(data, int | np.integer) and not isinstance(data, bool):
        if data < 1:
            raise bad("DPSGD", "data", data, "at least one row")
        return int(data), None, None
    if isinstance(data, torch_data.DataLoader):
        plain = (torch_data.RandomSampler, torch_data.SequentialSampler)
        if isinstance(data.dataset, torch_data.IterableDataset):
            raise BadParameter(
                "DPSGD: the loader's data set is iterable, so rows cannot be sampled. Use a data set with a "
                "length, or DPFTRL on its rows."
            )
        if (
            type(data.batch_sampler) is not torch_data.BatchSampler
            or type(data.sampler) not in plain
            or (isinstance(data.sampler, torch_data.RandomSampler) and data.sampler.replacement)
        ):
            sampler = type(
                data.sampler if type(data.batch_sampler) is torch_data.BatchSampler else data.batch_sampler
            ).__name__
            raise BadParameter(
                f"DPSGD: the loader uses a {sampler}, but ε assumes {s.sampling!r} sampling: some rows would "
                "be used more often than accounted for. Create the loader without it. To weight classes, "
                "call private.backward(F.cross_entropy(model(x), y, weight=w, reduction='none'))."
            )
        n, fetch, _ = read_rows(data.dataset, s)
        if data.collate_fn is not torch_data.default_collate:
            items, collate = data.dataset, data.collate_fn
            return n, lambda index: collate([items[int(i)] for i in index]), data.batch_size
        return n, fetch, data.batch_size
    if isinstance(data, torch_data.TensorDataset):
        data = data.tensors
    if isinstance(data, MultiHolderTable):
        data = data.centralize()
    if isinstance(data, RowTable):
        data = (data.rows.x, data.rows.y)
    if isinstance(data, tuple | list) and data and all(isinstance(t, Tensor) for t in data):
        sizes = {len(t) for t in data}
        if len(sizes) != 1 or 0 in sizes:
            raise BadData(
                f"DPSGD: the tensors have {[len(t) for t in data]} rows. Give each the same number, at least "
                "one."
            )
        tensors = tuple(data)

        def fetch_tensors(index: np.ndarray) -> Any:
            at = torch.from_numpy(np.ascontiguousarray(index))
            return tuple(t[at.to(t.device)] for t in tensors)

        return sizes.pop(), fetch_tensors, None
    if isinstance(data, Items):
        return len(data), lambda index: torch_data.default_collate([data[int(i)] for i in index]), None
    raise bad(
        "DPSGD",
        "data",
        data if data is None or isinstance(data, bool) else type(data).__name__,
        "a DataLoader, a torch Dataset, tensors (x, y), or the number of rows",
    )
