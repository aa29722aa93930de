"""The result of `tacit.anonymize`: the table to publish, how it was produced, and every step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..parties.ledger import Ledger
from ..results import JobResult

if TYPE_CHECKING:
    import pandas

    from .builders import Builder
    from .hierarchies import Hierarchy
    from .history import ReleaseHistory


class HomogeneityWarning(UserWarning):
    """All rows of a class have the same sensitive value, so k-anonymity does not hide it."""


class IdentifierWarning(UserWarning):
    """A column that is published unchanged differs in every row, so it may identify people."""


class Step(NamedTuple):
    """One step of an algorithm: a sentence for readers, and its numbers for programs."""

    sentence: str
    counts: dict[str, Any]

    def __str__(self) -> str:
        return self.sentence


class LatticeNode(NamedTuple):
    """A node of the generalization lattice that the search evaluated."""

    levels: tuple[int, ...]  # in the order of `quasi`
    anonymous: bool
    loss: float | None  # None if the node is not anonymous
    suppressed: int
    classes: int


@dataclass
class AnonymizationResult(JobResult):
    """An anonymized table and how it was produced.

    `levels` is the generalization level of each column, None if it differs from cell to cell.
    """

    facts = ("method", "settings", "quasi", "sensitive", "levels", "loss", "classes", "warnings")
    shows_index = False  # row labels may identify people

    table: pandas.DataFrame = field(repr=False)
    # labels of the original rows that the table leaves out (or shows as * in every quasi-identifier)
    suppressed: list[Hashable] = field(repr=False)
    levels: dict[str, int | None]
    loss: float  # in the metric of `settings["metric"]`
    trace: list[Step] = field(repr=False)
    hierarchies: dict[str, Hierarchy] = field(repr=False)
    quasi: list[str]
    sensitive: list[str]
    method: str
    settings: dict[str, Any]  # every parameter of the job, resolved
    lattice: list[LatticeNode] | None = field(
        default=None, repr=False
    )  # the nodes a lattice search evaluated
    classes: int = 0  # equivalence classes of the published rows
    warnings: list[str] = field(default_factory=list)
    original: pandas.DataFrame | None = field(default=None, repr=False)  # the input, for the report only
    ledger: Ledger = field(default_factory=Ledger, repr=False)  # privacy spent, under differential privacy
    # the original row of each published one, which must not be published; None under differential privacy
    rows: np.ndarray | None = field(default=None, repr=False)
    # the column that tells whose a row is; it is not published
    person: str | None = field(default=None, repr=False)

    # of the columns whose hierarchy can be extended to new values
    builders: dict[str, Builder] = field(default_factory=dict, repr=False)
    history: ReleaseHistory | None = field(default=None, repr=False)  # the releases before this one

    def record_release(self) -> ReleaseHistory:
        """What this release, and those before it, published about whom. `tacit.anonymize_again` needs it.

        It contains ids and sensitive values, so it must be kept as the original is.
        """
        from .history import record_release

        return record_release(self)

    @property
    def is_matchable(self) -> bool:
        """Whether published rows can be matched to original ones, to measure utility."""
        return self.rows is not None

    def explain(self) -> str:
        """The trace, one numbered line per step."""
        return "\n".join(f"{i}. {step}" for i, step in enumerate(self.trace, 1))

    @property
    def value(self) -> pandas.DataFrame:
        return self.table

    def _page(self) -> str:
        from .report import render

        return render(self)
