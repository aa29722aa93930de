"""One party's part of a regression over columns of several parties, and its file.

FOLDER/part.json     {"format": 1, "kind": "regression", "party": …, "family": …, "coef": …, …}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BadData, MissingExtra, MissingFiles
from ...files import write_atomic
from ...mpc.glm_terms import FAMILIES
from .regress_design import Design

if TYPE_CHECKING:
    import pandas as pd

INTERCEPT = "Intercept"
FORMAT = 1


@dataclass(frozen=True)
class RegressionPart:
    """What one party has after a fit: its own estimates, and those it was sent because the job "
    "publishes them."""

    party: str
    family: str
    parties: tuple[str, ...]
    label_at: str
    rows: int
    design: Design
    coef: np.ndarray = field(repr=False)  # outcomes × terms
    covariance: np.ndarray = field(repr=False)  # outcomes × terms × terms
    converged: bool
    freedom: int | None = None  # degrees of freedom of t, for a gaussian model
    intercept: np.ndarray | None = field(
        default=None, repr=False
    )  # at the label holder: one for each outcome
    intercept_se: np.ndarray | None = field(default=None, repr=False)
    labels: tuple[str, ...] = ()  # names of the classes
    id: str = ""
    job: str = ""  # digest of the job
    metrics: dict[str, float] = field(default_factory=dict)
    offset: str = ""  # the column that is added to the score, at the label holder
    published: pd.DataFrame | None = field(default=None, repr=False, compare=False)

    def terms(self) -> list[str]:
        """The names of the rows of its table; of several outcomes with the class before the term."""
        names = list(self.design.terms)
        if self.intercept is not None:
            names = [INTERCEPT, *names]
        if self.family != "multinomial":
            return names
        return [f"{label}: {name}" for label in self.labels[1:] for name in names]

    def table(self, level: float = 0.95) -> pd.DataFrame:
        """`coef se z p low high` by term."""
        errors = np.sqrt(np.clip(np.diagonal(self.covariance, axis1=-2, axis2=-1), 0, None))
        coef = self.coef
        if self.intercept is not None and self.intercept_se is not None:
            coef = np.concatenate([self.intercept[:, None], coef], 1)
            errors = np.concatenate([self.intercept_se[:, None], errors], 1)
        return make_table(self.terms(), coef.ravel(), errors.ravel(), self.freedom, level)

    def score(self, frame: Any) -> Tensor:
        """Return this party's part of the scores, rows × outcomes, without the intercept."""
        import pandas as pd

        if isinstance(frame, pd.DataFrame) or hasattr(frame, "columns"):
            x = self.design.encode(frame, self.party)
        else:
            x = torch.as_tensor(np.asarray(frame, dtype=np.float64))
            x = x.reshape(len(x), -1)
            if x.shape[1] != self.coef.shape[1]:
                raise BadData(
                    f"predict: the rows of {self.party!r} have {x.shape[1]} columns; the fit had "
                    f"{self.coef.shape[1]}."
                )
        if not bool(torch.isfinite(x).all()):
            raise BadData(f"predict: the rows of {self.party!r} contain missing or infinite values.")
        scores = x @ torch.from_numpy(self.coef).T
        return scores + self._read_offset(frame)[:, None] if self.offset else scores

    def _read_offset(self, frame: Any) -> Tensor:
        if self.offset not in getattr(frame, "columns", ()):
            raise BadData(f"predict: the table of {self.party!r} has no column {self.offset!r}, the offset.")
        try:
            values = torch.from_numpy(frame[self.offset].to_numpy(dtype=np.float64).copy())
        except (TypeError, ValueError):
            values = torch.tensor([math.nan])
        if not bool(torch.isfinite(values).all()):
            raise BadData(f"predict: the offset {self.offset!r} of {self.party!r} must be finite numbers.")
        return values

    def to_dict(self) -> dict[str, Any]:
        own = {
            "format": FORMAT,
            "kind": "regression",
            **{
                k: getattr(self, k)
                for k in ("party", "family", "label_at", "rows", "freedom", "id", "job", "offset")
            },
            "parties": list(self.parties),
            "labels": list(self.labels),
            "design": self.design.to_dict(),
            "coef": self.coef.tolist(),
            "covariance": self.covariance.tolist(),
            "converged": self.converged,
            "metrics": self.metrics,
            "intercept": None if self.intercept is None else self.intercept.tolist(),
            "intercept_se": None if self.intercept_se is None else self.intercept_se.tolist(),
        }
        if self.published is not None:
            own["published"] = {
                "terms": [list(pair) for pair in self.published.index],
                "coef": self.published["coef"].tolist(),
                "se": self.published["se"].tolist(),
            }
        return own

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(
            folder / "part.json", json.dumps(self.to_dict(), ensure_ascii=False, indent=1), mode=0o600
        )
        return folder

    @classmethod
    def from_dict(cls, t: Mapping[str, Any], where: str) -> RegressionPart:
        """Read a part; the file is untrusted data."""
        try:
            if t["kind"] != "regression" or t["format"] != FORMAT or t["family"] not in FAMILIES:
                raise ValueError(f"format {t['format']} of {t['kind']!r:.40}")
            design = Design.from_dict(t["design"])
            coef = np.asarray(t["coef"], dtype=np.float64).reshape(-1, len(design.terms))
            covariance = np.asarray(t["covariance"], dtype=np.float64)
            p, labels = coef.shape[1], tuple(map(str, t["labels"]))
            outcomes = max(len(labels) - 1, 1) if t["family"] == "multinomial" else 1
            covariance = covariance.reshape(outcomes, p, p)
            coef = coef.reshape(outcomes, p)
            first, error = [
                None if t[k] is None else np.asarray(t[k], dtype=np.float64).reshape(outcomes)
                for k in ("intercept", "intercept_se")
            ]
            if not np.isfinite(coef).all():
                raise ValueError("a coefficient is not finite")
            part = cls(
                str(t["party"]),
                str(t["family"]),
                tuple(map(str, t["parties"])),
                str(t["label_at"]),
                int(t["rows"]),
                design,
                coef,
                covariance,
                bool(t["converged"]),
                None if t["freedom"] is None else int(t["freedom"]),
                first,
                error,
                labels,
                str(t["id"]),
                str(t["job"]),
                {str(k): float(v) for k, v in t["metrics"].items()},
                str(t.get("offset", "")),
            )
            if "published" not in t:
                return part
            shown = t["published"]
            pairs = [(str(a), str(b)) for a, b in shown["terms"]]
            table = make_table(pairs, np.array(shown["coef"]), np.array(shown["se"]), part.freedom)
            return replace(part, published=table)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadData(f"{where} is no part of a regression, or it is damaged: {error!r:.200}.") from None


