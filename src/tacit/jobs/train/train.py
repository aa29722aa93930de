"""tacit.train: one model across the parties of a federation."""

from __future__ import annotations

import hashlib
import math
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ... import __version__, models
from ...algorithms.types import State
from ...data.federation import Federation
from ...errors import BadRun, BudgetSpent
from ...guard import Noise
from ...parameters import bad
from ...parties.ledger import Ledger
from ...parties.secret import NOT_PRIVATE
from ...results import Result
from ...runs import (
    RESTART_HINT,
    Event,
    Journal,
    SaveTimer,
    check_unused,
    decode_nonfinite,
    encode_nonfinite,
    load_stack,
    load_state,
    save_stack,
)
from ...topologies import Gossip, Hierarchy
from . import guards, paced
from .plan import MIN_ROWS, Plan, make_plan, make_task
from .simulated import Simulated, score_bytes, silence

# with more parties than this, each one's accuracy is kept after the last round only: a number a party and
# round would fill the memory
EACH = 1000


def train(
    fed: Federation,
    *,
    model: Any = "mlp",
    algorithm: Any = None,
    rounds: int = 10,
    per_round: int | None = None,
    local_epochs: int | Sequence[int] = 1,
    local_steps: int | None = None,
    batch_size: int | None = 32,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "float32",
    engine: str = "auto",
    runtime: Any = "cohort",
    evaluate_every: int = 1,
    min_rows: int = MIN_ROWS,
    guard: Any = None,
    sampling: str = "fixed",
    secret_seed: int | None = None,
    pace: Any = None,
    speed: Any = None,
    aggregate: Any = None,
    adversaries: Any = None,
    topology: Any = None,
    private: Any = None,
    select: Any = None,
    out: str | Path | None = None,
    resume: bool = False,
    landscape: bool = False,
    data_job: dict[str, Any] | None = None,
    watch: Callable[[Event], None] | None = None,
) -> Result:
    """Train one model across the parties of a federation.

    `runtime="cohort"` simulates all clients as one tensor program; "inprocess" runs one program per party
    over messages: the same model, slower, with every message executed and written into the ledger;
    "processes", or `tacit.Processes(…)`, has a process for each party. `evaluate_every=0` tests only after
    the last round. A party with fewer than `min_rows` held-out rows reports no figures on them; under a guard
    that hides updates there are figures of all parties together only.

    `guard` is a list of stages around every update, such as [guard.Clip(1.0), guard.Noise(multiplier=1.0)].
    `sampling="poisson"` lets each client take part with probability per_round/parties instead of drawing
    per_round of them. `secret_seed` makes secrets replayable, for tests only; the result is stamped NOT
    PRIVATE.

    `pace` is how the server goes on without waiting for the slowest: pace.FedBuff(…), pace.FedAsync(…) or
    pace.SAFA(…). Then a round is a new version of the model, and `per_round` is how many parties are at work
    at a time. `speed`, such as speeds.Lognormal(…), says how long local work takes in a simulation; with it,
    synchronous or not, every round has the time on a virtual clock.

    `aggregate` is how the server makes one update of many: aggregate.Median() and the like, instead of the
    mean. `adversaries` lets a share of the parties lie in a simulation: {"sign_flip": 0.2}, or a list of
    attacks from tacit.audit. `select` is who is asked in a round: selection.PowerOfChoice(candidates=30).
    `topology` puts something else in the place of one server: tacit.Hierarchy(edges=4, period=2).

    `private`, such as private.DPSGD(epsilon=8.0, delta=1e-5), makes every local step one of DP-SGD: each row
    of each party is protected, by that party itself, and the ledger has an ε for each.
    """
    todo = make_plan(
        fed,
        model=model,
        algorithm=algorithm,
        rounds=rounds,
        per_round=per_round,
        local_epochs=local_epochs,
        local_steps=local_steps,
        batch_size=batch_size,
        seed=seed,
        device=device,
        precision=precision,
        engine=engine,
        runtime=runtime,
        evaluate_every=evaluate_every,
        min_rows=min_rows,
        landscape=landscape,
        guard=guard,
        sampling=sampling,
        secret_seed=secret_seed,
        pace=pace,
        speed=speed,
        aggregate=aggregate,
        adversaries=adversaries,
        topology=topology,
        private=private,
        select=select,
    )
    if out is not None and not isinstance(out, str | Path):
        raise bad("train", "out", out, "a directory for the run, or None (keep it in memory)")
    if resume and isinstance(todo.topology, Hierarchy) and todo.runtime != "cohort":
        raise bad(
            "train",
            "resume",
            resume,
            "False where a Hierarchy has a program for each party",
            "What edges and their clients keep is theirs, and is gone with them; start a new run, or use "
            "runtime='cohort'.",
        )
    if resume and private is not None:
        raise bad(
            "train",
            "resume",
            resume,
            "False with private",
            "A round that was lost and computed again would be spent twice; start a new run.",
        )
    if resume and out is None:
        raise bad("train", "out", out, "the directory of the run to go on with", "Or leave out resume.")
    return train_side_by_side([todo], [out], resume=resume, data_jobs=[data_job], watch=watch)[0]


