"""Linear, ridge and logistic regression over columns held by different parties, on secret shares.

    holder i of n (columns X_i; one has the label y)                                helper
      |--- ColumnCount(columns, settings) ------------------------------------------->|   and to the others
      |<-- TapeKey, Corrections -------------------------------------------------------|   `dealer.py`
      |<-- MaskedFactors, MaskedProducts, MaskedValues, MaskedBits, MaskedSigns -->|   holders: uniform words
      |--- CoefficientShare(my share of w_j) --->| holder j           once, at the end: its own coefficients
      |--- StepShare --------------------------->| label holder       once: has it converged (`newton.py`)
      |--- MetricShare ------------------------->| label holder       once: sums over test rows (`scoring.py`)

Opened, and to whom:

| value | receiver | how many numbers |
|---|---|---|
| a party's own coefficients, 16 fractional bits | that party | its columns, once per run |
| the intercept | label holder | 1 |
| sums over the test rows, from which the metrics follow | label holder | 2 (linear) or 3 to 4 (logistic) |
| the score of each test row, with `test_scores` only | label holder | 1 per test row |
| one more step's size, tr H⁻¹, the mean of σ′ (`newton.py`) | label holder | 2 (linear) or 3 (logistic) |
| the number of columns, and the settings | everybody | 1 per party |
| the exponent of the label's standard deviation (linear) | everybody | 1 |

Scores, residuals, gradients and the coefficients of earlier steps stay shared: nothing is opened per step,
and the number of opened values does not depend on the number of steps. This holds if all parties are
semi-honest and the helper colludes with no other party.

Each holder standardizes and decorrelates its own columns (`Basis`), so that few steps are taken, and
converts its coefficients back to the columns' units. The columns are not distributed as shares: (0 … X_i … 0)
is holder i's share of the matrix, and only masked values are sent. Fixed point with 16 bits; coefficients and
momentum carry 28.

After Mohassel, Zhang: SecureML, IEEE S&P 2017, Section 4.1, with σ itself, momentum (Polyak, 1964) and the
matrix masked once (`beaver.mask_shared`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parameters import bad, check, choice, flag, real, whole
from ..parties.message import Message
from ..parties.party import Party
from . import functions, newton, scoring
from .beaver import MATMUL, MUL, MaskedFactor, mask_shared
from .context import RingContext
from .dealer import DryRun, Stock, dealer, plan
from .ring import FixedPoint

# fractional bits of coefficients and momentum between steps: rounding errors of 16 bits would accumulate
STATE = 28
# p coefficients are p equations about the other parties' data; with few rows they determine labels
ROWS_PER_COLUMN = 10
# relative to the largest eigenvalue: directions with less variance are lost at 16 fractional bits
COLLINEAR = 1e-6
FAR_OUT = 4096.0  # standard deviations along one direction: scores of test rows must stay below 2^16
ASSUMES = (
    "SEMI-HONEST: the secrets hold if every party follows its program and the helper colludes with no other "
    "party; a party that deviates can corrupt the "
    "result unnoticed. Opened: each party's own final coefficients, once; the intercept, the test "
    "metrics and whether the fit converged to the label holder."
)


class ColumnCount(Message, reveals="how many columns the sender has, and the settings of the run"):
    count: int
    settings: str


class LabelExponent(
    Message, reveals="the label's standard deviation over the training rows, rounded up to a power of two"
):
    exponent: int


class StepShare(
    Message,
    reveals="a share of the size of one more step at the end, which says whether the fit converged, of "
    "the trace of the inverse Hessian and, for a logistic model, the mean of σ′: 2 or 3 numbers",
):
    values: list[Tensor]


class CoefficientShare(
    Message,
    reveals="a share of the receiver's own coefficients (the label holder: and of the intercept): with the "
    "others', these numbers",
):
    values: list[Tensor]


@dataclass(frozen=True)
class RegressionTerms:
    """The settings that all parties agree on."""

    names: tuple[str, ...]
    label_at: str
    helper: str
    rows: int = whole(least=2, doc="training rows")
    tests: int = whole(0, least=0, doc="test rows")
    family: str = choice("logistic", ("logistic", "linear"), doc="logistic: classes 0 and 1; linear: numbers")
    epochs: int = whole(100, least=1, doc="passes over the rows")
    batch_size: int | None = whole(None, least=8, none=True, doc="rows per step; None: all rows")
    lr: float | None = real(None, above=0, none=True, doc="step size; None: 1/L, see `step_size`")
    momentum: float = real(0.8, least=0, below=1, doc="of heavy-ball gradient descent")
    l2: float = real(
        0.0,
        least=0,
        most=64,
        doc="ridge on the coefficients of standardized columns, not on the intercept; 1/(nC) or α/n in "
        "scikit-learn",
    )
    solver: str = choice(
        "descent",
        ("newton", "descent"),
        doc="newton: all rows in every step, with the inverse of XᵀX, exact for a linear model; descent: "
        "gradient descent",
    )
    test_scores: bool = flag(False, doc="open the score of each test row to the label holder")

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> RegressionTerms:
        return cls(**{**table, "names": tuple(table["names"])})

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def batches(self) -> int:
        return 1 if self.batch_size is None else math.ceil(self.rows / self.batch_size)


def step_size(terms: RegressionTerms, holders: int) -> float:
    """η. In every holder's basis the curvature of its own block is at most 1, so that of all K blocks is at
    most K for any data, and with η ≤ 2/K full-batch descent cannot diverge.
    """
    if terms.lr is None:
        return 1 / max(holders, 1)
    if terms.lr > 2 / max(holders, 1):
        raise bad(
            "regress",
            "lr",
            terms.lr,
            f"at most {2 / max(holders, 1):.4g} where {holders} parties have columns",
            "A larger one can diverge, which is invisible on shares. Leave lr out.",
        )
    return terms.lr


@dataclass(frozen=True)
class Basis:
    """One holder's columns for gradient descent: standardized, uncorrelated, with curvature 1 including the
    ridge.

    Z = (X − mean) / std;  ZᵀZ/n = VΛVᵀ;  the matrix is ZT with T = V(cΛ + λ)^(−1/2), c = 1 (linear) or 1/4,
    the largest σ' (logistic).
    Coefficients u of ZT are Tu of Z, and the ridge λ|Tu|² is Σ λ/(cΛ + λ) · u².
    """

    mean: Tensor
    std: Tensor
    transform: Tensor  # T
    ridge: Tensor  # λ/(cΛ + λ)

    @classmethod
    def of(cls, terms: RegressionTerms, x: Tensor) -> Basis:
        x = x.double()
        if not x.shape[1]:
            return cls(x[0], x[0], x[:0], x[0])
        std, mean = torch.std_mean(x, 0, correction=0)
        std = torch.where(std > 0, std, torch.ones_like(std))  # a constant column and its coefficient are 0
        z = (x - mean) / std
        values, vectors = torch.linalg.eigh(z.T @ z / len(z))
        root = (values.clamp(min=0) * curvature(terms.family) + terms.l2).rsqrt()
        root = torch.where(values > COLLINEAR * values.max(), root, torch.zeros_like(root))
        return cls(mean, std, vectors * root, terms.l2 * root**2)

    def apply(self, x: Tensor) -> Tensor:
        return (x.double() - self.mean) / self.std @ self.transform

    def offset(self) -> Tensor:
        """(mean / std) T, which is subtracted from the intercept."""
        return self.mean / self.std @ self.transform

    def coefficients(self, u: Tensor) -> Tensor:
        return self.transform @ u / self.std


def curvature(family: str) -> float:
    return 1.0 if family == "linear" else 0.25


def check_terms(terms: RegressionTerms) -> None:
    """Refuse settings out of range, and too few test rows. Every party checks its own copy."""
    check(terms, "regress")
    if 0 < terms.tests < scoring.MIN_TESTS and not terms.test_scores:
        raise bad(
            "regress",
            "the number of test rows",
            terms.tests,
            f"0 or at least {scoring.MIN_TESTS}",
            "Metrics of fewer rows would reveal "
            "scores. Hold out more rows, none (test_fraction=0), or use test_scores=True.",
        )
    if terms.solver == "newton" and (terms.lr is not None or terms.batch_size is not None):
        raise bad("regress", "solver", "newton", "'descent' with lr or batch_size", "Leave them out.")


def check_columns(terms: RegressionTerms, name: str, columns: int) -> None:
    """Refuse a party that would learn too many numbers for this number of labels."""
    if terms.rows < ROWS_PER_COLUMN * columns:
        raise bad(
            "regress",
            f"the number of columns of {name!r}",
            columns,
            f"at most {terms.rows // ROWS_PER_COLUMN} with {terms.rows} training rows",
            "Coefficients are equations about the other parties' data: with too few rows they reveal "
            "labels. Use fewer columns or more rows.",
        )


async def fit(
    ctx: RingContext, terms: RegressionTerms, holders: int, x: Tensor, y: Tensor, ridge: Tensor
) -> Tensor:
    """[u], 1 × (d + 1), the last one for the intercept, with 16 fractional bits.

    For each batch (X, y) of m rows:  [z] = [u][X]ᵀ;  [r] = σ([z]) − [y], or [z] − [y];  [v] ← β[v] − η/m
    ([r][X] + m[D][u]);  [u] ← [u] + [v]
    """
    fraction, k, eta = ctx.fixed.fraction, terms.batches, step_size(terms, holders)
    x, y = _with_one(ctx, terms.family, x), y.reshape(1, -1)
    parts: list[tuple[MaskedFactor[Tensor], MaskedFactor[Tensor], MaskedFactor[Tensor], Tensor]] = []
    for i in range(k):  # every k-th row, in case rows are sorted by label
        rows = x[i::k].contiguous()
        parts.append(
            (
                await mask_shared(ctx, f"rows {i}", rows),
                await mask_shared(ctx, f"columns {i}", rows.T.contiguous()),
                await mask_shared(ctx, f"ridge {i}", ridge * len(rows)),
                y[:, i::k],
            )
        )
    u = torch.zeros(1, x.shape[1], dtype=torch.int64, device=x.device)
    v = torch.zeros_like(u)
    begin = len(ctx.stock.requests) if isinstance(ctx.stock, DryRun) else 0
    for _ in range(1 if isinstance(ctx.stock, DryRun) else terms.epochs):
        for row_factor, columns, penalty, labels in parts:
            short = await ctx.truncate(u, STATE - fraction)
            z = await ctx.truncate(await ctx.product_masked(short, columns, MATMUL))
            r = (z if terms.family == "linear" else await functions.sigmoid(ctx, z)) - labels
            g = await ctx.product_masked(r, row_factor, MATMUL)
            if terms.l2:
                g = g + await ctx.product_masked(short, penalty, MUL)
            factor, power = math.frexp(eta / labels.shape[1])  # η/m = factor · 2^power
            g = await ctx.truncate(g, 2 * fraction - STATE - power)
            v = await ctx.truncate(
                round(terms.momentum * 2**functions.FINE) * v - round(factor * 2**functions.FINE) * g,
                functions.FINE,
            )
            u = u + v
    if isinstance(ctx.stock, DryRun):  # every epoch needs the same
        ctx.stock.repeat(begin, terms.epochs - 1)
    return await ctx.truncate(u, STATE - fraction)


async def program(
    ctx: RingContext,
    terms: RegressionTerms,
    holders: int,
    x: Tensor,
    y: Tensor,
    ridge: Tensor,
    offset: Tensor,
    scale: Tensor,
    test_x: Tensor,
    test_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The whole computation on shares.

    Returns ([coefficients, then the intercept], [test sums or scores for the label holder], [the size of one
    more step], empty for descent).
    """
    if terms.solver == "newton":
        method = newton.NewtonPlan(
            terms.family == "linear",
            curvature(terms.family),
            holders,
            terms.epochs,
            terms.momentum,
            terms.l2 > 0,
        )
        u, left = await newton.fit(ctx, method, _with_one(ctx, terms.family, x), y, ridge)
    else:
        u, left = await fit(ctx, terms, holders, x, y, ridge), y[:0]
    tests = test_y[:0]
    if terms.tests:
        tests = await scoring.evaluate(
            ctx, terms.family, terms.test_scores, _with_one(ctx, terms.family, test_x), u, test_y
        )
    if terms.family == "linear":
        u = await functions.mul(ctx, u, scale.reshape(1, 1).expand_as(u), MUL)
    ones = (
        -offset
        if not ctx.first
        else torch.cat([-offset[:-1], torch.full_like(offset[-1:], _one(ctx, terms.family))])
    )
    intercept = (await functions.mul(ctx, u, ones.reshape(-1, 1), MATMUL))[0]
    return torch.cat([u[0, :-1], intercept]), tests, left


