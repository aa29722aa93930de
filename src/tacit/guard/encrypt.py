"""Add the updates up encrypted: the server holds ciphertexts and no key (CKKS through TenSEAL, extra `he`).

The stage says what the sum needs; the messages are in protocols/encrypted.py, the arithmetic and its security
level in crypto/ckks.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import BadParameter
from ..parameters import real, whole
from .stage import Form, Stage, State, needs, refuse

BITS = 32  # of a sum in one slot


@dataclass(frozen=True)
class Encrypt(Stage):
    """The server adds ciphertexts and has no key; the parties share it. One party in league with the server
    opens everything: SecAgg has no such party. Two of them open the sum, and see it.
    """

    threshold: float = real(
        0.6, above=0.0, most=1.0, doc="the share of a round's parties whose updates must be in the sum"
    )
    within: float = real(
        60.0,
        above=0,
        doc="seconds for each step of the sum, after which whoever has not answered is left out",
    )
    tries: int = whole(
        3, least=1, doc="how often a round is tried when too few stay for a sum, before the run ends"
    )
    max_rows: int | None = whole(
        None,
        least=1,
        none=True,
        doc="the most rows a party's weight counts; between real parties given by everyone alike, None "
        "elsewhere: the largest party's, rounded up to a power of two",
    )
    place: ClassVar[int] = 60
    hides: ClassVar[bool] = True

    def beside(self, others: tuple[Stage, ...]) -> None:
        if any(other.placement == "central" for other in others):
            raise refuse(
                self,
                "has two of the clients open the sum, who would see it before the server adds its noise. Use "
                "Noise(placement='distributed'), or SecAgg in its place.",
            )

    def survivors(self, clients: int) -> int:
        return max(2, math.ceil(self.threshold * clients))

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "ring")
        if form.clients < 2:
            raise BadParameter(
                f"guard: Encrypt hides one update among several, and {form.clients} takes part in a round. "
                "Take at least 2, better 3."
            )
        if 2 * form.clients * form.limit >= 2**BITS:
            raise refuse(
                self,
                f"adds up in slots of {BITS} bits, and Quantize leaves {form.bits}. Use "
                f"Quantize(bits={BITS}) or fewer.",
            )
        return replace(form, space="cipher")
