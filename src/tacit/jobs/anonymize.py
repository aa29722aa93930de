"""`tacit.anonymize`: produce an anonymized table for publication."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..anonymity import ALL, Datafly, DifferentialPrivacy, Fixed, Optimal, Private, Tree
from ..anonymity.builders import Builder
from ..anonymity.classes import Classes, check_columns
from ..anonymity.history import find_builder
from ..anonymity.losses import METRICS
from ..anonymity.models import (
    KAnonymity,
    LDiversity,
    PrivacyModel,
    TCloseness,
    find_differential_privacy,
    validate_models,
)
from ..anonymity.release import (
    AnonymizationRequest,
    Method,
    TableRelease,
    build_frame,
    format_count,
    publish_rows,
    published_classes,
    verify,
)
from ..anonymity.result import AnonymizationResult, HomogeneityWarning, IdentifierWarning
from ..anonymity.risk import find_identifiers
from ..anonymity.table import NULLS, EncodedTable, encode
from ..data.table_files import NULLS as NULL_CELLS
from ..data.table_files import find_decimal_comma
from ..errors import BadData
from ..parameters import bad, check, nearest, to_table
from ..parties.ledger import Ledger, Spend
from ..people import check_unique_names, encode_person, pick_one_row

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
    method: str | Method = "optimal",
    max_suppressed: float | None = None,
    metric: str = "loss",
    l: float | None = None,  # noqa: E741
    t: float | None = None,
    models: Sequence[PrivacyModel] = (),
    population: pandas.DataFrame | None = None,
    nulls: str = "value",
    suppressed: str = "drop",
    person: str | None = None,
) -> AnonymizationResult:
    """Anonymize a table: every row shares its quasi-identifiers with at least k − 1 others.

    `person` is the column that tells whose a row is, if people have several rows. Then people are counted,
    not rows, and the column is not published. Published rows are in an order that depends on their content
    only, without their labels; `.rows` of the result, which must not be published, has their original
    positions.

    `method` is a name in `anonymity.ALL` or an object such as `anonymity.Mondrian(strict=False)`. `l` and
    `t` are short for distinct l-diversity and t-closeness with equal distance; pass other models in
    `models`. A column without a hierarchy gets a suggested one. `max_suppressed` is a fraction of the rows.
    Its default depends on the method: none for 'optimal' and 'cells', about k rows for 'datafly'.
    'mondrian', 'cluster' and 'ambiguity' suppress no rows. All methods are deterministic except differential
    privacy, which draws from the operating system's randomness and cannot be repeated.

    `models=[DifferentialPrivacy(epsilon=…, delta=…)]` publishes a generalized sample, with method="private"
    or Fixed(levels=…). Every column must be a quasi-identifier with a hierarchy of declared values, and
    `.ledger` records the privacy spent. Only `.table` of the result is private; `.loss`, `.trace`,
    `.suppressed` and the report depend on the original and must not be published.
    """
    from pandas import DataFrame

    if not isinstance(frame, DataFrame):
        raise bad(
            "anonymize",
            "frame",
            type(frame).__name__,
            "a pandas DataFrame",
            "Read a file with pandas.read_csv(…, dtype=str) first.",
        )
    check_unique_names(frame, "anonymize")
    quasi = check_columns(frame, quasi, "quasi", "anonymize")
    sensitive = check_columns(frame, sensitive, "sensitive", "anonymize", may_be_empty=True)
    both = [c for c in sensitive if c in quasi]
    if both:
        raise BadData(
            f"anonymize: {both[0]!r} is both in quasi and in sensitive. Remove it from one of them."
        )
    people = None
    if person is not None:
        people = encode_person(frame, person, [*quasi, *sensitive], "anonymize")
    chosen = _resolve_method(method)
    for name, value, options in (
        ("metric", metric, METRICS),
        ("nulls", nulls, NULLS),
        ("suppressed", suppressed, SUPPRESSED),
    ):
        if value not in options:
            raise bad("anonymize", name, value, "one of " + ", ".join(map(repr, options)))
    if metric != "loss" and not isinstance(chosen, Datafly | Optimal | Fixed):
        raise bad(
            "anonymize",
            "metric",
            metric,
            f"'loss' for method {type(chosen).__name__.lower()!r}",
            "Other metrics need one level per column: use method 'optimal', 'datafly' or 'fixed'.",
        )
    if max_suppressed is not None and (
        isinstance(max_suppressed, bool)
        or not isinstance(max_suppressed, int | float)
        or not 0 <= max_suppressed <= 1
    ):
        raise bad(
            "anonymize",
            "max_suppressed",
            max_suppressed,
            "a fraction of the rows between 0 and 1, or None (the method's default)",
        )
    requested = [
        *([] if k is None else [KAnonymity(k)]),
        *([] if l is None else [LDiversity(l)]),
        *([] if t is None else [TCloseness(t)]),
        *models,
    ]
    if not requested:
        raise bad("anonymize", "k", k, "a whole number of at least 1, unless models=[…] names another model")
    checked_models = validate_models(requested, sensitive, population)
    hierarchies = hierarchies or {}
    private = find_differential_privacy(checked_models)
    original, kept = frame, np.arange(len(frame))
    if person is not None:
        frame = frame.drop(columns=person)
        if private is not None:  # one row of each person, so that ε is for people
            assert people is not None
            kept = pick_one_row(people)
            frame, people = frame.iloc[kept].reset_index(drop=True), None
    if private is not None:
        _check_private(frame, quasi, checked_models, chosen, hierarchies, metric, max_suppressed, suppressed)
    unknown = sorted(set(hierarchies) - set(quasi))
    if unknown:
        raise bad(
            "anonymize", "hierarchies", unknown, "for the quasi-identifiers " + ", ".join(map(repr, quasi))
        )
    if population is not None:
        absent = [c for c in quasi if c not in population.columns]
        if absent:
            raise BadData(
                f"The population has no column {', '.join(map(repr, absent))}; it needs every "
                "quasi-identifier."
            )
    _refuse_decimal_commas(frame, [c for c in quasi if c not in hierarchies])
    table = encode(frame, quasi, hierarchies, sensitive, nulls, population, people)
    number = table.rows if people is None else int(people.max(initial=-1)) + 1
    if k is not None and number < k and private is None:
        unit = "row" if people is None else "person"
        raise BadData(
            f"The table has {format_count(number, unit).replace('persons', 'people')}, fewer than k = {k}, "
            f"so no class can have k {'rows' if people is None else 'people'}. Use a smaller k, or more rows."
        )
    release = chosen.run(table, AnonymizationRequest(checked_models, max_suppressed, metric))
    settings = {
        "k": k,
        "l": l,
        "t": t,
        "models": [to_table(m) for m in checked_models],
        "metric": metric,
        "max_suppressed": max_suppressed,
        "nulls": nulls,
        "suppressed": suppressed,
        **({} if person is None else {"person": person}),
        "method": to_table(chosen),
    }
    result = publish(
        frame, table, release, checked_models, settings, type(chosen).__name__.lower(), sensitive, person
    )
    result.original = original
    result.suppressed = list(original.index[kept[release.record < 0]])
    result.builders = {
        c.name: builder
        for c in table.columns
        if (builder := find_builder(hierarchies.get(c.name), c.hierarchy)) is not None
    }
    if private is not None:
        result.ledger = _build_ledger(private, chosen, person)
    return result


def _refuse_decimal_commas(frame: pandas.DataFrame, columns: Sequence[str]) -> None:
    """Raise BadData if the numbers of a column are text with commas: its hierarchy would be * alone."""
    from pandas import CategoricalDtype, Series

    for name in columns:
        column = frame[name]
        if not isinstance(column.dtype, CategoricalDtype) and column.dtype.kind in "biufcmM":
            continue  # not text; the distinct values of many rows would take memory
        values = column.cat.categories if isinstance(column.dtype, CategoricalDtype) else column.unique()
        distinct = Series(values)
        example = find_decimal_comma(distinct[~distinct.isin(NULL_CELLS)])
        if example is not None:
            raise BadData(
                f"anonymize: the numbers of {name!r} have a decimal comma, like {example!r}, and would be "
                "categories. Read the file with decimal=',' (tacit anonymize --decimal ,), or give the "
                "column a hierarchy."
            )


def publish(
    frame: pandas.DataFrame,
    table: EncodedTable,
    release: TableRelease,
    models: Sequence[PrivacyModel],
    settings: dict[str, Any],
    method: str,
    sensitive: list[str],
    person: str | None,
) -> AnonymizationResult:
    """Check a release against the models, and build its table in an order by content only."""
    classes = published_classes(table, release)
    notes = []
    if release.has_classes:
        verify(classes, models)
        notes = _find_homogeneity(classes)
    for note in notes:
        warnings.warn(note, HomogeneityWarning, stacklevel=3)
    quasi, number = table.quasi, classes.number
    del classes  # a number for each row
    rows: np.ndarray | None = None
    if find_differential_privacy(models) is None:
        is_starred = settings["suppressed"] == "star"
        published, rows = publish_rows(frame, table, release, is_starred)
    else:
        # As sorted text: dtypes, order and labels of the rows would reveal facts about unpublished rows.
        as_text = replace(release, levels=[None] * len(quasi))
        published = build_frame(frame, table, as_text, False).sort_values(quasi, ignore_index=True)
    identifiers = find_identifiers(
        published, [c for c in published.columns if c not in quasi and c not in sensitive]
    )
    for note in identifiers:
        warnings.warn(note, IdentifierWarning, stacklevel=3)
    return AnonymizationResult(
        table=published,
        suppressed=list(frame.index[release.record < 0]),
        levels=dict(zip(quasi, release.levels)),
        loss=release.loss,
        trace=table.notes + release.trace,
        hierarchies={c.name: c.hierarchy for c in table.columns},
        quasi=quasi,
        sensitive=sensitive,
        method=method,
        settings=settings,
        lattice=release.lattice,
        classes=number,
        warnings=[*notes, *release.warnings, *identifiers],
        original=frame,
        rows=rows,
        person=person,
    )


def compare_limits(
    frame: pandas.DataFrame, limits: Sequence[float] = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2), **options: Any
) -> pandas.DataFrame:
    """The loss by the share of rows that may be suppressed, to choose `max_suppressed`.

    One row for each limit: rows suppressed, loss, classes, and the level of each quasi-identifier; NaN where
    no table satisfies the models. `options` are those of `tacit.anonymize`.
    """
    import pandas

    if "max_suppressed" in options:
        raise bad(
            "compare_limits", "max_suppressed", options["max_suppressed"], "left out: `limits` gives it"
        )
    rows: list[dict[str, Any]] = []
    for limit in limits:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the table that is chosen are raised when it is made
            try:
                made = anonymize(frame, max_suppressed=limit, **options)
            except BadData as error:
                if "privacy models" not in str(error):
                    raise
                rows.append({"max_suppressed": limit})
                continue
        rows.append(
            {
                "max_suppressed": limit,
                "suppressed": len(made.suppressed),
                "loss": made.loss,
                "classes": made.classes,
                **{f"level of {c}": level for c, level in made.levels.items()},
            }
        )
    return pandas.DataFrame(rows).set_index("max_suppressed")


def _check_private(
    frame: pandas.DataFrame,
    quasi: Sequence[str],
    models: Sequence[PrivacyModel],
    method: Method,
    hierarchies: Mapping[str, Any],
    metric: str,
    max_suppressed: float | None,
    suppressed: str,
) -> None:
    """Raise if an option would void the guarantee of `DifferentialPrivacy`."""
    condition = "with DifferentialPrivacy"
    others = [type(m).__name__ for m in models if not isinstance(m, DifferentialPrivacy | KAnonymity)]
    if others or sum(isinstance(m, DifferentialPrivacy) for m in models) > 1:
        raise bad(
            "anonymize",
            "models",
            others or [type(m).__name__ for m in models],
            "DifferentialPrivacy once, combined only with k",
            "Suppression by other models depends on the table in ways that its proof does not cover.",
        )
    if not isinstance(method, Fixed | Private):
        raise bad(
            "anonymize",
            "method",
            type(method).__name__.lower(),
            f"'private' or Fixed(levels=…) {condition}",
            "Other methods choose levels that depend on the table.",
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
                f"{allowed!r} {condition}",
                "The number of suppressed rows is not covered by the guarantee.",
            )
    rest = [c for c in frame.columns if c not in quasi]
    if rest:
        raise BadData(
            "Under differential privacy every published column is generalized: add "
            f"{', '.join(map(repr, rest))} to quasi=, or drop it."
        )
    for name in quasi:
        source = hierarchies.get(name)
        if source is None or (isinstance(source, Builder) and not isinstance(source, Tree)):
            raise BadData(
                f"The hierarchy of column {name!r} would be built from the values in the table, which "
                "reveals them. Declare the values: Intervals(width=5).build([str(age) for age in "
                "range(120)]), a tree, rows, or a file."
            )


def _build_ledger(private: DifferentialPrivacy, method: Method, person: str | None = None) -> Ledger:
    ledger = Ledger()
    search = method.epsilon if isinstance(method, Private) else 0.0
    levels = f"levels by the exponential mechanism at ε = {search:g}" if search else "levels fixed in advance"
    ledger.spend(
        Spend(
            f"sampling at {private.rate:.4f}, {levels}, classes of at least {private.k}",
            private.epsilon + search,
            private.delta,
            "row, added or removed" if person is None else f"person ({person}), added or removed",
            "anyone who sees the published table",
            "Poisson",
            "The table and its levels are covered; loss, trace, suppressed rows and reports are not.",
        )
    )
    return ledger


def _resolve_method(method: str | Method) -> Method:
    options = "one of " + ", ".join(map(repr, ALL))
    if isinstance(method, str):
        if method.lower() not in ALL:
            raise bad("anonymize", "method", method, options, nearest(method, list(ALL)))
        return ALL[method.lower()]()
    if not isinstance(method, tuple(ALL.values())):
        raise bad("anonymize", "method", method, options + ", or such an object")
    checked: Method = check(method)
    return checked


def _find_homogeneity(classes: Classes) -> list[str]:
    """Warnings for sensitive columns with a single value in some class: k-anonymity does not hide it."""
    notes = []
    for name in classes.sensitive:
        is_homogeneous = classes.histogram(name).count_distinct() == 1
        number, rows = int(np.sum(is_homogeneous)), int(classes.sizes[is_homogeneous].sum())
        if rows:
            notes.append(
                f"{format_count(number, 'class')} ({format_count(rows)} of {classes.rows:,}) "
                f"{'has' if number == 1 else 'have'} a single value of {name!r}: an attacker who "
                "knows that a person is in one knows the value. Use l-diversity (l=2) or t-closeness (t=0.2)."
            )
    return notes
