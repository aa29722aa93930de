"""`tacit.audit.infer_property`: tell a fact about a whole training set from a model or an update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ...audit import chance
from ...audit.properties import MetaClassifier, draw_rows, largest_size
from ...data.federation import Federation, Holdings, Rows, check_one_label
from ...errors import BadData, BadParameter
from ...guard import Noise
from ...parameters import bad, refuse
from ...parties.ledger import Ledger
from ...report.svg import Axis, Figure, Series, Table, plot
from ...results import JobResult, Result
from ..stacks import group_into_stacks
from ..train.plan import Plan
from ..train.train import train_side_by_side
from .runs import open_run, plan_of, rounds_of
from .shadows import outputs
from .uploads import module_at_start, observe

VIEWS = ("model", "update")
PROBES = 200  # rows that describe a model by its outputs
FEWEST = 20  # rows of a shadow
Property = Callable[[Rows], Any]


@dataclass
class PropertyInference(JobResult):
    """How often the kind of a training set is told from a model, or from an update that the server sees."""

    title: ClassVar[str] = "Property inference"
    facts: ClassVar[tuple[str, ...]] = (
        *("view", "shares", "tested", "right", "accuracy", "p_value"),
        *("share", "guess", "rows", "shadows", "seen", "notes"),
    )

    view: str
    shares: tuple[float, float]  # of rows with the property, of the two kinds of training sets
    scores: Tensor = field(repr=False)  # [tested]
    kinds: Tensor = field(repr=False)  # [tested]: whether each has the second share
    share: float  # the true share of the run
    guess: float | None  # of the run's own model: one of the shares
    rows: int  # of a shadow's training set, or of the party's
    shadows: int  # that the attacker trained
    seen: str
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        return self.accuracy

    @property
    def tested(self) -> int:
        return len(self.kinds)

    @property
    def right(self) -> int:
        """How many of the tested training sets were told correctly."""
        return int(((self.scores > 0) == self.kinds).sum())

    @property
    def accuracy(self) -> float:
        return self.right / self.tested

    @property
    def p_value(self) -> float:
        """P(at least as many right | each kind is as probable whatever is seen): binomial."""
        return chance.binomial_tail(self.right, self.tested, 0.5)

    def plot(self) -> Figure:
        """The scores of the tested training sets of both kinds."""
        series = [
            Series(
                f"{share:.0%} of rows",
                self.scores[self.kinds == bool(k)].tolist(),
                [k] * int((self.kinds == bool(k)).sum()),
                f"c{k}",
            )
            for k, share in enumerate(self.shares)
        ]
        rows = [(f"{s.name}", f"{np.mean([v > 0 for v in s.x]):.2f}") for s in series if len(s.x)]
        return plot(
            "Scores of training sets by share of rows with the property",
            series,
            Axis("score of the attacker's classifier"),
            Axis("kind", low=-0.5, high=1.5, fixed=True),
            joined=False,
            table=Table(("training sets with", "taken for the second"), rows),
        )

    def _page(self) -> str:
        from ...report.layout import Section, figure
        from ...report.result import render

        return render(self.title, self.to_dict(), [Section("scores", "Scores", figure(self.plot()))])


def infer_property(
    run: Result | str | Path,
    where: Property,
    *,
    shares: tuple[float, float] = (0.2, 0.8),
    view: str = "model",
    size: int | None = None,
    shadows: int = 24,
    tests: int = 16,
    seed: int = 0,
    watch: Callable[[int, int], bool | None] | None = None,
) -> PropertyInference:
    """Tell which of two shares of the training rows has a property that the model is not about.

    `where` is a function of Rows that returns for each whether it has the property, such as
    `lambda rows: rows.x[:, 3] > 0`. With view="model", the run is trained again on `shadows` random training
    sets of the attacker's rows, half with the first of `shares` and half with the second; a classifier learns
    to tell them by their outputs. It is tested on `tests` more models, of rows that the attacker does not
    have. With view="update", the same with the update that the server sees of one party with such rows, after
    the run's guard. `size` is the number of rows of such a training set (default: as many as there are, at
    most 200 for an update). `watch(done, all)` follows the shadows, and may return True to stop.

    The result has `.accuracy`, `.p_value`, and for view="model" the `.guess` for the run's own model beside
    its true `.share`.
    """
    _check(where, shares, view, size, shadows, tests)
    opened = open_run(run, "infer_property")
    p = plan_of(opened)
    check_one_label("infer_property", p.fed)
    if p.algorithm.sees_each:
        raise BadParameter(
            f"infer_property: {type(p.algorithm).__name__} has one model for each cluster. Audit a run with "
            "one model."
        )
    rng = np.random.default_rng(seed)
    index = p.fed.train.index[torch.from_numpy(rng.permutation(len(p.fed.train.index)))]
    has = _has(where, p.fed.rows.take(index))
    halves = np.arange(len(index)) % 2 == 0  # the attacker's rows, and those of tested training sets
    most = min(largest_size(has[halves], shares), largest_size(has[~halves], shares))
    n = min(most, size or (most if view == "model" else 200))
    if n < max(FEWEST, len(p.fed) if view == "model" else 1) or (size is not None and size > most):
        raise bad(
            "infer_property",
            "size",
            n if size is None else size,
            f"at most {most} rows, and at least {FEWEST} and one for each party",
            f"Of {len(index)} training rows {int(has.sum())} have the property.",
        )
    chosen, kinds = [], np.arange(shadows + tests) % 2 == 1
    for k, kind in enumerate(kinds):
        mine = np.flatnonzero(halves if k < shadows else ~halves)
        chosen.append(index[torch.from_numpy(mine[draw_rows(has[mine], n, shares[int(kind)], rng)])])
    probes = _probes(p, rng)
    described, seen, own = (
        _models(opened, p, chosen, probes, watch) if view == "model" else _updates(p, chosen, watch)
    )
    if len(described) < shadows + 2:
        raise BadParameter(
            "infer_property: stopped before two training sets were tested: nothing to count. Use "
            "fewer shadows."
        )
    kind = torch.from_numpy(kinds[: len(described)])
    meta = MetaClassifier.fit(described[:shadows], kind[:shadows])
    guess = None if own is None else shares[int(float(meta.score(own[None])) > 0)]
    return PropertyInference(
        view,
        (float(shares[0]), float(shares[1])),
        meta.score(described[shadows:]),
        kind[shadows:],
        float(has.mean()),
        guess,
        n,
        shadows,
        seen,
        opened.ledger,
    )


def _check(where: Any, shares: Any, view: Any, size: Any, shadows: Any, tests: Any) -> None:
    def even(n: Any, least: int) -> bool:
        return isinstance(n, int) and not isinstance(n, bool) and n >= least and n % 2 == 0

    pair = isinstance(shares, tuple | list) and len(shares) == 2
    fine = pair and all(isinstance(s, int | float) and 0 <= s <= 1 for s in shares) and shares[0] != shares[1]
    refuse(
        (
            not callable(where),
            bad("infer_property", "where", where, "a function of Rows that returns True or False for each"),
        ),
        (not fine, bad("infer_property", "shares", shares, "two different shares from 0 to 1")),
        (view not in VIEWS, bad("infer_property", "view", view, "'model' or 'update'")),
        (
            size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < FEWEST),
            bad("infer_property", "size", size, f"a whole number of at least {FEWEST}, or None"),
        ),
        *(
            (not even(n, 4), bad("infer_property", name, n, "an even number of at least 4"))
            for name, n in (("shadows", shadows), ("tests", tests))
        ),
    )


def _has(where: Property, rows: Rows) -> np.ndarray:
    try:
        found = torch.as_tensor(where(rows))
    except Exception as error:
        raise BadParameter(
            f"infer_property: where= failed on the rows ({type(error).__name__}: {error}). It gets Rows: "
            f"the encoded columns are rows.x, of shape {tuple(rows.matrix('infer_property').shape)}, and the "
            "labels rows.y, as in lambda rows: rows.x[:, 3] > 0."
        ) from error
    if found.shape != (len(rows.y),) or found.dtype != torch.bool:
        raise BadParameter(
            f"infer_property: where= returned {tuple(found.shape)} of {found.dtype}; it must return one bool "
            "for each row."
        )
    if not found.any() or found.all():
        raise BadData("infer_property: all training rows have the property, or none has.")
    return found.numpy()


def _probes(p: Plan, rng: np.random.Generator) -> Tensor:
    """Rows that models are described on: test or held-out rows, else training rows."""
    held = p.fed.rows.take(p.fed.held.index)
    rows = p.fed.test if len(p.fed.test.y) else held if len(held.y) else p.fed.rows
    return rows.matrix("infer_property")[torch.from_numpy(rng.permutation(len(rows.y))[:PROBES])]


def _describe(model: nn.Module, probes: Tensor, classes: int | None) -> Tensor:
    out = outputs(model, probes)
    return (out if classes is None else out.log_softmax(-1)).flatten().double()


def _models(
    run: Result,
    p: Plan,
    chosen: list[Tensor],
    probes: Tensor,
    watch: Callable[[int, int], bool | None] | None,
) -> tuple[Tensor, str, Tensor]:
    """Descriptions of a model for each training set, and of the run's own."""
    plans = [_plan(p, rows, s, rounds_of(run)) for s, rows in enumerate(chosen)]
    alone = p.pace is not None or p.topology is not None or p.private is not None
    groups = [[s] for s in range(len(plans))] if alone else group_into_stacks(plans)
    models: dict[int, nn.Module] = {}
    for group in groups:
        made = train_side_by_side([plans[i] for i in group], [None] * len(group))
        models |= {i: result.model for i, result in zip(group, made)}
        if watch is not None and watch(len(models), len(plans)):
            break
    done = next((s for s in range(len(plans)) if s not in models), len(plans))
    described = [_describe(models[s], probes, p.fed.classes) for s in range(done)]
    table = torch.stack(described) if described else torch.zeros(0, 1)
    return table, "the model", _describe(run.model, probes, p.fed.classes)


