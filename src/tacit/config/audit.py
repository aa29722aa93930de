"""What a run must withstand before its model is released: `release = "audited"` in a job file, and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import BadJob, BadParameter
from ..files import write_atomic
from ..parameters import bad, check, real
from . import toml

BUDGET = 120.0  # seconds
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
FILE = "audit.toml"  # in a run's directory: what the job demands before a release


@dataclass(frozen=True)
class AuditLimits:
    """The largest success of each attack with which a model is released; None: no limit."""

    membership: float | None = real(
        0.6, least=0.5, most=1, none=True, doc="AUC of telling members from others; 0.5 is chance"
    )
    members: float | None = real(
        0.1, least=0, most=1, none=True, doc="share of members found at a false-positive rate of 1%"
    )
    rebuilt: float | None = real(
        0.05,
        least=0,
        most=1,
        none=True,
        doc="share of a party's rows that the server rebuilds from its update",
    )
    linked: float | None = real(
        0.2,
        least=0,
        most=1,
        none=True,
        doc="share of people whose row in a published table is found by matching",
    )
    labels: float | None = real(
        0.9, least=0.5, most=1, none=True, doc="AUC of reading labels from the gradients of a split network"
    )


def parse_limits(values: Mapping[str, Any] | Sequence[str] | AuditLimits | None) -> AuditLimits:
    """Read limits given as a mapping, or as texts like membership=0.55 or rebuilt=none."""
    if isinstance(values, AuditLimits):
        return check(values)
    known = {f.name for f in fields(AuditLimits)}
    found: dict[str, Any] = {}
    pairs = values.items() if isinstance(values, Mapping) else [t.partition("=")[::2] for t in values or ()]
    for name, value in pairs:
        key = str(name).strip().replace("-", "_")
        if key not in known:
            raise bad("audit", "limit", name, "one of " + ", ".join(sorted(known)))
        if isinstance(value, str):
            try:
                value = None if value.strip().lower() == "none" else float(value)
            except ValueError:
                raise bad("audit", f"limit {key}", value, "a number, or none for no limit") from None
        found[key] = value
    return check(AuditLimits(**found))


@dataclass(frozen=True)
class AuditTerms:
    """The limits that a job declares, and the seconds that its audit takes."""

    limits: AuditLimits
    budget: float = BUDGET


def parse_time(value: Any, what: str = "--budget") -> float:
    """Read 90, 90s, 5m or 1h as seconds."""
    found = None if isinstance(value, bool) else re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(value))
    if found is None or float(found[1]) <= 0:
        raise BadParameter(f"{what} is {value!r}; expected a time such as 90s, 5m or 1h.")
    return float(found[1]) * UNITS[found[2]]


def read_terms(value: Any, where: str) -> AuditTerms:
    """Read `release = "audited"`, or a table [release] with name = "audited", budget and limits."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or table.get("name") != "audited":
        raise BadJob(
            f'{where}: release is {value!r}; expected "audited", or a table with name = "audited", budget '
            f"and limits ({', '.join(f.name for f in fields(AuditLimits))})."
        )
    rest = {k: v for k, v in table.items() if k not in ("name", "budget")}
    try:
        return AuditTerms(parse_limits(rest), parse_time(table.get("budget", BUDGET), "budget"))
    except BadParameter as error:
        raise BadJob(f"{where}, release: {error}") from None


def keep_terms(directory: Path, terms: AuditTerms) -> None:
    """Write what a run must withstand into its directory."""
    limits = {k: "none" if v is None else v for k, v in asdict(terms.limits).items()}
    table = {"release": {"name": "audited", "budget": terms.budget, **limits}}
    write_atomic(directory / FILE, toml.dumps(table))


def kept_terms(directory: Path) -> AuditTerms | None:
    """Return what a run must withstand, if its job demanded anything."""
    file = directory / FILE
    return read_terms(toml.read(file).get("release"), str(file)) if file.is_file() else None
