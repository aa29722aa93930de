"""Secure aggregation: Bonawitz et al., CCS 2017, or with `neighbors`, Bell et al., CCS 2020.

The stage declares what the sum needs; the messages are in protocols/secagg.py. A simulation adds
the integers in one place, which is what the protocol computes, and records this in its ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadParameter
from ..parameters import choice, whole
from .hiding import HidingStage


@dataclass(frozen=True)
class SecAgg(HidingStage):
    """The server sees only the sum of at least `threshold` of the updates.

    Against an `active` server, lists and keys are signed.
    """

    adversary: str = choice(
        "curious",
        ("curious", "active"),
        doc="curious: the server follows the protocol; active: it may deviate from it",
    )
    neighbors: int | None = whole(
        None,
        least=2,
        none=True,
        doc="k, the number of others a party masks with, even; None: all. secagg_graph.degree gives a safe k",
    )

    def check(self) -> None:
        if self.neighbors is not None and self.neighbors % 2:
            raise BadParameter(
                f"SecAgg: neighbors is {self.neighbors!r}; it must be even, because a party has as many on "
                f"either side. Use {self.neighbors + 1}."
            )
        if self.adversary == "active" and not self.threshold > 2 / 3:
            raise BadParameter(
                f"SecAgg: threshold is {self.threshold!r}; it must be above 2/3 against an active server, "
                "which may send different messages to two halves of the parties."
            )
        if self.adversary == "active" and self.neighbors is not None:
            raise BadParameter(
                f"SecAgg: neighbors is {self.neighbors!r}; it must be None against an active server, "
                "which could choose a party's neighbors."
            )