def _one(ctx: RingContext, family: str) -> int:
    """The intercept's column, scaled to curvature 1."""
    return round(math.pow(curvature(family), -0.5)) << ctx.fixed.fraction


def _with_one(ctx: RingContext, family: str, x: Tensor) -> Tensor:
    ones = torch.full((len(x), 1), _one(ctx, family), dtype=torch.int64, device=x.device)
    return torch.cat([x, ones if ctx.first else torch.zeros_like(ones)], 1)


async def holder(
    me: Party,
    terms: Mapping[str, Any],
    x: Tensor,
    y: Tensor | None = None,
    test_x: Tensor | None = None,
    test_y: Tensor | None = None,
) -> dict[str, Any]:
    """A data holder's program.

    Returns {"weights": its own coefficients, in the units of its columns}; the label holder's also has
    "intercept", "label" (mean and standard deviation) and, with test rows, "opened": the sums or scores of
    `scoring.open_to`.
    """
    settings, fixed = RegressionTerms.read(terms), FixedPoint()
    check_terms(settings)
    me.ledger.stamp(ASSUMES)
    if settings.test_scores and settings.tests:
        me.ledger.stamp(scoring.OPENED)
    rank, is_label_holder = settings.names.index(me.name), me.name == settings.label_at
    others = [name for name in settings.names if name != me.name]
    if len(x) != settings.rows or (y is not None and len(y) != settings.rows):
        raise ProtocolError(
            f"{me.name!r} has {len(x)} rows; expected {settings.rows}. Align the tables first."
        )
    check_columns(settings, me.name, x.shape[1])
    await me.send([*others, settings.helper], ColumnCount(x.shape[1], settings.text()))
    widths = await _widths(me, settings, others) | {me.name: x.shape[1]}
    start = {name: sum(widths[n] for n in settings.names[:i]) for i, name in enumerate(settings.names)}
    own, d = slice(start[me.name], start[me.name] + x.shape[1]), sum(widths.values())
    holders = sum(w > 0 for w in widths.values())
    step_size(settings, holders)

    basis = Basis.of(settings, x)
    label = _label_scale(settings, y) if y is not None else (0.0, 1.0)
    exponent = await _exponent(me, settings, others, label[1]) if settings.family == "linear" else 0

    def block(values: Tensor, what: str, more: int = 0) -> Tensor:
        share = torch.zeros(*values.shape[:-1], d + more, dtype=torch.int64)
        share[..., own] = fixed.encode(values, f"{what} of {me.name!r}")
        return share

    def labels(values: Tensor | None, rows: int, is_class: bool = False) -> Tensor:
        if values is None:
            return torch.zeros(rows, dtype=torch.int64)
        return (
            values.long() if is_class else fixed.encode((values.double() - label[0]) / label[1], "the label")
        )

    scale = fixed.encode(torch.tensor(label[1] / 2.0**exponent if is_label_holder else 0.0))
    unseen = _test_rows(
        me.name, basis, torch.zeros(0, x.shape[1]) if test_x is None else test_x, settings.tests
    )
    ctx = RingContext(
        me, rank, settings.names, await Stock.connect(me, rank, len(settings.names), settings.helper), fixed
    )
    w, sums, left = await program(
        ctx,
        settings,
        holders,
        block(basis.apply(x), "the columns"),
        labels(y, settings.rows),
        block(basis.ridge, "the ridge", 1),
        block(basis.offset(), "mean/std", 1),
        scale,
        block(unseen, "the test rows"),
        labels(test_y, settings.tests, settings.family == "logistic"),
    )

    blocks = {name: w[start[name] : start[name] + widths[name]] for name in settings.names}
    blocks[settings.label_at] = torch.cat([blocks[settings.label_at], w[-1:]])
    for name in others:
        await me.send(name, CoefficientShare([blocks[name].contiguous()]))
    total = blocks[me.name].clone()
    for name, message in (await me.gather(others, CoefficientShare)).items():
        if [(v.shape, v.dtype) for v in message.values] != [(total.shape, torch.int64)]:
            raise ProtocolError(f"{name!r} sent a share that does not match the coefficients of {me.name!r}.")
        total += message.values[0]
    opened = fixed.decode(total).double() * 2.0**exponent
    result: dict[str, Any] = {"weights": basis.coefficients(opened[: x.shape[1]])}
    if is_label_holder:
        result |= {"intercept": float(opened[-1]) + label[0], "label": list(label)}
    if settings.solver == "newton":
        opened_left = await _open_step(me, settings, left)
        if opened_left is not None:
            result["convergence"] = newton.Convergence.read(
                opened_left, fixed.fraction, settings.rows, d + 1
            )._asdict()
    if settings.tests:
        result["opened"] = await scoring.open_to(
            me, settings.names, settings.label_at, sums, settings.test_scores
        )
    return result


