"""Ensemble distillation: the parties' models teach the server's model on unlabeled rows.

T. Lin, L. Kong, S. U. Stich, M. Jaggi: "Ensemble Distillation for Robust Model Fusion in Federated Learning"
(FedDF), NeurIPS 2020, Algorithm 1. H.-Y. Chen, W.-L. Chao: "FedBE: Making Bayesian Model Ensemble Applicable
to Federated Learning", ICLR 2021, Algorithm 1, with a Gaussian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, real, whole
from .models import BoundModelRule, ModelCoding, ModelRule
from .rule import State
from .stack import Updates

ROWS = "a tensor of rows without labels, or 'test' for the federation's test rows"


@dataclass(frozen=True)
class Distill(ModelRule):
    """The mean of the models, then trained on unlabeled rows to predict what the models predict together.

    It assumes honest parties and rows like theirs: breakdown point 0.

    `rows` is a tensor of rows without labels, or "test" for the federation's test rows. It has no default,
    because the server has to choose them. `samples=0` is FedDF: the mean of the models' outputs is the
    teacher. `samples` > 0 is FedBE: that many more models are drawn from the Gaussian that fits the
    parties' models, the mean model joins them, and the mean of their probabilities is the teacher.
    """

    rows: Any = field(default=None, compare=False)
    steps: int = whole(100, least=1, doc="training steps of the student in a round")
    lr: float = real(1e-3, above=0, doc="the student's learning rate (Adam)")
    batch_size: int = whole(128, least=1, doc="rows of a step; all rows, if there are fewer")
    samples: int = whole(
        0, least=0, doc="models drawn from the Gaussian around the mean model; 0: none (FedDF)"
    )

    def check(self) -> None:
        if not (
            self.rows is None
            or isinstance(self.rows, Tensor)
            or (isinstance(self.rows, str) and self.rows == "test")
        ):
            raise bad(
                "Distill", "rows", self.rows, ROWS, "A job file cannot hold a tensor: pass it in Python."
            )

    def check_data(self, tests: list[Tensor]) -> None:
        if self.rows is None:
            raise bad(
                "Distill",
                "rows",
                None,
                ROWS,
                "With 'test', the model learns from the rows that accuracy is measured on, though not from "
                "their labels: prefer other rows.",
            )
        for test in tests:
            rows = test if isinstance(self.rows, str) else self.rows
            if not len(rows):
                raise BadData(
                    "Distill: there are no rows to distill on. Pass a tensor of rows without labels."
                )
            if rows.shape[1:] != test.shape[1:]:
                raise BadData(
                    f"Distill: its rows have shape {tuple(rows.shape[1:])}, and the federation's have shape "
                    f"{tuple(test.shape[1:])}. Pass rows like the parties'."
                )

    def as_table(self) -> dict[str, Any]:
        table = {"name": "Distill", **{f.name: getattr(self, f.name) for f in fields(self)}}
        if isinstance(self.rows, Tensor):
            table["rows"] = f"tensor {digest(self.rows)}"
        return {k: v for k, v in table.items() if v is not None}

    def __repr__(self) -> str:
        return "Distill(" + ", ".join(f"{k}={v!r}" for k, v in self.as_table().items() if k != "name") + ")"

    def aggregate_models(
        self, updates: Updates, mean: State, models: ModelCoding, bound: BoundModelRule
    ) -> State:
        task, w = bound.task, bound.w
        x = (bound.test if isinstance(self.rows, str) else self.rows).to(w.device)
        rng = torch.Generator().manual_seed(bound.round)  # reproducible: these draws protect nothing
        start, buffers = models.decode(mean), mean.get("buffers", bound.buffers)
        classes = task.objective.is_classification
        total, n = torch.zeros(()), 0
        for model, own_buffers in self._teachers(updates, models, start, buffers, rng):
            out = task.predict(model, x, own_buffers)
            total, n = total.to(out) + (out.softmax(-1) if classes and self.samples else out), n + 1
        target = total / n
        target = target.softmax(-1) if classes and not self.samples else target
        return {"model": self._train_student(task, start, buffers, x, target, rng)}

    def _teachers(
        self,
        updates: Updates,
        models: ModelCoding,
        mean: Tensor,
        buffers: Tensor | None,
        rng: torch.Generator,
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        for i in range(len(updates)):
            own = models.of_party(updates, i)
            yield own["model"], own.get("buffers", buffers)
        if self.samples:
            share = updates.weights.double() / updates.weights.sum()
            variance = torch.zeros_like(mean, dtype=torch.float64)
            for i in range(len(updates)):
                variance += (
                    share[i].to(variance) * (models.of_party(updates, i)["model"] - mean).double().square()
                )
            for _ in range(self.samples):
                noise = torch.randn(mean.shape, generator=rng).to(mean)
                yield mean + variance.sqrt().to(mean) * noise, buffers
            yield mean, buffers

    def _train_student(
        self, task: Any, w: Tensor, buffers: Tensor | None, x: Tensor, target: Tensor, rng: torch.Generator
    ) -> Tensor:
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for t in range(1, self.steps + 1):
            rows = (
                slice(None)
                if self.batch_size >= len(x)
                else torch.randperm(len(x), generator=rng)[: self.batch_size].to(x.device)
            )
            g = task.distillation_gradient(w, x[rows], target[rows], buffers)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g  # Adam's usual β
            w = w - self.lr * m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        return w


def digest(rows: Tensor) -> str:
    """A digest of a tensor, by which a job file names it: a run must be resumed with the same rows."""
    flat = rows.detach().cpu().contiguous()
    return hashlib.blake2b(
        f"{flat.dtype} {tuple(flat.shape)}".encode() + flat.reshape(-1).view(torch.uint8).numpy().tobytes(),
        digest_size=8,
    ).hexdigest()
