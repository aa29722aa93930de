"""Study files: tables of rows × columns × seeds in TOML, read, checked and expanded into cells.

A cell is one training run.

    title = "…"                   what it is; source: whose results are published; about: how it is done;
                                  notes: why ours may differ
    figure = "best"               what a cell shows: "best" or "last" accuracy, "picked" (at the round that
                                  the held-out rows select), or "rounds" to `target`
    [data] [model] [train]        as in a job file, for all tables; train.seeds = 3 runs each cell from
                                  the seeds 0, 1 and 2
    [quick.data] [quick.train]    what --quick changes; data.rows and data.test_rows keep so many rows;
                                  data.tested_as = { fit = "pooled" } takes the test rows from the same
                                  data loaded with these values
    [[tables]]                    name, and any of the above again, for this table
    [[tables.columns]]            label, and what a column changes:
                                  data = { skew = { name = "Dirichlet", alpha = 0.5 } }
    [[tables.rows]]               label, algorithm, and what a row changes; columns = ["IID"] leaves out
                                  the others; baseline = "central" (all rows in one place) or "alone 2"
                                  (party 2 by itself); grid = { "algorithm.mu" = [0.1, 1] } makes a row of
                                  each value, label "FedProx {mu}"; tune = { "algorithm.lr" = [0.05, 0.1] }
                                  tries each value and shows the best (--quick: the first only)
    [tables.published."FedAvg"]   "IID" = 0.64: the published result;
                                  [tables.replicated."FedAvg"]: what others got
    [tables.claim]                expect = "same", "rises" or "falls" down the rows; measure = "last",
                                  "mean" (over the rounds), "best" or "picked"; within = 0.02; says = "…"
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ... import models
from ...config import job as config
from ...config import toml
from ...config.train import OPTIONS
from ...errors import BadJob
from ...numbers import is_finite
from ...parameters import bad, nearest

HOME = Path(__file__).parents[2] / "studies"
FIGURES = ("best", "last", "picked", "rounds")
SHARED = ("data", "model", "train")
KEYS = {
    "study": ("title", "source", "about", "notes", "figure", "target", "quick", "tables", *SHARED),
    "table": (
        "name",
        "about",
        "figure",
        "target",
        "columns",
        "rows",
        "published",
        "replicated",
        "claim",
        *SHARED,
    ),
    "column": ("label", "quick", *SHARED),
    "row": ("label", "algorithm", "columns", "baseline", "grid", "tune", *SHARED),
    "claim": ("expect", "measure", "within", "says"),
}


@dataclass(frozen=True)
class Table:
    """One table of a study: what its cells show, and the figures others published for them."""

    name: str
    figure: str
    target: float | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    about: str = ""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    replicated: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    claim: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a study: where its figure stands, and the job that makes it."""

    table: str
    row: str
    column: str
    seed: int
    choice: str  # the tuned values, "" where nothing is tuned
    job: Any = field(repr=False)
    tables: Mapping[str, Any] = field(repr=False)  # the job as plain tables
    baseline: str = ""
    rows: int | None = None  # of the data set, where only a part is used
    test_rows: int | None = None
    tested_as: Any = None  # the job whose test rows are used, where they are made in another way

    @property
    def id(self) -> str:
        return " | ".join(
            [self.table, self.row, self.column, f"seed {self.seed}", *([self.choice] if self.choice else [])]
        )

    @property
    def place(self) -> tuple[str, str, str]:
        """Where its figure stands, beside those of other seeds and tuned values."""
        return self.table, self.row, self.column

    @property
    def rounds(self) -> int:
        return int(self.job.options.get("rounds", OPTIONS["rounds"].default))


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    source: str
    about: str
    notes: tuple[str, ...]
    quick: bool
    tables: tuple[Table, ...]
    cells: tuple[Cell, ...] = field(repr=False)
    changed: str = ""  # "2 rounds, 300 rows" where that is not what its file says

    @property
    def digest(self) -> str:
        """Of everything that decides its figures: a study that is gone on with must be the same one, wherever
        its files lie and it is run.
        """
        tables = [
            {
                **c.tables,
                "data": {**c.tables["data"], "data_dir": ""},
                "train": {**c.tables["train"], "device": ""},
            }
            for c in self.cells
        ]
        text = json.dumps(
            [[c.id, t, c.baseline, c.rows, c.test_rows] for c, t in zip(self.cells, tables)],
            sort_keys=True,
            default=str,
        )
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()

    @property
    def single(self) -> set[tuple[str, str, str]]:
        """The places that have one seed. There the first of the tuned values to reach a target decides;
        elsewhere all of them are needed.
        """
        seeds: dict[tuple[str, str, str], set[int]] = {}
        for c in self.cells:
            seeds.setdefault(c.place, set()).add(c.seed)
        return {place for place, which in seeds.items() if len(which) == 1}


