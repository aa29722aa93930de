"""A plan's guard, fitted to its model and its parties: what it spends, and who sees what through it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...accounting import Account, Release, discrete, distributed_multiplier, noise_for
from ...accounting.account import FILE, ROUNDING
from ...accounting.compose import most_steps
from ...accounting.mixture import mixed_epsilon
from ...accounting.skellam import MOST as WIDEST
from ...algorithms.plan import identify, mix, sample
from ...algorithms.types import Algorithm, Batches, State, fresh
from ...data.inputs import blank_rows
from ...engine.task import Task
from ...errors import BadJob, BadParameter
from ...guard import ALL, Clip, Guard, Layout, Noise, Quantize, as_stages
from ...guard.guard import round_up
from ...guard.stage import source
from ...parameters import check, from_table, to_table
from ...parties.ledger import Ledger, Spend
from .figures import fit_figures

if TYPE_CHECKING:
    from .plan import Plan

# units in σ below which a discrete Gaussian is accounted by its Rényi divergence, which is exact to
# exp(−2π²σ²), and not by PLD
COARSE = 1024
DRAWN = ("Down", "Upload", "Free")  # messages that only those drawn for a round are sent, or send
LEAST = 2  # units in σ below which the grid is too coarse for either: exp(−2π²·4) is 5e-35


def fit(p: Plan, task: Task, start: State) -> Guard | None:
    """Fit the plan's stages to this model, with the noise that its ε needs; None without stages."""
    if not p.guard:
        return None
    layout = layout_of_plan(p, task, start)
    noise = next((s for s in p.guard if isinstance(s, Noise)), None)
    if noise is None or noise.multiplier is not None:
        return _check_grid(p, _build_guard(p, layout, p.guard))
    assert noise.epsilon is not None
    z = _round_up(_required_multiplier(p, noise, "pld"))
    for again in range(20):
        scaled = dataclasses.replace(noise, multiplier=z)
        guard = _check_grid(p, _build_guard(p, layout, tuple(scaled if s is noise else s for s in p.guard)))
        r, spent = release(p, guard), mixed_epsilon(_releases(p, guard, p.rounds), noise.delta)
        if spent <= noise.epsilon * ROUNDING:
            return guard
        # a grid too coarse for PLD is accounted by RDP; distributed noise on a grid costs more than a
        # Gaussian would, the coarser the more
        z = _round_up(
            _required_multiplier(p, noise, "rdp")
            if r.accountant == "rdp" and not again
            else z * min(1.5, max(1.002, spent / noise.epsilon))
        )
    more = f" and {p.evaluations} evaluations" if p.evaluations else ""
    raise BadParameter(
        f"guard: no noise makes {p.rounds} rounds{more} cost at most ε = {noise.epsilon:g} on this grid. "
        "Give Quantize more bits."
    )


def _round_up(z: float) -> float:
    """Round up to five digits.

    Server and parties compute the noise on machines whose last bits may differ, and must get the same.
    """
    return math.ceil(z / (unit := 10.0 ** (math.floor(math.log10(z)) - 4))) * unit


def _build_guard(p: Plan, layout: Layout, stages: Any) -> Guard:
    agreed = next((s.max_rows for s in stages if s.hides), None)
    heaviest = (
        float(agreed or round_up(float(p.fed.train.sizes.max())))
        if p.algorithm.weighted and p.private is None
        else 1.0
    )
    return Guard(stages, layout, *_clients(p), heaviest, p.seed, p.insecure_seed)


def _check_grid(p: Plan, guard: Guard) -> Guard:
    """Check that Quantize's grid is fine enough for the noise, and the terms of a hidden sum."""
    from .hidden_sums import HiddenSum

    if guard.hiding is not None:
        HiddenSum(guard, p.fed.name).terms(0)
    if guard.noise is not None:
        check(release(p, guard))
        if (tests := evaluation_release(p, guard)) is not None:
            check(tests)
    return guard


