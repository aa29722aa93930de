"""Boosting over parties with the same columns: from options to a program of sums, and to a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ...boost.agreement import Terms, count_levels
from ...boost.bins import MOST_LEVELS, refuse_cells, refuse_dates, refuse_mixed, refuse_moments
from ...boost.objectives import Custom
from ...boost.private_program import DEPTH, PRIVATE_OBJECTIVES, PrivateBoostProgram
from ...boost.program import Boosted, BoostProgram
from ...boost.result import BoostResult
from ...config.boost import LEAVES, BoostConfig
from ...data.cells import code_texts, with_columns, without_codes
from ...data.federation import Federation
from ...data.spellings import refuse_spellings
from ...errors import BadData, BadParameter
from ...parameters import bad, check, nearest
from ...parties.ledger import Ledger
from ...stats import level_sketch
from ...stats.columns import _natural, holds_numbers, is_number, numbers, text_of
from ...stats.level_sketch import LEVEL_ROWS
from ...stats.tables import check_columns, check_frames, tables_of
from ..stats.run import run_sums

OWNER = "boost.train"
HELD_OUT = 0.2  # of the rows, with early stopping
OPENED = (
    "sums over all parties: rows and labels, counts of the values of each number in cells of up to 2^-16 of "
    "the value, and for each node of a tree and each bin of each column Σ gradient, Σ Hessian and rows"
)
SINGLE = (
    "The sums of a deep node may be over few rows: a bin with one row shows that row's gradient, hence its "
    "label and prediction. Larger min_rows and fewer bins make this rarer; only epsilon bounds it."
)


def train_horizontal(fed: Any, options: Mapping[str, Any], runtime: Any, guard: Any) -> BoostResult:
    frames, label, defaults = read_tables(fed, OWNER)
    config = check(BoostConfig(**{**({"label": label} if label else {}), **defaults, **options}), OWNER)
    frames = mask_codes(frames, config)
    counts = LevelCounts(frames)
    terms = make_terms(config, frames, counts)
    check_rows(frames, terms)
    pooled = None
    if runtime == "cohort" and config.min_party_rows == 1 and config.epsilon is None:
        pooled = pd.concat(list(frames.values()), ignore_index=True)
    custom = None
    if callable(config.objective):
        if runtime != "cohort":  # elsewhere, options are plain values that parties agree on
            raise bad(OWNER, "objective", "a function", "one of tacit's names unless runtime is 'cohort'")
        custom = _custom(config, frames)
    program = make_program(config, terms, len(frames), custom)
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=OWNER, pooled=pooled)
    result = conclude(program, found, ledger, len(frames))
    dates = {} if "features" in options or not isinstance(fed, Federation) else _dates_of(fed)
    return replace(result, notes=(*result.notes, *_note_left_out(dates, config, terms, counts)))


def _dates_of(fed: Federation) -> Mapping[str, Any]:
    assert fed.source is not None
    assert fed.source.table is not None
    return fed.source.table.recipe.dates


def _note_left_out(
    dates: Mapping[str, Any], config: BoostConfig, terms: Terms, counts: LevelCounts
) -> list[str]:
    """Return what of the tables the trees do not use: dates of a federation, and levels beyond the limit."""
    notes = []
    if dates:
        notes.append(
            f"Dates are not used: {', '.join(map(repr, dates))}. Add columns of numbers, like days since a "
            "date, to use them."
        )
    if config.epsilon is None and not isinstance(config.categories, Mapping):
        least = terms.min_level_rows
        for name in terms.categorical:
            found, known = counts.all(name), counts.found(name, least)
            used = terms.levels.get(name, known)
            if used and len(used) < len(found):
                which = f"of which a party has {least} rows" if len(used) == len(known) else "most frequent"
                notes.append(
                    f"{name!r} has {len(found)} levels: the {len(used)} {which} are used, and all others "
                    "count as one."
                )
    return notes


def read_tables(fed: Any, owner: str) -> tuple[dict[str, pd.DataFrame], str, dict[str, Any]]:
    """Return the training rows of the parties; of a federation also its label and its columns."""
    if not isinstance(fed, Federation):
        return check_frames(fed, owner), "", {}
    tables_of(fed, owner)  # raises if it has none
    assert fed.source is not None
    assert fed.source.table is not None
    table = fed.source.table
    recipe, frame = table.recipe, table.frame
    refuse_spellings(recipe.spellings, owner)
    coded = {c: v for c, v in recipe.missing_codes.items() if c in frame.columns}
    frame = with_columns(frame, {c: without_codes(frame[c], codes) for c, codes in coded.items()})
    frames = {
        name: frame.iloc[np.sort(fed.train.of(k).numpy())].reset_index(drop=True)
        for k, name in enumerate(fed.parties)
    }
    features = [c for c in frame.columns if c in recipe.numbers or c in recipe.categories]
    defaults: dict[str, Any] = {
        "features": features,
        "categories": list(recipe.categories),
        "missing_codes": {c: list(v) for c, v in coded.items() if c in features} or None,
    }
    classes = fed.source.classes
    if classes is None:
        defaults["objective"] = "regression"
    elif classes > 2:
        defaults["objective"] = "multiclass"
    return frames, table.label, defaults


def mask_codes(frames: Mapping[str, pd.DataFrame], config: BoostConfig) -> dict[str, pd.DataFrame]:
    """Return tables in which declared codes are missing values, before anything is inferred from them."""
    terms = Terms((), config.label, missing_codes=_codes(config))
    return {name: terms.without_codes(frame) for name, frame in frames.items()}


def _codes(config: BoostConfig) -> dict[str, tuple[str, ...]]:
    codes = config.missing_codes or {}
    return {str(c): code_texts(v) for c, v in codes.items()}


def make_terms(
    config: BoostConfig, frames: Mapping[str, pd.DataFrame], counts: LevelCounts | None = None
) -> Terms:
    """Return what the model is about, with what is not declared taken from the columns of the tables."""
    counts = counts or LevelCounts(frames)
    first = next(iter(frames.values()))
    columns = (
        list(config.features)
        if config.features is not None
        else [str(c) for c in first.columns if c != config.label]
    )
    _check_label(config.label, frames)
    for name, frame in frames.items():
        check_columns(frame, [config.label, *columns], name)
        for column in columns:
            refuse_dates(frame[column], name)
            if config.epsilon is None:  # with it, no single row is a reason to refuse
                refuse_cells(frame[column], name)
    if not columns:
        raise bad(OWNER, "features", columns, "at least one column")
    categories = config.categories
    if categories is not None:
        categorical = list(categories)
    elif config.epsilon is not None:  # a bound makes a number, whatever a single row has
        open_ones = [c for c in columns if c not in (config.bounds or {})]
        categorical = [c for c in open_ones if not all(_is_numeric(f[c]) for f in frames.values())]
    else:
        categorical = [c for c in columns if _is_category(c, frames)]
    levels = _texts(categories) if isinstance(categories, Mapping) else {}
    labels = tuple(text_of(v) for v in config.labels or ())
    terms = declared_terms(config, columns, categorical, levels, labels)
    if config.epsilon is None and config.label in terms.sketched:
        classes = counts.all(config.label)
        if len(counts.found(config.label, config.min_level_rows)) < len(classes):
            # a class with few rows everywhere: taken from the tables, which this process holds
            terms = declared_terms(config, columns, categorical, levels, tuple(classes))
    found = {c: counts.found(c, config.min_level_rows) for c in terms.sketched}
    if sum(map(len, found.values())) > level_sketch.MOST:  # more than a sum can find
        labels = found.pop(config.label, terms.labels)
        found = {c: counts.most_frequent(c, known) for c, known in found.items()}
        terms = declared_terms(config, columns, categorical, {**levels, **found}, labels)
    return terms


def declared_terms(
    config: BoostConfig,
    columns: list[str],
    categorical: list[str],
    levels: Mapping[str, tuple[str, ...]],
    labels: tuple[str, ...],
) -> Terms:
    """Return the terms of declared columns; names that are not among them are refused."""
    cuts = {str(k): tuple(float(np.float32(v)) for v in values) for k, values in (config.cuts or {}).items()}
    for name, given in (
        ("categories", categorical),
        ("cuts", cuts),
        ("monotone", config.monotone or {}),
        ("bounds", config.bounds or {}),
        ("missing_codes", config.missing_codes or {}),
    ):
        for column in given:
            if column not in columns:
                if name == "bounds" and column == config.label:
                    continue
                raise bad(OWNER, name, column, "one of the model's columns", nearest(str(column), columns))
    for name, given in (("cuts", cuts), ("monotone", config.monotone or {}), ("bounds", config.bounds or {})):
        both = [c for c in given if c in categorical]
        if both:
            raise bad(OWNER, name, both[0], "a column of numbers, not a category")
    objective = "regression" if callable(config.objective) else config.objective
    return Terms(
        tuple(columns),
        config.label,
        objective,
        tuple(categorical),
        labels,
        dict(levels),
        cuts,
        config.bins,
        _codes(config),
        config.min_level_rows,
    )


def _texts(levels: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {str(k): tuple(dict.fromkeys(text_of(v) for v in values)) for k, values in levels.items()}


def _check_label(label: str, frames: Mapping[str, pd.DataFrame]) -> None:
    having = [name for name, frame in frames.items() if label in frame.columns]
    if having and len(having) < len(frames):
        missing = next(name for name in frames if name not in having)
        raise BadData(
            f"{OWNER}: the table of {missing!r} has no label {label!r}, that of {having[0]!r} has. Parties "
            "with the same columns all have it. For other columns of the same people give on=, the id column."
        )


def _is_category(name: str, frames: Mapping[str, pd.DataFrame]) -> bool:
    """Whether a column that is not declared is a category; raise BadData if parties differ about it."""
    known = {who: frame[name] for who, frame in frames.items() if frame[name].notna().any()}
    texts = [who for who, column in known.items() if not _is_numeric(column)]
    for who in texts:
        refuse_moments(known[who], who)
        refuse_mixed(known[who], who)
    numeric = [who for who in known if who not in texts]
    if texts and numeric:
        example = known[texts[0]].dropna().iloc[0]
        raise BadData(
            f"{OWNER}: column {name!r} is a number at {numeric[0]!r} and text at {texts[0]!r} ({example!r}). "
            f"Convert it at one of them; if it is a category, declare all: categories=[{name!r}, …]."
        )
    return bool(texts)


def _is_numeric(column: pd.Series) -> bool:
    return is_number(column) or pd.api.types.is_bool_dtype(column.dtype) or holds_numbers(column)


class LevelCounts:
    """The levels of columns in tables that this process holds: each is read once."""

    def __init__(self, frames: Mapping[str, pd.DataFrame]):
        self.frames = frames
        self._counts: dict[str, list[dict[str, int]]] = {}

    def of(self, column: str) -> list[dict[str, int]]:
        """Return the rows of each level at each party."""
        if column not in self._counts:
            self._counts[column] = [count_levels(frame[column]) for frame in self.frames.values()]
        return self._counts[column]

    def all(self, column: str) -> list[str]:
        return sorted(set().union(*self.of(column)), key=_natural)

    def found(self, column: str, least: int) -> tuple[str, ...]:
        """Return the levels that a sum over parties finds, in order."""
        found = {level for counts in self.of(column) for level, n in counts.items() if n >= least}
        return tuple(sorted(found, key=_natural))

    def most_frequent(self, column: str, found: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the found levels that a feature can have."""
        rows = {level: sum(counts.get(level, 0) for counts in self.of(column)) for level in found}
        by_count = sorted(found, key=lambda level: (-rows[level], level))  # ties whatever the parties
        return tuple(sorted(by_count[:MOST_LEVELS], key=_natural))


