"""`tacit.audit.infer_attribute`: guess a hidden column of the training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...audit import attributes, chance, scores
from ...data.federation import Federation, Rows, check_one_label
from ...data.inputs import concatenate
from ...errors import BadData, BadParameter
from ...parameters import bad, nearest, refuse
from ...parties.ledger import Ledger
from ...report.svg import Figure, bars
from ...results import JobResult, Result
from .runs import claim_of, open_run, plan_of
from .shadows import outputs

FEWEST = 20  # members and non-members


@dataclass
class AttributeInference(JobResult):
    """How often a hidden column of members is guessed, beside non-members and guesses without the model."""

    title: ClassVar[str] = "Attribute inference"
    facts: ClassVar[tuple[str, ...]] = (
        *("column", "values", "members", "accuracy", "accuracy_on_others", "without_model"),
        *("advantage", "p_value", "claim", "notes"),
    )

    column: str
    values: int  # that are distinguished
    right: tuple[int, int]  # of members, of non-members
    tried: tuple[int, int]
    without_model: float  # the accuracy, on members, of the most frequent value
    claim: tuple[float, float] | None
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        return self.advantage

    @property
    def members(self) -> int:
        return self.tried[0]

    @property
    def accuracy(self) -> float:
        """The share of members whose hidden value is guessed."""
        return self.right[0] / self.tried[0]

    @property
    def accuracy_on_others(self) -> float:
        """The same of non-members: what the model tells of anyone."""
        return self.right[1] / self.tried[1]

    @property
    def advantage(self) -> float:
        """What taking part costs a member: accuracy − accuracy on others."""
        return self.accuracy - self.accuracy_on_others

    @property
    def p_value(self) -> float:
        """P(at least this advantage | members are guessed as often as others)."""
        return chance.more_often(self.right[0], self.tried[0], self.right[1], self.tried[1])

    def plot(self) -> Figure:
        """Accuracy on members, on others, and without the model."""
        names = ("training rows", "other rows", "most frequent value")
        shares = (self.accuracy, self.accuracy_on_others, self.without_model)
        return bars(
            f"Guesses of {self.column}", names, shares, lambda v: f"{v:.1%}", columns=("rows", "guessed")
        )

    def _page(self) -> str:
        from ...report.layout import Section, figure
        from ...report.result import render

        return render(self.title, self.to_dict(), [Section("guesses", "Guesses", figure(self.plot()))])


def infer_attribute(
    run: Result | str | Path,
    column: str | int | Sequence[int],
    *,
    values: int = 16,
    most: int = 1000,
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> AttributeInference:
    """Guess a hidden column of rows from their other columns, their label, and the run's model.

    `column` is a name (of a table's column, all features of its categories), a feature's number, or several
    numbers that are hidden together. The attacker tries each of the column's values (at most `values`;
    quantiles, if there are more) and takes the one of maximal P(label | row with it) · P(value), with the
    frequencies of the run's other rows. At most `most` training rows and as many held-out and test rows are
    attacked. `watch(done, all)` follows members, then others.

    The result has `.accuracy` on members, `.accuracy_on_others`, `.advantage` (their difference, which taking
    part costs), and `.p_value`. Differential privacy for rows bounds the advantage, not the accuracy.
    """
    refuse(
        *(
            (
                not isinstance(n, int) or isinstance(n, bool) or n < least,
                bad("infer_attribute", name, n, f"a whole number of at least {least}"),
            )
            for name, n, least in (("values", values, 2), ("most", most, FEWEST))
        )
    )
    opened = open_run(run, "infer_attribute")
    p = plan_of(opened)
    check_one_label("infer_attribute", p.fed)
    fed, rng = p.fed, np.random.default_rng(seed)
    name, hidden = _features(fed, column)
    inside = fed.rows.take(fed.train.index)
    held = fed.rows.take(fed.held.index)
    outside = Rows(concatenate([held.x, fed.test.x]), torch.cat([held.y, fed.test.y]))
    n = min(len(inside.y), len(outside.y), most)
    if n < FEWEST:
        raise BadData(
            f"infer_attribute: the run has {len(inside.y)} training rows and {len(outside.y)} others; at "
            f"least {FEWEST} of each are attacked. Split it with held_fraction=0.1."
        )
    public = outside.matrix("infer_attribute").flatten(1)
    known = attributes.common_values(public, hidden, values)
    if len(known) < 2:
        raise BadData(f"infer_attribute: column {name} has one value only.")
    prior = torch.bincount(attributes.nearest_value(public, hidden, known), minlength=len(known)).double()
    prior = (prior + 1) / (prior + 1).sum()
    shape = tuple(fed.rows.x.shape[1:])
    spread = _spread(opened, outside) if fed.classes is None else 1.0
    right, usual = [], 0.0
    for k, rows in enumerate((inside, outside)):
        some = rows.take(torch.from_numpy(rng.permutation(len(rows.y))[:n]))
        x, y = some.matrix("infer_attribute").flatten(1), some.y

        def score(tried: Tensor, y: Tensor = y) -> Tensor:
            out = outputs(opened.model, tried.view(-1, *shape))
            if fed.classes is None:
                return -(scores.residual(out, y) ** 2) / (2 * spread**2)
            return out.double().log_softmax(-1).gather(-1, y[:, None])[:, 0]

        truth = attributes.nearest_value(x, hidden, known)
        guessed = attributes.guess_values(score, x, hidden, known, prior)
        right.append(int((guessed == truth).sum()))
        if not k:
            usual = float((truth == int(prior.argmax())).double().mean())
        if watch is not None:
            watch(k + 1, 2)
    return AttributeInference(
        name, len(known), (right[0], right[1]), (n, n), usual, claim_of(opened.ledger, "row"), opened.ledger
    )


def _spread(run: Result, outside: Rows) -> float:
    """The deviation of a regression's residuals, on rows that were not trained on."""
    out = outputs(run.model, outside.matrix("infer_attribute"))
    return float(scores.residual(out, outside.y).square().mean().sqrt().clamp(min=1e-9))


def _features(fed: Federation, column: Any) -> tuple[str, Tensor]:
    """The column's name and its features."""
    width = int(np.prod(fed.rows.x.shape[1:]))
    if not fed.rows.matrix("infer_attribute").is_floating_point():
        raise BadParameter("infer_attribute: rows are tokens, which have no columns.")
    if isinstance(column, str):
        own = [
            i
            for i, c in enumerate(fed.columns)
            if c in (column, f"{column} missing") or c.startswith(f"{column}=")
        ]
        if not own:
            names = sorted({c.split("=")[0] for c in fed.columns})
            raise bad(
                "infer_attribute",
                "column",
                column,
                "one of " + ", ".join(names[:30]) if names else "a feature's number: the rows have no names",
                nearest(column, names),
            )
        return column, torch.tensor(own)
    several = [column] if isinstance(column, int) and not isinstance(column, bool) else column
    fine = isinstance(several, Sequence) and len(several) > 0
    if not fine or not all(
        isinstance(i, int) and not isinstance(i, bool) and 0 <= i < width for i in several
    ):
        raise bad("infer_attribute", "column", column, f"a name, or numbers from 0 to {width - 1}")
    named = [fed.columns[i] if fed.columns else f"feature {i}" for i in several]
    return ", ".join(named), torch.tensor(list(dict.fromkeys(several)))
