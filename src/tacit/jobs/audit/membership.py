"""`tacit.audit.membership`: can a stranger with the model tell who was in the training set?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ...audit import roc, scores
from ...data.federation import Federation, Holdings, Rows, check_one_label
from ...data.inputs import concatenate
from ...errors import BadData, BadParameter
from ...parameters import bad, refuse
from ...parties.ledger import Ledger
from ...report.svg import Figure
from ...results import JobResult, Result
from ..train.plan import Plan
from .rounds import notes_on, score_rounds, without_party
from .runs import claim_of, open_run, plan_of, rounds_of, rows_of
from .shadows import Pool, outputs, train_by, train_shadows

ATTACKS = ("lira", "lira_offline", "rmia", "loss", "label", "rounds")
WITHOUT_SHADOWS = ("loss", "label", "rounds")
POPULATION = 0.2  # of the non-members, which RMIA compares with
COPIES = 32  # perturbed copies of a row, for the label-only attack
WIDTHS = (0.1, 0.3, 1.0)  # of their noise, in standard deviations of a feature


@dataclass
class Membership(JobResult):
    """The attack's scores of members and non-members, and the (ε, δ) that the run claims for them."""

    title: ClassVar[str] = "Membership inference"
    facts: ClassVar[tuple[str, ...]] = (
        *("attack", "unit", "auc", "p_value", "rates", "claim", "shadows", "members", "notes"),
    )

    attack: str
    unit: str
    curve: roc.Roc = field(repr=False)
    claim: tuple[float, float] | None
    shadows: int
    ledger: Ledger = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        return self.auc

    @property
    def auc(self) -> float:
        """Area under the ROC curve: 0.5 is guessing, 1 tells every member from every non-member."""
        return self.curve.auc

    @property
    def p_value(self) -> float:
        """The probability of such an AUC by chance: the false-alarm probability of "the attack works"."""
        return self.curve.p_value

    @property
    def members(self) -> int:
        """How many members were attacked."""
        return len(self.curve.inside)

    def tpr_at(self, fpr: float) -> float:
        """The share of members found at this false-positive rate."""
        return self.curve.tpr_at(fpr)

    @property
    def rates(self) -> dict[str, float]:
        return {f"TPR at FPR {rate:g}": self.tpr_at(rate) for rate in roc.FALSE_ALARMS}

    def ceiling(self, fpr: float) -> float:
        """The largest TPR that the claimed (ε, δ) allows at this FPR; 1 without a claim."""
        return 1.0 if self.claim is None else float(roc.ceiling(fpr, *self.claim))

    def plot(self) -> Figure:
        """The ROC curve on logarithmic axes, with the ceiling of the claimed (ε, δ)."""
        name = f"Membership of a {self.unit}: {self.attack}"
        return roc.draw(name, {self.attack: self.curve}, self.claim)

    def _page(self) -> str:
        from ...report.layout import Section, figure
        from ...report.result import render

        return render(self.title, self.to_dict(), [Section("roc", "ROC curve", figure(self.plot()))])

    def _summary(self) -> str:
        rates = ", ".join(
            f"{rate:.3f} at FPR {at:g}" for at, rate in zip(roc.FALSE_ALARMS, self.rates.values())
        )
        lines = [
            f"{self.attack} on {self.members} members and {len(self.curve.outside)} non-members "
            f"({self.unit}s), {self.shadows} shadow models",
            f"AUC {self.auc:.3f} (by chance with probability {self.p_value:.2g}), TPR {rates}",
        ]
        if self.claim is not None:
            most = ", ".join(f"{self.ceiling(rate):.3f}" for rate in roc.FALSE_ALARMS)
            lines.append(f"allowed by ε = {self.claim[0]:.3g}, δ = {self.claim[1]:.2g}: TPR {most}")
        return "\n".join([*lines, *self.notes])


