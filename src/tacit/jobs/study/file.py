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
from ...parameters import bad, choice, from_fields, hold_to_type, nearest, real

HOME = Path(__file__).parents[2] / "studies"
FIGURES = ("best", "last", "picked", "rounds")
SHARED = ("data", "model", "train")


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """Tables of a job file, which are laid over those of the layers before."""

    data: dict = field(default_factory=dict)  # type: ignore[type-arg]
    model: str | dict = field(default_factory=dict)  # type: ignore[type-arg]
    train: dict = field(default_factory=dict)  # type: ignore[type-arg]

    def over(self, tables: dict[str, Any]) -> dict[str, Any]:
        """Return these tables laid over others."""
        return _lay({k: v for k in SHARED if (v := getattr(self, k))}, tables)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class _Quick(_Layer):
    quick: dict = field(default_factory=dict)  # type: ignore[type-arg]

    def quick_layer(self, where: str) -> _Layer:
        """Return what --quick changes."""
        return from_fields(self.quick, _Layer, f"{where}, quick", "[quick] has no table")


@dataclass(frozen=True, kw_only=True)
class _StudyFile(_Quick):
    """What a study file may contain."""

    title: str = ""
    source: str = ""
    about: str = ""
    notes: list[str] = field(default_factory=list)
    figure: str = choice("best", FIGURES)
    target: float | None = real(None, above=0, most=1, none="no target")
    tables: list[dict] = field(default_factory=list)  # type: ignore[type-arg]


@dataclass(frozen=True, kw_only=True)
class _Column(_Quick):
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class _Row(_Layer):
    label: str = ""
    algorithm: str | dict = "FedAvg"  # type: ignore[type-arg]
    columns: list[str] | None = None
    baseline: str = ""
    tune: dict | None = None  # type: ignore[type-arg]