def names() -> list[str]:
    """The studies that come with tacit."""
    return sorted(p.stem for p in HOME.glob("*.toml"))


def find(name: str) -> Path:
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise BadJob(
                f"there is no study file {path}. Check the path, or begin one with `tacit study new {path}`."
            )
        return path
    if name not in names():
        raise BadJob(
            f"there is no study {name!r}. {nearest(name, names())} A study of your own is a file: `tacit "
            "study new mine.toml`."
        )
    return HOME / f"{name}.toml"


def head(name: str) -> dict[str, Any]:
    """Title and source of a study, without checking the rest."""
    return {k: v for k, v in _read(find(name)).items() if k in ("title", "source", "about")}


def load(
    name: str,
    *,
    quick: bool = False,
    data_dir: str | None = None,
    device: str | None = None,
    seeds: int | None = None,
    rows: int | None = None,
    rounds: int | None = None,
) -> Study:
    """Read and check a study: every cell's job is as good as a job file that `tacit run` takes. `seeds`,
    `rows` and `rounds` are laid over the file's own: a study that is reduced so is another one, and is told
    apart by its digest.
    """
    path = find(name)
    raw = _read(path)
    where = str(path)
    _only(where, raw, "study")
    told = _texts(where, raw, "title", "source", "about")
    _layer(where, raw)
    over = raw.get("quick", {})
    if quick and not over:
        raise BadJob(
            f"{where}: there is no [quick.data] or [quick.train], so --quick would change nothing. Write "
            "one, or reduce the study with --rounds, "
            "--rows and --seeds."
        )
    over = over if quick else {}
    where_to = None if data_dir is None else str(Path(data_dir).expanduser().resolve())
    given: dict[str, Any] = {
        "data": {k: v for k, v in (("data_dir", where_to), ("rows", rows)) if v is not None},
        "train": {
            k: v for k, v in (("device", device), ("seeds", seeds), ("rounds", rounds)) if v is not None
        },
    }
    listed = raw.get("tables")
    if not isinstance(listed, list) or not listed:
        raise BadJob(f"{where}: there is no [[tables]]. A study has at least one, with rows and columns.")
    tables, cells = [], []
    for i, one in enumerate(listed):
        table, its = _one(f"{where}, tables[{i}]", raw, one, over, given, path)
        tables.append(table)
        cells += its
    seen = [t.name for t in tables]
    if len(set(seen)) < len(seen):
        raise BadJob(f"{where}: two tables have one name: {', '.join(seen)}. Give each its own.")
    notes = raw.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise BadJob(str(bad(where, "notes", notes, "a list of sentences")))
    made = Study(
        path.stem,
        told["title"] or path.stem,
        told["source"],
        told["about"],
        tuple(notes),
        quick,
        tuple(tables),
        tuple(cells),
    )
    changed = ", ".join(
        f"{n} {what if n != 1 else what[:-1]}"
        for n, what in ((rounds, "rounds"), (rows, "rows"), (seeds, "seeds"))
        if n is not None
    )
    return (
        made
        if not changed or load(name, quick=quick).digest == made.digest
        else replace(made, changed=changed)
    )


