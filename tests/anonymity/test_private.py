"""Differential privacy by sampling and generalization: its δ against every pair of neighbors, its choice, and
what is refused because it would void it.
"""

from __future__ import annotations

import math

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

import tacit
from tacit.anonymity import (
    AverageRisk,
    DifferentialPrivacy,
    Fixed,
    Flat,
    Hierarchy,
    Intervals,
    KAnonymity,
    LDiversity,
    Private,
)
from tacit.anonymity.fixed import sample_rows
from tacit.anonymity.private import NodeScore
from tacit.anonymity.table import encode
from tacit.errors import BadData, BadParameter
from tacit.parameters import check

from .adult import BITS, THREE, adult, files


def outcomes(n: int, rate: float, k: int, most: int) -> np.ndarray:
    """P(what is published of a class of n rows): nothing, or exactly j ≥ k rows."""
    p = np.zeros(most + 1)
    p[: n + 1] = binom.pmf(np.arange(n + 1), n, rate)
    p[0] += p[1:k].sum()
    p[1:k] = 0
    return p


@pytest.mark.parametrize(
    "model",
    [
        DifferentialPrivacy(1.0, 1e-6),
        DifferentialPrivacy(0.5, 1e-4, 0.05),
        DifferentialPrivacy(2.0, 1e-3, 0.3),
    ],
    ids=repr,
)
def test_delta_bounds_what_one_row_changes_for_every_class_size(model):
    """One row changes one class, from n to n + 1 rows: Σ max(0, p − e^ε q) both ways, by scipy, for every n
    up to 400. And k is not twice what it must be: the theorem's bound is on more than this sum.
    """

    def worst(k: int) -> float:
        return max(
            float(np.maximum(0, a - math.exp(model.epsilon) * b).sum())
            for n in range(400)
            for p, q in [(outcomes(n, model.rate, k, 401), outcomes(n + 1, model.rate, k, 401))]
            for a, b in ((p, q), (q, p))
        )

    assert worst(model.k) <= model.delta
    assert worst(model.k // 2) > model.delta


ROWS = st.lists(st.tuples(st.sampled_from("01"), st.sampled_from("012")), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(
    rows=ROWS,
    more=st.tuples(st.sampled_from("01"), st.sampled_from("012")),
    k=st.integers(1, 5),
    rate=st.sampled_from([0.1, 0.5, 0.632]),
)
def test_one_row_moves_no_score_by_more_than_the_sensitivity(rows, more, k, rate):
    ways = {"a": BITS, "b": THREE}

    def scores(table_rows):
        score = NodeScore(encode(pandas.DataFrame(table_rows, columns=["a", "b"]), ["a", "b"], ways), k, rate)
        return np.array([score((i, j)) for i in range(2) for j in range(3)]), score.sensitivity

    (one, limit), (two, _) = scores(rows), scores([*rows, more])
    assert np.abs(one - two).max() <= limit


def test_a_null_moves_no_price():
    """A null adds a value to its column's hierarchy, which would lower the cost of the others: the cost must not reveal
    that a value is missing.
    """
    ways = {"a": BITS, "b": THREE}
    rows = [("0", "1")] * 40 + [("1", "2")] * 40
    plain = NodeScore(encode(pandas.DataFrame(rows, columns=["a", "b"]), ["a", "b"], ways), 5, 0.5)
    null = NodeScore(
        encode(pandas.DataFrame([*rows, ("0", None)], columns=["a", "b"]), ["a", "b"], ways), 5, 0.5
    )
    assert all(abs(plain((i, j)) - null((i, j))) <= plain.sensitivity for i in range(2) for j in range(3))


def test_the_sample_is_about_its_share_and_another_one_each_time():
    """30,162 rows at 0.3: outside 9,049 ± 500 with probability below 1e-9 (standard deviation 80); two equal
    samples with less than that.
    """
    table = encode(adult()[["sex", "age"]], ["sex", "age"], files(["sex", "age"]))
    one, two = sample_rows(table, 0.3), sample_rows(table, 0.3)
    assert abs(one.rows - 9049) < 500
    assert not np.array_equal(one.inverse, two.inverse)
    assert table.rows == 30162
    assert (one.counts == np.bincount(one.inverse[one.inverse >= 0], minlength=len(one.counts))).all()


QUASI = ["sex", "age", "race"]


def test_what_is_published_is_a_generalized_sample_and_says_nothing_of_the_rest():
    frame = adult()[QUASI].set_axis([f"person {i}" for i in range(30162)])
    made = tacit.anonymize(
        frame,
        quasi=QUASI,
        k=None,
        models=[DifferentialPrivacy(1.0, 1e-6)],
        hierarchies=files(QUASI),
        method=Fixed({"age": 2}),
    )
    model = DifferentialPrivacy(1.0, 1e-6)
    sizes = made.table.groupby(QUASI).size()
    assert sizes.min() >= model.k == 74
    assert isinstance(made.table.index, pandas.RangeIndex)  # no label of a person
    pandas.testing.assert_frame_equal(
        made.table, made.table.sort_values(QUASI, ignore_index=True)
    )  # nor the place of a row
    hierarchy = Hierarchy.from_csv(files(["age"])["age"])
    assert set(made.table["age"]) <= set(hierarchy.levels[2])
    assert made.levels == {"sex": 0, "age": 2, "race": 0}
    assert len(made.table) + len(made.suppressed) == 30162
    kept = len(made.table)
    shares = sum(hierarchy.levels[2].count(w) - 1 for w in made.table["age"]) / (len(hierarchy) - 1)
    assert made.loss == pytest.approx((shares + 3 * (30162 - kept)) / (3 * 30162))
    spent = made.ledger.spent
    assert [(s.epsilon, s.delta, s.unit) for s in spent] == [(1.0, 1e-6, "row, added or removed")]
    assert "levels fixed in advance, classes of at least 74" in str(made.ledger)


def test_numbers_are_returned_as_text_whatever_dtype_a_null_gave_their_column():
    frame = pandas.DataFrame({"age": [30.0] * 200 + [None]})
    ages = Intervals(width=10, factors=()).build([str(i) for i in range(100)])
    made = tacit.anonymize(
        frame,
        quasi=["age"],
        k=None,
        models=[DifferentialPrivacy(2.0, 1e-3)],
        hierarchies={"age": ages},
        method="fixed",
    )
    assert set(made.table["age"]) == {"30"}


def test_a_table_with_too_few_rows_is_published_empty_and_not_refused():
    """A refusal would say how many there are. k = 74 of 3 rows: certain."""
    made = tacit.anonymize(
        pandas.DataFrame({"a": list("001")}),
        quasi=["a"],
        k=None,
        models=[DifferentialPrivacy()],
        hierarchies={"a": BITS},
        method="private",
    )
    assert len(made.table) == 0
    assert made.loss == 1.0


def test_the_choice_takes_the_best_node_at_a_large_epsilon_and_any_at_a_small_one():
    """At ε = 10⁶ another than the best has probability below e⁻¹⁰⁰; at ε = 10⁻⁹ all 24 nodes are equally
    likely, and 40 equal draws have probability 24⁻³⁹.
    """
    frame, ways = adult()[QUASI], files(QUASI)
    model = DifferentialPrivacy(1.0, 1e-6)
    score = NodeScore(encode(frame, QUASI, ways), model.k, model.rate)
    nodes = [(i, j, k) for i in range(2) for j in range(5) for k in range(2)]
    best = max(nodes, key=score)
    ask = dict(quasi=QUASI, k=None, models=[model], hierarchies=ways)
    sure = tacit.anonymize(frame, method=Private(epsilon=1e6), **ask)
    assert tuple(sure.levels.values()) == best
    assert {
        tuple(tacit.anonymize(frame.iloc[:300], method=Private(epsilon=1e-9), **ask).levels.values())
        for _ in range(40)
    } != {best}
    assert sure.ledger.spent[0].epsilon == 1.0 + 1e6
    fixed = tacit.anonymize(frame, method=Private(epsilon=1.0, levels={"age": 4, "sex": 0}), **ask)
    assert (fixed.levels["age"], fixed.levels["sex"]) == (4, 0)


def test_the_report_and_the_risk_of_a_shuffled_table_do_not_pretend_to_know_rows(tmp_path):
    frame = adult()[QUASI]
    made = tacit.anonymize(
        frame,
        quasi=QUASI,
        k=None,
        models=[DifferentialPrivacy(1.0, 1e-6)],
        hierarchies=files(QUASI),
        method=Fixed({"age": 2}),
    )
    left = tacit.risk(frame, made)
    assert any("they are reordered" in w for w in left.warnings)
    assert left.after.k >= 74
    assert "</html>" in made.report(tmp_path / "r.html").read_text(encoding="utf-8")


ASK = dict(
    quasi=["a", "b"],
    k=None,
    hierarchies={"a": BITS, "b": THREE},
    method="private",
    models=[DifferentialPrivacy()],
)
FRAME = pandas.DataFrame({"a": list("0011"), "b": list("0122")})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"method": "optimal"},
            r"method is 'optimal'; it must be 'private' or Fixed\(levels=…\) with DifferentialPrivacy. "
            r"Other methods choose levels",
        ),
        ({"method": "mondrian"}, "method is 'mondrian'; it must be 'private'"),
        (
            {"models": [DifferentialPrivacy(), AverageRisk(0.1)]},
            "models is .'AverageRisk'.; it must be DifferentialPrivacy once, combined only with k",
        ),
        ({"models": [DifferentialPrivacy(), DifferentialPrivacy()]}, "it must be DifferentialPrivacy once"),
        (
            {"max_suppressed": 0.1},
            "max_suppressed is 0.1; it must be None with DifferentialPrivacy. The number of suppressed "
            "rows is not covered",
        ),
        ({"suppressed": "star"}, "suppressed is 'star'; it must be 'drop'"),
        ({"metric": "height", "method": "fixed"}, "metric is 'height'; it must be 'loss'"),
        (
            {"method": Private(nodes=5)},
            "Private: nodes is 5; it must be at least 6, the nodes of this lattice",
        ),
        (
            {"method": Private(levels={"c": 1})},
            r"Private: levels is .*; it must be for the quasi-identifiers 'a', 'b'\. 'c' is not one of them",
        ),
        (
            {"method": Fixed({"b": 3})},
            r"Fixed: levels\['b'\] is 3; it must be a whole number from 0 to 2, the top of its hierarchy",
        ),
        (
            {"models": [KAnonymity(2)]},
            "method is 'private'; it must be another method unless DifferentialPrivacy",
        ),
    ],
)
def test_what_would_void_the_guarantee_is_refused(change, words):
    with pytest.raises(BadParameter, match=words):
        tacit.anonymize(FRAME, **{**ASK, **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"quasi": ["a"], "hierarchies": {"a": BITS}},
            "every published column is generalized: add 'b' to quasi=, or drop it",
        ),
        ({"quasi": ["a"], "hierarchies": {"a": BITS}, "sensitive": ["b"]}, "add 'b' to quasi="),
        (
            {"hierarchies": {"a": BITS}},
            "The hierarchy of column 'b' would be built from the values in the table, which reveals "
            "them. Declare the values",
        ),
        ({"hierarchies": {"a": BITS, "b": Flat()}}, "The hierarchy of column 'b' would be built"),
        ({"hierarchies": {"a": BITS, "b": BITS}}, "has no row for '2'"),
    ],
)
def test_undeclared_columns_and_domains_are_refused(change, words):
    with pytest.raises(BadData, match=words):
        tacit.anonymize(FRAME, **{**ASK, **change})


