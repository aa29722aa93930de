"""The conformance suite of guard stages: the first part of `tacit.testing.check_stage`."""

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


def check_form(stage: Stage, others: Sequence[Stage] = ()) -> tuple[Stage, ...]:
    """Check a stage in a guard with the other stages it needs; return the stages of the guard in order."""
    name = type(stage).__name__
    demand(
        dataclasses.is_dataclass(stage) and stage.__dataclass_params__.frozen,
        f"{name} is not a frozen dataclass.",
    )
    check(stage)
    back = from_table(to_table(stage), {name: type(stage)}, "guard")
    demand(back == stage, f"{name}: {stage} becomes {back} in a job file.")
    stages = as_stages(sorted((*others, stage), key=lambda s: s.place))
    for number in (0, 1):
        _check_output(name, stage, stages, number)
        _check_stacking(name, stages, number)
    _check_randomness(name, stages)
    if stage.hides:
        _check_hiding(name, stage, stages)
    return stages


def make_guard(
    stages: tuple[Stage, ...], insecure_seed: int | None = SEED, clients: int = len(NAMES)
) -> Guard:
    return Guard(stages, Layout(SHAPES, ("w",), (16, 8, 6)), clients, float(clients), 9.0, 3, insecure_seed)


def updates(number: int, scale: float = 0.7) -> tuple[Tensor, State, State]:
    """Weights, the clients' vectors and what the server sent; one client has an update of zero."""
    rng = np.random.default_rng(number)
    vectors = {
        k: torch.from_numpy(scale * rng.standard_normal((len(NAMES), *shape))).float()
        for k, shape in SHAPES.items()
    }
    down = {"w": torch.from_numpy(rng.standard_normal(SHAPES["w"])).float()}
    vectors["w"] = vectors["w"] + down["w"]
    vectors["w"][2], vectors["c"][2] = down["w"], 0
    return torch.arange(1.0, len(NAMES) + 1), vectors, down


def _clients(guard: Guard, number: int, seed: int | None = SEED) -> Clients:
    return Clients(
        NAMES,
        number,
        {k: v.expand(len(NAMES), *v.shape).clone() for k, v in guard.client_state().items()},
        guard.state,
        seed,
    )


def _check_output(name: str, stage: Stage, stages: tuple[Stage, ...], number: int) -> None:
    guard = make_guard(stages)
    weights, vectors, down = updates(number)
    early = guard.forms(number)[0]
    me, rows = _clients(guard, number), guard.layout.join(vectors, down)
    for s, form in early:
        copied, memory, generator = (
            rows.clone(),
            {k: v.clone() for k, v in me.memory.items()},
            torch.get_rng_state(),
        )
        before, rows, left = rows, s.out(rows, me, form), s.form(form, guard.state)
        if s is stage:
            demand(torch.equal(before, copied), f"{name}.out changes its rows in place.")
            demand(
                torch.equal(generator, torch.get_rng_state()),
                f"{name}.out uses torch's random generator; use me.draw, the operating system's randomness.",
            )
            demand(
                rows.shape == (len(NAMES), left.dimension),
                f"{name}.out returns rows of shape {tuple(rows.shape[1:])}; its form has dimension "
                f"{left.dimension}.",
            )
            longest = float(rows.norm(dim=1).max())
            demand(
                longest <= left.bound * (1 + SAME),
                f"{name}.out returns a row of norm {longest:.6g}; the bound of its form is {left.bound:.6g}.",
            )
            demand(
                {k: v.shape for k, v in me.memory.items()} == {k: v.shape for k, v in memory.items()},
                f"{name}.out leaves the client state {sorted(me.memory)}; client_state has {sorted(memory)}.",
            )
    guard = make_guard(stages)
    sent, rows = guard.out(weights, vectors, down, _clients(guard, number))
    form = guard.output_form(number)
    if form.space == "ring" and form.step:
        demand(
            rows.dtype == torch.int64 and int(rows.abs().max()) <= form.limit,
            f"{name}: the output has numbers outside ±{form.limit}, the range of its form.",
        )
        demand(
            not form.modulus or 2 * form.clients * form.limit < form.modulus,
            f"{name}: the sum of all clients does not fit the modulus {form.modulus}.",
        )
        if not form.own_noise:
            longest = float((rows.double() * form.step).norm(dim=1).max())
            demand(
                longest <= form.bound * (1 + SAME) or not form.noise,
                f"{name}: the output has a row of norm {longest:.6g}; the bound of its form is "
                f"{form.bound:.6g}.",
            )
    mean = guard.back(*guard.total(sent, rows, number), down, number)
    demand(
        {k: tuple(v.shape) for k, v in mean.items()} == SHAPES,
        f"{name}.back returns {sorted(mean)}, not the vectors that were sent.",
    )
    demand(
        all(bool(torch.isfinite(v).all()) for v in mean.values()),
        f"{name}.back returns NaN or infinite values.",
    )
    empty = make_guard(stages)
    if empty.noise is None and empty.hiding is None:
        return
    none = (
        empty.back(empty.empty_sum(number), float(len(NAMES)), down, number)
        if empty.noise is not None
        else {}
    )
    demand(
        all(bool(torch.isfinite(v).all()) for v in none.values()),
        f"{name}.back fails for a round without clients.",
    )