def check_rows(frames: Mapping[str, pd.DataFrame], terms: Terms, owner: str = OWNER) -> None:
    """Raise one error with all problems of the labels."""
    problems = [
        f"{name!r}: {int(frame[terms.label].isna().sum())} rows have no {terms.label!r}"
        for name, frame in frames.items()
        if frame[terms.label].isna().any()
    ]
    if problems:
        raise BadData(f"{owner}: {'; '.join(problems)}. Remove these rows first.")


def _custom(config: BoostConfig, frames: Mapping[str, pd.DataFrame]) -> Custom:
    """Try the function on the labels, and bound its gradients by four times those at margin 0."""
    otherwise = "convert it: objective is a function of numbers"
    y = np.concatenate([numbers(f, config.label, otherwise) for f in frames.values()])
    function = config.objective
    assert callable(function)
    try:
        g, h = function(np.zeros(len(y)), y)
        g, h = np.asarray(g, np.float64), np.asarray(h, np.float64)
    except (TypeError, ValueError) as error:
        raise bad(OWNER, "objective", "a function", f"(margin, y) → (gradient, Hessian): {error}") from None
    if g.shape != y.shape or h.shape != y.shape or not np.isfinite(g).all() or not (h >= 0).all():
        raise bad(
            OWNER,
            "objective",
            "a function",
            "one that returns finite gradients and Hessians of at least 0 for each row",
        )
    return Custom(function, max(4 * float(np.abs(g).max()), 1e-9), max(4 * float(h.max()), 1e-9))