def membership(
    run: Result | str | Path | nn.Module,
    *,
    members: Any = None,
    non_members: Any = None,
    attack: str = "lira",
    unit: str = "row",
    shadows: int = 64,
    most: int | None = None,
    party: str | None = None,
    seed: int = 0,
    train: Callable[[Rows, int], Any] | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Membership:
    """Attack a run's model: decide for rows (or parties) whether they were in its training set.

    `run` is a result of tacit.train, or its directory. `members` and `non_members` are pairs (x, y) of
    encoded rows; by default the run's training rows, and its held-out and test rows. With unit="party", a
    whole party is decided on: `members` are the run's parties, and `non_members` is a Federation of others.

    "lira" and "lira_offline" compare the model with `shadows` models of the same job, each trained on a
    random half; "rmia" needs fewer; "loss" needs none; "label" sees predicted labels only;
    "rounds" is the attack of who saw the models of all rounds, the server or, with its name in `party`, one
    of the parties about the rows of the others. At most `most` members and as many non-members are
    attacked. `watch(done, all)` follows the shadow models.

    A model that tacit.train did not make needs `train`, a function of (rows, seed) that trains one like it,
    and both `members` and `non_members`.
    """
    _check_options(attack, unit, shadows, most)
    refuse(
        (
            party is not None and (attack != "rounds" or unit != "row"),
            "membership: party= is the adversary of attack='rounds', about rows. Leave it out.",
        )
    )
    rng = np.random.default_rng(seed)
    if isinstance(run, nn.Module) or train is not None:
        return _of_model(run, members, non_members, attack, unit, shadows, most, rng, train, watch)
    opened = open_run(run, "membership")
    p = plan_of(opened)
    _check_plan(p, attack)
    pool = (
        _pool_of_rows(p, members, non_members, most, rng)
        if unit == "row"
        else _pool_of_parties(p, members, non_members, most, rng)
    )
    needs = attack not in WITHOUT_SHADOWS
    models, inside = (
        train_shadows(p, rounds_of(opened), pool, shadows, rng, watch)
        if needs
        else ([], np.zeros((0, len(pool.units)), dtype=bool))
    )
    notes = [] if p.fed.classes is not None else ["a regression: the statistic is the residual"]
    if unit == "row" and needs:
        known = sum(map(len, pool.fixed))
        notes.append(f"the adversary knows the other {known} training rows, and how the model was trained")
    if attack == "rounds":
        notes += notes_on(p, party)
        found = _score_rounds(p, rounds_of(opened), pool, without_party(p, pool, party))
    else:
        found = _score(opened.model, models, inside, pool, attack, rng, p.fed.classes, p.device)
    return Membership(
        attack,
        unit,
        found,
        claim_of(opened.ledger, unit),
        len(models),
        opened.ledger,
        tuple(notes),
    )


def _check_options(attack: str, unit: str, shadows: int, most: int | None) -> None:
    whole = isinstance(shadows, int) and not isinstance(shadows, bool)
    refuse(
        (
            attack not in ATTACKS,
            bad("membership", "attack", attack, f"one of {', '.join(map(repr, ATTACKS))}"),
        ),
        (unit not in ("row", "party"), bad("membership", "unit", unit, "'row' or 'party'")),
        (
            not whole or shadows < 4 or shadows % 2,
            bad("membership", "shadows", shadows, "an even number of at least 4"),
        ),
        (
            most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 2),
            bad("membership", "most", most, "a whole number of at least 2, or None (all)"),
        ),
    )


def _check_plan(p: Plan, attack: str) -> None:
    check_one_label("membership", p.fed)
    refuse(
        (
            p.fed.skew is not None and p.fed.at(1) is not p.fed.rows,
            "membership: the rows of this run change over rounds (ConceptDrift), so who is a member is not "
            "defined. Audit a run without drift.",
        ),
        (
            p.fed.classes is None and attack in ("rmia", "label"),
            f"membership: {attack!r} needs classes, and this run is a regression. Use attack='lira' or "
            "'loss'.",
        ),
        (
            p.algorithm.sees_each,
            f"membership: {type(p.algorithm).__name__} has one model for each cluster. Audit a run with one "
            "model.",
        ),
    )


