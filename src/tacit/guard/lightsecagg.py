"""LightSecAgg: secure aggregation with one recovery, however many parties drop out. So et al., MLSys 2022.

The stage declares what the sum needs; the messages are in protocols/lightsecagg.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..errors import BadParameter
from ..parameters import real
from .hiding import HidingStage
from .stage import Form, State, refuse


@dataclass(frozen=True)
class LightSecAgg(HidingStage):
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
    # the protocol's field has 2^32 − 5 elements, and sums may be negative
    sum_space: ClassVar[tuple[str, int]] = ("a field", 31)

    def check(self) -> None:
        if self.colluding >= self.threshold:
            raise BadParameter(
                f"LightSecAgg: colluding is {self.colluding!r}; it must be below threshold "
                f"({self.threshold!r}): more parties must remain than may collude."
            )

    def form(self, form: Form, state: State) -> Form:
        after = super().form(form, state)
        if max(1, math.floor(self.colluding * form.clients)) >= self.survivors(form.clients):
            raise refuse(
                self,
                f"with {form.clients} parties needs {self.survivors(form.clients)} to remain, and as many "
                "may collude. Increase threshold, or decrease colluding.",
            )
        return after
