"""`tacit plan FILE`: what the job of any job file would reveal. Nothing is trained and nothing is sent.

The tables of a file say which verb runs it:

    [split], [ftl]                            a network across parties with different columns
    [boost] and [parties.NAME]                boosted trees over parties with different columns
    [pate]                                    teachers and a student
    [private] and rows of one holder          `tacit train-private`
    [[tables]]                                a study
    [data] without `name` and `path`          real parties, each with its own file
    anything else                             `tacit run` or `tacit compare`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..accounting.mixture import mixed_epsilon
from ..accounting.training import training
from ..config import job as config
from ..config import private as private_config
from ..config import toml
from ..errors import BadJob
from ..numbers import each
from ..parties.ledger import Ledger
from ..private.size import PUBLIC, count_release
from ..results import JobResult
from .plan import Outlook, plan

STAND_INS = 3  # clients of a plan for real parties without a kit: the fewest for which a secure sum hides one


@dataclass(frozen=True)
class FilePlan(JobResult):
    """What the job of a file would do: which verb runs it, who sees what, and the privacy it spends."""

    title = "What a job would reveal"
    facts = ("verb", "sees", "spends", "notes")

    verb: str
    sees: list[dict[str, str]]
    spends: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger, repr=False)

    @property
    def value(self) -> list[dict[str, str]]:
        """Who would see what."""
        return self.sees

    def _text(self) -> str:
        lines = [f"run it with `{self.verb}`", *(f"{s['party']} sees: {s['what']}" for s in self.sees)]
        if self.spends is not None:
            s = self.spends
            lines.append(f"ε = {s['epsilon']:.4g} at δ = {s['delta']:g} for {each(s['unit'])}")
            lines.append(f"  by {s['mechanism']}")
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])


class Planned(NamedTuple):
    """One job of a file; `label` tells several apart."""

    label: str
    outlook: Outlook | FilePlan


def plan_file(
    path: str | Path, changes: Sequence[str] = (), kit: str | Path | None = None, parties: int | None = None
) -> list[Planned]:
    """Plan the job, or the several jobs, of a job file. `parties` stand in for those of a missing kit."""
    file = Path(path)
    tables = toml.load(file, changes)
    verb = verb_of(tables)
    if kit is not None or verb == "party":
        return [Planned("", _real_parties(file, changes, kit, parties))]
    if parties is not None:
        raise BadJob(f"{file}: --parties is for jobs of real parties; this one says who holds the rows.")
    if verb == "study":
        raise BadJob(
            f"{file} is a study: many runs of one table. `tacit study {file} --quick` runs each of them on a "
            "few rows; `tacit plan` takes the job file of a single run."
        )
    if verb in ("split", "ftl"):
        if changes:
            raise BadJob(f"{file}: --set is for other job files. Edit the file.")
        return [Planned("", _split(file) if verb == "split" else _transfer(file))]
    if verb == "boost":
        if changes:
            raise BadJob(f"{file}: --set is for other job files. Edit the file.")
        return [Planned("", _boost(file))]
    if verb == "pate":
        return [Planned("", _pate(file, changes))]
    if verb == "train-private":
        return [Planned("", _train_private(file, changes))]
    if verb == "synthesize":
        raise BadJob(
            f"{file} declares columns, for `tacit synth` and `tacit synthesize`, which take options instead "
            f"of a job file. `tacit synthesize --columns {file} …` states who saw what in its ledger."
        )
    return _train(file, changes)


def verb_of(tables: Mapping[str, Any]) -> str:
    """Return the verb that runs a job file, by its tables."""
    data = tables.get("data")
    data = data if isinstance(data, Mapping) else {}
    for verb in ("split", "ftl", "pate"):
        if verb in tables:
            return verb
    parties = tables.get("parties")
    entries = parties.values() if isinstance(parties, Mapping) else ()
    if "boost" in tables and any(isinstance(table, Mapping) for table in entries):
        return "boost"
    if "tables" in tables:
        return "study"
    if (
        tables
        and "data" not in tables
        and all(isinstance(t, Mapping) and "kind" in t for t in _columns(tables))
    ):
        return "synthesize"
    has_source = "name" in data or "path" in data
    if "private" in tables and has_source and not {"parties", "by", "skew", "skews"} & set(data):
        return "train-private"
    return "party" if "label" in data and not has_source else "run"


def _columns(tables: Mapping[str, Any]) -> list[Any]:
    return [table for name, table in tables.items() if name != "constraints"]


# tacit run, tacit compare, tacit party ----------------------------------------------------------------------


def _train(file: Path, changes: Sequence[str]) -> list[Planned]:
    job = config.load(file, changes)
    if not job.several and "seeds" not in job.comparison:
        options = job.train()
        (fed,) = job.federations()
        with toml.named(file):
            return [Planned("", plan(fed, **options))]
    from .compare import rows_of

    federations = job.federations()
    with toml.named(file):
        rows, common = rows_of(job.compare(), federations)
        return [
            Planned(
                f"{label}, {fed.skew}" if len(job.skews) > 1 else label, plan(fed, **{**common, **options})
            )
            for fed in federations
            for label, options in rows
        ]


def _real_parties(file: Path, changes: Sequence[str], kit: str | Path | None, parties: int | None) -> Outlook:
    from ..runtimes.processes import need_net

    need_net("tacit plan of a job for real parties")
    from ..runtimes import kits
    from .approved import read_approved
    from .train import deployed

    approved = read_approved(None if kit is None else Path(kit))
    layout, options = deployed.read(file, list(changes), approved)
    notes = []
    if kit is not None:
        if parties is not None:
            raise BadJob(f"{file}: --kit names the parties. Leave out --parties.")
        of = kits.load(Path(kit))
    else:
        count = STAND_INS if parties is None else parties
        names = ("server", *(f"client-{k}" for k in range(1, count + 1)))
        of = kits.temporary("planned", names)[1]["server"]
        notes.append(
            f"without --kit the parties are not known: this is the plan for {count} clients (--parties). "
            "Bytes, ε by sampling and tolerated dropouts depend on their number."
        )
    with toml.named(file):
        through = deployed.Deployed(of, deployed.layout_of(layout, options))
        outlook = plan(deployed.federation(of, layout, options), **options, runtime=through)
    outlook.notes.extend(notes)
    return outlook


# tacit train-private and tacit pate -------------------------------------------------------------------------


def _train_private(file: Path, changes: Sequence[str]) -> FilePlan:
    from .train_private import LOT

    job, given = private_config.load(file, changes)
    with toml.named(file):
        options = private_config.PrivateConfig(**given)
        settings = options.dpsgd()
    notes = []
    sees = [{"party": "whoever gets the model", "what": "the trained model; its metrics on test rows"}]
    if not settings.private:
        notes.append("NOT PRIVATE: there is no noise or no clipping, so nothing is guaranteed.")
        return FilePlan("tacit train-private", sees, None, notes)
    rows = settings.public_size
    by_rows = settings.sampling == "poisson"
    if rows is None:
        rows = len(job.dataset())
        notes.append(
            "this plan used the exact number of rows, which ε protects: do not publish it. The run uses a "
            "noisy number."
            if by_rows
            else PUBLIC
        )
    size = min(LOT, max(1, rows // 4)) if options.batch_size is None else min(options.batch_size, rows)
    per_epoch = math.ceil(rows / size)
    steps = per_epoch * options.epochs
    earlier = (count_release(settings),) if by_rows and settings.public_size is None else ()
    release = training(
        multiplier=settings.noise_multiplier,
        epsilon=settings.epsilon,
        delta=settings.delta,
        sampling="tree" if settings.tree else settings.sampling,
        rate=size / rows if settings.sampling in ("poisson", "fixed") else 1.0,
        per_epoch=per_epoch,
        steps=steps,
        accountant=settings.accountant,
        earlier=earlier,
    )
    epsilon = mixed_epsilon([(release, steps), *((r, 1) for r in earlier)], settings.delta)
    if settings.epsilon is not None:
        notes.append(f"no step of the run exceeds the budget ε = {settings.epsilon:g}.")
    if settings.delta >= 1 / rows:
        notes.append(f"δ = {settings.delta:g} is not below one over the number of rows: use a smaller δ.")
    return FilePlan(
        "tacit train-private",
        sees,
        {
            "epsilon": epsilon,
            "delta": settings.delta,
            "unit": "row" if by_rows or settings.tree else "row, exchanged for another",
            "mechanism": f"{type(settings).__name__}, {steps:,} steps of {size:,} rows ({settings.sampling} "
            f"sampling), noise multiplier {release.multiplier:.4g}",
            "multiplier": release.multiplier,
            "steps": steps,
            "budget": settings.epsilon,
        },
        notes,
    )


def _pate(file: Path, changes: Sequence[str]) -> FilePlan:
    from ..config.pate import PateSettings, load
    from ..data.federation import Federation
    from .pate.budget import Budget
    from .pate.pate import make_aggregator

    dataset, given = load(file, changes)
    with toml.named(file):
        settings = PateSettings(**{k: v for k, v in given.items() if k in PateSettings.__dataclass_fields__})
        teachers = len(dataset) if isinstance(dataset, Federation) else settings.teachers
        if teachers is None:
            raise BadJob(f"{file}, pate: teachers is missing. Give their number.")
        aggregator = make_aggregator(given.get("aggregator"), teachers)
        split = settings.noise == "teachers"
        budget = Budget(aggregator, settings.epsilon, settings.delta, 0.0, 0.0, split)
        asked = min(settings.queries, budget.affordable(settings.queries))
        _, epsilon = budget.guarantee(settings.queries)
    is_real = "runtime" in given
    from ..protocols.votes import Questions

    server = (
        "the noisy sum of the teachers' votes"
        if split
        else "the sum of the teachers' votes, and adds the noise"
    )
    sees = [{"party": "each teacher", "what": Questions.reveals}] if is_real else []
    sees.append(
        {"party": "the server", "what": server}
        if is_real
        else {
            "party": "this process",
            "what": "all rows: the teachers are simulated, their votes counted here",
        }
    )
    sees.append({"party": "whoever gets the student", "what": "the student, and the released labels"})
    notes = [f"{teachers} teachers, {settings.queries:,} queries"]
    if asked < settings.queries:
        notes.append(f"the budget covers {asked:,} queries if all of them are answered.")
    return FilePlan(
        "tacit pate",
        sees,
        {
            "epsilon": epsilon,
            "delta": settings.delta,
            "unit": "row of a teacher's data, or all of its rows, exchanged for others",
            "mechanism": f"{aggregator}: data-independent, as if every query were answered"
            if settings.epsilon is None
            else f"{aggregator}, budget {settings.epsilon:g}",
            "budget": settings.epsilon,
        },
        notes,
    )


# tacit split and tacit ftl ----------------------------------------------------------------------------------


def _split(file: Path) -> FilePlan:
    from ..protocols.splitnn_terms import Activations, CutGradients
    from .vertical import split_deployed

    job = split_deployed.read(file)
    parties, top = job["parties"], job["split"]["labels"]
    holders = [n for n, t in parties.items() if "id" in t]
    sources = [n for n, t in parties.items() if "bottom" in t]
    stops = [*(n for n, t in parties.items() if "middle" in t), top]
    sees = _matching(holders)
    for k, stop in enumerate(stops):
        senders = [n for n in sources if n != stop] if k == 0 else [stops[k - 1]]
        sees += [{"party": stop, "what": f"{Activations.reveals} (from {n})"} for n in senders]
        sees += [{"party": n, "what": f"{CutGradients.reveals} (from {stop})"} for n in senders]
    return FilePlan(f"tacit split {file}", sees, None, _cut_notes(job["split"]))


def _transfer(file: Path) -> FilePlan:
    from ..mpc.transfer import SumsShare
    from ..protocols.ftl import Translator
    from ..protocols.splitnn_terms import Activations, CutGradients
    from .vertical import transfer_deployed

    job = transfer_deployed.read(file)
    tables = {n: t for n, t in job["parties"].items() if "id" in t}
    source = next(n for n, t in tables.items() if "label" in t)
    target = next(n for n in tables if n != source)
    sees = _matching([source, target])
    if job["ftl"]["secure"] == "shared":
        helpers = [n for n in job["parties"] if n not in tables]
        sees.append({"party": target, "what": f"{SumsShare.reveals} (from {source})"})
        sees += [{"party": h, "what": "how many rows are shared; it deals randomness"} for h in helpers]
    else:
        sees += [
            {"party": source, "what": f"{Activations.reveals} (from {target})"},
            {"party": target, "what": f"{CutGradients.reveals} (from {source})"},
            {"party": target, "what": f"{Translator.reveals} (from {source})"},
        ]
    return FilePlan(f"tacit ftl {file}", sees, None, _cut_notes(job["ftl"]))


def _boost(file: Path) -> FilePlan:
    from .vertical.boost_plan import plan_boost

    sees, notes = plan_boost(file)
    holders = [n for n, t in toml.load(file, ()).get("parties", {}).items() if "id" in t]
    return FilePlan(f"tacit boost {file}", [*_matching(holders), *sees], None, notes)


def _matching(holders: Sequence[str]) -> list[dict[str, str]]:
    """What the parties with a table learn when they match their ids."""
    what = "which of its own ids the other holds, too, and how many ids it holds"
    if len(holders) > 2:
        what = "which of its own ids all parties hold, and how many ids each of them holds"
    return [{"party": name, "what": what} for name in holders] if len(holders) > 1 else []


def _cut_notes(settings: Mapping[str, Any]) -> list[str]:
    notes = []
    if settings.get("secure") != "shared" and not settings["guards"] and settings["protect"] is None:
        notes.append("no guard at the cut: columns and labels can be rebuilt in part (docs/how-to-split.md).")
    notes.append("no differential privacy: what is sent about any one row is not bounded.")
    return notes


__all__ = ["FilePlan", "Planned", "plan_file", "verb_of"]
