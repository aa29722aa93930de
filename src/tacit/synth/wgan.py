"""WGAN-GP: I. Gulrajani, F. Ahmed, M. Arjovsky, V. Dumoulin, A. Courville.

*Improved Training of Wasserstein GANs*, NeurIPS 2017, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..parameters import whole
from .gan import GAN


@dataclass(frozen=True)
class WGAN(GAN):
    """A GAN with the Wasserstein loss and a gradient penalty (λ = 10)."""

    critic_steps: int = whole(
        2, least=1, doc="n_critic: critic steps per generator step (5 in the paper, for images)"
    )

    wasserstein: ClassVar[bool] = True
    dropout: ClassVar[float] = 0.0  # the penalty applies to gradients at points, which dropout disturbs