def _plan(p: Plan, rows: Tensor, s: int, rounds: int) -> Plan:
    """The run on this training set, divided evenly between its parties."""
    fed: Federation = p.fed
    rest = torch.ones(len(fed.rows.y), dtype=torch.bool)
    rest[rows] = False
    held = [torch.nonzero(rest)[:, 0], *([torch.empty(0, dtype=torch.int64)] * (len(fed) - 1))]
    made = dataclasses.replace(
        fed,
        train=Holdings.from_lists(list(torch.tensor_split(rows, len(fed)))),
        held=Holdings.from_lists(held),
        test=(fed.test if len(fed.test.y) else fed.rows).take(slice(2)),
        subgroups=None,
        source=None,
    )
    return dataclasses.replace(
        p,
        fed=made,
        seed=p.seed + 1 + s,
        rounds=rounds,
        # noise is divided between rounds and evaluations
        evaluate_every=p.evaluate_every if any(isinstance(g, Noise) for g in p.guard) else 0,
        patience=None,
        callbacks=(),
        landscape=False,
        adversaries=None,
        metrics=None,
        runtime="cohort",
        through=None,
        insecure_seed=None if p.insecure_seed is None else p.insecure_seed + 1 + s,
        public_sizes=None if p.public_sizes is None else tuple(made.train.sizes.tolist()),
        label=f"shadow {s}",
    )


def _updates(
    p: Plan, chosen: list[Tensor], watch: Callable[[int, int], bool | None] | None
) -> tuple[Tensor, str, None]:
    """What the server sees of a party with each of these training sets, in the first round."""
    module, described, words = module_at_start(p), [], ""
    for s, rows in enumerate(chosen):
        drawn = dataclasses.replace(
            p, insecure_seed=None if p.insecure_seed is None else p.insecure_seed + 1 + s
        )
        view = observe(drawn, module, p.fed.rows.take(rows))
        described.append(torch.cat([part.flatten() for part in view.update]))
        words = view.words
        if watch is not None and watch(s + 1, len(chosen)):
            break
    return torch.stack(described), words, None
