"""Release of a synthetic table: attack it first, and refuse it if an attack exceeds its limit.

    release = synth.release(frame, synth.Cart(), rows=1000)
    release.checks           # each attack: value, 95% interval, limit
    release.save("public.csv")

Part of the rows is held out, the generator is fitted to the others, and exactly the rows that would be
published are attacked: copies, singling out, linkability and inference (`privacy.py`), membership with the
synthetic table alone and with shadow fits (`shadows.py`). If a value exceeds its limit and its 95% interval
excludes chance, `ReleaseRefused` names it. Where the table is too small to tell, the release says so, or is
refused as well (`certain=True`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..errors import BadData, ReleaseRefused
from ..parameters import bad, check, flag, real
from ..parties.ledger import Ledger
from ..people import encode_person
from ..results import JobResult
from .cart import Cart
from .columns import Column
from .evaluate import Evaluation, evaluate
from .generator import Generator
from .privacy import COPIES, DENSITY, INFERENCE, LINKING, MEMBERSHIP
from .scores import MetricScore
from .shadows import EXPOSED, RELEASED, SHADOW, SHADOWS, attack_with_shadows, check_shadows
from .singling import SINGLING, UNIVARIATE
from .table import Table, check_columns

HOLDOUT = 0.2  # share of the people held out: the attacks' reference

# the attacks that each limit applies to
ATTACKS = {
    "membership": (MEMBERSHIP.name, DENSITY.name, SHADOW.name, RELEASED.name),
    "outliers": (EXPOSED.name,),
    "singling_out": (SINGLING.name, UNIVARIATE.name),
    "linkability": (LINKING.name,),
    "inference": (INFERENCE.name,),
    "copies": (COPIES.name,),
}


@dataclass(frozen=True)
class ReleaseLimits:
    """The largest result of each attack with which a table is released; None: no limit."""

    membership: float | None = real(
        0.6, least=0.5, most=1, none=True, doc="AUC of telling training rows from others; 0.5 is chance"
    )
    outliers: float | None = real(
        0.7, least=0.5, most=1, none=True, doc="the same for the 5% of the rows that are farthest from others"
    )
    singling_out: float | None = real(
        0.09, least=0, most=1, none=True, doc="excess rate of predicates that hold for one person"
    )
    linkability: float | None = real(
        0.09, least=0, most=1, none=True, doc="excess rate of linking two halves of a row"
    )
    inference: float | None = real(
        0.09, least=0, most=1, none=True, doc="excess rate of inferring a value from the others of its row"
    )
    copies: float | None = real(
        2.0, least=1, none=True, doc="rate of exact copies of training rows, relative to held-out rows"
    )
    certain: bool = flag(False, doc="also refuse where the upper end of the 95% interval exceeds the limit")

    def judge(self, evaluation: Evaluation) -> pd.DataFrame:
        """Return one row for each attack with a limit: value, interval, limit and verdict."""
        rows = []
        for score in evaluation.scores:
            limit = self.limit_for(score)
            if limit is None or not math.isfinite(score.value):
                continue
            low, high = score.interval or (score.value, score.value)
            # a value above the limit by chance, in a small table, is not an attack that succeeds
            exceeded = score.value > limit and low > (score.reference or 0.0)
            # the limit of copies is that of held-out rows, often 0, which no interval is below
            end = score.value if score.name == COPIES.name else high
            unclear = "exceeded" if self.certain else "not certain"
            verdict = "exceeded" if exceeded else unclear if end > limit else "passed"
            rows.append((score.name, score.value, low, high, limit, verdict))
        table = pd.DataFrame(rows, columns=["attack", "value", "low", "high", "limit", "verdict"])
        return table.set_index("attack")

    def limit_for(self, score: MetricScore) -> float | None:
        """Return the limit of an attack's value, if it has one."""
        for name, attacks in ATTACKS.items():
            limit: float | None = getattr(self, name)
            if score.name in attacks and limit is not None:
                return limit * (score.reference or 0.0) if name == "copies" else limit
        return None


@dataclass
class SyntheticRelease(JobResult):
    """A synthetic table that passed its attacks."""

    table: pd.DataFrame
    generator: Generator
    evaluation: Evaluation = field(repr=False)
    checks: pd.DataFrame  # attack, value, low, high, limit, verdict
    notes: list[str] = field(default_factory=list)

    title: ClassVar[str] = "Release of a synthetic table"
    facts: ClassVar[tuple[str, ...]] = ("checks", "notes")
    shows_index: ClassVar[bool] = False

    @property
    def value(self) -> pd.DataFrame:
        return self.table

    @property
    def ledger(self) -> Ledger:
        return self.generator.ledger

    def _summary(self) -> str:
        return "\n".join([format_checks(self.checks), *self.notes])


