"""Weights and the threshold, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.linkage.fields import Field, read_fields, read_records
from tacit.linkage.weights import (
    PART,
    SCALE,
    FieldWeights,
    compute_threshold,
    compute_weights,
    estimate_u,
)


def test_weights_are_log_ratios_and_steps_add_up_to_them() -> None:
    """m = (.8, .1), u = (.05, .05): equal log2 16 = 4, similar log2 2 = 1, different log2 (.1/.9)."""
    entry = Field("x", "name", (0.8, 0.1), None)
    u = [[round(0.05 * PART), round(0.1 * PART)]]
    (found,) = compute_weights([entry], u, u)
    different = found.base / SCALE
    similar, equal = different + found.steps[1] / SCALE, (found.base + sum(found.steps)) / SCALE
    assert equal == pytest.approx(4.0, abs=2e-3)
    assert similar == pytest.approx(1.0, abs=2e-3)
    assert different == pytest.approx(math.log2(0.1 / 0.9), abs=2e-3)


def test_the_threshold_is_the_score_at_which_the_posterior_is_the_probability() -> None:
    """λ = .5 / 100; odds · 2^S = t / (1 − t)."""
    score = compute_threshold(0.9, 0.5, (100, 40)) / SCALE
    prior = 0.005
    odds = prior / (1 - prior) * 2**score
    assert odds / (1 + odds) == pytest.approx(0.9, abs=1e-3)
    assert compute_threshold(0.99, 0.5, (100, 40)) > compute_threshold(0.9, 0.5, (100, 40))


def test_u_of_a_table_worked_by_hand() -> None:
    """Of the 4 · 3 ordered pairs of rows, 2 are equal: (2 + 1) / (12 + 2) with the half pair that is added."""
    fields = read_fields({"state": "category"})
    records = read_records({"state": ["a", "a", "b", "c", ""]}, fields, "t")
    (rates,) = estimate_u(records, np.random.default_rng(0))
    assert rates == [math.ceil(3 / 14 * PART)]


def test_u_of_similar_values_counts_random_pairs_of_rows() -> None:
    """Half the rows are catherine, half cathrine: two random rows are equal or similar always."""
    fields = read_fields({"given": "name"})
    records = read_records({"given": ["catherine", "cathrine"] * 20}, fields, "t")
    ((equal, either),) = estimate_u(records, np.random.default_rng(0))
    assert equal / PART == pytest.approx(19 / 39, abs=2e-3)
    assert either / PART == pytest.approx(1.0, abs=0.02)


def test_declared_u_is_used() -> None:
    fields = read_fields({"given": {"kind": "name", "u": [0.01, 0.02]}})
    records = read_records({"given": ["ada", "eve"]}, fields, "t")
    ((equal, either),) = estimate_u(records, np.random.default_rng(0))
    assert (equal / PART, either / PART) == (pytest.approx(0.01, abs=1e-5), pytest.approx(0.03, abs=1e-5))


def test_a_partner_can_make_no_agreement_weigh_more_than_the_own_table_says() -> None:
    """The smaller weight counts, whatever the other sends; both compute the same."""
    fields = [Field("x", "name")]
    own = [[round(0.01 * PART), round(0.02 * PART)]]
    alone = levels_of(compute_weights(fields, own, own)[0])
    for claimed in ([1, 1], [1, PART], [PART // 2, PART // 2], [PART, 1]):
        found = compute_weights(fields, own, [claimed])
        assert found == compute_weights(fields, [claimed], own)
        assert all(w <= most for w, most in zip(levels_of(found[0]), alone))


def levels_of(found: FieldWeights) -> list[int]:
    """The weights: equal, similar, different."""
    return [found.base + sum(found.steps[k:]) for k in range(len(found.steps) + 1)]


def test_similar_values_never_weigh_more_than_equal_ones() -> None:
    """Nobody has a similar name by chance, but everybody has the same one."""
    equal, similar, _ = levels_of(
        compute_weights([Field("x", "name")], *[[[PART // 2, PART // 2 + 1]]] * 2)[0]
    )
    assert similar == equal < SCALE


def test_no_field_weighs_more_than_4096_to_1() -> None:
    (found,) = compute_weights([Field("x", "category")], [[1]], [[1]])
    assert (found.base + sum(found.steps)) / SCALE == 12.0
