"""What an inspection of a table found, and which of its values may be quoted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .cells import code_texts, to_text

if TYPE_CHECKING:
    from pandas import DataFrame, Series


@dataclass(frozen=True)
class Finding:
    """One problem of a table, and what the drafted job does about it.

    `proposal` is a line that another decision adds to [data], ready to be pasted.
    """

    problem: str
    column: str
    text: str
    treatment: str
    proposal: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.treatment}"


@dataclass
class Inspection:
    """What `inspect_table` found: keys of [data], the kinds of the columns, and the findings.

    The findings quote no value that fewer than `least` rows have: a draft that others read has a floor.
    """

    label: str
    by: str | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    labels: list[str] | None = None  # None: a regression
    majority: float = 0.0
    least: int = 0
    table: DataFrame | None = None  # the rows that were inspected, with declared spellings

    def note(self, problem: str, column: str, text: str, treatment: str, proposal: str = "") -> None:
        self.findings.append(Finding(problem, column, text, treatment, proposal))

    def leave_out(self, name: str, problem: str, text: str) -> None:
        """Drop a column, and note why."""
        self.kinds[name] = problem
        self.add("drop", name)
        self.note(problem, name, text, "Left out.")

    def frequent(self, values: Sequence[Any], column: Series) -> list[Any]:
        """Return those of some values that may be quoted: at least `least` rows have them."""
        return list(values) if self.least <= 1 else keep_frequent(values, column, self.least)

    def show(self, values: Sequence[Any], column: Series) -> str:
        """Quote values in a message; those of few rows are counted."""
        shown = self.frequent(values, column)
        hidden = len(values) - len(shown)
        words = ", ".join(map(repr, shown[:5])) + (", …" if len(shown) > 5 else "")
        if not hidden:
            return words
        count = "a value" if hidden == 1 else f"{hidden} values"
        return f"{words}{' and ' * bool(shown)}{count} that fewer than {self.least} rows have"

    def add(self, key: str, value: Any) -> None:
        """Add to a list, or to a table, of the settings."""
        if isinstance(value, dict):
            self.settings.setdefault(key, {}).update(value)
        else:
            self.settings.setdefault(key, []).append(value)


def keep_frequent(values: Sequence[Any], column: Series, least: int) -> list[Any]:
    """Return those of some values that at least `least` rows of a column have."""
    counts: dict[str, int] = dict(zip(*np.unique(to_text(column.dropna()), return_counts=True)))
    texts = code_texts(list(values))
    return [v for v, text in zip(values, texts) if max(counts.get(w, 0) for w in (text, str(v))) >= least]