def _one(
    where: str,
    study: Mapping[str, Any],
    raw: Any,
    over: Mapping[str, Any],
    given: Mapping[str, Any],
    path: Path,
) -> tuple[Table, list[Cell]]:
    _only(where, _table(where, "tables", raw), "table")
    _layer(where, raw)
    told = _texts(where, raw, "name", "about")
    name = told["name"] or "results"
    figure = raw.get("figure", study.get("figure", "best"))
    if figure not in FIGURES:
        raise BadJob(str(bad(where, "figure", figure, "one of " + ", ".join(map(repr, FIGURES)))))
    target = raw.get("target", study.get("target"))
    if (figure == "rounds" or target is not None) and (not is_finite(target) or not 0 < target <= 1):
        raise BadJob(
            str(
                bad(
                    where,
                    "target",
                    target,
                    "an accuracy above 0 and at most 1"
                    + (", since figure is 'rounds'" if figure == "rounds" else ""),
                )
            )
        )
    columns = _list(where, "columns", raw.get("columns", []), 'tables, like { label = "IID" }') or [
        {"label": "accuracy"}
    ]
    rows = [
        row
        for r in _list(where, "rows", raw.get("rows", []), "tables, written as [[tables.rows]]")
        for row in _grid(where, r)
    ]
    if not rows:
        raise BadJob(
            f"{where}: there is no [[tables.rows]]. Give at least one, with a label and an algorithm."
        )
    for kind, listed in (("column", columns), ("row", rows)):
        for item in listed:
            _only(f"{where}, {kind}", _table(where, kind, item), kind)
            if not isinstance(item.get("label"), str) or not item["label"]:
                raise BadJob(
                    str(
                        bad(
                            f"{where}, {kind}",
                            "label",
                            item.get("label"),
                            "text, by which the table names it",
                        )
                    )
                )
            _layer(f"{where}, {kind} {item['label']!r}", item)
        labels = [item["label"] for item in listed]
        if len(set(labels)) < len(labels):
            raise BadJob(f"{where}: two {kind}s have one label: {', '.join(labels)}. Give each its own.")
    labels = [c["label"] for c in columns]
    cells: list[Cell] = []
    for row in rows:
        wanted = _list(
            f"{where}, row {row['label']!r}", "columns", row.get("columns", labels), "labels of columns"
        )
        for label in wanted:
            if label not in labels:
                raise BadJob(
                    f"{where}, row {row['label']!r}: there is no column {label!r}. "
                    f"{nearest(str(label), labels)}"
                )
        for label in dict.fromkeys(wanted):
            column = columns[labels.index(label)]
            layers = [study, raw, column, row, over, column.get("quick", {}) if over else {}, given]
            merged: dict[str, Any] = {}
            for layer in layers:
                merged = _laid(merged, {k: layer[k] for k in SHARED if k in layer})
            if "data_dir" in given["data"] and not _has_files(merged["data"].get("name")):
                merged = {
                    **merged,
                    "data": {k: v for k, v in merged["data"].items() if k != "data_dir"},
                }  # told for all studies, of use to some
            cells += _cells(
                f"{where}, row {row['label']!r}", name, row, label, merged, path, quick=bool(over)
            )
    known = [r["label"] for r in rows]
    for kind in ("published", "replicated"):
        for label, figures in _table(where, kind, raw.get(kind, {})).items():
            if label not in known:
                raise BadJob(f"{where}, {kind}: there is no row {label!r}. {nearest(label, known)}")
            for column, value in _table(f"{where}, {kind}", label, figures).items():
                if column not in labels:
                    raise BadJob(
                        f"{where}, {kind}, {label}: there is no column {column!r}. {nearest(column, labels)}"
                    )
                if not is_finite(value) or value < 0 or (value > 1 and figure != "rounds"):
                    must = "a number of rounds" if figure == "rounds" else "an accuracy from 0 to 1"
                    raise BadJob(
                        str(
                            bad(
                                f"{where}, {kind}, {label}",
                                column,
                                value,
                                must,
                                "Percent are hundredths: 64.3% is 0.643." if is_finite(value) else "",
                            )
                        )
                    )
    if (claim := raw.get("claim")) is not None:
        _claim(
            f"{where}, claim",
            _table(where, "claim", claim),
            sum(c.column == labels[0] for c in {(c.row, c.column): c for c in cells}.values()),
        )
    others = raw.get("published", {}), raw.get("replicated", {})
    return Table(name, figure, target, tuple(known), tuple(labels), told["about"], *others, claim), cells