def train_side_by_side(
    plans: list[Plan],
    outs: Sequence[str | Path | None],
    *,
    resume: bool = False,
    data_jobs: Sequence[dict[str, Any] | None] | None = None,
    watch: Callable[[Event], None] | None = None,
    together: Path | None = None,
) -> list[Result]:
    """Runs that share a model and an algorithm, as one stack; each comes out as if it had run alone. Several
    are resumed from the file `together`, in which the stack was saved as a whole.
    """
    journals: list[Journal] = []
    try:
        with _numbers(plans[0]):
            return _train(plans, outs, journals, resume, data_jobs, watch, together)
    finally:
        for journal in journals:
            journal.close()


def _train(
    plans: list[Plan],
    outs: Sequence[str | Path | None],
    journals: list[Journal],
    resume: bool,
    data_jobs: Sequence[dict[str, Any] | None] | None,
    watch: Callable[[Event], None] | None,
    together: Path | None,
) -> list[Result]:
    jobs = [p.job(d) for p, d in zip(plans, data_jobs or [None] * len(plans))]
    first = plans[0]
    task = make_task(first)
    made = {
        first.seed: task.initial()
    }  # plans that are stacked share the model; its first values follow from the seed
    for p in plans:
        if p.seed not in made:
            made[p.seed] = make_task(p).initial()
    starts = [made[p.seed] for p in plans]
    if first.pace is not None:
        paced.agree(first, task, starts[0])
    if first.private is not None:
        guards.layout_of(
            task, first.algorithm, starts[0]
        )  # a step on nobody's rows: what cannot be private is refused before anything is written
    states: list[dict[str, Any] | None] = [None] * len(plans)
    beside: Any = None
    trainer: Any
    if resume and together is not None:
        states, beside = _rewound(plans, outs, jobs, starts, journals, together, watch)
    elif resume:
        ((out, job),) = zip(outs, jobs)
        assert out is not None
        _same_job(Path(out), job)
        where, prints = Path(out), fingerprints(first, starts[0])
        journal, states[0], beside = Journal.resume(
            out, watch, lambda events: _same_inputs(where, events, prints)
        )
        journals.append(journal)
    else:
        for out in outs:  # all of them first: a comparison refused writes nothing
            if out is not None:
                check_unused(out)
        trainer = _trainer(first)(task, starts, plans, states)  # what it refuses leaves nothing behind
        for out, job in zip(outs, jobs):
            journals.append(Journal.create(out, job, watch))
    begun = beside["round"] if beside else 0
    finished = any(e["kind"] == "end" for e in journals[0].events)
    if resume:
        trainer = _trainer(first)(task, starts, plans, states)
    if beside:
        trainer.proceed(beside)
    if beside and "ledger" in beside:
        trainer.earlier = Ledger.from_dict(beside["ledger"])
        trainer.run_id = beside.get("run", "")
    if not begun:
        for i, p in enumerate(plans):
            spends = p.private is not None or any(isinstance(s, Noise) for s in p.guard)
            journals[i].event(
                "start",
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                tacit=__version__,
                label=p.label,
                skew=p.skew,
                seed=p.seed,
                runtime=trainer.name,
                device=p.device,
                rounds=p.rounds,
                effective_update=p.effective_update,
                fingerprints=fingerprints(p, starts[i]) if outs[i] is not None and p.private is None else {},
                model={"name": models.name_of(p.model), "parameters": task.dim},
                federation=p.fed.outline() if spends else p.fed.summary(),
            )  # exact counts are not what ε covers
            for kind, said in getattr(trainer, "facts", {}).items():
                journals[i].event(kind, **said)
            for note in (*p.fed.notes, *trainer.notes):
                journals[i].event("note", text=note)
    accounts = [
        guards.account(p, guard, journals[i].directory, p.rounds - begun)
        for i, (p, guard) in enumerate(zip(plans, trainer.guards))
    ]
    pending: dict[str, Any] | None = (beside or {}).get(
        "unevaluated"
    )  # what is known of a round whose model was not evaluated yet
    last = min(
        [
            first.rounds,
            *(
                guards.last_round(p, guard, a, begun, pending is not None)
                for p, guard, a in zip(plans, trainer.guards, accounts)
                if a is not None
            ),
        ]
    )
    tests_of = [
        None if a is None else guards.evaluation_release(p, guard)
        for p, guard, a in zip(plans, trainer.guards, accounts)
    ]

    def begin(r: int) -> None:
        for a in accounts:
            if a is not None:
                a.spend(r + 1)

    def begin_test(r: int) -> bool:
        """Whether the budget has room for one more evaluation; an evaluation that was lost in a crash is paid
        for twice.
        """
        try:
            for a, release in zip(accounts, tests_of):
                if a is not None and release is not None:
                    a.spend(r, release)
        except BudgetSpent as error:
            journals[0].event("note", text=f"the model of round {r} is not evaluated: {error}")
            return False
        return True

    def merged(r: int, names: list[str]) -> None:
        """The model of round r stands. Where each round must be on disk before parties see its model, that is
        now: they test it next.
        """
        said = {
            "names": names,
            "bytes": trainer.bytes(r),
            "told": trainer.told[0],
            "looks": trainer.looks,
            "dropped": dict(trainer.dropped),
        }
        journals[0].save(
            r, lambda: trainer.save(0), lambda: {**trainer.beside(), "unevaluated": said}, force=True
        )

    trainer.begin, trainer.begin_test = begin, begin_test
    if trainer.durable:
        trainer.merged = merged
        if pending is not None:
            trainer.unevaluated, trainer.looks, trainer.dropped = (
                pending["names"],
                tuple(pending["looks"]),
                dict(pending["dropped"]),
            )
    trainer.note, trainer.place = lambda text: journals[0].event("note", text=text), journals[0].directory
    clock, timer = time.perf_counter(), SaveTimer()

    def after(r: int, chosen: list[Any], tests: list[dict[str, Any]]) -> None:
        """Write round r (counted from 1; 0 is the model before training) into every run's journal."""
        nonlocal clock
        seconds, clock = (time.perf_counter() - clock) / len(plans), time.perf_counter()
        down, up = trainer.bytes(r)
        if (
            pending is not None and r == begun
        ):  # a round of the process before this one, which had not tested its model
            (down, up), trainer.told = pending["bytes"], [pending["told"]]
        for i, p in enumerate(plans):
            account = accounts[i] if i < len(accounts) else None
            secret = (
                account is not None and p.sampling == "poisson"
            )  # how many took part would tell; what is expected does not
            n = p.per_round if secret and r else len(chosen[i])
            shown = guards.shown(trainer.guards[i], account) if i < len(accounts) and r else {}
            if len(p.fed) > EACH and r != last:
                tests[i].pop("parties", None)
            heard = len(p.fed) if p.talks and due(r) else 0  # parties that tested the model
            left_out = getattr(trainer, "dropped", None)  # parties a round over a network went on without
            without = {"dropped": dict(left_out)} if left_out else {}
            told = dict(trainer.told[i])
            asked = told.pop(
                "asked", n
            )  # without rounds, parties may be asked now and answer for a later version
            still = shown.get("skipped", 0)  # parties that said no more than that they have nothing new
            looked, (look, loss) = (
                told.get("looked", 0),
                getattr(trainer, "looks", (0, 0)),
            )  # by how many, before it was settled who takes part
            scored = told.get("scored", 0)  # where the best alone then sends its model
            pick, score = score_bytes(r) if scored else (0, 0)
            journals[i].event(
                "round",
                round=r,
                **tests[i],
                **without,
                **shown,
                **told,
                sampled=n if p.talks else 0,
                tested=heard,
                bytes_up=(
                    up * (told.get("uploaded", n) - still)
                    + silence() * still
                    + loss * looked
                    + score * scored
                )
                * p.talks,
                bytes_down=(down * asked + look * looked + pick * scored) * p.talks,
                seconds=seconds,
            )
            if not math.isfinite(
                tests[i].get("loss", 0.0)
            ):  # looked at when tested: asking a GPU every round would make it wait
                _diverged(journals[i], p, r)
            if "untested" in tests[i] and "loss" not in tests[i]:
                _untested(journals[i], p)
            if r and together is None:
                journals[i].save(
                    r,
                    lambda i=i: trainer.save(i),  # type: ignore[misc]
                    trainer.beside,
                    force=r == last or trainer.durable,
                )
            if left_out:
                left_out.clear()
        if r and together is not None and (r == last or timer.is_due):
            with timer.measure():
                keep(r, [trainer.save(i) for i in range(len(plans))])
                for i, journal in enumerate(
                    journals
                ):  # after the stack: what a run has by itself is never ahead of the others
                    journal.save(r, lambda i=i: trainer.save(i), trainer.beside, force=True)  # type: ignore[misc]

    def keep(r: int, states: list[State]) -> None:
        assert together is not None
        for journal in journals:
            journal.sync()
        together.parent.mkdir(exist_ok=True)
        save_stack(
            together,
            states,
            {
                "round": r,
                "events": [
                    encode_nonfinite(j.events) if j.directory is None else len(j.events) for j in journals
                ],
                **trainer.beside(),
            },
        )

    def due(r: int) -> bool:
        """A budget may end the run before its last round; what its ε covers follows the contract all the
        same.
        """
        return first.reports and (first.evaluates(r) or (r == last and not first.noisy_figures))

    if not finished:
        trainer.run(range(begun, last), due, after)
        if last < first.rounds:
            for journal in journals:
                journal.event("note", text=guards.stopped(accounts, last, first.rounds))
    ledgers = [Ledger() for _ in plans]  # of what was spent
    for i, p in enumerate(plans):
        if (
            p.landscape
            and torch.isfinite(trainer.w[i]).all()
            and not any(e["kind"] == "landscape" for e in journals[i].events)
        ):
            journals[i].event("landscape", **trainer.landscape(i))
    for i, p in enumerate(plans):
        if p.private is not None:
            from .local_dp import spent

            ledgers[i].merge(spent(p, last))
    for i, (p, guard, account) in enumerate(zip(plans, trainer.guards, accounts)):
        if account is not None and account.spent:
            ledgers[i].spend(guards.spend(p, guard, account, last))
    results = [_finish(trainer, i, p, journals[i], jobs[i], ledgers[i], last) for i, p in enumerate(plans)]
    if together is not None:  # a run with a directory has its last state there
        keep(
            last, [trainer.save(i) if journal.directory is None else {} for i, journal in enumerate(journals)]
        )
    return results


