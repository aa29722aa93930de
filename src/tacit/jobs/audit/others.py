"""Audits of boosted trees, by their members, and of split networks, by what crosses their cuts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...audit import roc
from ...config.audit import AuditLimits
from ...data.identifiers import normal
from ...errors import BadData, BadParameter
from ...parties.ledger import Ledger
from .findings import LEAST, Finding, ReleaseAudit, untested_members
from .runs import claim_of

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from ...boost.model import Booster
    from ...boost.objectives import Objective
    from ...boost.result import BoostResult
    from ..vertical.boost_result import VerticalBoostResult
    from ..vertical.split import SplitResult
    from ..vertical.split_audit import Audit

CERTAIN = 1e-3  # as in release.py
TREES_STOP = (
    "Larger leaves (min_child_weight), fewer and shallower trees, subsampling; private trees (epsilon=…) "
    "bound "
    "every such attack."
)
SPLIT_STOP = "Guards at the cut (noise, quantization, distance correlation), or training on secret shares."


def audit_trees(
    run: BoostResult | Booster,
    original: DataFrame | None,
    holdout: DataFrame | None,
    label: str | None,
    limits: AuditLimits,
    budget: float,
) -> ReleaseAudit:
    """Tell training rows from others by the trees' confidence in their label."""
    from ...boost.result import BoostResult

    booster = run.booster if isinstance(run, BoostResult) else run
    label = label or (run.label if isinstance(run, BoostResult) else None)
    ledger = run.ledger if isinstance(run, BoostResult) else Ledger()
    if original is None or holdout is None or label is None:
        raise BadParameter(
            "audit: boosted trees are attacked with their training rows and other rows. Give original=, "
            "holdout= "
            "and label=, the column that they predict."
        )
    started = time.monotonic()
    inside, outside = (_confidence(booster, frame, label) for frame in (original, holdout))
    return _members(inside, outside, ledger, limits, budget, started, "boosted trees", "with the trees")


def audit_joint_trees(
    run: VerticalBoostResult,
    original: Mapping[str, DataFrame] | None,
    holdout: Mapping[str, DataFrame] | None,
    limits: AuditLimits,
    budget: float,
) -> ReleaseAudit:
    """Tell the people of the training by the scores that several parties' trees give them together."""
    if not isinstance(original, Mapping) or not isinstance(holdout, Mapping):
        raise BadParameter(
            "audit: trees of several parties are attacked with the rows of all of them: those of training, "
            "and others. Give original={party: table} and holdout={party: table}; on the command line "
            "--original PARTY=FILE and --holdout PARTY=FILE for each party."
        )
    started = time.monotonic()
    inside, outside = (_joint_confidence(run, tables) for tables in (original, holdout))
    kind = "boosted trees of several parties"
    return _members(inside, outside, run.ledger, limits, budget, started, kind, "with the score")


def _members(
    inside: np.ndarray,
    outside: np.ndarray,
    ledger: Ledger,
    limits: AuditLimits,
    budget: float,
    started: float,
    kind: str,
    means: str,
) -> ReleaseAudit:
    """Return the audit of trees whose members are told by a confidence in their label."""
    curve = roc.Roc(inside, outside)
    claim = claim_of(ledger, "row")
    works = curve.p_value < CERTAIN
    rate = curve.tpr_at(0.01)
    over = limits.membership is not None and works and curve.auc > limits.membership
    many = limits.members is not None and len(curve.outside) >= LEAST and works
    over = over or bool(many and rate > (limits.members or 0.0))
    allowed = (
        "" if claim is None else f"; the claimed ε allows at most {float(roc.ceiling(0.01, *claim)):.3f}"
    )
    allowed += untested_members(limits, len(curve.outside))
    who = "anyone who has the model" if means == "with the trees" else "whoever gets the scores"
    finding = Finding(
        who,
        "membership by loss",
        f"Tell whether a person's row was in the training set, {means} and the row.",
        f"AUC {curve.auc:.3f} on {len(curve.inside)} members and {len(curve.outside)} others (chance: p = "
        f"{curve.p_value:.2g}), {rate:.3f} of members at 1% false alarms{allowed}",
        TREES_STOP,
        curve.auc,
        limits.membership,
        over,
        seconds=time.monotonic() - started,
        details={"limit_name": "membership", "rates": {str(r): curve.tpr_at(r) for r in roc.FALSE_ALARMS}},
        drawing=roc.draw("Membership of a row: loss", {"loss": curve}, claim),
    )
    shadow = Finding(
        who,
        "membership by shadow models",
        "Not tried.",
        "trees are not trained again by this audit.",
        "",
        applies=False,
        details={"limit_name": None},
    )
    return ReleaseAudit([finding, shadow], budget, limits, ledger, kind)


def _confidence(booster: Booster, frame: DataFrame, label: str) -> np.ndarray:
    if label not in frame.columns:
        raise BadData(f"audit: there is no column {label!r}, the label, in the rows.")
    margin = booster.margins(booster.bins.encode(frame.drop(columns=label)))
    return _of_label(margin, frame[label], booster.labels, booster.objective)


