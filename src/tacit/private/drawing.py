"""What rows may be drawn from: a loader, a data set, tensors, or a number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, BadParameter
from ..parameters import bad
from .dpsgd import DPSGD


def find_rows(data: Any, s: DPSGD) -> tuple[int, Callable[[np.ndarray], Any] | None, int | None]:
    """(how many rows, how to fetch some, the loader's batch size)."""
    from torch.utils import data as torch_data

    if isinstance(data, bool) or data is None:
        raise bad(
            "DPSGD", "data", data, "a DataLoader, a torch Dataset, tensors (x, y), or the number of rows"
        )
    if isinstance(data, int | np.integer):
        if data < 1:
            raise bad("DPSGD", "data", data, "at least one row")
        return int(data), None, None
    if isinstance(data, torch_data.DataLoader):
        plain = (torch_data.RandomSampler, torch_data.SequentialSampler)
        if isinstance(data.dataset, torch_data.IterableDataset):
            raise BadParameter(
                "DPSGD: the loader's data set is a stream, from which rows cannot be drawn. Give a data set "
                "with a length, or use DPFTRL "
                "on its rows."
            )
        if (
            type(data.batch_sampler) is not torch_data.BatchSampler
            or type(data.sampler) not in plain
            or getattr(data.sampler, "replacement", False)
        ):
            sampler = type(
                data.sampler if type(data.batch_sampler) is torch_data.BatchSampler else data.batch_sampler
            ).__name__
            raise BadParameter(
                f"DPSGD: the loader draws its rows by a {sampler}, and ε would be that of {s.sampling!r} "
                "sampling: some rows would be "
                f"looked at more often "
                "than is accounted for. Make the loader without it. To weigh classes, call "
                "private.backward(F.cross_entropy(model(x), y, "
                "weight=w, reduction='none'))."
            )
        n, fetch, _ = find_rows(data.dataset, s)
        if data.collate_fn is not torch_data.default_collate:
            held, collate = data.dataset, data.collate_fn
            return n, lambda index: collate([held[int(i)] for i in index]), data.batch_size
        return n, fetch, data.batch_size
    if isinstance(data, torch_data.TensorDataset):
        data = data.tensors
    if hasattr(data, "rows") and hasattr(data, "test"):  # tacit's own Dataset
        held = data.centralize() if hasattr(data, "centralize") else data
        data = (held.rows.x, held.rows.y)
    if isinstance(data, tuple | list) and data and all(isinstance(t, Tensor) for t in data):
        sizes = {len(t) for t in data}
        if len(sizes) != 1 or 0 in sizes:
            raise BadData(
                f"DPSGD: the tensors have {[len(t) for t in data]} rows. Give each the same number, at "
                "least one."
            )
        tensors = tuple(data)

        def some(index: np.ndarray) -> Any:
            at = torch.from_numpy(np.ascontiguousarray(index))
            return tuple(t[at.to(t.device)] for t in tensors)

        return sizes.pop(), some, None
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return len(data), lambda index: torch_data.default_collate([data[int(i)] for i in index]), None
    raise bad(
        "DPSGD",
        "data",
        type(data).__name__,
        "a DataLoader, a torch Dataset, tensors (x, y), or the number of rows",
    )