def is_part(folder: str | Path) -> bool:
    """Whether a folder has a party's part of a regression."""
    try:
        content = json.loads((Path(folder) / "part.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("kind") == "regression"


def read_part(folder: str | Path) -> RegressionPart:
    file = Path(folder) / "part.json"
    if not file.is_file():
        raise MissingFiles(f"there is no part of a regression in {folder}: part.json is missing.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadData(f"{file} cannot be read: {error}.") from None
    return RegressionPart.from_dict(content, str(file))


def make_table(
    terms: Sequence[Any], coef: np.ndarray, se: np.ndarray, freedom: int | None, level: float = 0.95
) -> pd.DataFrame:
    """`coef se z p low high`; with degrees of freedom, z is a t statistic, as in statsmodels' OLS."""
    import pandas as pd

    try:
        from scipy import special
    except ImportError as error:
        raise MissingExtra("this statistic", "stats", "scipy") from error
    with np.errstate(invalid="ignore", divide="ignore"):
        z = coef / se
    if freedom is None:
        p, width = 2 * special.ndtr(-np.abs(z)), special.ndtri(0.5 + level / 2)
    else:
        p, width = 2 * special.stdtr(freedom, -np.abs(z)), special.stdtrit(freedom, 0.5 + level / 2)
    pairs = len(terms) > 0 and isinstance(terms[0], tuple)
    index = (
        pd.MultiIndex.from_tuples(terms, names=["party", "term"]) if pairs else pd.Index(terms, name="term")
    )
    table = pd.DataFrame(
        {"coef": coef, "se": se, "z": z, "p": p, "low": coef - width * se, "high": coef + width * se},
        index=index,
    )
    table.attrs["statistic"] = "z" if freedom is None else f"t with {freedom} degrees of freedom"
    return table


def make_part(
    result: Mapping[str, Any],
    party: str,
    family: str,
    parties: Sequence[str],
    label_at: str,
    rows: int,
    design: Design,
    labels: Sequence[str] = (),
    id: str = "",
    job: str = "",
    offset: str = "",
) -> RegressionPart:
    """Convert what `glm.holder` returned."""
    first, error = [None if k not in result else result[k].numpy() for k in ("intercept", "intercept_se")]
    metrics = dict(result.get("metrics", {}))
    part = RegressionPart(
        party,
        family,
        tuple(parties),
        label_at,
        rows,
        design,
        result["coef"].numpy(),
        result["covariance"].numpy(),
        bool(result["converged"]),
        result["freedom"],
        first,
        error,
        tuple(labels),
        id,
        job,
        metrics,
        offset,
    )
    if "published" not in result:
        return part
    pairs: list[tuple[str, str]] = []
    coef: list[float] = []
    se: list[float] = []
    for who, (names, values, errors) in result["published"].items():
        pairs += [(who, name) for name in names]
        coef += values
        se += errors
    return replace(part, published=make_table(pairs, np.array(coef), np.array(se), part.freedom))


NOT_CONVERGED = (
    "NOT CONVERGED: Newton's method was still moving after the last step. Columns that separate the classes "
    "(or the events), or rows far away from the others, have no finite estimate. Raise steps, leave such "
    "columns out, or use l2."
)
COLLINEAR = (
    "regress: the Hessian has no inverse within the precision of the computation: columns of "
    "different parties "
    "are collinear (one follows from the others' columns), or the label is separated. Their coefficients are "
    "not determined. Leave one of them out, or use l2."
)
