"""Table 1: groups as columns, characteristics as rows, as journals print it."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .columns import MISSING, OTHER
from .comparisons import GroupTest, anova, chi_square, mean_difference, share_difference, ttest
from .description import ALL, ColumnMoments, Descriptions
from .disclosure import suppress, suppress_table
from .noisy_crosstab import independence_test
from .noisy_tests import CLEAR, compare_means


@dataclass(frozen=True)
class TableOptions:
    levels: dict[str, tuple[str, ...]]  # of each category
    by: str | None = None
    least: int = 5  # smallest count that is shown
    total: bool = True  # a column for all rows


def hide_counts(counts: Mapping[str, int], least: int) -> dict[str, bool]:
    """Which counts by group are not shown, beside a total that is: rows without a group are one more."""
    groups = [g for g in counts if g != ALL]
    rest = counts[ALL] - sum(counts[g] for g in groups)
    hidden = suppress(np.array([*(counts[g] for g in groups), rest]), least)
    return {ALL: 0 < counts[ALL] < least} | {g: bool(h) for g, h in zip(groups, hidden)}


def hide_levels(tables: Mapping[str, np.ndarray], least: int) -> dict[str, np.ndarray]:
    """Which counts by group and level are not shown, beside the totals of groups and of levels."""
    groups = [g for g in tables if g != ALL]
    if not groups:
        return {ALL: suppress(tables[ALL], least)}
    rest = tables[ALL] - sum(tables[g] for g in groups)
    hidden = suppress_table(np.stack([*(tables[g] for g in groups), rest]), least)
    return {ALL: suppress(tables[ALL], least)} | dict(zip(groups, hidden))


def tidy(found: Descriptions, options: TableOptions) -> pd.DataFrame:
    """One row for each column, level and group: numbers for further work."""
    rows = []
    for column, groups in found.numbers.items():
        hidden = few_rows(groups, options.least)
        absent = hide_missing(groups, options.least)
        for group, m in groups.items():
            few = hidden[group]
            # n beside the number of rows would show how many are missing
            known = math.nan if few or absent[group] else float(m.n)
            entry = {"column": column, "level": "", "group": group, "n": known}
            entry["missing"] = math.nan if absent[group] else float(m.missing)
            entry |= {"mean": math.nan if few else m.mean, "sd": math.nan if few else m.sd}
            if m.interval is not None:
                entry |= {"mean_low": m.interval[0], "mean_high": m.interval[1]}
            for q, (low, value, high) in m.quantiles.items():
                entry[f"q{q * 100:g}"] = math.nan if few else value
                if m.interval is not None:
                    entry |= {f"q{q * 100:g}_low": low, f"q{q * 100:g}_high": high}
            rows.append(entry)
    for column, tables in found.categories.items():
        names = [*options.levels[column], OTHER, MISSING]
        masks = hide_levels(tables, options.least)
        for group, counts in tables.items():
            present = int(counts[:-1].sum())
            for name, number, shut in zip(names, counts, masks[group]):
                if name == OTHER and number == 0:
                    continue
                count = math.nan if shut else float(number)
                share = count / present if present and name != MISSING else math.nan
                rows.append({"column": column, "level": name, "group": group, "n": count, "share": share})
    order = ["column", "level", "group", "n", "missing", "mean", "sd"]
    frame = pd.DataFrame(rows)
    columns = [c for c in order if c in frame] + [c for c in frame if c not in order]
    return frame[columns]


def few_rows(groups: Mapping[str, ColumnMoments], least: int) -> dict[str, bool]:
    """Groups whose figures are not shown: those with few rows, and the total if it would give them away."""
    few = {g: m.n < least for g, m in groups.items()}
    rest = groups[ALL].n - sum(m.n for g, m in groups.items() if g != ALL) if len(groups) > 1 else 0
    few[ALL] = few[ALL] or 0 < rest < least or any(0 < m.n < least for m in groups.values())
    return few


def hide_missing(groups: Mapping[str, ColumnMoments], least: int) -> dict[str, bool]:
    return hide_counts({g: m.missing for g, m in groups.items()}, least)


def compare_groups(found: Descriptions, options: TableOptions) -> pd.DataFrame:
    """One test for each column, by its kind and the number of groups; the SMD of two groups."""
    rows = []
    groups = [g for g in found.rows if g != ALL]
    for column, by_group in found.numbers.items():
        parts = [by_group[g] for g in groups]
        n, mean, sd = [m.n for m in parts], [m.mean for m in parts], [m.sd for m in parts]
        enough = all(k >= options.least for k in n)
        test = (
            GroupTest("", math.nan, math.nan)
            if not enough
            else compare_means(parts)
            if parts[0].interval is not None
            else ttest(n, mean, sd)
            if len(groups) == 2
            else anova(n, mean, sd)
        )
        smd = mean_difference(mean, sd) if len(groups) == 2 and enough else math.nan
        rows.append({"column": column, "test": test.name, **_numbers(test), "smd": smd})
    for column, (counts, variance) in found.noisy_counts.items():
        declared = counts[:, :-2]
        statistic, p = independence_test(declared, variance, np.random.default_rng(0))
        enough = len(groups) == 2 and bool((declared > CLEAR * math.sqrt(variance)).all())
        smd = share_difference(*declared) if enough else math.nan
        rows.append({"column": column, "test": "χ², simulated", "statistic": statistic, "p": p, "smd": smd})
    for column, tables in found.categories.items() if not found.noisy_counts else ():
        counts = np.stack([tables[g][:-1] for g in groups])
        hidden = any(mask[:-1].any() for g, mask in hide_levels(tables, options.least).items() if g != ALL)
        test = GroupTest("χ²", math.nan, math.nan) if hidden else chi_square(counts)
        smd = share_difference(*counts) if len(groups) == 2 and not hidden else math.nan
        rows.append({"column": column, "test": test.name, **_numbers(test), "smd": smd})
    return pd.DataFrame(rows, columns=["column", "test", "statistic", "df", "p", "smd"]).set_index("column")


def _numbers(test: GroupTest) -> dict[str, float]:
    return {"statistic": test.statistic, "df": test.df, "p": test.p}


def table_one(found: Descriptions, options: TableOptions, tests: pd.DataFrame | None) -> pd.DataFrame:
    """The table of texts."""
    groups = [g for g in found.rows if g != ALL] + ([ALL] if options.total or options.by is None else [])
    small = hide_counts(found.rows, options.least)
    table: dict[str, dict[str, str]] = {
        "n": {g: _count(found.rows[g], options.least, small[g]) for g in groups}
    }
    first: dict[str, str] = {}
    for column, by_group in found.numbers.items():
        label = f"{column}, mean (SD)"
        first[column] = label
        few = few_rows(by_group, options.least)
        table[label] = {
            g: "–" if few[g] else f"{format_number(by_group[g].mean)} ({format_number(by_group[g].sd)})"
            for g in groups
        }
        quantiles = next(iter(by_group.values())).quantiles or by_group[ALL].quantiles
        if {0.25, 0.5, 0.75} <= set(quantiles):
            table[f"{column}, median [Q1, Q3]"] = {
                g: "–" if few[g] else _median(by_group[g].quantiles) for g in groups
            }
        if any(by_group[g].missing for g in groups):
            absent = hide_missing(by_group, options.least)
            table[f"{column}, missing"] = {
                g: _count(by_group[g].missing, options.least, absent[g]) for g in groups
            }
    for column, tables in found.categories.items():
        label = f"{column}, n (%)"
        first[column] = label
        table[label] = dict.fromkeys(groups, "")
        masks = hide_levels(tables, options.least)
        for i, name in enumerate([*options.levels[column], OTHER, MISSING]):
            if name in (OTHER, MISSING) and not any(tables[g][i] for g in groups):
                continue
            row = {}
            for g in groups:
                counts = tables[g]
                present = int(counts[:-1].sum())
                share = f" ({100 * counts[i] / present:.1f})" if present and name != MISSING else ""
                shut = bool(masks[g][i])
                row[g] = _count(int(counts[i]), options.least, shut) + ("" if shut else share)
            table[f"  {column}: {name}"] = row
    frame = pd.DataFrame.from_dict(table, orient="index", columns=groups).fillna("")
    if tests is not None and len(tests):
        for name, form in (("p", format_p), ("test", str), ("smd", format_number)):
            values = {label: form(tests.loc[column, name]) for column, label in first.items()}
            frame["SMD" if name == "smd" else name] = [values.get(str(label), "") for label in frame.index]
    return frame.rename(columns={ALL: "All"})


def _count(value: int, least: int, hidden: bool) -> str:
    return f"{value:,}" if not hidden else f"<{least}" if value < least else "–"


def format_number(value: float) -> str:
    """Four significant digits, without an exponent where that is readable."""
    if math.isnan(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = 3 - (math.floor(math.log10(abs(value))) if value else 0)
        return f"{value:,.{min(max(digits, 0), 6)}f}"
    return f"{value:.3g}"


def _median(quantiles: dict[float, tuple[float, float, float]]) -> str:
    low, middle, high = (format_number(quantiles[q][1]) for q in (0.25, 0.5, 0.75))
    return f"{middle} [{low}, {high}]"


def format_p(value: float) -> str:
    return "–" if math.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


def to_text(frame: pd.DataFrame) -> str:
    """Columns aligned, for a terminal."""
    cells = [
        ["", *map(str, frame.columns)],
        *([str(i), *row] for i, row in zip(frame.index, frame.to_numpy())),
    ]
    widths = [max(len(str(row[j])) for row in cells) for j in range(len(cells[0]))]
    lines = [
        "  ".join(
            str(v).ljust(w) if j == 0 else str(v).rjust(w) for j, (v, w) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def to_html(frame: pd.DataFrame) -> str:
    """A table of escaped texts, without styles of its own."""
    head = "".join(f"<th>{html.escape(str(c))}</th>" for c in frame.columns)
    body = "".join(
        f"<tr><th>{_indent(str(i))}</th>" + "".join(f"<td>{html.escape(str(v))}</td>" for v in row) + "</tr>"
        for i, row in zip(frame.index, frame.to_numpy())
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _indent(text: str) -> str:
    return html.escape(text).replace("  ", "&emsp;", 1) if text.startswith("  ") else html.escape(text)


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$",
    "–": "--", "χ": r"$\chi$", "²": r"$^2$",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text.strip())


def to_latex(frame: pd.DataFrame) -> str:
    """A tabular of the package booktabs."""
    lines = [rf"\begin{{tabular}}{{l{'r' * len(frame.columns)}}}", r"\toprule"]
    lines.append(
        " & ".join([_latex(str(frame.index.name or "")), *(_latex(str(c)) for c in frame.columns)]) + r" \\"
    )
    lines.append(r"\midrule")
    for label, row in zip(frame.index, frame.to_numpy()):
        name = (r"\quad " if str(label).startswith("  ") else "") + _latex(str(label))
        lines.append(" & ".join([name, *(_latex(str(v)) for v in row)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])
