"""LightSecAgg: secure aggregation with one recovery, however many parties drop out. So et al., MLSys 2022.

The stage declares what the sum needs; the messages are in protocols/lightsecagg.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import BadParameter
from ..parameters import real, whole
from .stage import Form, Stage, State, needs, refuse

BITS = 31  # the protocol's field has 2^32 − 5 elements, and sums may be negative


@dataclass(frozen=True)
class LightSecAgg(Stage):
    """The server sees only the sum of at least `threshold` of the updates.

    This holds also if it colludes with the share `colluding` of the parties.
    """

    threshold: float = real(
        0.7, above=0.5, most=1.0, doc="U/N, the share of a round's parties that must remain to the end"
    )
    colluding: float = real(
        0.5,
        least=0.0,
        below=1.0,
        doc="T/N, the share that may collude with the server; uploads grow as 1/(U − T)",
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
        if self.colluding >= self.threshold:
            raise BadParameter(
                f"LightSecAgg: colluding is {self.colluding!r}; it must be below threshold "
                f"({self.threshold!r}): more parties must remain than may collude."
            )

    def survivors(self, clients: int) -> int:
        return max(2, math.ceil(self.threshold * clients))

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "ring")
        if form.clients < 2:
            raise BadParameter(
                f"guard: LightSecAgg hides one update among several, and {form.clients} takes part in a "
                "round. Use at least 2 clients, better 3."
            )
        if max(1, math.floor(self.colluding * form.clients)) >= self.survivors(form.clients):
            raise refuse(
                self,
                f"with {form.clients} parties needs {self.survivors(form.clients)} to remain, and as many "
                "may collude. Increase threshold, or decrease colluding.",
            )
        if 2 * form.clients * form.limit >= 2**BITS:
            raise refuse(
                self,
                f"adds in a field of {BITS} bits, and Quantize has {form.bits}. Use Quantize(bits={BITS}) "
                "or fewer.",
            )
        return replace(form, space="masked")