def _claim(where: str, claim: Mapping[str, Any], rows: int) -> None:
    _only(where, claim, "claim")
    _texts(where, claim, "says")
    for key, options in (
        ("expect", ("same", "rises", "falls")),
        ("measure", ("best", "last", "picked", "mean")),
    ):
        if claim.get(key, "last" if key == "measure" else None) not in options:
            raise BadJob(str(bad(where, key, claim.get(key), "one of " + ", ".join(map(repr, options)))))
    if not is_finite(within := claim.get("within", 0.0)) or within < 0:
        raise BadJob(
            str(bad(where, "within", within, "a number of at least 0, in accuracy: 0.02 is two points"))
        )
    if rows < 2:
        raise BadJob(
            f"{where}: it is about what changes down the rows of the first column, which has {rows}. Give "
            "the table a second row, or leave the claim "
            "out."
        )


def _grid(where: str, row: Any) -> Iterator[dict[str, Any]]:
    """A row for each value of its grid; {mu} in the label stands for the value."""
    row = dict(_table(where, "rows", row))
    grid = row.pop("grid", None)
    for chosen in _choices(where, "grid", grid):
        made = row
        for key, value in chosen.items():
            made = _laid(made, _nested(key, value))
        words = {
            key.rsplit(".", 1)[-1]: f"{value:g}" if isinstance(value, float) else value
            for key, value in chosen.items()
        }
        try:
            yield {
                **made,
                **(
                    {"label": row["label"].format(**words)}
                    if grid and isinstance(row.get("label"), str)
                    else {}
                ),
            }
        except KeyError as error:
            raise BadJob(
                f"{where}, row {row['label']!r}: its label names {error}, which is not in its grid. Known: "
                f"{', '.join(words)}."
            ) from None
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise BadJob(
                f"{where}, row {row['label']!r}: its label is no pattern: {error}. Write "
                f"{' '.join(f'{{{w}}}' for w in words)} where the value is to "
                "stand."
            ) from None


def _choices(where: str, what: str, values: Any) -> list[dict[str, Any]]:
    if values is None:
        return [{}]
    if (
        not isinstance(values, dict)
        or not values
        or not all(isinstance(v, list) and v for v in values.values())
    ):
        raise BadJob(str(bad(where, what, values, 'a table of lists, like { "algorithm.mu" = [0.1, 1.0] }')))
    for key, listed in values.items():
        if key.partition(".")[0] not in ("algorithm", *SHARED):  # what else a job has, a stack has not
            raise BadJob(
                f"{where}, {what}: {key!r} is nothing that a study can change. Begin it with 'algorithm.', "
                "'data.', 'model.' or 'train.'."
            )
        if key.endswith((".seed", ".seeds")):
            raise BadJob(
                f"{where}, {what}: {key!r} is not a row's own. Say how many with train.seeds: each cell "
                "runs from the seeds 0, 1 and so on."
            )
        if any(value in listed[:i] for i, value in enumerate(listed)):
            raise BadJob(str(bad(where, f"{what} {key!r}", listed, "values that differ")))
    return [dict(zip(values, chosen)) for chosen in itertools.product(*values.values())]


