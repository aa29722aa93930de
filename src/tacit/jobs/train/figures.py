"""The figures of an evaluation where an ε is claimed: bounded numbers that pass through the job's guard,
noise included.

A real party answers a test with three numbers, each written as its distance from the middle of its range:

    accuracy − ½      the share of its held-out rows that the model classifies correctly
    loss/L − ½        its mean loss, clipped to [0, L], L = 2·ln(classes): twice a uniform guess
    ½                 it has at least min_rows held-out rows

A party with fewer rows answers zeros, like one that is absent. No answer is longer than √3/2, so this norm
takes the place of Clip's: the noise has the same multiplier, placement and distribution as that of an
update, and the answers are hidden by the same stage. Each evaluation is one more release to account for.

The server learns the noisy sums A, B and C of the three numbers. It estimates how many parties have rows
by n = 2C, clamped to 1 … the number of parties, the mean accuracy by ½ + A/n and the mean loss by L·(½
+ B/n), each clamped to its range. Every party counts the same, however many rows it has.

There is no such bound on a squared error, so for a regression nothing is reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...algorithms.types import State
from ...engine.metrics import Counts, per_class
from ...guard import Clip, Guard, Layout, Noise, Quantize

if TYPE_CHECKING:
    from .plan import Plan

KEY, LENGTH = "figures", 3
NORM = math.sqrt(LENGTH) / 2  # of three numbers within ±½
WIDE = 0.25  # a standard error of the accuracy from which on it says little


def largest_loss(classes: int) -> float:
    """Return the value at which a party's mean loss is clipped."""
    return 2 * math.log(max(classes, 2))


def fit_figures(p: Plan, guard: Guard | None) -> Guard | None:
    """Build the guard of the figures from a fitted guard's stages; None where figures are not noisy.

    Every party takes part.
    """
    if guard is None or not p.noisy_figures:
        return None
    stages = tuple(
        Clip(NORM) if isinstance(s, Clip) else s
        for s in guard.stages
        if isinstance(s, Clip | Noise | Quantize) or s.hides
    )
    seed = (
        None if guard.insecure_seed is None else guard.insecure_seed + 1
    )  # for tests only: other draws than those of updates
    return Guard(
        stages, Layout({KEY: (LENGTH,)}), len(p.fed), float(len(p.fed)), shared=p.seed, insecure_seed=seed
    )


def compute_figures(counts: Mapping[str, Tensor], classes: int) -> Tensor:
    """Return the three numbers of a party with these counts; without counts, zeros."""
    rows = float(counts["rows"]) if counts else 0.0
    if not rows:
        return torch.zeros(LENGTH, dtype=torch.float64)
    mine = Counts(**counts)
    loss = float(mine.loss) / rows / largest_loss(classes)
    share = min(max(loss, 0.0), 1.0) if math.isfinite(loss) else 1.0
    accuracy = float(per_class(mine.confusion)[0].sum()) / rows
    return torch.tensor([accuracy - 0.5, share - 0.5, 0.5], dtype=torch.float64)


def add_noise(guard: Guard, name: str, r: int, counts: Mapping[str, Tensor], classes: int) -> State:
    """Return what one party sends, with its own noise."""
    return guard.encode_upload(name, r, 1.0, {KEY: compute_figures(counts, classes)}, {}, {})[1]


def standard_deviation(guard: Guard) -> float:
    """Return the standard deviation of the noise in each of the three sums, rounding included."""
    form = guard.output_form()
    noise = (
        form.own_noise * form.bound * math.sqrt(guard.clients) if form.own_noise else form.noise * form.bound
    )
    return math.hypot(noise, math.sqrt(guard.clients) * form.step / 2)


def warn(guard: Guard) -> tuple[str, ...]:
    """Return a note if the noise will hide the figures."""
    error = standard_deviation(guard) / guard.expected
    if error < WIDE:
        return ()
    return (
        f"noise hides the figures on held-out rows: the accuracy over {guard.clients} parties has a "
        f"standard error of at least {error:.2g}. Every "
        "evaluation costs ε; evaluate_every=0 leaves more of it to the rounds.",
    )


def estimate(guard: Guard, mean: State, classes: int, personal: bool) -> dict[str, Any]:
    """Return accuracy and loss with their standard errors, from the noisy mean.

    `personal`: of the parties' own models.
    """
    a, b, c = (float(v) * guard.expected for v in mean[KEY])
    n = min(max(2 * c, 1.0), guard.expected)
    shares = [min(max(0.5 + s / n, 0.0), 1.0) for s in (a, b)]
    errors = [
        standard_deviation(guard) * math.hypot(1.0, 2 * s - 1) / n for s in shares
    ]  # of a quotient, to first order
    most = largest_loss(classes)
    metrics = {
        "loss": most * shares[1],
        "loss_error": most * errors[1],
        "accuracy": shares[0],
        "accuracy_error": errors[0],
    }
    return {**metrics, "personal_accuracy": shares[0]} if personal else metrics
