"""Draft a job file from tables: `tacit job new a.csv [b.csv …]`.

Every problem that `data.findings` sees is listed, and the file has its proposed treatment, with a comment
that says why. The drafted file runs as it is: by `tacit run` in simulation, or with `real_parties` between
organizations (`tacit party`), where [data] is the layout that all parties agree on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import toml
from ..data.cells import show_row, to_text
from ..data.findings import Finding, Inspection, inspect_table
from ..data.joined_tables import PARTY, join_tables, name_files
from ..data.recipe import OTHER, RARE_COUNT, RARE_SHARE, Recipe
from ..data.table_files import check_reading, find_byte_order_mark, read_header, read_table, reading_in
from ..errors import BadData

if TYPE_CHECKING:
    from pandas import DataFrame

USUAL_PARTIES = 4  # of a table without a column of parties: a simulation needs some
ENCODINGS = (None, "cp1252")  # UTF-8 first; cp1252 is what spreadsheets of Windows write
# keys of [data] and the problems whose findings explain them
EXPLAINS = {
    "label": ("label", "class balance"),
    "by": ("parties",),
    "regression": ("integer outcome",),
    "missing_label": ("missing outcome",),
    "drop": (
        *("identifier", "empty", "constant", "leakage", "duration", "columns differ"),
        "formatted numbers",
    ),
    "categories": ("leading zeros", "many digits", "mixed", "codes"),
    "group": ("several rows of one person",),
    "missing_party": ("missing party",),
    "min_rows": ("tiny parties",),
    "dates": ("date", "time"),
    "missing_codes": ("sentinel", "mixed", "infinite"),
    "encoding": ("encoding",),
    "decimal": ("decimal",),
}
TABLES = ("dates", "date_formats", "missing_codes")


@dataclass(frozen=True)
class Draft:
    """A drafted job: its text, and what was found."""

    text: str
    findings: tuple[Finding, ...]
    kinds: dict[str, str]
    label: str
    settings: dict[str, Any] = field(default_factory=dict)


def draft_job(
    paths: Sequence[str | os.PathLike[str]],
    label: str | None = None,
    by: str | None = None,
    real_parties: bool = False,
    folder: Path | None = None,
    categories: Sequence[str] = (),
    name: str = "job.toml",
    reading: Mapping[str, Any] | None = None,
) -> Draft:
    """Return the draft of a job for these tables.

    `folder` is where the file will be, for relative paths, and `name` its name; `categories` are columns of
    numbers that are codes. `reading`: separator, decimal and encoding of the files; what it does not say is
    detected.
    """
    if not paths:
        raise BadData("give at least one table: tacit job new patients.csv")
    given = reading_in(reading or {})
    check_reading("job new", **given)
    frames: list[DataFrame] = []
    reads: list[dict[str, str]] = []
    notes: list[Finding] = []
    for path in paths:
        frame, how = _read(path, given)
        frames.append(frame)
        reads.append(how)
    found_reading = _agree_on_reading(paths, frames, reads, given)
    names = name_files(paths)
    if len(frames) > 1:
        if by is not None and by != PARTY:
            raise BadData(f"each file is a party, so --by {by} is not possible. Give one file, or no --by.")
        frame, by = _join(dict(zip(names, frames)), notes), PARTY
    else:
        frame = frames[0].rename(columns=str)

    def locate(place: int) -> str:
        k = 0
        while place >= len(frames[k]):
            place, k = place - len(frames[k]), k + 1
        return show_row(place) if len(frames) == 1 else f"row {place + 1} (line {place + 2}) of {paths[k]}"

    found = inspect_table(frame, label, by, categories, locate)
    found.findings[:0] = notes
    for key, value in found_reading.items():
        comma = "a decimal comma" if value == "," else "commas, and so have the separators of cells"
        what = {"encoding": "Not UTF-8; read as", "decimal": f"Numbers have {comma}; decimal sign"}[key]
        if key == "encoding" and "," in value:
            what = "Not all files are UTF-8; each is read as the first that fits of"
        found.note(key, "", f"{what} {value!r}.", "Declared.")
    if len(frames) > 1:
        found.settings["drop"] = [*found.settings.get("drop", ()), *(n.column for n in notes)]
    base = folder or Path.cwd()
    relative = [os.path.relpath(Path(p).resolve(), base.resolve()) for p in paths]
    settings = _layout(frame, found) if real_parties else _simulated(relative, found)
    settings = {**{k: v for k, v in settings.items() if k not in found_reading}, **given, **found_reading}
    return Draft(
        _write(settings, found, [str(p) for p in relative], real_parties, name),
        tuple(found.findings),
        found.kinds,
        found.label,
        settings,
    )


def _read(path: str | os.PathLike[str], given: Mapping[str, Any]) -> tuple[DataFrame, dict[str, str]]:
    """Read a table; return it and how it had to be read, besides what is `given`."""
    problem: BadData | None = None
    mark = find_byte_order_mark(path)
    for encoding in (None,) if "encoding" in given else ENCODINGS if mark is None else (mark,):
        how = {} if encoding is None else {"encoding": encoding}
        reading = {**given, **how}
        try:
            header = read_header(path, reading.get("separator"), reading.get("encoding"))
            try:
                return read_table(path, **reading), how
            except BadData as error:
                if "the numbers have a" not in str(error):
                    raise
                # in a file with commas between cells, they separate thousands: such columns stay text
                decimal = "." if header.separator == "," else ","
                return read_table(path, **reading, decimal=decimal), {**how, "decimal": decimal}
        except BadData as error:
            problem = problem or error
            if "UTF-8" not in str(error):
                raise
    assert problem is not None
    raise problem


def _agree_on_reading(
    paths: Sequence[str | os.PathLike[str]],
    frames: list[DataFrame],
    reads: list[dict[str, str]],
    given: Mapping[str, Any],
) -> dict[str, str]:
    """Return how to read all files, each of which was read by itself."""
    reading: dict[str, str] = {}
    encodings = {how.get("encoding", "utf-8") for how in reads}
    if "encoding" not in given and encodings != {"utf-8"}:
        order = ["utf-8", *sorted(encodings - {"utf-8", *ENCODINGS}), *ENCODINGS[1:]]
        reading["encoding"] = ", ".join(e for e in order if e in encodings)
    comma = next((path for path, how in zip(paths, reads) if how.get("decimal") == ","), None)
    if comma is None:
        return reading | ({"decimal": "."} if any("decimal" in how for how in reads) else {})
    for path, frame, how in zip(paths, frames, reads):
        if how.get("decimal") == ",":
            continue
        # without fractions it is read alike
        if not read_table(path, **{**given, **how, "decimal": ","}).equals(frame):
            raise BadData(
                f"the files differ in their decimal sign: {comma} has ',' and {path} has '.'. Save all alike."
            )
    return reading | {"decimal": ","}


def _join(frames: Mapping[str, DataFrame], notes: list[Finding]) -> DataFrame:
    """Return the rows of all files; columns that are not in all of them are left out, and noted."""
    frames = {name: frame.rename(columns=str) for name, frame in frames.items()}
    shared = [c for c in next(iter(frames.values())) if all(c in f.columns for f in frames.values())]
    for frame in frames.values():
        for column in (c for c in frame.columns if c not in shared):
            have = [n for n, f in frames.items() if column in f.columns]
            if not any(f.column == column for f in notes):
                notes.append(
                    Finding(
                        "columns differ",
                        column,
                        f"{column!r} is only in {', '.join(have)}.",
                        "Left out: all parties need it.",
                    )
                )
    if not shared:
        raise BadData(f"the files have no column in common: {', '.join(frames)}. Give each the same names.")
    tables = {name: frame[shared] for name, frame in frames.items()}
    return join_tables(tables, declared=shared)  # mixed columns are findings, not errors


def _simulated(paths: list[str], found: Inspection) -> dict[str, Any]:
    """Return [data] of a simulation of these files."""
    who = {"by": found.by} if found.by is not None else {"parties": USUAL_PARTIES}
    settings = {"path": paths[0] if len(paths) == 1 else paths, "label": found.label, **who}
    return settings | {k: v for k, v in found.settings.items() if v not in ([], {})}


def _layout(frame: DataFrame, found: Inspection) -> dict[str, Any]:
    """Return [data] of a job for real parties: the columns and categories of each party's file."""
    given = found.settings
    treatment = "Correct them in every file; until then they are values of their own, or 'other' if rare."
    _replace_treatment(found, "typos", treatment)
    rows = frame[frame[found.label].notna()]
    hidden = {found.label, found.by, PARTY, given.get("group"), *given.get("drop", ())}
    names = [c for c in map(str, frame.columns) if c not in hidden]
    codes = {k: v for k, v in given.get("missing_codes", {}).items() if k in names}
    recipe = Recipe.infer(
        rows[names],
        [c for c in given.get("categories", ()) if c in names],
        dates=given.get("dates"),
        missing_codes=codes,
        date_formats=dict(given.get("date_formats", {})),
    )
    categories = _without_rare(rows, recipe, found)
    layout: dict[str, Any] = {
        "label": found.label,
        "labels": found.labels,
        "numbers": list(recipe.numbers),
        "missing": [c for c in recipe.missing if c not in recipe.categories or c in categories],
        "categories": categories,
        "dates": {k: list(v) for k, v in recipe.dates.items()},
        "date_formats": dict(recipe.date_formats),
        "missing_codes": {
            k: list(v) for k, v in codes.items() if k not in recipe.categories or k in categories
        },
    }
    for key in ("group", "missing_label"):
        if key in given:
            layout[key] = given[key]
    if "min_rows" in given:  # nobody has the rows of two parties, so none can be merged
        layout |= {"min_rows": given["min_rows"], "small": "drop"}
        treatment = 'They contribute no rows (small = "drop"), and receive the model.'
        _replace_treatment(found, "tiny parties", treatment)
    return {k: v for k, v in layout.items() if v not in (None, [], {})}


