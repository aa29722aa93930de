"""`tacit.plan`: what a training run would reveal, before anything runs.

No row is trained on; the noise is calibrated and the bytes are counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch

from .. import selection
from ..algorithms.types import State
from ..config import conflicts
from ..config.signature import with_options
from ..config.train import OPTIONS
from ..data.federation import Federation
from ..data.private_preparation import PrivatePreparation
from ..guard import Guard, Noise
from ..guard.guard import Layout
from ..numbers import each, size
from ..parameters import to_table
from ..parties.ledger import Ledger, Spend
from ..results import JobResult
from ..runs import Event
from .train import guards, local_dp, preparing
from .train.elsewhere import Elsewhere
from .train.figures import fit_figures, warn
from .train.plan import Plan, make_plan, prepare
from .train.simulated import tested_reveals, upload_reveals
from .train.traffic import evaluation_sizes, guarded_sizes, look_sizes, score_sizes

if TYPE_CHECKING:
    from ..config.types import TrainOptions


@dataclass(frozen=True)
class Outlook(JobResult):
    """What a run would do: who sees what, what it spends, what it sends. The ledger is empty: nothing ran."""

    title = "What a training run would reveal"
    facts = (
        "sees",
        "spends",
        "prepares",
        "total",
        "bytes_up",
        "bytes_down",
        "rounds",
        "parties",
        "per_round",
        "tolerated",
        "guard",
        "held_out",
        "notes",
    )

    sees: list[dict[str, str]]
    spends: dict[str, Any] | None
    bytes_up: int  # of one party in a round
    bytes_down: int
    rounds: int
    parties: int
    per_round: int
    tolerated: int  # parties that may drop out of a round
    guard: list[dict[str, Any]]
    held_out: str  # which figures on held-out rows the run would show
    notes: list[str]
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    prepares: dict[str, Any] | None = None  # what the noisy statistics of the tables spend

    @property
    def total(self) -> dict[str, float] | None:
        """ε and δ of preparation and training together, by basic composition.

        None: training has none, or there are two, and that of training is for a client. Noise for clients
        that are present or not does not cover one row more at a client, which exchanges that client.
        """
        if self.spends is None or (self.prepares is not None and self.spends["unit"].startswith("client")):
            return None
        parts = [self.spends, *([] if self.prepares is None else [self.prepares])]
        return {key: sum(part[key] for part in parts) for key in ("epsilon", "delta")}

    @property
    def value(self) -> list[dict[str, str]]:
        """Who would see what."""
        return self.sees

    def _page(self) -> str:
        from ..report.result import render_plan

        return render_plan(self.title, self._text().splitlines(), self.guard)

    def _text(self) -> str:
        parties = f"{self.parties} {'party' if self.parties == 1 else 'parties'}"
        rounds = f"{self.rounds} {'round' if self.rounds == 1 else 'rounds'}"
        lines = [f"{parties}, {self.per_round} a round, {rounds}"]
        lines += [f"{s['party']} sees: {s['what']}" for s in self.sees]
        if self.spends is None:
            lines.append("no differential privacy: what the models say about any one client is not bounded")
        else:
            s = self.spends
            budget = "" if s["budget"] is None else f" (budget {s['budget']:g})"
            lines += [
                f"ε = {s['epsilon']:.4g} at δ = {s['delta']:g}{budget} for {each(s['unit'])}, after "
                f"{s['rounds']} {'round' if s['rounds'] == 1 else 'rounds'}",
                f"  by {s['mechanism']}",
                f"  against {s['adversary']}",
                f"  assuming {s['sampling']} sampling",
                f"  {s['note']}",
            ]
        if self.prepares is not None:
            s = self.prepares
            lines.append(
                f"ε = {s['epsilon']:.4g} at δ = {s['delta']:g} for {each(s['unit'])}, before round 1"
                f"\n  by {s['mechanism']}"
            )
        if self.prepares is not None and (total := self.total) is not None:
            lines.append(
                f"total: ε = {total['epsilon']:.4g} at δ = {total['delta']:g} for "
                f"{each(self.prepares['unit'])}, preparation and training together"
            )
        elif self.prepares is not None and self.spends is not None:
            lines.append(
                "no total: the ε of training is for a client, the ε of the preparation for "
                f"{each(self.prepares['unit'])}"
            )
        lines.append(f"each party and round: {size(self.bytes_up)} up, {size(self.bytes_down)} down")
        lines.append(f"dropouts tolerated in a round: {self.tolerated} of {self.per_round}")
        lines.append(f"figures on held-out rows: {self.held_out}")
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


@with_options(OPTIONS)
def plan(
    fed: Federation,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    data_job: dict[str, Any] | None = None,
    watch: Callable[[Event], None] | None = None,
    **options: Unpack[TrainOptions],
) -> Outlook:
    """Report what `tacit.train` would reveal with the same arguments, and refuse what it would refuse.

    Nothing is trained and nothing is written.
    """
    p = make_plan(fed, **options)
    if resume:
        conflicts.check_resume(p)
    task, start = prepare(p)
    guard = guards.fit(p, task, start)
    for edge in p.edges():  # what an edge's own guard refuses
        guards.fit(edge, task, start)
    layout = guards.layout_of(task, p.algorithm, start) if guard is None else guard.layout
    up = _blank(layout) if guard is None else guard.blank_upload()
    state = p.algorithm.server_state(start["w"])
    sent = {
        **start,
        "round": torch.zeros(()),
        **{k: state[k] for k in p.algorithm.sends},
        **({} if guard is None else guard.server_message()),
    }
    down_bytes, up_bytes, *_ = guarded_sizes(p, guard, 1, {k: v.cpu() for k, v in sent.items()}, up)
    notes = list(p.fed.notes)
    if p.picks:
        pick, score = score_sizes(1)
        down_bytes, up_bytes = down_bytes + pick, up_bytes + score
        notes.append(
            f"of a round's {p.per_round} parties only the one with the lowest score sends its model; the "
            f"others send {size(score)} each."
        )
    spends, rounds = None, p.rounds
    account = guards.account(p, guard, None, p.rounds)
    if guard is not None and account is not None:
        rounds = guards.last_round(p, guard, account, 0)
        line = guards.plan_spend(p, guard, account, rounds)
        spends = {
            **dataclasses.asdict(line),
            "rounds": rounds,
            "budget": account.budget,
            "multiplier": account.release.multiplier,
        }
        if rounds < p.rounds:
            notes.append(f"the budget ends the run after round {rounds} of {p.rounds}.")
        if guard.noise is not None and guard.noise.delta > 1 / len(p.fed):
            notes.append(
                f"δ = {guard.noise.delta:g} is more than one in {len(p.fed)}, the number of clients: it may "
                "give one of them away whole."
            )
    if p.private is not None:
        of_rows = local_dp.spent(p, rounds)
        notes += of_rows.stamps
        if of_rows.spent and spends is None:
            spends = _spends_of_rows(p, of_rows.spent, rounds)
        elif of_rows.spent:
            most = max(line.epsilon for line in of_rows.spent)
            unit = local_dp.unit_of(p)
            notes.append(f"ε is at most {most:.4g} at δ = {p.private.delta:g} for each {unit} of a party.")
        if (
            of_rows.spent
            and p.public_sizes is not None
            and p.private.public_size is None
            and p.insecure_seed is None
        ):
            notes.append(
                f"the noisy numbers of {local_dp.PLURAL[local_dp.unit_of(p)]} behind this ε were drawn for "
                "this plan, and the run draws its own; showing the plan to others is one more release of "
                "them."
            )
    if p.runtime == "parties":
        notes += preparing.notes_of(p, p.through.layout, preparing.program_of(p, p.through.layout))
    if spends is not None and preparing.has_exact_statistics(p):
        notes.append(preparing.ENCODED)
    if (figures := fit_figures(p, guard)) is not None:
        notes += warn(figures)
    if p.pace is not None:
        notes.append(
            f"{type(p.pace).__name__}: a round is a new version of the model, up to {p.per_round} parties "
            "are at work at a time, and the "
            "server also learns how fast each of them is."
        )
    if p.insecure_seed is not None:
        notes.append("NOT PRIVATE: insecure_seed makes every secret replayable.")
    return Outlook(
        _sees(p, guard, start),
        spends,
        up_bytes,
        down_bytes,
        rounds,
        len(p.fed),
        p.per_round,
        _tolerated(p, guard),
        [to_table(s) for s in (p.guard if guard is None else guard.stages)],
        _held_out(p),
        notes,
        prepares=_prepares(p),
    )


def _spends_of_rows(p: Plan, lines: list[Spend], rounds: int) -> dict[str, Any]:
    """Return the largest ε of all parties' rows, as the ledger of the run would state it."""
    assert p.private is not None
    i, unit = max(range(len(lines)), key=lambda k: lines[k].epsilon), local_dp.unit_of(p)
    line, name = lines[i], p.fed.parties[i]
    multiplier = None  # real parties calibrate it to their own numbers of rows
    if p.public_sizes is not None:
        release = local_dp.terms(p, int(p.sizes[i]), p.local_epochs[i]).release
        assert release is not None
        multiplier = release.multiplier
    return {
        **dataclasses.asdict(line),
        "unit": f"{unit} of any party" + line.unit.removeprefix(f"{unit} of {name}"),
        "note": f"The largest ε of {len(lines)} parties, that of {name!r}. {line.note}",
        "rounds": rounds,
        "budget": p.private.epsilon,
        "multiplier": multiplier,
    }


