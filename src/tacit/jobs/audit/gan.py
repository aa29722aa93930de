"""`tacit.audit.gan`: a participant draws the classes that only others have."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...audit import chance, class_inversion
from ...audit.generator import Generator, nearest_classes, train_generator
from ...audit.poisoning import Adversaries
from ...audit.reconstruction import Reconstruction
from ...data.federation import check_one_label
from ...engine.task import Task
from ...errors import BadData, BadParameter
from ...guard import Noise
from ...parameters import bad, refuse
from ...parties.ledger import Ledger
from ...report.markup import Safe
from ...results import JobResult, Result
from ..train.plan import Plan, make_task
from ..train.train import train_side_by_side
from .runs import claim_of, open_run, plan_of
from .uploads import start_at

State = dict[str, Tensor]
DRAWN = 64  # rows of each class, that the attack is judged by
MOST = 5000  # real rows that drawn rows are compared with


@dataclass
class GanAttack(JobResult):
    """Rows that a participant drew of classes which it does not have, and what they resemble."""

    title: ClassVar[str] = "GAN attack by a participant"
    facts: ClassVar[tuple[str, ...]] = (
        *("attacker", "victims", "recognized", "share", "likeness", "p_value"),
        *("accuracy", "accuracy_before", "rounds", "claim", "notes"),
    )

    rebuilt: Tensor = field(repr=False)  # [victims · 64, …]
    classes: Tensor = field(repr=False)  # [victims · 64]: the class that each was drawn for
    nearest: Tensor = field(repr=False)  # [victims · 64]: the class of the nearest training row of the others
    correlations: Tensor = field(repr=False)  # [victims, C]: of the mean drawn row with each class's mean row
    originals: Tensor = field(repr=False)  # [victims, …]: the mean training row of each victim's class
    known: tuple[int, ...]  # the classes of `correlations`
    attacker: str
    victims: tuple[int, ...]
    accuracy: float | None  # of the attacked run's model
    accuracy_before: float | None  # of the run without the attack
    rounds: int
    claim: tuple[float, float] | None  # what the run claims for a party
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> Tensor:
        return self.rebuilt

    @property
    def matched(self) -> dict[int, int]:
        """For each victim, the class whose mean row its drawn rows resemble most."""
        best = self.correlations.argmax(1).tolist()
        return {v: self.known[k] for v, k in zip(self.victims, best)}

    @property
    def recognized(self) -> int:
        """How many victims' drawn rows resemble their own class most."""
        return sum(v == found for v, found in self.matched.items())

    @property
    def share(self) -> float:
        """The share of drawn rows whose nearest real row is of their class."""
        return float((self.nearest == self.classes).double().mean())

    @property
    def likeness(self) -> float:
        """The mean correlation of a victim's drawn rows with its class's mean row."""
        at = [self.known.index(v) for v in self.victims]
        return float(self.correlations[torch.arange(len(at)), at].mean())

    @property
    def p_value(self) -> float:
        """P(at least as many are recognized | the model tells the attacker nothing): at most 1/k!.

        Of a single victim, 1 of the number of classes.
        """
        if len(self.victims) == 1:
            return 1 / len(self.known) if self.recognized else 1.0
        return chance.matches(self.recognized)

    def pictures(self, most: int = 10) -> Safe | None:
        """The mean row of each victim's class above a drawn row, for a page; None if not gray images."""
        from ...audit.pictures import show_pairs

        shown = Reconstruction(self.originals, self._first(), "GAN", 0.0, 0.0)
        return show_pairs(shown, most, ("mean of the class", "drawn"))

    def save_picture(self, path: str | Path, most: int = 10, zoom: int = 4) -> Path:
        """Write a PNG: the mean of each victim's class above four rows that were drawn."""
        from ...audit.pictures import save_strips

        strips = [self.originals[:most], *(self._first(k)[:most] for k in range(4))]
        span = float(self.originals.max() - self.originals.min()) or 1.0
        return save_strips(path, strips, span, zoom)

    def _first(self, k: int = 0) -> Tensor:
        return self.rebuilt.view(len(self.victims), -1, *self.rebuilt.shape[1:])[:, k]

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "matched": [list(pair) for pair in self.matched.items()]}

    def _page(self) -> str:
        from ...report.layout import Section
        from ...report.result import render

        shown = self.pictures()
        more = [] if shown is None else [Section("rows", "Drawn rows", shown)]
        return render(self.title, self.to_dict(), more)