def _rewound(
    plans: list[Plan],
    outs: Sequence[str | Path | None],
    jobs: list[dict[str, Any]],
    starts: list[State],
    journals: list[Journal],
    together: Path,
    watch: Callable[[Event], None] | None,
) -> tuple[list[Any], Any]:
    """A stack that was stopped, its journals wound back to where it was saved as a whole, or to their
    beginnings: (states, what was saved beside them).
    """
    places = [None if out is None else Path(out) for out in outs]
    for place, job in zip(places, jobs):
        if place is not None and (place / "job.toml").exists():
            _same_job(place, job)
    states: list[Any] = [None] * len(plans)
    beside: Any = None
    if together.exists():
        states, beside, _ = load_stack(together)
    for i, (place, job, p) in enumerate(zip(places, jobs, plans)):
        kept: Any = beside["events"][i] if beside else 0
        if place is None:
            journals.append(Journal(None, watch))
            journals[i].events = [decode_nonfinite(e) for e in (kept if beside else ())]
        elif not kept and not (place / "job.toml").exists():
            journals.append(Journal.create(place, job, watch))
        else:
            prints = fingerprints(p, starts[i])
            journals.append(
                Journal.rewind(
                    place,
                    kept,
                    watch,
                    lambda events, place=place, prints=prints: _same_inputs(place, events, prints),  # type: ignore[misc]
                )
            )
            states[i] = states[i] or (load_state(place)[0] if kept else None)
    return states, beside