def _prepares(p: Plan) -> dict[str, Any] | None:
    """Return what the preparation of the tables spends, if it has noise."""
    if p.runtime != "parties":
        return p.fed.spent
    program = preparing.program_of(p, p.through.layout)
    return program.spend if isinstance(program, PrivatePreparation) else None


def _blank(layout: Layout) -> State:
    return {k: torch.zeros(shape) for k, shape in layout.shapes.items()}


def _held_out(p: Plan) -> str:
    """Which figures on held-out rows the run would show."""
    if p.noisy_figures:
        return f"of all parties together, with noise, {p.evaluations} times; ε covers them"
    if not p.reports:
        return "none: an ε is claimed, and the loss of a regression has no bound"
    if p.sums_only:
        return "of all parties together; the guard hides those of single parties"
    if isinstance(p.fed, Elsewhere):
        return f"of each party with at least {p.min_rows} of them (min_rows); a party with fewer reports none"
    fewer = int((p.fed.held.sizes < p.min_rows).sum())
    if not fewer:
        return f"of each party: all {len(p.fed)} have at least {p.min_rows} of them (min_rows)"
    return (
        f"of each party with at least {p.min_rows} of them (min_rows); {fewer} of {len(p.fed)} parties "
        "hold back fewer and report none"
    )


