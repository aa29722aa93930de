"""What `tacit.anonymize` gives back: the table to publish, what was done to it, and every step on the way."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas

    from ..parties.ledger import Ledger
    from .hierarchies import Hierarchy


class Homogeneous(UserWarning):
    """Rows look alike, and have the same sensitive value too: k-anonymity hides nothing about them."""


class Naming(UserWarning):
    """A column that is published as it is differs in every row: k-anonymity of the others does not hide who
    is who.
    """


class Step(NamedTuple):
    """One step of an algorithm: a sentence for the reader, and its numbers for a program."""

    sentence: str
    counts: dict[str, Any]

    def __str__(self) -> str:
        return self.sentence


class Visited(NamedTuple):
    """A node of the generalisation lattice the search looked at. `loss` is None where the node is not
    anonymous.
    """

    levels: tuple[int, ...]  # in the order of `quasi`
    anonymous: bool
    loss: float | None
    suppressed: int
    classes: int


@dataclass
class Anonymized:
    """An anonymous table and how it came about. `levels` holds a column's generalisation level, or None where
    it differs from cell to cell.
    """

    table: pandas.DataFrame = field(repr=False)
    suppressed: list[Hashable] = field(
        repr=False
    )  # labels of the original's rows that the table leaves out (or shows as * everywhere)
    levels: dict[str, int | None]
    loss: float  # in the metric of `settings["metric"]`
    trace: list[Step] = field(repr=False)
    hierarchies: dict[str, Hierarchy] = field(repr=False)
    quasi: list[str]
    sensitive: list[str]
    method: str
    settings: dict[str, Any]  # every parameter of the job, resolved
    lattice: list[Visited] | None = field(
        default=None, repr=False
    )  # of searches over a lattice; the chosen node is `levels`
    classes: int = 0  # equivalence classes among the rows that are published
    warnings: list[str] = field(default_factory=list)
    original: pandas.DataFrame | None = field(
        default=None, repr=False
    )  # the table that was given: for the report, never written by it
    ledger: Ledger | None = field(
        default=None, repr=False
    )  # what privacy was spent, where differential privacy was asked for
    shuffled: bool = False  # rows are in an order of their own: which was which cannot be told from the table

    def explain(self) -> str:
        """The trace, a numbered line a step."""
        return "\n".join(f"{i}. {step}" for i, step in enumerate(self.trace, 1))

    def report(self, path: str | Path) -> Path:
        """Write the report, one self-contained HTML file: before and after, risk, the lattice, what was
        suppressed.
        """
        from .report import write

        return write(self, path)
