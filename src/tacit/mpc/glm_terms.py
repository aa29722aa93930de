"""Settings, columns and labels of a regression on shares: what each party prepares from its own rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError, QueryRefused
from ..parameters import bad, check, choice, flag, whole
from ..parties.message import Message
from . import hazards, irls
from .glm_likelihood import Likelihood, know
from .irls import SLOPE
from .precise import ARG, CLASSES, MEAN
from .regression import ROWS_PER_COLUMN

FAMILIES = ("gaussian", "binomial", "multinomial", "poisson", "cox")
TIES = ("efron", "breslow")
# of Newton's method: enough for all data sets of the tests with two to spare; gaussian: to remove rounding
STEPS = {"gaussian": 3, "binomial": 9, "multinomial": 10, "poisson": 9, "cox": 8}
COLLINEAR = 1e-10  # eigenvalue of one party's own standardized columns, relative to the largest
FURTHEST = 2.0**9  # of mean/standard deviation, and of a row in standard deviations
PARAMETERS = 512  # of a model, all outcomes
SCALES = (-40, 60)  # exponents of the label's scale


class LabelFacts(
    Message,
    reveals="the scale of the label as a power of two, the number of its classes, for Cox with Efron's "
    "method the most deaths at one time as a power of two, and with weights their mean as a power of two and "
    "how many equally weighted rows they are worth",
):
    scale: int
    classes: int
    ties: int
    weight: int = 0
    effective: int = 0  # (Σw)²/Σw², rounded down; 0 without weights


@dataclass(frozen=True)
class GlmTerms:
    """The settings that all parties agree on."""

    names: tuple[str, ...]
    label_at: str
    helper: str
    rows: int = whole(least=2, most=irls.LIMIT, doc="rows")
    family: str = choice("binomial", FAMILIES, doc="distribution of the label")
    ties: str = choice("efron", TIES, doc="method for equal times of a Cox model")
    steps: int | None = whole(None, least=2, most=100, none=True, doc="of Newton's method; None: by family")
    publish: bool = flag(False, doc="every party learns all estimates")
    offset: bool = flag(False, doc="the label holder has an offset for each row")
    weights: bool = flag(False, doc="the label holder has a weight for each row")

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> GlmTerms:
        return cls(**{**table, "names": tuple(table["names"])})

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def check_terms(terms: GlmTerms) -> None:
    """Refuse settings out of range. Every party checks its own copy."""
    check(terms, "regress")
    if len(terms.names) < 2 or len(set(terms.names)) < len(terms.names) or terms.helper in terms.names:
        raise bad(
            "regress",
            "parties",
            list(terms.names),
            f"at least two different ones, and none called {terms.helper!r}, which deals the randomness",
        )
    if terms.offset and terms.family == "multinomial":
        raise bad("regress", "offset", terms.offset, "left out with family='multinomial'")


def check_widths(
    terms: GlmTerms, facts: LabelFacts, widths: Mapping[str, int], outcomes: int, least: int = 0
) -> None:
    """Refuse a model that nearly reproduces its rows, or that gives one party too many numbers.

    Weighted rows count as the equally weighted rows that they are worth. `least` is what a party's policy
    requires (min_rows).
    """
    rows, kind = (facts.effective, "effective rows (by weight)") if terms.weights else (terms.rows, "rows")
    parameters = outcomes * (sum(widths.values()) + (terms.family != "cox"))
    if parameters > PARAMETERS:
        raise bad("regress", "the number of coefficients", parameters, f"at most {PARAMETERS}")
    if rows < least:
        raise QueryRefused(
            f"regress: the weights make {terms.rows} rows worth {rows}, and the policy of this party "
            f"requires {least} (min_rows)."
        )
    if rows < ROWS_PER_COLUMN * parameters:
        raise QueryRefused(
            f"regress: the model has {parameters} coefficients and {rows} {kind}; at least "
            f"{ROWS_PER_COLUMN * parameters} rows are required ({ROWS_PER_COLUMN} for each coefficient). "
            "Coefficients are equations about the other parties' data: with too few rows they reveal it. "
            "Use fewer columns or more rows."
        )


@dataclass(frozen=True)
class Whitening:
    """One holder's columns, uncorrelated with variance 1: (X − mean)/std · T with T = VΛ^(−1/2)."""

    mean: Tensor
    std: Tensor
    transform: Tensor

    @classmethod
    def of(cls, name: str, x: Tensor, columns: Sequence[str] = ()) -> Whitening:
        x = x.double()
        if not x.shape[1]:
            return cls(x[0], x[0], x[:0])
        known = list(columns) or [f"column {k}" for k in range(x.shape[1])]
        if not bool(torch.isfinite(x).all()):
            raise BadData(
                f"regress: the columns of {name!r} contain NaN or infinite values. Drop these rows."
            )
        std, mean = torch.std_mean(x, 0, correction=0)
        constant = [
            c for c, s, m in zip(known, std.tolist(), mean.tolist()) if s <= 1e-12 * max(abs(m), 1e-300)
        ]
        if constant:
            raise BadData(
                f"regress: {', '.join(map(repr, constant))} of {name!r} has the same value in every row "
                "that all parties share, so it has no coefficient. Leave it out."
            )
        values, vectors = torch.linalg.eigh(((x - mean) / std).T @ ((x - mean) / std) / len(x))
        if float(values[0]) < COLLINEAR * float(values[-1]):
            involved = [c for c, v in zip(known, vectors[:, 0].abs().tolist()) if v > 1e-3]
            raise BadData(
                f"regress: the columns {', '.join(map(repr, involved))} of {name!r} are collinear: "
                f"one of them "
                "follows from the others, so their coefficients are not determined. Leave one out."
            )
        if float((mean / std).abs().max()) > FURTHEST:
            far = known[int((mean / std).abs().argmax())]
            raise BadData(
                f"regress: the mean of {far!r} of {name!r} is more than {FURTHEST:g} standard "
                f"deviations from "
                "0, outside the range of the computation. Subtract a constant first."
            )
        made = cls(mean, std, vectors * values.rsqrt())
        if float(made.apply(x).abs().max()) > FURTHEST:
            raise BadData(
                f"regress: a row of {name!r} is more than {FURTHEST:g} standard deviations away from the "
                "others, outside the range of the computation. Leave it out, or limit its values."
            )
        return made

    def apply(self, x: Tensor) -> Tensor:
        return (x.double() - self.mean) / self.std @ self.transform

    def offset(self) -> Tensor:
        """(mean/std)T: the intercept is that of whitened columns, less offset · u."""
        return self.mean / self.std @ self.transform

    def to_units(self, u: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients (outcomes × p) and their covariance (outcomes × p × p) in the columns' units."""
        back = self.transform / self.std[:, None] if len(self.std) else self.transform
        return u @ back.T, back @ covariance @ back.T


@dataclass(frozen=True)
class Label:
    """The label holder's own numbers: the rows of `irls.fit`, and what the others must know."""

    values: Tensor  # ring words, label columns × n
    facts: LabelFacts
    mean: float = 0.0
    std: float = 1.0
    order: Tensor | None = None  # of the rows by time
    likelihood: Likelihood | None = None  # what follows from the label alone; gaussian: None
    center: float = 0.0  # of the offset
    log_weights: float = 0.0  # Σ log w
    spread: float = 0.0  # gaussian: Σ w (y − mean)²/n


def encode_label(
    terms: GlmTerms,
    y: Tensor,
    classes: int | None = None,
    offset: Tensor | None = None,
    weights: Tensor | None = None,
) -> Label:
    """Check the label and encode it for its family. For Cox, `y` has the columns time and event.

    After the label's own vectors come the centered offset (not gaussian) and the weights, if there are any.
    """
    y, n = y.double(), len(y)
    if (offset is not None) != terms.offset or (weights is not None) != terms.weights:
        raise ProtocolError(
            "regress: the label holder has an offset or weights that the settings do not have."
        )
    o = given = _read_rows("offset", offset, n, 0.0)
    w = _read_rows("weights", weights, n, 1.0)
    if not bool(torch.isfinite(y).all()):
        raise BadData("regress: a label is NaN or infinite. Drop its row.")
    center, power = float(o.mean()), math.frexp(float(w.mean()))[1] if terms.weights else 0
    short = short_rows = w / 2.0**power
    if not bool((w > 0).all()) or float(w.max()) > irls.HEAVIEST * float(w.mean()):
        raise BadData(
            f"regress: weights must be above 0, and none more than {irls.HEAVIEST} times their mean: others "
            "are outside the range of the computation. Limit large weights."
        )
    if terms.family == "cox":
        label, short = _encode_times(terms, y, short)
        o = o + torch.log(short_rows)
    elif y.dim() != 1:
        raise BadData(f"regress: labels of shape {tuple(y.shape)}; give one number for each row.")
    elif terms.family == "gaussian":
        label = _encode_numbers(y - o, w)
    elif terms.family == "poisson":
        label = _encode_counts(y, o - center, short)
    else:
        label = _encode_classes(terms, y, classes, w)
    extra = []
    if has_offset(terms):
        ordered = o - center if label.order is None else (o - center)[label.order]
        extra.append(to_words(ordered, ARG))
    if terms.weights:
        extra.append(to_words(short, irls.WEIGHT))
    known = None
    if terms.family != "gaussian":
        known = know(terms.family, y, given, w, label.facts.scale, terms.ties == "efron")
        known = replace(known, factor=known.factor * 2.0**power)
    worth = count_effective(w) if terms.weights else 0
    facts = LabelFacts(label.facts.scale, label.facts.classes, label.facts.ties, power, worth)
    return replace(
        label,
        values=torch.cat([label.values, *(v[None] for v in extra)]),
        facts=facts,
        likelihood=known,
        center=0.0 if terms.family == "gaussian" else center,
        log_weights=float(torch.log(w).sum()),
    )


def has_offset(terms: GlmTerms) -> bool:
    """Whether scores have an offset, log w of a weighted Cox model too; a gaussian label has it already."""
    return (terms.offset and terms.family != "gaussian") or (terms.weights and terms.family == "cox")


def _read_rows(name: str, values: Tensor | None, n: int, default: float) -> Tensor:
    if values is None:
        return torch.full((n,), default, dtype=torch.float64)
    if values.shape != (n,) or not bool(torch.isfinite(values.double()).all()):
        raise BadData(f"regress: {name} must be one finite number for each of the {n} rows.")
    return values.double()


def _encode_numbers(y: Tensor, w: Tensor) -> Label:
    std, mean = (float(v) for v in torch.std_mean(y, correction=0))
    if not std > 0:
        raise BadData("regress: the label has the same value in every row, so there is nothing to fit.")
    center = float((w * y).sum() / w.sum())
    spread = float((w * (y - center) ** 2).mean())
    facts = LabelFacts(math.frexp(std)[1], 2, -1)
    return Label(to_words((y - mean) / std, MEAN)[None], facts, mean, std, spread=spread)


def _encode_counts(y: Tensor, offset: Tensor, w: Tensor) -> Label:
    mean = float(y.mean())
    if float(y.min()) < 0 or bool((y != y.round()).any()) or not mean > 0:
        raise BadData("regress: family 'poisson' needs counts: whole numbers from 0, not all of them 0.")
    exponent = math.frexp(mean)[1]
    start = (y + 0.1) / 2.0**exponent
    parts = [y / 2.0**exponent, w * start, w * start * (torch.log(start) - offset)]
    return Label(torch.stack([to_words(v, MEAN) for v in parts]), LabelFacts(exponent, 2, -1))


def count_effective(w: Tensor) -> int:
    """How many equally weighted rows these weights are worth, rounded down."""
    square = float((w**2).sum())
    return int(float(w.sum()) ** 2 / square + 1e-9) if square > 0 else 0


def _encode_classes(terms: GlmTerms, y: Tensor, classes: int | None, w: Tensor) -> Label:
    whole_numbers = bool((y == y.round()).all())
    many = classes if classes is not None else int(y.max()) + 1
    counts = torch.bincount(y.long(), minlength=many) if whole_numbers and float(y.min()) >= 0 else None
    if counts is None or len(counts) != many or many < 2 or (terms.family == "binomial" and many != 2):
        wanted = "0 and 1" if terms.family == "binomial" else "classes, numbered from 0"
        raise BadData(f"regress: family {terms.family!r} needs labels that are {wanted}.")
    fewest = min(count_effective(w[y == k]) for k in range(many))
    if fewest < ROWS_PER_COLUMN:
        raise QueryRefused(
            f"regress: a class has {fewest} {'effective ' * terms.weights}rows; at least "
            f"{ROWS_PER_COLUMN} are required. "
            "Merge it with another one."
        )
    if terms.family == "multinomial":
        if many > CLASSES:
            raise bad("regress", "the number of classes", many, f"at most {CLASSES}")
        one_hot = torch.nn.functional.one_hot(y.long(), many).double().T[1:]
        return Label(to_words(one_hot, MEAN), LabelFacts(0, many, -1))
    mean = float(y.mean())
    first = torch.zeros(len(y), dtype=torch.float64)
    first[0] = math.log(mean / (1 - mean))
    values = torch.stack([to_words(y, MEAN), to_words(first, SLOPE)])
    return Label(values, LabelFacts(math.frexp(mean * (1 - mean))[1], 2, -1))


def _encode_times(terms: GlmTerms, y: Tensor, w: Tensor) -> tuple[Label, Tensor]:
    """Return the label, and the weights of its terms in the order of time."""
    if y.dim() != 2 or y.shape[1] != 2 or not bool(((y[:, 1] == 0) | (y[:, 1] == 1)).all()):
        raise BadData("regress: family 'cox' needs a time and an event, 0 or 1, for each row.")
    if float(y[:, 0].min()) < 0:
        raise BadData("regress: family 'cox' needs times that are not negative.")
    events = count_effective(w[y[:, 1] > 0])
    if events < ROWS_PER_COLUMN:
        kind = "effective events (by weight)" if terms.weights else "events"
        raise QueryRefused(f"regress: there are {events} {kind}; at least {ROWS_PER_COLUMN} are required.")
    found = hazards.encode_times(y[:, 0], y[:, 1], terms.ties == "efron", w)
    facts = LabelFacts(math.frexp(float((y[:, 1] * w).mean()))[1], 2, found.ties)
    return Label(found.values, facts, order=found.order), found.terms


def to_words(values: Tensor, bits: int) -> Tensor:
    return torch.round(values * 2.0**bits).long()


def check_facts(terms: GlmTerms, facts: LabelFacts) -> LabelFacts:
    """Refuse announcements of the label holder that are out of range."""
    fits = SCALES[0] <= facts.scale <= SCALES[1]
    fits = fits and (SCALES[0] <= facts.weight <= SCALES[1] if terms.weights else facts.weight == 0)
    # no weight is above HEAVIEST times the mean, so that rows are worth at least this many
    fewest = terms.rows // irls.HEAVIEST if terms.weights else 0
    fits = fits and fewest <= facts.effective <= (terms.rows if terms.weights else 0)
    if terms.family == "cox" and terms.ties == "efron":
        fits = fits and 0 <= facts.ties <= math.ceil(math.log2(terms.rows))
    else:
        fits = fits and facts.ties == hazards.BRESLOW
    fits = fits and (2 <= facts.classes <= CLASSES if terms.family == "multinomial" else facts.classes == 2)
    if not fits:
        raise ProtocolError(
            f"{terms.label_at!r} announced a label of scale 2^{facts.scale}, {facts.classes} classes and "
            f"{facts.ties} doublings, which no label of a {terms.family} model has."
        )
    return facts