def _tolerated(p: Plan, guard: Guard | None) -> int:
    """Return how many parties may drop out of a round without its failing.

    A hiding stage sets it; without one it is 0, unless real parties have a deadline.
    """
    return 0 if guard is None or guard.hiding is None else p.per_round - guard.hiding.survivors(p.per_round)


def _looked(p: Plan) -> int:
    """Return how many parties report their loss before the participants of a round are selected."""
    counts: list[int] = []

    def loss(who: np.ndarray) -> np.ndarray:
        counts.append(len(who))
        return np.zeros(len(who))

    if p.select is not None:
        n = len(p.fed)
        selection.select(p.select, p.seed, 0, selection.PartyInfo(p.sizes, loss, np.zeros(n)), p.per_round)
    return sum(counts)


def _sees(p: Plan, guard: Guard | None, start: State) -> list[dict[str, str]]:
    from ..protocols.joining import Final
    from ..protocols.picking import Score
    from ..protocols.rounds import Down, Loss, Upload

    noise = next((s for s in p.guard if isinstance(s, Noise)), None)
    seen = [{"party": "the server", "what": upload_reveals(p, guard) or Upload.reveals}]
    if p.picks:
        seen[0]["what"] += ": of the best of each round"
        seen.append({"party": "the server", "what": f"{Score.reveals}, of every party of a round"})
    if looked := _looked(p):
        ask, _ = look_sizes(start)
        seen.append(
            {
                "party": "the server",
                "what": f"{Loss.reveals}, of {looked} parties a round, which are sent the model first "
                f"({size(ask)} each)",
            }
        )
    if guard is not None and guard.hiding is not None:
        least = guard.hiding.survivors(p.per_round)
        seen.append(
            {
                "party": "the server",
                "what": f"the sum of at least {least} updates"
                + (
                    ", with their noise in it"
                    if noise is not None and noise.placement == "distributed"
                    else ", to which it adds noise"
                    if noise is not None
                    else ""
                ),
            }
        )
    if guard is not None and (figures := fit_figures(p, guard)) is not None:
        seen.append(
            {
                "party": "the server",
                "what": f"{tested_reveals(p)} "
                f"({size(sum(v.numel() * v.element_size() for v in figures.blank_upload().values()))} "
                "each time)",
            }
        )
    elif len(p.fed.held.index) or (isinstance(p.fed, Elsewhere) and p.reports):
        tested = evaluation_sizes(p, guard, start)[1] // len(p.fed)
        at_most = "at most " if isinstance(p.fed, Elsewhere) else ""  # it follows from their numbers of rows
        seen.append(
            {
                "party": "the server",
                "what": f"{tested_reveals(p)} ({at_most}{size(tested)} each time it asks)",
            }
        )
    is_real = p.runtime == "parties"
    program = preparing.program_of(p, p.through.layout) if is_real else preparing.simulated_program(p)
    if program is not None:
        seen += [{"party": party, "what": what} for party, what in preparing.describe(program)]
    if is_real:
        if least := preparing.fewest_rows(p.through.layout):
            what = f"which parties have fewer than {least} rows (min_rows), and not how many those have"
            seen.append({"party": "the server", "what": what})
        seen.append({"party": "every party", "what": Final.reveals})
    seen.append(
        {"party": "every party", "what": Down.reveals + ("; its noise is in it" if noise is not None else "")}
    )
    return seen
