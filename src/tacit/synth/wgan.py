"""WGAN-GP: I. Gulrajani, F. Ahmed, M. Arjovsky, V. Dumoulin, A. Courville, *Improved Training of Wasserstein
GANs*, NeurIPS 2017, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..parameters import whole
from .gan import GAN


@dataclass(frozen=True)
class WGAN(GAN):
    """A GAN whose critic measures a distance, with a penalty (λ = 10) on its slope instead of a bound on its
    weights.
    """

    critic_steps: int = whole(
        2, least=1, doc="n_critic: steps of the critic for one of the maker (the paper's images took 5)"
    )

    wasserstein: ClassVar[bool] = True
    dropout: ClassVar[float] = (
        0.0  # the penalty holds the critic's slope at single points, which noise in the critic would blur
    )