def release(
    frame: pd.DataFrame,
    generator: Generator | None = None,
    table: Table | Mapping[str, Column] | None = None,
    *,
    rows: int | None = None,
    limits: ReleaseLimits | None = None,
    holdout: float = HOLDOUT,
    shadows: int = SHADOWS,
    target: str | None = None,
    seed: int = 0,
    watch: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> SyntheticRelease:
    """Fit a generator (default: Cart) to a part of the rows, sample a table, attack it, and return it.

    `rows` is the length of the table (default: that of the training part), `limits` what the attacks may
    reach, `holdout` the share of rows, or people, that the generator does not see. `options` are those of
    `fit`: floor, person, protect and dependencies. Raises ReleaseRefused if an attack exceeds its limit.
    """
    generator = Cart() if generator is None else generator
    check_columns(frame)
    if not isinstance(generator, Generator):
        raise bad("release", "generator", type(generator).__name__, "a generator like synth.Cart()")
    check(generator)
    limits = check(limits or ReleaseLimits())
    check_shadows(shadows, "release")
    if isinstance(holdout, bool) or not isinstance(holdout, float) or not 0 < holdout < 1:
        raise bad("release", "holdout", holdout, "a number above 0 and below 1")
    if generator.private and rows is None:
        raise bad("release", "rows", rows, "a round number: that of the training rows is private")
    unknown = sorted(set(options) - {"floor", "person", "protect", "dependencies"})
    if unknown:
        raise bad("release", "options", ", ".join(unknown), "floor, person, protect and dependencies")
    train, unseen = split_people(frame, holdout, options.get("person"), seed)
    generator.fit(train, table, watch, **options)
    made = generator.sample(rows or len(train), seed=seed)
    evaluation = attack_release(
        generator,
        train,
        made,
        unseen,
        table,
        target=target,
        shadows=shadows,
        seed=seed,
        watch=watch,
        **options,
    )
    checks, notes = check_release(evaluation, limits)
    return SyntheticRelease(made, generator, evaluation, checks, notes)


def split_people(
    frame: pd.DataFrame, share: float, person: str | None, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (training, held-out) rows; nobody has rows in both."""
    whose = np.arange(len(frame)) if person is None else encode_person(frame, person, [], "release")
    number = int(whose.max(initial=-1)) + 1
    order = np.random.default_rng([seed, 11]).permutation(number)
    held_out = np.isin(whose, order[: round(share * number)])
    if not 2 <= held_out.sum() <= len(frame) - 2:
        raise BadData(
            f"release: holding out {share:g} of {number} {'rows' if person is None else 'people'} leaves too "
            "few on one side. Give more rows."
        )
    return frame[~held_out].reset_index(drop=True), frame[held_out].reset_index(drop=True)


def attack_release(
    generator: Generator,
    train: pd.DataFrame,
    made: pd.DataFrame,
    unseen: pd.DataFrame,
    table: Table | Mapping[str, Column] | None = None,
    *,
    target: str | None = None,
    shadows: int = SHADOWS,
    seed: int = 0,
    watch: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate a sample of a fitted generator, with the attack of shadow fits added.

    `train` is the table it was fitted to, `table` and `options` those of its `fit`.
    """
    evaluation = evaluate(
        train,
        made,
        unseen,
        target,
        table=generator.table,
        name=type(generator).__name__,
        seed=seed,
        person=options.get("person"),
    )
    evaluation.scores += attack_with_shadows(
        generator, train, made, unseen, shadows=shadows, seed=seed, watch=watch, table=table, **options
    )
    return evaluation


def check_release(evaluation: Evaluation, limits: ReleaseLimits) -> tuple[pd.DataFrame, list[str]]:
    """Return the judged attacks and notes, or raise ReleaseRefused with all that exceed their limit."""
    checks = limits.judge(evaluation)
    exceeded = checks[checks["verdict"] == "exceeded"]
    if len(exceeded):
        found = "; ".join(
            f"{name} {row.value:.3f} (95%: {row.low:.3f} to {row.high:.3f}), limit {row.limit:.3g}"
            for name, row in zip(exceeded.index, exceeded.itertuples())
        )
        raise ReleaseRefused(
            f"the table is not released, and nothing was written: {found}. Use protect='outliers' (if you do "
            "not yet), a higher floor, a generator that follows the data less closely "
            "(GaussianCopula, a larger leaf of Cart, even=False), a private one (MST), or more rows; or "
            "raise the limit if this risk is acceptable."
        )
    open_ones = checks[checks["verdict"] == "not certain"]
    notes = []
    if len(open_ones):
        notes.append(
            "The table is too small to show that these are below their limits: "
            f"{', '.join(open_ones.index)}. The upper ends of their 95% intervals are above. Give more rows, "
            "or hold out more of them (holdout=0.5); with certain=True the release is refused."
        )
    return checks, notes


def format_checks(checks: pd.DataFrame) -> str:
    """Return the judged attacks as text."""
    return str(checks.to_string(float_format=lambda v: f"{v:.3f}"))


def parse_limits(texts: list[str]) -> ReleaseLimits:
    """Read limits like membership=0.55 or copies=none."""
    known = {f.name for f in fields(ReleaseLimits)}
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in known:
            raise bad("synth", "--limit", text, "NAME=VALUE with one of " + ", ".join(sorted(known)))
        lowered = value.strip().lower()
        try:
            special = {"none": None, "true": True, "false": False}
            values[name] = special[lowered] if lowered in special else float(lowered)
        except ValueError:
            raise bad("synth", "--limit", text, "a number, or none for no limit") from None
    return check(ReleaseLimits(**values))
