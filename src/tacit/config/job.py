"""Job files: the TOML that `tacit run`, `tacit compare`, `tacit plan` and `tacit party` read.

    [data]              name = "digits", or path = "patients.csv" and label = "ill";
                        then who holds the rows: parties = 10, or by = "hospital"
    [data.skew]         name = "Dirichlet", alpha = 0.5
    [model]             name = "mlp", hidden = [64]; weights = "model.safetensors" starts from these
    [algorithm]         name = "FedProx", mu = 0.1
    [algorithm.solver]  name = "SGD", momentum = 0.9
    [train]             rounds = 20, local_epochs = 2, …

Every option of `TrainConfig` (train.py) that is a component has a table of its own, named after it: [pace],
[speed], [select], [topology], [aggregate], [private], [adversaries], and [[guard]], one table for each stage
in order. All other options are keys of [train]. For `tacit compare`, [[algorithms]], [[aggregates]],
[[data.skews]] and [[variants]] list several, and [train] takes `seeds`. TOML has no None: where None is
allowed, write "none".
"""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from .. import models
from ..errors import BadData, BadJob, BadParameter, BadRun, MissingFiles
from ..own_code import is_code
from ..parameters import bad, from_table, nearest, propose_lines, to_table
from ..runs import is_python_job
from . import toml
from .audit import AuditTerms, read_terms
from .compare import AXES, CompareConfig
from .toml import dumps as dumps
from .toml import value_of as value_of
from .train import OPTIONS, SETTINGS, TABLES, TrainConfig, to_table_of

_COMPARES = tuple(f.name for f in CompareConfig.options().values() if f.name not in AXES)  # keys of [train]
KNOWN = ("data", *TABLES, *AXES, "train", "release")


@dataclass(frozen=True)
class Job:
    """A job file, checked: every name known, every value of the right type, every path absolute."""

    data: dict[str, Any]
    skews: tuple[Any, ...]
    options: dict[str, Any]  # of TrainConfig, as far as they are given
    comparison: dict[str, Any]  # of CompareConfig, as far as they are given
    tables: dict[str, Any] = field(compare=False)  # the file's tables, with absolute paths
    file: Path = field(default=Path("job.toml"), compare=False)
    release: AuditTerms | None = None  # what the run must withstand before its model is released

    @property
    def model(self) -> Any:
        return self.options["model"]

    @property
    def several(self) -> bool:
        """Whether the file lists several runs, for `tacit compare`."""
        return "skews" in self.tables["data"] or any(name in self.tables for name in AXES)

    def dataset(self) -> Any:
        """Load the data set."""
        make, known = source(self.data, str(self.file))
        return self._with_file(partial(make, **{k: v for k, v in self.data.items() if k in known}))

    def federations(self, dataset: Any = None) -> list[Any]:
        """Partition the data set (loaded now, or before) among parties, once for each skew."""
        dataset, by = self.dataset() if dataset is None else dataset, self.data.get("by")
        options = {k: v for k, v in self.data.items() if k in _partition_options(by)}
        if by is not None:
            return [self._with_file(partial(dataset.by, by, **options))]
        parties = self.data.get("parties")
        return [self._with_file(partial(dataset.split, parties, skew=skew, **options)) for skew in self.skews]

    def train(self) -> dict[str, Any]:
        """Return the arguments of `tacit.train`, except for the federation and `out`."""
        if self.several:
            raise BadJob(
                f"{self.file} lists several algorithms or skews. Compare them with `tacit compare "
                f"{self.file}`."
            )
        self._only("run", self.comparison, SETTINGS)
        return {**self.options, "data_job": self.tables["data"]}

    def compare(self) -> dict[str, Any]:
        """Return the arguments of `tacit.compare`, except for the federations and `out`."""
        if self.release is not None:
            raise BadJob(f"{self.file}: `release` is for `tacit run`. Leave it out here.")
        shared = CompareConfig.shared()
        axes = {f.metadata["compare"]: name for name, f in OPTIONS.items() if f.metadata.get("compare")}
        options = dict(self.comparison)
        for name, value in self.options.items():
            plural = OPTIONS[name].metadata.get("compare", True)
            if name in shared:
                options[name] = value
            elif name == "guard":  # each algorithm with it and without
                options["guards"] = {"no guard": None, "guarded": list(value)}
            elif plural in axes:
                options.setdefault(plural, (value,) if name == "seed" else [value])
            elif name in TABLES:
                raise BadJob(
                    f"{self.file}: [{name}] is for `tacit run`. Leave it out, or run the job by itself; "
                    "`tacit report` draws several runs."
                )
            else:
                self._only("compare", [name], [n for n in SETTINGS if n in shared] + list(_COMPARES))
        return {**options, "data_job": self.tables["data"]}

    def _only(self, verb: str, names: typing.Iterable[str], known: Sequence[str]) -> None:
        other = {"run": "compare", "compare": "run"}[verb]
        for name in names:
            raise BadJob(
                f"{self.file}, train: {name!r} is for `tacit {other}`. Leave it out here. Known: "
                f"{', '.join(sorted(known))}."
            )

    def resolved(self) -> dict[str, Any]:
        """Return the whole job as tables: `from_tables` of them is this job again."""
        return self.tables

    def _with_file(self, make: Callable[[], Any]) -> Any:
        """Name the file and the table when a value proves wrong with the data at hand."""
        try:
            with propose_lines():
                return make()
        except BadParameter as error:
            raise BadJob(f"{self.file}, data: {error}") from None