@dataclass(frozen=True, kw_only=True)
class _TableFile(_Layer):
    name: str = "results"
    about: str = ""
    figure: str = choice("best", FIGURES)
    target: float | None = real(None, above=0, most=1, none="no target")
    columns: list[dict] = field(default_factory=lambda: [{"label": "accuracy"}])  # type: ignore[type-arg]
    rows: list[dict] = field(default_factory=list)  # type: ignore[type-arg]
    published: dict = field(default_factory=dict)  # type: ignore[type-arg]
    replicated: dict = field(default_factory=dict)  # type: ignore[type-arg]
    claim: dict | None = None  # type: ignore[type-arg]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a study says about the rows of a table, from the first to the last."""

    expect: str = choice("", ("same", "rises", "falls"))
    measure: str = choice("last", ("best", "last", "picked", "mean"))
    within: float = real(0.0, least=0, doc="in accuracy: 0.02 is two points")
    says: str = ""


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
    """One run of a study: its place in a table, and its job."""

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
    tested_as: Any = None  # the job whose test rows are used, where they differ

    @property
    def id(self) -> str:
        return " | ".join(
            [self.table, self.row, self.column, f"seed {self.seed}", *([self.choice] if self.choice else [])]
        )

    @property
    def place(self) -> tuple[str, str, str]:
        """Its place in a table, which it shares with other seeds and tuned values."""
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
    loaded_with: dict[str, Any] = field(default_factory=dict, repr=False)  # arguments of `load`, for workers

    @property
    def digest(self) -> str:
        """Digest of everything that affects its figures: a resumed study must have the same one.

        Where its files are, and on which device it runs, do not count.
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
        """The places with one seed: there the first of the tuned values to reach a target decides."""
        seeds: dict[tuple[str, str, str], set[int]] = {}
        for c in self.cells:
            seeds.setdefault(c.place, set()).add(c.seed)
        return {place for place, which in seeds.items() if len(which) == 1}


def names() -> list[str]:
    """Return the names of the studies that come with tacit."""
    return sorted(p.stem for p in HOME.glob("*.toml"))


def find(name: str) -> Path:
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise BadJob(
                f"there is no study file {path}. Check the path, or start one with `tacit study new {path}`."
            )
        return path
    if name not in names():
        raise BadJob(
            f"there is no study {name!r}. {nearest(name, names())} A study of your own is a file: `tacit "
            "study new mine.toml`."
        )
    return HOME / f"{name}.toml"


def head(name: str) -> dict[str, Any]:
    """Return title and source of a study, without checking the rest."""
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
    """Read and check a study: every cell's job is as good as a job file that `tacit run` takes.

    `seeds`, `rows` and `rounds` replace the file's own. A study that is reduced so has another digest.
    """
    path = find(name)
    where, raw = str(path), _read(path)
    spec = from_fields(raw, _StudyFile, where, "a study has no key")
    quick_layer = spec.quick_layer(where)
    if quick and not spec.quick:
        raise BadJob(
            f"{where}: there is no [quick.data] or [quick.train], so --quick would change nothing. Write "
            "one, or reduce the study with --rounds, --rows and --seeds."
        )
    if not spec.tables:
        raise BadJob(f"{where}: there is no [[tables]]. A study has at least one, with rows and columns.")
    folder = None if data_dir is None else str(Path(data_dir).expanduser().resolve())
    options = _Layer(
        data={k: v for k, v in (("data_dir", folder), ("rows", rows)) if v is not None},
        train={k: v for k, v in (("device", device), ("seeds", seeds), ("rounds", rounds)) if v is not None},
    )
    inherited = {k: v for k, v in raw.items() if k in ("figure", "target")}
    tables: list[Table] = []
    cells: list[Cell] = []
    for i, table in enumerate(spec.tables):
        reader = _TableReader(f"{where}, tables[{i}]", {**inherited, **table}, spec, path)
        tables.append(reader.table)
        cells += reader.cells(quick_layer if quick else None, options)
    names = [t.name for t in tables]
    if len(set(names)) < len(names):
        raise BadJob(f"{where}: two tables have the same name: {', '.join(names)}. Give each its own.")
    about = (spec.title or path.stem, spec.source, spec.about, tuple(spec.notes))
    arguments = {"name": str(path.resolve()), "quick": quick, "data_dir": folder, "device": device}
    reduced = {"seeds": seeds, "rows": rows, "rounds": rounds}
    study = Study(path.stem, *about, quick, tuple(tables), tuple(cells), loaded_with={**arguments, **reduced})
    changes = ((rounds, "rounds"), (rows, "rows"), (seeds, "seeds"))
    changed = ", ".join(f"{n} {what if n != 1 else what[:-1]}" for n, what in changes if n is not None)
    is_changed = changed and load(name, quick=quick).digest != study.digest
    return replace(study, changed=changed) if is_changed else study


class _TableReader:
    """One [[tables]] of a study file, checked."""

    def __init__(self, where: str, raw: dict[str, Any], study: _StudyFile, path: Path):
        self.where, self.study, self.path = where, study, path
        self.spec = spec = from_fields(raw, _TableFile, where, "a table has no key")
        if spec.figure == "rounds" and spec.target is None:
            must_be = "an accuracy above 0 and at most 1, since figure is 'rounds'"
            raise BadJob(str(bad(where, "target", None, must_be)))
        rows = [row for raw_row in spec.rows for row in _expand_grid(where, raw_row)]
        if not rows:
            raise BadJob(
                f"{where}: there is no [[tables.rows]]. Give at least one, with a label and an algorithm."
            )
        self.columns = self._read_labeled(spec.columns, _Column, "column")
        self.quick = {k: c.quick_layer(f"{where}, column {k!r}") for k, c in self.columns.items()}
        self.rows = self._read_labeled(rows, _Row, "row")
        for row in self.rows.values():
            for label in row.columns or ():
                if label not in self.columns:
                    raise BadJob(
                        f"{where}, row {row.label!r}: there is no column {label!r}. "
                        f"{nearest(str(label), list(self.columns))}"
                    )
        for kind in ("published", "replicated"):
            self._check_figures(f"{where}, {kind}", getattr(spec, kind))
        if spec.claim is not None:
            self._check_claim(f"{where}, claim", spec.claim)

    @property
    def table(self) -> Table:
        s = self.spec
        labels = tuple(self.rows), tuple(self.columns)
        return Table(s.name, s.figure, s.target, *labels, s.about, s.published, s.replicated, s.claim)

    def _read_labeled(self, listed: list[dict[str, Any]], cls: type[Any], kind: str) -> dict[str, Any]:
        specs = []
        for raw in listed:
            named = f"{self.where}, {kind} {raw['label']!r}" if raw.get("label") else f"{self.where}, {kind}"
            specs.append(spec := from_fields(raw, cls, named, f"a {kind} has no key"))
            if not spec.label:
                raise BadJob(str(bad(named, "label", "", "text, by which the table names it")))
        labels = [spec.label for spec in specs]
        if len(set(labels)) < len(labels):
            raise BadJob(
                f"{self.where}: two {kind}s have the same label: {', '.join(labels)}. Give each its own."
            )
        return dict(zip(labels, specs))

    def _check_figures(self, where: str, published: dict[str, Any]) -> None:
        """Check what others published: {row: {column: figure}}."""
        is_rounds = self.spec.figure == "rounds"
        must_be = "a number of rounds" if is_rounds else "an accuracy from 0 to 1"
        for label, figures in published.items():
            if label not in self.rows:
                raise BadJob(f"{where}: there is no row {label!r}. {nearest(label, list(self.rows))}")
            for column, value in hold_to_type(where, label, figures, dict).items():
                if column not in self.columns:
                    raise BadJob(
                        f"{where}, {label}: there is no column {column!r}. "
                        f"{nearest(column, list(self.columns))}"
                    )
                if not is_finite(value) or value < 0 or (value > 1 and not is_rounds):
                    hint = "Write 64.3% as 0.643." if is_finite(value) else ""
                    raise BadJob(str(bad(f"{where}, {label}", column, value, must_be, hint)))

    def _check_claim(self, where: str, claim: dict[str, Any]) -> None:
        from_fields(claim, Claim, where, "a claim has no key")
        first = next(iter(self.columns))
        rows = sum(row.columns is None or first in row.columns for row in self.rows.values())
        if rows < 2:
            raise BadJob(
                f"{where}: it is about what changes from row to row in the first column, which has {rows}. "
                "Give the table a second row, or leave the claim out."
            )

    def cells(self, quick: _Layer | None, options: _Layer) -> Iterator[Cell]:
        """Return the table's runs: rows × columns × tuned values × seeds."""
        for row in self.rows.values():
            for label in dict.fromkeys(self.columns if row.columns is None else row.columns):
                column = self.columns[label]
                layers: list[_Layer] = [self.study, self.spec, column, row]
                if quick is not None:
                    layers += [quick, self.quick[label]]
                tables: dict[str, Any] = {}
                for layer in (*layers, options):
                    tables = layer.over(tables)
                # the directory is given for all studies, and some data sets have none
                if "data_dir" in options.data and not _has_files(tables["data"].get("name")):
                    tables["data"] = {k: v for k, v in tables["data"].items() if k != "data_dir"}
                yield from self._cells(row, label, tables, is_quick=quick is not None)

    def _cells(self, row: _Row, column: str, merged: dict[str, Any], is_quick: bool) -> Iterator[Cell]:
        where = f"{self.where}, row {row.label!r}"
        seeds = _count(where, "seeds", merged.get("train", {}).get("seeds", 1))
        for kind in ("data", "train"):
            if "seed" in merged.get(kind, {}):
                raise BadJob(
                    f"{where}, {kind}: a study has no seed of its own: each cell runs from the seeds 0, 1 "
                    "and so on. Leave it out, and give their number as train.seeds."
                )
        for values in _choices(where, "tune", row.tune)[: 1 if is_quick else None]:
            tables = _lay({"algorithm": row.algorithm}, merged)
            for key, value in values.items():
                tables = _lay(_nest(key, value), tables)
            data = dict(tables.get("data", {}))
            rows, test_rows = (
                _count(where, k, data.pop(k)) if k in data else None for k in ("rows", "test_rows")
            )
            tested_as = data.pop("tested_as", None)
            choice = ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in values.items())
            train = {k: v for k, v in tables.get("train", {}).items() if k != "seeds"}
            for seed in range(seeds):
                whole = {**tables, "data": {**data, "seed": seed}, "train": train | {"seed": seed}}
                job = config.from_tables(whole, self.path)
                _check_simulated(where, job)
                other = None
                if tested_as is not None:
                    changed = whole["data"] | hold_to_type(where, "tested_as", tested_as, dict)
                    other = config.from_tables({**whole, "data": changed}, self.path)
                place = (self.spec.name, row.label, column, seed, choice)
                known = {**whole, "tested_as": tested_as}
                yield Cell(*place, job, known, row.baseline, rows, test_rows, other)