def _required_multiplier(p: Plan, noise: Noise, how: str) -> float:
    """Return the multiplier of the clipping norm for the ε of the whole run."""
    assert noise.epsilon is not None
    epsilon, times = noise.epsilon, p.rounds + p.evaluations
    if noise.placement == "distributed":
        return 1 / math.sqrt(2 * discrete.rho_of(epsilon, noise.delta) / times)
    kind = _secretly(p, noise)
    far = 2 if noise.placement == "local" or kind == "fixed" else 1
    how = "rdp" if noise.accountant == "rdp" or kind == "fixed" else how
    if kind == "everyone":
        return far * noise_for(epsilon=epsilon, delta=noise.delta, steps=times, accountant=how)
    rate = p.per_round / len(p.fed)
    least = noise_for(
        epsilon=epsilon, delta=noise.delta, sampling_rate=rate, steps=p.rounds, accountant=how, sampling=kind
    )

    def cost(z: float) -> float:
        updates, tests = (
            Release(z, rate, kind, how),
            Release(z, 1.0, kind if kind == "fixed" else "everyone", how),
        )
        return mixed_epsilon([(updates, p.rounds), (tests, p.evaluations)], noise.delta)

    return far * (least if not p.evaluations else _least_noise(cost, epsilon, least))


def _least_noise(cost: Callable[[float], float], epsilon: float, low: float) -> float:
    """Return the least multiplier that costs at most ε, to a thousandth; `low` costs at least as much."""
    high = low
    while cost(high) > epsilon:
        low, high = high, 1.5 * high
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) > epsilon else (low, middle)
    return high


def to_message(guard: Guard, federation: str) -> dict[str, Any]:
    """Return what a client on another machine needs to guard its updates as the server expects.

    The client's secrets are its own: no seed is sent.
    """
    return {
        "stages": [to_table(s) for s in guard.stages],
        "clients": guard.clients,
        "expected": guard.expected,
        "heaviest": guard.max_weight,
        "federation": federation,
    }