def _finish(
    trainer: Any, i: int, p: Plan, journal: Journal, job: dict[str, Any], spent: Ledger, last: int
) -> Result:
    tested = [e for e in journal.events if e["kind"] == "round" and e["round"] > 0 and "loss" in e]
    metrics = (
        {k: v for k, v in tested[-1].items() if isinstance(v, float) and k not in ("seconds", "clock")}
        if tested
        else {}
    )  # nobody held any rows back
    # a diverged model has no accuracy; the best of several noisy ones would be the luckiest
    if scored := [
        e for e in tested if math.isfinite(e.get("accuracy", math.nan)) and "accuracy_error" not in e
    ]:
        best = max(scored, key=lambda e: e["accuracy"])
        metrics |= {"best_accuracy": best["accuracy"], "best_round": best["round"]}
    ledger = guards.veiled(p, trainer.ledger(i, [e for e in journal.events if e["kind"] == "round"]), last)
    ledger.merge(spent)
    if p.secret_seed is not None:
        ledger.stamp(NOT_PRIVATE)
    if not any(e["kind"] == "end" for e in journal.events):
        journal.event(
            "end", metrics=metrics, seconds=sum(e["seconds"] for e in journal.events if e["kind"] == "round")
        )
    model = trainer.task.module_at(trainer.w[i], trainer.buffers[i] if trainer.buffers is not None else None)
    journal.save(last, lambda: trainer.save(i), trainer.beside, force=True)
    journal.save_model(model)
    journal.close(ledger.to_dict())

    def own() -> dict[str, Any]:
        return {
            name: trainer.task.module_at(mine["w"], mine.get("buffers"))
            for name, mine in zip(p.fed.parties, trainer.personal(i))
        }

    return Result(
        model,
        metrics,
        ledger,
        job,
        journal.events,
        journal.directory,
        p,
        own if p.algorithm.personalizes and p.topology is None else None,
    )