# the audited rows and parties -------------------------------------------------------------------------------


def _digests(rows: Rows) -> list[bytes]:
    x = rows.matrix("membership").detach().cpu().contiguous().reshape(len(rows.y), -1).numpy()
    y = rows.y.detach().cpu().contiguous().reshape(len(rows.y), -1).numpy()
    return [a.tobytes() + b.tobytes() for a, b in zip(x, y)]


def _pool_of_rows(
    p: Plan, members: Any, non_members: Any, most: int | None, rng: np.random.Generator
) -> Pool:
    fed = p.fed
    inside = fed.train.index.numpy()
    owner = dict(zip(inside.tolist(), fed.train.owner.tolist()))
    all_rows, new = fed.rows, list(fed.held.index.tolist())
    place = dict(zip(new, fed.held.owner.tolist()))
    known = set(digests := _digests(fed.rows.take(inside)))
    if members is not None:
        asked = set(_digests(rows_of(members, p, "members", "membership")))
        if missing := len(asked - known):
            raise BadData(
                f"membership: {missing} of the rows in members= are not training rows of the run. Give rows "
                "encoded as the run encoded them, or leave members out."
            )
        inside = inside[np.array([d in asked for d in digests])]
    extra = fed.test if non_members is None else rows_of(non_members, p, "non_members", "membership")
    if non_members is not None:
        new = []
        if wrong := sum(d in known for d in _digests(extra)):
            raise BadData(f"membership: {wrong} of the rows in non_members= are training rows of the run.")
    if len(extra.y):
        first = len(all_rows.y)
        all_rows = Rows(concatenate([all_rows.x, extra.x]), torch.cat([all_rows.y, extra.y]))
        place |= dict(zip(range(first, first + len(extra.y)), _places(fed, extra.y, rng).tolist()))
        new += range(first, first + len(extra.y))
    if len(new) < 2 or len(inside) < 2:
        raise BadData(
            f"membership: the run has {len(inside)} members and {len(new)} non-members to attack; at least 2 "
            "of each are needed. Split it with held_fraction=0.1, or give non_members=(x, y)."
        )
    n = min(len(inside), len(new), most or len(new))
    yes, no = rng.permutation(inside)[:n], rng.permutation(np.array(new))[:n]
    audited = set(yes.tolist())
    return Pool(
        _with_rows(fed, all_rows),
        [
            torch.tensor([i for i in fed.train.of(k).tolist() if i not in audited], dtype=torch.int64)
            for k in range(len(fed))
        ],
        [torch.tensor([int(i)]) for i in (*yes, *no)],
        np.array([owner[int(i)] for i in yes] + [place[int(i)] for i in no]),
        np.arange(2 * n) < n,
    )


def _places(fed: Federation, y: Tensor, rng: np.random.Generator) -> np.ndarray:
    """A party for each row of the test set: drawn by the parties' numbers of rows with its label."""
    if fed.classes is None:
        share = fed.train.sizes.double().numpy()
        return rng.choice(len(fed), len(y), p=share / share.sum())
    counts = np.zeros((fed.classes, len(fed)))
    np.add.at(counts, (fed.rows.y[fed.train.index].numpy(), fed.train.owner.numpy()), 1)
    counts[counts.sum(1) == 0] = fed.train.sizes.numpy()
    shares = counts / counts.sum(1, keepdims=True)
    return np.array([rng.choice(len(fed), p=shares[label]) for label in y.tolist()], dtype=np.int64)


def _with_rows(fed: Federation, rows: Rows) -> Federation:
    """The federation with more rows, and few test rows: shadows are not evaluated."""
    more = len(rows.y) - len(fed.rows.y)
    persons = fed.persons
    if persons is not None:  # each new row is of somebody else
        first = int(persons.max()) + 1
        persons = torch.cat([persons, torch.arange(first, first + more, dtype=persons.dtype)])
    test = (fed.test if len(fed.test.y) else rows).take(slice(2))
    return dataclasses.replace(fed, rows=rows, test=test, persons=persons, subgroups=None, source=None)