def _check_stacking(name: str, stages: tuple[Stage, ...], number: int) -> None:
    weights, vectors, down = updates(number)
    together, apart = make_guard(stages), make_guard(stages)
    w, rows = together.out(weights, vectors, down, _clients(together, number))
    for i, who in enumerate(NAMES):
        weight, sent, after = apart.encode_upload(
            who,
            number,
            float(weights[i]),
            {k: v[i] for k, v in vectors.items()},
            {**down, **apart.server_message()},
            apart.client_state(),
        )
        demand(
            weight == float(w[i]),
            f"{name}: a client's weight is {weight} alone and {float(w[i])} in a stack.",
        )
        demand(
            set(after) == set(apart.client_state()),
            f"{name}: a client's state is {sorted(after)}; client_state has {sorted(apart.client_state())}.",
        )
        if sent:
            alone = apart.unpack(sent, number).double()
            off, largest = float((alone - rows[i].double()).abs().max()), float(rows[i].double().abs().max())
            demand(
                off <= 1e-6 * max(1.0, largest),
                f"{name}: the uploads of {who!r} alone and in a stack differ by {off:.1e}.",
            )


def _check_randomness(name: str, stages: tuple[Stage, ...]) -> None:
    """With a seed a stage gives the same output twice; without, a random stage must give different
    outputs.
    """
    weights, vectors, down = updates(0)

    def once(seed: int | None) -> Tensor:
        guard = make_guard(stages, seed)
        return guard.out(weights, vectors, down, _clients(guard, 0, seed))[1]

    demand(
        torch.equal(once(SEED), once(SEED)),
        f"{name}: two runs with the same seed differ; draw with me.draw.",
    )
    state = torch.get_rng_state()
    torch.manual_seed(0)
    first = once(None)
    torch.manual_seed(0)
    second = once(None)
    torch.set_rng_state(state)
    is_random = not torch.equal(once(SEED), once(SEED + 1))
    demand(
        not is_random or not torch.equal(first, second),
        f"{name}: without a seed two outputs are equal, so its randomness is not the operating system's.",
    )


def _check_hiding(name: str, stage: Stage, stages: tuple[Stage, ...]) -> None:
    for n in (2, 3, 10, 1000):
        demand(
            2 <= stage.survivors(n) <= n,
            f"{name}: survivors({n}) is {stage.survivors(n)}; it must be between 2 and {n}.",
        )
    form = make_guard(stages).output_form()
    demand(
        form.space == "ring" and bool(form.modulus),
        f"{name} hides sums in {form.space!r} space without a modulus.",
    )
    for what, bad_one in (
        ("one client alone", replace(form, clients=1)),
        ("real numbers", Form("real", form.dimension, form.clients, bound=math.inf)),
    ):
        try:
            stage.form(bad_one, {})
        except BadParameter:
            continue
        raise AssertionError(f"{name}.form accepts {what}, which it cannot hide.")
