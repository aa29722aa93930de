"""`tacit.risk`: what a published table still says about the people in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..anonymity.assessment import Risk, assess
from ..anonymity.classes import columns_of, numbered
from ..anonymity.hierarchies import as_hierarchy
from ..anonymity.result import Anonymized
from ..anonymity.risk import THRESHOLDS
from ..errors import BadData
from ..parameters import bad

if TYPE_CHECKING:
    from pandas import DataFrame


def risk(
    before: DataFrame,
    after: DataFrame | Anonymized,
    quasi: Sequence[str] | None = None,
    *,
    sensitive: Sequence[str] | str = (),
    hierarchies: Mapping[str, Any] | None = None,
    population: DataFrame | None = None,
    population_size: int | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    combinations: int = 3,
    target: str | None = None,
) -> Risk:
    """How easily people are found in `after`, beside `before`: `.table()`, `.singled_out()`, `.warnings`,
    `.report(path)`.

    `after` is a table, made by whatever program, or what `tacit.anonymize` gave (then quasi-identifiers,
    sensitive columns and hierarchies come with it). `population` is a table of everybody who could be in it,
    generalised in the same way; `population_size` is how many they are, where there is no such table.
    `combinations` is how many columns are looked at together; `target` a column to predict, for accuracy on
    anonymous against original data.
    """
    made = after if isinstance(after, Anonymized) else None
    table = made.table if made is not None else after
    for name, frame in (("before", before), ("after", table), ("population", population)):
        if not hasattr(frame, "columns") and not (name == "population" and frame is None):
            raise bad(
                "risk",
                name,
                type(frame).__name__,
                "a pandas table" + (", or what tacit.anonymize gave" if name == "after" else ""),
            )
    if not len(before):
        raise BadData("risk: the table before has no rows. Give at least one.")
    if made is not None and quasi is None:
        quasi = made.quasi
    quasi = columns_of(before, quasi, "quasi")
    sensitive = (
        [sensitive]
        if isinstance(sensitive, str)
        else list(sensitive) or (list(made.sensitive) if made is not None else [])
    )
    ways = dict(made.hierarchies) if made is not None else {}
    for column, given in (hierarchies or {}).items():
        if column not in quasi:
            raise bad("risk", "hierarchies", column, f"for quasi-identifiers: {', '.join(map(str, quasi))}")
        ways[column] = as_hierarchy(given, column, numbered(before[column])[1])
    return assess(
        before,
        table,
        quasi,
        sensitive,
        hierarchies=ways,
        levels=made.levels if made is not None else None,
        population=population,
        population_size=population_size,
        thresholds=thresholds,
        combinations=combinations,
        target=target,
        made=made,
    )
