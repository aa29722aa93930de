"""Homomorphic encryption: the server adds ciphertexts and has no key (CKKS through TenSEAL, extra `he`).

The stage declares what the sum needs; the messages are in protocols/encrypted.py, the arithmetic and its
security level in crypto/ckks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..parameters import real
from .hiding import HidingStage
from .stage import Stage, refuse


@dataclass(frozen=True)
class Encrypt(HidingStage):
    """The server adds ciphertexts and has no key; the parties share the key.

    One party that colludes with the server can decrypt everything, which is not so with SecAgg. Two of the
    parties decrypt the sum, and see it.
    """

    threshold: float = real(
        0.6, above=0.0, most=1.0, doc="the share of a round's parties whose updates must be in the sum"
    )
    space: ClassVar[str] = "cipher"
    sum_space: ClassVar[tuple[str, int]] = ("slots", 32)

    def check_with(self, others: tuple[Stage, ...]) -> None:
        if any(other.placement == "central" for other in others):
            raise refuse(
                self,
                "lets two of the clients decrypt the sum, who would see it before the server adds its "
                "noise. Use Noise(placement='distributed'), or SecAgg instead.",
            )
