"""The tables of a study: each cell's figure over its seeds next to the published one; and two studies
compared.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BadRun
from ...files import write_atomic
from ...numbers import is_finite
from .file import FIGURES, Cell, Study, Table

TIDY = (
    "study",
    "table",
    "row",
    "column",
    "seed",
    "choice",
    *FIGURES,
    "mean",
    "best_round",
    "published",
    "replicated",
    "parties",
    "smallest",
    "largest",
    "samples",
    "diverged",
)
DIGITS = 6  # of an accuracy, as a line has it
FILES = (
    "results.csv",
    "curves.csv",
    "summary.json",
    "results.parquet",
    "report.html",
)  # derived from the lines of finished runs


def figures(line: Mapping[str, Any], target: float | None) -> dict[str, Any]:
    """The four figures of one run. A round picked by the held-out rows asks nothing of the test set; the best
    round is picked on it. A run that diverged has no last figure, and its best is that of the rounds before.
    """
    known = [(r, t, h) for r, t, h in zip(line["rounds"], line["test"], line["held"]) if is_finite(t)]
    if not known:
        return {k: None for k in (*FIGURES, "mean", "best_round")}
    best = max(known, key=lambda v: v[1])
    by_held = [v for v in known if is_finite(v[2])]
    reached = [
        r for r, t, _ in known if target is not None and t >= round(target, DIGITS)
    ]  # a line has no more of it
    return {
        "mean": math.fsum(t for _, t, _ in known) / len(known),
        "best": best[1],
        "last": line["test"][-1] if is_finite(line["test"][-1]) else None,
        "picked": max(by_held, key=lambda v: v[2])[1] if by_held else None,
        "rounds": reached[0] if reached else None,
        "best_round": best[0],
    }


def finished(study: Study, lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The runs of the study that are done, in its order; the last line of each, where two processes had the
    same one. A run that stopped before its last round is done as long as the race it stopped for is the
    study's: neither the figure nor the target may have been changed since.
    """
    tables = {t.name: t for t in study.tables}
    last = {line["id"]: line for line in lines if line.get("kind") == "cell"}
    known = [(c, last[c.id]) for c in study.cells if c.id in last]
    first: dict[
        tuple[str, str, str], float
    ] = {}  # the round in which the target was reached with some value that was tried

    def reached(c: Cell, line: Mapping[str, Any]) -> float:
        t = tables[c.table]
        return math.inf if t.figure != "rounds" or (r := figures(line, t.target)["rounds"]) is None else r

    single = study.single
    for c, line in known:
        if c.place in single:
            first[c.place] = min(reached(c, line), first.get(c.place, math.inf))
    return [
        line
        for c, line in known
        if line["rounds"][-1] >= c.rounds
        or reached(c, line) < math.inf
        or first.get(c.place, math.inf) <= line["rounds"][-1]
    ]


