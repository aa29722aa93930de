"""Distributions and links of generalized linear models.

P. McCullagh and J. Nelder, "Generalized Linear Models", 2nd edition, 1989. `mean`, `slope` (dμ/dη) and `bend`
(d²μ/dη²) belong to the link, `variance` and its derivative to the distribution. Log-likelihoods include all
constants, so that AIC can be compared with other software.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadData, MissingExtra
from ..parameters import bad

FAMILIES = ("gaussian", "binomial", "poisson", "negative_binomial", "gamma")
LINKS = {
    "gaussian": ("identity", "log"),
    "binomial": ("logit", "probit"),
    "poisson": ("log",),
    "negative_binomial": ("log",),
    "gamma": ("inverse", "log"),
}
CANONICAL = {("gaussian", "identity"), ("binomial", "logit"), ("poisson", "log"), ("gamma", "inverse")}
_EDGE = 1e-12  # of a fitted probability
_LARGEST = 700.0  # of an exponent: exp(709) is the largest float64


def load_scipy() -> Any:
    try:
        import scipy.special as special
    except ImportError as error:
        raise MissingExtra("this statistic", "stats", "scipy") from error
    return special


@dataclass(frozen=True)
class Family:
    name: str
    link: str
    alpha: float = 0.0  # of the negative binomial: variance μ + αμ²

    @property
    def is_canonical(self) -> bool:
        return (self.name, self.link) in CANONICAL

    @property
    def has_scale(self) -> bool:
        """Whether the dispersion is estimated."""
        return self.name in ("gaussian", "gamma")

    # --- the link

    def mean(self, eta: np.ndarray) -> np.ndarray:
        if self.link == "identity":
            return eta
        if self.link == "logit":
            return load_scipy().expit(eta)  # type: ignore[no-any-return]
        if self.link == "probit":
            return load_scipy().ndtr(eta)  # type: ignore[no-any-return]
        if self.link == "log":
            return np.exp(np.minimum(eta, _LARGEST))  # type: ignore[no-any-return]
        with np.errstate(divide="ignore"):
            return 1.0 / eta

    def slope(self, eta: np.ndarray, mu: np.ndarray) -> np.ndarray:
        if self.link == "identity":
            return np.ones_like(eta)
        if self.link == "logit":
            return mu * (1 - mu)  # type: ignore[no-any-return]
        if self.link == "probit":
            return np.exp(-0.5 * eta * eta) / np.sqrt(2 * np.pi)  # type: ignore[no-any-return]
        return mu if self.link == "log" else -mu * mu

    def bend(self, eta: np.ndarray, mu: np.ndarray) -> np.ndarray:
        if self.link == "identity":
            return np.zeros_like(eta)
        if self.link == "logit":
            return mu * (1 - mu) * (1 - 2 * mu)  # type: ignore[no-any-return]
        if self.link == "probit":
            return -eta * self.slope(eta, mu)  # type: ignore[no-any-return]
        return mu if self.link == "log" else 2 * mu**3

    def predictor(self, mu: np.ndarray) -> np.ndarray:
        """Return η of a mean."""
        if self.link == "identity":
            return mu
        if self.link == "logit":
            return np.log(mu / (1 - mu))  # type: ignore[no-any-return]
        if self.link == "probit":
            return load_scipy().ndtri(mu)  # type: ignore[no-any-return]
        return np.log(mu) if self.link == "log" else 1.0 / mu

    # --- the distribution

    def variance(self, mu: np.ndarray) -> np.ndarray:
        if self.name == "gaussian":
            return np.ones_like(mu)
        if self.name == "binomial":
            return np.clip(mu * (1 - mu), _EDGE, None)  # type: ignore[no-any-return]
        if self.name == "poisson":
            return mu
        return mu * mu if self.name == "gamma" else mu + self.alpha * mu * mu  # type: ignore[no-any-return]

    def variance_slope(self, mu: np.ndarray) -> np.ndarray:
        if self.name == "gaussian":
            return np.zeros_like(mu)
        if self.name == "binomial":
            return 1 - 2 * mu
        if self.name == "poisson":
            return np.ones_like(mu)
        return 2 * mu if self.name == "gamma" else 1 + 2 * self.alpha * mu

    def is_valid(self, mu: np.ndarray) -> bool:
        """Whether these can be means: a step that leaves the range is halved."""
        if not np.isfinite(mu).all():
            return False
        return self.name in ("gaussian", "binomial") or bool((mu > 0).all())

    def start(self, y: np.ndarray, mean: float) -> np.ndarray:
        """Return the means that the first step starts from."""
        if self.name == "binomial":
            return (y + 0.5) / 2
        if self.name == "gaussian" and self.link == "identity":
            return y
        return np.maximum((y + mean) / 2, 1e-3 * abs(mean) + 1e-12)

    def log_likelihood(self, y: np.ndarray, mu: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
        """Return each row's log-likelihood, with `weights` as weights of the variance."""
        special = load_scipy()
        gammaln, xlogy = special.gammaln, special.xlogy
        if self.name == "gaussian":
            out = -weights * (y - mu) ** 2 / scale - np.log(scale / weights) - np.log(2 * np.pi)
            return 0.5 * out  # type: ignore[no-any-return]
        if self.name == "binomial":
            inside = np.clip(mu, 1e-300, 1.0)
            rest = np.clip(1 - mu, 1e-300, 1.0)
            constant = -gammaln(y + 1) - gammaln(2 - y)
            return (constant + xlogy(y, inside) + xlogy(1 - y, rest)) * weights  # type: ignore[no-any-return]
        if self.name == "poisson":
            return weights * (xlogy(y, mu) - mu - gammaln(y + 1))  # type: ignore[no-any-return]
        if self.name == "gamma":
            shape = weights / scale
            return (  # type: ignore[no-any-return]
                shape * np.log(shape * y / mu) - shape * y / mu - np.log(y) - gammaln(shape)
            )
        a = self.alpha
        ll = xlogy(y, a * mu) - (y + 1 / a) * np.log1p(a * mu)
        ll += gammaln(y + 1 / a) - gammaln(1 / a) - gammaln(y + 1)
        return weights * ll  # type: ignore[no-any-return]

    def deviance(self, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """Return each row's part of the deviance, before weights."""
        special = load_scipy()
        xlogy, rel_entr = special.xlogy, special.rel_entr
        if self.name == "gaussian":
            return (y - mu) ** 2  # type: ignore[no-any-return]
        if self.name == "binomial":
            inside = np.clip(mu, 1e-300, None)
            rest = np.clip(1 - mu, 1e-300, None)
            return 2 * (rel_entr(y, inside) + rel_entr(1 - y, rest))  # type: ignore[no-any-return]
        if self.name == "poisson":
            return 2 * (rel_entr(y, mu) - (y - mu))  # type: ignore[no-any-return]
        if self.name == "gamma":
            return 2 * (y / mu - 1 - np.log(y / mu))  # type: ignore[no-any-return]
        a = self.alpha
        ratio = (1 + a * y) / (1 + a * mu)
        return 2 * (xlogy(y, y / mu) - (y + 1 / a) * np.log(ratio))  # type: ignore[no-any-return]


def make_family(name: str, link: str | None, alpha: float | None, owner: str = "glm") -> Family:
    """Return the family of this name, with its default link; raise BadParameter for others."""
    known = {"logistic": "binomial", "normal": "gaussian", "negativebinomial": "negative_binomial"}
    plain = known.get(str(name).lower(), str(name).lower())
    if plain not in FAMILIES:
        raise bad(owner, "family", name, ", ".join(map(repr, FAMILIES)))
    if link is not None and link not in LINKS[plain]:
        raise bad(owner, "link", link, f"{', '.join(map(repr, LINKS[plain]))} for family={plain!r}")
    if alpha is not None and (plain != "negative_binomial" or not alpha > 0):
        raise bad(owner, "alpha", alpha, "a positive number, with family='negative_binomial' only")
    return Family(plain, link or LINKS[plain][0], alpha or 1.0)


def check_outcome(family: Family, y: np.ndarray) -> None:
    """Raise BadData if a party's outcome cannot come from the family. The values are not quoted."""
    allowed = {
        "binomial": ((y >= 0) & (y <= 1), "between 0 and 1 (code events as 1, others as 0)"),
        "poisson": (y >= 0, "at least 0"),
        "negative_binomial": (y >= 0, "at least 0"),
        "gamma": (y > 0, "above 0"),
    }
    if family.name in allowed:
        fits, text = allowed[family.name]
        if not fits.all():
            raise BadData(
                f"{int((~fits).sum())} outcomes of a party do not fit family={family.name!r}: expected "
                f"numbers {text}.",
                outside=f"its outcome does not fit family={family.name!r}",
            )
