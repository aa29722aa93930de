"""The parties' models as one teacher, on rows without labels.

T. Lin, L. Kong, S. U. Stich, M. Jaggi: "Ensemble Distillation for Robust Model Fusion in Federated Learning"
(FedDF), NeurIPS 2020, Algorithm 1. H.-Y. Chen, W.-L. Chao: "FedBE: Making Bayesian Model Ensemble Applicable
to Federated Learning", ICLR 2021, Algorithm 1, with a Gaussian.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, real, whole
from .models import OfModels
from .stack import Updates


@dataclass(frozen=True)
class Distill(OfModels):
    """The mean of the models, then taught on unlabelled rows what they say together. It assumes honest
    parties and rows like theirs: breakdown point 0.

    `rows` is a tensor of rows without labels, or "test" for the federation's test rows; there is no default,
    since these are the server's to choose. `samples=0` is FedDF: the mean of the models' outputs is the
    teacher. With `samples` it is FedBE: so many models more are drawn from the Gaussian that the parties'
    models make, the mean model joins them, and the mean of their probabilities is the teacher.
    """

    rows: Any = field(default=None, compare=False)
    steps: int = whole(100, least=1, doc="steps of the student in a round")
    lr: float = real(1e-3, above=0, doc="the student's learning rate (Adam)")
    batch_size: int = whole(128, least=1, doc="rows of a step; all of them, where there are fewer")
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
                "Distill",
                "rows",
                self.rows,
                "a tensor of rows without labels, or 'test' for the federation's test rows",
                "A job file cannot hold a tensor: give it from Python.",
            )

    def ready(self, tests: list[Tensor]) -> None:
        if self.rows is None:
            raise bad(
                "Distill",
                "rows",
                None,
                "a tensor of rows without labels, or 'test' for the federation's test rows",
                "Rows that accuracy is measured on are then learned from, though not their labels: better "
                "give others.",
            )
        for rows in tests:
            found = rows if isinstance(self.rows, str) else self.rows
            if not len(found):
                raise BadData(
                    "Distill: there are no rows to distil on. Give a tensor of rows without labels."
                )
            if found.shape[1:] != rows.shape[1:]:
                raise BadData(
                    f"Distill: its rows have shape {tuple(found.shape[1:])}, and the federation's "
                    f"{tuple(rows.shape[1:])}. "
                    "Give rows like the parties'."
                )

    def as_table(self) -> dict[str, Any]:
        rows = (
            {}
            if self.rows is None
            else {"rows": self.rows if isinstance(self.rows, str) else f"tensor {digest(self.rows)}"}
        )
        return {
            "name": "Distill",
            **rows,
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "rows"},
        }

    def __repr__(self) -> str:
        return "Distill(" + ", ".join(f"{k}={v!r}" for k, v in self.as_table().items() if k != "name") + ")"

    def of_models(
        self, updates: Updates, mean: dict[str, Tensor], models: Any, told: Any
    ) -> dict[str, Tensor]:
        task, w = told.task, told.w
        x = (told.test if isinstance(self.rows, str) else self.rows).to(w.device)
        draw = torch.Generator().manual_seed(told.round)  # nothing is hidden by these draws
        start, shared = models.of(mean), mean.get("buffers", told.buffers)
        classes = task.loss_name == "cross_entropy"
        total, n = torch.zeros(()), 0
        for model, buffers in self._teachers(updates, models, start, shared, draw):
            out = task.predict(model, x, buffers)
            total, n = total.to(out) + (out.softmax(-1) if classes and self.samples else out), n + 1
        wanted = total / n
        wanted = wanted.softmax(-1) if classes and not self.samples else wanted
        return {"model": self._student(task, start, shared, x, wanted, draw)}

    def _teachers(
        self, updates: Updates, models: Any, start: Tensor, shared: Tensor | None, draw: torch.Generator
    ) -> Any:
        for i in range(len(updates)):
            own = models.one(updates, i)
            yield own["model"], own.get("buffers", shared)
        if self.samples:
            share = updates.weights.double() / updates.weights.sum()
            spread = torch.zeros_like(start, dtype=torch.float64)
            for i in range(len(updates)):
                spread += share[i].to(spread) * (models.one(updates, i)["model"] - start).double().square()
            for _ in range(self.samples):
                yield (
                    start + spread.sqrt().to(start) * torch.randn(start.shape, generator=draw).to(start),
                    shared,
                )
            yield start, shared

    def _student(
        self, task: Any, w: Tensor, buffers: Tensor | None, x: Tensor, wanted: Tensor, draw: torch.Generator
    ) -> Tensor:
        m, v = torch.zeros_like(w), torch.zeros_like(w)
        for t in range(1, self.steps + 1):
            some = (
                slice(None)
                if self.batch_size >= len(x)
                else torch.randperm(len(x), generator=draw)[: self.batch_size].to(x.device)
            )
            g = task.imitate(w, x[some], wanted[some], buffers)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g  # Adam's usual β
            w = w - self.lr * m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        return w


def digest(rows: Tensor) -> str:
    """Names a tensor in a job file, so that a run is resumed with the same."""
    held = rows.detach().cpu().contiguous()
    return hashlib.blake2b(
        f"{held.dtype} {tuple(held.shape)}".encode() + held.reshape(-1).view(torch.uint8).numpy().tobytes(),
        digest_size=8,
    ).hexdigest()