@contextmanager
def _numbers(p: Plan) -> Iterator[None]:
    """TF32 by choice only, and only while this run lasts. On a CPU the engine gives each core its own work,
    so torch's own threads rest: on a busy machine they spend more time waiting for each other than they save.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.get_num_threads()
    torch.set_float32_matmul_precision("high" if p.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = p.precision == "tf32"
    if p.device == "cpu":
        torch.set_num_threads(1)
    try:
        cards = [] if p.device == "cpu" else [torch.device(p.device)]
        with torch.random.fork_rng(
            devices=cards
        ):  # whatever a model draws, the caller's random state is left as it was
            torch.default_generator.manual_seed(
                p.seed
            )  # torch.manual_seed would reset every GPU's too, also those not used here
            for card in cards:
                torch.cuda.default_generators[card.index or 0].manual_seed(p.seed)
            yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
        torch.set_num_threads(before[2])


def _trainer(p: Plan) -> Any:
    if isinstance(p.topology, Hierarchy):
        if p.runtime not in ("cohort", "inprocess"):
            from ...runtimes.processes import need_net

            need_net("a hierarchy across processes")
        from .hierarchy import Layered

        return Layered
    if isinstance(p.topology, Gossip):
        if p.runtime not in ("cohort", "inprocess"):
            from ...runtimes.processes import need_net

            need_net("gossip across processes")
        from .gossip import Gossiping

        return Gossiping
    if p.algorithm.sees_each:
        if p.runtime == "cohort":
            from .clustered import Clustered

            return Clustered
        if p.runtime != "inprocess":
            from ...runtimes.processes import need_net

            need_net("training across processes")
        from .clustered_parties import ClusteredNetworked, ClusteredParties

        return ClusteredParties if p.runtime == "inprocess" else ClusteredNetworked
    if p.runtime == "cohort":
        return Simulated if p.pace is None else paced.PacedSimulation
    if p.runtime == "inprocess":
        from .messages import Parties  # needs msgpack, which a bare GPU machine may lack
        from .paced_parties import PacedParties

        return Parties if p.pace is None else PacedParties
    from ...runtimes.processes import need_net

    need_net("training across processes")
    from .networked import Networked
    from .paced_parties import PacedNetworked

    return Networked if p.pace is None else PacedNetworked


def _untested(journal: Journal, p: Plan) -> None:
    """Say once that no figure can be shown."""
    if not any(e["kind"] == "note" and e["text"].startswith("no loss or accuracy") for e in journal.events):
        journal.event(
            "note",
            text="no loss or accuracy: there are no test rows, and no party holds back at least "
            f"min_rows={p.min_rows} rows. Hold back more "
            "rows (held_fraction), or lower min_rows.",
        )


def _diverged(journal: Journal, p: Plan, r: int) -> None:
    if not any(e["kind"] == "note" and "diverged" in e["text"] for e in journal.events):
        scale = (
            " Or divide the numbers to predict by their size: they are not standardised."
            if p.fed.classes is None
            else ""
        )
        journal.event(
            "note",
            text=f"diverged: the model of {p.label} is no longer finite after round {r}. Use a smaller "
            "learning rate (lr is "
            f"{p.algorithm.lr:g}).{scale}",  # type: ignore[attr-defined]
        )


def fingerprints(p: Plan, start: State) -> dict[str, str]:
    """Digests of the rows and who holds them, and of the model's first values: a resumed run must go on with
    the same.
    """

    def digest(*tensors: torch.Tensor) -> str:
        h = hashlib.blake2b(digest_size=16)
        for t in tensors:
            h.update(f"{t.dtype} {tuple(t.shape)}".encode())
            h.update(
                t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data if t.numel() else b""
            )
        return h.hexdigest()

    return {
        "data": digest(*p.fed.rows, *p.fed.train, *p.fed.held, *p.fed.test),
        "model": digest(*start.values()),
    }


def _same_inputs(out: Path, events: list[Event], now: dict[str, str]) -> None:
    before = next((e.get("fingerprints") for e in events if e["kind"] == "start"), None) or {}
    changed = [name for name in before if before[name] != now.get(name)]
    if changed:
        what = " and ".join(
            {"data": "the data (rows, or who holds them)", "model": "the model it starts from"}[name]
            for name in changed
        )
        raise BadRun(
            f"{out} cannot be resumed: {what} changed since it was started. Give what it was started with, "
            "or start a new directory."
        )


def _same_job(out: Path, job: dict[str, Any]) -> None:
    import tomli_w

    if not (out / "job.toml").exists():
        raise BadRun(f"{out} holds no run to resume: there is no job.toml in it. Start it without resume.")
    try:
        before, now = tomllib.loads((out / "job.toml").read_text()), tomllib.loads(tomli_w.dumps(job))
    except ValueError as error:
        raise BadRun(f"{out / 'job.toml'} cannot be read: {error}. {RESTART_HINT}") from error
    if before != now:
        tables = {*now, *before}
        where = [
            f"{t}.{k}"
            for t in tables
            for k in {*now.get(t, {}), *before.get(t, {})}
            if now.get(t, {}).get(k) != before.get(t, {}).get(k)
        ]
        raise BadRun(
            f"{out} holds another run: it differs in {', '.join(sorted(where))}. Resume with the same "
            "settings, or start a new directory."
        )
