"""What a run minimizes, with everything that depends on the data filled in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ...config.train import BALANCED, TrainConfig
from ...data.federation import Federation
from ...data.pipeline import Pipeline
from ...parameters import bad
from .preparing import program_of
from .table_defaults import default_l2

if TYPE_CHECKING:
    from .plan import Plan


def resolve_loss(config: TrainConfig, fed: Federation) -> dict[str, Any]:
    """Return the loss and the penalty of a run, where the options leave them open."""
    return {
        "loss": config.loss or default_loss(fed),
        "l2": default_l2(config, fed) if config.l2 is None else config.l2,
        "is_l2_given": config.l2 is not None,
    }


def default_loss(fed: Federation) -> str:
    """Return the usual loss of these labels."""
    if fed.classes is not None:
        return "cross_entropy"
    y = fed.rows.y
    return "bce" if y.dim() > 1 and bool(((y == 0) | (y == 1) | (y == -1)).all()) else "mse"


def outputs_of(fed: Federation) -> int:
    """Return how many outputs a model of these rows needs: one for each class, label or target."""
    return fed.classes or (math.prod(fed.rows.y.shape[1:]) if fed.rows.y.dim() > 1 else 1)


def weigh_classes(p: Plan) -> tuple[float, ...] | str | None:
    """Return the weight of each class, in the order of the classes; None: all weigh 1.

    Between real parties "balanced" stays: the weights follow from the preparation (`balance_classes`).
    """
    given, fed = p.class_weight, p.fed
    if given is None or fed.classes is None:
        return None
    if given == BALANCED and p.runtime == "parties":
        if program_of(p, p.through.layout) is None:
            raise bad(
                "train",
                "class_weight",
                given,
                "weights by label, such as { ill = 4, healthy = 1 }, where parties do not prepare their "
                "tables together",
                "'balanced' needs the label counts of all parties, which are summed with the statistics of "
                "the tables: by default with three parties or more, or with fit = 'federated' in [data].",
            )
        return BALANCED
    if given == BALANCED:
        return balance(count_labels(fed).tolist())
    labels = fed.labels or tuple(map(str, range(fed.classes)))
    if isinstance(given, dict):
        if set(given) != set(labels):
            raise bad("train", "class_weight", given, f"by label, with a weight for each of {list(labels)}")
        return tuple(given[label] for label in labels)
    if len(given) != fed.classes:
        raise bad("train", "class_weight", list(given), f"of {fed.classes} numbers, one for each of {labels}")
    return tuple(given)


def count_labels(fed: Federation) -> torch.Tensor:
    """[C]: how many training rows of all parties have each label, the sum of the parties' counts."""
    y = fed.rows.y[fed.train.index].flatten()
    return torch.bincount(y[y >= 0], minlength=fed.classes or 0)


def balance(counts: Sequence[int]) -> tuple[float, ...]:
    """Return n / (C · n_c) for each class, as scikit-learn's "balanced"; a class without rows weighs 1."""
    n, present = sum(counts), sum(c > 0 for c in counts)
    return tuple(n / (present * c) if c else 1.0 for c in counts)


def balance_classes(p: Plan, pipeline: Pipeline | None) -> Plan:
    """Return the plan with the weights that follow from a preparation's label counts, if it asks for them."""
    if p.class_weight != BALANCED or pipeline is None:
        return p
    return replace(p, class_weight=balance(pipeline.label_counts))
