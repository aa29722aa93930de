"""Tables as they are published: models and other results as texts, in LaTeX or as CSV."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pandas as pd

from ..errors import BadParameter
from ..files import write_atomic
from .table_one import format_number, format_p, to_latex

if TYPE_CHECKING:
    from ..results import JobResult


@runtime_checkable
class Publishable(Protocol):
    """A result with a table of its own for publication."""

    def to_latex(self) -> str: ...


TABLES = (".csv", ".tex")
REPORTS = (".html", ".htm")


def format_estimates(summary: pd.DataFrame, ratios: pd.DataFrame, name: str | None) -> pd.DataFrame:
    """Return coefficients with errors, ratios (or coefficients) with intervals, and p, as texts by term."""
    out = pd.DataFrame(index=summary.index)
    out["coef (SE)"] = [
        f"{format_number(c)} ({format_number(s)})" for c, s in zip(summary["coef"], summary["se"])
    ]
    if name is None or not len(ratios):
        out["95% CI"] = _intervals(summary)
    else:
        shown = ratios.reindex(summary.index)
        out[f"{name} (95% CI)"] = [
            "" if math.isnan(r) else f"{format_number(r)} ({interval})"
            for r, interval in zip(shown[name], _intervals(shown))
        ]
    out["p"] = [format_p(p) for p in summary["p"]]
    return out.rename_axis(None)


def _intervals(table: pd.DataFrame) -> list[str]:
    return [f"{format_number(a)} to {format_number(b)}" for a, b in zip(table["low"], table["high"])]


def to_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of numbers as texts; its first column is the index if it has none."""
    cells: pd.DataFrame = frame.map(lambda v: format_number(v) if isinstance(v, float) else str(v))
    return cells if frame.index.name else cells.set_index(cells.columns[0])


def check_suffix(path: str | Path) -> str:
    """Return how a file ends, if a result can be written so."""
    suffix = Path(path).suffix.lower()
    if suffix not in (*REPORTS, *TABLES):
        raise BadParameter(
            f"{path}: the file must end in .html (the report), .csv (the numbers) or .tex (the table for "
            "LaTeX)."
        )
    return suffix


def write_result(result: JobResult, path: str | Path) -> Path:
    """Write a result's report, or its table, by how the file ends."""
    path, suffix = Path(path), check_suffix(path)
    if suffix in REPORTS:
        return result.report(path)
    table: pd.DataFrame = result.value
    if suffix == ".csv":
        text = table.to_csv(index=bool(table.index.name))
    else:
        text = (result.to_latex() if isinstance(result, Publishable) else to_latex(to_texts(table))) + "\n"
    write_atomic(path, text)
    return path
