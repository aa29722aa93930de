"""PATE-GAN: J. Jordon, J. Yoon, M. van der Schaar, *PATE-GAN: Generating Synthetic Data with Differential
Privacy Guarantees*, ICLR 2019, Algorithm 1.

Every row goes to one of many teachers. The maker makes rows; each teacher votes whether a made row looks
like its own ones or like made ones; a student learns the noisy votes, and the maker learns from the
student. Student and maker see made rows alone.

Where this differs from the paper. Its student knows nothing but where the maker has been, and a maker that
starts anywhere is nowhere near real rows; and answers at ε = 1 are few, so that networks trained on them
learn their noise. Hence:

    start      a tenth of the budget buys noisy counts of every column, and the maker starts from those, columns independent of each other
    teachers   the critic that tells two sets of rows apart in closed form, by the mean of a kernel over pairs of columns (A. Gretton et al., *A Kernel
               Two-Sample Test*, JMLR 2012, Section 2.3: the witness function): no steps, and ten rows are
               enough for a vote
    student    kernel regression on the noisy shares (a Gaussian process), whose noise is known and whose strength is found from the answers themselves: answers
               that are noise only teach it nothing
    maker      learns the made rows weighted by s/(1 − s), s the student's share, which is how much likelier real rows are (I. Goodfellow et al., *Generative
               Adversarial Nets*, 2014, Proposition 1), with the columns' counts put right: by the squared
               error of all pairs of columns
    account    of the sum of binary votes, one number an answer: half of GNMax's price, which hides a count for each outcome; by zero-concentrated privacy

A row's teacher is drawn by the row's own coin, so that a row added or removed changes one teacher, and one
vote an answer at most. A vote is computed in whole numbers, so that not even rounding lets a row reach
another teacher's vote.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..accounting import discrete
from ..parameters import bad, real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adversarial import Maker
from .generator import Watch
from .private_networks import NetworkGenerator, spend_of

# of the budget goes to counts of single columns; how many rows there are, and so how many teachers, is taken
# from them
COLUMNS = 0.1
POOL = 20_000  # made rows that the student weighs in a round
# cells rarer than this weigh as if they were not: one row in a rare cell should not decide a teacher's vote
RARE = 0.1
FINE = 16  # parts of a kernel's weights, which are whole numbers
EXACT = (
    10**8
    # columns² × rows of a teacher up to which the kernel's sums stay below 2⁵³: (2 · FINE² / RARE · columns)²
    # for
    # each row
)
# the student's share stays this far from 0 and 1: no made row counts more than 19 times another by one
# round's votes
SURE = 0.05
ENTRIES = 1 << 21  # of a block of the kernel: 16 MB, which a processor's cache still helps with


@dataclass(frozen=True)
class PATEGAN(NetworkGenerator):
    """A GAN whose student critic learns from the noisy votes of teachers with disjoint rows."""

    teacher_rows: int = whole(
        10,
        least=1,
        doc="rows of a teacher, about: with fewer there are more teachers, whose votes drown the noise, and "
        "each knows less",
    )
    rounds: int = whole(6, least=1, doc="how often the teachers vote and the maker learns")
    queries: int = whole(
        350, least=2, doc="made rows the teachers vote on in a round; rounds × queries answers are paid for"
    )
    steps: int = whole(300, least=1, doc="steps of the maker in a round")
    batch: int = whole(512, least=4, doc="made rows a step")
    lr: float = real(2e-3, above=0, doc="learning rate of the maker (Adam)")

    def contest(
        self, rows: Tensor, sizes: tuple[int, ...], secret: Secret, watch: Watch
    ) -> tuple[Maker, Spend, list[dict[str, Any]]]:
        if len(sizes) ** 2 * self.teacher_rows > EXACT:
            raise bad(
                "PATEGAN",
                "teacher_rows",
                self.teacher_rows,
                f"at most {EXACT // len(sizes) ** 2:,} with {len(sizes)} columns",
                "Votes would no longer be computed exactly.",
            )
        rho, answers = discrete.rho_of(self.epsilon, self.delta), self.rounds * self.queries
        counting = discrete.rational_above(
            len(sizes) / (2 * COLUMNS * rho)
        )  # a row is in one cell of each column: L2 sensitivity √columns
        voting = discrete.rational_above(
            answers / (2 * (1 - COLUMNS) * rho)
        )  # one teacher moves a sum of votes by one
        counts = rows.sum(dim=0, dtype=torch.float64).numpy() + discrete.gaussian(
            counting, sum(sizes), secret.bytes
        )
        shares = [
            np.maximum(part, 1) / np.maximum(part, 1).sum()
            for part in np.split(counts, np.cumsum(sizes)[:-1])
        ]
        k = max(2, round(counts.sum() / len(sizes) / self.teacher_rows))
        kernel = Kernel(shares)
        teachers = Teachers(rows, k, secret, kernel)
        maker = self.started(shares, sizes)
        by_maker = torch.optim.Adam(maker.parameters(), lr=self.lr, betas=(0.5, 0.9))
        history: list[dict[str, Any]] = []
        for r in range(1, self.rounds + 1):
            pool = self.pool(maker, sizes)
            asked = pool[: self.queries]
            votes = teachers.votes(asked, pool) + discrete.gaussian(voting, len(asked), secret.bytes)
            verdict = student(kernel, asked, torch.from_numpy(votes / k), float(voting) / k**2)
            says = verdict(pool)
            share = (0.5 + says - says.mean()).clamp(SURE, 1 - SURE)
            weight = raked(share / (1 - share), pool, shares)
            loss = self.taught(maker, by_maker, kernel.weight, (pool.T * weight) @ pool, sizes)
            # what the student says follows from the answers alone; how the teachers voted stays here
            history.append({"epoch": r, "maker_loss": loss, "student_spread": float(says.std())})
            watch({"kind": "epoch", "epochs": self.rounds, **history[-1]})
        spent = len(sizes) / (2 * counting) + Fraction(answers) / (2 * voting)
        note = (
            f"ρ = {float(spent):.6g} of zero-concentrated privacy: {COLUMNS:.0%} for counts of single "
            f"columns, the rest for {answers:,} answers of {k:,} "
            f"teachers with noise of deviation {math.sqrt(voting):.1f}. The number of rows was estimated "
            "from noisy counts. Domains are the declared ones."
        )
        return (
            maker,
            spend_of(
                "PATE-GAN (noisy votes of teachers)",
                discrete.epsilon_of(float(spent), self.delta),
                self.delta,
                "no",
                note,
            ),
            history,
        )

    def started(self, shares: list[np.ndarray], sizes: tuple[int, ...]) -> Maker:
        """A maker of rows whose columns have these shares and hardly anything to do with each other."""
        maker = self.maker(sizes)
        with torch.no_grad():
            maker.last.weight.mul_(0.1)
            maker.last.bias.copy_(torch.from_numpy(np.log(np.concatenate(shares))))
        return maker

    def pool(self, maker: Maker, sizes: tuple[int, ...]) -> Tensor:
        """Made rows as they will be drawn, as indicators."""
        maker.eval()
        with torch.no_grad():
            made = hard(self.made(maker, max(POOL, self.queries), sizes), sizes).double()
        maker.train()
        return made

    def taught(
        self,
        maker: Maker,
        optimiser: torch.optim.Optimizer,
        weight: Tensor,
        target: Tensor,
        sizes: tuple[int, ...],
    ) -> float:
        """Steps towards the shares of all pairs of cells [cells, cells]; the last loss. Two halves of a batch
        are multiplied: one squared would be biased.
        """
        scale, half = weight.outer(weight).sqrt().float(), self.batch // 2
        for _ in range(self.steps):
            softly = self.made(maker, 2 * half, sizes)
            made = hard(softly, sizes) + softly - softly.detach()  # whole cells forward, slopes backward
            first, second = (part.T @ part / half - target.float() for part in made.split(half))
            loss = (scale * first * second).sum()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return float(loss.detach())


class Kernel:
    """How alike two rows are: over all pairs of columns, the product of how alike they are in each. A
    column's cells are centred by their shares, so that rows of independent columns are alike in nothing on
    average, and rarer cells weigh more. All in whole numbers, exact in float64 whatever the order of sums.
    """

    def __init__(self, shares: list[np.ndarray]):
        self.sizes, self.shares = [len(s) for s in shares], torch.from_numpy(np.concatenate(shares))
        self.weight = 1 / self.shares.clamp_min(RARE)

    def spread(self, rows: Tensor) -> Tensor:
        return torch.round(FINE * (rows - self.shares) * self.weight.sqrt())

    def __call__(self, some: Tensor, others: Tensor) -> Tensor:
        """[some, others], of rows that `spread` has turned into whole numbers."""
        pairs = (some @ others.T).square_()  # the square of the sum over columns, less the sum of squares
        for a, b in zip(some.split(self.sizes, dim=1), others.split(self.sizes, dim=1)):
            pairs -= (a @ b.T).square_()
        return pairs


class Teachers:
    """k critics, each with rows of its own: a made row is voted for when it is more alike, on average, to the
    teacher's rows than to made ones.
    """

    def __init__(self, rows: Tensor, k: int, secret: Secret, kernel: Kernel):
        self.kernel, self.rows = kernel, kernel.spread(rows.double())
        self.whose = (
            torch.from_numpy(discrete.uniform(k, len(rows), secret.bytes).astype(np.int64))
            if len(rows)
            else torch.zeros(0, dtype=torch.int64)
        )
        self.counts = torch.bincount(self.whose, minlength=k)

    def votes(self, asked: Tensor, made: Tensor) -> np.ndarray:
        """How many vote for each row asked; a teacher without rows votes for none."""
        asked, made = self.kernel.spread(asked), self.kernel.spread(made)
        out = []
        for part in asked.split(max(1, ENTRIES // max(len(self.rows), len(made)))):
            usual = self.kernel(part, made).mean(dim=1)
            alike = torch.zeros(len(part), len(self.counts), dtype=torch.float64).index_add_(
                1, self.whose, self.kernel(part, self.rows)
            )
            out.append((alike > usual[:, None] * self.counts).sum(dim=1))
        return torch.cat(out).numpy()


def student(kernel: Kernel, asked: Tensor, said: Tensor, noise: float) -> Any:
    """The mean of a Gaussian process given noisy shares, with this variance of their noise; its strength is
    the likeliest one (C. E. Rasmussen, C. K. I. Williams, *Gaussian Processes for Machine Learning*, 2006,
    Equations 2.23 and 2.30). A function of rows.
    """
    points = kernel.spread(asked)
    alike = kernel(points, points)
    unit = alike.diagonal().mean().clamp_min(1)
    values, vectors = torch.linalg.eigh(alike / unit)
    turned, values = vectors.T @ (said - said.mean()), values.clamp_min(0)
    # strengths from a thousandth of a share's largest deviation, ½, upwards; the first is none at all
    strengths = torch.cat(
        [torch.zeros(1, dtype=torch.float64), torch.logspace(-6, 0, 37, dtype=torch.float64) / 4]
    )
    variances = strengths[:, None] * values + noise
    likely = int((-(turned**2 / variances).sum(dim=1) - variances.log().sum(dim=1)).argmax())
    part = strengths[likely] / unit * (vectors @ (turned / variances[likely]))
    return lambda rows: torch.cat(
        [kernel(kernel.spread(some), points) @ part for some in rows.split(max(1, ENTRIES // len(points)))]
    )


def raked(weight: Tensor, rows: Tensor, shares: list[np.ndarray], passes: int = 20) -> Tensor:
    """Weights of rows that add up to 1 and to the columns' shares (W. E. Deming, F. F. Stephan, 1940): those
    were paid for, and votes only blur them.
    """
    for _ in range(passes):
        for part, share in zip(rows.split([len(s) for s in shares], dim=1), shares):
            there = weight @ part
            weight = weight * (part @ (torch.from_numpy(share) / there.clamp_min(1e-300)))
    return weight / weight.sum()


def hard(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return torch.cat(
        [
            functional.one_hot(part.argmax(dim=1), part.shape[1])
            for part in rows.detach().split(list(sizes), dim=1)
        ],
        dim=1,
    ).to(rows.dtype)