def make_program(config: BoostConfig, terms: Terms, parties: int, custom: Custom | None = None) -> Any:
    """Return the program of sums."""
    if config.epsilon is not None:
        return make_private(config, terms, parties)
    held_out = config.held_out or (HELD_OUT if config.early_stopping else 0.0)
    weights = config.class_weight
    if isinstance(weights, Mapping):
        weights = {text_of(k): float(v) for k, v in weights.items()}
    return BoostProgram(
        terms.to_dict(),
        trees=config.trees,
        depth=config.depth,
        leaves=(config.leaves or LEAVES) if config.grow == "leaf" else 0,
        learning_rate=float(config.learning_rate),
        l2=float(config.l2),
        l1=float(config.l1),
        gamma=float(config.gamma),
        min_child_weight=float(config.min_child_weight),
        min_rows=config.min_rows,
        max_step=float(config.max_delta_step),
        rows=float(config.subsample),
        columns=float(config.colsample_bytree),
        columns_by_level=float(config.colsample_bylevel),
        columns_by_node=float(config.colsample_bynode),
        monotone={str(k): int(v) for k, v in (config.monotone or {}).items()},
        class_weight=weights,
        held_out=float(held_out),
        early_stopping=config.early_stopping or 0,
        min_party_rows=config.min_party_rows,
        seed=config.seed,
        custom=custom,
    )