def _joint_confidence(run: VerticalBoostResult, tables: Mapping[str, DataFrame]) -> np.ndarray:
    """Score the people whom all tables have, in the order of the label holder's."""
    holder = next(p for p in run.parts.values() if p.has_label)
    wanted = [p for p in run.parts.values() if p.bins.bins.features or p.has_label]
    for part in wanted:
        columns = list(tables[part.party].columns) if part.party in tables else None
        needed = [part.id, *([part.label] if part.has_label else [])]
        if columns is None or not set(needed) <= set(columns):
            lacking = "" if columns is None else f" with {' and '.join(map(repr, needed))}"
            raise BadData(
                f"audit: there is no table of {part.party!r}{lacking}. Give those of "
                f"{', '.join(p.party for p in wanted)}, with ids, and with the label where it was."
            )
    by_id = {}
    for part in wanted:
        ids = [normal(str(value)) for value in tables[part.party][part.id]]
        table = tables[part.party].set_axis(ids)
        by_id[part.party] = table[~table.index.duplicated()]
    shared = [i for i in by_id[holder.party].index if all(i in table.index for table in by_id.values())]
    if not shared:
        raise BadData("audit: the tables have no person in common. Check the id columns.")
    rows = {name: table.loc[shared].reset_index(drop=True) for name, table in by_id.items()}
    margin = np.asarray(run.predict(rows, margin=True))
    labels = rows[holder.party][holder.label]
    return _of_label(margin.reshape(len(shared), -1), labels, holder.labels, holder.objective)


def _of_label(margin: np.ndarray, given: Series, labels: Sequence[str], objective: Objective) -> np.ndarray:
    """[rows]: the margin of the true class over all others; of a regression, minus the absolute residual."""
    if not labels:
        return np.asarray(-np.abs(objective.predict(margin) - given.to_numpy(float)))
    place = {str(v): i for i, v in enumerate(labels)}
    y = np.array([place.get(str(v), -1) for v in given])
    if (y < 0).any():
        raise BadData(
            f"audit: the label has {str(given.iloc[int((y < 0).argmax())])!r}, which the trees do "
            f"not know; they know {', '.join(place)}."
        )
    if margin.shape[1] == 1:
        return np.where(y == 1, margin[:, 0], -margin[:, 0])
    rows = np.arange(len(y))
    others = margin.copy()
    others[rows, y] = -np.inf
    top = others.max(1, keepdims=True)
    return np.asarray(margin[rows, y] - (top[:, 0] + np.log(np.exp(others - top).sum(1))))


def audit_split(
    run: SplitResult,
    rows: Mapping[str, Any] | None,
    y: Any,
    own: Mapping[str, Any] | None,
    limits: AuditLimits,
    budget: float,
    seed: int,
) -> ReleaseAudit:
    """Attack what crosses the cuts of a split network."""
    if rows is None:
        raise BadParameter(
            "audit: a split network is attacked with rows of all parties. Give rows={party: rows}, "
            "y=labels and, to "
            "rebuild rows, own={party: rows that the attacker has}."
        )
    started = time.monotonic()
    found = run.audit(rows, y, own, seed=seed)
    seconds = time.monotonic() - started
    findings = []
    for who, attacks in found.labels.items():
        name = max(attacks, key=lambda k: attacks[k])
        findings.append(
            Finding(
                f"{who}, a party with columns",
                "labels from gradients",
                "Read the label of each row from the gradients that it receives.",
                ", ".join(f"{k}: AUC {v:.3f}" for k, v in attacks.items()),
                SPLIT_STOP,
                attacks[name],
                limits.labels,
                limits.labels is not None and attacks[name] > limits.labels,
                seconds=seconds,
                details={"limit_name": "labels"},
            )
        )
    for who, measures in found.measures.items():
        findings.append(
            Finding(
                "the party with the labels",
                f"columns of {who} in its activations",
                "Learn about rows from the activations it receives.",
                ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in measures.items()),
                SPLIT_STOP,
                measures.get("distance_correlation"),
                details={"limit_name": None},
            )
        )
    for who, r in found.rebuilt.items():
        share = float(r.recognized)
        findings.append(
            Finding(
                "the party with the labels",
                f"rebuilding of rows of {who}",
                "Rebuild rows from activations, with a decoder trained on rows of its own.",
                f"{max(r.variance, 0):.0%} of the variance of {r.rows} rows; {r.recognized:.0%} of the "
                f"rebuilt rows "
                f"lie nearest to their own original (chance: {1 / r.rows:.1%})",
                SPLIT_STOP,
                share,
                limits.rebuilt,
                limits.rebuilt is not None and share > limits.rebuilt,
                details={"limit_name": "rebuilt"},
            )
        )
    findings += _untried(run, found, y)
    return ReleaseAudit(findings, budget, limits, run.ledger, "a split network")


def _untried(run: SplitResult, found: Audit, y: Any) -> list[Finding]:
    """The attacks that were not run, for want of what they take: they test no limit."""
    findings = []
    if not found.labels:
        classes = next(iter(run.shares.values())).terms.loss != "mse"
        why = "y= was not given." if y is None and classes else "there are no classes whose gradients differ."
        findings.append(
            Finding(
                "a party with columns",
                "labels from gradients",
                "Not tried.",
                why,
                "",
                applies=classes,
                details={"limit_name": "labels"},
            )
        )
    for who in found.measures:
        if who not in found.rebuilt:
            why = "the attacker's own rows were not given (own={party: rows})."
            findings.append(
                Finding(
                    "the party with the labels",
                    f"rebuilding of rows of {who}",
                    "Not tried.",
                    why,
                    "",
                    details={"limit_name": "rebuilt"},
                )
            )
    return findings
