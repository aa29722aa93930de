"""A small setting in which a paper's pseudocode is implemented in numpy and compared with tacit.

A reference is a generator over a World: it yields the server's weights after each round. It takes from tacit
only the participants of a round and their rows (`algorithms.plan`); gradients, local steps and merges are its
own, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.algorithms import plan as plans
from tacit.data.federation import Federation, Holdings, Rows
from tacit.jobs.train.plan import Plan, make_plan, make_task
from tacit.runtimes.cohort import Cohort

Array = np.ndarray
Reference = Callable[["World"], Iterator[Array]]


@dataclass(frozen=True)
class World:
    """Parties with their own rows, a model, and how a round goes. The defaults are ragged in every way there
    is.
    """

    sizes: tuple[int, ...] = (7, 12, 3, 20, 9)
    epochs: tuple[int, ...] = (2, 1, 3, 1, 2)
    batch_size: int | None = 4
    per_round: int = 3
    rounds: int = 5
    local_steps: int | None = None
    seed: int = 5
    features: int = 4
    hidden: int = 5
    classes: int = 3

    @cached_property
    def x(self) -> Array:
        return np.random.default_rng(1).standard_normal((sum(self.sizes), self.features)).astype(np.float32)

    @cached_property
    def y(self) -> Array:
        """Labels that a linear rule half explains, so that gradients do not vanish and clients disagree."""
        rng = np.random.default_rng(2)
        scores = self.x @ rng.standard_normal((self.features, self.classes)) + rng.gumbel(
            size=(sum(self.sizes), self.classes)
        )
        return scores.argmax(1)

    @property
    def parties(self) -> int:
        return len(self.sizes)

    @property
    def n(self) -> Array:
        return np.array(self.sizes, dtype=np.float64)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"party-{k}" for k in range(self.parties))

    @property
    def held_by(self) -> list[Array]:
        """The rows of each party, shuffled over the table so that a wrong offset cannot go unnoticed."""
        order = np.random.default_rng(3).permutation(sum(self.sizes))
        return np.split(order, np.cumsum(self.sizes)[:-1])

    def federation(self) -> Federation:
        rows = Rows(torch.from_numpy(self.x), torch.from_numpy(self.y))
        held = Holdings.from_lists([[] for _ in self.sizes])
        return Federation(
            "world", rows, Holdings.from_lists(self.held_by), held, rows, self.labels, self.names
        )

    @property
    def labels(self) -> int | None:
        return self.classes

    # the model: a perceptron with one hidden layer of tanh, smooth, so that rounding does not decide a branch
    # --------------

    @cached_property
    def module(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            return nn.Sequential(
                nn.Linear(self.features, self.hidden), nn.Tanh(), nn.Linear(self.hidden, self.classes)
            )

    @property
    def start(self) -> Array:
        return np.concatenate([p.detach().double().numpy().ravel() for p in self.module.parameters()])

    def grad(self, w: Array, rows: Array) -> Array:
        """The gradient of the mean cross-entropy over these rows, by the chain rule."""
        f, h, c = self.features, self.hidden, self.classes
        w1, b1, w2, b2 = np.split(w, np.cumsum([h * f, h, c * h]))
        w1, w2 = w1.reshape(h, f), w2.reshape(c, h)
        x = self.x[rows].astype(np.float64)
        a = np.tanh(x @ w1.T + b1)
        z = a @ w2.T + b2
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        dz = (p - np.eye(c)[self.y[rows]]) / len(rows)
        da = (dz @ w2) * (1 - a**2)
        return np.concatenate([(da.T @ x).ravel(), da.sum(0), (dz.T @ a).ravel(), dz.sum(0)])

    # who trains, and on what --------------------------------------------------------------------------------

    def sampled(self, round: int) -> list[int]:
        return plans.sample(self.seed, round, plans.identify(self.names), self.per_round).tolist()

    def batches(self, round: int, k: int) -> list[Array]:
        """The rows of each local step of party k in this round."""
        ids = plans.identify([self.names[k]])
        mine = plans.plan(
            self.seed,
            round,
            ids,
            np.array([self.sizes[k]]),
            self.epochs[k],
            self.batch_size,
            self.local_steps,
        ).of(0)
        rows = self.held_by[k]
        return [rows[index[live > 0].numpy()] for index, live in zip(mine.index, mine.live)]

    def sgd(
        self, round: int, k: int, w: Array, lr: float, pull: Callable[[Array], Any] = lambda w: 0.0
    ) -> Array:
        """Plain local SGD from w; `pull` is added to every gradient."""
        for rows in self.batches(round, k):
            w = w - lr * (self.grad(w, rows) + pull(w))
        return w

    # ours ---------------------------------------------------------------------------------------------------

    def plan(self, algorithm: Any, **more: Any) -> Plan:
        return make_plan(
            self.federation(),
            model=self.module,
            algorithm=algorithm,
            **{
                "rounds": self.rounds,
                "per_round": self.per_round,
                "local_epochs": self.epochs,
                "local_steps": self.local_steps,
                "batch_size": self.batch_size,
                "seed": self.seed,
                **more,
            },
        )

    def ours(self, algorithm: Any, engine: str = "stack") -> list[Array]:
        """The weights after each round of the simulation."""
        p = self.plan(algorithm, engine=engine)
        task = make_task(p)
        cohort = Cohort(task, [task.initial()], [p.run()], engine)
        assert cohort.engine == engine, cohort.notes
        after = []
        for r in range(self.rounds):
            assert cohort.round(r)[0].tolist() == self.sampled(r)
            after.append(cohort.w[0].double().numpy().copy())
        return after


@dataclass(frozen=True)
class Line(World):
    """One weight and one target a party: F_k(w) = (w − a_k)², so ∇F_k = 2(w − a_k). With η = 1/4 a step
    halves the way to a_k.

    Small enough for paper and pencil: two parties with targets 0 and 8, one full-batch step a round,
    everybody in, starting at w = 0.
    """

    targets: tuple[float, ...] = (0.0, 8.0)
    sizes: tuple[int, ...] = (1, 1)
    epochs: tuple[int, ...] = (1, 1)
    batch_size: int | None = None
    per_round: int = 2
    rounds: int = 2
    at: float = 0.0

    @cached_property
    def x(self) -> Array:
        return np.ones((sum(self.sizes), 1), dtype=np.float32)

    @cached_property
    def y(self) -> Array:
        y = np.empty(sum(self.sizes), dtype=np.float32)
        for k, rows in enumerate(self.held_by):
            y[rows] = self.targets[k]
        return y

    @property
    def labels(self) -> int | None:
        return None  # a regression

    @cached_property
    def module(self) -> nn.Module:
        line = nn.Linear(1, 1, bias=False)
        line.weight.data.fill_(self.at)
        return line

    def walk(self, algorithm: Any) -> list[float]:
        """Our one weight after each round, whichever way clients are run."""
        stacked, each = ([float(w[0]) for w in self.ours(algorithm, engine)] for engine in ("stack", "each"))
        np.testing.assert_allclose(stacked, each, atol=1e-6)
        return stacked


def hold(algorithm: Any, reference: Reference, world: World | None = None) -> None:
    """Ours, stacked and one by one, equals the reference to 1e-5 after every round; and the run goes
    somewhere.
    """
    world = world or World()
    wanted = list(reference(world))
    assert len(wanted) == world.rounds
    for engine in ("stack", "each"):
        for r, (ours, theirs) in enumerate(zip(world.ours(algorithm, engine), wanted)):
            np.testing.assert_allclose(
                ours, theirs, atol=1e-5, rtol=1e-5, err_msg=f"{algorithm} after round {r}, engine {engine!r}"
            )
    assert np.abs(wanted[-1] - world.start).max() > 1e-2, "the reference hardly moves, so this proves nothing"


def same(a: Sequence[Array], b: Sequence[Array], atol: float = 1e-5) -> None:
    for r, (x, y) in enumerate(zip(a, b, strict=True)):
        np.testing.assert_allclose(x, y, atol=atol, rtol=1e-5, err_msg=f"after round {r}")
