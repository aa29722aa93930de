"""Messages and settings of `histograms.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..parties.message import Message


class CellLayout(
    Message,
    reveals="how many columns the sender has, in an order of its own, how many cells each has, and which are "
    "categories",
):
    settings: str
    widths: list[int]  # with the cell of missing values
    is_category: list[bool]


class PadKey(Message, reveals="a random key for pads that cancel in a sum: nothing"):
    key: bytes


class MaskedCells(Message, reveals="the sender's cells of each row under one-time masks: uniform words"):
    start: int
    values: Tensor


class SumRequest(
    Message,
    reveals="how many vectors are summed over cells; with reveal='splits' also which nodes follow from "
    "others, and which anonymous columns may be split",
):
    vectors: int
    parents: list[int]  # of each node to search: the place of its parent in the last request; −1: none
    news: list[int]  # the place of its, or its sibling's, new sums
    columns: list[int]


class SumCorrections(Message, reveals="one share of random products: uniform words"):
    values: list[Tensor]


class MaskedVectors(Message, reveals="the sender's numbers of each row under one-time masks: uniform words"):
    values: Tensor


class SumShares(
    Message,
    reveals="with the receiver's share: sums of the receiver's own numbers over each of the sender's "
    "anonymous cells",
):
    values: Tensor


class PaddedSums(
    Message,
    reveals="with the other's: sums of gradients, Hessians and rows over anonymous cells, without names, "
    "labels or rows",
):
    values: Tensor


class SplitCandidates(
    Message,
    reveals="the largest gain of each holder at each node; the splits are under pads that their holders know",
):
    gains: Tensor
    records: Tensor


class SideRequest(Message, reveals="how many splits a holder has at this level"):
    party: str
    splits: int


class SideCorrections(Message, reveals="one share of random products of bits: uniform bits"):
    values: Tensor


class SplitRequest(
    Message,
    reveals="which of the receiver's own columns are split where; the rows of the nodes are under one-time "
    "masks",
):
    records: Tensor
    serials: list[int]  # with reveal="splits": the pads of the records
    members: Tensor


class SplitSides(
    Message,
    reveals="for each row of a node that the receiver splits by the sender's column: whether it goes left",
):
    masked: Tensor
    share: Tensor


class TreeShapes(
    Message,
    reveals="the shape of the trees and which party each split belongs to; neither values of leaves nor "
    "splits",
):
    left: list[Tensor]
    owner: list[Tensor]
    split: list[Tensor]


class SumsEnd(Message, reveals="that the trees are finished, and a digest of their shape"):
    mark: str


class LeafKey(Message, reveals="a random key of the helper's: nothing"):
    key: bytes


class MaskedLeaves(Message, reveals="the values of all leaves under one-time masks: uniform words"):
    values: Tensor


@dataclass(frozen=True)
class HistogramTerms:
    """The settings that all parties agree on. `vectors` and `splits`: the most that L may ask for."""

    names: tuple[str, ...]
    label_at: str
    helper: str
    rows: int
    vectors: int
    splits: int
    reveal: str = "sums"
    text: str = ""  # all settings of the job, compared

    @property
    def holders(self) -> list[str]:
        """Those with columns that the label holder does not have."""
        return [n for n in self.names if n != self.label_at]

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> HistogramTerms:
        return cls(**{**table, "names": tuple(table["names"])})


class Layout:
    """A holder's anonymous columns."""

    def __init__(self, widths: Sequence[int], is_category: Sequence[bool]):
        self.widths, self.is_category = list(widths), list(is_category)
        self.cells = sum(self.widths)
        self.offsets = np.concatenate([[0], np.cumsum(self.widths)[:-1]]).astype(np.int64)
