"""Sparsification: send few numbers, and keep the rest for the next round.

S. U. Stich, J.-B. Cordonnier, M. Jaggi: "Sparsified SGD with Memory", NeurIPS 2018, Algorithm 1: top-k and
random-k with error feedback.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import flag, real
from .stage import Clients, Form, Stage, State, needs, refuse


@dataclass(frozen=True)
class Sparsify(Stage):
    """Send k of D numbers: the largest ones (`top_k`), or random positions that all share (`random_k`)."""

    top_k: float | None = real(
        None, above=0, most=1, none=True, doc="the share of numbers sent: each client's largest"
    )
    random_k: float | None = real(
        None,
        above=0,
        most=1,
        none=True,
        doc="the share of numbers sent: random positions, new in every round, the same for all",
    )
    feedback: bool = flag(
        True, doc="error feedback: add what was not sent to the next update; it stays at the party"
    )
    place: ClassVar[int] = 20

    @property
    def sparse(self) -> bool:  # type: ignore[override]
        return self.top_k is not None

    def check(self) -> None:
        if (self.top_k is None) == (self.random_k is None):
            raise BadParameter(
                f"Sparsify: top_k is {self.top_k!r} and random_k is {self.random_k!r}; exactly one must be "
                "set, such as top_k=0.01."
            )

    def check_with(self, others: tuple[Stage, ...]) -> None:
        if self.top_k is None:
            return
        for other in others:
            if other.hides or other.placement in ("local", "distributed"):
                raise refuse(
                    self,
                    "with top_k sends positions that each client chooses, which reveal something, and "
                    f"{type(other).__name__} must fill every position, so that nothing is saved. Use "
                    "random_k, whose positions all clients share.",
                )

    def count(self, form: Form) -> int:
        share = self.top_k if self.top_k is not None else self.random_k
        assert share is not None
        return max(1, round(share * form.dimension))

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "real")
        return form if self.top_k is not None else replace(form, dimension=self.count(form), layers=())

    def client_state(self, form: Form) -> State:
        return {"sparsify.error": torch.zeros(form.dimension)} if self.feedback else {}

    def positions(self, form: Form) -> Tensor:
        """The positions of the round, which everybody derives from the job's public seed."""
        seed = hashlib.blake2b(repr((form.shared, form.round, "sparsify")).encode(), digest_size=16).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little")))
        return torch.from_numpy(np.sort(rng.choice(form.dimension, self.count(form), replace=False)))

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        if self.feedback:
            vector = vector + me.memory["sparsify.error"].to(torch.float64)
        if self.top_k is not None:
            at = vector.abs().topk(self.count(form), dim=1).indices
            sent = torch.zeros_like(vector).scatter(1, at, vector.gather(1, at))
            values = sent
        else:
            positions = self.positions(form)
            values = vector[:, positions]
            sent = torch.zeros_like(vector)
            sent[:, positions] = values
            if not self.feedback:
                values = values * (form.dimension / len(positions))  # unbiased
        if self.feedback:
            me.memory["sparsify.error"] = (vector - sent).to(torch.float32)
        return values

    def back(self, total: Tensor, n: float, form: Form, state: State) -> tuple[Tensor, State]:
        if self.top_k is not None:
            return total, state
        return torch.zeros(form.dimension, dtype=torch.float64).index_copy(
            0, self.positions(form), total
        ), state