async def _open_step(me: Party, terms: RegressionTerms, share: Tensor) -> Tensor | None:
    """The sums of `newton.fit` about convergence, at the label holder; None elsewhere."""
    if me.name != terms.label_at:
        await me.send(terms.label_at, StepShare([share.contiguous()]))
        return None
    total = share.clone()
    others = [name for name in terms.names if name != me.name]
    for name, message in (await me.gather(others, StepShare)).items():
        if [(v.shape, v.dtype) for v in message.values] != [(total.shape, torch.int64)]:
            raise ProtocolError(f"{name!r} sent a share that does not match the size of a step.")
        total += message.values[0]
    return total


async def _widths(me: Party, terms: RegressionTerms, others: list[str]) -> dict[str, int]:
    messages = await me.gather(others, ColumnCount)
    for name, m in messages.items():
        if m.settings != terms.text():
            raise ProtocolError(
                f"{name!r} and {me.name!r} have different settings: {m.settings:.300} and "
                f"{terms.text():.300}. All parties must start the same job."
            )
        if not 0 <= m.count <= terms.rows // ROWS_PER_COLUMN:
            raise ProtocolError(
                f"{name!r} has {m.count} columns, too many for {terms.rows} training rows: its coefficients "
                "would reveal labels."
            )
    return {name: m.count for name, m in messages.items()}


