"""Synthetic(α, β): a logistic model for each device, as in the FedProx paper.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith 2020, "FedProx", Section 5.1. For device k:
    u_k ~ N(0, α),  B_k ~ N(0, β)
    W_k[i, j] ~ N(u_k, 1),  b_k[j] ~ N(u_k, 1)              its own model
    v_k[i] ~ N(B_k, 1),  x ~ N(v_k, Σ),  Σ = diag(i^−1.2)   its own features
    y = argmax softmax(W_k x + b_k)
β sets how much the features of two devices differ. The models differ by the draw of W_k. (α should make them
differ more, but u_k adds the same to the score of every class, so the labels do not depend on it. This is a
property of the published model, and kept.) As in the authors' code, α and β are standard deviations, and a
device has 50 + ⌊lognormal(4, 2)⌋ rows, the paper's heavy tail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..parameters import check, flag, real, whole
from .arrays import from_arrays, split_test_set
from .federation import Dataset


@dataclass(frozen=True)
class Synthetic:
    alpha: float = real(least=0)
    beta: float = real(least=0)
    parties: int = whole(least=1)
    features: int = whole(least=1)
    classes: int = whole(least=2)
    least: int = whole(least=2)
    seed: int = whole(least=0)
    iid: bool = flag(False)


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    parties: int = 30,
    features: int = 60,
    classes: int = 10,
    iid: bool = False,
    least: int = 50,
    seed: int = 0,
    test_fraction: float = 0.2,
) -> Dataset:
    """Synthetic(α, β): a logistic model for each device, as in the FedProx paper.

    A natural federation, `.by("device")`, with at least `least` rows for each device.
    `iid=True`: Synthetic-IID, one model and p(x) for all.
    """
    check(Synthetic(alpha, beta, parties, features, classes, least, seed, iid))
    rng = np.random.default_rng([seed, 6])
    sizes = least + np.floor(rng.lognormal(4, 2, parties)).astype(np.int64)
    u, center = rng.normal(0, alpha, parties), rng.normal(0, beta, parties)
    deviation = np.arange(1, features + 1) ** -0.6  # the root of the variance i^−1.2
    shared = rng.standard_normal((features, classes)), rng.standard_normal(classes)
    xs, ys = [], []
    for k in range(parties):
        w, b = shared if iid else (rng.normal(u[k], 1, (features, classes)), rng.normal(u[k], 1, classes))
        v = np.zeros(features) if iid else rng.normal(center[k], 1, features)
        x = v + deviation * rng.standard_normal((sizes[k], features))
        xs.append(x.astype(np.float32))
        ys.append(np.argmax(x @ w + b, axis=1))
    width = len(str(parties))
    device = np.repeat(np.array([f"d{k:0{width}d}" for k in range(parties)]), sizes)
    data = from_arrays(
        np.concatenate(xs),
        np.concatenate(ys),
        classes=classes,
        name=f"synthetic({alpha:g}, {beta:g})",
        groups={"device": device},
        test_fraction=0,
    )
    return split_test_set(data, test_fraction, seed, strata=device)
