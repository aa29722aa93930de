"""Additive secret sharing. A secret x in Z_2^64 is x_0 + x_1 + … + x_{n−1}: all shares but the last are
uniform words.

Any n − 1 shares are uniform and independent of x; all n add up to it. For example, the shares 7, 6 and −2
have the secret 11. Sums are computed locally, share by share.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..crypto.prg import KEY
from ..parties.secret import Secret
from .tape import Tape


def split(x: Tensor, parties: int, secret: Secret) -> list[Tensor]:
    """1. x_i ← uniform for i < n − 1, from a fresh key;  2. x_{n−1} = x − Σ x_i."""
    tape = Tape(secret.bytes(KEY))
    random = [tape.draw(tuple(x.shape)).to(x.device) for _ in range(parties - 1)]
    return [*random, x - reconstruct(random)] if random else [x.clone()]


def reconstruct(shares: Sequence[Tensor]) -> Tensor:
    """Σ x_i modulo 2^64."""
    x = shares[0].clone()
    for share in shares[1:]:
        x += share
    return x
