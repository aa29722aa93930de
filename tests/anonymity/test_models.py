"""Each privacy model against its definition, worked by hand or by another method."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from tacit.anonymity import BetaLikeness, Hierarchy, KMap, LDiversity, TCloseness, coding
from tacit.anonymity.classes import Classes
from tacit.anonymity.models import ALL
from tacit.anonymity.table import encode
from tacit.errors import BadData, BadParameter
from tacit.parameters import check


def classes(groups: list[str], column: str = "s") -> Classes:
    """A class a string, a sensitive value a letter."""
    frame = pandas.DataFrame([(str(i), v) for i, g in enumerate(groups) for v in g], columns=["q", column])
    table = encode(frame, ["q"], {}, [column])
    place = {v: i for i, v in enumerate(table.columns[0].hierarchy.values)}
    label = np.empty(len(table.codes), np.int64)
    for i in range(len(groups)):
        label[table.codes[:, 0] == place[str(i)]] = i
    return table.partition(label, len(groups))


def test_distinct_l_diversity_counts_values():
    assert LDiversity(2).holds(classes(["aab", "aaa", "abc"])).tolist() == [True, False, True]


def test_entropy_l_diversity_of_equal_shares_is_their_number():
    made = classes(["abc", "aabbcc", "aaab"])
    assert LDiversity(3, kind="entropy").holds(made).tolist() == [True, True, False]
    h = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert LDiversity(math.exp(h), kind="entropy").holds(classes(["aaab"])).tolist() == [True]
    assert LDiversity(math.exp(h) + 1e-6, kind="entropy").holds(classes(["aaab"])).tolist() == [False]


def test_recursive_diversity_is_the_papers_inequality():
    """r = (4, 2, 1): r₁ < c(r₂ + r₃) for c = 2, not for c = 4/3; and l = 4 leaves an empty tail."""
    made = classes(["aaaabbc"])
    assert LDiversity(2, kind="recursive", c=2.0).holds(made).all()
    assert not LDiversity(2, kind="recursive", c=4 / 3).holds(made).any()
    assert not LDiversity(4, kind="recursive", c=100.0).holds(made).any()


def test_equal_distance_is_half_the_absolute_difference():
    """Class aa against a table of three a and three b: |1 − ½|."""
    made = classes(["aa", "abbb"])
    assert TCloseness(0.5).measure(made.histogram("s")) == pytest.approx([0.5, 0.25])
    assert TCloseness(0.25).holds(made).tolist() == [False, True]


def test_ordered_distance_is_the_papers_salary_example():
    """Li et al. 2007: salaries 3k…11k, {3, 4, 5} is 0.375 from all and {6, 8, 11} is 0.167 (their figures,
    over 9 values).
    """
    frame = pandas.DataFrame({"q": ["0"] * 3 + ["1"] * 3 + ["2"] * 3, "s": [3, 4, 5, 6, 8, 11, 7, 9, 10]})
    table = encode(frame, ["q"], {}, ["s"])
    made = table.partition(table.codes[:, 0].astype(np.int64), 3)
    first, second, _ = TCloseness(distance="ordered").measure(made.histogram("s"))
    assert first == pytest.approx(0.375)
    assert second == pytest.approx(1 / 6, abs=1e-9)
    with pytest.raises(BadData, match="distance='ordered' needs numbers, but column 's' contains 'a'"):
        TCloseness(distance="ordered").measure(classes(["ab"]).histogram("s"))


TREE = Hierarchy.from_rows(
    [["a", "x", "*"], ["b", "x", "*"], ["c", "y", "*"], ["d", "y", "*"], ["e", "z", "*"]]
)


@settings(max_examples=40, deadline=None)
@given(groups=st.lists(st.text("abcde", min_size=1, max_size=6), min_size=1, max_size=4))
def test_hierarchical_distance_equals_the_linear_program_of_moving_earth(groups):
    made = classes(groups)
    histogram = made.histogram("s")
    words, n = histogram.column.words, len(histogram.column.words)
    ground = np.array(
        [
            [
                0
                if u == v
                else next(i for i in range(1, 3) if TREE.generalize(u, i) == TREE.generalize(v, i)) / 2
                for v in words
            ]
            for u in words
        ]
    )
    (shares,) = histogram.dense_shares()
    for p, got in zip(shares, TCloseness(distance="hierarchical", hierarchy=TREE).measure(histogram)):
        equal = np.zeros((2 * n, n * n))
        for i in range(n):
            equal[i, i * n : (i + 1) * n] = 1
            equal[n + i, i::n] = 1
        assert got == pytest.approx(
            linprog(ground.ravel(), A_eq=equal, b_eq=np.concatenate([p, histogram.overall])).fun, abs=1e-9
        )


def test_beta_likeness_bounds_the_relative_gain():
    """p(a) = ½. Class aab: gain (2/3 − ½)/½ = 1/3. Enhanced: also at most −ln ½ = 0.693, which aa (gain 1)
    breaks whatever β.
    """
    made = classes(["aab", "aa", "bbba", "b"])
    assert made.sensitive["s"].overall.tolist() == [5, 5]
    assert BetaLikeness(0.34, kind="basic").holds(made).tolist() == [True, False, False, False]
    assert BetaLikeness(0.33, kind="basic").holds(made).tolist() == [False, False, False, False]
    assert BetaLikeness(5.0, kind="basic").holds(made).all()
    assert BetaLikeness(5.0).holds(made).tolist() == [True, False, True, False]


def test_k_map_by_estimate_asks_for_more_rows_the_larger_the_sample():
    """Sampling everything: a class of 4 people is seen at least k′ times with probability at most 1% (Poisson
    with mean 4): k′ = 10.
    """
    assert KMap(5, fraction=1.0).min_rows == 10
    assert KMap(5, fraction=0.01).min_rows == 2
    assert KMap(1, fraction=0.5).min_rows == 1
    tail = 1 - sum(math.exp(-4) * 4**i / math.factorial(i) for i in range(KMap(5, fraction=1.0).min_rows))
    assert tail <= 0.01


@settings(max_examples=60, deadline=None)
@given(
    groups=st.lists(st.text("abc", min_size=1, max_size=5), min_size=2, max_size=4),
    model=st.sampled_from(
        [
            LDiversity(2),
            LDiversity(1.7, kind="entropy"),
            LDiversity(2, kind="recursive", c=2.0),
            TCloseness(0.3),
            BetaLikeness(0.8),
        ]
    ),
)
def test_merging_two_classes_that_hold_gives_one_that_holds(groups, model):
    """What the tagging of the optimal search rests on."""
    apart = classes(groups)
    held = model.holds(apart)
    if held[0] and held[1]:
        together = replace(apart, label=np.where(apart.label == 1, 0, apart.label))
        assert model.holds(together)[0]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            LDiversity(2.5),
            r"LDiversity: l is 2\.5; it must be a whole number\. Only the entropy kind accepts fractions",
        ),
        (TCloseness(2.0), "TCloseness: t is 2.0; it must be a number of at least 0 and at most 1"),
        (TCloseness(distance="hierarchical"), "TCloseness: hierarchy is None"),
        (
            ALL["DeltaPresence"](0.6, 0.5),
            "DeltaPresence: least is 0.6; it must be at most `most`, which is 0.5",
        ),
        (LDiversity(kind="any"), "LDiversity: kind is 'any'"),
        (BetaLikeness(0.0), "BetaLikeness: beta is 0.0"),
    ],
)
def test_a_model_that_cannot_be_is_refused(model, words):
    with pytest.raises(BadParameter, match=words):
        check(model)


def test_extremes_are_coded_and_nulls_left():
    ages = pandas.Series([12, 40, None, 95], name="age")
    assert coding.code_extremes(ages, bottom=18, top=90).tolist()[:2] == [18, 40]
    assert coding.code_extremes(ages, top=90, words=True).iloc[3] == "≥ 90"
    assert pandas.isna(coding.code_extremes(ages, bottom=18)[2])
    with pytest.raises(
        BadParameter, match="code_extremes: bottom is 99; it must be at most top, which is 90"
    ):
        coding.code_extremes(ages, bottom=99, top=90)
    with pytest.raises(BadData, match=r"column 'age' is .*, not numeric"):
        coding.code_extremes(pandas.Series(["x"], name="age"), top=3)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 6), seed=st.integers(0, 99))
def test_micro_aggregation_makes_groups_of_k_to_2k_minus_1_and_keeps_the_mean(n, k, seed):
    if n < k:
        return
    x = np.random.default_rng(seed).normal(size=(n, 2))
    sizes = np.bincount(coding.mdav(x, k))
    assert sizes.min() >= k
    assert sizes.max() <= max(2 * k - 1, 1)
    frame = pandas.DataFrame(x, columns=["a", "b"])
    made = coding.microaggregate(frame, ["a", "b"], k=k)
    assert made.mean().to_numpy() == pytest.approx(frame.mean().to_numpy(), abs=1e-9)
    assert int(made.groupby(["a", "b"]).size().min()) >= k


def test_micro_aggregation_refuses_what_has_no_mean():
    with pytest.raises(BadData, match="Column 'a' has nulls, which have no mean"):
        coding.microaggregate(pandas.DataFrame({"a": [1.0, None]}), ["a"], k=2)
    with pytest.raises(BadData, match="The table has 1 rows, fewer than k = 2"):
        coding.microaggregate(pandas.DataFrame({"a": [1.0]}), ["a"], k=2)


def test_sampling_keeps_about_the_fraction_and_cannot_be_repeated_without_a_seed():
    """20,000 rows at 0.3: outside 6000 ± 400 with probability below 1e-9 (standard deviation 65)."""
    frame = pandas.DataFrame({"a": range(20_000)})
    one, two = coding.sample(frame, 0.3), coding.sample(frame, 0.3)
    assert abs(len(one) - 6000) < 400
    assert not one.equals(two)
    assert coding.sample(frame, 0.3, seed=1).equals(coding.sample(frame, 0.3, seed=1))
    assert len(coding.sample(frame, 1.0, seed=0)) == 20_000
    with pytest.raises(BadParameter, match="sample: fraction is 0; it must be a number above 0"):
        coding.sample(frame, 0)


def test_k_for_differential_privacy_holds_for_every_number_of_rows():
    """Li, Qardaji, Su 2012: δ bounds P(Binomial(n, β) > γn) for every n that can reach k; looked at up to n =
    600 here, by scipy.
    """
    from scipy.stats import binom

    for epsilon, delta, beta in ((1.0, 1e-6, 0.1), (0.5, 1e-4, 0.05), (2.0, 1e-9, 0.3)):
        k = coding.k_for(epsilon, delta, beta)
        gamma = (math.exp(epsilon) - 1 + beta) / math.exp(epsilon)

        def worst(k, gamma=gamma, beta=beta):
            return max(
                binom.sf(math.floor(gamma * n), n, beta) for n in range(max(1, math.ceil(k / gamma - 1)), 600)
            )

        assert worst(k) <= delta < worst(k - 1)
    with pytest.raises(
        BadParameter, match=r"k_for: epsilon is 0.1; it must be at least −ln\(1 − fraction\) = 0.6931"
    ):
        coding.k_for(0.1, 1e-6, 0.5)
