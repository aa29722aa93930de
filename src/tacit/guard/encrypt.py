"""Homomorphic encryption: the server adds ciphertexts and has no key (CKKS through TenSEAL, extra `he`).

The stage declares what the sum needs; the messages are in protocols/encrypted.py, the arithmetic and its
security level in crypto/ckks.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import BadParameter
from ..parameters import real, whole
from .stage import Form, Stage, State, needs, refuse

BITS = 32  # of the sum in one slot


@dataclass(frozen=True)
class Encrypt(Stage):
    """The server adds ciphertexts and has no key; the parties share the key.

    One party that colludes with the server can decrypt everything, which is not so with SecAgg. Two of the
    parties decrypt the sum, and see it.
    """

    threshold: float = real(
        0.6, above=0.0, most=1.0, doc="the share of a round's parties whose updates must be in the sum"
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

    def check_with(self, others: tuple[Stage, ...]) -> None:
        if any(other.placement == "central" for other in others):
            raise refuse(
                self,
                "lets two of the clients decrypt the sum, who would see it before the server adds its "
                "noise. Use Noise(placement='distributed'), or SecAgg instead.",
            )

    def survivors(self, clients: int) -> int:
        return max(2, math.ceil(self.threshold * clients))

    def form(self, form: Form, state: State) -> Form:
        needs(self, form, "ring")
        if form.clients < 2:
            raise BadParameter(
                f"guard: Encrypt hides one update among several, and {form.clients} takes part in a round. "
                "Use at least 2 clients, better 3."
            )
        if 2 * form.clients * form.limit >= 2**BITS:
            raise refuse(
                self,
                f"adds in slots of {BITS} bits, and Quantize has {form.bits}. Use Quantize(bits={BITS}) or "
                "fewer.",
            )
        return replace(form, space="cipher")