def load(path: str | os.PathLike[str], changes: Sequence[str] = ()) -> Job:
    """Read and check a job file; `changes` such as "train.rounds=5" replace values of it."""
    return from_tables(toml.load(path, changes), Path(path))


def of_run(directory: str | os.PathLike[str]) -> Job:
    """Read the job that a run directory keeps."""
    file = Path(directory) / "job.toml"
    if not file.is_file():
        raise BadRun(
            f"{directory} holds no run to resume: there is no job.toml in it. Give a directory that `tacit "
            "run` wrote."
        )
    if is_python_job(toml.read(file)):
        raise BadRun(
            f"{directory} was started from Python, with data that only that program has. Resume it there: "
            f"tacit.train(…, out={str(directory)!r}, resume=True)."
        )
    return load(file)


def of_comparison(directory: str | os.PathLike[str]) -> Job:
    """Read the job of a comparison from its directory."""
    file = Path(directory) / "job.toml"
    if not file.is_file():
        raise BadRun(
            f"{directory} holds no comparison to resume: there is no job.toml in it. Give the job file, too, "
            "or a directory that `tacit compare` wrote."
        )
    return load(file)


def from_tables(tables: Mapping[str, Any], file: Path = Path("job.toml")) -> Job:
    """Check the tables of a job. Errors name `file`, and relative paths are relative to it."""
    from .. import data

    where = str(file)
    toml.refuse_other_verbs(where, tables, KNOWN)
    problems: list[str] = []
    for key in tables:
        if key in SETTINGS or key in _COMPARES:  # a new user's first mistake
            problems.append(f"{where}: {key!r} is an option of [train]. Write it below that line.")
    with toml.collect(problems):
        toml.only_known(where, [k for k in tables if k not in SETTINGS and k not in _COMPARES], KNOWN)
    if "data" not in tables:
        toml.refuse_all(problems)  # which may be a misspelled [data]
        raise BadJob(
            f'{where}: there is no [data] table. Begin with one: [data] name = "digits", parties = 10. '
            f"Data sets: {', '.join(data.ALL)}."
        )
    raw = toml.table(where, "data", tables["data"])
    for one, table in (("algorithm", tables), ("aggregate", tables), ("skew", raw)):
        if one in table and f"{one}s" in table:
            raise BadJob(
                f"{where}: both `{one}` and `{one}s` are there. Keep `{one}` for one run, or the list "
                f"`{one}s` for a comparison."
            )
    with toml.collect(problems):
        skews = [
            from_table(table, data.SKEWS, f"{where}, {place}")
            for place, table in toml.listed(where, "data.skew", raw.get("skew"), raw.get("skews"))
        ]
        values = _data(raw, skews, file)
    with toml.collect(problems):
        options, comparison = read_options(tables, file)
    terms = None
    with toml.collect(problems):
        terms = read_terms(tables["release"], where) if "release" in tables else None
    toml.refuse_all(problems)
    skew_tables: dict[str, Any] = {"skew": to_table(skews[0])} if "skew" in raw else {}
    if "skews" in raw:
        skew_tables = {"skews": [to_table(skew) for skew in skews]}
    model = {} if options["model"] is None else {"model": to_table_of(options["model"])}
    whole = {**tables, "data": {**values, **skew_tables}, **model}
    skews = skews or ([] if "by" in values else [data.IID()])
    return Job(values, tuple(skews), options, comparison, whole, file, terms)


