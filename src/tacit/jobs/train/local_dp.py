"""Privacy of rows or people in federated training: each party's local steps are DP-SGD, with its own ε.

Whatever the algorithm, a local step gets its gradient from the task. Here that gradient is clipped and
noisy, on rows that the party sampled by itself. So every update and every model is private for each of the
party's rows, also against the server; nothing is assumed about the other parties. A party is accounted as
if it took part in every round.

ε covers a row's presence, so nothing that a party sends depends on its exact number of rows. Sampling rate
and steps follow from a public number: the declared `DPSGD.public_size`, or one noisy count that is part of
each party's ε. All parties have the same weight.

*People.* Where rows belong to people (`group`), the unit is a person with all their rows at a party. A step
samples people, and a sampled person contributes the mean of their rows' clipped gradients. Its norm is at
most that of one clipped gradient, however many rows they have: sensitivity, sampling and accounting are those
of rows, with people in their place. Sizes, batches and epochs count people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ...accounting import Account, Release, discrete
from ...accounting.training import Training, training
from ...algorithms.plan import Plans, count_steps
from ...algorithms.types import Batch, LocalState, State
from ...data.federation import Federation
from ...data.inputs import Features
from ...engine.calling import call
from ...engine.task import Task
from ...errors import BadParameter
from ...guard.stage import source
from ...parties.ledger import Ledger, Spend
from ...parties.secret import Secret, SeededSecret
from ...private import noise
from ...private.checks import check_one_by_one, check_rows, evaluation_mode
from ...private.dpsgd import DPSGD
from ...private.ghost import GhostClipping
from ...private.session import spend
from ...private.size import HELD_OUT, count_release, describe_count, describe_declared, noisy_count
from .elsewhere import Elsewhere

if TYPE_CHECKING:
    from .plan import Plan

SERVER = (
    "the server and anyone who sees this party's updates or any model; not this party's counts on its "
    "held-out rows"
)


PLURAL = {"row": "rows", "person": "people"}
PEOPLE = "A person is present or not with all their rows at this party; rows at other parties count there."


class LocalDPTerms(NamedTuple):
    """The steps and the noise of parties of one size in a round."""

    width: int  # rows expected in a step
    steps: int
    release: Training | None


def public_sizes(s: DPSGD, fed: Federation, insecure_seed: int | None) -> tuple[int, ...] | None:
    """Return the public number of rows of each party; None: the exact one, where nothing is guaranteed."""
    counts = [count_units(fed, k) for k in range(len(fed))] if fed.persons is not None else None
    if not s.private:
        return None if counts is None else tuple(counts)
    if s.public_size is not None:
        return (s.public_size,) * len(fed)
    if isinstance(fed, Elsewhere):
        return None  # each party draws its own, and keeps it
    release = count_release(s)
    return tuple(
        noisy_count(n, release, source(insecure_seed, "number of rows", name))
        for name, n in zip(fed.parties, counts or fed.train.sizes.tolist())
    )


def count_units(fed: Federation, k: int) -> int:
    """Return how many people train at party k or, where rows belong to nobody, how many rows."""
    rows = fed.train.of(k)
    return len(rows) if fed.persons is None else len(torch.unique(fed.persons[rows]))


def unit_of(p: Plan) -> str:
    """Return what ε is about: "row", or "person" where rows belong to people."""
    if p.runtime == "parties" and p.through.layout:
        return "person" if p.through.layout.get("group") else "row"
    return "row" if p.fed.persons is None else "person"


def settings_of(p: Plan) -> DPSGD:
    """Return the DP-SGD settings of a plan that has them."""
    assert p.private is not None
    return p.private


def _earlier(s: DPSGD) -> tuple[Release, ...]:
    """Return what a party released before its first step."""
    return () if s.public_size is not None else (count_release(s),)


def terms(p: Plan, size: int, epochs: int) -> LocalDPTerms:
    """Return the steps and the noise of a party with this public number of rows."""
    s = settings_of(p)
    width = size if p.batch_size is None else min(p.batch_size, size)
    steps = int(count_steps(np.array([size]), np.array([epochs]), width, p.local_steps)[0])
    if not s.private:
        return LocalDPTerms(width, steps, None)
    per_epoch = -(-size // width)
    return LocalDPTerms(
        width,
        steps,
        training(
            multiplier=s.noise_multiplier,
            epsilon=s.epsilon,
            delta=s.delta,
            sampling="poisson",
            rate=width / size,
            per_epoch=per_epoch,
            steps=steps * p.rounds,
            accountant=s.accountant,
            earlier=_earlier(s),
        ),
    )


class PartyPeople(NamedTuple):
    """Whose the training rows of one party are."""

    size: int  # how many people
    person: np.ndarray | None  # of each row, from 0; None: each row is somebody else's
    shares: Tensor | None  # one over the number of rows of each row's person

    @classmethod
    def of(cls, rows: int, persons: np.ndarray | None) -> PartyPeople:
        if persons is None:
            return cls(rows, None, None)
        _, person, sizes = np.unique(persons, return_inverse=True, return_counts=True)
        return cls(len(sizes), person, torch.from_numpy(1.0 / sizes[person]))

    def rows_of(self, is_drawn: np.ndarray) -> np.ndarray:
        """Return the rows of the people that were drawn: all of each, or none."""
        return np.flatnonzero(is_drawn if self.person is None else is_drawn[self.person])


class PrivateTask(Task):
    """A task whose gradients are DP-SGD's.

    `redraw` samples a client's rows before its local training; no more gradients follow than were accounted.
    """

    settings: DPSGD
    plan: Plan
    now: LocalDPTerms  # of the current client
    left: int  # gradients it may still compute
    source: Any
    known: dict[tuple[int, int], LocalDPTerms]  # by rows and local epochs
    rows: dict[int, int]  # the number of rows of each of its steps, by the step's key
    shares: dict[int, Tensor]  # where rows belong to people: one over the number of rows of each row's person
    people: dict[str, PartyPeople]  # by party

    @classmethod
    def of(cls, task: Task, p: Plan) -> PrivateTask:
        private = cls(task.module, task.x, task.y, task.objective, task.precision, like=task)
        private.settings, private.plan = settings_of(p), p
        private.draws = True  # clients run one after the other: the current one is stored here
        private.now = terms(
            p, *max(zip(p.sizes.tolist(), p.local_epochs), key=lambda party: party[1] / party[0])
        )  # who needs the most noise
        # before the first client: one step on rows of zeros shows what is sent
        private.left = 1
        private.source = noise.keystream(
            Secret() if p.insecure_seed is None else SeededSecret(p.insecure_seed)
        )
        private.known, private.rows, private.shares, private.people = {}, {}, {}, {}
        return private

    def on(self, x: Features, y: Tensor) -> PrivateTask:
        return PrivateTask.of(super().on(x, y), self.plan)

    def public_size(self, name: str) -> int:
        return int(self.plan.sizes[self.plan.fed.parties.index(name)])

    def redraw(self, plans: Plans, name: str, epochs: int) -> Plans:
        """Return a client's plan for its public size, with each step's rows drawn by Poisson sampling."""
        size, people = self.public_size(name), self._people_of(name)
        if (size, epochs) not in self.known:
            self.known[size, epochs] = terms(self.plan, size, epochs)
        self.now = self.known[size, epochs]
        self.left = self.now.steps
        samples = [
            people.rows_of(discrete.uniform(size, people.size, self.source) < self.now.width)
            for _ in range(self.now.steps)
        ]
        widest = max(self.now.width, *(len(d) for d in samples))
        index, live = (
            np.zeros((1, self.now.steps, widest), np.int64),
            np.zeros((1, self.now.steps, widest), np.float32),
        )
        # the expected number: algorithms weigh by it (FedSGD, FedNova), and the real one is secret
        live[..., : self.now.width] = 1
        self.rows, self.shares = {}, {}
        for t, rows in enumerate(samples):
            index[0, t, : len(rows)] = rows
            self.rows[int(plans.key[0, t])] = len(rows)
            if people.shares is not None:
                self.shares[int(plans.key[0, t])] = people.shares[torch.from_numpy(rows)]
        # a weight would show the server the number of rows
        weight = torch.ones_like(plans.size) if self.settings.private else plans.size
        return plans._replace(
            index=torch.from_numpy(index),
            live=torch.from_numpy(live),
            key=plans.key[:, : self.now.steps],
            size=weight,
        )

    def _people_of(self, name: str) -> PartyPeople:
        if name not in self.people:
            fed = self.plan.fed
            rows = fed.train.of(fed.parties.index(name))
            self.people[name] = PartyPeople.of(
                len(rows), None if fed.persons is None else fed.persons[rows].numpy()
            )
        return self.people[name]

    def _outputs(self, module: nn.Module, w: Tensor, batch: Batch, buffers: State | None) -> Tensor:
        raise BadParameter(
            f"train: {type(self.plan.algorithm).__name__} uses outputs of a party's rows, which no noise "
            "covers: DP-SGD covers task.gradient alone. Leave out private, or use FedAvg or FedProx."
        )

    def labels(self, batch: Batch) -> Tensor:
        raise BadParameter(
            f"train: {type(self.plan.algorithm).__name__} uses labels of a party's rows, which no noise "
            "covers: DP-SGD covers task.gradient alone. Leave out private, or use FedAvg or FedProx."
        )

    def gradient(self, current: LocalState, batch: Batch) -> tuple[Tensor, LocalState]:
        self.left -= 1
        if self.left < 0:
            raise BadParameter(
                f"train: {type(self.plan.algorithm).__name__} computes more gradients than local steps, "
                "which is more than was accounted for. Use FedAvg, FedProx or another algorithm that "
                "computes "
                "one per step."
            )
        mine = self._thread_module()
        if self._local.ghost is None:
            s = self.settings
            self._local.ghost = GhostClipping(
                mine.module, s.factors(), "per-layer" if s.clipping == "per-layer" else "flat", s.method
            )
            self._local.ghost.is_mean = False
        ghost = self._local.ghost
        mine.load(current.w, current.buffers.get("buffers"))
        count = self.rows[int(batch.key)] if self.rows else int(batch.live.sum())
        if count > 1 and not self._local.is_checked:
            self._check_examples(ghost, batch)
        ghost.factors = self._factors(int(batch.key))
        if count:
            with torch.enable_grad():
                self._losses_of(mine.module, batch, batch.index[:count]).sum().backward()  # type: ignore[no-untyped-call]
        sums = ghost.take()
        release = self.now.release
        if release is not None:
            sigma = noise.deviation(
                release.multiplier, float(self.settings.clip or 0), sum(t.numel() for t in sums)
            )
            sums = noise.add_noise(sums, sigma, self.source)
        by_parameter = dict(zip(map(id, ghost.parameters), sums))
        g = torch.cat([by_parameter.get(id(p), torch.zeros_like(p)).reshape(-1) for p in mine.values])
        return self.add_penalty(g / self.now.width, current.w), current  # λ·W is the same on any rows

    def _losses_of(self, module: nn.Module, batch: Batch, index: Tensor) -> Tensor:
        """[N]: the losses of these rows."""
        batch = batch._replace(index=index, live=torch.ones_like(index, dtype=batch.live.dtype))
        with self._forward(batch):
            out = call(module, self._read(batch), self.part)
        return self._loss(out.float(), self.y[batch.index])

    def _check_examples(self, ghost: GhostClipping, batch: Batch) -> None:
        """Compare two rows of this party with one row at a time: only then is a row's gradient clipped."""

        def losses(which: Sequence[int]) -> Tensor:
            return self._losses_of(ghost.model, batch, batch.index[:2][list(which)])

        with evaluation_mode(ghost.model), torch.enable_grad():  # dropout would differ
            if self.kind.draws:
                check_rows(ghost, losses, 2)
            else:
                check_one_by_one(ghost, losses, 2, 0.05 if self.precision == "bf16" else 1e-3)
        self._local.is_checked = True

    def _factors(self, key: int) -> Callable[[Tensor], Tensor]:
        """Return the clipping factors of a step; of a person's rows, their mean is taken."""
        factors, share = self.settings.factors(), self.shares.get(key)
        if share is None:
            return factors
        return lambda norms: factors(norms) * share.to(norms)

    def loss(self, w: Tensor, batch: Batch, buffers: State | None = None) -> Tensor:
        raise BadParameter(
            f"train: {type(self.plan.algorithm).__name__} uses the losses of a party's rows, which no noise "
            "covers. Use FedAvg, FedProx or another algorithm that uses gradients alone."
        )

    def sums_of_models(
        self, models: Tensor, current: LocalState, batch: Batch, live: Tensor, left_out: Tensor
    ) -> tuple[Tensor, LocalState]:
        raise BadParameter(
            f"train: {type(self.plan.algorithm).__name__} computes gradients and losses of several models, "
            "which no noise covers. Use FedAvg, FedProx or another algorithm that uses one gradient per step."
        )

    def for_stacking(self) -> Task:
        raise BadParameter(
            "train: with private, clients run one by one. Leave engine at 'auto', or use 'each'."
        )


