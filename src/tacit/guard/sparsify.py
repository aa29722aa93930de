"""Send few numbers, and keep what was not sent for the next time.

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
    """Of D numbers send the k largest (`top_k`) or k places that all clients share and that change every
    round (`random_k`).
    """

    top_k: float | None = real(
        None, above=0, most=1, none=True, doc="the share of numbers sent, the largest of each client"
    )
    random_k: float | None = real(
        None,
        above=0,
        most=1,
        none=True,
        doc="the share of numbers sent, at places drawn anew every round, the same for all",
    )
    feedback: bool = flag(True, doc="add what was not sent to the next update; it stays at the party")
    place: ClassVar[int] = 20

    @property
    def sparse(self) -> bool:  # type: ignore[override]
        return self.top_k is not None

    def check(self) -> None:
        if (self.top_k is None) == (self.random_k is None):
            raise BadParameter(
                f"Sparsify: top_k is {self.top_k!r} and random_k is {self.random_k!r}; give one of them, "
                "such as top_k=0.01."
            )

    def beside(self, others: tuple[Stage, ...]) -> None:
        if self.top_k is None:
            return
        for other in others:
            if other.hides or other.placement in ("local", "distributed"):
                raise refuse(
                    self,
                    f"with top_k sends places that each client chooses, and {type(other).__name__} must "
                    "fill every place, so that "
                    "nothing is saved and the places themselves would tell. Use random_k, whose places all "
                    "clients share.",
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

    def places(self, form: Form) -> Tensor:
        """The round's places: everybody derives them alike from the job's seed, and they are no secret."""
        seed = hashlib.blake2b(repr((form.shared, form.round, "sparsify")).encode(), digest_size=16).digest()
        chosen = np.random.Generator(np.random.Philox(key=int.from_bytes(seed, "little"))).choice(
            form.dimension, self.count(form), replace=False
        )
        return torch.from_numpy(np.sort(chosen))

    def out(self, vector: Tensor, me: Clients, form: Form) -> Tensor:
        if self.feedback:
            vector = vector + me.memory["sparsify.error"].to(torch.float64)
        if self.top_k is not None:
            at = vector.abs().topk(self.count(form), dim=1).indices
            sent = torch.zeros_like(vector).scatter(1, at, vector.gather(1, at))
            kept = sent
        else:
            places = self.places(form)
            kept = vector[:, places]
            sent = torch.zeros_like(vector)
            sent[:, places] = kept
            if not self.feedback:
                kept = kept * (form.dimension / len(places))  # right on average
        if self.feedback:
            me.memory["sparsify.error"] = (vector - sent).to(torch.float32)
        return kept

    def back(self, total: Tensor, n: float, form: Form, state: State) -> tuple[Tensor, State]:
        if self.top_k is not None:
            return total, state
        return torch.zeros(form.dimension, dtype=torch.float64).index_copy(0, self.places(form), total), state
