"""DPGAN: a GAN whose critic is trained with DP-SGD.

L. Xie, K. Lin, S. Wang, F. Wang, J. Zhou, *Differentially Private Generative Adversarial Network*, 2018.
Only the critic sees real rows, so only the critic is trained privately; the generator learns from the
critic.

Differences from the paper: DP-SGD (`private/dpsgd.py`: per-example clipping, Poisson sampling, exact noise,
PLD accounting) instead of weight clipping; the losses of Goodfellow et al. 2014; and the number of rows,
which determines the sampling rate, is itself estimated with noise that the budget pays for.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..accounting import discrete
from ..parameters import real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adversarial import GeneratorNet
from .generator import Watch
from .marginals import DECLARED
from .private import History, NetworkGenerator, network_spend

if TYPE_CHECKING:
    from ..private import DPSGD

COUNTING = 0.05  # share of ε for the number of rows
SURE = 1e-12  # probability, part of δ, that there are more rows than estimated


@dataclass(frozen=True)
class DPGAN(NetworkGenerator):
    """A GAN whose critic is trained with DP-SGD."""

    epochs: int = whole(20, least=1, doc="epochs of training; more epochs need more noise per step")
    batch: int = whole(256, least=1, doc="expected batch size")
    clip: float = real(1.0, above=0, doc="clipping norm of a row's gradient")
    critic_width: int = whole(
        64,
        least=1,
        doc="width of both hidden layers of the critic; small, because every weight receives noise",
    )

    def train_network(
        self, rows: Tensor, sizes: tuple[int, ...], secret: Secret, watch: Watch
    ) -> tuple[GeneratorNet, Spend, History]:
        generator, critic = self.build_network(sizes), build_critic(sum(sizes), self.critic_width)
        gan = PrivateGAN(
            generator, critic, lambda index: rows[index], lambda n: (self.generate(generator, n, sizes), None)
        )
        return generator, *self.train_gan(gan, len(rows), 1.0, "", secret, watch)

    def train_gan(
        self, gan: PrivateGAN, rows: int, share: float, note: str, secret: Secret, watch: Watch
    ) -> tuple[Spend, History]:
        """Train with this share of ε; the rest was spent before, as `note` explains.

        Returns everything that was spent, and one history row per epoch.
        """

        budget = share * self.epsilon
        estimate = overestimate_count(rows, COUNTING * budget, secret)
        batch = min(self.batch, estimate)
        critic_optimizer, generator_optimizer = (
            torch.optim.Adam(net.parameters(), lr=self.lr, betas=(0.5, 0.9))
            for net in (gan.critic, gan.generator)
        )
        per_epoch = math.ceil(estimate / batch)
        settings = settings_of_steps(budget, self.delta, self.clip)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the documentation of `delta` already states how small δ must be
            session = settings.attach(
                gan.critic,
                critic_optimizer,
                estimate,
                steps=self.epochs * per_epoch,
                batch_size=batch,
                insecure_seed=int.from_bytes(secret.bytes(7), "big") if secret.replayable else None,
            )
        history: History = []
        for epoch in range(1, self.epochs + 1):
            for _ in range(per_epoch):
                index = session.draw()
                real = gan.real(
                    index[index < rows]
                )  # the estimate exceeds `rows`; larger indices are no rows
                with torch.no_grad():
                    fake, _ = gan.fake(batch)
                if len(real):
                    session.backward(functional.softplus(-gan.critic(real)).squeeze(1))
                session.backward(functional.softplus(gan.critic(fake)).squeeze(1), public=True)
                critic_optimizer.step()
                with session.paused():
                    fake, condition_loss = gan.fake(batch)
                    loss = functional.softplus(-gan.critic(fake)).mean()
                    generator_optimizer.zero_grad(set_to_none=True)
                    torch.autograd.backward(loss if condition_loss is None else loss + condition_loss)
                    generator_optimizer.step()
            history.append({"epoch": epoch, "generator_loss": float(loss.detach())})
            watch({"kind": "epoch", "epochs": self.epochs, **history[-1]})
        spent = session.epsilon + COUNTING * budget + (1 - share) * self.epsilon
        session.close()
        note = (
            f"ε = {session.epsilon:.4g} for {self.epochs * per_epoch:,} steps of DP-SGD on the critic, "
            f"{COUNTING * budget:.4g} for the number of rows{note}. {DECLARED}"
        )
        mechanism = f"{type(self).__name__} (DP-SGD on the critic)"
        return network_spend(
            mechanism, spent, self.delta, f"Poisson ({batch} of about {estimate:,})", note
        ), history


@dataclass(frozen=True)
class PrivateGAN:
    """Two networks, and how their batches are drawn.

    `real` returns the rows at these indices as the critic sees them; `fake` returns `n` generated rows and an
    optional further loss of the generator.
    """

    generator: GeneratorNet
    critic: nn.Module
    real: Callable[[Tensor], Tensor]
    fake: Callable[[int], tuple[Tensor, Tensor | None]]


def settings_of_steps(budget: float, delta: float, clip: float) -> DPSGD:
    """Return the settings of DP-SGD with what counting the rows leaves of ε and δ."""
    from ..private import DPSGD

    return DPSGD(
        epsilon=(1 - COUNTING) * budget, delta=delta - SURE if delta > 2 * SURE else delta / 2, clip=clip
    )


def overestimate_count(n: int, epsilon: float, secret: Secret) -> int:
    """Return a private estimate of n that is too small only with probability `SURE`.

    Discrete Laplace noise for this ε, plus a margin for the largest plausible negative noise.
    """
    scale = math.ceil(1 / epsilon)
    margin = math.ceil(scale * math.log(1 / SURE))
    return max(1, n + int(discrete.laplace(scale, 1, secret.bytes)[0]) + margin)


def build_critic(cells: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(cells, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, 1),
    )
