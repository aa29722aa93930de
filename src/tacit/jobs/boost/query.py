"""Job files of `tacit boost`.

    [boost]                                  the options of tacit.boost.train, the same at all parties
    label = "disease"
    features = ["age", "chol", "sex"]
    categories = { sex = ["f", "m"] }        or ["sex"]: its levels are found by a sum
    labels = ["no", "yes"]
    trees = 50
    [data]                                   how files are read
    [sums]                                   threshold, adversary
    [parties]                                only to run all parties on this machine
    north = "north.csv"

Everything but [parties] is the contract that parties compare. Features are declared: nothing about the model
is taken from anybody's columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...boost.agreement import CLASSES
from ...boost.result import BoostResult
from ...config import toml
from ...config.boost import BoostConfig
from ...config.vertical_boost import BACKENDS
from ...errors import BadJob, QueryRefused
from ...parameters import bad, choice, component, from_fields, whole
from ...parties.ledger import Ledger
from ...stats.columns import text_of
from ...stats.level_sketch import LEVEL_ROWS
from ..stats.queries import DataOptions, Query, StatsVerb, SumOptions, refuse_codes
from .horizontal import conclude, declared_terms, make_program

WORD = "boost"


def build(options: BoostConfig, parties: int) -> Any:
    """Return the program of a job file."""
    problems = []
    if options.features is None:
        problems.append("features must be given: the columns of the model, as a list")
    if callable(options.objective):
        problems.append("objective must be a name")
    if problems:
        raise BadJob("boost: " + "; ".join(problems) + ".")
    categories = options.categories or []
    levels = (
        {str(k): tuple(dict.fromkeys(text_of(v) for v in values)) for k, values in categories.items()}
        if isinstance(categories, Mapping)
        else {}
    )
    labels = tuple(text_of(v) for v in options.labels or ())
    terms = declared_terms(options, list(options.features or ()), list(categories), levels, labels)
    return make_program(options, terms, parties)


def _conclude(options: BoostConfig, program: Any, found: Any, ledger: Ledger) -> BoostResult:
    return conclude(program, found, ledger, parties=0)


VERB = StatsVerb(BoostConfig, build, _conclude)


def read_job(path: str | Path, changes: list[str] | None = None) -> Query:
    """Read a job file. One error names all problems of a table."""
    file = Path(path)
    tables = toml.load(file, changes or [], (WORD, "data", "sums", "parties"))
    if WORD not in tables:
        raise BadJob(
            f'{file}: there is no [{WORD}] table, like [{WORD}] label = "disease", features = ["age"].'
        )
    read: dict[str, Any] = {}
    for name, cls in ((WORD, BoostConfig), ("data", DataOptions), ("sums", SumOptions)):
        table = toml.table(str(file), name, tables.get(name, {}))
        read[name] = from_fields(table, cls, f"{file}, {name}", "`tacit boost` has no key")
    refuse_codes(WORD, str(file), read["data"], read[WORD].label)
    parties = toml.table(str(file), "parties", tables.get("parties", {}))
    for party, name in parties.items():
        if not isinstance(name, str):
            raise BadJob(str(bad(f"{file}, parties", party, name, "a file name in quotes")))
    files = {party: file.parent / name for party, name in parties.items()}
    return Query(VERB, read[WORD], read["data"], read["sums"], files, WORD)


def _take_backends(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value or not set(value) <= set(BACKENDS):
        raise bad(where, "backends", value, f"a list of {' and '.join(map(repr, BACKENDS))}")
    return tuple(value)


@dataclass(frozen=True)
class BoostPolicy:
    """What a party's owner requires of a job: the [boost] table of policy.toml, beside [stats]."""

    min_party_rows: int = whole(
        1, least=1, doc="fewest rows of this party in a node to which it adds; the job must have as many"
    )
    min_rows: int = whole(1, least=1, doc="fewest rows over all parties in a leaf; the job must have as many")
    min_level_rows: int = whole(
        LEVEL_ROWS,
        least=1,
        doc="fewest rows of a party with a level that is found; the job must have as many, or declare all",
    )
    max_trees: int | None = whole(None, least=1, none=True, doc="most trees of a job")
    max_depth: int | None = whole(None, least=1, none=True, doc="largest depth of a job")
    reveal: str = choice(
        "sums", ("sums", "splits"), doc="vertical: what the label holder may learn; 'splits' refuses 'sums'"
    )
    backends: Sequence[str] = component(
        BACKENDS,
        _take_backends,
        takes="list[str]",
        doc="vertical: accepted back-ends: 'shares' (with a helper), 'he' (homomorphic encryption)",
    )
    min_shared: int = whole(50, least=2, doc="vertical: fewest shared people")
    min_difference: int = whole(
        10, least=1, doc="vertical: fewest people by which those of two jobs may differ, if they differ"
    )
    max_models: int = whole(20, least=1, doc="vertical: different jobs about the same people")


def read_policy(kit: Path | None) -> BoostPolicy:
    place = None if kit is None else kit / "policy.toml"
    if place is None or not place.is_file():
        return BoostPolicy()
    return from_fields(toml.read(place).get(WORD, {}), BoostPolicy, f"{place}, {WORD}", "a policy has no key")


def _finds_levels(options: BoostConfig) -> bool:
    """Return whether a job has levels or classes that it does not declare."""
    has_classes = options.objective in CLASSES and options.labels is None
    return has_classes or (bool(options.categories) and not isinstance(options.categories, Mapping))


def check_policy(policy: BoostPolicy, options: BoostConfig) -> None:
    """Raise QueryRefused with all that the owner does not allow. Noise makes small nodes harmless."""
    problems = []
    if options.epsilon is None:
        floors = ("min_party_rows", "min_rows", *(["min_level_rows"] if _finds_levels(options) else []))
        for name in floors:
            if getattr(options, name) < getattr(policy, name):
                problems.append(
                    f"{name} is {getattr(options, name)}, and this party requires {getattr(policy, name)}"
                )
    for name, most in (("trees", policy.max_trees), ("depth", policy.max_depth)):
        if most is not None and getattr(options, name) > most:
            problems.append(f"{name} is {getattr(options, name)}, and this party allows {most}")
    if problems:
        raise QueryRefused(f"the job is not within this party's policy: {'; '.join(problems)}.")
