"""PATE-GAN: a generator network trained from the noisy votes of teachers.

J. Jordon, J. Yoon, M. van der Schaar, *PATE-GAN: Generating Synthetic Data with Differential Privacy
Guarantees*, ICLR 2019, Algorithm 1. Every row belongs to one of many teachers. The network generates rows;
each teacher votes whether a generated row resembles its own rows or generated ones; a student learns the
noisy votes, and the network learns from the student. Student and network only see generated rows.

Differences from the paper. Its student is only informed near the generator's current output, and a randomly
initialized generator is far from real rows. At ε = 1 the answers are few, and networks trained on them fit
their noise. Therefore:

    start      A tenth of the budget pays for noisy counts of every column; the generator starts from
               these, with independent columns.
    teachers   A closed-form critic, the witness function of a kernel over pairs of columns (A. Gretton et
               al., *A Kernel Two-Sample Test*, JMLR 2012, Section 2.3). It needs no training, and ten rows
               suffice for a vote.
    student    Gaussian process regression on the noisy shares with known noise variance; the signal
               variance is estimated by maximum likelihood, so answers that are only noise teach nothing.
    network    Learns the generated rows weighted by s/(1 − s), where s is the student's share: the density
               ratio (I. Goodfellow et al., *Generative Adversarial Nets*, 2014, Proposition 1). The weights
               are raked to the column counts; the loss is the squared error of all pairs of columns.
    account    Sum of binary votes, one number per answer: half the cost of GNMax, which protects a count
               for each outcome. Accounted by zero-concentrated differential privacy.

Each row is assigned to a teacher by an independent draw, so adding or removing a row changes one teacher, and
at most one vote per answer. Votes are computed in integers, so rounding cannot carry information from one row
to another teacher's vote.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..accounting import discrete
from ..parameters import bad, real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adversarial import GeneratorNet
from .generator import Watch
from .private import History, NetworkGenerator, network_spend

# share of the budget for counts of single columns, from which the number of rows and teachers is derived
COLUMNS = 0.1
POOL = 20_000  # generated rows that the student weights in a round
# lower bound on a cell's share in the kernel: one row in a rare cell must not decide a teacher's vote
RARE = 0.1
FINE = 16  # resolution of the kernel's features, which are integers
# largest columns² × rows of a teacher for which the kernel's sums stay below 2⁵³:
# (2 · FINE² / RARE · columns)² for each row
EXACT = 10**8
# the student's share is clipped to [SURE, 1 − SURE]: one round changes the relative weight of a row by at
# most a factor of 19
SURE = 0.05
ENTRIES = 1 << 21  # entries of a block of the kernel: 16 MB


@dataclass(frozen=True)
class PATEGAN(NetworkGenerator):
    """A GAN whose student critic learns from the noisy votes of teachers with disjoint rows."""

    teacher_rows: int = whole(
        10,
        least=1,
        doc="approximate rows per teacher; fewer rows give more teachers, hence less relative noise, but "
        "weaker teachers",
    )
    rounds: int = whole(6, least=1, doc="rounds of voting and training")
    queries: int = whole(
        350, least=2, doc="generated rows per round of voting; the budget covers rounds × queries answers"
    )
    steps: int = whole(300, least=1, doc="training steps of the generator network per round")
    batch: int = whole(512, least=4, doc="generated rows per step")
    lr: float = real(2e-3, above=0, doc="learning rate of the generator network (Adam)")

    def train_network(
        self, rows: Tensor, sizes: tuple[int, ...], secret: Secret, watch: Watch
    ) -> tuple[GeneratorNet, Spend, History]:
        if len(sizes) ** 2 * self.teacher_rows > EXACT:
            raise bad(
                "PATEGAN",
                "teacher_rows",
                self.teacher_rows,
                f"at most {EXACT // len(sizes) ** 2:,} with {len(sizes)} columns",
                "Larger values would make the votes inexact.",
            )
        rho, answers = discrete.rho_of(self.epsilon, self.delta), self.rounds * self.queries
        # a row is in one cell of each column: L2 sensitivity √columns
        counting = discrete.rational_above(len(sizes) / (2 * COLUMNS * rho))
        # one teacher changes a sum of votes by one
        voting = discrete.rational_above(answers / (2 * (1 - COLUMNS) * rho))
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
        network = self.initialize(shares, sizes)
        optimizer = torch.optim.Adam(network.parameters(), lr=self.lr, betas=(0.5, 0.9))
        history: History = []
        for r in range(1, self.rounds + 1):
            pool = self.draw_pool(network, sizes)
            queries = pool[: self.queries]
            votes = teachers.votes(queries, pool) + discrete.gaussian(voting, len(queries), secret.bytes)
            predict = fit_student(kernel, queries, torch.from_numpy(votes / k), float(voting) / k**2)
            predictions = predict(pool)
            share = (0.5 + predictions - predictions.mean()).clamp(SURE, 1 - SURE)
            weight = rake(share / (1 - share), pool, shares)
            loss = self.match_pairs(network, optimizer, kernel.weight, (pool.T * weight) @ pool, sizes)
            # the student's predictions depend on the noisy answers alone; the votes themselves are not kept
            history.append({"epoch": r, "generator_loss": loss, "student_spread": float(predictions.std())})
            watch({"kind": "epoch", "epochs": self.rounds, **history[-1]})
        spent = len(sizes) / (2 * counting) + Fraction(answers) / (2 * voting)
        note = (
            f"ρ = {float(spent):.6g} of zero-concentrated privacy: {COLUMNS:.0%} for counts of single "
            f"columns, the rest for {answers:,} answers of {k:,} teachers with noise of standard deviation "
            f"{math.sqrt(voting):.1f}. The number of rows was estimated from noisy counts. Domains are the "
            "declared ones."
        )
        epsilon = discrete.epsilon_of(float(spent), self.delta)
        return (
            network,
            network_spend("PATE-GAN (noisy votes of teachers)", epsilon, self.delta, "no", note),
            history,
        )

    def initialize(self, shares: list[np.ndarray], sizes: tuple[int, ...]) -> GeneratorNet:
        """Build a network whose columns have these shares and are nearly independent."""
        network = self.build_network(sizes)
        with torch.no_grad():
            network.last.weight.mul_(0.1)
            network.last.bias.copy_(torch.from_numpy(np.log(np.concatenate(shares))))
        return network

    def draw_pool(self, network: GeneratorNet, sizes: tuple[int, ...]) -> Tensor:
        """Generate rows in evaluation mode, as one-hot indicators."""
        network.eval()
        with torch.no_grad():
            rows = harden(self.generate(network, max(POOL, self.queries), sizes), sizes).double()
        network.train()
        return rows

    def match_pairs(
        self,
        network: GeneratorNet,
        optimizer: torch.optim.Optimizer,
        weight: Tensor,
        target: Tensor,
        sizes: tuple[int, ...],
    ) -> float:
        """Train toward target shares of all pairs of cells; return the last loss.

        The residuals of two half-batches are multiplied: the square of one would be a biased estimate.
        """
        scale, half = weight.outer(weight).sqrt().float(), self.batch // 2
        for _ in range(self.steps):
            soft = self.generate(network, 2 * half, sizes)
            rows = harden(soft, sizes) + soft - soft.detach()  # straight-through estimator
            first, second = (part.T @ part / half - target.float() for part in torch.split(rows, half))
            loss = (scale * first * second).sum()
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimizer.step()
        return float(loss.detach())


class Kernel:
    """Similarity of two rows: the sum over pairs of columns of products of similarities.

    Cells are centered by their shares, so that rows with independent columns have similarity 0 on average,
    and rarer cells weigh more. Everything is an integer, exact in float64 in any order of summation.
    """

    def __init__(self, shares: list[np.ndarray]):
        self.sizes, self.shares = [len(s) for s in shares], torch.from_numpy(np.concatenate(shares))
        self.weight = 1 / self.shares.clamp_min(RARE)

    def center(self, rows: Tensor) -> Tensor:
        """Return the integer features of one-hot rows."""
        return torch.round(FINE * (rows - self.shares) * self.weight.sqrt())

    def __call__(self, some: Tensor, others: Tensor) -> Tensor:
        """Return similarities [some, others] of rows in integer features."""
        pairs = (some @ others.T).square_()  # the square of the sum over columns, less the sum of squares
        for a, b in zip(*(torch.split(rows, self.sizes, dim=1) for rows in (some, others))):
            pairs -= (a @ b.T).square_()
        return pairs


class Teachers:
    """Critics with disjoint rows.

    A teacher votes for a generated row if it is more similar, on average, to the teacher's rows than to
    generated ones.
    """

    def __init__(self, rows: Tensor, k: int, secret: Secret, kernel: Kernel):
        self.kernel, self.rows = kernel, kernel.center(rows.double())
        self.owners = (
            torch.from_numpy(discrete.uniform(k, len(rows), secret.bytes).astype(np.int64))
            if len(rows)
            else torch.zeros(0, dtype=torch.int64)
        )
        self.counts = torch.bincount(self.owners, minlength=k)

    def votes(self, queries: Tensor, pool: Tensor) -> np.ndarray:
        """Count the votes for each query; a teacher without rows never votes for one."""
        queries, pool = self.kernel.center(queries), self.kernel.center(pool)
        out = []
        for part in torch.split(queries, max(1, ENTRIES // max(len(self.rows), len(pool)))):
            usual = self.kernel(part, pool).mean(dim=1)
            similarity = torch.zeros(len(part), len(self.counts), dtype=torch.float64).index_add_(
                1, self.owners, self.kernel(part, self.rows)
            )
            out.append((similarity > usual[:, None] * self.counts).sum(dim=1))
        return torch.cat(out).numpy()


def fit_student(kernel: Kernel, queries: Tensor, shares: Tensor, noise: float) -> Callable[[Tensor], Tensor]:
    """Fit a Gaussian process to noisy shares; return its mean as a function of rows.

    `noise` is the known noise variance; the signal variance maximizes the likelihood (C. E. Rasmussen, C. K.
    I. Williams, *Gaussian Processes for Machine Learning*, 2006, Equations 2.23 and 2.30).
    """
    points = kernel.center(queries)
    gram = kernel(points, points)
    unit = gram.diagonal().mean().clamp_min(1)
    values, vectors = torch.linalg.eigh(gram / unit)
    rotated, values = vectors.T @ (shares - shares.mean()), values.clamp_min(0)
    # signal variances, from (a thousandth of ½, the largest deviation of a share)² up; the first is 0
    strengths = torch.cat(
        [torch.zeros(1, dtype=torch.float64), torch.logspace(-6, 0, 37, dtype=torch.float64) / 4]
    )
    variances = strengths[:, None] * values + noise
    likely = int((-(rotated**2 / variances).sum(dim=1) - variances.log().sum(dim=1)).argmax())
    part = strengths[likely] / unit * (vectors @ (rotated / variances[likely]))
    return lambda rows: torch.cat(
        [
            kernel(kernel.center(some), points) @ part
            for some in torch.split(rows, max(1, ENTRIES // len(points)))
        ]
    )


def rake(weight: Tensor, rows: Tensor, shares: list[np.ndarray], passes: int = 20) -> Tensor:
    """Adjust row weights to match the column shares (W. E. Deming, F. F. Stephan, 1940).

    The shares were measured directly; the votes only blur them.
    """
    for _ in range(passes):
        for part, share in zip(torch.split(rows, [len(s) for s in shares], dim=1), shares):
            current = weight @ part
            weight = weight * (part @ (torch.from_numpy(share) / current.clamp_min(1e-300)))
    return weight / weight.sum()


def harden(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Replace each column's softmax by its one-hot argmax."""
    return torch.cat(
        [
            functional.one_hot(part.argmax(dim=1), part.shape[1])
            for part in torch.split(rows.detach(), list(sizes), dim=1)
        ],
        dim=1,
    ).to(rows.dtype)