def _cells(
    where: str, table: str, row: dict[str, Any], column: str, merged: dict[str, Any], path: Path, quick: bool
) -> Iterator[Cell]:
    seeds = _whole(where, "seeds", merged.get("train", {}).get("seeds", 1))
    for kind in ("data", "train"):
        if "seed" in merged.get(kind, {}):
            raise BadJob(
                f"{where}, {kind}: a study has no seed of its own: each cell runs from the seeds 0, 1 and "
                "so on. Leave it out, and say how many with "
                "train.seeds."
            )
    for chosen in _choices(where, "tune", row.get("tune"))[: 1 if quick else None]:
        tables = _laid(merged, {"algorithm": row.get("algorithm", "FedAvg")})
        for key, value in chosen.items():
            tables = _laid(tables, _nested(key, value))
        data = dict(_table(where, "data", tables.get("data", {})))
        part = {
            k: None if (n := data.pop(k, None)) is None else _whole(where, k, n)
            for k in ("rows", "test_rows")
        }
        tested_as = data.pop("tested_as", None)
        choice = ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in chosen.items())
        for seed in range(seeds):
            train = {k: v for k, v in tables.get("train", {}).items() if k != "seeds"} | {"seed": seed}
            whole = {**tables, "data": {**data, "seed": seed}, "train": train}
            job = config.from_tables(whole, path)
            told = job.train()  # refuses what is no single run
            if told.get("runtime", "cohort") != "cohort" or told.get("landscape"):
                raise BadJob(
                    f"{where}, train: runtime and landscape are for `tacit run`; the runs of a study are "
                    "simulated, side by side. Leave them out."
                )
            if "weights" in models.table_of(job.model):
                raise BadJob(
                    f"{where}: weights are for `tacit run` and `tacit compare`; the runs of a study begin "
                    "anew. Leave them out."
                )
            other = (
                None
                if tested_as is None
                else config.from_tables(
                    {**whole, "data": {**whole["data"], **_table(where, "tested_as", tested_as)}}, path
                )
            )
            yield Cell(
                table,
                row["label"],
                column,
                seed,
                choice,
                job,
                {**whole, "tested_as": tested_as},
                str(row.get("baseline", "")),
                **part,
                tested_as=other,
            )


def _has_files(name: Any) -> bool:
    from ... import data

    return name in data.ALL and "data_dir" in inspect.signature(data.ALL[name]).parameters


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def _laid(below: Any, above: Any) -> Any:
    """Tables laid over tables; a table that names another kind of thing replaces the one below."""
    if isinstance(below, str) and isinstance(above, dict):
        below = {"name": below}
    if (
        not isinstance(below, dict)
        or not isinstance(above, dict)
        or ("name" in above and below.get("name", above["name"]) != above["name"])
    ):
        return above
    return {**below, **{k: _laid(below[k], v) if k in below else v for k, v in above.items()}}


def _read(path: Path) -> dict[str, Any]:
    try:
        return toml.read(path)
    except OSError as error:
        raise BadJob(
            f"{path} cannot be read: {error.strerror}. Check its permissions, or give another file."
        ) from None


def _table(where: str, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadJob(str(bad(where, name, value, "a table")))
    return value


def _list(where: str, name: str, value: Any, of: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadJob(str(bad(where, name, value, f"a list of {of}")))
    return value


def _texts(where: str, table: Mapping[str, Any], *names: str) -> dict[str, str]:
    for name in names:
        if not isinstance(table.get(name, ""), str):
            raise BadJob(str(bad(where, name, table[name], "text")))
    return {name: table.get(name, "") for name in names}


def _whole(where: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadJob(str(bad(where, name, value, "a whole number of at least 1")))
    return value


def _layer(where: str, table: Mapping[str, Any]) -> None:
    """[data], [model] and [train], which are laid over those before, are tables; [quick] has nothing else in
    it.
    """
    for key in SHARED:
        if (
            key in table
            and not isinstance(table[key], dict)
            and (key != "model" or not isinstance(table[key], str))
        ):
            raise BadJob(str(bad(where, key, table[key], "a table")))
    if quick := _table(where, "quick", table.get("quick", {})):
        for key in quick:
            if key not in SHARED:
                raise BadJob(
                    f"{where}, quick: {key!r} is not known here. {nearest(key, list(SHARED))} Write "
                    "[quick.train] rounds = 2."
                )
        _layer(f"{where}, quick", quick)


def _only(where: str, table: Mapping[str, Any], kind: str) -> None:
    for key in table:
        if key not in KEYS[kind]:
            raise BadJob(f"{where}: {key!r} is not known in a {kind}. {nearest(key, list(KEYS[kind]))}")
