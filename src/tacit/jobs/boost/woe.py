"""`tacit.boost.woe`: bins, weights of evidence and information values over parties, and scorecards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ...boost.agreement import Terms
from ...boost.private_woe_program import PrivateWoeProgram
from ...boost.woe_program import Weighed, WoeProgram
from ...config.boost import BoostConfig
from ...config.signature import with_options
from ...config.woe import WOE_OPTIONS, WoeConfig
from ...errors import BadJob, BadParameter
from ...parameters import bad, check
from ...parties.ledger import Ledger
from ...stats.columns import text_of
from ...stats.tables import check_columns
from ..stats.queries import StatsVerb
from ..stats.run import run_sums
from ..vertical.boost_rows import HELPER, is_vertical
from .horizontal import check_rows, declared_terms, make_terms, mask_codes, read_tables
from .woe_result import WoeResult, note_flat

OWNER = "boost.woe"
OPENED = (
    "boost.woe opened sums over all parties: outcomes, counts of the values of each number in cells of up to "
    "2^-16 of the value, and for each column the rows and events in each of its quantile bins and levels."
)
SMALL = (
    "Quantile bins and levels may have few rows; bins that are shown have at least {} rows, {} of each kind."
)
NOISY = (
    "boost.woe opened noisy sums over all parties only: counts of numbers within their declared bounds, and "
    "rows and events in the bins of each column."
)


@with_options(WOE_OPTIONS)
def woe(
    fed: Any,
    *,
    on: str | None = None,
    helper: str | None = HELPER,
    runtime: Any = "cohort",
    guard: Any = None,
    **options: Any,
) -> WoeResult:
    """Bin columns by weight of evidence over all parties; only sums over all of them are opened.

    `fed` is {party: DataFrame} with the same columns, or a federation made from tables. WOE is ln(share of
    other rows / share of events). The bins are those of the pooled rows. `runtime` and `guard` are as in
    `tacit.boost.train`. With `epsilon`, counts have noise, and ranges (or cuts), levels and outcomes are
    declared.

    Vertical parties have different columns of the same people, as in `tacit.boost.train`: {party: DataFrame}
    with the id column `on`, and the outcome at one of them. Rows and events in each bin are counted on secret
    shares, with randomness of a `helper`, or with helper=None by homomorphic encryption. With `epsilon`,
    every party adds noise against the others, and ranges (or cuts), levels and outcomes are declared, too.
    """
    if is_vertical(fed, on):
        from ..vertical.woe import weigh_vertical

        return weigh_vertical(fed, options, on, helper, runtime, guard)
    if helper != HELPER:
        raise bad(OWNER, "helper", helper, "left out for parties with the same columns")
    frames, label, defaults = read_tables(fed, OWNER)
    defaults = {k: v for k, v in defaults.items() if k in WOE_OPTIONS}
    config = check(WoeConfig(**{**({"label": label} if label else {}), **defaults, **options}), OWNER)
    if config.epsilon is None:
        frames = mask_codes(frames, _for_terms(config))
        terms = make_terms(_for_terms(config), frames)
        check_rows(frames, terms, OWNER)
    else:  # nothing follows from rows: one could change how all are read
        terms = _declared(config, frames)
    program = _program(config, terms, len(frames))
    found, ledger = run_sums(program, frames, runtime=runtime, guard=guard, owner=OWNER)
    result = _conclude(config, program, found, ledger, len(frames))
    result.source = frames, runtime, guard
    return result


def _declared(config: WoeConfig, frames: Mapping[str, pd.DataFrame]) -> Terms:
    """Return the terms of a private binning of tables: kinds and levels are declared."""
    given = {*(config.bounds or {}), *(config.cuts or {}), *(config.categories or ())}
    first = next(iter(frames.values()))
    names = [str(c) for c in first.columns if c != config.label]
    columns = names if config.features is None else list(config.features)
    for name, frame in frames.items():
        check_columns(frame, [config.label, *columns], name)
    # a column that is not declared at all is an error later, which should ask for what it needs
    texts = [c for c in columns if c not in given and not pd.api.types.is_numeric_dtype(first[c].dtype)]
    return _declared_terms(config, columns, texts)


def _declared_terms(config: WoeConfig, columns: list[str], texts: Sequence[str] = ()) -> Terms:
    categories = config.categories or []
    levels = (
        {str(k): tuple(dict.fromkeys(text_of(v) for v in values)) for k, values in categories.items()}
        if isinstance(categories, Mapping)
        else {}
    )
    labels = tuple(text_of(v) for v in config.labels or ())
    return declared_terms(_for_terms(config), columns, [*categories, *texts], levels, labels)


def _for_terms(config: WoeConfig) -> BoostConfig:
    """Return the options that say what columns are."""
    return BoostConfig(
        label=config.label,
        features=config.features,
        categories=config.categories,
        missing_codes=config.missing_codes,
        labels=config.labels,
        cuts=config.cuts,
        bins=config.first_bins,
        min_level_rows=config.min_level_rows,
    )


def _program(config: WoeConfig, terms: Terms, parties: int) -> WoeProgram | PrivateWoeProgram:
    if config.epsilon is not None:
        return _private_program(config, terms, parties)
    return WoeProgram(
        terms.to_dict(),
        None if config.event is None else text_of(config.event),
        config.bins,
        config.monotone,
        float(config.min_share),
        config.min_rows,
        config.min_cell,
    )


def _private_program(config: WoeConfig, terms: Terms, parties: int) -> PrivateWoeProgram:
    """Return the noisy program; raise one BadParameter with all that is not declared."""
    bounds, problems = {str(k): v for k, v in (config.bounds or {}).items()}, []
    for name, pair in bounds.items():
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not float(pair[0]) < float(pair[1]):
            problems.append(str(bad(OWNER, f"bounds of {name!r}", pair, "(low, high) with low < high")))
    missing = [c for c in terms.searched if c not in bounds]
    if missing:
        text = f"the range of {', '.join(map(repr, missing))} too: declared, not taken from rows"
        problems.append(str(bad(OWNER, "bounds", config.bounds, text)))
    unknown = [c for c in bounds if c not in terms.searched]
    if unknown:
        text = "numbers of the binning without declared cuts"
        problems.append(str(bad(OWNER, "bounds", unknown[0], text)))
    names = [c for c in terms.sketched if c != terms.label]
    if names:
        text = f"the levels of {', '.join(map(repr, names))} too, with epsilon"
        problems.append(str(bad(OWNER, "categories", config.categories, text)))
    if terms.label in terms.sketched:
        problems.append(str(bad(OWNER, "labels", config.labels, "the two outcomes, with epsilon")))
    if problems:
        raise BadParameter("\n".join(problems))
    return PrivateWoeProgram(
        terms.to_dict(),
        parties,
        float(config.epsilon or 0.0),
        float(config.delta),
        {c: tuple(float(v) for v in bounds[c]) for c in terms.searched},
        None if config.event is None else text_of(config.event),
        config.bins,
        config.monotone,
        float(config.min_share),
        config.min_rows,
        config.min_cell,
    )


def _conclude(
    config: WoeConfig,
    program: WoeProgram | PrivateWoeProgram,
    found: Weighed,
    ledger: Ledger,
    parties: int = 0,
) -> WoeResult:
    if isinstance(program, PrivateWoeProgram):
        if not any(s == program.spend for s in ledger.spent):
            ledger.spend(program.spend)
        ledger.stamp(NOISY)
    else:
        ledger.stamp(OPENED)
        ledger.stamp(SMALL.format(config.min_rows, config.min_cell))
    return WoeResult(
        tuple(found.columns),
        ledger,
        program.about.label,
        found.labels[1],
        found.totals,
        parties,
        found.steps,
        note_flat(found.columns, config),
        is_private=config.epsilon is not None,
    )


def _build(config: WoeConfig, parties: int) -> WoeProgram | PrivateWoeProgram:
    """Return the program of a job file: columns are declared, nothing is taken from anybody's rows."""
    if config.features is None:
        raise BadJob("boost.woe: features must be given: the columns, as a list.")
    return _program(config, _declared_terms(config, list(config.features)), parties)


VERBS = {"woe": StatsVerb(WoeConfig, _build, _conclude)}
