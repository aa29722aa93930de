"""Job files: what `tacit run` and `tacit compare` are told, as TOML.

    [data]              name = "digits", or path = "patients.csv" and label = "ill"; then how it is dealt: parties = 10, or by = "hospital"
    [data.skew]         name = "Dirichlet", alpha = 0.5            ([[data.skews]]: several, one federation each, for a comparison)
    [model]             name = "mlp", hidden = [64]                weights = "model.safetensors": it starts from these
    [algorithm]         name = "FedProx", mu = 0.1                 ([[algorithms]]: several, for a comparison)
    [algorithm.solver]  name = "SGD", momentum = 0.9
    [pace]              name = "FedBuff", buffer = 10              asynchronous training: whom the server waits for
    [speed]             name = "Lognormal", sigma = 1.0            how long local work takes, on the virtual clock of a simulation
    [select]            name = "PowerOfChoice", candidates = 30    who is asked in a round
    [topology]          name = "Gossip", graph = "ring"            without a server; or name = "Hierarchy", edges = 4, period = 2
    [aggregate]         name = "Median"                            how updates become one     ([[aggregates]]: several, for a comparison)
    [adversaries]       sign_flip = 0.2                            the share of parties that lie, in a simulation ([[adversaries]]: with a `name` each)
    [[guard]]           name = "Clip", norm = 1.0                  one after the other: the stages around every update, in their order
    [[variants]]        label = "five steps", local_steps = 5      settings of [train], or a guard, that a row has for itself, in a comparison
    [private]           epsilon = 8.0, delta = 1e-5, clip = 1.0    every local step is DP-SGD's: `tacit.private.DPSGD`
    [train]             rounds = 20, local_epochs = 2, …           the arguments of `tacit.train` and `tacit.compare`

Which keys may stand where is read off the functions and constructors they are handed to, so a job file
knows what the code knows. A key that data set and dealing both take (`seed`) goes to both. TOML has no
None: where None is allowed, write "none".
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import BadData, BadJob, BadParameter, BadRun, MissingFiles
from ..parameters import bad, nearest, to_table
from ..runs import is_python_job
from . import toml
from .toml import dumps as dumps  # public here, too
from .toml import value_of as value_of

TABLES = (
    "data",
    "model",
    "algorithm",
    "algorithms",
    "pace",
    "speed",
    "select",
    "topology",
    "aggregate",
    "aggregates",
    "adversaries",
    "guard",
    "variants",
    "private",
    "train",
)
OURS = (
    *TABLES[1:-1],
    "fed",
    "feds",
    "guards",
    "out",
    "resume",
    "data_job",
    "watch",
)  # a job's arguments that are no settings


@dataclass(frozen=True)
class Job:
    """A job file, checked: every name known, every value of the right type, every path absolute."""

    data: dict[str, Any]
    skews: tuple[Any, ...]
    model: Any
    algorithms: tuple[Any, ...]
    settings: dict[str, Any]
    file: Path = field(default=Path("job.toml"), compare=False)
    several: bool = False  # [[…]] was written: a job for `tacit compare`
    guard: tuple[Any, ...] = ()
    pace: Any = None
    speed: Any = None
    aggregates: tuple[Any, ...] = ()
    adversaries: tuple[Any, ...] = ()
    topology: dict[str, Any] | None = None  # as written: it needs the number of parties to be made
    private: Any = None
    select: Any = None
    variants: dict[str, dict[str, Any]] | None = None

    def dataset(self) -> Any:
        make, known = source(self.data, str(self.file))
        return self._said(partial(make, **{k: v for k, v in self.data.items() if k in known}))

    def federations(self, dataset: Any = None) -> list[Any]:
        """The data set, read now or before, dealt out once for each skew."""
        dataset, by = self.dataset() if dataset is None else dataset, self.data.get("by")
        given = {k: v for k, v in self.data.items() if k in _dealing(by)}
        if by is not None:
            return [self._said(partial(dataset.by, by, **given))]
        parties = self.data.get("parties")
        return [self._said(partial(dataset.split, parties, skew=skew, **given)) for skew in self.skews]

    def train(self) -> dict[str, Any]:
        """The arguments of `jobs.train`, but for the federation and where the run goes."""
        if self.several:
            raise BadJob(
                f"{self.file} lists several algorithms or skews. Compare them with `tacit compare "
                f"{self.file}`."
            )
        guard = {"guard": list(self.guard)} if self.guard else {}
        guard |= {k: v for k, v in (("pace", self.pace), ("speed", self.speed)) if v is not None}
        more: tuple[tuple[str, Any], ...] = (
            ("aggregate", self.aggregates[0] if self.aggregates else None),
            ("adversaries", list(self.adversaries)),
            ("topology", self.topology),
            ("private", self.private),
            ("select", self.select),
        )
        guard |= {k: v for k, v in more if v is not None and v != []}
        return {
            "model": self.model,
            "algorithm": self.algorithms[0],
            "data_job": self.resolved()["data"],
            **guard,
            **self._for("train"),
        }

    def compare(self) -> dict[str, Any]:
        """The arguments of `jobs.compare`, but for the federations and where it goes."""
        if self.private is not None:
            raise BadJob(
                f"{self.file}: [private] is for `tacit run`. Leave it out, or run the job by itself; `tacit "
                "report` draws several runs."
            )
        if self.pace is not None or self.speed is not None:
            raise BadJob(
                f"{self.file}: [pace] and [speed] are for `tacit run`. Leave them out, or run the job by "
                "itself; `tacit report` draws several runs."
            )
        if (other := "select" if self.select is not None else "topology" if self.topology else "") != "":
            raise BadJob(
                f"{self.file}: [{other}] is for `tacit run`. Leave it out, or run the job by itself; `tacit "
                "report` draws several runs."
            )
        settings = self._for("compare")
        if "seed" in settings:
            settings = {**{k: v for k, v in settings.items() if k != "seed"}, "seeds": (settings["seed"],)}
        rules: dict[str, Any] = {
            k: list(v) for k, v in (("aggregates", self.aggregates), ("adversaries", self.adversaries)) if v
        }
        if self.guard:  # each algorithm with it and without
            rules["guards"] = {"no guard": None, "guarded": list(self.guard)}
        if self.variants:
            rules["variants"] = self.variants
        return {
            "model": self.model,
            "algorithms": list(self.algorithms),
            "data_job": self.resolved()["data"],
            **rules,
            **settings,
        }

    def resolved(self) -> dict[str, Any]:
        """The whole job as tables: `load` of its `dumps` is this job again."""
        from .. import models

        skews = [to_table(s) for s in self.skews]
        algorithms = [to_table(a) for a in self.algorithms]
        data = {
            **self.data,
            **({} if not skews else {"skews": skews} if self.several else {"skew": skews[0]}),
        }
        settings = {k: toml.NONE if v is None else v for k, v in self.settings.items()}
        return {
            "data": data,
            "model": models.table_of(self.model),
            **({"algorithms": algorithms} if self.several else {"algorithm": algorithms[0]}),
            **({"guard": [to_table(s) for s in self.guard]} if self.guard else {}),
            **{
                k: to_table(v)
                for k, v in (("pace", self.pace), ("speed", self.speed), ("private", self.private))
                if v is not None
            },
            **(
                {}
                if not self.aggregates
                else {"aggregates": [to_table(r) for r in self.aggregates]}
                if self.several
                else {"aggregate": to_table(self.aggregates[0])}
            ),
            **({"select": to_table(self.select)} if self.select is not None else {}),
            **(
                {
                    "variants": [
                        {
                            "label": name,
                            **{
                                k: [to_table(s) for s in v] if k == "guard" else toml.NONE if v is None else v
                                for k, v in given.items()
                            },
                        }
                        for name, given in self.variants.items()
                    ]
                }
                if self.variants
                else {}
            ),
            **({"topology": self.topology} if self.topology else {}),
            **({"adversaries": [to_table(a) for a in self.adversaries]} if self.adversaries else {}),
            "train": settings,
        }

    def _for(self, verb: str) -> dict[str, Any]:
        known = [*_settings(verb), *(("seed",) if verb == "compare" else ())]
        for key in self.settings:
            if key not in known:
                other = "compare" if verb == "train" else "run"
                raise BadJob(
                    f"{self.file}, train: {key!r} is for `tacit {other}`. Leave it out here. Known: "
                    f"{', '.join(sorted(known))}."
                )
        return dict(self.settings)

    def _said(self, make: Callable[[], Any]) -> Any:
        """A value that only turns out to be wrong with the data at hand still names the file and the
        table.
        """
        try:
            return make()
        except BadParameter as error:
            raise BadJob(f"{self.file}, data: {error}") from None


def load(path: str | os.PathLike[str], changes: Sequence[str] = ()) -> Job:
    """Read and check a job file; `changes` are lines like "train.rounds=5" that are laid over it first."""
    file = Path(path)
    if file.is_dir():
        raise BadJob(
            f"{file} is a directory, not a job file. Go on with a run by `tacit run --resume {file}`."
        )
    if not file.is_file():
        beside = [str(p) for p in file.parent.glob("*.toml")] if file.parent.is_dir() else []
        raise BadJob(
            f"there is no job file {file}. " + (nearest(str(file), beside) if beside else "Check the path.")
        )
    tables = toml.read(file)
    if is_python_job(tables):
        raise BadJob(
            f"{file} is the job of a run that was started from Python, with data that only that program "
            "has. Run that program again; "
            "for the command line write a job file whose [data] has a `name` or a `path`."
        )
    for change in changes:
        toml.change(tables, change)
    return from_tables(tables, file)


def of_run(directory: str | os.PathLike[str]) -> Job:
    """The job a run directory keeps. A run writes down every setting but those that are None, so one that is
    missing was None.
    """
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
    job = load(file)
    absent = {
        k: None
        for k, hint in _settings("train").items()
        if type(None) in typing.get_args(hint) and k not in job.settings
    }
    return dataclasses.replace(job, settings={**absent, **job.settings})


def of_comparison(directory: str | os.PathLike[str]) -> Job:
    """The job that `tacit compare` keeps beside its runs."""
    file = Path(directory) / "job.toml"
    if not file.is_file():
        raise BadRun(
            f"{directory} holds no comparison to resume: there is no job.toml in it. Give the job file, "
            "too, or a directory that `tacit compare` "
            "wrote."
        )
    return load(file)


def from_tables(tables: Mapping[str, Any], file: Path = Path("job.toml")) -> Job:
    """Check the tables of a job; `file` is who is blamed, and what relative paths are relative to."""
    from .. import algorithms, data, selection

    where = str(file)
    toml.only_known(where, tables, TABLES)
    if "data" not in tables:
        raise BadJob(
            f'{where}: there is no [data] table. Begin with one: [data] name = "digits", parties = 10. '
            f"Data sets: {', '.join(data.ALL)}."
        )
    raw = toml.table(where, "data", tables["data"])
    for one, table in (("algorithm", tables), ("skew", raw)):
        if one in table and f"{one}s" in table:
            raise BadJob(
                f"{where}: both `{one}` and `{one}s` are there. Keep `{one}` for one run, or the list "
                f"`{one}s` for a comparison."
            )
    skews = [
        toml.made(t, data.SKEWS, f"{where}, {at}")
        for at, t in toml.listed(where, "data.skew", raw.get("skew"), raw.get("skews"))
    ]
    listed = toml.listed(where, "algorithm", tables.get("algorithm"), tables.get("algorithms")) or [
        ("algorithm", toml.USUAL["algorithm"])
    ]
    several = "algorithms" in tables or "aggregates" in tables or "skews" in raw or "variants" in tables
    values = _data(raw, skews, file)
    model = _model(tables.get("model", toml.USUAL["model"]), file)
    chosen = tuple(toml.made(t, algorithms.ALL, f"{where}, {at}") for at, t in listed)
    settings = train_settings(toml.table(where, "train", tables.get("train", {})), f"{where}, train")
    return Job(
        values,
        tuple(skews or ([] if "by" in values else [data.IID()])),
        model,
        chosen,
        settings,
        file,
        several,
        guarded(tables.get("guard"), where),
        paced(tables, where),
        speeded(tables, where),
        _aggregates(tables, where),
        _adversaries(tables.get("adversaries"), where),
        toml.table(where, "topology", tables["topology"]) if "topology" in tables else None,
        _private(tables, where),
        toml.made(tables["select"], selection.ALL, f"{where}, select") if "select" in tables else None,
        _variants(tables.get("variants"), where),
    )


def _model(given: Any, file: Path) -> Any:
    """[model], made; with `weights`, from where they lie."""
    from .. import models

    where, table = f"{file}, model", given if isinstance(given, Mapping) else {}
    spec = toml.made(
        {k: v for k, v in table.items() if k not in ("weights", "sha256")} if table else given,
        models.ALL,
        where,
    )
    kept = {k: toml.held(where, k, table[k], str) for k in ("weights", "sha256") if k in table}
    if "weights" not in kept:
        if kept:
            raise BadJob(
                f"{where}: sha256 is of `weights`, and there are none. Name their file, or leave it out."
            )
        return spec
    try:
        return models.Pretrained(
            spec, str((file.parent / Path(kept["weights"]).expanduser()).resolve()), kept.get("sha256", "")
        ).pinned()
    except (BadData, MissingFiles) as error:
        raise BadJob(f"{where}, {error}") from None


def _variants(listed: Any, where: str) -> dict[str, dict[str, Any]] | None:
    """[[variants]]: a label each, and the settings of [train] that are its own; `guard` is a list of
    stages.
    """
    if listed is None:
        return None
    if (
        not isinstance(listed, list)
        or not listed
        or not all(isinstance(t, dict) and isinstance(t.get("label"), str) and t["label"] for t in listed)
    ):
        raise BadJob(
            str(bad(where, "variants", listed, "a list of tables with a label each, written as [[variants]]"))
        )
    if len({t["label"] for t in listed}) < len(listed):
        raise BadJob(f"{where}, variants: two have the same label. Name each differently.")
    made = {}
    for i, table in enumerate(listed):
        at = f"{where}, variants[{i}]"
        plain = train_settings({k: v for k, v in table.items() if k not in ("label", "guard")}, at)
        made[table["label"]] = plain | (
            {"guard": list(guarded(table["guard"], at))} if table.get("guard") else {}
        )
    return made


def _private(tables: Mapping[str, Any], where: str) -> Any:
    """[private], made; None where there is none."""
    if "private" not in tables:
        return None
    from ..private.dpsgd import DPSGD

    return toml.made(
        {"name": "DPSGD", **toml.table(where, "private", tables["private"])},
        {"DPSGD": DPSGD},
        f"{where}, private",
    )


def _aggregates(tables: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    """[aggregate] or [[aggregates]], made."""
    from .. import aggregate

    listed = toml.listed(where, "aggregate", tables.get("aggregate"), tables.get("aggregates"))
    return tuple(toml.made(t, aggregate.ALL, f"{where}, {at}") for at, t in listed)


def _adversaries(given: Any, where: str) -> tuple[Any, ...]:
    """[adversaries] with shares by attack, or [[adversaries]] with a name and parameters each."""
    from ..audit import poisoning

    if isinstance(given, list):
        return tuple(
            toml.made(t, {k.__name__: k for k in poisoning.ALL.values()}, f"{where}, adversaries[{i}]")
            for i, t in enumerate(given)
        )
    try:
        return poisoning.attacks(given)
    except BadParameter as error:
        raise BadJob(f"{where}, adversaries: {error}") from None


def paced(tables: Mapping[str, Any], where: str) -> Any:
    """[pace], made; None where there is none."""
    from .. import pace

    return toml.made(tables["pace"], pace.ALL, f"{where}, pace") if "pace" in tables else None


def speeded(tables: Mapping[str, Any], where: str) -> Any:
    """[speed], made; None where there is none."""
    from .. import speeds

    return toml.made(tables["speed"], speeds.ALL, f"{where}, speed") if "speed" in tables else None


def guarded(listed: Any, where: str) -> tuple[Any, ...]:
    """The stages of [[guard]], each checked, and their order."""
    if listed is None:
        return ()
    from .. import guard

    if not isinstance(listed, list) or not listed:
        raise BadJob(
            str(bad(where, "guard", listed, "a list of at least one table, each written as [[guard]]"))
        )
    stages = [toml.made(table, guard.ALL, f"{where}, guard[{i}]") for i, table in enumerate(listed)]
    try:
        return guard.as_stages(stages)
    except BadParameter as error:
        raise BadJob(f"{where}: {error}") from None


def _data(raw: dict[str, Any], skews: list[Any], file: Path) -> dict[str, Any]:
    """[data] without its skews: every value given or by default, paths absolute."""
    from ..data import ByColumn

    where = f"{file}, data"
    flat = {k: v for k, v in raw.items() if k not in ("skew", "skews")}
    make, takes = source(flat, str(file))
    dealing = {**_dealing(flat.get("by")), "by": str}
    if "by" not in flat:
        dealing["parties"] = int
    elif "parties" in flat and "parties" not in takes:
        raise BadJob(
            f"{where}: both `parties` and `by` are there. `by` makes one party of each value of a column, "
            "so leave `parties` out."
        )
    known = {"name": str, **takes, **dealing}
    toml.only_known(where, flat, known)
    values = {key: toml.held(where, key, flat[key], known[key]) for key in flat}
    for key, hint in known.items():
        if isinstance(values.get(key), str) and any(
            typing.get_origin(a) is os.PathLike for a in typing.get_args(hint)
        ):
            values[key] = str((file.parent / Path(values[key]).expanduser()).resolve())
    if "by" in flat and skews:
        raise BadJob(
            f"{where}: both `by` and a skew are there. `by` already says who holds which rows: leave one of "
            "them out."
        )
    if "by" not in flat and "parties" not in flat and not any(isinstance(s, ByColumn) for s in skews):
        raise BadJob(
            f"{where}: it is not said who holds the rows. Add `parties = 10`, or `by` with a column that "
            "tells parties apart."
        )
    defaults = {
        k: p.default
        for f in (make, _deal(flat.get("by")))
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


def source(table: Mapping[str, Any], file: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that makes the data set, and what it takes."""
    from .. import data

    if "path" in table:
        packed = str(table["path"]).lower().removesuffix(".gz").removesuffix(".zip")
        make: Callable[..., Any] = (
            data.from_parquet if packed.endswith((".parquet", ".pq")) else data.from_csv
        )
        if "label" not in table:
            raise BadJob(
                f'{file}, data: there is no `label` beside `path`. Name the column to predict: label = "…".'
            )
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
    elif table["name"] not in list(data.ALL):  # a list: what cannot be hashed is told, too
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


def _deal(by: Any) -> Callable[..., Any]:
    from ..data import Dataset

    return Dataset.split if by is None else Dataset.by


def _dealing(by: Any) -> dict[str, Any]:
    return {k: v for k, v in toml.hints(_deal(by)).items() if k not in ("self", "parties", "skew", "column")}


def _settings(verb: str) -> dict[str, Any]:
    import tacit

    return {k: v for k, v in toml.hints(getattr(tacit, verb)).items() if k not in OURS}


def train_settings(table: dict[str, Any], where: str) -> dict[str, Any]:
    known = {**_settings("compare"), **_settings("train")}
    toml.only_known(where, table, known)
    if "seed" in table and "seeds" in table:
        raise BadJob(
            f"{where}: both `seed` and `seeds` are there. `seed` is for one run, `seeds` for a comparison."
        )
    return {key: toml.held(where, key, value, known[key]) for key, value in table.items()}