def _label_scale(terms: RegressionTerms, y: Tensor) -> tuple[float, float]:
    """(mean, standard deviation) of a numeric label; (0, 1) for classes."""
    if terms.family == "logistic":
        return 0.0, 1.0
    std, mean = torch.std_mean(y.double(), correction=0)
    if not float(std) > 0:
        raise BadData("regress: the label has the same value in every row, so there is nothing to fit.")
    return float(mean), float(std)


async def _exponent(me: Party, terms: RegressionTerms, others: list[str], std: float) -> int:
    """e with 2^(e−1) ≤ std < 2^e. The mantissa stays a secret of the label holder."""
    if me.name != terms.label_at:
        return (await me.recv(terms.label_at, LabelExponent)).exponent
    exponent = math.frexp(std)[1]
    await me.send(others, LabelExponent(exponent))
    return exponent


def _test_rows(name: str, basis: Basis, x: Tensor, rows: int) -> Tensor:
    if len(x) != rows:
        raise ProtocolError(f"{name!r} has {len(x)} test rows; expected {rows}. Align the tables first.")
    z = basis.apply(x)
    if z.numel() and float(z.abs().max()) > FAR_OUT:
        raise BadData(
            f"a test row of {name!r} is more than {FAR_OUT:g} standard deviations away from its training "
            "rows, outside the range of the computation. Leave it "
            "out, or limit its values."
        )
    return z


