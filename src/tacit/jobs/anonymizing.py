"""tacit.anonymize: a table in, a table others may see out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..anonymity import ALL, Datafly, Optimal
from ..anonymity.encoded import NULLS, check_columns, column_codes, encode
from ..anonymity.losses import METRICS
from ..anonymity.models import KAnonymity, LDiversity, TCloseness, checked
from ..anonymity.release import Release, Request, count, frame_of, published_classes, told, verify
from ..anonymity.result import Anonymized, Homogeneous, Step
from ..errors import BadData
from ..parameters import bad, check, nearest, to_table

if TYPE_CHECKING:
    import pandas

SUPPRESSED = ("drop", "star")


def anonymize(frame: pandas.DataFrame, *, quasi: Sequence[str], k: int | None = 5, sensitive: Sequence[str] = (),
              hierarchies: Mapping[str, Any] | None = None, method: Any = "optimal", max_suppressed: float | None = None, metric: str = "loss",
              l: float | None = None, t: float | None = None, models: Sequence[Any] = (), population: pandas.DataFrame | None = None,  # noqa: E741
              nulls: str = "value", suppressed: str = "drop", seed: int = 0) -> Anonymized:
    """A table in which nobody can be told from at least k − 1 others by the quasi-identifiers.

    `method` is a name of `anonymity.ALL` or an object such as `anonymity.Mondrian(strict=False)`. `l` and `t` stand for distinct l-diversity and
    t-closeness with equal distance; other models go into `models`. A column without a hierarchy gets a suggested one. `max_suppressed` is a part of
    the rows; without it, a method's own: none for 'optimal' and 'cells', about k rows for 'datafly'. 'mondrian', 'cluster' and 'ambiguity' suppress
    nobody. No method draws at random so far: `seed` is kept with the settings, for those that will.
    """
    names, secret = check_columns(frame, quasi, sensitive)
    chosen = _method(method)
    if metric not in METRICS:
        raise bad("anonymize", "metric", metric, "one of " + ", ".join(map(repr, METRICS)))
    if metric != "loss" and not isinstance(chosen, Datafly | Optimal):
        raise bad("anonymize", "metric", metric, f"'loss' for method {type(chosen).__name__.lower()!r}",
                  "Others price one level a column: 'optimal', 'datafly'.")
    if nulls not in NULLS:
        raise bad("anonymize", "nulls", nulls, "one of " + ", ".join(map(repr, NULLS)))
    if suppressed not in SUPPRESSED:
        raise bad("anonymize", "suppressed", suppressed, "one of " + ", ".join(map(repr, SUPPRESSED)))
    if max_suppressed is not None and (isinstance(max_suppressed, bool) or not isinstance(max_suppressed, int | float) or not 0 <= max_suppressed <= 1):
        raise bad("anonymize", "max_suppressed", max_suppressed, "a part of the rows between 0 and 1, or None (the method's own)")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise bad("anonymize", "seed", seed, "a whole number of at least 0")
    asked = [*([] if k is None else [KAnonymity(k)]), *([] if l is None else [LDiversity(l)]), *([] if t is None else [TCloseness(t)]), *models]
    if not asked:
        raise bad("anonymize", "k", k, "a whole number of at least 1, unless models=[…] names another model")
    held_to = checked(asked, secret, population)
    strangers = sorted(set(hierarchies or {}) - set(names))
    if strangers:
        raise bad("anonymize", "hierarchies", strangers, "for the quasi-identifiers " + ", ".join(map(repr, names)))
    if population is not None:
        absent = [c for c in names if c not in population.columns]
        if absent:
            raise BadData(f"The population has no column {', '.join(map(repr, absent))}; it needs every quasi-identifier.")
    table = encode(frame, names, hierarchies or {}, secret, nulls, population)
    if k is not None and table.rows < k:
        raise BadData(f"The table has {count(table.rows)}, fewer than k = {k}: no row can look like {k - 1} others. Take a smaller k, or more rows.")
    release = chosen.run(table, Request(held_to, max_suppressed, metric, seed))
    label, number = published_classes(release)
    if release.alike:
        verify(table, release, held_to, label, number)
    notes = _homogeneous(frame, secret, release, label, number)
    for note in notes:
        warnings.warn(note, Homogeneous, stacklevel=2)
    notes += release.warnings
    settings = {"k": k, "l": l, "t": t, "models": [to_table(m) for m in held_to], "metric": metric, "max_suppressed": max_suppressed, "nulls": nulls,
                "suppressed": suppressed, "seed": seed, "method": to_table(chosen)}
    trace: list[Step] = [told(sentence, **counts) for sentence, counts in table.notes] + release.trace
    return Anonymized(table=frame_of(frame, table, release, suppressed == "star"), suppressed=list(frame.index[release.record < 0]),
                      levels=dict(zip(names, release.levels)), loss=release.loss, trace=trace, hierarchies={c.name: c.hierarchy for c in table.columns},
                      quasi=names, sensitive=secret, method=type(chosen).__name__.lower(), settings=settings, lattice=release.lattice, classes=number,
                      warnings=notes, original=frame)


def _method(method: Any) -> Any:
    if isinstance(method, str):
        if method.lower() not in ALL:
            raise bad("anonymize", "method", method, "one of " + ", ".join(map(repr, ALL)), nearest(method, list(ALL)))
        return ALL[method.lower()]()
    if not isinstance(method, tuple(ALL.values())):
        raise bad("anonymize", "method", method, "one of " + ", ".join(map(repr, ALL)) + ", or such an object")
    return check(method)


def _homogeneous(frame: pandas.DataFrame, sensitive: list[str], release: Release, label: np.ndarray, number: int) -> list[str]:
    """k rows that look alike protect nobody if they all have the same diagnosis: said for each sensitive column where it happens."""
    notes = []
    rows = release.record >= 0
    for name in sensitive if release.alike else []:
        codes, words = column_codes(frame[name])
        pairs = np.unique(label.astype(np.int64) * len(words) + codes[rows])
        alone = np.bincount(pairs // len(words), minlength=number) == 1
        n = int(alone[label].sum())
        if n:
            notes.append(f"{count(int(alone.sum()), 'class')} ({count(n)} of {int(rows.sum()):,}) have a single value of {name!r}: whoever knows that somebody "
                         f"is in one knows the value. Ask for l-diversity (l=2) or t-closeness (t=0.2).")
    return notes
