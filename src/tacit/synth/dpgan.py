"""DPGAN: L. Xie, K. Lin, S. Wang, F. Wang, J. Zhou, *Differentially Private Generative Adversarial Network*, 2018: only the critic sees real rows, so it is the
critic that is trained privately; the maker learns from the critic alone.

Where this differs: the critic's noise is that of DP-SGD (`private/dpsgd.py`: every row's gradient clipped, rows drawn by Poisson sampling, exact noise, PLD
accounting) instead of clipped weights; the losses are those of Goodfellow et al. 2014; and the number of rows, on which the rate of
sampling depends, is itself estimated with noise and paid for.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..accounting import discrete
from ..parameters import real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adversarial import Maker
from .generator import Watch
from .private_networks import NetworkGenerator, spend_of

COUNTING = 0.05  # of ε goes to the number of rows
SURE = 1e-12  # the probability, part of δ, that more rows are there than the estimate says


@dataclass(frozen=True)
class DPGAN(NetworkGenerator):
    """A GAN whose critic learns by DP-SGD."""

    epochs: int = whole(20, least=1, doc="passes over the table; more passes, more noise in each")
    batch: int = whole(256, least=1, doc="rows a step, on average")
    clip: float = real(1.0, above=0, doc="the longest a row's gradient may be")
    critic_width: int = whole(64, least=1, doc="of both hidden layers of the critic: the noise is spread over its weights, so it is small")

    def contest(self, rows: Tensor, sizes: tuple[int, ...], secret: Secret, watch: Watch) -> tuple[Maker, Spend, list[dict[str, Any]]]:
        from ..private import DPSGD

        about = at_least(len(rows), COUNTING * self.epsilon, secret)
        batch = min(self.batch, about)
        maker, critic = self.maker(sizes), small_critic(sum(sizes), self.critic_width)
        by_critic = torch.optim.Adam(critic.parameters(), lr=self.lr, betas=(0.5, 0.9))
        by_maker = torch.optim.Adam(maker.parameters(), lr=self.lr, betas=(0.5, 0.9))
        per_epoch = math.ceil(about / batch)
        settings = DPSGD(epsilon=(1 - COUNTING) * self.epsilon, delta=self.delta - SURE if self.delta > 2 * SURE else self.delta / 2, clip=self.clip)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that δ is small enough for so many rows is said with the parameters
            session = settings.attach(critic, by_critic, about, steps=self.epochs * per_epoch, batch_size=batch,
                                      secret_seed=int.from_bytes(secret.bytes(7), "big") if secret.replayable else None)
        history: list[dict[str, Any]] = []
        for epoch in range(1, self.epochs + 1):
            for _ in range(per_epoch):
                drawn = session.draw()
                real = rows[drawn[drawn < len(rows)]]  # numbers beyond the last row are nobody's: the estimate is above the truth
                with torch.no_grad():
                    fake = self.made(maker, batch, sizes)
                if len(real):
                    session.backward(functional.softplus(-critic(real)).squeeze(1))
                session.backward(functional.softplus(critic(fake)).squeeze(1), public=True)
                by_critic.step()
                with session.paused():
                    loss = functional.softplus(-critic(self.made(maker, batch, sizes))).mean()
                    by_maker.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]
                    by_maker.step()
            history.append({"epoch": epoch, "maker_loss": float(loss.detach())})
            watch({"kind": "epoch", "epochs": self.epochs, **history[-1]})
        spent = session.epsilon + COUNTING * self.epsilon
        session.close()
        note = (f"ε = {session.epsilon:.4g} for {self.epochs * per_epoch:,} steps of DP-SGD on the critic, {COUNTING * self.epsilon:.4g} for the number of "
                "rows. Domains are the declared ones.")
        return maker, spend_of("DPGAN (DP-SGD on the critic)", spent, self.delta, f"Poisson ({batch} of about {about:,})", note), history


def at_least(n: int, epsilon: float, secret: Secret) -> int:
    """A number above n, but for a probability of `SURE`: n with discrete Laplace noise of this ε, and as much added as the noise may take away."""
    scale = math.ceil(1 / epsilon)
    margin = math.ceil(scale * math.log(1 / SURE))
    return max(1, n + int(discrete.laplace(scale, 1, secret.bytes)[0]) + margin)


def small_critic(cells: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(cells, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))
