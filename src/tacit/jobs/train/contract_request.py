"""A training contract as a request to a party's owner: what [jobs] of policy.toml is compared with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...data.subgroups import PARTY, parse
from ..owner import PRIVATE, Request
from .contract import Contract
from .party_rows import read_layout
from .plan import Plan

_USUAL = re.compile(r"[\w .()/%+-]+")


def request_of(
    contract: Contract, p: Plan, read_template: Callable[[Path], Mapping[str, Any]] | None
) -> Request:
    t = contract.tables
    columns, epsilon = _columns(t), _epsilon(t)
    guards = tuple(stage["name"] for stage in t["guard"]) + ((PRIVATE,) if t["private"] is not None else ())
    return Request(
        "party",
        (t["server"],),
        tuple(t["parties"]),
        contract.text,
        _about(contract, columns, epsilon),
        columns,
        guards,
        epsilon,
        read_template,
    )


def _about(contract: Contract, columns: tuple[str, ...] | None, epsilon: float | None) -> str:
    """What an owner decides by, in a line; who asks and the number stand beside it, the whole job is shown on
    request. A server names the columns: a name cannot look like another part of the line.
    """
    read = "rows as a script of this party reads them"
    if columns is not None:
        read = f"columns {', '.join(map(_shown, columns))}"
    private = "no ε that this party accounts for" if epsilon is None else f"ε at most {epsilon:g}"
    return f"train on {read}; {private}; {contract.describe().partition(': ')[2]}"


def _shown(column: str) -> str:
    """A column's name; in quotes and without `;` if it has other characters than most names have."""
    return column if _USUAL.fullmatch(column) else ascii(column).replace(";", "\\x3b")


def _columns(t: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Every column that a job reads; None where a script of the party reads its rows."""
    if not t["data"]:
        return None
    agreed = read_layout(t["data"])
    subgroups = (parse(text).column for text in t["train"]["subgroups"])
    chosen_by = [*agreed.drop_rows, *filter(None, (agreed.group, agreed.time))]
    names = [*agreed.inputs, agreed.label, *chosen_by, *(c for c in subgroups if c != PARTY)]
    return tuple(dict.fromkeys(names))


def _epsilon(t: Mapping[str, Any]) -> float | None:
    """The ε that this party enforces by its own account; None if there is none, or it is not stated.

    The parts of a job add up (basic composition), which is an upper bound.
    """
    parts = [
        stage.get("epsilon")
        for stage in t["guard"]
        if stage["name"] == "Noise" and stage.get("placement") != "central"
    ]
    if t["private"] is not None:
        parts.append(t["private"].get("epsilon"))
    if not parts or None in parts:
        return None
    if t["preparation"] is not None and "epsilon" not in t["preparation"]:
        return None  # exact sums over the tables are covered by no ε
    return float(sum(parts)) + float((t["preparation"] or {}).get("epsilon", 0.0))
