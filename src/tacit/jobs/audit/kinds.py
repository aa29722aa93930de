"""What a result is, for its audit: a run of tacit.train, a published table, trees, a split network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...anonymity.result import AnonymizationResult
from ...config.audit import AuditLimits
from ...data.table_files import read_table, reading_of_published
from ...errors import BadParameter, BadRun
from ...parameters import nearest
from .findings import ReleaseAudit
from .others import audit_joint_trees, audit_split, audit_trees
from .tables import audit_anonymized, audit_synthetic

TABLES = (".csv", ".csv.gz", ".parquet")
ABOUT = {  # what else each kind takes
    "anonymized table": ("quasi", "sensitive", "hierarchies", "key"),
    "synthetic table": ("generator", "person"),
    "boosted trees": ("label",),
    "boosted trees of several parties": (),
    "split network": ("rows", "y", "own"),
}


def release_other(
    run: Any,
    budget: float,
    limits: AuditLimits,
    seed: int,
    watch: Callable[[str], None] | None,
    original: Any,
    holdout: Any,
    background: Any,
    about: Mapping[str, Any],
    reading: Mapping[str, Any],
) -> ReleaseAudit | None:
    """Audit what is not a run of tacit.train; None if it may be one."""
    known = [name for names in ABOUT.values() for name in names]
    for name in about:
        if name not in known:
            raise BadParameter(f"audit: there is no option {name!r}. {nearest(name, known)}".rstrip())
    given = {k: v for k, v in about.items() if v is not None and not (isinstance(v, str | tuple) and not v)}
    run, kind = _open(run, given, holdout, reading)
    if kind is None:
        extra = [*given, *(n for n, v in _tables(original, holdout, background).items() if v is not None)]
        extra += reading
        if extra:
            raise BadParameter(
                f"audit: {extra[0]}= is for tables, trees and split networks, and this is a run."
            )
        return None
    wrong = [name for name in given if name not in ABOUT[kind]]
    wrong += ["background"] if background is not None and kind != "anonymized table" else []
    if wrong:
        allowed = ", ".join(ABOUT[kind]) or "original, holdout"
        raise BadParameter(f"audit: {wrong[0]}= does not belong to: {kind}. It takes {allowed}.")
    joint = kind == "boosted trees of several parties"
    for name, value in _tables(original, holdout, background).items():
        if isinstance(value, Mapping) and not joint:
            raise BadParameter(f"audit: {name}= of {kind} is one table, not one for each party.")
    original, holdout, background = (_read(t, kind, reading) for t in (original, holdout, background))
    if kind == "anonymized table":
        return audit_anonymized(
            run, original, limits, budget, background=background, seed=seed, watch=watch, **given
        )
    if kind == "synthetic table":
        generator = given.get("generator")
        if isinstance(generator, str | Path):
            from ...synth import load

            given["generator"] = load(generator)
        return audit_synthetic(
            run, original, limits, budget, holdout=holdout, seed=seed, watch=watch, **given
        )
    if kind == "boosted trees":
        return audit_trees(run, original, holdout, given.get("label"), limits, budget)
    if joint:
        return audit_joint_trees(run, original, holdout, limits, budget)
    return audit_split(run, given.get("rows"), given.get("y"), given.get("own"), limits, budget, seed)


def _tables(original: Any, holdout: Any, background: Any) -> dict[str, Any]:
    return {"original": original, "holdout": holdout, "background": background}


def _open(
    run: Any, given: Mapping[str, Any], holdout: Any, reading: Mapping[str, Any]
) -> tuple[Any, str | None]:
    """The result, and its kind; None: a run of tacit.train, or what is none of them."""
    from pandas import DataFrame

    if isinstance(run, AnonymizationResult):
        return run, "anonymized table"
    name = type(run).__name__
    if name == "SyntheticRelease":
        return run, "synthetic table"
    if name in ("BoostResult", "Booster"):
        return run, "boosted trees"
    if name == "VerticalBoostResult":
        return run, "boosted trees of several parties"
    if name == "SplitResult":
        return run, "split network"
    if isinstance(run, DataFrame):
        return run, _kind_of_table(given, holdout)
    if not isinstance(run, str | Path):
        return run, None
    file = Path(run)
    if not file.exists() and file.name.endswith((*TABLES, ".json")):
        raise BadRun(f"audit: there is no file {file}. Check the path.")
    if file.is_file() and file.name.endswith(TABLES):
        kind = _kind_of_table(given, holdout)
        return _read(file, kind, reading_of_published(file, reading)), kind
    if file.is_file() and file.suffix == ".json":
        from ...boost.xgboost_json import load as load_trees

        return load_trees(file), "boosted trees"
    if file.is_file():
        raise BadRun(
            f"audit: {file} is not a result: give the directory of a run, a table ({', '.join(TABLES)}), "
            f"or the "
            ".json file of boosted trees."
        )
    if file.is_dir() and not (file / "events.jsonl").exists() and any(file.glob("*/part.json")):
        from ..vertical.boost_parts import is_part

        if any(is_part(part.parent) for part in file.glob("*/part.json")):
            from ..vertical.boost_result import VerticalBoostResult

            return VerticalBoostResult.load(file), "boosted trees of several parties"
        from ..vertical.split import SplitResult

        return SplitResult.load(file), "split network"
    return run, None


def _kind_of_table(given: Mapping[str, Any], holdout: Any) -> str:
    if "quasi" in given and holdout is None:
        return "anonymized table"
    if holdout is not None and "quasi" not in given:
        return "synthetic table"
    raise BadParameter(
        "audit: is this table anonymized or synthetic? Give quasi= (the columns that an attacker knows) "
        "for the "
        "first, holdout= (rows that it was not made from) for the second; not both."
    )


def _read(table: Any, kind: str, reading: Mapping[str, Any]) -> Any:
    """A table, or one for each party, read from its file if it is one: of an anonymized table every cell as
    text, as published.
    """
    if isinstance(table, Mapping):
        return {name: _read(value, kind, reading) for name, value in table.items()}
    if not isinstance(table, str | Path):
        return table
    return read_table(table, text=kind == "anonymized table", **reading)