# options that a private model cannot have, with the value they must keep
NOT_PRIVATE = {
    "grow": "level",
    "l1": 0.0,
    "gamma": 0.0,
    "min_rows": 1,
    "subsample": 1.0,
    "colsample_bytree": 1.0,
    "colsample_bylevel": 1.0,
    "colsample_bynode": 1.0,
    "monotone": None,
    "class_weight": None,
    "held_out": None,
    "early_stopping": None,
    "min_party_rows": 1,
    "min_level_rows": LEVEL_ROWS,
}


def make_private(config: BoostConfig, terms: Terms, parties: int) -> PrivateBoostProgram:
    """Return the noisy program; raise one BadParameter with all that it cannot have, or lacks."""
    problems = [
        str(bad(OWNER, name, getattr(config, name), f"{value!r} with epsilon"))
        for name, value in NOT_PRIVATE.items()
        if getattr(config, name) != value
    ]
    if terms.objective not in PRIVATE_OBJECTIVES or callable(config.objective):
        allowed = " or ".join(map(repr, PRIVATE_OBJECTIVES))
        problems.append(str(bad(OWNER, "objective", config.objective, f"{allowed} with epsilon")))
    bounds = {str(k): v for k, v in (config.bounds or {}).items()}
    for name, pair in bounds.items():
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not float(pair[0]) < float(pair[1]):
            problems.append(str(bad(OWNER, f"bounds of {name!r}", pair, "(low, high) with low < high")))
    needed = [*terms.searched, *([] if terms.has_classes else [terms.label])]
    missing = [c for c in needed if c not in bounds]
    if missing:
        text = f"the range of {', '.join(map(repr, missing))} too: declared, not taken from rows"
        problems.append(str(bad(OWNER, "bounds", config.bounds, text)))
    if terms.sketched:
        names = [c for c in terms.sketched if c != terms.label]
        if names:
            text = f"the levels of {', '.join(map(repr, names))} too, with epsilon"
            problems.append(str(bad(OWNER, "categories", config.categories, text)))
        if terms.label in terms.sketched:
            problems.append(str(bad(OWNER, "labels", config.labels, "the classes in order, with epsilon")))
    if problems:
        raise BadParameter("\n".join(problems))
    return PrivateBoostProgram(
        terms.to_dict(),
        parties,
        float(config.epsilon or 0.0),
        float(config.delta),
        {c: tuple(float(v) for v in bounds[c]) for c in needed},
        config.trees,
        min(config.depth, DEPTH),
        float(config.learning_rate),
        float(config.l2),
        config.seed,
    )


def conclude(program: Any, found: Boosted, ledger: Ledger, parties: int) -> BoostResult:
    """Return the result, and say in the ledger what was opened."""
    notes = []
    if isinstance(program, PrivateBoostProgram):
        if not any(s == program.spend for s in ledger.spent):
            ledger.spend(program.spend)
        ledger.stamp(
            "boost.train opened noisy sums over all parties only: labels, counts of numbers within their "
            "declared bounds, and Σ gradient and Σ Hessian of the leaves of random trees."
        )
        notes.append(f"ε = {program.epsilon:g}: every tree divides one column, at random cuts.")
    else:
        ledger.stamp(f"boost.train opened {OPENED}.")
        ledger.stamp(SINGLE)
    if isinstance(program, BoostProgram) and program.min_party_rows > 1:
        notes.append(
            f"Nodes in which a party has fewer than {program.min_party_rows} rows were found without them."
        )
    if isinstance(program, BoostProgram):
        notes += [
            f"{feature.name!r} is not used: no party has {program.about.min_level_rows} rows with one of its "
            "values, as in a column of ids, free text, or dates written as text. Levels can be declared."
            for feature in found.model.bins.features
            if feature.levels == ()
        ]
    return BoostResult(
        found.model,
        ledger,
        program.about.label,
        found.rows,
        parties,
        found.steps,
        found.losses,
        found.best,
        tuple(notes),
    )
