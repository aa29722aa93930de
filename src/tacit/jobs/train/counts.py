"""The counts of an evaluation as a party sends them, and how many bytes that takes.

    sums     float64   rows, summed loss, the sums that intervals and errors need, the summed loss of each
                       member of a model whose members stop by their own, and the sums of own metrics
    cells    int16/32  the cell of every row in the confusion matrix and in each histogram, sorted (with
                       more than 1,000 classes: its true class and whether it is hit, its predicted class); or
    dense    int32     the number of rows in every cell, where that is shorter

A party with few rows sends a few bytes per row, and one with many sends its histograms. Which of the two
follows from the number of rows, so the size of a message depends on that number only. The order of the
cells is fixed: it says nothing about the order of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...algorithms.types import State
from ...engine.evaluation import tally_rows, who_reports
from ...engine.metrics import Counts, is_condensed, per_class
from ...engine.subgroups import Tally
from ...errors import ProtocolError
from .elsewhere import Elsewhere
from .plan import Plan

MANY = 1 << 40  # rows of a party: no list of them is shorter than dense counts


def pack_tally(tally: Tally) -> State:
    """Return counts as the vectors of a message."""
    sent, numbers = {"sums": tally.sums}, tally.numbers
    if not len(numbers):
        return sent
    if is_listed(int(numbers.sum()), len(numbers)):
        at = torch.repeat_interleave(torch.arange(len(numbers)), numbers)
        return sent | {"cells": at.to(_position_type(len(numbers)))}
    return sent | {"dense": numbers.to(torch.int32)}


def unpack_tally(sent: Mapping[str, Tensor], blank: Tally) -> Tally:
    """Return the counts of a message; `blank` has their shapes. ProtocolError if it is not one of counts."""
    sums, total = sent.get("sums"), len(blank.numbers)
    if sums is None or sums.shape != blank.sums.shape or sums.dtype != torch.float64:
        raise ProtocolError("its counts have no sums, or not as many as this job has.")
    if set(sent) - {"sums"} != ({"cells"} if "cells" in sent else {"dense"} if total else set()):
        raise ProtocolError(f"its counts have the fields {sorted(sent)!r:.80}, which no counts have.")
    numbers = torch.zeros(total, dtype=torch.int64)
    if "cells" in sent:
        at = sent["cells"]
        if at.dim() != 1 or at.dtype != _position_type(total):
            raise ProtocolError(f"its counts are a list of {at.dtype}, not of {_position_type(total)}.")
        if len(at) and (int(at.min()) < 0 or int(at.max()) >= total):
            raise ProtocolError(f"its counts are of cells outside 0 … {total - 1}.")
        numbers = torch.bincount(at.long(), minlength=total)
    elif "dense" in sent:
        dense = sent["dense"]
        if tuple(dense.shape) != (total,) or dense.dtype != torch.int32 or bool((dense < 0).any()):
            raise ProtocolError(f"its counts are not {total} whole numbers of at least 0.")
        numbers = dense.long()
    if total and is_listed(int(numbers.sum()), total) != ("cells" in sent):
        raise ProtocolError("its counts are in the longer of the two forms.")
    tally = blank.fill(sums, numbers)
    for c in tally.parts:
        if not torch.isfinite(c.rows).all() or bool((c.rows < 0).any() or (c.rows != c.rows.round()).any()):
            raise ProtocolError("its counts are of a number of rows that is not a whole number.")
        if c.confusion.numel() and not _adds_up(c):
            raise ProtocolError("its counts do not add up to its number of rows.")
    return tally


def _adds_up(c: Counts) -> bool:
    """Whether every row has one true and one predicted class, and no class more hits than predictions."""
    hit, actual, predicted = per_class(c.confusion)
    both = torch.equal(actual.sum(-1), c.rows) and torch.equal(predicted.sum(-1), c.rows)
    return both and bool((hit <= predicted).all())


def blank_tally(p: Plan) -> Tally:
    """Return the counts of no rows, whose shapes are those of every party."""
    labels = tuple(p.fed.rows.y.shape[1:])  # one a row, or one a token
    rules = p.party_rules
    groups = None if len(p.fed.test.y) else p.fed.subgroups  # those of a test set are the server's
    tally = tally_rows(
        torch.zeros(0, *labels, p.fed.classes or 1),
        torch.zeros(0, *labels, dtype=torch.int64 if p.fed.classes else torch.float32),
        rules,
        groups,
        torch.zeros(0, 0 if groups is None else len(groups.columns), dtype=torch.int64),
    )
    if rules.members > 1:
        tally = tally._replace(members=torch.zeros(rules.members, dtype=torch.float64))
    return tally if rules.own is None else tally._replace(own=rules.own.begin().sums())


def is_listed(entries: int, cells: int) -> bool:
    """Whether a list with an entry for each row and histogram is shorter than the numbers of all cells."""
    return entries * _position_type(cells).itemsize < cells * torch.int32.itemsize


def sized_tally(rows: int, blank: Tally, columns: int) -> State:
    """Return a message of the size that counts of so many rows have, with subgroups by so many columns.

    Where rows have several labels, their labels count.
    """
    sent, cells = {"sums": blank.sums}, len(blank.numbers)
    if not cells:
        return sent
    positive = blank.total.positive
    histograms = len(positive) if positive.numel() else 0
    confusion = blank.total.confusion
    tables = 2 if is_condensed(confusion) else int(confusion.numel() > 0)
    entries = rows * (tables + histograms) * (1 + columns)
    if is_listed(entries, cells):
        return sent | {"cells": torch.zeros(entries, dtype=_position_type(cells))}
    return sent | {"dense": torch.zeros(cells, dtype=torch.int32)}


def tally_sizes(p: Plan) -> dict[int, int]:
    """Return how many parties send counts of how many labels; 0: a message without counts."""
    if isinstance(p.fed, Elsewhere):  # unknown: so many that all cells are sent
        return {MANY: len(p.fed)}
    y, owner = p.fed.rows.y[p.fed.held.index], p.fed.held.owner
    labels = (
        (y >= 0).flatten(1).sum(1)
        if p.fed.classes is not None and y.dim() > 1
        else torch.ones(len(y), dtype=torch.int64)
    )
    each = torch.bincount(owner, weights=labels.double(), minlength=len(p.fed)).long()
    each = torch.where(who_reports(p.fed, p.min_rows, p.sums_only), each, 0)
    found, parties = torch.unique(each, return_counts=True)
    return dict(zip(found.tolist(), parties.tolist()))


def _position_type(cells: int) -> torch.dtype:
    return torch.int16 if cells <= 1 << 15 else torch.int32
