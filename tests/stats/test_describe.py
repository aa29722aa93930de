"""Descriptive statistics equal those of the pooled rows: pandas and SciPy on real tables."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tacit
from tacit.errors import BadData, BadParameter
from tacit.stats import ordered
from tacit.stats.description import sum_exactly
from tacit.stats.disclosure import suppress
from tests.stats.tables import heart, lung, pooled

NUMBERS = ["age", "trestbps", "chol", "thalach", "oldpeak"]
RESOLUTION = 2.0**-13


def row(table, column, level="", group="all"):
    found = table[(table.column == column) & (table.level == level) & (table.group == group)]
    assert len(found) == 1
    return found.iloc[0]


@pytest.mark.parametrize(
    ("frames", "numbers", "by"),
    [(heart, NUMBERS, "disease"), (lung, ["age", "time", "meal.cal", "wt.loss"], "arm")],
)
def test_moments_and_quantiles_are_those_of_the_pooled_rows(frames, numbers, by):
    parts = frames()
    everyone = pooled(parts)
    table = tacit.stats.describe(parts, numbers, by=by, min_count=1).table
    for group, rows in [("all", everyone), *everyone.groupby(by)]:
        for column in numbers:
            mine, theirs = row(table, column, group=group), rows[column].describe()
            assert mine["n"] == theirs["count"]
            assert mine["mean"] == pytest.approx(theirs["mean"], rel=1e-14)
            assert mine["sd"] == pytest.approx(theirs["std"], rel=1e-13)
            for q in (25, 50, 75):
                assert mine[f"q{q}"] == pytest.approx(theirs[f"{q}%"], rel=RESOLUTION)
            lost = rows[column].isna().sum()
            assert mine["missing"] == lost


def test_the_runtimes_give_the_same_bits():
    small = {name: frame.head(40) for name, frame in heart().items()}
    a, b = (tacit.stats.describe(small, NUMBERS, by="disease", runtime=r) for r in ("cohort", "inprocess"))
    pd.testing.assert_frame_equal(a.table, b.table, check_exact=True)
    assert {line.how for line in a.ledger.seen} == {"ideal"}
    assert {line.how for line in b.ledger.seen} == {"executed"}


def test_counts_of_levels_with_missing_values_and_undeclared_levels():
    everyone = pooled(heart())
    table = tacit.stats.describe(
        heart(), ["thal", "cp"], categories={"thal": [3, 7], "cp": [1, 2, 3, 4]}
    ).table
    counts = everyone["thal"].value_counts()
    assert row(table, "thal", "3")["n"] == counts[3.0]
    assert row(table, "thal", "7")["share"] == counts[7.0] / counts.sum()
    assert row(table, "thal", "other")["n"] == counts[6.0]
    assert row(table, "thal", "missing")["n"] == everyone["thal"].isna().sum()


def test_tests_and_differences_between_groups_are_those_of_scipy():
    everyone = pooled(heart())
    found = tacit.stats.describe(
        heart(), [*NUMBERS, "sex", "cp", "exang"], by="disease", categories=["sex", "cp", "exang"]
    ).comparisons
    sick, well = (everyone[everyone.disease == d] for d in ("yes", "no"))
    for column in NUMBERS:
        a, b = well[column].dropna(), sick[column].dropna()
        theirs = stats.ttest_ind(a, b, equal_var=False)
        assert found.loc[column, "statistic"] == pytest.approx(theirs.statistic, rel=1e-10)
        assert found.loc[column, "p"] == pytest.approx(theirs.pvalue, rel=1e-8)
        assert found.loc[column, "df"] == pytest.approx(theirs.df, rel=1e-10)
        smd = abs(a.mean() - b.mean()) / math.sqrt((a.var() + b.var()) / 2)
        assert found.loc[column, "smd"] == pytest.approx(smd, rel=1e-10)
    for column in ("sex", "cp", "exang"):
        theirs = stats.chi2_contingency(pd.crosstab(everyone[column], everyone.disease), correction=False)
        assert found.loc[column, "statistic"] == pytest.approx(theirs.statistic, rel=1e-10)
        assert found.loc[column, "p"] == pytest.approx(theirs.pvalue, rel=1e-8)
    # two levels: |p − q| / √((p(1 − p) + q(1 − q)) / 2)
    p, q = (g["sex"].mean() for g in (well, sick))
    assert found.loc["sex", "smd"] == pytest.approx(abs(p - q) / math.sqrt((p * (1 - p) + q * (1 - q)) / 2))


def test_three_groups_are_compared_by_an_analysis_of_variance():
    everyone = pooled(heart())
    found = tacit.stats.describe(heart(), ["age", "chol"], by="restecg").comparisons
    for column in ("age", "chol"):
        groups = [g[column].dropna() for _, g in everyone.groupby("restecg")]
        theirs = stats.f_oneway(*groups)
        assert found.loc[column, "test"] == "ANOVA F"
        assert found.loc[column, "statistic"] == pytest.approx(theirs.statistic, rel=1e-10)
        assert found.loc[column, "p"] == pytest.approx(theirs.pvalue, rel=1e-8)


def test_table_1_for_the_console_html_and_latex():
    result = tacit.stats.describe(
        heart(), ["age", "chol", "sex"], by="disease", categories={"sex": [0, 1]}, min_count=5
    )
    table = result.table1()
    assert list(table.columns) == ["no", "yes", "All", "p", "test", "SMD"]
    assert table.loc["n"].tolist()[:3] == ["411", "509", "920"]
    assert table.loc["age, mean (SD)", "All"] == "53.51 (9.425)"
    assert table.loc["age, median [Q1, Q3]", "All"] == "54.00 [47.00, 60.00]"
    assert table.loc["  sex: 1", "no"] == "267 (65.0)"
    assert table.loc["age, mean (SD)", "p"] == "<0.001"
    text = str(result)
    assert "age, mean (SD)" in text
    assert "53.51 (9.425)" in text
    assert r"65.0" in result.to_latex()
    assert r"$<$0.001" in result.to_latex()
    assert "<td>53.51 (9.425)</td>" in result.to_html()
    assert "&lt;0.001" in result.to_html()


def test_names_from_the_tables_are_escaped(tmp_path):
    frames = {k: pd.DataFrame({"<b>x&_": ["<i>", "b"] * 10}) for k in "ab"}
    result = tacit.stats.describe(frames)
    assert "<b>" not in result.to_html()
    assert r"x\&\_" in result.to_latex()
    assert "<i>" not in result.report(tmp_path / "r.html").read_text().split("<body", 1)[1]


def test_the_report_has_the_table_and_the_ledger(tmp_path):
    result = tacit.stats.describe(heart(), ["age"], by="disease", runtime="inprocess")
    page = result.report(tmp_path / "report.html").read_text()
    assert "53.51 (9.425)" in page
    assert "MaskedVector" in page


# --- single statistics --------------------------------------------------------------------------------------


def test_quantiles_of_exact_rank_within_their_bounds():
    everyone = pooled(lung())["meal.cal"].dropna()
    q = [0, 0.01, 0.1, 0.333, 0.5, 0.9, 1]
    table = tacit.stats.quantile(lung(), "meal.cal", q).table
    theirs = everyone.quantile(q).to_numpy()
    assert (table["low"] <= theirs).all()
    assert (theirs <= table["high"]).all()
    assert table["value"].to_numpy() == pytest.approx(theirs, rel=RESOLUTION)


def count_next(sorted_keys, prefix, level):
    return ordered.count_next(sorted_keys, ordered.next_edges(np.array([prefix], np.uint32), level))[0]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
    st.floats(0, 1),
)
def test_any_numbers_have_their_order_statistics_in_the_cell(values, q):
    sorted_keys = ordered.sort_keys(np.array(values) + 0.0)
    rank = round(q * (len(values) - 1))
    prefix, rest = ordered.descend(ordered.count_first(sorted_keys), rank)
    for level in (1, 2):
        cell, rest = ordered.descend(count_next(sorted_keys, prefix, level), rest)
        prefix = prefix * ordered.NEXT + cell
    low, high = ordered.cell_bounds(prefix)
    assert low <= sorted(values)[rank] <= high
    assert low <= ordered.simplest(low, high) <= high


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e30, 1e30), max_size=40), st.randoms(use_true_random=False))
def test_sums_of_rows_are_correctly_rounded_in_any_order(values, random):
    expected = math.fsum(values)
    random.shuffle(values)
    assert sum_exactly(np.array(values)) == expected
    assert sum_exactly(np.array([*values, np.nan])) == expected


def test_a_histogram_counts_what_numpy_counts():
    everyone = pooled(heart())["chol"].dropna()
    table = tacit.stats.histogram(heart(), "chol", (100, 400), bins=15, min_count=1).table
    counts, edges = np.histogram(everyone, bins=15, range=(100, 400))
    assert table["n"].tolist()[1:-1] == counts.tolist()
    assert table["low"].tolist()[1:-1] == edges[:-1].tolist()
    assert table["n"].iloc[0] == (everyone < 100).sum()
    assert table["n"].iloc[-1] == (everyone > 400).sum()


def test_a_cross_tabulation_with_its_test():
    everyone = pooled(heart())
    found = tacit.stats.crosstab(heart(), "sex", "disease")
    theirs = pd.crosstab(everyone["sex"], everyone["disease"])
    assert (found.table.to_numpy() == theirs.to_numpy()).all()
    assert found.p == pytest.approx(stats.chi2_contingency(theirs, correction=False).pvalue, rel=1e-8)


def test_correlations_over_pairwise_complete_rows():
    columns = ["age", "ph.karno", "meal.cal", "wt.loss"]
    mine = tacit.stats.correlation(lung(), columns).table
    assert mine.to_numpy() == pytest.approx(pooled(lung())[columns].corr().to_numpy(), abs=1e-13)


def test_a_t_test_with_its_interval():
    everyone = pooled(lung())
    a, b = (everyone[everyone.arm == g]["age"] for g in ("female", "male"))
    for equal in (False, True):
        mine = tacit.stats.ttest(lung(), "age", "arm", equal_var=equal).statistics
        theirs = stats.ttest_ind(a, b, equal_var=equal)
        low, high = theirs.confidence_interval(0.95)
        assert (mine["t"], mine["p"], mine["low"], mine["high"]) == pytest.approx(
            (theirs.statistic, theirs.pvalue, low, high), rel=1e-8
        )


def test_a_rank_test_with_a_bin_for_every_value_is_that_of_the_pooled_rows():
    everyone = pooled(lung())
    a, b = (everyone[everyone.arm == g]["age"] for g in ("female", "male"))
    mine = tacit.stats.mann_whitney(lung(), "age", "arm", bounds=(0, 120), bins=120)
    theirs = stats.mannwhitneyu(a, b, method="asymptotic")
    assert mine.statistics["u"] == theirs.statistic
    assert mine.p == pytest.approx(theirs.pvalue, rel=1e-8)


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_frequent_values_are_found_letter_by_letter(runtime):
    rng = np.random.default_rng(0)
    codes = [f"I{k:02d}.{k % 10}" for k in range(100)] + ["Ä1", ""]
    frames = {
        name: pd.DataFrame({"icd": rng.choice(codes, n, p=np.arange(102, 0, -1) / 5253)})
        for name, n in {"a": 700, "b": 300, "c": 40}.items()
    }
    counts = pooled(frames)["icd"].value_counts()
    mine = tacit.stats.heavy_hitters(frames, "icd", min_count=15, min_cell=1, runtime=runtime).table
    assert mine["n"].to_dict() == counts[counts >= 15].to_dict()
    bounded = tacit.stats.heavy_hitters(frames, "icd", min_count=15, runtime=runtime).table["n"].to_dict()
    assert len(bounded) > 5
    assert all(counts[value] - 3 * 4 <= n <= counts[value] for value, n in bounded.items())


# --- small counts and ragged tables -------------------------------------------------------------------------


def test_small_counts_are_not_shown_and_cannot_be_computed_from_the_total():
    frames = {
        "a": pd.DataFrame({"x": [1.0] * 40, "arm": ["u"] * 38 + ["v"] * 2, "k": ["p"] * 39 + ["r"]}),
        "b": pd.DataFrame({"x": [2.0] * 30, "arm": ["u"] * 30, "k": ["p"] * 20 + ["q"] * 10}),
    }
    result = tacit.stats.describe(frames, by="arm")
    table = result.table
    assert math.isnan(row(table, "x", group="v")["mean"])
    assert math.isnan(row(table, "x", group="all")["mean"])  # all minus u would be v's
    assert math.isnan(row(table, "k", "r")["n"])
    assert math.isnan(row(table, "k", "q")["n"])  # 70 − 59 − 10 would be r's
    assert row(table, "k", "p")["n"] == 59
    assert result.table1().loc["n", "v"] == "<5"
    assert math.isnan(result.comparisons.loc["x", "p"])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(2, 10))
def test_hidden_counts_stay_hidden_beside_the_total(counts, least):
    hidden = suppress(np.array(counts), least)
    small = [0 < c < least for c in counts]
    assert all(h for h, s in zip(hidden, small) if s)
    assert not any(h for h, c in zip(hidden, counts) if c == 0)
    others = [c for c, s in zip(counts, small) if c and not s]
    if any(small) and others:
        assert hidden.sum() >= 2


def test_empty_groups_empty_parties_and_columns_without_values():
    frames = {
        "a": pd.DataFrame({"x": [1.0, 2.0, 3.0] * 4, "y": [np.nan] * 12, "arm": ["u"] * 12}),
        "b": pd.DataFrame(
            {
                "x": pd.Series([], dtype=float),
                "y": pd.Series([], dtype=float),
                "arm": pd.Series([], dtype=object),
            }
        ),
    }
    result = tacit.stats.describe(frames, by="arm", categories={"arm": ["u", "w"]}, runtime="inprocess")
    assert result.found.rows == {"u": 12, "w": 0, "all": 12}
    assert result.found.numbers["y"]["all"].n == 0
    assert math.isnan(row(result.table, "y")["mean"])
    assert row(result.table, "x", group="u")["q50"] == 2.0
    nothing = {name: frame.drop(columns="x") for name, frame in frames.items()}
    assert math.isnan(row(tacit.stats.describe(nothing, ["y"], runtime="inprocess").table, "y")["mean"])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: tacit.stats.describe(f, ["nope"]), "'a' has no 'nope'"),
        (lambda f: tacit.stats.describe([1]), "fed is 'list'"),
        (lambda f: tacit.stats.describe(f, quantiles=[2]), "quantiles is 2"),
        (lambda f: tacit.stats.describe(f, min_count=0), "min_count is 0"),
        (lambda f: tacit.stats.quantile(f, "t"), "'t' is not numeric"),
        (lambda f: tacit.stats.histogram(f, "x", (3, 1)), "bounds is"),
        (lambda f: tacit.stats.correlation(f, ["x"]), "at least two numeric"),
        (lambda f: tacit.stats.ttest(f, "x", "t"), "two groups"),
        (
            lambda f: tacit.stats.describe({"a": f["a"], "b": f["a"].drop(columns="x")}),
            "differ in the columns 'x'",
        ),
    ],
)
def test_bad_input_has_one_clear_error(call, match):
    frames = {
        "a": pd.DataFrame({"x": [1.0, np.inf], "t": ["p", "q"]}),
        "b": pd.DataFrame({"x": [1.0], "t": ["r"]}),
    }
    with pytest.raises((BadData, BadParameter), match=match):
        call(frames)


def test_infinite_numbers_are_refused():
    with pytest.raises(BadData, match="'x' has infinite values"):
        tacit.stats.describe({"a": pd.DataFrame({"x": [np.inf]}), "b": pd.DataFrame({"x": [1.0]})})


def test_a_private_table_may_have_a_column_called_self():
    """`DataFrame.assign(**columns)` fails for it: surveys have a column for the self-employed."""
    frames = {name: pd.DataFrame({"self": np.arange(100.0)}) for name in ("a", "b")}
    described = tacit.stats.describe(frames, bounds={"self": (0, 100)}, epsilon=1.0)
    assert "self" in str(described)