def test_a_fraction_too_large_for_epsilon_is_refused():
    with pytest.raises(
        BadParameter, match=r"DifferentialPrivacy: fraction is 0.9; it must be at most 1 − exp\(−ε\) = 0.6321"
    ):
        check(DifferentialPrivacy(fraction=0.9))
    with pytest.raises(BadParameter, match="Fixed: levels is 3; it must be a dictionary"):
        check(Fixed(3))


def test_fixed_levels_suppress_what_fails_and_no_more():
    frame = pandas.DataFrame({"a": list("000111"), "b": list("001222")}, index=list("uvwxyz"))
    made = tacit.anonymize(
        frame, quasi=["a", "b"], k=2, hierarchies={"a": BITS, "b": THREE}, method=Fixed({"b": 0})
    )
    assert made.suppressed == ["w"]
    assert made.loss == pytest.approx(1 / 6)
    assert (
        tacit.anonymize(
            frame, quasi=["a", "b"], k=2, hierarchies={"a": BITS, "b": THREE}, method=Fixed({"b": 1})
        ).suppressed
        == []
    )
    with pytest.raises(
        BadData,
        match=r"At these levels 1 row of 6 violate the privacy models, and at most 0 may be suppressed\. Use "
        r"higher",
    ):
        tacit.anonymize(
            frame,
            quasi=["a", "b"],
            k=2,
            hierarchies={"a": BITS, "b": THREE},
            method="fixed",
            max_suppressed=0.0,
        )


@pytest.mark.parametrize("metric", ["loss", "height", "entropy", "discernibility", "class_size"])
def test_fixed_levels_cost_what_the_search_pays_for_them(metric):
    frame, ways = adult()[QUASI], files(QUASI)
    best = tacit.anonymize(frame, quasi=QUASI, k=5, hierarchies=ways, max_suppressed=0.02, metric=metric)
    same = tacit.anonymize(
        frame, quasi=QUASI, k=5, hierarchies=ways, method=Fixed(best.levels), metric=metric
    )
    assert same.loss == pytest.approx(best.loss, abs=1e-9)
    pandas.testing.assert_frame_equal(same.table, best.table)


def test_other_models_go_with_fixed_levels():
    frame = pandas.DataFrame({"a": list("000111"), "s": list("xyxzzz")})
    made = tacit.anonymize(
        frame,
        quasi=["a"],
        sensitive=["s"],
        k=2,
        models=[LDiversity(2)],
        hierarchies={"a": BITS},
        method="fixed",
    )
    assert made.table["a"].tolist() == ["0", "0", "0"]