def _pool_of_parties(
    p: Plan, members: Any, non_members: Any, most: int | None, rng: np.random.Generator
) -> Pool:
    fed = p.fed
    if not isinstance(non_members, Federation) or (members is not None):
        raise BadParameter(
            "membership: unit='party' attacks the parties of the run, so leave out members=, and needs "
            "non_members=, a Federation of parties that did not take part, with the same columns."
        )
    if non_members.rows.x.shape[1:] != fed.rows.x.shape[1:] or non_members.classes != fed.classes:
        raise BadData("membership: the parties in non_members= have other columns or classes than the run's.")
    if p.asked_per_round is not None and p.asked_per_round < len(fed):
        raise BadParameter(
            "membership: unit='party' is for runs in which all parties take part in each round "
            "(per_round=None)."
        )
    n = min(len(fed), len(non_members), most or len(fed))
    if n < 2:
        raise BadData("membership: unit='party' needs at least 2 parties in the run and 2 others.")
    yes, no = rng.permutation(len(fed))[:n], rng.permutation(len(non_members))[:n]
    first = len(fed.rows.y)
    rows = Rows(concatenate([fed.rows.x, non_members.rows.x]), torch.cat([fed.rows.y, non_members.rows.y]))
    units = [fed.train.of(int(k)) for k in yes] + [non_members.train.of(int(k)) + first for k in no]
    names = (*(fed.parties[k] for k in yes), *(f"other {non_members.parties[k]}" for k in no))
    made = dataclasses.replace(
        _with_rows(fed, rows),
        parties=names,
        train=Holdings.from_lists(units),
        held=Holdings.from_lists(units),
    )
    return Pool(made, [], units, np.full(2 * n, -1), np.arange(2 * n) < n)


# scores -----------------------------------------------------------------------------------------------------


def _score(
    target: nn.Module,
    models: list[nn.Module],
    inside: np.ndarray,
    pool: Pool,
    attack: str,
    rng: np.random.Generator,
    classes: int | None,
    device: str = "cpu",
) -> roc.Roc:
    sizes = [len(u) for u in pool.units]
    index = torch.cat(pool.units)
    x, y = pool.fed.rows.matrix("membership")[index].to(device), pool.fed.rows.y[index]

    def of_units(rows: Tensor) -> Tensor:
        """[…, units]: the mean of a statistic over a unit's rows."""
        if max(sizes) == 1:
            return rows
        return torch.stack([part.mean(-1) for part in rows.split(sizes, dim=-1)], dim=-1)

    statistic = scores.residual if classes is None else scores.logit_confidence
    if attack == "label":
        found = of_units(_robustness(target, x, y, rng))
    else:
        phi = statistic(outputs(target, x), y)
        if attack == "loss":
            found = of_units(-phi.abs() if classes is None else phi)
        else:
            others = torch.stack([of_units(statistic(outputs(m, x), y)) for m in models])
            found = _compare(of_units(phi), others, torch.from_numpy(inside), attack, pool, rng)
    keep = ~torch.isnan(found).numpy()
    return roc.Roc(found.numpy()[pool.is_member & keep], found.numpy()[~pool.is_member & keep])


def _score_rounds(p: Plan, rounds: int, pool: Pool, known: np.ndarray) -> roc.Roc:
    index = torch.cat(pool.units)
    x, y = pool.fed.rows.matrix("membership")[index], pool.fed.rows.y[index]
    sizes = [len(u) for u in pool.units]
    regression = p.fed.classes is None

    def statistic(out: Tensor, y: Tensor) -> Tensor:
        rows = -scores.residual(out, y).abs() if regression else scores.logit_confidence(out, y)
        return torch.stack([part.mean() for part in rows.split(sizes)]) if max(sizes) > 1 else rows

    found = score_rounds(p, rounds, x, y, statistic).numpy()
    return roc.Roc(found[pool.is_member & known], found[~pool.is_member & known])