def _check_simulated(where: str, job: config.Job) -> None:
    options = job.train()  # refuses several runs in one job
    if options.get("runtime", "cohort") != "cohort" or options.get("landscape"):
        raise BadJob(
            f"{where}, train: runtime and landscape are for `tacit run`; the runs of a study are "
            "simulated, side by side. Leave them out."
        )
    if isinstance(job.model, models.Pretrained):
        raise BadJob(
            f"{where}: weights are for `tacit run` and `tacit compare`; the runs of a study start from new "
            "models. Leave them out."
        )


def _expand_grid(where: str, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each value of its grid; {mu} in the label stands for the value."""
    grid, label = row.get("grid"), row.get("label")
    row = {key: value for key, value in row.items() if key != "grid"}
    for values in _choices(where, "grid", grid):
        expanded = row
        for key, value in values.items():
            expanded = _lay(_nest(key, value), expanded)
        if not grid or not isinstance(label, str):
            yield expanded
            continue
        words = {
            key.rsplit(".", 1)[-1]: f"{value:g}" if isinstance(value, float) else value
            for key, value in values.items()
        }
        try:
            yield {**expanded, "label": label.format(**words)}
        except KeyError as error:
            raise BadJob(
                f"{where}, row {label!r}: its label names {error}, which is not in its grid. Known: "
                f"{', '.join(words)}."
            ) from None
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise BadJob(
                f"{where}, row {label!r}: its label is not a pattern: {error}. Write "
                f"{' '.join(f'{{{w}}}' for w in words)} in place of the value."
            ) from None


def _choices(where: str, what: str, values: Any) -> list[dict[str, Any]]:
    """Return all combinations of listed values, each as {key: value}."""
    if values is None:
        return [{}]
    if (
        not isinstance(values, dict)
        or not values
        or not all(v and isinstance(v, list) for v in values.values())
    ):
        raise BadJob(str(bad(where, what, values, 'a table of lists, like { "algorithm.mu" = [0.1, 1.0] }')))
    for key, listed in values.items():
        if key.partition(".")[0] not in ("algorithm", *SHARED):  # nothing else can be stacked
            raise BadJob(
                f"{where}, {what}: a study cannot change {key!r}. Begin it with 'algorithm.', 'data.', "
                "'model.' or 'train.'."
            )
        if key.endswith((".seed", ".seeds")):
            raise BadJob(
                f"{where}, {what}: {key!r} cannot differ between rows. Give the number of seeds as "
                "train.seeds: each cell runs from the seeds 0, 1 and so on."
            )
        if any(value in listed[:i] for i, value in enumerate(listed)):
            raise BadJob(str(bad(where, f"{what} {key!r}", listed, "values that differ")))
    return [dict(zip(values, combination)) for combination in itertools.product(*values.values())]


def _has_files(name: Any) -> bool:
    from ... import data

    return name in data.ALL and "data_dir" in inspect.signature(data.ALL[name]).parameters


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def _lay(above: Any, below: Any) -> Any:
    """Lay tables over tables; a table that names another kind of component replaces the one below."""
    if isinstance(below, str) and isinstance(above, dict):
        below = {"name": below}
    if (
        not isinstance(below, dict)
        or not isinstance(above, dict)
        or ("name" in above and below.get("name", above["name"]) != above["name"])
    ):
        return above
    return {**below, **{k: _lay(v, below[k]) if k in below else v for k, v in above.items()}}


def _read(path: Path) -> dict[str, Any]:
    try:
        return toml.read(path)
    except OSError as error:
        raise BadJob(
            f"{path} cannot be read: {error.strerror}. Check its permissions, or give another file."
        ) from None


def _count(where: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadJob(str(bad(where, name, value, "a whole number of at least 1")))
    return value
