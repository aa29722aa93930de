"""The way of a row from a table to a prediction: columns, categories, statistics, labels and threshold.

A federation from a table has one (`Federation.pipeline`). It is fitted across parties, saved with the run as
`pipeline.json`, and applied to one row or a million.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..errors import BadData
from .cells import to_text
from .preparation import Preparation
from .recipe import Recipe

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "pipeline.json"


@dataclass(frozen=True)
class Pipeline:
    """How rows of a table become the input of a model, and what its output means.

    `labels` are the names of the classes, () for a regression. `target` is the (mean, standard deviation) by
    which a regression target is standardized: prediction = output · std + mean. `threshold` is the
    probability from which the second of two classes is predicted; None: the more probable class.
    `label_counts` are the training rows of all parties with each label, where class_weight = "balanced"
    needed them; () otherwise.
    """

    recipe: Recipe
    label: str = ""
    labels: tuple[str, ...] = ()
    target: tuple[float, float] = (0.0, 1.0)
    threshold: float | None = None
    label_counts: tuple[int, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the encoded features."""
        return self.recipe.columns

    def encode(self, frame: DataFrame) -> Tensor:
        """Return the rows of a table as the model's input, [row, feature] of float32 without NaN.

        Values and missing cells are handled as declared; labels are not needed. Raises BadData that names
        the columns the table lacks.
        """
        return self.recipe.transform(frame)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; `from_dict` of it is this pipeline again."""
        return {
            "recipe": self.recipe.to_dict(),
            "label": self.label,
            "labels": list(self.labels),
            "target": list(self.target),
            "threshold": self.threshold,
            "label_counts": list(self.label_counts),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Pipeline:
        """Return the pipeline of `to_dict`; raise BadData if it is not one."""
        known = ("recipe", "label", "labels", "target", "threshold", "label_counts")
        if not isinstance(values, Mapping) or set(values) != set(known):
            raise BadData(f"a pipeline has the keys {', '.join(known)}, and this one does not.")
        label, labels, target, threshold, counts = (values[key] for key in known[1:])
        fine = (
            isinstance(label, str)
            and isinstance(labels, list)
            and all(isinstance(text, str) for text in labels)
            and isinstance(target, list)
            and len(target) == 2
            and all(_is_finite(v) for v in target)
            and target[1] > 0
            and (threshold is None or (_is_finite(threshold) and 0 <= threshold <= 1))
            and isinstance(counts, list)
            and all(type(n) is int and n >= 0 for n in counts)
            and len(counts) in (0, len(labels))
        )
        if not fine:
            raise BadData(
                "the values are not those of a pipeline: a label and labels are text, target is a mean and a "
                "standard deviation above 0, threshold is None or from 0 to 1, and label_counts are none, or "
                "one for each label."
            )
        pair = (float(target[0]), float(target[1]))
        recipe = Recipe.from_dict(values["recipe"])
        chosen = None if threshold is None else float(threshold)
        return cls(recipe, label, tuple(labels), pair, chosen, tuple(counts))


@dataclass(frozen=True)
class PipelinePreparation:
    """A `SumProgram` over parties' training rows that returns the fitted pipeline.

    It is the `Preparation` of the pipeline's recipe; for a regression the target is one more number of it,
    which is neither winsorized nor imputed. With `counts_labels`, step 0 of a classification has how many
    rows have each label, too.
    """

    pipeline: Pipeline
    counts_labels: bool = False

    @property
    def inner(self) -> Preparation:
        p = self.pipeline
        if p.labels:
            return Preparation(p.recipe)
        recipe = p.recipe
        scaling = recipe.scaling
        recipe = replace(recipe, numbers=(*recipe.numbers, p.label), scaling=scaling)
        return Preparation(recipe, (p.label,), is_regression=True)

    @property
    def max_steps(self) -> int:
        return self.inner.max_steps

    @property
    def bound(self) -> int:
        return self.inner.bound

    def length(self, step: int, down: Mapping[str, Tensor]) -> int:
        return self.inner.length(step, down) + (len(self._counted) if step == 0 else 0)

    def local(self, step: int, table: DataFrame, down: Mapping[str, Tensor]) -> np.ndarray:
        mine = self.inner.local(step, table, down)
        return np.concatenate([mine, self.count_labels(table)]) if step == 0 and self._counted else mine

    def preceding(self, step: int, down: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the step before was sent, if this step was sent `down`."""
        return self.inner.preceding(step, down)

    @property
    def _counted(self) -> tuple[str, ...]:
        """The labels that are counted."""
        return self.pipeline.labels if self.counts_labels else ()

    def count_labels(self, table: DataFrame) -> np.ndarray:
        """Return how many rows of a party have each label, in the order of the labels."""
        found = to_text(table[self.pipeline.label])
        counts = np.array([(found == label).sum() for label in self.pipeline.labels], dtype=np.int64)
        if counts.sum() < len(table):
            raise BadData(
                f"the label {self.pipeline.label!r} has values that are not among its agreed labels, "
                f"{', '.join(self.pipeline.labels)}."
            )
        return counts

    def coordinate(self) -> Generator[Mapping[str, Tensor], np.ndarray, Pipeline]:
        steps, p = self.inner.coordinate(), self.pipeline
        total = yield next(steps)
        mine = len(total) - len(self._counted)
        counts, total = tuple(total[mine:].tolist()), total[:mine]
        while True:
            try:
                down = steps.send(total)
            except StopIteration as end:
                fitted: Recipe = end.value
                break
            total = yield down
        if p.labels:
            return replace(p, recipe=fitted, label_counts=counts)
        assert fitted.mean is not None
        assert fitted.std is not None
        place = fitted.numeric.index(p.label)
        return replace(p, recipe=fitted.without(p.label), target=(fitted.mean[place], fitted.std[place]))


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False
