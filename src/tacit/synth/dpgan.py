"""DPGAN: L. Xie, K. Lin, S. Wang, F. Wang, J. Zhou, *Differentially Private Generative Adversarial Network*,
2018: only the critic sees real rows, so it is the critic that is trained privately; the maker learns from the
critic alone.

Where this differs: the critic's noise is that of DP-SGD (`private/dpsgd.py`: every row's gradient clipped,
rows drawn by Poisson sampling, exact noise, PLD accounting) instead of clipped weights; the losses are those
of Goodfellow et al. 2014; and the number of rows, on which the rate of sampling depends, is itself estimated
with noise and paid for.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
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
    critic_width: int = whole(
        64,
        least=1,
        doc="of both hidden layers of the critic: the noise is spread over its weights, so it is small",
    )

    def contest(
        self, rows: Tensor, sizes: tuple[int, ...], secret: Secret, watch: Watch
    ) -> tuple[Maker, Spend, list[dict[str, Any]]]:
        maker, critic = self.maker(sizes), small_critic(sum(sizes), self.critic_width)
        duel = PrivateDuel(maker, critic, lambda at: rows[at], lambda n: (self.made(maker, n, sizes), None))
        return maker, *self.fought(duel, len(rows), 1.0, "", secret, watch)

    def fought(
        self, duel: PrivateDuel, rows: int, share: float, before: str, secret: Secret, watch: Watch
    ) -> tuple[Spend, list[dict[str, Any]]]:
        """The contest, for this share of ε; the rest was spent `before`. What all of it spent, and a history
        row an epoch.
        """
        from ..private import DPSGD

        mine = share * self.epsilon
        about = at_least(rows, COUNTING * mine, secret)
        batch = min(self.batch, about)
        by_critic, by_maker = (
            torch.optim.Adam(net.parameters(), lr=self.lr, betas=(0.5, 0.9))
            for net in (duel.critic, duel.maker)
        )
        per_epoch = math.ceil(about / batch)
        settings = DPSGD(
            epsilon=(1 - COUNTING) * mine,
            delta=self.delta - SURE if self.delta > 2 * SURE else self.delta / 2,
            clip=self.clip,
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # that δ is small enough for so many rows is said with the parameters
            session = settings.attach(
                duel.critic,
                by_critic,
                about,
                steps=self.epochs * per_epoch,
                batch_size=batch,
                secret_seed=int.from_bytes(secret.bytes(7), "big") if secret.replayable else None,
            )
        history: list[dict[str, Any]] = []
        for epoch in range(1, self.epochs + 1):
            for _ in range(per_epoch):
                drawn = session.draw()
                real = duel.real(
                    drawn[drawn < rows]
                )  # numbers beyond the last row are nobody's: the estimate is above the truth
                with torch.no_grad():
                    fake, _ = duel.made(batch)
                if len(real):
                    session.backward(functional.softplus(-duel.critic(real)).squeeze(1))
                session.backward(functional.softplus(duel.critic(fake)).squeeze(1), public=True)
                by_critic.step()
                with session.paused():
                    fake, asked = duel.made(batch)
                    loss = functional.softplus(-duel.critic(fake)).mean()
                    by_maker.zero_grad(set_to_none=True)
                    (loss if asked is None else loss + asked).backward()
                    by_maker.step()
            history.append({"epoch": epoch, "maker_loss": float(loss.detach())})
            watch({"kind": "epoch", "epochs": self.epochs, **history[-1]})
        spent = session.epsilon + COUNTING * mine + (1 - share) * self.epsilon
        session.close()
        note = (
            f"ε = {session.epsilon:.4g} for {self.epochs * per_epoch:,} steps of DP-SGD on the critic, "
            f"{COUNTING * mine:.4g} for the number of "
            f"rows{before}. Domains are the declared ones."
        )
        return spend_of(
            f"{type(self).__name__} (DP-SGD on the critic)",
            spent,
            self.delta,
            f"Poisson ({batch} of about {about:,})",
            note,
        ), history


@dataclass(frozen=True)
class PrivateDuel:
    """Two networks, the real rows of these numbers as the critic sees them, and so many made ones, with what
    else the maker is held to.
    """

    maker: Maker
    critic: nn.Module
    real: Callable[[Tensor], Tensor]
    made: Callable[[int], tuple[Tensor, Tensor | None]]


def at_least(n: int, epsilon: float, secret: Secret) -> int:
    """A number above n, but for a probability of `SURE`: n with discrete Laplace noise of this ε, and as much
    added as the noise may take away.
    """
    scale = math.ceil(1 / epsilon)
    margin = math.ceil(scale * math.log(1 / SURE))
    return max(1, n + int(discrete.laplace(scale, 1, secret.bytes)[0]) + margin)


def small_critic(cells: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(cells, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, 1),
    )
