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

from ..data.cells import is_unknown, show_row
from ..data.findings import inspect_table
from ..data.inspection import Finding, Inspection, keep_frequent
from ..data.joined_tables import PARTY, join_tables, name_files
from ..data.recipe import OTHER, RARE_COUNT, Recipe
from ..data.table_files import (
    check_reading,
    find_byte_order_mark,
    is_parquet,
    read_header,
    read_table,
    reading_in,
)
from ..data.thousands import find_thousands
from ..errors import BadData
from ..parameters import propose_lines, to_key, to_line

if TYPE_CHECKING:
    from pandas import DataFrame

USUAL_PARTIES = 4  # of a table without a column of parties: a simulation needs some
FLOOR = RARE_COUNT  # rows that have a value, without which it is not in a draft that other parties read
ENCODINGS = (None, "cp1252")  # UTF-8 first; cp1252 is what spreadsheets of Windows write
# keys of [data] and the problems whose findings explain them
EXPLAINS = {
    "label": ("label", "class balance"),
    "labels": ("rare classes",),
    "by": ("parties",),
    "regression": ("integer outcome",),
    "missing_label": ("missing outcome",),
    "drop": (
        *("identifier", "empty", "constant", "leakage", "duration", "columns differ"),
        *("formatted numbers", "thousands", "rare values"),
    ),
    "categories": ("leading zeros", "many digits", "mixed", "codes"),
    "group": ("several rows of one person",),
    "missing_party": ("missing party",),
    "min_rows": ("tiny parties",),
    "dates": ("date", "time"),
    "missing_codes": ("sentinel", "mixed", "infinite", "impossible dates", "stand-in dates"),
    "spellings": ("spellings",),
    "drop_rows": ("totals",),
    "encoding": ("encoding",),
    "decimal": ("decimal",),
}
INFINITE = ("inf", "-inf")


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

    if {**given, **found_reading}.get("decimal") == ",":
        frame = _without_thousands(frame, label, by, categories, notes, real_parties)

    def locate(place: int) -> str:
        k = 0
        while place >= len(frames[k]):
            place, k = place - len(frames[k]), k + 1
        # other parties read a draft for real parties: not where a file is on this machine
        file = Path(paths[k]).name if real_parties else paths[k]
        return show_row(place) if len(frames) == 1 else f"row {place + 1} (line {place + 2}) of {file}"

    found = inspect_table(frame, label, by, categories, locate, least=FLOOR if real_parties else 0)
    found.findings[:0] = notes
    for key, value in found_reading.items():
        comma = "a decimal comma" if value == "," else "commas, and so have the separators of cells"
        what = {"encoding": "Not UTF-8; read as", "decimal": f"Numbers have {comma}; decimal sign"}[key]
        if key == "encoding" and "," in value:
            what = "Not all files are UTF-8; each is read as the first that fits of"
        found.note(key, "", f"{what} {value!r}.", "Declared.")
    found.kinds |= {n.column: n.problem for n in notes if n.problem == "thousands"}
    if notes:
        found.settings["drop"] = [*found.settings.get("drop", ()), *(n.column for n in notes)]
    base = folder or Path.cwd()
    relative = [os.path.relpath(Path(p).resolve(), base.resolve()) for p in paths]
    with propose_lines():
        settings = _layout(frame, found) if real_parties else _simulated(relative, frame, found)
    settings = {**{k: v for k, v in settings.items() if k not in found_reading}, **given, **found_reading}
    return Draft(
        _write(
            settings, found, [Path(p).name for p in paths] if real_parties else relative, real_parties, name
        ),
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
                return read_table(path, **reading, text_columns=header.names), how
            except BadData as error:
                if "the numbers have a" not in str(error):
                    raise
                # in a file with commas between cells, they separate thousands: such columns stay text
                decimal = "." if header.separator == "," else ","
                table = read_table(path, **reading, decimal=decimal, text_columns=header.names)
                return table, {**how, "decimal": decimal}
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
        read = {**given, **how}
        header = read_header(path, read.get("separator"), read.get("encoding"))
        if header.separator == "," and len(header.names) > 1 and not is_parquet(Path(path)):
            raise BadData(
                f"the files differ in how they are written: {comma} has the decimal sign ',', and {path} has "
                "commas between cells. A job reads all files alike: save both with the same separator and "
                "decimal sign (in a spreadsheet: the same kind of CSV), or as Parquet."
            )
        # without fractions it is read alike
        again = read_table(path, **{**given, **how, "decimal": ","}, text_columns=list(frame.columns))
        if not again.equals(frame):
            raise BadData(
                f"the files differ in their decimal sign: {comma} has ',' and {path} has '.'. Save all alike."
            )
    return reading | {"decimal": ","}


def _without_thousands(
    frame: DataFrame,
    label: str | None,
    by: str | None,
    categories: Sequence[str],
    notes: list[Finding],
    real_parties: bool,
) -> DataFrame:
    """Return a table of files with decimal commas without columns of numbers such as 1.157; note them.

    No number is quoted: other parties may read the draft.
    """
    found = [c for c in frame.columns if c not in (by, *categories) and find_thousands(frame[c]) is not None]
    advice = "Write 1234 in the file (or 1,234 if the point is a decimal sign)"
    for name in found:
        text = (
            f"{name!r} has numbers with a point, and the decimal sign is ',': it seems to separate "
            "thousands, as in 1.234 for 1234."
        )
        if name == label:
            raise BadData(f"the label {text} {advice}.")
        keep = (
            # a draft for real parties has no `drop`
            "list the column in `numbers`" if real_parties else "take the column out of `drop`"
        )
        notes.append(Finding("thousands", name, text, f"Left out. {advice}, and {keep} to use it."))
    return frame.drop(columns=found)


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


def _simulated(paths: list[str], frame: DataFrame, found: Inspection) -> dict[str, Any]:
    """Return [data] of a simulation of these files."""
    group = found.settings.get("group")
    people = len(frame) if group is None else frame[group].nunique()  # who are not divided
    most = max(1, int(0.8 * people))  # some are test rows
    who = {"by": found.by} if found.by is not None else {"parties": min(USUAL_PARTIES, most)}
    settings = {"path": paths[0] if len(paths) == 1 else paths, "label": found.label, **who}
    return settings | {k: v for k, v in found.settings.items() if v not in ([], {})}


def _layout(frame: DataFrame, found: Inspection) -> dict[str, Any]:
    """Return [data] of a job for real parties: the columns and categories of each party's file."""
    given = found.settings
    treatment = (
        "Correct them in every file, or agree on `spellings`; until then they are values of their own, or "
        "'other' if rare."
    )
    _replace_treatment(found, "typos", treatment)
    assert found.table is not None
    rows = found.table
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
    codes = {k: v for k, v in _without_rare_codes(frame, found).items() if k in names}
    layout: dict[str, Any] = {
        "label": found.label,
        "labels": None if found.labels is None else _frequent_labels(rows, found),
        "numbers": list(recipe.numbers),
        "missing": [c for c in recipe.missing if c not in recipe.categories or c in categories],
        "categories": categories,
        "dates": {k: list(v) for k, v in recipe.dates.items()},
        "date_formats": dict(recipe.date_formats),
        "missing_codes": {
            k: list(v) for k, v in codes.items() if k not in recipe.categories or k in categories
        },
    }
    for key in ("group", "missing_label", "drop_rows"):
        if key in given:
            layout[key] = given[key]
    columns = (found.label, *layout["numbers"], *categories, *layout["dates"])
    if spelled := _known_spellings({**categories, found.label: layout["labels"]}, columns, found):
        layout["spellings"] = spelled
    if "min_rows" in given:  # nobody has the rows of two parties, so none can be merged
        layout |= {"min_rows": given["min_rows"], "small": "drop"}
        treatment = 'They contribute no rows (small = "drop"), and receive the model.'
        _replace_treatment(found, "tiny parties", treatment)
    return {k: v for k, v in layout.items() if v not in (None, [], {}) or (k == "labels" and v == [])}


def _known_spellings(
    values: Mapping[str, Sequence[str] | None], columns: Sequence[str], found: Inspection
) -> dict[str, dict[str, str]]:
    """Return the spellings of a job that all parties read, of the values that it lists."""
    kept: dict[str, dict[str, str]] = {}
    for name, spellings in found.settings.get("spellings", {}).items():
        listed = values.get(name)
        known = {w: m for w, m in spellings.items() if listed is None or m in listed}
        if name in columns and known:
            kept[name] = known
        if len(known) < len(spellings):
            treatment = (
                "Those of values that the job does not list, because few rows have them, are not declared."
            )
            _replace_treatment(found, "spellings", treatment, name)
    return kept


def _frequent_labels(rows: DataFrame, found: Inspection) -> list[str]:
    """Return the classes of a job that all parties read; those of few rows are noted, and not named."""
    assert found.labels is not None
    frequent = keep_frequent(found.labels, rows[found.label], FLOOR)
    if rare := len(found.labels) - len(frequent):
        what = "1 class is" if rare == 1 else f"{rare} classes are"
        found.note(
            *("rare classes", found.label),
            f"{what} in fewer than {FLOOR} rows, and all parties read `labels`.",
            "Not listed. Add what all parties may know: a party that has another class is refused.",
        )
    return frequent


def _without_rare_codes(frame: DataFrame, found: Inspection) -> dict[str, list[Any]]:
    """Return the codes that mean "missing", of a job that all parties read.

    A code of few rows may be a person's value, and is not named, but for words such as "unknown".
    """
    kept: dict[str, list[Any]] = {}
    for name, codes in found.settings.get("missing_codes", {}).items():
        frequent = keep_frequent(codes, frame[name], FLOOR)
        kept[name] = [c for c in codes if c in frequent or is_unknown(str(c)) or c in INFINITE]
        if name == found.label:
            treatment = "Leave these cells empty in every file."
        elif len(kept[name]) < len(codes):
            treatment = (
                f"Those of fewer than {FLOOR} rows are not declared, because all parties read the job: leave "
                "these cells empty in every file, or declare in `missing_codes` what all parties may know."
            )
        else:
            continue
        for problem in EXPLAINS["missing_codes"]:
            _replace_treatment(found, problem, treatment, name)
    return {k: v for k, v in kept.items() if v}


def _without_rare(rows: DataFrame, recipe: Recipe, found: Inspection) -> dict[str, list[str]]:
    """Return the categories of a job that all parties read: values of few rows are "other" in it.

    A column that has no others is left out, and noted: its values are nearly those of single people.
    """
    kept: dict[str, list[str]] = {}
    for name, values in recipe.categories.items():
        column = recipe.column_of(rows, name)
        enough = {OTHER, *keep_frequent(values, column, FLOOR)}
        frequent = [v for v in values if v in enough]
        if not set(frequent) - {OTHER}:
            found.kinds[name] = "rare codes"
            found.findings[:] = [f for f in found.findings if f.column != name]
            found.note(
                *("rare values", name),
                f"Every value of {name!r} is in fewer than {FLOOR} rows, and all parties read the categories "
                "of a job.",
                "Left out. To use it, shorten the codes in every file (the first digits), or list the "
                "categories that all parties may know.",
            )
            continue
        rare = len(frequent) < len(values) and OTHER not in frequent
        kept[name] = [*frequent, *([OTHER] if rare else [])]
    return kept


def _replace_treatment(found: Inspection, problem: str, treatment: str, column: str | None = None) -> None:
    """State what becomes of a problem between real parties: of all columns, or of one."""
    found.findings[:] = [
        replace(f, treatment=treatment) if f.problem == problem and column in (None, f.column) else f
        for f in found.findings
    ]


def _write(settings: Mapping[str, Any], found: Inspection, paths: list[str], real: bool, name: str) -> str:
    """Return the text of the job file."""
    verb = f"tacit party --kit KIT {name} (each party adds --data FILE)" if real else f"tacit run {name}"
    lines = [f"# Drafted by `tacit job new {' '.join(paths)}`. Check every comment, then: {verb}"]
    lines += ["# A commented line of settings is another decision: remove its # to take it.", "", "[data]"]
    tables = {k: v for k, v in settings.items() if isinstance(v, dict)}
    plain = {k: v for k, v in settings.items() if k not in tables}
    rows = [(key, None, value) for key, value in plain.items()]
    rows += [(key, column, value) for key, table in tables.items() for column, value in table.items()]
    beside = [f for key, value in settings.items() for f in _about(key, value, found)]
    lines += _comments([f for f in found.findings if f not in beside])
    lines += _describe_nothing_left(settings, found, real)
    for key, column, value in rows:
        # a date's finding is beside `dates`, not a second time beside `date_formats`
        about = [] if key == "date_formats" else _about(key, value if column is None else [column], found)
        if column is not None:
            about = [f for f in about if f.column == column]
        lines += _comments(about)
        if isinstance(value, dict):  # a line for each, so that others can be added
            lines += [to_line(f"{key}.{to_key(str(column))}", v, k) for k, v in value.items()]
        else:
            lines.append(to_line(key, value, column))
    model = "linear" if found.labels is None else "logistic"
    lines += ["", "[model]", f'name = "{model}"']  # without [train], the defaults for tables apply
    return "\n".join(lines) + "\n"


def _describe_nothing_left(settings: Mapping[str, Any], found: Inspection, real: bool) -> list[str]:
    """Return comments for a draft without any feature: which columns were set aside, and what to decide."""
    others = [c for c in found.kinds if c not in (found.label, found.by, PARTY)]
    if real:
        left = any(settings.get(key) for key in ("numbers", "categories", "dates"))
    else:
        left = bool(set(others) - {*settings.get("drop", ()), settings.get("group")})
    if left:
        return []
    if not others:
        return ["# NO FEATURE IS LEFT: the table has no other column. Add columns, or choose another label."]
    reasons = [f"#   {name!r}: {found.kinds[name]}" for name in others]
    what = "one in `numbers`, `dates` or `categories`" if real else "one out of `drop` or `group`"
    move = f"{'List' if real else 'Take'} {what} if it is known before the outcome, or choose another label."
    return [f"# NO FEATURE IS LEFT: each other column was set aside. {move}", *reasons]


def _about(key: str, value: Any, found: Inspection) -> list[Finding]:
    """Return the findings that explain a key."""
    problems = EXPLAINS.get(key, ())
    named = value if isinstance(value, list | dict) and key != "labels" else None  # of columns
    return [
        f
        for f in found.findings
        if f.problem in problems
        and (named is None or not f.column or f.column in named or f.problem == "date")
    ]


def _comments(findings: Sequence[Finding]) -> list[str]:
    """Return findings as comments; a proposal is a line of its own, so that it is not wrapped."""
    import textwrap

    lines: list[str] = []
    for f in findings:
        lines += textwrap.wrap(str(f), 108, initial_indent="# ", subsequent_indent="#   ")
        lines += [f"# {line}" for line in f.proposal.splitlines()]
    return lines
