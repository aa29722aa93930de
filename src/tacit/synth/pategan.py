"""PATE-GAN: J. Jordon, J. Yoon, M. van der Schaar, *PATE-GAN: Generating Synthetic Data with Differential Privacy Guarantees*, ICLR 2019.

Every row goes to one of many teachers, which learn to tell their real rows from made ones. A student, which the maker learns against, sees made rows alone,
with the teachers' noisy vote on how real they look.

Where this differs from the paper: a teacher votes with a number between 0 and 1, its own probability, instead of one of the two, so that rows can be told apart
that fool no teacher, or all; the student learns from the noisy mean. Noise is Gaussian and accounted for without looking at the votes, by
zero-concentrated privacy. Answers are few, because each costs, and those of the last rounds are learnt from together. A row's teacher is drawn by
the row's own coin, so that a row added or removed moves nobody else, and one vote at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..accounting import discrete
from ..parameters import real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adversarial import Maker
from .dpgan import small_critic
from .generator import Watch
from .private_networks import NetworkGenerator, spend_of

VOTE = 1024  # parts of a vote


@dataclass(frozen=True)
class PATEGAN(NetworkGenerator):
    """A GAN whose student critic learns from the noisy votes of teachers with disjoint rows."""

    teachers: int = whole(200, least=2, doc="k: more teachers drown the noise of the vote, and each has fewer rows")
    rounds: int = whole(300, least=1, doc="how often the teachers learn and vote")
    queries: int = whole(4, least=1, doc="made rows the teachers vote on in a round; rounds × queries answers are paid for")
    memory: int = whole(100, least=1, doc="rounds whose answers the student learns from")
    teacher_steps: int = whole(2, least=1, doc="steps of the teachers in a round")
    steps: int = whole(2, least=1, doc="steps of student and maker in a round")
    batch: int = whole(64, least=2, doc="rows a step of a teacher, and made rows a step of the student and the maker")
    teacher_lr: float = real(1e-2, above=0, doc="learning rate of the teachers (Adam)")

    def contest(self, rows: Tensor, sizes: tuple[int, ...], secret: Secret, watch: Watch) -> tuple[Maker, Spend, list[dict[str, Any]]]:
        answers = self.rounds * self.queries
        rho = discrete.rho_of(self.epsilon, self.delta)
        variance = discrete.rational_above(answers / (2 * rho))  # one teacher moves a sum by one vote: 1/(2σ²) an answer
        teachers = Teachers(rows, self.teachers, secret, self.teacher_lr)
        maker, student = self.maker(sizes), small_critic(sum(sizes), self.width)
        by_student = torch.optim.Adam(student.parameters(), lr=self.lr, betas=(0.5, 0.9))
        by_maker = torch.optim.Adam(maker.parameters(), lr=self.lr, betas=(0.5, 0.9))
        seen, shares, history = [], [], []
        for r in range(1, self.rounds + 1):
            for _ in range(self.teacher_steps):
                with torch.no_grad():
                    teachers.step(self.made(maker, self.batch, sizes), even_rows(self.batch, sizes))
            with torch.no_grad():  # without rows from all over the domain the student would know nothing but where the maker has been
                asked = torch.cat([self.made(maker, self.queries - self.queries // 2, sizes), even_rows(self.queries // 2, sizes)])
            votes = teachers.votes(asked)
            noisy = (votes + discrete.gaussian(variance * VOTE**2, self.queries, secret.bytes)) / VOTE
            seen.append(asked)
            shares.append(torch.from_numpy(noisy / self.teachers).float())
            known, said = torch.cat(seen[-self.memory :]), torch.cat(shares[-self.memory :])
            for _ in range(self.steps):
                at = torch.randint(len(known), (min(self.batch, len(known)),))
                verdict = student(known[at]).squeeze(1)
                loss = (functional.softplus(verdict) - said[at] * verdict).mean()  # cross-entropy; linear in the share, so noise beyond 0 … 1 averages out
                by_student.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                by_student.step()
                maker_loss = functional.softplus(-student(self.made(maker, self.batch, sizes))).mean()
                by_maker.zero_grad(set_to_none=True)
                maker_loss.backward()  # type: ignore[no-untyped-call]
                by_maker.step()
            # losses of student and maker follow from the answers alone; how the teachers voted stays here
            history.append({"epoch": r, "maker_loss": float(maker_loss.detach()), "critic_loss": float(loss.detach())})
            watch({"kind": "epoch", "epochs": self.rounds, **history[-1]})
        spent = float(answers / (2 * variance))
        note = (f"{answers:,} answers of {self.teachers} teachers with noise of deviation {math.sqrt(variance):.1f}: ρ = {spent:.6g} of zero-concentrated "
                f"privacy, which gives ε = {discrete.epsilon_of(spent, self.delta):.4g} at this δ. Domains are the declared ones.")
        return maker, spend_of("PATE-GAN (noisy votes of teachers)", self.epsilon, self.delta, "no", note), history



def even_rows(n: int, sizes: tuple[int, ...]) -> Tensor:
    """Rows drawn evenly from the declared cells: nobody's."""
    return torch.cat([functional.one_hot(torch.randint(size, (n,)), size) for size in sizes], dim=1).float()


class Teachers:
    """k logistic critics as one tensor, each with rows of its own."""

    def __init__(self, rows: Tensor, k: int, secret: Secret, lr: float):
        whose = discrete.uniform(k, len(rows), secret.bytes) if len(rows) else np.empty(0, np.int64)
        order = np.argsort(whose, kind="stable")
        self.rows, self.counts = rows[torch.from_numpy(order)], torch.from_numpy(np.bincount(whose, minlength=k))
        self.first = torch.cumsum(self.counts, 0) - self.counts
        self.weight, self.bias = nn.Parameter(torch.zeros(k, rows.shape[1])), nn.Parameter(torch.zeros(k, 1))
        self.optimiser = torch.optim.Adam([self.weight, self.bias], lr=lr, weight_decay=1e-3)

    @torch.enable_grad()
    def step(self, fake: Tensor, even: Tensor) -> None:
        """Each teacher: as many of its own rows, with replacement, as there are made ones, and even ones on both sides, of which it should say nothing:
        they hold it back where neither kind has been. A teacher without rows only learns what made ones look like."""
        k, n = len(self.counts), len(fake)
        place = (torch.rand(k, n) * self.counts[:, None]).long() + self.first[:, None]
        there = (self.counts > 0)[:, None]
        real = self.rows[place.clamp_max(max(len(self.rows) - 1, 0))] if len(self.rows) else torch.zeros(k, n, fake.shape[1])
        on_real = torch.einsum("kbc,kc->kb", real, self.weight) + self.bias
        on_fake = fake @ self.weight.T + self.bias.T
        on_even = even @ self.weight.T + self.bias.T
        held = (functional.softplus(on_even) + functional.softplus(-on_even)).mean(dim=0)
        loss = ((functional.softplus(-on_real) * there).mean(dim=1) + functional.softplus(on_fake).mean(dim=0) + held).sum()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def votes(self, asked: Tensor) -> np.ndarray:
        """How many teachers take each row for a real one, each by its probability; in parts of a vote, whole numbers, so that the noise is exact."""
        with torch.no_grad():
            return torch.round(VOTE * torch.sigmoid(asked @ self.weight.T + self.bias.T)).long().sum(dim=1).numpy()
