"""What a party's owner allows in statistics, whatever a coordinator offers.

KIT/policy.toml   [stats] min_parties = 3, min_difference = 10, epsilon = 4.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...accounting.account import FILE, Account
from ...accounting.compose import Release
from ...config import toml
from ...errors import BudgetSpent
from ...parameters import from_fields, real, whole
from ...stats.disclosure import (
    LEAST,
    QueryHistory,
    check_dominance,
    check_own_rows,
    check_parties,
    hash_texts,
)
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.privacy import AboutRows, HasParameters, Private, SumsValues
from .answers import AnswerFile
from .contract import SumContract
from .parties import digest_of_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StatsPolicy:
    min_parties: int = whole(3, least=2, doc="fewest parties in a sum, without those that may leave")
    min_rows: int = whole(10, least=1, doc="fewest rows of this party in a query without an ε")
    min_difference: int = whole(
        10, least=1, doc="fewest rows by which two queries may differ, if they are not about the same rows"
    )
    min_count: int = whole(
        LEAST, least=1, doc="smallest count that a query without an ε may show (its min_count, min_cell)"
    )
    min_level_rows: int = whole(
        LEVEL_ROWS,
        least=1,
        doc="fewest rows of a party with a level that a sum finds (a query's min_level_rows)",
    )
    min_exits: int = whole(
        1, least=1, doc="fewest people who leave between two sums that a Cox model opens (its min_exits)"
    )
    epsilon: float | None = real(
        None, above=0, none=True, doc="most ε of all private queries about these data together"
    )
    max_share: float | None = real(
        None, above=0, below=1, none=True, doc="most of a sum of this party that two of its rows may make up"
    )
    rows_per_coefficient: float = real(
        1.0, least=0, doc="fewest complete rows of this party for each coefficient of a model without an ε"
    )
    effective_rows: float = real(
        2.0, least=0, doc="fewest rows of this party, by weight, in a step of a regression or Cox model"
    )
    only_private: bool = False  # answer only queries with an ε
    only_checked: bool = False  # answer no query of which parties cannot check all steps (threshold below 1)


def read_policy(kit: Path | None) -> StatsPolicy:
    """Read the [stats] table of policy.toml in the kit; without it, the default policy."""
    place = None if kit is None else kit / "policy.toml"
    if place is None or not place.is_file():
        return StatsPolicy()
    table = toml.read(place).get("stats", {})
    return from_fields(table, StatsPolicy, f"{place}, stats", "a policy has no key")


def admit(
    policy: StatsPolicy,
    contract: SumContract,
    program: Any,
    table: pd.DataFrame,
    answers: AnswerFile,
    folder: Path,
    person: str | None = None,
    lifetime: float | None = None,
    prepared: pd.DataFrame | None = None,
) -> None:
    """Record a query about these rows before its first answer, or raise what the policy does not allow.

    `prepared`: the table as the program reads it, with columns that the party adds (its name).
    """
    import pandas as pd

    from ...errors import BadData, QueryRefused

    check_parties(contract.tables["parties"], policy.min_parties, contract.tables["threshold"])
    private = isinstance(program, Private)
    if len(table) < policy.min_rows and not private:
        raise QueryRefused(
            f"this party has {len(table)} rows, and its policy requires {policy.min_rows} (min_rows)."
        )
    if policy.only_private and not private:
        raise QueryRefused("the query has no ε, and this party answers only private queries (only_private).")
    if policy.only_checked and contract.tables["checked"] < contract.tables["steps"] > 1:
        raise QueryRefused(
            "the coordinator could choose the steps of this query: parties check them only if every sum is "
            "over all parties (threshold = 1), and this party answers no other (only_checked)."
        )
    if not private:
        check_least(policy, contract.tables["data"].get("stats", {}))
    if person is not None and person not in table.columns:
        raise BadData(f"the table has no column {person!r}, which identifies its rows (data.person).")
    answers.bind_table(digest_of_table(table))
    if private:  # noise protects each row, also in the difference of two answers
        _charge(policy, program, answers, folder, lifetime)
        return
    read = table if prepared is None else prepared
    if isinstance(program, HasParameters):
        check_own_rows(*program.parameters(read), policy.rows_per_coefficient)
    if policy.max_share is not None and isinstance(program, SumsValues):
        for values in program.summed_values(read):
            check_dominance(values, policy.max_share)
    rows = table if person is None else table[[person]]
    sets = program.row_sets(read) if isinstance(program, AboutRows) else {}
    sets = {"all rows": np.ones(len(table), bool), **sets}
    # a group below the threshold differs from nobody by less than that; its figures are not shown
    sets = {n: m for n, m in sets.items() if n == "all rows" or m.sum() >= policy.min_difference}
    history = QueryHistory(folder, policy.min_difference)
    kinds = {"text": hash_texts(rows)}
    if history.has(""):  # answered by tacit 0.6 or earlier
        kinds[""] = pd.util.hash_pandas_object(rows, index=False).to_numpy()
    for hashed, hashes in kinds.items():
        history.admit(contract.digest, {n: hashes[m] for n, m in sets.items()}, hashes, hashed)


def check_least(policy: StatsPolicy, asked: Mapping[str, Any]) -> None:
    """Refuse a query whose agreed options show smaller counts than the policy allows."""
    from ...errors import QueryRefused

    by_site = asked.get("strata") in ("site", ["site"])  # opens no grid
    rules = {"min_count": policy.min_count, "min_cell": policy.min_count}
    rules |= {name: getattr(policy, name) for name in ("min_exits", "min_level_rows")}
    for name, least in rules.items():
        if name in asked and asked[name] < least and not (by_site and name == "min_exits"):
            key = "min_count" if name == "min_cell" else name
            raise QueryRefused(
                f"the query has {name} = {asked[name]}, and this party's policy requires {least} ({key}). "
                "Nothing was sent."
            )


def _charge(
    policy: StatsPolicy, program: Private, answers: AnswerFile, folder: Path, lifetime: float | None
) -> None:
    """Charge the party's account once for the whole query. A repeated answer is the same numbers."""
    if answers.charged:
        return
    charge(policy, program.release, program.delta, folder, lifetime)
    answers.record_charge()


def charge(policy: StatsPolicy, release: Release, delta: float, folder: Path, lifetime: float | None) -> None:
    """Charge the party's account, in its state folder, for a release that is about to be made.

    `lifetime` bounds all training runs and statistics about the party's data together.
    """
    folder.mkdir(parents=True, exist_ok=True)
    account = Account(release, delta, policy.epsilon, file=folder / FILE, key="stats", total=lifetime)
    try:
        account.spend(1, release)
    except BudgetSpent as error:
        raise BudgetSpent(
            f"{error} The policy of this party allows ε = {policy.epsilon} for all private statistics about "
            f"its data, and ε = {lifetime} for all training and statistics together. Nothing was sent."
        ) from None