def _without_rare(rows: DataFrame, recipe: Recipe, found: Inspection) -> dict[str, list[str]]:
    """Return the categories of a job that all parties read: values of few rows are "other" in it.

    A column that has no others is left out, and noted: its values are nearly those of single people.
    """
    kept: dict[str, list[str]] = {}
    for name, values in recipe.categories.items():
        texts = to_text(recipe.column_of(rows, name).dropna())
        counts = dict(zip(*np.unique(texts, return_counts=True)))
        least = min(RARE_COUNT, RARE_SHARE * len(rows))
        frequent = [v for v in values if v == OTHER or counts.get(v, 0) >= least]
        if not set(frequent) - {OTHER}:
            found.kinds[name] = "rare codes"
            found.findings[:] = [f for f in found.findings if f.column != name]
            found.note(
                *("rare values", name),
                f"Every value of {name!r} is in few rows, and all parties read the categories of a job.",
                "Left out. To use it, shorten the codes in every file (the first digits).",
            )
            continue
        rare = len(frequent) < len(values) and OTHER not in frequent
        kept[name] = [*frequent, *([OTHER] if rare else [])]
    return kept


def _replace_treatment(found: Inspection, problem: str, treatment: str) -> None:
    """State what becomes of a problem between real parties."""
    found.findings[:] = [
        replace(f, treatment=treatment) if f.problem == problem else f for f in found.findings
    ]


