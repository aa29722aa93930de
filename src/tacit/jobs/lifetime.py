"""What a party's owner allows for all private releases about its data together, training and statistics.

    KIT/policy.toml   [privacy] epsilon = 8.0

Both write to one account, STATE/spent.jsonl, and neither may exceed this ε, whatever budgets their own
contracts have.
"""

from __future__ import annotations

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