def _compare(
    phi: Tensor, others: Tensor, inside: Tensor, attack: str, pool: Pool, rng: np.random.Generator
) -> Tensor:
    if attack == "lira":
        return scores.lira(phi, others, inside)
    if attack == "lira_offline":
        return scores.lira_offline(phi, others, inside)
    # RMIA compares with non-members that are not attacked themselves: their score is NaN
    strangers = np.flatnonzero(~pool.is_member)
    z = rng.permutation(strangers)[: max(1, math.ceil(POPULATION * len(strangers)))]
    found = scores.rmia(phi, others, inside, torch.from_numpy(z))
    found[z] = torch.nan
    return found


def _robustness(model: nn.Module, x: Tensor, y: Tensor, rng: np.random.Generator) -> Tensor:
    """The share of noisy copies of each row that the model labels correctly, the row itself among them.

    C. Choquette-Choo, F. Tramèr, N. Carlini, N. Papernot: "Label-Only Membership Inference Attacks", ICML
    2021.
    """
    if not x.is_floating_point():
        raise BadParameter("membership: 'label' adds noise to rows, and these are tokens. Use attack='lira'.")
    spread = x.std(0, keepdim=True)
    right = (outputs(model, x).argmax(-1) == y).double()
    for width in WIDTHS:
        for _ in range(COPIES // len(WIDTHS)):
            noise = torch.from_numpy(rng.standard_normal(x.shape).astype(np.float32)).to(x.device)
            right += (outputs(model, x + width * spread * noise).argmax(-1) == y).double()
    return right


# models of other programs -----------------------------------------------------------------------------------


def _of_model(
    run: Any,
    members: Any,
    non_members: Any,
    attack: str,
    unit: str,
    shadows: int,
    most: int | None,
    rng: np.random.Generator,
    train: Callable[[Rows, int], Any] | None,
    watch: Callable[[int, int], None] | None,
) -> Membership:
    model, ledger = (run, Ledger()) if isinstance(run, nn.Module) else (run.model, run.ledger)
    refuse(
        (
            members is None or non_members is None,
            "membership: a model that is not a run of tacit.train needs members=(x, y) and "
            "non_members=(x, y).",
        ),
        (
            train is None and attack not in WITHOUT_SHADOWS,
            f"membership: {attack!r} trains shadow models. Give train=, a function of (rows, seed) that "
            "trains a model like this one, or use attack='loss'.",
        ),
        (unit == "party", "membership: unit='party' is for runs of tacit.train."),
    )
    yes, no = (
        rows_of(r, None, n, "membership") for r, n in ((members, "members"), (non_members, "non_members"))
    )
    n = min(len(yes.y), len(no.y), most or len(no.y))
    a, b = rng.permutation(len(yes.y)), rng.permutation(len(no.y))[:n]
    index = torch.from_numpy(np.concatenate([a[:n], len(yes.y) + b]))
    rows = Rows(concatenate([yes.x, no.x]), torch.cat([yes.y, no.y]))
    fixed, units = torch.from_numpy(a[n:]), [i[None] for i in index]
    models: list[nn.Module] = []
    inside = np.zeros((0, 2 * n), dtype=bool)
    if train is not None and attack not in WITHOUT_SHADOWS:
        models, inside = train_by(train, rows, fixed, units, shadows, rng, watch)
    fed = Federation(
        "rows", rows, Holdings.from_lists([]), Holdings.from_lists([]), rows, int(rows.y.max()) + 1, ("all",)
    )
    pool = Pool(fed, [fixed], units, np.zeros(2 * n, dtype=np.int64), np.arange(2 * n) < n)
    found = _score(model, models, inside, pool, attack, rng, fed.classes)
    return Membership(attack, unit, found, claim_of(ledger, unit), len(models), ledger)