def from_message(message: Any, task: Task, algorithm: Algorithm, seed: int) -> Guard | None:
    """Build the guard that a server's message describes; every entry is checked."""
    if message is None:
        return None
    try:
        stages = [
            from_table(t, ALL, f"the server's job, guard[{i}]") for i, t in enumerate(message["stages"])
        ]
        clients, expected = int(message["clients"]), float(message["expected"])
        heaviest = float(message["heaviest"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadJob(
            f"the server's job has a guard that cannot be used: {error}. Do both run the same version of "
            "tacit?"
        ) from None
    return Guard(
        as_stages(stages), layout_of(task, algorithm, task.initial()), clients, expected, heaviest, seed
    )


def own_account(
    p: Plan, guard: Guard | None, folder: Path, key: str, lifetime: float | None = None
) -> Account | None:
    """Open the account of a party that adds noise of its own; None where it adds none.

    It allows as many releases as there are rounds and evaluations, and no more than its ε. It belongs to the
    party and its data: one file in the party's own folder, whatever the server calls the run; `key` is the
    contract, and `lifetime` the most ε of all contracts and statistics.
    """
    if guard is None or guard.noise is None or guard.noise.placement == "central":
        return None
    most = p.rounds + p.evaluations
    return Account(
        release(p, guard), guard.noise.delta, guard.noise.epsilon, most, folder / FILE, limit=most, key=key,
        total=lifetime,
    )  # fmt: skip


def _clients(p: Plan) -> tuple[int, float]:
    """Return how many take part in a round at most, and how many are expected to."""
    return p.per_round if p.sampling == "fixed" else len(p.fed), float(p.per_round)


def layout_of_plan(p: Plan, task: Task, start: State) -> Layout:
    """Return which vectors the clients of a plan send; with loops of their own these are fixed."""
    if p.client is None:
        return layout_of(task, p.algorithm, start)
    shapes = {"delta": (task.dim,)} | (
        {"buffers": tuple(start["buffers"].shape)} if "buffers" in start else {}
    )
    layers = tuple(s.stop - s.start for s in task.parameters)
    more = tuple(math.prod(shape) for name, shape in shapes.items() if name != "delta")
    return Layout(shapes, tuple(k for k in shapes if k != "delta"), layers + more)


def layout_of(task: Task, algorithm: Algorithm, start: State) -> Layout:
    """Return which vectors the algorithm's clients send, by running it on two rows of zeros."""
    x, y = task.x, task.y
    blank = task.on(
        blank_rows(x, 2),
        torch.zeros((2, *y.shape[1:]), dtype=y.dtype, device=y.device),
    )
    state = algorithm.server_state(start["w"])
    down = {**start, "round": torch.zeros((), device=x.device), **{k: state[k] for k in algorithm.sends}}
    batches = Batches(
        *(
            t.to(x.device)
            for t in (
                torch.tensor([[0, 1]]),
                torch.ones(1, 2),
                torch.zeros(1, dtype=torch.int64),
                torch.tensor(2.0),
            )
        )
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        upload, _ = algorithm.local(blank, down, fresh(algorithm, start), batches)
    shapes = {k: tuple(v.shape) for k, v in upload.vectors.items()}
    of_model = tuple(s.stop - s.start for s in task.parameters)
    layers = tuple(
        n
        for shape in shapes.values()
        for n in (of_model if math.prod(shape) == task.dim else (math.prod(shape),))
    )
    return Layout(shapes, tuple(k for k in shapes if k in down and tuple(down[k].shape) == shapes[k]), layers)


# who takes part ---------------------------------------------------------------------------------------------


def sampling_of(p: Plan) -> str:
    return "everyone" if p.per_round >= len(p.fed) else p.sampling


def _secretly(p: Plan, noise: Noise) -> str:
    """Return the sampling that amplifies ε: only one that is secret from the adversary does.

    A server that does not add the noise itself knows which parties it sampled. Where updates are hidden, each
    client of a round knows the others, and clients see the models.
    """
    return "everyone" if noise.placement != "central" or any(s.hides for s in p.guard) else sampling_of(p)


def chosen(p: Plan, number: int) -> np.ndarray:
    """Return who takes part in a round, as indices.

    Under noise nobody may be able to tell who did: then the operating system draws, not the job's seed.
    """
    ids = identify(p.fed.parties)
    if sampling_of(p) == "everyone":
        return np.arange(len(ids))
    if not any(isinstance(s, Noise) for s in p.guard):
        if p.sampling == "fixed":
            return sample(p.seed, number, ids, p.per_round)
        return np.flatnonzero(
            mix(p.seed, number, 4, ids) % np.uint64(2**32) < np.uint64(2**32 * p.per_round // len(ids))
        )  # 4: another use than sample's
    draw = source(p.insecure_seed, "sampling", number)
    if p.sampling == "poisson":
        return np.flatnonzero(discrete.uniform(len(ids), len(ids), draw) < p.per_round)
    return np.sort(np.argsort(discrete.uniform(2**62, len(ids), draw), kind="stable")[: p.per_round])


# what it spends ---------------------------------------------------------------------------------------------


def release(p: Plan, guard: Guard) -> Release:
    """Return the release of one round: noise over sensitivity, under the sampling that is used."""
    assert guard.noise is not None
    kind = _secretly(p, guard.noise)
    return _release(guard, kind, p.per_round / len(p.fed) if kind != "everyone" else 1.0)


def evaluation_release(p: Plan, guard: Guard) -> Release | None:
    """Return the release of one evaluation, of all parties; None where ε does not cover it."""
    figures = fit_figures(p, guard)
    if figures is None:
        return None
    assert figures.noise is not None
    return _release(figures, "fixed" if _secretly(p, figures.noise) == "fixed" else "everyone", 1.0)


def _releases(
    p: Plan, guard: Guard, rounds: int, done: int = 0, pending: bool = False
) -> list[tuple[Release, int]]:
    """Return the releases of `rounds` rounds after round `done`, with the evaluations of their models.

    `pending`: also of the model they start from, which was not evaluated.
    """
    tests = evaluation_release(p, guard)
    of_rounds = [(release(p, guard), rounds)]
    return (
        of_rounds
        if tests is None
        else [*of_rounds, (tests, p.evaluations_in(done + (done > 0 and not pending), done + rounds))]
    )


def _release(guard: Guard, kind: str, rate: float) -> Release:
    noise = guard.noise
    assert noise is not None
    assert noise.multiplier is not None
    ring = guard.output_form()
    units = (ring.own_noise or ring.noise) * ring.bound / ring.step
    if noise.distribution == "skellam":
        if units * units > WIDEST:
            raise BadParameter(
                f"guard: on Quantize's grid each client's Skellam noise is {units:.2g} units wide, and "
                f"beyond {math.isqrt(WIDEST)} it cannot be "
                "drawn exactly. Give Quantize fewer bits."
            )
        return check(
            Release(
                noise.multiplier,
                accountant="skellam",
                distance=ring.bound / ring.step,
                dimension=ring.dimension,
            )
        )
    if units < LEAST:
        raise BadParameter(
            f"guard: the noise is {units:.2g} units of Quantize's grid wide, and below {LEAST} its "
            "guarantee does not hold. Give Quantize more "
            "bits, or Noise a larger multiplier."
        )
    if noise.placement == "distributed":
        z = distributed_multiplier(noise.multiplier, units, ring.least, ring.dimension)
        return Release(z, accountant="zcdp")
    how = (
        ("rdp" if units < COARSE or kind == "fixed" else "pld")
        if noise.accountant == "auto"
        else noise.accountant
    )
    if how == "pld" and units < COARSE:
        raise BadParameter(
            f"guard: accountant is 'pld', and on Quantize's grid the noise is {units:.3g} units wide, for "
            "which PLD is not exact. "
            "Use accountant='rdp', or leave out Quantize."
        )
    far = (
        2 if noise.placement == "local" or kind == "fixed" else 1
    )  # replacing one update by another changes the sum by up to two norms
    return check(Release(noise.multiplier / far, rate, kind, how))


def account(p: Plan, guard: Guard | None, out: Path | None, left: int) -> Account | None:
    """Open the run's account, in its directory if it has one."""
    if guard is None or guard.noise is None:
        return None
    return Account(
        release(p, guard), guard.noise.delta, guard.noise.epsilon, left, None if out is None else out / FILE
    )


def last_round(p: Plan, guard: Guard, account: Account, done: int, pending: bool = False) -> int:
    """Return the last round that the budget allows after round `done`, with the evaluations up to it.

    `pending`: also with that of round `done` itself.
    """
    if account.budget is None or not p.evaluations:
        return done + max(0, account.allowed - account.spent)
    return done + most_steps(
        lambda more: account.epsilon_with(_releases(p, guard, more, done, pending)),
        account.budget * ROUNDING,
        p.rounds - done,
    )


def spend(p: Plan, guard: Guard, account: Account, last: int) -> Spend:
    """Return the ledger's line of what was spent up to round `last`."""
    tests = p.evaluations_in(0, last) if p.evaluations else 0
    return _spend(p, guard, account.spent - tests, tests, account.epsilon())


def own_spend(p: Plan, guard: Guard, account: Account, tests: int) -> Spend:
    """Return the line of a party's own ledger: what its account has for this contract."""
    return _spend(p, guard, account.spent - tests, tests, account.epsilon())


def plan_spend(p: Plan, guard: Guard, account: Account, rounds: int) -> Spend:
    """Return the ledger's line as it will be after so many rounds."""
    return _spend(
        p,
        guard,
        rounds,
        p.evaluations_in(0, rounds) if p.evaluations else 0,
        account.epsilon_with(_releases(p, guard, rounds)),
    )


def _spend(p: Plan, guard: Guard, rounds: int, evaluations: int, epsilon: float) -> Spend:
    noise, r, tests = guard.noise, release(p, guard), evaluation_release(p, guard)
    assert noise is not None
    sees = "the sum" if guard.hiding is not None else "the updates"
    who = {
        "central": f"anyone who sees the models and their metrics, but not the server, which sees {sees} "
        "before it adds noise",
        "local": "the server and anyone who sees what it sees",
        "distributed": "an honest-but-curious server and anyone who sees the models, if at least "
        f"{guard.output_form().least} clients of each sum are honest",
    }
    unit = (
        "client, exchanged for another"
        if r.sampling == "fixed" or noise.placement == "local"
        else "client, present or not"
    )
    share = f"{p.per_round} of {len(p.fed)} clients a round"
    sampling = {
        "everyone": "no",
        "poisson": f"Poisson ({share} expected, drawn in secret)",
        "fixed": f"fixed-size ({share}, drawn in secret)",
    }[r.sampling]
    seen = (
        ""
        if not len(p.fed.held.index) or evaluations
        else " Counts on held-out rows, where parties hold any back, are not covered."
    )
    kind = "Skellam" if noise.distribution == "skellam" else "discrete Gaussian"
    how = " and ".join(
        dict.fromkeys(
            "rdp" if x.accountant == "skellam" else x.accountant for x in (r, tests) if x is not None
        )
    )
    what = f"{rounds} rounds" + (f" and {evaluations} evaluations" if evaluations else "")
    return Spend(
        f"{kind} noise of {noise.multiplier:.4g} times the clipping norm, {noise.placement}, {what} "
        f"composed by {how}",
        epsilon,
        noise.delta,
        unit,
        who[noise.placement],
        sampling,
        f"Multiplier over sensitivity: {r.multiplier:.4g}.{seen}",
    )


def hide_participation(p: Plan, ledger: Ledger, rounds: int) -> Ledger:
    """Return the ledger as it may be shown.

    Where ε relies on secret sampling, the ledger must not say how often each party took part. Messages to and
    from sampled parties are then reported for all parties together, in their expected number.
    """
    noise = next((s for s in p.guard if isinstance(s, Noise)), None)
    if noise is None or _secretly(p, noise) == "everyone":
        return ledger
    everyone, public = f"{len(p.fed)} parties, together", Ledger()
    more = rounds * p.per_round - sum(s.count for s in ledger.seen if s.kind == "Down")  # than were drawn
    for kind in dict.fromkeys(s.kind for s in ledger.seen):
        lines = [s for s in ledger.seen if s.kind == kind]
        if kind not in DRAWN:
            for s in lines:
                public.record(s.party, s.sender, kind, s.reveals, count=s.count, bytes=s.bytes, how=s.how)
            continue
        count, bytes, first = sum(s.count for s in lines), sum(s.bytes for s in lines), lines[0]
        ends = (everyone, first.sender) if kind == "Down" else (first.party, everyone)
        public.record(
            *ends,
            kind,
            first.reveals,
            count=max(count + more, 0),
            bytes=max(round(bytes / count * (count + more)), 0),
            how=first.how,
        )
    public.spent.extend(ledger.spent)
    for stamp in ledger.stamps:
        public.stamp(stamp)
    return public


def reveals(guard: Guard, weighted: bool = True) -> str:
    """Return what the server learns from one upload."""
    clip = next((s for s in guard.stages if isinstance(s, Clip)), None)
    steps = []
    if clip is not None:
        steps.append(
            f"shortened to an L2 norm of {clip.norm:g}"
            if clip.quantile is None
            else "shortened to a norm that follows their quantile"
        )
    if guard.noise is not None and guard.noise.placement != "central":
        steps.append(
            "with noise of the party's own"
            + (", its share of what the sum carries" if guard.noise.placement == "distributed" else "")
        )
    if any(isinstance(s, Quantize) for s in guard.stages):
        steps.append(f"rounded to {guard.output_form().bits} bits")
    what = ", ".join(steps) or "as its guard leaves it"
    if guard.hiding is not None:
        return (
            f"nothing about one party: its update, {what}, is hidden by {type(guard.hiding).__name__}; "
            "the sum of all is seen"
        )
    return f"one party's model update, {what}" + (
        "; every party counts the same"
        if guard.is_summed or not weighted
        else ", and its weight (its number of rows)"
    )


def guard_facts(guard: Guard) -> dict[str, Any]:
    """Return what the journal may say about a round's guard, and reset its counts.

    Where noise is added, counts of what happened at the clients would reveal more than ε covers, and are
    dropped. Numbers that did not fit their range are the exception: that happens once in 10²² draws, and if
    it does, something is wrong and must be seen.
    """
    counts, guard.events = guard.events, {}
    facts: dict[str, Any] = {
        k.replace(" ", "_"): n
        for k, n in counts.items()
        if guard.noise is None or (k == "out of range" and n)
    }
    if "clip" in guard.state:
        facts["clip"] = float(guard.state["clip"])
    return facts


def explain_stop(accounts: list[Account | None], last: int, rounds: int) -> str:
    """Return why a run ends before its last round."""
    a = next(a for a in accounts if a is not None and a.budget is not None)
    return (
        f"stopped after round {last} of {rounds}: the next one would cost ε = {a.epsilon(a.spent + 1):.4g} "
        f"at δ = {a.delta:g}, and the budget is "
        f"{a.budget:g}. What was spent stays spent; a larger budget, or more noise, is for a new run."
    )
