"""Losses: gradients and Hessians of each row by its margin, and how margins become predictions.

Names and formulas are those of XGBoost, so that an exported model predicts the same:

    binary       binary:logistic     g = p − y,            h = p (1 − p)
    multiclass   multi:softprob      g = p_k − [y = k],    h = 2 p_k (1 − p_k)
    regression   reg:squarederror    g = m − y,            h = 1
    poisson      count:poisson       g = e^m − y,          h = e^(m + 0.7)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

TINY = 1e-16  # as in XGBoost: no Hessian is zero
POISSON_STEP = 0.7  # XGBoost's max_delta_step of count:poisson


class Objective(Protocol):
    """A loss. Margins are rows × outputs; `y` is the class (as a number) or the value of each row."""

    @property
    def name(self) -> str: ...

    @property
    def xgboost(self) -> str:
        """XGBoost's name of it."""

    @property
    def classes(self) -> int:
        """Of the label; 0: it is a number."""

    @property
    def outputs(self) -> int:
        """Trees in each round."""

    def base(self, mean: float) -> float:
        """The margin of a constant model, by the mean of y."""

    def gradients(self, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (g, h), rows × outputs."""

    def bounds(self, largest: float) -> tuple[float, float]:
        """The largest |g| and h; `largest` is a bound of |y − base| (of y for counts)."""

    def predict(self, margin: np.ndarray) -> np.ndarray:
        """Return probabilities or values."""

    def loss(self, margin: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the loss of each row."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def softmax(margin: np.ndarray) -> np.ndarray:
    e = np.exp(margin - margin.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Binary:
    name: str = "binary"
    xgboost: str = "binary:logistic"
    classes: int = 2
    outputs: int = 1

    def base(self, mean: float) -> float:
        p = float(np.float32(min(max(mean, 1e-6), 1 - 1e-6)))  # as the file of a model holds it
        return -math.log(1.0 / p - 1.0)

    def gradients(self, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = sigmoid(margin)
        return p - y[:, None], np.maximum(p * (1.0 - p), TINY)

    def bounds(self, largest: float) -> tuple[float, float]:
        return 1.0, 0.25

    def predict(self, margin: np.ndarray) -> np.ndarray:
        return sigmoid(margin[:, 0])

    def loss(self, margin: np.ndarray, y: np.ndarray) -> np.ndarray:
        m = margin[:, 0]
        return np.asarray(np.logaddexp(0.0, np.where(y > 0, -m, m)))


@dataclass(frozen=True)
class Multiclass:
    classes: int = 3
    name: str = "multiclass"
    xgboost: str = "multi:softprob"

    @property
    def outputs(self) -> int:
        return self.classes

    def base(self, mean: float) -> float:
        return 0.0

    def gradients(self, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        p = softmax(margin)
        g = p.copy()
        g[np.arange(len(y)), y.astype(np.int64)] -= 1.0
        return g, np.maximum(2.0 * p * (1.0 - p), TINY)

    def bounds(self, largest: float) -> tuple[float, float]:
        return 1.0, 0.5

    def predict(self, margin: np.ndarray) -> np.ndarray:
        return softmax(margin)

    def loss(self, margin: np.ndarray, y: np.ndarray) -> np.ndarray:
        p = softmax(margin)[np.arange(len(y)), y.astype(np.int64)]
        return np.asarray(-np.log(np.maximum(p, TINY)))


@dataclass(frozen=True)
class Regression:
    name: str = "regression"
    xgboost: str = "reg:squarederror"
    classes: int = 0
    outputs: int = 1

    def base(self, mean: float) -> float:
        return float(np.float32(mean))

    def gradients(self, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return margin - y[:, None], np.ones_like(margin)

    def bounds(self, largest: float) -> tuple[float, float]:
        return 2.0 * largest, 1.0  # a tree may move a prediction past its value

    def predict(self, margin: np.ndarray) -> np.ndarray:
        return margin[:, 0]

    def loss(self, margin: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray((margin[:, 0] - y) ** 2)


@dataclass(frozen=True)
class Poisson:
    name: str = "poisson"
    xgboost: str = "count:poisson"
    classes: int = 0
    outputs: int = 1

    def base(self, mean: float) -> float:
        return math.log(float(np.float32(max(mean, 1e-6))))

    def gradients(self, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rate = np.exp(np.minimum(margin, 60.0))
        return rate - y[:, None], np.maximum(rate * math.exp(POISSON_STEP), TINY)

    def bounds(self, largest: float) -> tuple[float, float]:
        return 4.0 * largest, 4.0 * largest * math.exp(POISSON_STEP)

    def predict(self, margin: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(margin[:, 0]))

    def loss(self, margin: np.ndarray, y: np.ndarray) -> np.ndarray:
        m = np.minimum(margin[:, 0], 60.0)
        return np.asarray(np.exp(m) - y * m)


@dataclass(frozen=True)
class Custom:
    """A user's function (margin, y) → (g, h), for simulation: other processes cannot agree on a function."""

    function: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    largest_g: float
    largest_h: float
    name: str = "custom"
    xgboost: str = "reg:squarederror"  # predictions are margins
    classes: int = 0
    outputs: int = 1

    def base(self, mean: float) -> float:
        return 0.0

    def gradients(self, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        g, h = self.function(margin[:, 0], y)
        return np.asarray(g, dtype=np.float64)[:, None], np.maximum(np.asarray(h, np.float64), TINY)[:, None]

    def bounds(self, largest: float) -> tuple[float, float]:
        return self.largest_g, self.largest_h

    def predict(self, margin: np.ndarray) -> np.ndarray:
        return margin[:, 0]

    def loss(self, margin: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(
            np.abs(self.gradients(margin, y)[0][:, 0])
        )  # no loss is given: the size of the gradient


OBJECTIVES: dict[str, Callable[[int], Objective]] = {
    "binary": lambda classes: Binary(),
    "multiclass": lambda classes: Multiclass(classes),
    "regression": lambda classes: Regression(),
    "poisson": lambda classes: Poisson(),
}