def tidy(study: Study, lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row a run."""
    tables, rows = {t.name: t for t in study.tables}, []
    for line in finished(study, lines):
        t = tables[line["table"]]
        rows.append(
            {
                "study": study.name,
                **{k: line[k] for k in ("table", "row", "column", "seed", "choice")},
                **figures(line, t.target),
                "published": t.published.get(line["row"], {}).get(line["column"]),
                "replicated": t.replicated.get(line["row"], {}).get(line["column"]),
                "parties": line["parties"],
                "smallest": line["sizes"][0],
                "largest": line["sizes"][1],
                "samples": line["samples"],
                "diverged": line["diverged"],
            }
        )
    return rows


def summary(study: Study, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything a reader is shown, as plain values."""
    rows = tidy(study, lines)
    stacks = [line for line in lines if line.get("kind") == "stack"]
    loop = next((line for line in lines if line.get("kind") == "loop"), None)
    samples = sum(r["samples"] for r in rows)
    seconds = sum(s["seconds"] for s in stacks)
    found = {
        "study": study.name,
        "title": study.title,
        "source": study.source,
        "about": study.about,
        "quick": study.quick,
        "changed": study.changed,
        "notes": list(study.notes),
        "runs": len(study.cells),
        "done": len(rows),
        "samples": samples,
        "seconds": seconds,
        "devices": sorted({f"{s['device']}, {s['precision']}" for s in stacks}),
        "one_by_one": None
        if loop is None
        else {
            "samples_per_second": loop["samples"] / loop["seconds"],
            "measured_seconds": loop["seconds"],
            "extrapolated_seconds": samples * loop["seconds"] / loop["samples"],
            "device": loop["device"],
        },
        "tables": [
            _table(
                t,
                [r for r in rows if r["table"] == t.name],
                [c for c in study.cells if c.table == t.name],
                study.quick,
            )
            for t in study.tables
        ],
    }
    return found


def _table(t: Table, rows: list[dict[str, Any]], planned: list[Cell], quick: bool) -> dict[str, Any]:
    cells = []
    for row in t.rows:
        for column in t.columns:
            here = [r for r in rows if (r["row"], r["column"]) == (row, column)]
            if here or column in t.published.get(row, {}) or column in t.replicated.get(row, {}):
                cells.append(
                    {
                        "row": row,
                        "column": column,
                        **_cell(t, here),
                        "asked": len({c.seed for c in planned if (c.row, c.column) == (row, column)}),
                        "published": t.published.get(row, {}).get(column),
                        "replicated": t.replicated.get(row, {}).get(column),
                    }
                )
    table = {
        "name": t.name,
        "about": t.about,
        "figure": t.figure,
        "target": t.target,
        "rows": list(t.rows),
        "columns": list(t.columns),
        "cells": cells,
    }
    whole = sum(r["column"] == t.columns[0] for r in rows) == sum(c.column == t.columns[0] for c in planned)
    why = (
        "Not known from a quick look." if quick else "" if whole else "Not known yet: not every run is done."
    )
    return table | ({"claim": _claim(t, cells, why)} if t.claim else {})


def _cell(t: Table, here: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread (the standard deviation over seeds) of each figure, of the tuned value that does best
    by the figure that is shown.
    """
    choices = list(dict.fromkeys(r["choice"] for r in here))
    if not choices:
        return {"seeds": 0, "choice": "", "diverged": 0, "reached": 0} | {
            k: {"mean": None, "spread": None} for k in (*FIGURES, "mean")
        }

    def worth(choice: str) -> tuple[float, float]:
        tried = [r for r in here if r["choice"] == choice]
        if (
            t.figure == "rounds"
        ):  # fewer are better, and the target must be reached; where none did, it is by how near they came
            return -_mean([r["rounds"] if r["rounds"] is not None else 1e9 for r in tried]), _mean(
                [r["best"] or 0.0 for r in tried]
            )
        return _mean([r[t.figure] or 0.0 for r in tried]), 0.0

    chosen = max(choices, key=worth)
    mine = [r for r in here if r["choice"] == chosen]
    counts = {
        "seeds": len(mine),
        "choice": chosen,
        "diverged": sum(r["diverged"] for r in mine),
        "reached": sum(r["rounds"] is not None for r in mine),
    }
    return counts | {k: _spread([r[k] for r in mine]) for k in (*FIGURES, "mean")}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    known = [v for v in values if v is not None]
    if len(known) < len(values) or not known:
        return {"mean": None, "spread": None}
    mean = _mean(known)
    return {
        "mean": mean,
        "spread": math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1))
        if len(known) > 1
        else None,
    }


def _claim(t: Table, cells: list[dict[str, Any]], why: str) -> dict[str, Any]:
    """Whether the figures go down the rows as is known of them, in the first column; or why that cannot be
    said.
    """
    assert t.claim is not None
    measure, within = t.claim.get("measure", "last"), float(t.claim.get("within", 0.02))
    values = [c[measure]["mean"] for c in cells if c["column"] == t.columns[0]]
    why = why or (
        "Ours cannot be held to it: a run diverged, or has no such figure."
        if any(v is None for v in values)
        else ""
    )
    if why:
        return {**t.claim, "holds": None, "text": f"{t.claim.get('says', '')} {why}".strip()}
    low, high, change = min(values), max(values), values[-1] - values[0]
    expect = t.claim["expect"]
    holds = (
        high - low <= within
        if expect == "same"
        else change >= within
        if expect == "rises"
        else change <= -within
    )
    what = (
        f"from {values[0]:.3f} to {values[-1]:.3f} down the rows, {high - low:.3f} between the lowest "
        "and the highest"
    )
    return {
        **t.claim,
        "holds": holds,
        "text": f"{t.claim.get('says', '')} Ours {'agrees' if holds else 'does NOT agree'}: {what}.".strip(),
    }


# --- as text and files --------------------------------------------------------------------------------------


def shown(figure: str, value: Any, spread: Any = None) -> str:
    if value is None:
        return "–"
    if figure == "rounds":
        return f"{value:.0f}" + (f" ± {spread:.0f}" if spread is not None else "")
    return f"{value:.3f}".removeprefix("0") + (
        f" ± {spread:.3f}".replace("± 0", "± ") if spread is not None else ""
    )


def faster(first: Mapping[str, Any] | None, cell: Mapping[str, Any], whose: str) -> str:
    """How many times fewer rounds than the table's first row, which the others are measured by."""
    if first is None:
        return ""
    a, b = ((c["rounds"]["mean"] if whose == "ours" else c["published"]) for c in (first, cell))
    return f", {a / b:.1f}×" if a and b else ""


def text_table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of one table: ours, then (published), then [replicated]."""
    by = {(c["row"], c["column"]): c for c in found["cells"]}
    rows = []
    for row in found["rows"]:
        cells = []
        for column in found["columns"]:
            c = by.get((row, column))
            if c is None:
                cells.append("")
                continue
            words = shown(found["figure"], c[found["figure"]]["mean"], c[found["figure"]]["spread"])
            if found["figure"] == "rounds" and words == "–" and c["seeds"]:
                words = (
                    f"reached from {c['reached']} of {c['seeds']} seeds" if c["reached"] else "not reached"
                ) + f", best {shown('best', c['best']['mean'])}"
            words += f", {c['seeds']} of {c['asked']} seeds" if 0 < c["seeds"] < c["asked"] else ""
            words += (
                ""
                if not c["diverged"]
                else " diverged"
                if c["diverged"] == c["seeds"]
                else f", {c['diverged']} of {c['seeds']} diverged"
            )
            first = (
                by.get((found["rows"][0], column))
                if found["figure"] == "rounds" and row != found["rows"][0]
                else None
            )
            words += faster(first, c, "ours")
            words += (
                f" ({shown(found['figure'], c['published'])}{faster(first, c, 'published')})"
                if c["published"] is not None
                else ""
            )
            words += f" [{shown(found['figure'], c['replicated'])}]" if c["replicated"] is not None else ""
            cells.append(words)
        rows.append([row, *cells])
    return [found["name"], *found["columns"]], rows


def write_files(directory: Path, study: Study, lines: Sequence[Mapping[str, Any]]) -> list[Path]:
    """results.csv, curves.csv, and results.parquet where pyarrow is there."""
    rows = tidy(study, lines)
    write_atomic(directory / "results.csv", _csv(TIDY, rows))
    curves = [
        {
            "table": line["table"],
            "row": line["row"],
            "column": line["column"],
            "seed": line["seed"],
            "choice": line["choice"],
            "round": r,
            "test": t,
            "held": h,
        }
        for line in finished(study, lines)
        for r, t, h in zip(line["rounds"], line["test"], line["held"])
    ]
    write_atomic(
        directory / "curves.csv",
        _csv(("table", "row", "column", "seed", "choice", "round", "test", "held"), curves),
    )
    write_atomic(directory / "summary.json", json.dumps(summary(study, lines), indent=1))
    files = [directory / "results.csv", directory / "curves.csv", directory / "summary.json"]
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError:
        return files
    buffer = io.BytesIO()
    pandas.DataFrame(rows, columns=list(TIDY)).to_parquet(buffer)
    write_atomic(directory / "results.parquet", buffer.getvalue())
    return [*files, directory / "results.parquet"]


def _csv(head: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, head, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def read(directory: str | Path) -> dict[str, Any]:
    """The summary of a study's directory."""
    path = Path(directory) / "summary.json"
    again = f"Run the study again with --out {directory}; what is done is not computed again."
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if (path.parent / "study.json").exists():
            raise BadRun(
                f"{directory} holds a study that was stopped before it wrote a summary. {again}"
            ) from None
        raise BadRun(
            f"{directory} holds no study: there is no summary.json in it. Give a directory that `tacit "
            "study` wrote."
        ) from None
    except (OSError, ValueError) as error:
        raise BadRun(f"{path} cannot be read: {error}. {again}") from None
    if not isinstance(found, dict) or not {"study", "quick", "tables"} <= found.keys():
        raise BadRun(f"{path} is not the summary of a study. Give a directory that `tacit study` wrote.")
    return found


def diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Cell by cell: b less a, and whether that is more than two standard errors of both, where there are
    several seeds; and what only one of them has.
    """
    cells, notes = [], []
    left, right = (
        {(t["name"], c["row"], c["column"]): (t, c) for t in x["tables"] for c in t["cells"] if c["seeds"]}
        for x in (a, b)
    )
    for name, (t, c) in left.items():
        if name not in right:
            continue
        table, other = right[name]
        figure = t["figure"]
        x, y = c[figure], other[figure]
        change = None if x["mean"] is None or y["mean"] is None else y["mean"] - x["mean"]
        errors = [v["spread"] ** 2 / n["seeds"] for v, n in ((x, c), (y, other)) if v["spread"] is not None]
        clear = None if change is None or len(errors) < 2 else abs(change) > 2 * math.sqrt(sum(errors))
        cells.append(
            {
                "table": name[0],
                "row": name[1],
                "column": name[2],
                "figure": figure,
                "a": x["mean"],
                "b": y["mean"],
                "difference": change,
                "clear": clear,
            }
        )
        for what in ("figure", "target"):
            if t[what] != table[what]:
                notes.append(
                    f"{name[0]}: the {what} of the first is {t[what]}, of the second {table[what]}; "
                    f"compared is {figure}."
                )
    if not cells:
        raise BadRun(
            f"the two studies ({a['study']} and {b['study']}) have no cell in common, so there is nothing "
            "to compare. Give two runs of one study."
        )
    if a["quick"] != b["quick"]:
        notes.append(
            f"The {'first' if a['quick'] else 'second'} is a quick look, whose figures come from a few rows "
            "and rounds; the other is not."
        )
    for which, x in (("first", a), ("second", b)):
        if x.get("changed") and a.get("changed") != b.get("changed"):
            notes.append(f"The {which} was run with {x['changed']}.")
    only = {
        which: [dict(zip(("table", "row", "column"), name)) for name in mine if name not in others]
        for which, mine, others in (("a", left, right), ("b", right, left))
    }
    return {
        "a": a["study"],
        "b": b["study"],
        "cells": cells,
        "only": only,
        "notes": list(dict.fromkeys(notes)),
    }
