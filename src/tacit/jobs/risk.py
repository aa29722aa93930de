"""`tacit.risk`: re-identification risk and utility of a published table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..anonymity.assessment import Risk, assess
from ..anonymity.classes import check_columns
from ..anonymity.codes import encode_used
from ..anonymity.hierarchies import as_hierarchy
from ..anonymity.result import AnonymizationResult
from ..anonymity.risk import THRESHOLDS
from ..errors import BadData
from ..parameters import bad

if TYPE_CHECKING:
    from pandas import DataFrame


def risk(
    before: DataFrame,
    after: DataFrame | AnonymizationResult,
    quasi: Sequence[str] | None = None,
    *,
    sensitive: Sequence[str] | str = (),
    hierarchies: Mapping[str, Any] | None = None,
    population: DataFrame | None = None,
    population_size: int | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
    combinations: int = 3,
    target: str | None = None,
    person: str | None = None,
) -> Risk:
    """Measure the risk of `after` and compare it with `before`.

    The result has `.table()`, `.rank_combinations()`, `.warnings` and `.report(path)`.

    `after` is a table produced by any program, or the result of `tacit.anonymize` (which then also provides
    the quasi-identifiers, sensitive columns and hierarchies). `population` is a table of everybody who could
    be in it, generalized in the same way; `population_size` is their number if there is no such table.
    `combinations` is the largest number of columns to combine. `target` is a column to predict, to compare
    the accuracy of models trained on published and on original rows. `person` is the column that tells whose
    a row is, if people have several rows (default: that of `tacit.anonymize`).
    """
    from pandas import DataFrame

    result = after if isinstance(after, AnonymizationResult) else None
    table = after.table if isinstance(after, AnonymizationResult) else after
    for name, frame in (("before", before), ("after", table), ("population", population)):
        if not isinstance(frame, DataFrame) and not (name == "population" and frame is None):
            raise bad(
                "risk",
                name,
                type(frame).__name__,
                "a pandas DataFrame" + (", or the result of tacit.anonymize" if name == "after" else ""),
            )
    if not len(before):
        raise BadData("risk: the table before has no rows. Pass a table with at least one row.")
    if result is not None and quasi is None:
        quasi = result.quasi
    quasi = check_columns(before, quasi, "quasi")
    sensitive = [sensitive] if isinstance(sensitive, str) else list(sensitive)
    if result is not None and not sensitive:
        sensitive = result.sensitive
    known = dict(result.hierarchies) if result is not None else {}
    for column, source in (hierarchies or {}).items():
        if column not in quasi:
            raise bad("risk", "hierarchies", column, f"for quasi-identifiers: {', '.join(map(str, quasi))}")
        known[column] = as_hierarchy(source, column, encode_used(before[column])[1])
    return assess(
        before,
        table,
        quasi,
        sensitive,
        hierarchies=known,
        levels=result.levels if result is not None else None,
        population=population,
        population_size=population_size,
        thresholds=thresholds,
        combinations=combinations,
        target=target,
        result=result,
        person=result.person if person is None and result is not None else person,
    )
