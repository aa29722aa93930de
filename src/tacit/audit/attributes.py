"""Attribute inference: a hidden column of a row from the other columns, its label and a model.

M. Fredrikson, E. Lantz, S. Jha, S. Lin, D. Page, T. Ristenpart: "Privacy in Pharmacogenetics", USENIX
Security 2014, Figure 3. S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha: "Privacy Risk in Machine Learning",
CSF 2018, section 5: the advantage is the difference between members and non-members, since what is right
about non-members, too, is a fact about the population and not about the row (B. Jayaraman, D. Evans: "Are
Attribute Inference Attacks Just Imputation?", CCS 2022).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Score = Callable[[Tensor], Tensor]  # rows [N, F] → log-likelihood of each row's label [N]


def guess_values(score: Score, x: Tensor, columns: Tensor, values: Tensor, prior: Tensor) -> Tensor:
    """[N]: for each row the value of maximal P(label | row with the value) · P(value).

    `columns` are the features of the hidden column (several, if it is one-hot), `values` [V, columns].
    """
    each = []
    for value, share in zip(values, prior):
        tried = x.clone()
        tried[:, columns] = value
        each.append(score(tried) + share.clamp(min=1e-12).log())
    return torch.stack(each, 1).argmax(1)


def nearest_value(x: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """[N]: the true value of each row, the nearest of `values`."""
    nearest: Tensor = torch.cdist(x[:, columns].double(), values.double()).argmin(1)
    return nearest


def common_values(x: Tensor, columns: Tensor, most: int) -> Tensor:
    """[V, columns]: the distinct values of a column, or quantiles if there are more than `most`."""
    values: Tensor
    values, counts = x[:, columns].unique(dim=0, return_counts=True)
    if len(values) <= most:
        return values
    if len(columns) > 1:
        frequent: Tensor = values[counts.argsort(descending=True)[:most]]
        return frequent
    at = (torch.arange(most, dtype=torch.float64) + 0.5) / most
    cuts: Tensor = x[:, columns[0]].double().quantile(at).unique().float()[:, None]
    return cuts