def gan(
    run: Result | str | Path,
    *,
    victim: int | Sequence[int] | None = None,
    attacker: str | int | None = None,
    poison: bool = True,
    rounds: int | None = None,
    steps: int = 20,
    lr: float = 2e-3,
    tv: float = 0.01,
    seed: int = 0,
    watch: Callable[[int, int], bool | None] | None = None,
) -> GanAttack:
    """Train a run again with one malicious party, which draws rows of a class that it does not have.

    Each round the attacker trains a generator, `steps` long, against the model that it received, and with
    `poison` trains on what it drew, labeled as its own class: the others must then show more of theirs. It
    takes part as any party does, with the run's guard; secure aggregation hides nothing from it. `victim` is
    a class or several (default: all that the attacker has no row of), `attacker` a party's name or number
    (default: one that lacks the victims). `rounds` (default: the run's) makes the attack cheaper.
    `watch(done, all)` follows the rounds, and may return True: the attacker then waits for the last one.

    The result has `.rebuilt` (64 rows of each class), `.recognized` (classes whose drawn rows resemble their
    own mean training row most), `.share` (drawn rows whose nearest real row is of their class), `.p_value`,
    `.accuracy` of the attacked run, and pictures. What is drawn is typical for a class, not a row: it hurts
    where a class is one person, or one party.
    """
    _check(rounds, steps, lr)
    opened = open_run(run, "gan")
    p = plan_of(opened)
    _check_plan(p)
    own = _classes_by_party(p)
    who = _attacker(p, attacker, victim, own)
    victims = _victims(p, victim, own, who)
    total = rounds or len(opened.history) or p.rounds
    everyone = p.fed.rows.take(p.fed.train.index)
    mine = p.fed.rows.take(p.fed.train.of(who))
    x = mine.matrix("gan")
    low, high = (x.min(), x.max()) if x.min() >= 0 and x.max() <= 1 else (x.amin(0), x.amax(0))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        generator = Generator(x.shape[1:], victims, low, high)
    malicious = _Malicious(
        attacks=(),
        who=(),
        seed=seed,
        plan=p,
        party=who,
        generator=generator,
        optimizer=torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.5, 0.999)),
        rng=torch.Generator().manual_seed(seed),
        poison=poison,
        steps=steps,
        tv=tv,
        epochs=max(1, p.local_epochs[who % len(p.local_epochs)]),
        total=total,
        task=make_task(p),
        watch=watch,
    )
    attacked = dataclasses.replace(
        p,
        rounds=total,
        # noise is divided between rounds and evaluations
        evaluate_every=p.evaluate_every if any(isinstance(s, Noise) for s in p.guard) else 0,
        patience=None,
        callbacks=(),
        landscape=False,
        runtime="cohort",
        through=None,
        adversaries=malicious,
        label="GAN attack",
    )
    (made,) = train_side_by_side([attacked], [None])
    malicious.learn(made.model)
    drawn, classes = malicious.generator.draw(DRAWN, malicious.rng)
    others = everyone.take(_some(everyone.y, seed))
    real = others.matrix("gan")
    known = tuple(int(c) for c in everyone.y.unique())
    means = class_inversion.class_means(everyone.matrix("gan"), everyone.y, torch.tensor(known))
    average = drawn.view(len(victims), DRAWN, -1).mean(1)
    notes = [f"the attacker has classes {', '.join(map(str, sorted(own[who])))}"]
    if malicious.stopped:
        notes.append(
            f"the attacker was stopped in round {malicious.stopped[0]} of {total}, and drew from the "
            "last model"
        )
    if any(s.hides for s in p.guard):
        notes.append("updates are hidden in a sum, the model is not: the attacker needs no update")
    return GanAttack(
        drawn,
        classes,
        nearest_classes(drawn, real, others.y)[0],
        class_inversion.likeness(average, means),
        means[[known.index(v) for v in victims]].float().reshape(-1, *x.shape[1:]),
        known,
        p.fed.parties[who],
        victims,
        _accuracy(made),
        _accuracy(opened),
        total,
        claim_of(opened.ledger, "party"),
        made.ledger,
        tuple(notes),
    )


