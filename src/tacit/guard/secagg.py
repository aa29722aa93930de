"""Secure aggregation: Bonawitz et al., CCS 2017, or with `neighbours`, Bell et al., CCS 2020.

The stage declares what the sum needs; the messages are in protocols/secagg.py. A simulation adds
the integers in one place, which is what the protocol computes, and records this in its ledger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import BadParameter
from ..parameters import choice, real, whole
from .stage import Form, Stage, State, needs


@dataclass(frozen=True)
class SecAgg(Stage):
    """The server sees only the sum of at least `threshold` of the updates.

    Against an `active` server, lists and keys are signed.
    """

    threshold: float = real(
        0.6,
        above=0.5,
        most=1.0,
        doc="the share of a round's parties that must remain to the end; with fewer there is no sum",
    )
    adversary: str = choice(
        "curious",
        ("curious", "active"),
        doc="curious: the server follows the protocol; active: it may deviate from it",
    )
    neighbours: int | None = whole(
        None,
        least=2,
        none=True,
        doc="k, the number of others a party masks with, even; None: all. secagg_graph.degree gives a safe k",
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

    def check(self) -> None:
        if self.neighbours is not None and self.neighbours % 2:
            raise BadParameter(
                f"SecAgg: neighbours is {self.neighbours!r}; it must be even, because a party has as many on "
                f"either side. Use {self.neighbours + 1}."
            )
        if self.adversary == "active" and not self.threshold > 2 / 3:
            raise BadParameter(
                f"SecAgg: threshold is {self.threshold!r}; it must be above 2/3 against an active server, "
                "which may send different messages to two halves of the parties."
            )
        if self.adversary == "active" and self.neighbours is not None:
            raise BadParameter(
                f"SecAgg: neighbours is {self.neighbours!r}; it must be None against an active server, "
                "which could choose a party's neighbours."
            )

    def survivors(self, clients: int) -> int:
        return max(2, math.ceil(self.threshold * clients))

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "ring")
        if form.clients < 2:
            raise BadParameter(
                f"guard: SecAgg hides one update among several, and {form.clients} takes part in a round. "
                "Use at least 2 clients, better 3."
            )
        return replace(form, space="masked")