def describe_size(p: Plan) -> str:
    """Describe, for a ledger, how the number of a party's rows or people is known, and what a person is."""
    s, unit = settings_of(p), unit_of(p)
    plural = PLURAL[unit]
    known = (
        describe_count(count_release(s), plural)
        if s.public_size is None
        else describe_declared(s.public_size, plural)
    )
    return known if unit == "row" else f"{known} {PEOPLE}"


def spent(p: Plan, rounds: int) -> Ledger:
    """Return the ledger's line of each party."""
    ledger, s = Ledger(), settings_of(p)
    if not s.private:
        ledger.stamp(
            f"NOT PRIVATE: {'gradients were not clipped' if s.clip is None else 'no noise was added'}; "
            "nothing is guaranteed."
        )
        return ledger
    known, unit = describe_size(p), unit_of(p)
    note = f"Accounted as if this party took part in every round. {known} All parties weigh the same."
    if p.fed.spent is None and (
        len(p.fed.held.index) or len(p.fed.test.y)
    ):  # else each row is drawn by itself
        note = f"{note} {HELD_OUT}"
    if p.public_sizes is None:  # real parties, which know their numbers of rows
        assert s.epsilon is not None  # config/conflicts
        for name in p.fed.parties:
            ledger.spend(
                Spend(
                    f"DP-SGD of {p.rounds} rounds, calibrated by the party to its noisy number of "
                    f"{PLURAL[unit]} and charged to its own account",
                    s.epsilon,
                    s.delta,
                    f"{unit} of {name}, present or not",
                    SERVER,
                    "Poisson (drawn by the party, in secret)",
                    f"At most: the party's own ledger says what was spent. {known}",
                )
            )
        return ledger
    for name, size, epochs in zip(p.fed.parties, p.sizes.tolist(), p.local_epochs):
        t = terms(p, size, epochs)
        assert t.release is not None
        account = Account(t.release, s.delta, spent=t.steps * rounds)
        for release in _earlier(s):
            account.spend(0, release)
        ledger.spend(spend(s, account, t.width, size, f"{unit} of {name}", SERVER, note, PLURAL[unit]))
    return ledger
