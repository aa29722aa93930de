"""What the stages that hide single updates have in common: SecAgg, LightSecAgg and Encrypt."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import BadParameter
from ..parameters import real, whole
from .stage import Form, Stage, State, needs, refuse


@dataclass(frozen=True)
class HidingStage(Stage):
    """The server sees only the sum of at least `threshold` of the updates.

    A subclass declares what the sum needs. The messages are in protocols/.
    """

    threshold: float = real(
        0.6,
        above=0.5,
        most=1.0,
        doc="the share of a round's parties that must remain to the end; with fewer there is no sum",
    )
    within: float = real(
        60.0,
        above=0,
        doc="seconds for each step of the sum; parties that have not answered by then are left out",
    )
    tries: int = whole(
        3, least=1, doc="how often a round is tried if too few parties remain for a sum, before the run fails"
    )
    max_rows: int | None = whole(
        None,
        least=1,
        none=True,
        doc="the largest weight of a party, in rows. Deployed parties must all set the same; otherwise None: "
        "the rows of the largest party, rounded up to a power of two",
    )
    place: ClassVar[int] = 60
    hides: ClassVar[bool] = True
    space: ClassVar[str] = "masked"
    # what the sum of one number is computed in, and its bits; None: a ring that fits Quantize
    sum_space: ClassVar[tuple[str, int] | None] = None

    def survivors(self, clients: int) -> int:
        return max(2, math.ceil(self.threshold * clients))

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "ring")
        if form.clients < 2:
            raise BadParameter(
                f"guard: {type(self).__name__} hides one update among several, and {form.clients} takes part "
                "in a round. Use at least 2 clients, better 3."
            )
        if self.sum_space is not None and 2 * form.clients * form.limit >= 2 ** self.sum_space[1]:
            where, bits = self.sum_space
            raise refuse(
                self,
                f"adds in {where} of {bits} bits, and Quantize has {form.bits}. Use Quantize(bits={bits}) or "
                "fewer.",
            )
        return replace(form, space=self.space)
