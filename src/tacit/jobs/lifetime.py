"""What a party's owner allows for all private releases about its data together, training and statistics.

    KIT/policy.toml   [privacy] epsilon = 8.0

Both write to one account, STATE/spent.jsonl, and neither may exceed this ε, whatever budgets their own
contracts have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..config import toml
from ..parameters import from_fields, real


@dataclass(frozen=True)
class LifetimePolicy:
    epsilon: float | None = real(
        None, above=0, none=True, doc="most ε of all training runs and statistics about these data together"
    )


def read_lifetime(kit: Path | None) -> float | None:
    """Read the [privacy] table of policy.toml in the kit; None: no bound."""
    place = None if kit is None else kit / "policy.toml"
    if place is None or not place.is_file():
        return None
    table = toml.read(place).get("privacy", {})
    return from_fields(table, LifetimePolicy, f"{place}, privacy", "a policy has no key").epsilon


def read_spent(state: Path) -> tuple[float, float] | None:
    """Return (ε, δ) of everything in a party's account, or None if nothing was spent from it."""
    from ..accounting.account import FILE, Account
    from ..accounting.account_file import AccountFile

    file = state / FILE
    if not file.is_file():
        return None
    account_file = AccountFile(file)
    account_file.refresh()
    release = next((line.release for line in account_file.lines if line.release is not None), None)
    if release is None:
        return None
    deltas = [json.loads(line).get("delta") for line in file.read_bytes().split(b"\n")[:-1] if line.strip()]
    delta = max((float(d) for d in deltas if d), default=0.0)
    return Account(release, delta, file=file).lifetime(), delta