def read_options(tables: Mapping[str, Any], file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of TrainConfig and of CompareConfig that the tables of a job file give."""
    where = str(file)
    options: dict[str, Any] = {}
    comparison: dict[str, Any] = {}
    problems: list[str] = []
    with toml.collect(problems):
        options["model"] = _model(tables["model"], file) if "model" in tables else OPTIONS["model"].default
    for name in TABLES[1:]:
        if name in tables:
            with toml.collect(problems):
                options[name] = _take(name, tables[name], where)
    with toml.collect(problems):
        train = toml.table(where, "train", tables.get("train", {}))
        settings, comparison = read_settings(train, f"{where}, train")
    for name, (one, members) in AXES.items():
        if name in tables and name != "variants":
            with toml.collect(problems):
                rows = toml.listed(where, one, None, tables[name])
                comparison[name] = [from_table(table, members, f"{where}, {place}") for place, table in rows]
    if "variants" in tables:
        with toml.collect(problems):
            comparison["variants"] = _variants(tables["variants"], where)
    toml.refuse_all(problems)
    return options | settings, comparison


def read_settings(table: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of TrainConfig and of CompareConfig that [train] gives."""
    hints = {
        **{name: hint for name, hint in typing.get_type_hints(CompareConfig).items() if name in _COMPARES},
        **{name: hint for name, hint in typing.get_type_hints(TrainConfig).items() if name in SETTINGS},
        "runtime": str,
    }
    values = toml.hold(where, table, hints)
    if "seed" in table and "seeds" in table:
        raise BadJob(
            f"{where}: both `seed` and `seeds` are there. `seed` is for one run, `seeds` for a comparison."
        )
    return (
        {k: v for k, v in values.items() if k in SETTINGS},
        {k: v for k, v in values.items() if k not in SETTINGS},
    )


def _take(name: str, value: Any, where: str) -> Any:
    """Return the component that a table describes."""
    if name == "guard" and (not isinstance(value, list) or not value):
        raise BadJob(str(bad(where, name, value, "a list of at least one table, each written as [[guard]]")))
    if name == "topology":  # it needs the number of parties
        return toml.table(where, name, value)
    try:
        return OPTIONS[name].metadata["take"](value, where)
    except BadParameter as error:
        text = str(error)
        raise BadJob(text if text.startswith(where) else f"{where}, {text}") from None


def _model(value: Any, file: Path) -> Any:
    """Return the model of [model]; with `weights`, one that starts from that file."""
    where, table = f"{file}, model", value if isinstance(value, Mapping) else {}
    plain = {k: v for k, v in table.items() if k not in ("weights", "sha256")} if table else value
    name = plain.get("name") if isinstance(plain, Mapping) else plain
    if is_code(name):
        raise BadJob(
            f"{where}: {name!r} is code of your own, which a job file can name only between real parties, "
            "who approve it. In a simulation give the object: tacit.train(…, model=…)."
        )
    spec = from_table(plain, models.ALL, where)
    weights = {k: toml.held(where, k, table[k], str) for k in ("weights", "sha256") if k in table}
    if "weights" not in weights:
        if weights:
            raise BadJob(
                f"{where}: sha256 is of `weights`, and there are none. Name their file, or leave it out."
            )
        return spec
    path = (file.parent / Path(weights["weights"]).expanduser()).resolve()
    try:
        return models.Pretrained(spec, str(path), weights.get("sha256", "")).pinned()
    except (BadData, MissingFiles) as error:
        raise BadJob(f"{where}, {error}") from None


def _variants(rows: Any, where: str) -> dict[str, dict[str, Any]]:
    """Return [[variants]] by label: settings of [train], and `guard`, that a row has for itself."""
    if (
        not isinstance(rows, list)
        or not rows
        or not all(isinstance(t, dict) and isinstance(t.get("label"), str) and t["label"] for t in rows)
    ):
        must_be = "a list of tables with a label each, written as [[variants]]"
        raise BadJob(str(bad(where, "variants", rows, must_be)))
    if len({table["label"] for table in rows}) < len(rows):
        raise BadJob(f"{where}, variants: two have the same label. Name each differently.")
    variants = {}
    for i, table in enumerate(rows):
        place = f"{where}, variants[{i}]"
        rest = {k: v for k, v in table.items() if k not in ("label", "guard")}
        settings, comparison = read_settings(rest, place)
        settings |= comparison  # which compare refuses by name
        if table.get("guard"):
            settings["guard"] = list(_take("guard", table["guard"], place))
        variants[table["label"]] = settings
    return variants


def _data(raw: dict[str, Any], skews: list[Any], file: Path) -> dict[str, Any]:
    """Return [data] without its skews: every value given or by default, paths absolute."""
    from ..data import ByColumn

    where = f"{file}, data"
    flat = {k: v for k, v in raw.items() if k not in ("skew", "skews")}
    make, takes = source(flat, str(file))
    partition = {**_partition_options(flat.get("by")), "by": str}
    if "by" not in flat:
        partition["parties"] = int
    elif "parties" in flat and "parties" not in takes:
        raise BadJob(
            f"{where}: both `parties` and `by` are there. `by` makes one party of each value of a column, "
            "so leave `parties` out."
        )
    known = {"name": str, **takes, **partition}
    values = toml.hold(where, flat, known)
    for key, hint in known.items():
        if any(typing.get_origin(a) is os.PathLike for a in typing.get_args(hint)):
            given = values.get(key)
            if isinstance(given, str):
                values[key] = _absolute(file, given)
            elif isinstance(given, list):
                values[key] = [_absolute(file, path) for path in given]
    if "by" in flat and skews:
        raise BadJob(
            f"{where}: both `by` and a skew are there. `by` already says who holds which rows: leave one of "
            "them out."
        )
    if "by" not in flat and "parties" not in flat and not any(isinstance(s, ByColumn) for s in skews):
        raise BadJob(
            f"{where}: who holds the rows is missing. Add `parties = 10`, or `by` with a column that "
            "tells parties apart."
        )
    defaults = {
        k: p.default
        for f in (make, _partitioner(flat.get("by")))
        for k, p in inspect.signature(f).parameters.items()
        if k in known
    }
    filled = {
        k: list(v) if isinstance(v, tuple) else v
        for k, v in defaults.items()
        if v is not inspect.Parameter.empty and v is not None
    }
    if "by" not in flat and "parties" in takes and "parties" not in values:
        filled.pop("parties", None)
    return {
        k: v
        for k, v in {**values, **{k: v for k, v in filled.items() if k not in values}}.items()
        if v is not None
    }


def _absolute(file: Path, path: str) -> str:
    return str((file.parent / Path(path).expanduser()).resolve())


def source(table: Mapping[str, Any], file: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function that loads the data set, and its parameters."""
    from .. import data

    if "path" in table:
        if table.get("name") in list(data.ALL):
            raise BadJob(
                f"{file}, data: `path` names a file and `name` = {table['name']!r} a data set of tacit. Keep "
                "one of them; with a path, `name` is the title in reports."
            )
        packed = str(table["path"]).lower().removesuffix(".gz").removesuffix(".zip")
        make: Callable[..., Any] = (
            data.from_parquet
            if isinstance(table["path"], str) and packed.endswith((".parquet", ".pq"))
            else data.from_csv
        )
        if "label" not in table:
            raise BadJob(f'{file}, data: `path` needs a `label`. Name the column to predict: label = "…".')
    elif "name" not in table:
        between = (
            ""
            if "label" not in table
            else " If this is the job of a run between real parties, use `tacit party`, or `tacit plan "
            "--kit`."
        )
        raise BadJob(
            f"{file}, data: there is neither a `name` nor a `path`.{between} Data sets: "
            f"{', '.join(data.ALL)}."
        )
    elif table["name"] not in list(data.ALL):  # a list: the name may not be hashable
        if str(table["name"]).lower().endswith((".csv", ".csv.gz", ".parquet", ".pq")):
            raise BadJob(
                f"{file}, data: {table['name']!r} is a file, not the name of a data set. Write path = "
                f'"{table["name"]}", and the '
                'column to predict as label = "…".'
            )
        raise BadJob(
            f"{file}, data: {table['name']!r} is not a data set. "
            f"{nearest(str(table['name']), list(data.ALL))}"
        )
    else:
        make = data.ALL[table["name"]]
    return make, toml.hints(make)


def _partitioner(by: Any) -> Callable[..., Any]:
    from ..data import Dataset

    return Dataset.split if by is None else Dataset.by


def _partition_options(by: Any) -> dict[str, Any]:
    return {
        k: v
        for k, v in toml.hints(_partitioner(by)).items()
        if k not in ("self", "parties", "skew", "column")
    }