@dataclass(frozen=True)
class _Malicious(Adversaries):
    """One party, which replaces its update each round by one that it trained on rows it drew."""

    plan: Plan
    party: int
    generator: Generator
    optimizer: torch.optim.Optimizer
    rng: torch.Generator
    poison: bool
    steps: int
    tv: float
    epochs: int
    total: int
    task: Task
    watch: Callable[[int, int], bool | None] | None
    stopped: list[int] = field(default_factory=list)  # the round in which `watch` returned True

    def learn(self, module: nn.Module) -> None:
        """Train the generator against a model that the attacker received."""
        train_generator(self.generator, self.optimizer, module.cpu(), self.rng, steps=self.steps, tv=self.tv)

    def updates(self, number: int, who: np.ndarray, vectors: State, down: State) -> State:
        at = np.flatnonzero(who == self.party)
        if self.poison and not {"w", "delta"} & set(vectors):
            name = type(self.plan.algorithm).__name__
            raise BadParameter(
                f"gan: clients of {name} send {', '.join(map(repr, vectors))}, which the attacker does not "
                "know how to make from its own steps. Use poison=False: it then only listens."
            )
        if not self.stopped and self.watch is not None and self.watch(number + 1, self.total):
            self.stopped.append(number + 1)
        if not len(at) or self.stopped:
            return {}
        module = self.task.module_at(down["w"], down.get("buffers")).cpu()
        self.learn(module)
        if not self.poison:
            return {}
        change = self._train(module).to(down["w"].device) - down["w"]
        out: State = {}
        for name in ("w", "delta"):
            if name in vectors:
                out[name] = vectors[name].clone()
                out[name][at] = change + down["w"] if name == "w" else change
        return out

    def _train(self, module: nn.Module) -> Tensor:
        """The weights after the attacker's local steps, on its rows and as many drawn ones of its label."""
        own = self.plan.fed.rows.take(self.plan.fed.train.of(self.party))
        mine = own.matrix("gan")
        each = -(-len(mine) // len(self.generator.classes))
        drawn, _ = self.generator.draw(each, self.rng)
        label = own.y.mode().values
        x, y = torch.cat([mine, drawn]), torch.cat([own.y, label.expand(len(drawn))])
        size = self.plan.batch_size or len(x)
        optimizer = torch.optim.SGD(
            [q for q in module.parameters() if q.requires_grad], float(self.plan.algorithm.lr)
        )
        module.train()
        for _ in range(self.epochs):
            for batch in torch.randperm(len(x), generator=self.rng).split(size):
                optimizer.zero_grad()
                F.cross_entropy(module(x[batch]), y[batch]).backward()
                optimizer.step()
        return start_at(self.task, module)["w"].cpu()


# what is attacked, and by whom ------------------------------------------------------------------------------


def _check(rounds: Any, steps: Any, lr: Any) -> None:
    def whole(n: Any) -> bool:
        return isinstance(n, int) and not isinstance(n, bool) and n >= 1

    refuse(
        (
            rounds is not None and not whole(rounds),
            bad("gan", "rounds", rounds, "a whole number of at least 1, or None"),
        ),
        (not whole(steps), bad("gan", "steps", steps, "a whole number of at least 1")),
        (not lr > 0, bad("gan", "lr", lr, "a number above 0")),
    )


def _check_plan(p: Plan) -> None:
    check_one_label("gan", p.fed)
    refuse(
        (p.fed.classes is None, "gan: the run is a regression, and the attack draws a class."),
        (
            not p.fed.rows.matrix("gan").is_floating_point(),
            "gan: rows are tokens, which a generator cannot draw. Use tacit.audit.memorization.",
        ),
        (
            p.pace is not None or p.topology is not None or p.private is not None or p.algorithm.sees_each,
            "gan: the attack is simulated in synchronous rounds with one server and one model. Leave out "
            "pace, topology and private; noise for parties is guard=[Clip, Noise].",
        ),
        (
            p.algorithm.solver is None or not p.algorithm.takes_steps,
            f"gan: clients of {type(p.algorithm).__name__} do not send the result of SGD steps.",
        ),
    )


def _classes_by_party(p: Plan) -> list[set[int]]:
    y = p.fed.rows.y
    return [set(y[p.fed.train.of(k)].unique().tolist()) for k in range(len(p.fed))]


def _attacker(p: Plan, given: Any, victim: Any, own: list[set[int]]) -> int:
    if given is not None:
        index = p.fed.parties.index(given) if given in p.fed.parties else given
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(p.fed):
            raise bad("gan", "attacker", given, f"a party's name, or its number below {len(p.fed)}")
        return index
    asked = set() if victim is None else {victim} if isinstance(victim, int) else set(victim)
    lacking = [k for k in range(len(p.fed)) if not asked & own[k]]
    every = set().union(*own)
    best = max(lacking, key=lambda k: len(every - own[k]), default=None)
    if best is None or not every - own[best]:
        raise BadData(
            "gan: every party has rows of the class, so nobody needs to draw it. Partition the rows with "
            "fewer classes for each party, for instance LabelsPerParty(1)."
        )
    return best


def _victims(p: Plan, victim: Any, own: list[set[int]], who: int) -> tuple[int, ...]:
    others = sorted(set().union(*own) - own[who])
    chosen = others if victim is None else [victim] if isinstance(victim, int) else list(victim)
    if not chosen or not set(chosen) <= set(others):
        raise bad("gan", "victim", victim, f"classes that {p.fed.parties[who]} has no row of: {others}")
    return tuple(dict.fromkeys(chosen))


def _some(y: Tensor, seed: int) -> Tensor:
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return order[:MOST]


def _accuracy(run: Result) -> float | None:
    value = run.metrics.get("accuracy")
    return None if value is None else float(value)
