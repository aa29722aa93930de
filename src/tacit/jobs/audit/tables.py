"""Audits of published tables: anonymized ones by linkage, synthetic ones by the attacks on their
generator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...anonymity.result import AnonymizationResult
from ...config.audit import AuditLimits
from ...errors import BadParameter
from ...parties.ledger import Ledger
from ...report.svg import bars
from .findings import Finding, ReleaseAudit
from .linkage import linkage

if TYPE_CHECKING:
    from pandas import DataFrame

    from ...synth import Generator, SyntheticRelease

READER = "anyone who has the table"
LINKAGE_STOP = (
    "A larger k, coarser hierarchies, fewer quasi-identifiers, suppression of rare rows; l-diversity or "
    "t-closeness "
    "for what classes disclose; a table with an ε of its own."
)
SYNTHETIC_STOP = (
    "A generator with differential privacy (MST, AIM, PATEGAN), protect='outliers', a higher floor of rare "
    "values, "
    "a generator that follows the data less closely, or more rows."
)
SHADOW_SHARE = 0.6  # of the budget
FEWEST, MOST_SHADOWS = 6, 32  # shadow fits


def audit_anonymized(
    published: AnonymizationResult | DataFrame,
    original: DataFrame | None,
    limits: AuditLimits,
    budget: float,
    *,
    quasi: Sequence[str] | None = None,
    sensitive: Sequence[str] | str = (),
    hierarchies: Mapping[str, Any] | None = None,
    background: DataFrame | None = None,
    key: str | None = None,
    seed: int = 0,
    watch: Callable[[str], None] | None = None,
) -> ReleaseAudit:
    """Match the published rows with the background table, and judge the share of right matches."""
    if original is None and isinstance(published, AnonymizationResult):
        original = published.original
    if original is None:
        raise BadParameter(
            "audit: a published table is compared with the one it was made from. Give original=."
        )
    started = time.monotonic()
    if watch is not None:
        watch("linkage with the background table")
    found = linkage(
        original,
        published,
        quasi,
        background=background,
        key=key,
        sensitive=sensitive,
        hierarchies=hierarchies,
        seed=seed,
    )
    seconds = (time.monotonic() - started) / 3
    findings = []
    does = {
        "prosecutor": "Knows that a person is in the table, and points at her row",
        "journalist": "Chooses the row that the fewest people fit, and names its person",
        "marketer": "Names a person for every row",
    }
    for name, words in does.items():
        m = getattr(found, name)
        limit = None if name == "journalist" else limits.linked
        checked = (
            " (expected; matches cannot be checked)" if any("no labels" in n for n in found.notes) else ""
        )
        findings.append(
            Finding(
                READER,
                f"linkage as {name}",
                f"{words}, with {', '.join(found.quasi)} of {found.background} people.",
                f"{m.right} of {m.tried} matches right ({m.rate:.1%}){checked}, {m.unique} without any "
                f"choice; by "
                f"the sizes of classes {found.analytic[name]:.1%}",
                LINKAGE_STOP,
                m.rate,
                limit,
                limit is not None and m.rate > limit,
                seconds=seconds,
                details={
                    "limit_name": "linked" if limit is not None else None,
                    "analytic": found.analytic[name],
                    "expected": m.expected,
                },
                drawing=bars(
                    f"Success as {name}",
                    ("by matching", "by class sizes"),
                    (m.rate, found.analytic[name]),
                    lambda v: f"{v:.1%}",
                    columns=("measured", "right"),
                ),
            )
        )
    for column, share in found.disclosed.items():
        findings.append(
            Finding(
                READER,
                f"disclosure of {column}",
                f"Read a person's {column} where all rows that fit her agree, without choosing a row.",
                f"{share:.1%} of people",
                LINKAGE_STOP,
                share,
                details={"limit_name": None},
            )
        )
    return ReleaseAudit(findings, budget, limits, found.ledger, "an anonymized table")


def audit_synthetic(
    made: DataFrame | SyntheticRelease,
    original: DataFrame | None,
    limits: AuditLimits,
    budget: float,
    *,
    holdout: DataFrame | None = None,
    generator: Generator | None = None,
    person: str | None = None,
    seed: int = 0,
    watch: Callable[[str], None] | None = None,
) -> ReleaseAudit:
    """Attack a synthetic table, and its generator by shadow fits, with the limits of
    `synth.ReleaseLimits`."""
    from ...synth import ReleaseLimits, attack_with_shadows, evaluate
    from ...synth.release import SyntheticRelease

    if isinstance(made, SyntheticRelease):
        generator, made = made.generator, made.table
    if original is None or holdout is None:
        raise BadParameter(
            "audit: a synthetic table is attacked with the rows it was made from and rows that the "
            "generator has "
            "not seen. Give original= and holdout=."
        )
    start = time.monotonic()
    if watch is not None:
        watch("attacks on the synthetic table")
    table = None if generator is None else generator.table
    name = "synthetic" if generator is None else type(generator).__name__
    evaluation = evaluate(original, made, holdout, table=table, name=name, seed=seed, person=person)
    skipped: list[Finding] = []
    if generator is None:
        skipped.append(
            _skip("the generator is not given: it is fitted again for shadow fits. Give generator=.")
        )
    else:
        began = time.monotonic()
        _refit_once(generator, original, person)
        each = time.monotonic() - began
        left = budget - (time.monotonic() - start)
        shadows = min(MOST_SHADOWS, int(SHADOW_SHARE * left / max(each, 1e-3)) // 2 * 2)
        if shadows < FEWEST:
            skipped.append(
                _skip(f"the budget does not suffice for {FEWEST} fits of {each:.1f} s each. Raise it.")
            )
        else:
            if watch is not None:
                watch(f"membership by {shadows} shadow fits of {name}")
            options: dict[str, Any] = {} if person is None else {"person": person}
            evaluation.scores += attack_with_shadows(
                generator, original, made, holdout, shadows=shadows, seed=seed, **options
            )
    own = ReleaseLimits(membership=limits.membership)
    seconds = time.monotonic() - start
    findings = []
    for attack, row in own.judge(evaluation).iterrows():
        findings.append(
            Finding(
                READER,
                str(attack),
                "Attack the synthetic table as somebody who knows part of a person, or everybody who may "
                "be in it.",
                f"{row.value:.3f} (95%: {row.low:.3f} to {row.high:.3f})",
                SYNTHETIC_STOP,
                float(row.value),
                float(row.limit),
                row.verdict == "exceeded",
                seconds=seconds / max(1, len(evaluation.scores)),
                details={"limit_name": "membership" if "membership" in str(attack) else None},
            )
        )
    if not any(f.details["limit_name"] == "membership" for f in findings):
        why = "no attack on members has a finite result: too few rows, or columns that no two rows share."
        skipped.append(
            Finding(READER, "membership", "Not tried.", why, "", details={"limit_name": "membership"})
        )
    ledger = Ledger() if generator is None else generator.ledger
    return ReleaseAudit(findings + skipped, budget, limits, ledger, "a synthetic table")


def _refit_once(generator: Generator, frame: DataFrame, person: str | None) -> None:
    """Fit a copy, to know how long a fit takes."""
    from ...synth.shadows import _refit

    half = frame.iloc[: max(2, len(frame) // 2)].reset_index(drop=True)
    options: dict[str, Any] = {} if person is None else {"person": person}
    _refit(generator, 0).fit(half, **options)


def _skip(why: str) -> Finding:
    attack = "membership by shadow fits"
    return Finding(READER, attack, "Not tried.", why, "", applies=False, details={"limit_name": None})
