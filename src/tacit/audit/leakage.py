"""Measures of dependence: what activations reveal about columns, and gradients about labels.

    measure                   0                           1
    distance_correlation      independent (in the limit)  one is a rotation and scaling of the other
    hsic                      independent                 equal kernels
    constrained_covariance    independent                 (at most the kernels' largest eigenvalue)
    mmd                       the same distribution       (at most √2)
    kernel_target_alignment   unrelated to the class      activations are a function of the class
    maximal_information       independent                 one is a noiseless function of the other

Distance correlation: Székely, Rizzo, Bakirov, Annals of Statistics 35(6), 2007. HSIC: Gretton, Bousquet,
Smola, Schölkopf, ALT 2005, normalized as centered alignment. Constrained covariance (COCO): Gretton, Smola,
Bousquet, Herbrich and others, AISTATS 2005. MMD: Gretton, Borgwardt, Rasch, Schölkopf, Smola, JMLR 13,
2012. Kernel-target alignment: Cristianini, Shawe-Taylor, Elisseeff, Kandola, NIPS 2001. Maximal information
coefficient (MIC): Reshef and others, Science 334, 2011.

All but the last take rows of any width. `distance_correlation` is differentiable: as an additional loss it is
NoPeek (Vepakomma, Singh, Gupta, Raskar, ICDMW 2020).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad


def _rows(x: Any) -> Tensor:
    """Rows of any shape as a matrix."""
    v = torch.as_tensor(x)
    return v.reshape(len(v), -1)


def _pair(x: Any, z: Any) -> tuple[Tensor, Tensor]:
    a, b = (v if v.is_floating_point() else v.float() for v in (_rows(x), _rows(z)))
    if len(a) != len(b) or len(a) < 2:
        raise BadData(
            f"leakage: there are {len(a)} and {len(b)} rows; both must have the same rows, at least two."
        )
    return a, b


def auc(score: Tensor, positive: Tensor) -> float:
    """The probability that a positive row scores above a negative one (Mann–Whitney); ties count half."""
    _, place, counts = torch.unique(score.double(), return_inverse=True, return_counts=True)
    rank = counts.cumsum(0) - (counts.double() - 1) / 2  # equal scores share their mean rank
    yes = positive.bool()
    p, n = int(yes.sum()), int((~yes).sum())
    if not p or not n:
        raise BadData("auc: all rows are of one class; two are needed.")
    return float((rank[place][yes].sum() - p * (p + 1) / 2) / (p * n))


def _distances(x: Tensor) -> Tensor:
    """‖x_i − x_j‖, with a gradient that is 0, not NaN, where rows are equal."""
    square = (x * x).sum(1)
    gap = (square[:, None] + square[None] - 2 * x @ x.T).clamp(min=0)
    far = gap > 1e-12 * (1 + square.max().detach())
    return torch.where(far, torch.where(far, gap, 1.0).sqrt(), 0.0)


def _center(m: Tensor) -> Tensor:
    return m - m.mean(0, keepdim=True) - m.mean(1, keepdim=True) + m.mean()


def distance_correlation(x: Any, z: Any) -> Tensor:
    """√(dCov²(x, z) / √(dVar(x)·dVar(z))) of the sample, Definition 5 of the paper.

    It is biased upwards for few rows and many columns: compare samples of the same size.
    """
    a, b = _pair(x, z)
    A, B = _center(_distances(a)), _center(_distances(b))
    scale = ((A * A).mean() * (B * B).mean()).sqrt()
    ratio = (A * B).mean().clamp(min=0) / scale.clamp(min=torch.finfo(scale.dtype).tiny)
    # 1e-12: the derivative of the square root is infinite at 0
    return (ratio + 1e-12).sqrt() if float(scale.detach()) > 0 else ratio * 0


def median_width(x: Tensor) -> float:
    """The median distance of two rows: the usual width of a Gaussian kernel."""
    d = _distances(x.detach().double())
    off = d[~torch.eye(len(d), dtype=torch.bool)]
    return float(off.median()) or float(off.mean()) or 1.0


def _kernel(x: Tensor, other: Tensor | None = None, width: float | None = None) -> Tensor:
    y = x if other is None else other
    w = median_width(x) if width is None else width
    gap = ((x * x).sum(1)[:, None] + (y * y).sum(1)[None] - 2 * x @ y.T).clamp(min=0)
    return torch.exp(-gap / (2 * w * w))


def _alignment(K: Tensor, L: Tensor) -> float:
    """⟨HKH, HLH⟩ / (‖HKH‖·‖HLH‖)."""
    K, L = _center(K), _center(L)
    scale = float(K.norm() * L.norm())
    return float((K * L).sum()) / scale if scale else 0.0


def hsic(x: Any, z: Any) -> float:
    """⟨HKH, HLH⟩ / (‖HKH‖·‖HLH‖) with Gaussian kernels of median width: between 0 and 1."""
    return _alignment(*(_kernel(v.double()) for v in _pair(x, z)))


def constrained_covariance(x: Any, z: Any) -> float:
    """COCO, (1/n)·√(largest eigenvalue of HKH·HLH).

    It is the largest covariance between functions of x and of z in the unit balls of the kernels.
    """
    K, L = (_center(_kernel(v.double())) for v in _pair(x, z))
    value, vectors = torch.linalg.eigh(K)
    half = (vectors * value.clamp(min=0).sqrt()) @ vectors.T
    return math.sqrt(max(float(torch.linalg.eigvalsh(half @ L @ half)[-1]), 0.0)) / len(K)


def mmd(a: Any, b: Any, width: float | None = None) -> float:
    """The maximum mean discrepancy of two samples: the biased estimate with a Gaussian kernel."""
    x, y = _rows(a).double(), _rows(b).double()
    if x.shape[1] != y.shape[1] or not len(x) or not len(y):
        raise BadData(
            f"mmd: the samples have {len(x)} rows of {x.shape[1]} numbers and {len(y)} rows of {y.shape[1]}; "
            "both must be non-empty and have the same columns."
        )
    w = median_width(torch.cat([x, y])) if width is None else width
    square = _kernel(x, x, w).mean() + _kernel(y, y, w).mean() - 2 * _kernel(x, y, w).mean()
    return math.sqrt(max(float(square), 0.0))


def kernel_target_alignment(z: Any, y: Any) -> float:
    """⟨HKH, HYH⟩ / (‖HKH‖·‖HYH‖), with Y_ij = 1 if the classes are equal, else −1/(c − 1)."""
    a, b = _pair(z, y)
    kinds, place = torch.unique(b[:, 0], return_inverse=True)
    if len(kinds) < 2:
        raise BadData("kernel_target_alignment: all rows are of one class; two are needed.")
    same = (place[:, None] == place[None]).double()
    return _alignment(_kernel(a.double()), same - (1 - same) / (len(kinds) - 1))


def maximal_information(x: Any, z: Any, alpha: float = 0.6, clumps: int = 15) -> float:
    """The MIC of two columns, or the largest over all pairs of columns of x and z.

    It is the largest normalized mutual information over grids of up to n^α cells. One axis is divided into
    equal shares, the other optimally by dynamic programming over at most `clumps` times as many clumps as
    cells; then the axes are exchanged (Reshef and others, supplement, Algorithms 1 to 5).
    """
    a, b = (v.double() for v in _pair(x, z))
    if not 0 < alpha <= 1 or clumps < 1:
        raise bad(
            "maximal_information",
            "alpha and clumps",
            (alpha, clumps),
            "above 0 and at most 1, and at least 1",
        )
    return max(_mic(a[:, i], b[:, j], alpha, clumps) for i in range(a.shape[1]) for j in range(b.shape[1]))


def _equal_shares(v: Tensor, parts: int) -> Tensor:
    """Which of `parts` groups of nearly equal size each value belongs to; ties stay together."""
    order, n = v.argsort(stable=True), len(v)
    ordered, row, filled = v[order], torch.empty(n, dtype=torch.int64), 0
    at = now = 0
    target = n / parts
    while at < n:
        end = int(torch.searchsorted(ordered, ordered[at], right=True))
        if filled and abs(filled + end - at - target) >= abs(filled - target):
            now, filled = now + 1, 0
            target = (n - at) / max(parts - now, 1)
        row[order[at:end]] = now
        filled += end - at
        at = end
    return row


def _mic(x: Tensor, y: Tensor, alpha: float, clumps: int) -> float:
    most = max(int(len(x) ** alpha), 4)
    best = 0.0
    for one, two in ((x, y), (y, x)):
        for rows in range(2, most // 2 + 1):
            columns = most // rows
            if columns < 2:
                break
            q = _equal_shares(two, rows)
            for k, information in _best_cuts(one, q, columns, clumps).items():
                best = max(best, information / math.log(min(k, int(q.max()) + 1))) if int(q.max()) else best
    return min(best, 1.0)


def _best_cuts(x: Tensor, q: Tensor, columns: int, clumps: int) -> dict[int, float]:
    """{k: the largest mutual information of q with x in at most k columns}, for k from 2 to `columns`."""
    order = x.argsort(stable=True)
    n, rows = len(x), int(q.max()) + 1
    values, place = torch.unique(x[order], return_inverse=True)  # ties stay together
    pieces = place if len(values) <= clumps * columns else _equal_shares(x[order], clumps * columns)
    count = torch.zeros(int(pieces.max()) + 1, rows, dtype=torch.float64).index_put_(
        (pieces, q[order]), torch.ones(n, dtype=torch.float64), accumulate=True
    )
    upto = torch.cat([torch.zeros(1, rows, dtype=torch.float64), count.cumsum(0)])  # [c + 1, rows]
    c = len(count)
    inside = upto[None] - upto[:, None]  # [from, to, rows]
    size = inside.sum(-1)
    # −n·H(q | column) of the column (from, to]
    cost = torch.special.xlogy(inside, inside / size.clamp(min=1)[..., None]).sum(-1)
    cost = torch.where(size > 0, cost, -math.inf)
    best, information = cost[0].clone(), {}  # one column up to each index
    whole = torch.special.xlogy(upto[-1], upto[-1] / n).sum()
    for k in range(2, columns + 1):
        best = torch.maximum(best, (best[:, None] + cost).max(0).values) if k <= c else best
        information[k] = float((best[c] - whole) / n)
    return information


def report(x: Any, z: Any, y: Any = None, sample: int = 500, seed: int = 0) -> dict[str, float]:
    """All measures for columns x and their activations z (and labels y), on a random sample of the rows."""
    a, b = _pair(x, z)
    rows = torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))[:sample]
    a, b = a[rows].detach(), b[rows].detach()
    # MIC is of pairs of columns: take those with the largest variance
    widest = [v[:, v.var(0).argsort(descending=True)[:4]] for v in (a, b)]
    measures = {
        "distance_correlation": float(distance_correlation(a, b)),
        "hsic": hsic(a, b),
        "constrained_covariance": constrained_covariance(a, b),
        "maximal_information": maximal_information(widest[0], widest[1]),
    }
    if y is not None:
        label = torch.as_tensor(y)[rows]
        kinds = torch.unique(label)
        measures["kernel_target_alignment"] = kernel_target_alignment(b, label)
        measures["mmd"] = mmd(b[label == kinds[-1]], b[label != kinds[-1]])
    return measures
