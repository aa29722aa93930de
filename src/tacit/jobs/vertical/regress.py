"""`tacit.regress`: linear, ridge or logistic regression over columns held by different parties, on secret
shares.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...errors import BadData
from ...mpc import newton, regression, scoring
from ...parameters import bad
from ...parties.ledger import Ledger
from ...results import JobResult
from ...runtimes.choose import SyncRuntime, choose_runtime
from .split_layout import SplitRows, arrange_rows
from .split_parts import measure_outputs

HELPER = "helper"
WITHDRAWN = (
    "The encrypted mode was withdrawn: it revealed to the label holder scores that span the other party's "
    "columns, and to a party with columns gradients that "
    "determine the training labels. secure='shared' reveals neither, and supports ridge (l2)."
)


@dataclass
class Regression(JobResult):
    """The result of `tacit.regress`.

    `weights`: each party's own coefficients, in the order and the units of its columns; the intercept and the
    metrics belong to the label holder. They are in one object only because this is one process: a deployed
    party has its own part.
    """

    title = "Regression over columns of several parties"
    facts = ("weights", "intercept", "columns", "metrics", "converged", "notes")

    weights: dict[str, Tensor]
    intercept: float
    metrics: dict[str, float]
    ledger: Ledger
    notes: tuple[str, ...] = ()
    columns: dict[str, tuple[str, ...]] = field(repr=False, default_factory=dict)
    converged: bool | None = None  # None: not checked
    family: str = "logistic"

    @property
    def value(self) -> dict[str, Tensor]:
        return self.weights

    def predict(self, columns: Mapping[str, Any]) -> Tensor:
        """Return the probability of class 1, or the number, for rows of all parties' columns.

        `columns` are {party: tensor, array or data frame}, encoded as in training; of a data frame, the
        columns of `self.columns`. This adds the parties' scores in one place: the label holder of a real
        federation would learn the others' score of each row.
        """
        if not isinstance(columns, Mapping) or set(columns) != set(self.weights):
            names = list(columns) if isinstance(columns, Mapping) else type(columns).__name__
            raise bad("predict", "columns", names, f"the columns of {list(self.weights)} by party")
        parts = {name: self._read(name, columns[name]) for name in self.weights}
        if len({len(x) for x in parts.values()}) > 1:
            sizes = {name: len(x) for name, x in parts.items()}
            raise bad("predict", "the number of rows", sizes, "the same at all parties")
        score = sum(x @ self.weights[name] for name, x in parts.items()) + self.intercept
        assert isinstance(score, Tensor)
        return score if self.family == "linear" else torch.sigmoid(score)

    def _read(self, name: str, x: Any) -> Tensor:
        known = getattr(x, "columns", None)
        if known is not None:
            missing = [c for c in self.columns.get(name, ()) if c not in known]
            if missing or name not in self.columns:
                raise BadData(
                    f"predict: the table of {name!r} has no column {', '.join(map(repr, missing))}."
                )
            x = x[list(self.columns[name])].to_numpy(dtype="float64")
        x = torch.as_tensor(x).double()
        x = x.reshape(len(x), -1)
        if x.shape[1] != len(self.weights[name]):
            raise bad(
                "predict",
                f"the columns of {name!r}",
                x.shape[1],
                f"{len(self.weights[name])}, as in training",
            )
        return x


def regress(
    parties: Any,
    labels: Any = None,
    *,
    family: str | None = None,
    secure: str = "shared",
    epochs: int = 100,
    batch_size: int | None = None,
    lr: float | None = None,
    momentum: float = 0.8,
    solver: str | None = None,
    l2: float = 0.0,
    test: Any = None,
    test_fraction: float = 0.2,
    test_scores: bool = False,
    seed: int = 0,
    runtime: SyncRuntime | str | None = None,
) -> Regression:
    """Fit one regression over all parties' columns.

    `parties` and `labels` are as for `tacit.splitnn`, and are aligned by private set intersection if needed.
    `family`: "logistic" (two classes) or "linear" (numbers). Everything is computed on secret shares, with
    randomness from a helper. Each party learns its own coefficients; the label holder also learns the
    intercept and the test metrics. `test_scores=True` also opens the score of each test row to the label
    holder; `test_fraction=0` opens nothing about test rows. Columns are standardized by their owners, and
    coefficients are in the columns' own units.

    `l2` is the ridge on standardized columns: 1/(n·C) of scikit-learn's LogisticRegression, alpha/n of its
    Ridge. `solver`: "newton" (the default) uses the inverse of XᵀX on shares. It solves the normal equations
    of a linear model in at most 12 steps, and a logistic model in `epochs` steps with `momentum`; `converged`
    and the notes say whether it did. "descent" is gradient descent with step size `lr` (None: the largest
    that is safe for any data) over batches (`batch_size`; None: all rows), the default if one of these is
    given; its convergence is not checked.
    """
    if secure != "shared":
        raise bad("regress", "secure", secure, "'shared'", WITHDRAWN if secure == "encrypted" else "")
    ledger = Ledger()
    rows = arrange_rows(parties, labels, "vertical", test, test_fraction, seed, runtime, ledger)
    family = family or ("linear" if rows.classes is None else "logistic")
    if (family == "linear") != (rows.classes is None) or (family == "logistic" and rows.classes != 2):
        raise bad(
            "regress",
            "family",
            family,
            "'logistic' for two classes, 'linear' for numbers",
            f"These labels are {'numbers' if rows.classes is None else f'of {rows.classes} classes'}.",
        )
    if solver is None:
        solver = "newton" if lr is None and batch_size is None else "descent"
    terms = _terms(
        rows,
        {
            "solver": solver,
            "family": family,
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "momentum": momentum,
            "l2": l2,
            "test_scores": test_scores,
        },
    )
    programs = _programs(rows, terms)
    results = choose_runtime("regress", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    holder = results[terms.label_at]
    notes = list(rows.notes)
    converged = None
    if "convergence" in holder:
        found = newton.Convergence(**holder["convergence"])
        converged = found.is_converged
        notes += _convergence_notes(found, family)
    else:
        notes.append("Convergence was not checked (solver='descent').")
    metrics = _metrics(terms, rows.test_y[0], holder) if terms.tests else {}
    if family == "logistic" and not test_scores and terms.tests > scoring.AUC_ROWS:
        notes.append(
            "The AUC was not computed: on shares it compares all pairs of test rows, and there are "
            f"{terms.tests} test rows, more than "
            f"{scoring.AUC_ROWS}. test_scores=True opens the score of each test row to the label holder."
        )
    return Regression(
        {who: results[who]["weights"] for who in rows.x[0]},
        holder["intercept"],
        metrics,
        ledger,
        tuple(notes),
        rows.columns,
        converged,
        family,
    )


def _convergence_notes(found: newton.Convergence, family: str) -> list[str]:
    collinear = "Columns of different parties are nearly collinear: their own coefficients are not determined"
    if not found.is_converged:
        return [
            "NOT CONVERGED: one more step would still change the coefficients; do not interpret them. "
            + (f"{collinear}. " if found.is_collinear else "")
            + (
                "Use l2, or leave out columns that others can predict."
                if family == "linear"
                else "Raise epochs, use l2, or leave out columns that separate the classes."
            )
        ]
    if found.is_collinear:
        return [f"{collinear}, only their effect together. Use l2, or leave one out."]
    return []


def _terms(rows: SplitRows, settings: dict[str, Any]) -> regression.RegressionTerms:
    """The settings, checked as far as possible before the parties start."""
    x, holder = rows.x[0], rows.label_at[0]
    names = tuple(dict.fromkeys((*x, holder)))
    if len(names) < 2 or HELPER in names:
        raise bad(
            "regress",
            "parties",
            list(names),
            f"at least two, and none called {HELPER!r}, which deals the randomness",
        )
    terms = regression.RegressionTerms(names, holder, HELPER, len(rows.y[0]), len(rows.test_y[0]), **settings)
    regression.check_terms(terms)
    widths = {who: math.prod(v.shape[1:]) for who, v in x.items()}
    for who, columns in widths.items():
        regression.check_columns(terms, who, columns)
    regression.step_size(terms, sum(w > 0 for w in widths.values()))
    return terms


def _programs(rows: SplitRows, terms: regression.RegressionTerms) -> dict[str, Any]:
    settings = {**asdict(terms), "names": list(terms.names)}  # plain types, for another process

    def flat(x: dict[str, Tensor], who: str, count: int) -> Tensor:
        return (
            x[who].reshape(count, math.prod(x[who].shape[1:])).double()
            if who in x
            else torch.zeros(count, 0, dtype=torch.float64)
        )

    programs: dict[str, Any] = {terms.helper: functools.partial(regression.helper, terms=settings)}
    for who in terms.names:
        y, test_y = (rows.y[0], rows.test_y[0]) if who == terms.label_at else (None, None)
        programs[who] = functools.partial(
            regression.holder,
            terms=settings,
            x=flat(rows.x[0], who, terms.rows),
            y=y,
            test_x=flat(rows.test_x[0], who, terms.tests),
            test_y=test_y,
        )
    return programs


def _metrics(terms: regression.RegressionTerms, y: Tensor, holder: dict[str, Any]) -> dict[str, float]:
    """The test metrics, from the values that were opened to the label holder."""
    mean, std = holder["label"]
    if not terms.test_scores:
        return scoring.compute_metrics(terms.family, holder["opened"], y, std)
    scores = (holder["opened"] * std + mean)[:, None]
    return (
        measure_outputs("mse", None, scores, y.double())
        if terms.family == "linear"
        else measure_outputs("bce", 2, scores, y)
    )
