"""tacit.anonymize: a table in, a table others may see out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..anonymity import ALL, Datafly, DifferentialPrivacy, Fixed, Optimal, Private, Tree
from ..anonymity.builders import Builder
from ..anonymity.encoded import NULLS, check_columns, column_codes, encode
from ..anonymity.losses import METRICS
from ..anonymity.models import KAnonymity, LDiversity, TCloseness, checked
from ..anonymity.release import Release, Request, count, frame_of, published_classes, told, verify
from ..anonymity.result import Anonymized, Homogeneous, Naming, Step
from ..anonymity.risk import naming
from ..errors import BadData
from ..parameters import bad, check, nearest, to_table
from ..parties.ledger import Ledger, Spend

if TYPE_CHECKING:
    import pandas

SUPPRESSED = ("drop", "star")


def anonymize(
    frame: pandas.DataFrame,
    *,
    quasi: Sequence[str],
    k: int | None = 5,
    sensitive: Sequence[str] = (),
    hierarchies: Mapping[str, Any] | None = None,
    method: Any = "optimal",
    max_suppressed: float | None = None,
    metric: str = "loss",
    l: float | None = None,  # noqa: E741
    t: float | None = None,
    models: Sequence[Any] = (),
    population: pandas.DataFrame | None = None,
    nulls: str = "value",
    suppressed: str = "drop",
    seed: int = 0,
) -> Anonymized:
    """A table in which nobody can be told from at least k − 1 others by the quasi-identifiers.

    `method` is a name of `anonymity.ALL` or an object such as `anonymity.Mondrian(strict=False)`. `l` and `t`
    stand for distinct l-diversity and t-closeness with equal distance; other models go into `models`. A
    column without a hierarchy gets a suggested one. `max_suppressed` is a part of the rows; without it, a
    method's own: none for 'optimal' and 'cells', about k rows for 'datafly'. 'mondrian', 'cluster' and
    'ambiguity' suppress nobody. `seed` is for methods that draw; what differential privacy draws comes from
    the operating system and cannot be repeated.

    `models=[DifferentialPrivacy(epsilon=…, delta=…)]` publishes a generalised sample, with method="private"
    or Fixed(levels=…): every column must be a quasi-identifier with a hierarchy of declared values, and
    `.ledger` says what was spent. Of the result only `.table` is private; `.loss`, `.trace`, `.suppressed`
    and the report look at the original and stay with you.
    """
    names, secret = check_columns(frame, quasi, sensitive)
    chosen = _method(method)
    if metric not in METRICS:
        raise bad("anonymize", "metric", metric, "one of " + ", ".join(map(repr, METRICS)))
    if metric != "loss" and not isinstance(chosen, Datafly | Optimal | Fixed):
        raise bad(
            "anonymize",
            "metric",
            metric,
            f"'loss' for method {type(chosen).__name__.lower()!r}",
            "Others price one level a column: 'optimal', 'datafly', 'fixed'.",
        )
    if nulls not in NULLS:
        raise bad("anonymize", "nulls", nulls, "one of " + ", ".join(map(repr, NULLS)))
    if suppressed not in SUPPRESSED:
        raise bad("anonymize", "suppressed", suppressed, "one of " + ", ".join(map(repr, SUPPRESSED)))
    if max_suppressed is not None and (
        isinstance(max_suppressed, bool)
        or not isinstance(max_suppressed, int | float)
        or not 0 <= max_suppressed <= 1
    ):
        raise bad(
            "anonymize",
            "max_suppressed",
            max_suppressed,
            "a part of the rows between 0 and 1, or None (the method's own)",
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise bad("anonymize", "seed", seed, "a whole number of at least 0")
    asked = [
        *([] if k is None else [KAnonymity(k)]),
        *([] if l is None else [LDiversity(l)]),
        *([] if t is None else [TCloseness(t)]),
        *models,
    ]
    if not asked:
        raise bad("anonymize", "k", k, "a whole number of at least 1, unless models=[…] names another model")
    held_to = checked(asked, secret, population)
    private = next((m for m in held_to if isinstance(m, DifferentialPrivacy)), None)
    if private is not None:
        _private(frame, names, held_to, chosen, hierarchies or {}, metric, max_suppressed, suppressed)
    strangers = sorted(set(hierarchies or {}) - set(names))
    if strangers:
        raise bad(
            "anonymize", "hierarchies", strangers, "for the quasi-identifiers " + ", ".join(map(repr, names))
        )
    if population is not None:
        absent = [c for c in names if c not in population.columns]
        if absent:
            raise BadData(
                f"The population has no column {', '.join(map(repr, absent))}; it needs every "
                "quasi-identifier."
            )
    table = encode(frame, names, hierarchies or {}, secret, nulls, population)
    if k is not None and table.rows < k and private is None:
        raise BadData(
            f"The table has {count(table.rows)}, fewer than k = {k}: no row can look like {k - 1} others. "
            "Take a smaller k, or more rows."
        )
    release = chosen.run(table, Request(held_to, max_suppressed, metric, seed))
    label, number = published_classes(release)
    if release.alike:
        verify(table, release, held_to, label, number)
    notes = _homogeneous(frame, secret, release, label, number)
    for note in notes:
        warnings.warn(note, Homogeneous, stacklevel=2)
    notes += release.warnings
    settings = {
        "k": k,
        "l": l,
        "t": t,
        "models": [to_table(m) for m in held_to],
        "metric": metric,
        "max_suppressed": max_suppressed,
        "nulls": nulls,
        "suppressed": suppressed,
        "seed": seed,
        "method": to_table(chosen),
    }
    trace: list[Step] = [told(sentence, **counts) for sentence, counts in table.notes] + release.trace
    if private is None:
        shown = frame_of(frame, table, release, suppressed == "star")
    # words, in an order of their own: a column's kind and its rows' order and labels are facts about the rows
    # that are not there
    else:
        words = replace(release, levels=[None] * len(names))
        shown = frame_of(frame, table, words, False).sort_values(names, ignore_index=True)
    named = naming(shown, [c for c in shown.columns if c not in names and c not in secret])
    for note in named:
        warnings.warn(note, Naming, stacklevel=2)
    notes += named
    return Anonymized(
        table=shown,
        suppressed=list(frame.index[release.record < 0]),
        levels=dict(zip(names, release.levels)),
        loss=release.loss,
        trace=trace,
        hierarchies={c.name: c.hierarchy for c in table.columns},
        quasi=names,
        sensitive=secret,
        method=type(chosen).__name__.lower(),
        settings=settings,
        lattice=release.lattice,
        classes=number,
        warnings=notes,
        original=frame,
        ledger=None if private is None else _ledger(private, chosen),
        shuffled=private is not None,
    )


def _private(
    frame: pandas.DataFrame,
    names: list[str],
    models: Sequence[Any],
    method: Any,
    hierarchies: Mapping[str, Any],
    metric: str,
    max_suppressed: float | None,
    suppressed: str,
) -> None:
    """Refuse what would void the guarantee of `DifferentialPrivacy`."""
    who = "when DifferentialPrivacy is asked for"
    others = [type(m).__name__ for m in models if not isinstance(m, DifferentialPrivacy | KAnonymity)]
    if others or sum(isinstance(m, DifferentialPrivacy) for m in models) > 1:
        raise bad(
            "anonymize",
            "models",
            others or [type(m).__name__ for m in models],
            f"DifferentialPrivacy once, and k alone beside it, {who}",
            "What other models suppress depends on the table in ways its proof does not cover.",
        )
    if not isinstance(method, Fixed | Private):
        raise bad(
            "anonymize",
            "method",
            type(method).__name__.lower(),
            f"'private' or Fixed(levels=…) {who}",
            "Others choose levels by looking at the table.",
        )
    for name, value, allowed in (
        ("metric", metric, "loss"),
        ("max_suppressed", max_suppressed, None),
        ("suppressed", suppressed, "drop"),
    ):
        if value != allowed:
            raise bad(
                "anonymize",
                name,
                value,
                f"{allowed!r} {who}",
                "How many rows are left out is a fact about them.",
            )
    rest = [c for c in frame.columns if c not in names]
    if rest:
        raise BadData(
            "Under differential privacy every published column is generalised: name "
            f"{', '.join(map(repr, rest))} among quasi=, or leave it out."
        )
    for name in names:
        given = hierarchies.get(name)
        if given is None or (isinstance(given, Builder) and not isinstance(given, Tree)):
            raise BadData(
                f"The hierarchy of column {name!r} would be built from the values in the table, which says "
                "which there are. Declare them: "
                "Intervals(width=5).build([str(age) for age in range(120)]), a tree, rows, or a file."
            )


def _ledger(private: DifferentialPrivacy, method: Any) -> Ledger:
    ledger = Ledger()
    search = method.epsilon if isinstance(method, Private) else 0.0
    how = f"levels by the exponential mechanism at ε = {search:g}" if search else "levels fixed beforehand"
    ledger.spend(
        Spend(
            f"sampling at {private.rate:.4f}, {how}, classes of at least {private.k}",
            private.epsilon + search,
            private.delta,
            "row, added or removed",
            "whoever sees the published table",
            "Poisson",
            "Of the result the table and its levels are covered; loss, trace, suppressed rows and reports "
            "are not.",
        )
    )
    return ledger


def _method(method: Any) -> Any:
    if isinstance(method, str):
        if method.lower() not in ALL:
            raise bad(
                "anonymize",
                "method",
                method,
                "one of " + ", ".join(map(repr, ALL)),
                nearest(method, list(ALL)),
            )
        return ALL[method.lower()]()
    if not isinstance(method, tuple(ALL.values())):
        raise bad(
            "anonymize", "method", method, "one of " + ", ".join(map(repr, ALL)) + ", or such an object"
        )
    return check(method)


def _homogeneous(
    frame: pandas.DataFrame, sensitive: list[str], release: Release, label: np.ndarray, number: int
) -> list[str]:
    """k rows that look alike protect nobody if they all have the same diagnosis: said for each sensitive
    column where it happens.
    """
    notes = []
    rows = release.record >= 0
    for name in sensitive if release.alike else []:
        codes, words = column_codes(frame[name])
        pairs = np.unique(label.astype(np.int64) * len(words) + codes[rows])
        alone = np.bincount(pairs // len(words), minlength=number) == 1
        n = int(alone[label].sum())
        if n:
            notes.append(
                f"{count(int(alone.sum()), 'class')} ({count(n)} of {int(rows.sum()):,}) have a single "
                f"value of {name!r}: whoever knows that somebody "
                f"is in one knows the value. Ask for l-diversity (l=2) or t-closeness (t=0.2)."
            )
    return notes
