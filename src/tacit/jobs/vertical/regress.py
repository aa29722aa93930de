"""`tacit.regress`: regression over columns held by different parties, on secret shares."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ...errors import BadData
from ...mpc import glm, glm_terms, newton, regression, scoring
from ...parameters import bad
from ...parties.ledger import Ledger
from ...runtimes.choose import SyncRuntime, choose_runtime
from .regress_design import Design
from .regress_parts import COLLINEAR, make_part
from .regress_result import Regression, from_parts
from .regress_rows import SYNONYMS, LabelColumns, arrange
from .split_layout import SplitRows, arrange_rows
from .split_parts import measure_outputs

HELPER = "helper"
SOLVERS = ("irls", "newton", "descent")
WITHDRAWN = (
    "The encrypted mode was withdrawn: it revealed to the label holder scores that span the other party's "
    "columns, and to a party with columns gradients that "
    "determine the training labels. secure='shared' reveals neither, and supports ridge (l2)."
)


def regress(
    parties: Any,
    labels: Any = None,
    *,
    family: str | None = None,
    on: str | None = None,
    label: str | None = None,
    time: str | None = None,
    event: str | None = None,
    offset: Any = None,
    weights: Any = None,
    ties: str = "efron",
    steps: int | None = None,
    publish: bool = False,
    secure: str = "shared",
    solver: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    l2: float = 0.0,
    test: Any = None,
    test_fraction: float | None = None,
    test_scores: bool = False,
    seed: int = 0,
    runtime: SyncRuntime | str | None = None,
) -> Regression:
    """Fit one regression over all parties' columns, on secret shares, with standard errors.

    `parties`: {party: DataFrame} with the id column `on` (None: the same rows in the same order) and the
    label's column `label`, or `time` and `event`, at one of them; tables of `data.from_frame` or a
    `Vertical`, as for `tacit.splitnn`; or arrays with `labels={holder: y}` (Cox: y has the columns time and
    event). Tables are aligned by private set intersection; rows with missing values are left out.

    `family`: "gaussian", "binomial", "multinomial", "poisson" or "cox" (`ties`: "efron" or "breslow").
    `offset` (added to the score, like log(exposure); not multinomial) and `weights` (of the variance, as in
    statsmodels' var_weights; of Cox as lifelines' weights_col) name columns of the label's table, or are
    arrays if the label is one. They stay with the label holder. `.metrics` has the likelihood, deviance, AIC,
    BIC, pseudo-R² and the likelihood-ratio test, to 1e-7 per row.
    `.summary()` equals the pooled fit of statsmodels to 3e-5 standard errors, typically 1e-6. Randomness
    comes from a helper. Each party learns its own coefficients with their covariance, the label holder also
    the intercept; with `publish` every party learns all estimates. `steps` of Newton's method; `converged`
    says whether they were enough.

    With `l2`, `epochs`, `momentum`, test rows (`test`, `test_fraction`, `test_scores`), `lr` or `batch_size`
    the solver is "newton" or "descent": "gaussian" and "binomial" only, with 16 fractional bits, test metrics
    and no standard errors. `l2` is the ridge on standardized columns: 1/(n·C) of scikit-learn's
    LogisticRegression, alpha/n of its Ridge. "newton" uses the inverse of XᵀX on shares: at most 12 steps of
    a linear model, `epochs` (100) steps with `momentum` (0.8) of a logistic one. "descent" is gradient
    descent with step size `lr` (None: the largest that is safe for any data) over batches (`batch_size`;
    None: all rows); its convergence is not checked. These two hold out `test_fraction` (0.2) of the rows;
    `test_scores=True` also opens the score of each test row to the label holder.
    """
    if secure != "shared":
        raise bad("regress", "secure", secure, "'shared'", WITHDRAWN if secure == "encrypted" else "")
    if solver is None:
        inference = epochs is None and momentum is None and not l2 and test is None and not test_scores
        inference = inference and not test_fraction
        descent = lr is not None or batch_size is not None
        solver = "descent" if descent else "irls" if inference else "newton"
    if solver not in SOLVERS:
        raise bad("regress", "solver", solver, f"one of {', '.join(map(repr, SOLVERS))}")
    columns = LabelColumns(label, time, event, offset, weights)
    if solver == "irls":
        given = {"l2": l2, "lr": lr, "batch_size": batch_size, "epochs": epochs, "momentum": momentum}
        given |= {"test": test, "test_fraction": test_fraction, "test_scores": test_scores}
        for name, value in given.items():
            if value is not None and value is not False and value != 0:
                raise bad("regress", name, value, "left out with solver='irls'")
        return fit_with_errors(parties, labels, family, on, columns, ties, steps, publish, runtime)
    if columns.names or on is not None or offset is not None or weights is not None:
        raise bad(
            "regress",
            "label, offset and weights",
            columns.names,
            f"left out with solver={solver!r}",
            "It takes tables of data.from_frame(…, id=…, label=…), or arrays with labels.",
        )
    return fit_with_metrics(
        parties,
        labels,
        family,
        {
            "solver": solver,
            "epochs": 100 if epochs is None else epochs,
            "batch_size": batch_size,
            "lr": lr,
            "momentum": 0.8 if momentum is None else momentum,
            "l2": l2,
            "test_scores": test_scores,
        },
        test,
        0.2 if test_fraction is None else test_fraction,
        seed,
        runtime,
    )


def fit_with_errors(
    parties: Any,
    labels: Any,
    family: str | None,
    on: str | None,
    columns: LabelColumns,
    ties: str,
    steps: int | None,
    publish: bool,
    runtime: Any,
) -> Regression:
    """Newton's method with the inverse Hessian on shares: `mpc/glm.py`."""
    ledger = Ledger()
    rows = arrange(parties, labels, family, on, columns, runtime, ledger)
    names = tuple(dict.fromkeys((*rows.x, rows.label_at)))
    terms = glm_terms.GlmTerms(
        names, rows.label_at, HELPER, len(rows.y), rows.family, ties, steps, publish,
        rows.offset is not None, rows.weights is not None,
    )  # fmt: skip
    glm_terms.check_terms(terms)
    outcomes = len(rows.labels) - 1 if rows.family == "multinomial" else 1
    # checked here first, so that the error is raised as it is; each party's program checks again
    for who, x in rows.x.items():
        glm_terms.Whitening.of(who, x, rows.designs[who].terms)
    label = glm_terms.encode_label(terms, rows.y, len(rows.labels) or None, rows.offset, rows.weights)
    glm_terms.check_widths(terms, label.facts, {who: x.shape[1] for who, x in rows.x.items()}, outcomes)
    settings = {**asdict(terms), "names": list(names)}  # plain types, for another process
    programs: dict[str, Any] = {HELPER: functools.partial(glm.helper, terms=settings)}
    for who in names:
        is_holder = who == rows.label_at
        programs[who] = functools.partial(
            glm.holder,
            terms=settings,
            x=rows.x.get(who, torch.zeros(len(rows.y), 0, dtype=torch.float64)),
            y=rows.y if is_holder else None,
            classes=(len(rows.labels) or None) if is_holder else None,
            columns=list(rows.designs[who].terms) if who in rows.designs else [],
            offset=rows.offset if is_holder else None,
            weights=rows.weights if is_holder else None,
        )
    results = choose_runtime("regress", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    if results[rows.label_at]["collinear"]:
        raise BadData(COLLINEAR)
    parts = {
        who: make_part(
            results[who],
            who,
            rows.family,
            names,
            rows.label_at,
            len(rows.y),
            rows.designs.get(who, Design((), ())),
            rows.labels,
            offset=columns.offset if isinstance(columns.offset, str) and who == rows.label_at else "",
        )
        for who in names
    }
    return from_parts(parts, ledger, rows.notes)


def fit_with_metrics(
    parties: Any,
    labels: Any,
    family: str | None,
    settings: dict[str, Any],
    test: Any,
    test_fraction: float,
    seed: int,
    runtime: Any,
) -> Regression:
    """The solvers "newton" and "descent", with metrics of test rows: `mpc/regression.py`."""
    ledger = Ledger()
    rows = arrange_rows(parties, labels, "vertical", test, test_fraction, seed, runtime, ledger)
    family = {v: k for k, v in SYNONYMS.items()}.get(str(family), family)
    family = family or ("linear" if rows.classes is None else "logistic")
    if (family == "linear") != (rows.classes is None) or (family == "logistic" and rows.classes != 2):
        raise bad(
            "regress",
            "family",
            family,
            "'logistic' for two classes, 'linear' for numbers",
            f"These labels are {'numbers' if rows.classes is None else f'of {rows.classes} classes'}.",
        )
    terms = _terms(rows, {**settings, "family": family})
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
    if family == "logistic" and not terms.test_scores and terms.tests > scoring.AUC_ROWS:
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
        SYNONYMS[family],
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
