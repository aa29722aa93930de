"""What every stage must hold to: `tacit.testing.check_stage` begins here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import check, from_table, to_table
from .guard import Guard, Layout, as_stages
from .stage import Clients, Form, Stage, State

NAMES = ("a", "b", "c", "d", "e")
SHAPES: dict[str, tuple[int, ...]] = {"w": (24,), "c": (6,)}  # two vectors, of which the server knows one
SEED = 11
SAME = 1e-9  # float64 sums in another order


def demand(condition: bool, text: str) -> None:
    if not condition:
        raise AssertionError(text)


def check_form(stage: Stage, beside: Sequence[Stage] = ()) -> tuple[Stage, ...]:
    """The stage among those it needs `beside` it, in their order: it is data, it does what its form says, and
    the same for a stack as for each client.
    """
    name = type(stage).__name__
    demand(
        dataclasses.is_dataclass(stage) and stage.__dataclass_params__.frozen,
        f"{name} is no frozen dataclass.",
    )  # type: ignore[attr-defined]
    check(stage)
    back = from_table(to_table(stage), {name: type(stage)}, "guard")
    demand(back == stage, f"{name}: {stage} came back from its table as {back}.")
    stages = as_stages(sorted((*beside, stage), key=lambda s: s.place))
    for number in (0, 1):
        _does_what_it_says(name, stage, stages, number)
        _stack_is_each_alone(name, stages, number)
    _draws_in_secret(name, stages)
    if stage.hides:
        _hides(name, stage, stages)
    return stages


def fitted(stages: tuple[Stage, ...], secret_seed: int | None = SEED, clients: int = len(NAMES)) -> Guard:
    return Guard(stages, Layout(SHAPES, ("w",), (16, 8, 6)), clients, float(clients), 9.0, 3, secret_seed)


def updates(number: int, scale: float = 0.7) -> tuple[Tensor, State, State]:
    """Weights, what the clients would send, and what the server sent them; one client has nothing new to
    say.
    """
    rng = np.random.default_rng(number)
    vectors = {
        k: torch.from_numpy(scale * rng.standard_normal((len(NAMES), *shape))).float()
        for k, shape in SHAPES.items()
    }
    down = {"w": torch.from_numpy(rng.standard_normal(SHAPES["w"])).float()}
    vectors["w"] = vectors["w"] + down["w"]
    vectors["w"][2], vectors["c"][2] = down["w"], 0
    return torch.arange(1.0, len(NAMES) + 1), vectors, down


def _crowd(guard: Guard, number: int, seed: int | None = SEED) -> Clients:
    return Clients(
        NAMES,
        number,
        {k: v.expand(len(NAMES), *v.shape).clone() for k, v in guard.client_state().items()},
        guard.state,
        seed,
    )


def _does_what_it_says(name: str, stage: Stage, stages: tuple[Stage, ...], number: int) -> None:
    guard = fitted(stages)
    weights, vectors, down = updates(number)
    early = guard.forms(number)[0]
    me, rows = _crowd(guard, number), guard.layout.join(vectors, down)
    for s, form in early:
        given, memory, numbers = (
            rows.clone(),
            {k: v.clone() for k, v in me.memory.items()},
            torch.get_rng_state(),
        )
        before, rows, left = rows, s.out(rows, me, form), s.form(form, guard.state)
        if s is stage:
            demand(torch.equal(before, given), f"{name}.out changes its rows in place.")
            demand(
                torch.equal(numbers, torch.get_rng_state()),
                f"{name}.out draws from torch's generator; use me.draw, which is the operating system's.",
            )
            demand(
                rows.shape == (len(NAMES), left.dimension),
                f"{name}.out gives rows of {tuple(rows.shape[1:])} numbers; its form says {left.dimension}.",
            )
            longest = float(rows.norm(dim=1).max())
            demand(
                longest <= left.bound * (1 + SAME),
                f"{name}.out gives a row of length {longest:.6g}; its form says at most {left.bound:.6g}.",
            )
            demand(
                {k: v.shape for k, v in me.memory.items()} == {k: v.shape for k, v in memory.items()},
                f"{name}.out keeps {sorted(me.memory)} for each client, and began with {sorted(memory)}.",
            )
    guard = fitted(stages)
    sent, rows = guard.out(weights, vectors, down, _crowd(guard, number))
    form = guard.leaves(number)
    if form.space == "ring" and form.step:
        demand(
            rows.dtype == torch.int64 and int(rows.abs().max()) <= form.limit,
            f"{name}: numbers leave the guard outside ±{form.limit}, the form's range.",
        )
        demand(
            not form.modulus or 2 * form.clients * form.limit < form.modulus,
            f"{name}: the ring of {form.modulus} does not hold the sum of all clients.",
        )
        if not form.own_noise:
            longest = float((rows.double() * form.step).norm(dim=1).max())
            demand(
                longest <= form.bound * (1 + SAME) or not form.noise,
                f"{name}: a row of length {longest:.6g} leaves the guard; its form says {form.bound:.6g}.",
            )
    mean = guard.back(*guard.total(sent, rows, number), down, number)
    demand(
        {k: tuple(v.shape) for k, v in mean.items()} == SHAPES,
        f"{name}.back gives {sorted(mean)}, not the vectors that were sent.",
    )
    demand(
        all(bool(torch.isfinite(v).all()) for v in mean.values()),
        f"{name}.back gives numbers that are not finite.",
    )
    nobody = fitted(stages)
    if nobody.noise is None and nobody.hiding is None:
        return
    none = (
        nobody.back(nobody.nobody(number), float(len(NAMES)), down, number)
        if nobody.noise is not None
        else {}
    )
    demand(
        all(bool(torch.isfinite(v).all()) for v in none.values()),
        f"{name}.back cannot take a round to which nobody came.",
    )


def _stack_is_each_alone(name: str, stages: tuple[Stage, ...], number: int) -> None:
    weights, vectors, down = updates(number)
    together, apart = fitted(stages), fitted(stages)
    w, rows = together.out(weights, vectors, down, _crowd(together, number))
    for i, who in enumerate(NAMES):
        weight, sent, kept = apart.give(
            who,
            number,
            float(weights[i]),
            {k: v[i] for k, v in vectors.items()},
            {**down, **apart.sent()},
            apart.client_state(),
        )
        demand(weight == float(w[i]), f"{name}: a client weighs {weight} alone and {float(w[i])} in a stack.")
        demand(
            set(kept) == set(apart.client_state()),
            f"{name}: alone a client keeps {sorted(kept)}; it began with {sorted(apart.client_state())}.",
        )
        if sent:
            alone = apart.unpack(sent, number).double()
            off, largest = float((alone - rows[i].double()).abs().max()), float(rows[i].double().abs().max())
            demand(
                off <= 1e-6 * max(1.0, largest),
                f"{name}: what {who!r} sends alone and in a stack is {off:.1e} apart.",
            )


def _draws_in_secret(name: str, stages: tuple[Stage, ...]) -> None:
    """With a seed, twice the same. Without: whatever differs must have come from the operating system, since
    nothing else differs.
    """
    weights, vectors, down = updates(0)

    def once(seed: int | None) -> Tensor:
        guard = fitted(stages, seed)
        return guard.out(weights, vectors, down, _crowd(guard, 0, seed))[1]

    demand(
        torch.equal(once(SEED), once(SEED)),
        f"{name}: a replayable seed does not replay it; draw with me.draw.",
    )
    state = torch.get_rng_state()
    torch.manual_seed(0)
    first = once(None)
    torch.manual_seed(0)
    second = once(None)
    torch.set_rng_state(state)
    drawn = not torch.equal(once(SEED), once(SEED + 1))
    demand(
        not drawn or not torch.equal(first, second),
        f"{name}: without a seed it draws the same twice, so it is not the operating system that draws.",
    )


def _hides(name: str, stage: Stage, stages: tuple[Stage, ...]) -> None:
    for n in (2, 3, 10, 1000):
        demand(
            2 <= stage.survivors(n) <= n,
            f"{name}: of {n} clients {stage.survivors(n)} must stay; that is no number between 2 and {n}.",
        )
    form = fitted(stages).leaves()
    demand(
        form.space == "ring" and bool(form.modulus),
        f"{name} hides sums of numbers in {form.space}, which are not taken modulo anything.",
    )
    for what, bad_one in (
        ("one client alone", replace(form, clients=1)),
        ("real numbers", Form("real", form.dimension, form.clients, bound=math.inf)),
    ):
        try:
            stage.form(bad_one, {})
        except BadParameter:
            continue
        raise AssertionError(f"{name} does not refuse {what}, which it cannot hide.")