def _write(settings: Mapping[str, Any], found: Inspection, paths: list[str], real: bool, name: str) -> str:
    """Return the text of the job file."""
    verb = f"tacit party --kit KIT {name} (each party adds --data FILE)" if real else f"tacit run {name}"
    lines = [f"# Drafted by `tacit job new {' '.join(paths)}`. Check every comment, then: {verb}", ""]
    beside = [f for key, value in settings.items() for f in _about(key, value, found)]
    lines += _comments([f for f in found.findings if f not in beside])
    lines.append("[data]")
    inline = {k: v for k, v in settings.items() if not isinstance(v, dict)}
    for key, value in inline.items():
        lines += [*_comments(_about(key, value, found)), _line(key, value)]
    for key in (k for k, v in settings.items() if isinstance(v, dict)):
        lines += ["", *_comments(_about(key, settings[key], found) if key != "date_formats" else [])]
        lines += [f"[data.{key}]", *(_line(column, value) for column, value in settings[key].items())]
    model = "linear" if found.labels is None else "logistic"
    lines += ["", "[model]", f'name = "{model}"']  # without [train], the defaults for tables apply
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any) -> str:
    """Return a key and its value as one line of TOML."""
    if isinstance(value, list):
        inside = ", ".join(toml.dumps({"k": v}).removeprefix("k = ").strip() for v in value)
        return f"{toml.dumps({key: 0}).split(' = 0')[0]} = [{inside}]"
    return toml.dumps({key: value}).strip()


def _about(key: str, value: Any, found: Inspection) -> list[Finding]:
    """Return the findings that explain a key."""
    problems = EXPLAINS.get(key, ())
    named = value if isinstance(value, list | dict) else None
    return [
        f
        for f in found.findings
        if f.problem in problems
        and (named is None or not f.column or f.column in named or f.problem == "date")
    ]


def _comments(findings: Sequence[Finding]) -> list[str]:
    import textwrap

    return [
        line
        for f in findings
        for line in textwrap.wrap(str(f), 108, initial_indent="# ", subsequent_indent="#   ")
    ]
