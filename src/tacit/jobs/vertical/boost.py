"""`tacit.boost.train` over columns held by different parties, on secret shares."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from ...boost.vertical_bins import OwnBins
from ...config.vertical_boost import VERTICAL_BOOST_OPTIONS, VerticalBoostConfig
from ...parameters import bad, check
from ...parties.ledger import Ledger
from ...runtimes.choose import choose_runtime
from . import boost_programs
from .boost_parts import BoostPart, make_part
from .boost_result import VerticalBoostResult
from .boost_rows import HELPER, OWNER, BoostRows, arrange, to_tensor


def train_vertical(
    parties: Any, options: Mapping[str, Any], on: str | None, runtime: Any, guard: Any
) -> VerticalBoostResult:
    """Align the tables, grow trees on shares, and return each party's part."""
    options = dict(options)
    label = str(options.pop("label", "") or "")
    categories = options.pop("categories", None) or []
    if guard is not None:
        raise bad(OWNER, "guard", guard, "None for vertical parties: secret shares need none")
    unknown = [name for name in options if name not in VERTICAL_BOOST_OPTIONS]
    if unknown:
        allowed = ", ".join(["label", "categories", *VERTICAL_BOOST_OPTIONS])
        raise bad(
            OWNER, unknown[0], options[unknown[0]], f"left out for vertical parties, which have {allowed}"
        )
    config = check(VerticalBoostConfig(**options), OWNER)
    runtime = None if runtime == "cohort" else runtime
    ledger = Ledger()
    rows = arrange(parties, config.objective, on, label, runtime, ledger)
    return fit(rows, config, categories, runtime, ledger)


def plain_settings(config: VerticalBoostConfig) -> dict[str, Any]:
    """The options as plain values that all parties compare."""
    settings: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return settings


def fit(
    rows: BoostRows, config: VerticalBoostConfig, categories: Any, runtime: Any, ledger: Ledger
) -> VerticalBoostResult:
    names = [rows.label_at, *(n for n in rows.frames if n != rows.label_at)]
    if len(names) < 2 or HELPER in names:
        raise bad(
            OWNER, "parties", names, f"at least two, and none called {HELPER!r}, which deals the randomness"
        )
    known = [c for f in rows.frames.values() for c in f.columns]
    for name in categories:
        if name not in known:
            raise bad(OWNER, "categories", name, "a column of one of the parties")
    settings = plain_settings(config)
    bins, programs = {}, dict[str, Any]()
    for who in names:
        frame = rows.frames[who]
        own = [*rows.categories[who], *(c for c in categories if c in frame.columns)]
        bins[who] = OwnBins.fit(frame, own, config.bins, config.min_rows, who)
        codes = to_tensor(bins[who].encode(frame))
        shared: dict[str, Any] = {"names": names, "helper": HELPER, "settings": settings}
        shared |= {"codes": codes, "bins": bins[who].to_dict()}
        if who == rows.label_at:
            programs[who] = functools.partial(
                boost_programs.hold_label, y=to_tensor(rows.y), labels=list(rows.labels), **shared
            )
        else:
            programs[who] = functools.partial(boost_programs.hold_columns, label_at=rows.label_at, **shared)
    everyone: dict[str, Any] = {
        HELPER: functools.partial(
            boost_programs.help_all,
            names=names,
            label_at=rows.label_at,
            helper=HELPER,
            settings=settings,
            rows=len(rows.y),
        ),
        **programs,
    }
    results = choose_runtime(OWNER, runtime, all_stay=True).run_sync(everyone, ledger=ledger)
    outputs = len(rows.labels) if config.objective == "multiclass" else 1
    parts: dict[str, BoostPart] = {
        who: make_part(
            results[who],
            who,
            tuple(names),
            rows.label_at,
            HELPER,
            config.objective,
            bins[who],
            outputs,
            rows.label if who == rows.label_at else "",
            rows.id,
        )
        for who in names
    }
    best = results[rows.label_at]["best"]
    return VerticalBoostResult(parts, ledger, best, tuple(rows.notes))