async def helper(me: Party, terms: Mapping[str, Any]) -> None:
    """The helper's program: deal the randomness of the holders' program, planned from the shapes."""
    settings = RegressionTerms.read(terms)
    widths = (await _widths(me, settings, list(settings.names))).values()
    d, holders = sum(widths), sum(w > 0 for w in widths)
    shapes = (
        (settings.rows, d),
        (settings.rows,),
        (d + 1,),
        (d + 1,),
        (),
        (settings.tests, d),
        (settings.tests,),
    )
    empty = [torch.empty(shape, dtype=torch.int64, device="meta") for shape in shapes]
    await dealer(
        me, settings.names, plan(lambda ctx: program(ctx, settings, holders, *empty), fixed=FixedPoint())
    )


def ideal(terms: RegressionTerms, x: Mapping[str, Tensor], y: Tensor) -> dict[str, Tensor]:
    """The same descent in float64 over pooled columns.

    Returns each party's coefficients in the units of its columns; the label holder's end with the intercept.
    """
    bases = {name: Basis.of(terms, x[name]) for name in terms.names}
    one = curvature(terms.family) ** -0.5
    table = torch.cat(
        [
            *[basis.apply(x[name]) for name, basis in bases.items()],
            torch.full((len(y), 1), one, dtype=torch.float64),
        ],
        1,
    )
    ridge = torch.cat([*[basis.ridge for basis in bases.values()], torch.zeros(1, dtype=torch.float64)])
    center, scale = _label_scale(terms, y)
    target, eta, k = (
        (y.double() - center) / scale,
        step_size(terms, sum(v.shape[1] > 0 for v in x.values())),
        terms.batches,
    )
    u, v = torch.zeros(2, table.shape[1], dtype=torch.float64)
    for _ in range(terms.epochs):
        for rows, labels in ((table[i::k], target[i::k]) for i in range(k)):
            z = rows @ u
            r = (z if terms.family == "linear" else torch.sigmoid(z)) - labels
            v = terms.momentum * v - eta * (rows.T @ r / len(rows) + ridge * u)
            u = u + v
    parts = dict(zip(terms.names, (u[:-1] * scale).split([x[name].shape[1] for name in terms.names])))
    intercept = (
        u[-1:] * one * scale + center - sum(basis.offset() @ parts[name] for name, basis in bases.items())
    )
    weights = {name: basis.coefficients(parts[name]) for name, basis in bases.items()}
    return {**weights, terms.label_at: torch.cat([weights[terms.label_at], intercept])}
