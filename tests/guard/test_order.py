"""A wrong guard is refused when the job is built, with the right order in its message."""

from __future__ import annotations

import re
from itertools import permutations

import pytest

from tacit import data
from tacit.errors import BadParameter
from tacit.guard import Clip, Lazy, Noise, Quantize, SecAgg, Sparsify, as_stages
from tacit.guard.stage import ORDER
from tacit.jobs.train.plan import make_plan

FIVE = [Sparsify(random_k=0.1), Clip(1.0), Noise(multiplier=1.0), Quantize(bits=16), SecAgg(threshold=0.6)]


def test_of_all_orders_of_five_stages_one_is_right():
    as_stages(FIVE)
    for order in list(permutations(FIVE))[1:]:
        with pytest.raises(BadParameter, match=re.escape(ORDER)):
            as_stages(order)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([Quantize(bits=8), Clip(1.0)], "guard: Clip comes after Quantize. The order is"),
        ([Clip(1.0), Clip(2.0)], "guard: Clip does the same as Clip before it. Keep one of them."),
        (
            [Noise(multiplier=1.0)],
            "guard: Noise needs a bound on each update, and there is no Clip before it.",
        ),
        ([Clip(1.0), SecAgg()], "guard: SecAgg adds integers, and there is no Quantize before it."),
        (
            [Quantize(), SecAgg()],
            "guard: SecAgg needs a bound on each update, and there is no Clip before it.",
        ),
        (
            [Clip(1.0), Noise(multiplier=1.0, placement="distributed"), Quantize()],
            "which protects nothing unless a later stage hides single updates.",
        ),
        (
            [Sparsify(top_k=0.1), Clip(1.0), Quantize(), SecAgg()],
            "Use random_k, whose positions all clients share.",
        ),
        (
            [Sparsify(top_k=0.1), Clip(1.0), Noise(multiplier=1.0, placement="local")],
            "and Noise must fill every position",
        ),
        (
            [Lazy(), Clip(1.0), Noise(multiplier=1.0)],
            "Lazy cannot be combined with Noise: skipping would reveal whose update changed little.",
        ),
        (
            [Lazy(), Sparsify(top_k=0.1)],
            "Lazy cannot be combined with Sparsify: both would keep what was not sent.",
        ),
        ([Lazy(), Quantize(bits=8)], "Use Quantize(stochastic=False), and Clip without a quantile."),
        (
            [Clip(1.0), Noise(multiplier=1.0, distribution="skellam")],
            "Noise: distribution is 'skellam' and placement is 'central'; Skellam noise is for",
        ),
        ([Clip(1.0), Noise()], "Noise: multiplier and epsilon are both None."),
        ([Clip(-1.0)], "Clip: norm is -1.0; it must be a number above 0."),
        ([Clip(1.0, per="layer", quantile=0.5)], "Clip: quantile cannot be combined with per='layer'"),
        (
            [Sparsify()],
            "Sparsify: top_k is None and random_k is None; exactly one must be set, such as top_k=0.01.",
        ),
        (
            ["Clip"],
            "train: guard is ['Clip']; it must be a list of stages such as [guard.Clip(1.0), "
            "guard.Noise(multiplier=1.0)].",
        ),
        ([Clip], "it must be a list of stages"),
    ],
)
def test_a_guard_that_cannot_work_says_why(stages, words):
    with pytest.raises(BadParameter, match=re.escape(words)):
        as_stages(stages)


@pytest.mark.parametrize(
    ("noise", "run", "words"),
    [
        (
            "poisson",
            {"per_round": 3},
            "guard: Noise assumes that each client takes part with a probability of its own (Poisson), and "
            "in this "
            "run a fixed number of clients",
        ),
        (
            "fixed",
            {"per_round": 3, "sampling": "poisson"},
            "assumes that a fixed number of clients is drawn without replacement, and in this run each "
            "client",
        ),
        (
            "everyone",
            {"per_round": 3},
            "assumes that everyone takes part in every round, and in this run a fixed number",
        ),
        (
            "poisson",
            {},
            "and in this run everyone takes part in every round; its ε would be that of another run.",
        ),
    ],
)
def test_a_sampling_that_is_assumed_and_not_used_is_refused(noise, run, words):
    fed = data.gaussian_blobs(rows=60, seed=0).split(6, seed=0)
    with pytest.raises(BadParameter, match=re.escape(words)):
        make_plan(fed, guard=[Clip(1.0), Noise(multiplier=1.0, sampling=noise)], **run)


def test_a_secure_sum_of_an_unknown_number_is_refused():
    fed = data.gaussian_blobs(rows=60, seed=0).split(6, seed=0)
    with pytest.raises(
        BadParameter,
        match=r"guard: SecAgg needs to know how many parties take part in a round, and by Poisson sampling "
        r"nobody "
        r"does\.",
    ):
        make_plan(fed, guard=[Clip(1.0), Quantize(), SecAgg()], per_round=4, sampling="poisson")


def test_a_rule_that_must_see_each_update_refuses_masks_with_the_reason():
    fed = data.iris().split(4)
    with pytest.raises(
        BadParameter,
        match=r"guard: SecAgg hides each update from the server, and Median must see each of them",
    ):
        make_plan(fed, guard=[Clip(1.0), Quantize(), SecAgg()], aggregate="Median")
