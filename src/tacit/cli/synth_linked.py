"""`tacit synth` with several tables (a TOML file of tables and keys), or with events of entities."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadData, BadParameter, MissingFiles
from ..parameters import refuse
from ..progress import Progress
from .verbs import Answer, answer, reading_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..synth import LinkedTables, Sequences

HOLDOUT = 0.2  # share of the entities held out for a report
EXAMPLE = (
    'a TOML file with [tables.NAME] (file, key, order, foreign_keys = [{columns = ["id"], references = '
    '"OTHER"}], columns, separator, decimal, encoding) and [[constraints]]'
)
TABLE_FIELDS = ("file", "key", "order", "foreign_keys", "columns", "separator", "decimal", "encoding")


def is_linked(args: argparse.Namespace) -> bool:
    """Whether the options ask for several tables or for events."""
    if args.load:
        from ..synth.linked.model import is_linked_file

        return Path(args.load).is_file() and is_linked_file(args.load)
    return args.entity is not None or args.time is not None or str(args.table).lower().endswith(".toml")


def synth_linked(args: argparse.Namespace) -> Answer:
    """Fit or load, sample, save and evaluate."""
    _check(args)
    started, seed = time.monotonic(), args.seed or 0
    with Progress(args.quiet) as progress:
        job = _load(args) if args.load else _read(args)
        if not args.load:
            job.fit(args, lambda event: _show(progress, event))
        if args.save:
            job.model.save(args.save, force=args.force)
        written = job.write(args, seed, progress)
    value: dict[str, Any] = {
        "model": type(job.model).__name__,
        "rows": written,
        "out": args.out,
        "save": args.save,
        "report": args.report,
        "seed": seed,
        "ledger": job.model.ledger.to_dict(),
    }
    lines = [
        *job.model.ledger.stamps,
        *(f"{n:,} rows   {t}" for t, n in written.items()),
        *([f"written    {args.out}"] if args.out else []),
        *([f"generator  {args.save}"] if args.save else []),
    ]
    if args.report:
        evaluation = job.evaluate(seed)
        evaluation.report(args.report)
        value |= {"scores": evaluation.to_dict()["scores"], "warnings": evaluation.warnings}
        lines += [str(evaluation), f"report     {args.report}"]
    return answer({**value, "seconds": time.monotonic() - started}, lines)


def _show(progress: Progress, event: Mapping[str, Any]) -> None:
    if event["kind"] == "table":
        progress.line(f"learning {event['table']} ({event['rows']:,} rows)")


def _check(args: argparse.Namespace) -> None:
    """Check the options before anything is read or fitted."""
    from .synth_options import check_targets

    is_flat = args.entity is not None or args.time is not None
    refused = {
        "--model": args.model.lower() not in ("cart", "linkedtables", "sequences"),
        "--epochs": args.epochs is not None,
        "--condition": bool(args.conditions),
        "--person": args.person is not None,
        "--protect": args.protect is not None,
        "--release": args.release,
        "--limit": bool(args.limits),
        "--target": args.target is not None,
        "--drop": bool(args.drop),
        "--insecure-seed": args.insecure_seed is not None,
        "--columns": args.columns is not None and not is_flat,
        "--domain-epsilon": args.domain_epsilon is not None,
        "--entity": args.load is not None and is_flat,
        "--report": args.load is not None and args.report is not None,
        "--floor": args.load is not None and args.floor is not None,
        "--set": args.load is not None and bool(args.changes),
        "--holdout": args.holdout is not None and args.report is None,
    }
    wrong = [name for name, is_given in refused.items() if is_given]
    where = "with a saved generator" if args.load else "with linked tables and sequences"
    refuse(
        (wrong, f"synth: {', '.join(wrong)} cannot be used {where}. Remove it."),
        (
            bool(args.table) == bool(args.load),
            "synth: give either tables to fit or a saved generator with --load.",
        ),
        (
            is_flat and (args.entity is None or args.time is None),
            "synth: events need both --entity COLUMN and --time COLUMN.",
        ),
        (
            is_flat and str(args.table).lower().endswith(".toml"),
            "synth: --entity and --time are for one table; in a file of tables write foreign_keys and order.",
        ),
        (
            not (args.out or args.save or args.report),
            "synth: there is no output. Give --out, --save or --report.",
        ),
        (args.rows is not None and args.rows < 1, f"synth: --rows is {args.rows}; it must be at least 1."),
        (
            args.load and args.out and args.rows is None,
            "synth: a saved generator does not contain the number of entities; give it with --rows.",
        ),
        (
            args.holdout is not None and not 0 < args.holdout < 1,
            f"synth: --holdout is {args.holdout}; it must be above 0 and below 1, like 0.2.",
        ),
    )
    targets = {option: getattr(args, option) for option in ("save", "report")}
    check_targets("synth", targets, [args.table] if args.table else [], "an input", args.force)


def _make(cls: Any, args: argparse.Namespace) -> Any:
    """Build the model with the parameters of its trees."""
    from .synth_options import make_generator

    args.model = "cart"
    generator = make_generator(args)
    return cls(generator, seed=args.seed or 0)


class _Tables:
    """Several tables: `frames` were read, `sizes` are the rows of tables without parents."""

    def __init__(self, model: LinkedTables, schema: dict[str, Any] | None = None):
        self.model, self.schema = model, schema

    def fit(self, args: argparse.Namespace, watch: Any) -> None:
        from ..synth import split_linked

        assert self.schema is not None
        s = self.schema
        frames, self.holdout = s["frames"], None
        share = args.holdout or (HOLDOUT if args.report else None)
        if share is not None:
            frames, self.holdout = split_linked(frames, s["keys"], share, args.seed or 0)
        self.frames = frames
        self.model.fit(
            frames,
            s["keys"],
            s["order"],
            tables=s["columns"],
            constraints=s["constraints"],
            floor=args.floor,
            watch=watch,
        )

    def sizes(self, rows: int | None) -> dict[str, int]:
        roots = self.model.schema.roots
        if rows is not None and len(roots) > 1:
            raise BadParameter(
                f"synth: --rows is for one table without parents, and there are {len(roots)} "
                f"({', '.join(roots)}). "
                + ("Load the file in Python: sample({…})." if self.schema is None else "Remove --rows.")
            )
        return {t: rows or len(self.schema["frames"][t]) for t in roots}  # type: ignore[index]

    def write(self, args: argparse.Namespace, seed: int, progress: Progress) -> dict[str, int]:
        from ..data.table_files import write_table

        if not args.out:
            return {}
        folder = Path(args.out)
        files = {t: "csv" for t in self.model.schema.tables}
        if self.schema is not None:
            files = {
                t: "parquet" if f.suffix == ".parquet" else "csv" for t, f in self.schema["files"].items()
            }
        for t in files:  # a saved file may come from anyone: a name must not lead out of the directory
            if not re.fullmatch(r"\w[\w .-]*", t):
                raise BadParameter(
                    f"synth: {t!r} cannot be the name of a file. Name tables with letters, digits, _ and -."
                )
        targets = {t: folder / f"{t}.{ending}" for t, ending in files.items()}
        sampled = self.model.sample(self.sizes(args.rows), seed)
        folder.mkdir(exist_ok=True)
        for t, frame in sampled.items():
            write_table(frame, targets[t])
            progress.line(f"{targets[t]} written")
        return {t: len(f) for t, f in sampled.items()}

    def evaluate(self, seed: int) -> Any:
        from ..synth import evaluate_linked

        assert self.schema is not None
        s = self.schema
        roots = self.model.schema.roots
        synthetic = self.model.sample({t: len(self.frames[t]) for t in roots}, seed)
        return evaluate_linked(
            self.frames, synthetic, s["keys"], s["order"], self.holdout, tables=s["columns"]
        )


class _Events:
    """One table of events."""

    def __init__(self, model: Sequences, frame: DataFrame | None = None, columns: Any = None):
        self.model, self.read = model, frame
        self.columns: Any = columns or ({}, [])

    def fit(self, args: argparse.Namespace, watch: Any) -> None:
        from ..people import encode_person

        assert self.read is not None
        self.entity, self.time = args.entity, args.time
        frame, self.holdout = self.read, None
        share = args.holdout or (HOLDOUT if args.report else None)
        if share is not None:
            import numpy as np

            people = encode_person(frame, args.entity, [], "synth")
            order = np.random.default_rng(args.seed or 0).permutation(int(people.max()) + 1)
            held = np.isin(people, order[: max(1, round(share * len(order)))])
            frame, self.holdout = frame[~held].reset_index(drop=True), frame[held].reset_index(drop=True)
        self.frame = frame
        self.model.fit(
            frame,
            args.entity,
            args.time,
            columns=self.columns[0],
            constraints=self.columns[1],
            floor=args.floor,
            watch=watch,
        )

    def write(self, args: argparse.Namespace, seed: int, progress: Progress) -> dict[str, int]:
        from ..data.table_files import write_table

        if not args.out:
            return {}
        n = args.rows or self.frame[self.entity].nunique()
        sampled = self.model.sample(n, seed)
        write_table(sampled, args.out)
        return {"events": len(sampled), "entities": n}

    def evaluate(self, seed: int) -> Any:
        from ..synth import evaluate_sequences

        synthetic = self.model.sample(self.frame[self.entity].nunique(), seed)
        return evaluate_sequences(
            self.frame, synthetic, self.entity, self.time, self.holdout, columns=self.columns[0]
        )


def _load(args: argparse.Namespace) -> _Tables | _Events:
    from ..synth import load_linked, load_sequences

    model = load_linked(args.load)
    job = _Events(load_sequences(args.load)) if model.fitted.flat else _Tables(model)
    _check_out(args, isinstance(job, _Events), [])
    return job


def _check_out(args: argparse.Namespace, is_flat: bool, inputs: list[Path]) -> None:
    """Check where the tables will be written: one file, or a directory that is new or empty."""
    from ..data.table_files import check_table_name
    from .synth_options import check_targets

    if not args.out:
        return
    if is_flat:
        check_table_name(args.out, "synth: --out ")
        check_targets(
            "synth", {"out": args.out}, [str(f) for f in inputs], "the real table itself", args.force
        )
        return
    folder = Path(args.out)
    if folder.is_file() or not folder.resolve().parent.is_dir():
        raise BadParameter(f"synth: --out {args.out} must be a directory for the tables, in one that exists.")
    if folder.resolve() in {f.resolve().parent for f in inputs}:
        raise BadParameter(f"synth: --out {args.out} contains the real tables. Give another directory.")
    if folder.is_dir() and any(folder.iterdir()) and not args.force:
        raise BadParameter(f"synth: --out {args.out} is not empty. Give another directory, or --force.")


def _read(args: argparse.Namespace) -> _Tables | _Events:
    from ..data.table_files import read_table
    from ..synth import LinkedTables, Sequences
    from .synth_options import read_columns, text_values

    if args.entity is not None:
        _check_out(args, True, [Path(args.table)])
        columns: Any = read_columns(args.columns) if args.columns else ({}, [])
        frame = read_table(args.table, declared=text_values(columns[0]), **reading_of(args))
        return _Events(_make(Sequences, args), frame, columns)
    schema = read_tables_file(args.table)
    _check_out(args, False, list(schema["files"].values()))
    schema["frames"] = {
        t: read_table(
            f, declared=text_values(schema["columns"].get(t, {})), **(schema["reading"][t] | reading_of(args))
        )
        for t, f in schema["files"].items()
    }
    return _Tables(_make(LinkedTables, args), schema)


def read_tables_file(path: str) -> dict[str, Any]:
    """Read the tables, keys, order, columns and constraints of a TOML file; files are relative to it."""
    import tomllib

    from ..data.table_files import check_reading, reading_in
    from ..synth import ForeignKey, PrimaryKey, Total
    from ..synth.columns import column_from_toml
    from ..synth.constraints import from_dict

    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFiles(f"synth: there is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise BadData(f"synth: {path} cannot be read: {error}. It must be {EXAMPLE}.") from None
    problems = [f"{k!r} is unknown" for k in content if k not in ("tables", "constraints")]
    tables = content.get("tables")
    if not isinstance(tables, dict) or not tables or not all(isinstance(t, dict) for t in tables.values()):
        raise BadData(f"synth: {path} declares no tables. It must be {EXAMPLE}.")
    out: dict[str, Any] = {
        "files": {},
        "reading": {},
        "keys": [],
        "order": {},
        "columns": {},
        "constraints": [],
    }
    for name, about in tables.items():
        problems += [f"tables.{name}.{k} is unknown" for k in about if k not in TABLE_FIELDS]
        if not isinstance(about.get("file"), str):
            problems.append(f"tables.{name}.file is missing: the .csv or .parquet file")
            continue
        file = Path(path).parent / about["file"]
        out["files"][name] = file
        if not file.is_file():
            problems.append(f"tables.{name}.file: there is no file {file}")
        try:
            check_reading(f"tables.{name}", **reading_in(about))
        except (BadParameter, TypeError) as error:
            problems.append(str(error).rstrip("."))
        out["reading"][name] = reading_in(about)
        key = about.get("key", [])
        key = [key] if isinstance(key, str) else key
        if key:
            out["keys"].append(PrimaryKey(name, *map(str, key)))
        if "order" in about:
            out["order"][name] = str(about["order"])
        for k in about.get("foreign_keys", []):
            if not isinstance(k, dict) or set(k) != {"columns", "references"}:
                problems.append(f"tables.{name}.foreign_keys: each needs columns and references")
                continue
            columns = [k["columns"]] if isinstance(k["columns"], str) else k["columns"]
            out["keys"].append(ForeignKey(name, [str(c) for c in columns], str(k["references"])))
        try:
            out["columns"][name] = {c: column_from_toml(c, v) for c, v in about.get("columns", {}).items()}
        except (AttributeError, TypeError, ValueError) as error:
            problems.append(f"tables.{name}.columns: {str(error).rstrip('.')}")
    for c in content.get("constraints", []):
        try:
            if c["name"] == "Total":
                out["constraints"].append(Total(*c["columns"]))
            elif c["name"] in ("Range", "Ordered", "Unique", "Combinations"):
                defaults = {"low": None, "high": None, "strictly": False, "allowed": None}
                out["constraints"].append(from_dict({**defaults, **c}))
            else:
                problems.append(
                    f"constraints: {c['name']!r} is none of Range, Ordered, Unique, Total, Combinations"
                )
        except KeyError as error:
            problems.append(f"constraints: {error} is missing in {c}")
        except (TypeError, IndexError) as error:
            problems.append(f"constraints: {c}: {error}")
    if problems:
        raise BadData(f"synth: {path}: " + "; ".join(problems) + f". It must be {EXAMPLE}.")
    return out
