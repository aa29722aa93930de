"""Every table of statistics has a minimum count: nothing about 1 to 4 people is shown, nor follows from what is.

One test for each quantity that is opened. Groups are made so that one of them has three people.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadData, QueryRefused
from tacit.jobs.stats.answers import AnswerFile
from tacit.jobs.stats.contract import SumContract
from tacit.jobs.stats.policy import StatsPolicy, admit, read_policy
from tacit.jobs.stats.queries import read_query
from tacit.stats.concentration import check_span, sum_leverages, whiten
from tacit.stats.counts import CrosstabProgram, FrequentProgram, HistogramProgram
from tacit.stats.description import DescribeProgram
from tacit.stats.lifetimes import LifetimeProgram
from tacit.stats.newton import symmetric
from tacit.stats.site_logrank import SiteLogrankProgram

N, RARE = 120, 3  # rows, people in the rare group
OPENED = {"min_level_rows": 1}  # all levels, so that minimum counts alone protect the rare group


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 90, N).astype(float),
            "arm": np.where(np.arange(N) < RARE, "rare", np.where(np.arange(N) % 2, "drug", "placebo")),
            "sex": np.where(np.arange(N) % 3 == 0, "f", "m"),
            "weeks": rng.integers(1, 40, N),
            "died": ((7 * np.arange(N)) % 5 < 2).astype(int),
            "code": [f"{'ABC'[k % 3]}{k % 2}" for k in range(N - RARE)] + ["Zx", "Zy", "Zz"],
        }
    )
    return table.sample(frac=1, random_state=1).reset_index(drop=True)


@pytest.fixture(scope="module")
def fed() -> dict[str, pd.DataFrame]:
    table = people()
    return {"north": table[:50], "south": table[50:90], "west": table[90:]}


def shown(result) -> str:
    """Everything that a command prints or a page shows."""
    return json.dumps(result.to_dict(), default=str) + str(result)


# --- Table 1 ------------------------------------------------------------------------------------------------


def test_the_size_of_a_small_group_does_not_follow_from_the_total(fed):
    """118 and 2 beside a total of 120 would be no secret."""
    sizes = tacit.stats.describe(fed, ["age"], by="arm").table1().loc["n"]
    assert sizes["rare"] == "<5"
    assert sizes["All"] == str(N)
    assert (sizes[["drug", "placebo"]] == "–").sum() == 1


def test_levels_of_a_group_do_not_follow_from_those_of_all(fed):
    """One cell below 5: All minus the other groups would be that cell."""
    found = tacit.stats.describe(fed, ["sex"], by="arm")
    cells = found.table[(found.table["column"] == "sex") & found.table["level"].isin(["f", "m"])]
    table = cells.pivot(index="group", columns="level", values="n")
    total = table.loc["all"]
    for level in ("f", "m"):
        hidden = table.drop(index="all")[level].isna()
        assert hidden.sum() != 1
        if hidden.any():
            assert total[level] - table.drop(index="all")[level].sum() >= 5
    assert math.isnan(found.comparisons.loc["sex", "p"])


def test_figures_of_people_without_a_group_do_not_follow_from_the_total(fed):
    """The mean of all and those of both groups would give the mean of the three in none."""
    parts = {k: v.assign(arm=v["arm"].where(v["arm"] != "rare", None)) for k, v in fed.items()}
    found = tacit.stats.describe(parts, ["age"], by="arm").table.set_index("group")
    assert math.isnan(found.loc["all", "mean"])
    assert found.loc[["drug", "placebo"], "mean"].notna().all()


def test_how_many_miss_a_value_does_not_follow_from_the_rows(fed):
    parts = {k: v.assign(age=v["age"].where(v["arm"] != "rare")) for k, v in fed.items()}
    row = tacit.stats.describe(parts, ["age"]).table.iloc[0]
    assert math.isnan(row["missing"])
    assert math.isnan(row["n"])
    assert not math.isnan(row["mean"])


# --- single statistics --------------------------------------------------------------------------------------


def test_quantiles_of_a_small_group_are_not_shown(fed):
    table = tacit.stats.quantile(fed, "age", 0.5, by="arm").table
    assert "rare" not in set(table["group"])
    assert "all" not in set(table["group"])


def test_small_bins_of_a_histogram_are_not_shown(fed):
    counts = tacit.stats.histogram(fed, "age", (0, 100), 40).table["n"]
    assert not ((counts > 0) & (counts < 5)).any()
    assert N - counts.sum() >= 5


def test_small_cells_of_a_cross_tabulation_are_not_shown(fed):
    found = tacit.stats.crosstab(fed, "arm", "sex")
    assert found.table.loc["rare"].isna().all()
    assert math.isnan(found.p)


def test_a_correlation_over_few_people_is_not_shown(fed):
    parts = {k: v.assign(lab=v["weeks"].where(v["arm"] == "rare")) for k, v in fed.items()}
    assert math.isnan(tacit.stats.correlation(parts, ["age", "lab"]).table.loc["age", "lab"])


@pytest.mark.parametrize("test", ["ttest", "mann_whitney"])
def test_groups_of_few_are_not_compared(fed, test):
    options = {"bounds": (0, 100)} if test == "mann_whitney" else {}
    with pytest.raises(tacit.errors.BadParameter, match="at least 5: its figures would be those of single"):
        getattr(tacit.stats, test)(fed, "age", "arm", groups=["rare", "drug"], **options)


def test_rare_values_are_not_among_the_frequent_ones_and_the_ledger_says_what_was_opened(fed):
    found = tacit.stats.heavy_hitters(fed, "code", 10)
    assert not any(value.startswith("Z") for value in found.table.index)
    assert (found.table["n"] >= 10).all()
    assert any("at least 5 rows of each party" in stamp for stamp in found.ledger.stamps)
    everything = tacit.stats.heavy_hitters(fed, "code", 10, min_cell=1)
    assert any("few as they may be" in stamp for stamp in everything.ledger.stamps)
    assert not any(f'"{value}"' in shown(found) for value in ("Z", "Zx", "Zy", "Zz"))


def test_no_count_of_few_is_opened_by_a_search_for_frequent_values_whatever_is_asked(fed):
    """A coordinator that opens the sums, and asks for any prefix: all counts and differences are 0 or ≥ 5."""
    import torch

    program = FrequentProgram("code", 10, cell=5)
    every = sorted({c[:k].encode() for c in people()["code"] for k in range(3)}, key=lambda p: (len(p), p))
    seen: dict[bytes, int] = {}
    for step in range(3):
        prefixes = [p for p in every if len(p) == step]
        down = {
            "prefixes": torch.tensor(list(b"".join(prefixes)), dtype=torch.uint8),
            "lengths": torch.full((len(prefixes),), step, dtype=torch.int64),
        }
        total = sum(program.local(step, table, down) for table in fed.values()).reshape(-1, 257)
        assert not ((total > 0) & (total < 5)).any()
        for prefix, row in zip(prefixes, total):
            if step:
                left = seen.get(prefix, 0) - int(row.sum())
                assert left == 0 or left >= 5
            seen |= {prefix + bytes([c]): int(row[c]) for c in range(256) if row[c]}
    assert b"Z" not in seen  # three people
    assert seen[b"A"] > 10


# --- survival -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strata", [None, "site", "sex"])
def test_few_events_of_a_group_are_not_shown_beside_a_log_rank_test(fed, strata):
    every = tacit.stats.logrank(
        fed, time="weeks", event="died", by="arm", strata=strata, min_count=1, **OPENED
    )
    assert 0 < every.table.loc["rare", "observed"] < 5
    found = tacit.stats.logrank(fed, time="weeks", event="died", by="arm", strata=strata, **OPENED)
    assert found.table.loc["rare"].isna().all()
    assert found.table["observed"].isna().sum() == 2  # one alone would follow from the total
    assert found.statistic == every.statistic
    assert "are not shown" in found.notes[-1]


@pytest.mark.parametrize("kind", ["kaplan_meier", "nelson_aalen", "aalen_johansen"])
def test_curves_and_at_risk_tables_are_not_about_few(fed, kind):
    options = {"cause": 1, "causes": [1]} if kind == "aalen_johansen" else {}
    found = getattr(tacit.stats, kind)(fed, time="weeks", event="died", by="arm", **options, **OPENED)
    assert "rare" not in set(found.table["group"])
    assert ((found.table["events"] == 0) | (found.table["events"] >= 5)).all()
    assert (found.table["at_risk"] >= 5).all()
    counts = found.at_risk_table.to_numpy().ravel()
    assert not any(isinstance(c, int | np.integer) and 0 < c < 5 for c in counts)


def test_a_cox_model_of_few_events_or_a_rare_level_is_refused(fed):
    few = {k: v.assign(died=(v["arm"] == "rare").astype(int)) for k, v in fed.items()}
    with pytest.raises(QueryRefused, match="'died'"):
        tacit.stats.cox(few, "age", time="weeks", event="died")
    for strata in (None, "site"):
        with pytest.raises(QueryRefused, match=r"1 to 4 alone .* 'arm=rare'"):
            tacit.stats.cox(fed, "age + arm", time="weeks", event="died", strata=strata, **OPENED)


# --- models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["glm", "gee", "mixed"])
def test_a_rare_level_is_refused_and_may_be_allowed(fed, model):
    with pytest.raises(QueryRefused, match=r"1 to 4 alone have another value in 'arm=rare'.*min_count=1"):
        getattr(tacit.stats, model)(fed, "died ~ age + arm", **OPENED)
    if model == "glm":
        assert "arm[T.rare]" in tacit.stats.glm(fed, "died ~ age + arm", min_count=1, **OPENED).params


def test_a_rare_reference_level_and_few_events_are_refused(fed):
    levels = {"arm": ["rare", "drug", "placebo"]}
    flag = {k: v.assign(old=(v["arm"] != "rare").astype(float)) for k, v in fed.items()}
    with pytest.raises(QueryRefused, match="'old'"):
        tacit.stats.glm(flag, "died ~ age + old")
    with pytest.raises(QueryRefused, match="'few'"):
        tacit.stats.glm({k: v.assign(few=1 - v["old"]) for k, v in flag.items()}, "few ~ age")
    # the rows of a reference level are those that no other level has: the sums of two levels leave three, and
    # the intercept of a linear model is their mean
    for formula in ("weeks ~ arm", "weeks ~ age + C(arm)"):
        with pytest.raises(QueryRefused, match=r"1 to 4 alone .* 'arm=rare'"):
            tacit.stats.glm(fed, formula, family="gaussian", levels=levels)
    for levels_ in (["rare", "drug", "placebo"], ["drug", "placebo", "rare"]):
        with pytest.raises(QueryRefused, match=r"1 to 4 alone .* 'arm=rare'"):
            tacit.stats.glm(fed, "weeks ~ C(arm, contr.sum)", family="gaussian", levels={"arm": levels_})
    with pytest.raises(QueryRefused, match=r"'arm=rare'"):
        tacit.stats.cox(fed, "age + arm", time="weeks", event="died", levels=levels)
    some = {k: v[v["arm"] != "rare"] for k, v in fed.items()}
    assert (
        tacit.stats.glm(some, "weeks ~ arm", family="gaussian", levels={"arm": ["drug", "placebo"]}).n
        == N - RARE
    )
    assert tacit.stats.glm(fed, "died ~ age + arm", levels=levels, min_count=1).n == N


CODINGS = [
    "C(arm, contr.treatment)", "C(arm, contr.sum)", "C(arm, contr.helmert)", "C(arm, contr.poly)",
    "C(arm, contr.diff)", "0 + arm", "arm:age", "age * arm",
]  # fmt: skip


@pytest.mark.parametrize("coding", CODINGS)
def test_a_rare_level_is_found_whatever_its_contrasts(fed, coding):
    with pytest.raises(QueryRefused, match=r"'arm=rare'"):
        tacit.stats.glm(fed, f"weeks ~ {coding}", family="gaussian", **OPENED)
    if not coding.startswith("0"):
        with pytest.raises(QueryRefused, match=r"'arm=rare'"):
            tacit.stats.cox(fed, coding, time="weeks", event="died", **OPENED)


def test_a_rare_combination_of_two_levels_is_found_in_an_interaction(fed):
    """Two arms and two sexes are frequent; three people alone are f and drug."""
    table = pd.concat(fed.values(), ignore_index=True)
    table["arm"] = np.where(np.arange(N) % 2, "drug", "placebo")
    table["sex"] = np.where(
        (np.arange(N) % 3 == 0) & ((table["arm"] == "placebo") | (np.arange(N) < 18)), "f", "m"
    )
    assert ((table["arm"] == "drug") & (table["sex"] == "f")).sum() == RARE
    parts = {"a": table[:50], "b": table[50:90], "c": table[90:]}
    assert tacit.stats.glm(parts, "weeks ~ arm + sex", family="gaussian").n == N
    for formula in ("arm * sex", "arm:sex", "C(arm, contr.sum) * C(sex, contr.helmert)", "arm * sex * age"):
        with pytest.raises(QueryRefused, match="'arm=drug and sex=f'"):
            tacit.stats.glm(parts, f"weeks ~ {formula}", family="gaussian")
        with pytest.raises(QueryRefused, match="'arm=drug and sex=f'"):
            tacit.stats.cox(parts, formula, time="weeks", event="died")


@pytest.mark.parametrize(
    "values", [(7.0, 9.0), (9.0, 7.0), (0.0, 5.0), (-1.0, 1.0), (1e6, 1e6 + 1), (0.1, 0.3)]
)
def test_a_column_of_two_numbers_is_no_way_around_the_minimum_count(fed, values):
    """Its coefficient is the difference of three people from the others, whatever the two numbers are."""
    parts = {k: v.assign(mark=np.where(v["arm"] == "rare", *values)) for k, v in fed.items()}
    for formula in ("age + mark", "age + I(3 * mark - 2)", "mark"):
        with pytest.raises(QueryRefused, match="1 to 4 alone have another value in"):
            tacit.stats.glm(parts, f"weeks ~ {formula}", family="gaussian")
    for strata in (None, "site"):
        with pytest.raises(QueryRefused, match="1 to 4 alone have another value in 'mark'"):
            tacit.stats.cox(parts, "age + mark", time="weeks", event="died", strata=strata)
    some = {k: v.assign(mark=np.where(v["sex"] == "f", *values)) for k, v in fed.items()}
    assert tacit.stats.glm(some, "weeks ~ age + mark", family="gaussian").n == N
    five = {k: v.assign(mark=np.where(v.index < 2, *values)) for k, v in fed.items()}
    assert sum((v["mark"] == values[0]).sum() for v in five.values()) < 5
    with pytest.raises(QueryRefused, match="'mark'"):
        tacit.stats.glm(five, "weeks ~ age + mark", family="gaussian")


HIDDEN = {
    "x and x² of three values": "three + I(three**2)",
    "jitter": "jitter",
    "a difference of two columns": "age + moved",
    "a sum of three columns": "age + other + I(age + other + 100 * mark)",
    "sums in which each column is like any other": "I(mark + 0.002 * age) + I(mark - 0.002 * age)",
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_combination_of_columns_is_no_way_around_the_minimum_count(fed, case):
    """Three people are told apart by columns of many values, none of which does alone."""
    rng = np.random.default_rng(0)
    parts = {
        k: v.assign(
            three=np.where(v["arm"] == "rare", 2.0, (v["sex"] == "f").astype(float)),
            jitter=np.where(v["arm"] == "rare", 7.0, 9.0 + 1e-3 * rng.normal(size=len(v))),
            moved=v["age"] + (v["arm"] == "rare"),
            other=rng.normal(size=len(v)),
            mark=(v["arm"] == "rare").astype(float),
        )
        for k, v in fed.items()
    }
    formula, words = HIDDEN[case], r"rest on fewer than 5 rows of all parties: .*\(about [1-4]\)"
    models = {
        "glm": lambda **more: tacit.stats.glm(parts, f"weeks ~ {formula}", family="gaussian", **more),
        "mixed": lambda **more: tacit.stats.mixed(parts, f"weeks ~ {formula}", family="gaussian", **more),
        "gee": lambda **more: tacit.stats.gee(parts, f"weeks ~ {formula}", family="gaussian", **more),
        "cox": lambda **more: tacit.stats.cox(parts, formula, time="weeks", event="died", **more),
        "cox by site": lambda **more: tacit.stats.cox(
            parts, formula, time="weeks", event="died", strata="site", **more
        ),
    }
    for name, model in models.items():
        with pytest.raises(QueryRefused, match=words):
            model()
        if name == "glm":
            assert model(min_count=1).n == N
    more = {k: v.assign(mark=(v.index < 5).astype(float), other=v["three"]) for k, v in parts.items()}
    if "mark" in formula:  # fifteen people are no few
        assert tacit.stats.glm(more, f"weeks ~ {formula}", family="gaussian").n == N


@pytest.mark.parametrize("count", [3, 4, 5, 6])
def test_the_rows_that_a_combination_rests_on_are_counted(count):
    """A column of noise in all rows and a bump in a few: their number is found to within one."""
    rng = np.random.default_rng(count)
    n, p = 600, 6
    x = rng.normal(size=(n, p))
    x[:count, 0] += 1e4
    mixed = (x - x.mean(axis=0)) @ rng.normal(size=(p, p))  # other columns of the same span
    w = whiten(mixed.T @ mixed)
    parts = [sum_leverages(part, w, 5) for part in np.array_split(mixed, 3)]
    value = np.linalg.eigvalsh(symmetric(np.split(np.sum(parts, axis=0), 2)[0], p))[-1]
    assert round(1 / (value - (p - 1) / n)) == count
    if count < 5:
        with pytest.raises(QueryRefused, match=rf"\(about {count}\)"):
            check_span("glm", list("abcdef"), w, np.sum(parts, axis=0), n, 5)
    else:
        check_span("glm", list("abcdef"), w, np.sum(parts, axis=0), n, 5)


@pytest.mark.parametrize("sigma", [1.0, 1.5])
def test_a_long_tail_is_no_reason_to_refuse(sigma):
    """Laboratory values: a row may have half of a column's squares, and the others have the rest."""
    rng, refused = np.random.default_rng(0), 0
    for _ in range(100):
        x = np.column_stack([np.ones(200), rng.normal(size=(200, 3)), rng.lognormal(0, sigma, 200)])
        w = whiten(x.T @ x)
        try:
            check_span("glm", ["Intercept", *"abcd"], w, sum_leverages(x, w, 5), 200, 5)
        except QueryRefused:
            refused += 1
    assert refused <= 5


@pytest.mark.parametrize("far", [1e6, 1e9])
def test_columns_far_from_0_are_tested_as_well_as_their_digits_allow(fed, far):
    """Their products have lost digits: the model is fitted, or one error says why not."""
    parts = {k: v.assign(year=far + v["age"]) for k, v in fed.items()}
    exact = tacit.stats.glm(fed, "weeks ~ age", family="gaussian")
    try:
        found = tacit.stats.glm(parts, "weeks ~ year", family="gaussian")
    except BadData as error:
        assert far == 1e9 and "collinear" in str(error)  # noqa: PT017, PT018
    else:
        np.testing.assert_allclose(found.params["year"], exact.params["age"], rtol=1e-3)


def test_known_limit_few_events_of_a_frequent_level_follow_from_a_model(fed):
    """Documented: 20 people, of whom one died. The rows are counted, and outcomes in all, not by level."""
    table = pd.concat(fed.values(), ignore_index=True)
    table["group"] = np.where(np.arange(N) < 20, "g", "h")
    table["died"] = np.where(np.arange(N) < 20, np.arange(N) == 0, np.arange(N) % 2).astype(int)
    parts = {
        "a": table[10:60],
        "b": pd.concat([table[:5], table[60:90]]),
        "c": pd.concat([table[5:10], table[90:]]),
    }
    odds = np.exp(tacit.stats.glm(parts, "died ~ 0 + group").params["group[g]"])
    np.testing.assert_allclose(odds, 1 / 19, rtol=1e-6)


def test_one_patient_of_the_lung_data_alone_has_a_score_and_would_be_read_off_the_sums():
    """lifelines' lung data: ph.ecog is 3 for one patient of 227; XᵀX of that column is her row."""
    from lifelines.datasets import load_lung

    lung = load_lung().dropna(subset=["ph.ecog", "inst"])
    fed = {f"i{k % 3}": part for k, part in lung.groupby(lung["inst"] % 3)}
    with pytest.raises(QueryRefused, match=r"ph.ecog"):
        tacit.stats.cox(fed, "age + C(`ph.ecog`)", time="time", event="status", **OPENED)


# --- what a party's owner allows ----------------------------------------------------------------------------


def job(tmp_path, word: str, text: str):
    file = tmp_path / "job.toml"
    file.write_text(text)
    query = read_query(word, file)
    program = query.verb.program(query.options, ["north", "south", "west"])
    return program, SumContract.of(program, ["north", "south", "west"], data=query.agreed_data())


@pytest.mark.parametrize(
    ("word", "text", "key"),
    [
        ("heavy-hitters", '[stats]\ncolumn = "code"\nmin_count = 2', "min_count"),
        ("histogram", '[stats]\ncolumn = "age"\nbounds = [0, 100]\nmin_count = 1', "min_count"),
        ("km", '[stats]\ntime = "weeks"\nevent = "died"\nmin_count = 1', "min_count"),
        (
            "logrank",
            '[stats]\ntime = "weeks"\nevent = "died"\nby = "arm"\nmin_count = 4\nlevels = {arm = ["a", "b"]}',
            "min_count",
        ),
        ("glm", '[stats]\nformula = "died ~ age"\nmin_count = 1', "min_count"),
        ("cox", '[stats]\nformula = "age"\ntime = "weeks"\nevent = "died"\nmin_exits = 2', "min_exits"),
    ],
)
def test_a_party_does_not_answer_queries_that_show_smaller_counts_than_its_policy(tmp_path, word, text, key):
    program, contract = job(tmp_path, word, text)
    (tmp_path / "policy.toml").write_text("[stats]\nmin_exits = 5\n")
    policy = read_policy(tmp_path)
    answers = AnswerFile(tmp_path, "north", contract.digest)
    with pytest.raises(QueryRefused, match=rf"policy requires 5 \({key}\)"):
        admit(policy, contract, program, people(), answers, tmp_path)
    admit(StatsPolicy(min_count=1), contract, program, people(), answers, tmp_path)


PROGRAMS = {
    "describe": lambda by: DescribeProgram(("age",), (), (by, ("a", "b"))),
    "mann-whitney": lambda by: HistogramProgram("age", 0, 100, 10, (by, ("a", "b"))),
    "crosstab": lambda by: CrosstabProgram((by, ("a", "b")), ("sex", ("f", "m"))),
    "km": lambda by: LifetimeProgram("weeks", "died", by),
    "logrank by site": lambda by: SiteLogrankProgram("weeks", "died", by),
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_groups_that_differ_in_few_people_from_earlier_groups_are_refused(tmp_path, kind):
    table = people().assign(
        first=lambda t: np.where(t.index % 2, "a", "b"),
        second=lambda t: np.where((t.index % 2) & (t.index > 3), "a", "b"),
        small=lambda t: np.where(t.index < 4, "a", "b"),
    )

    def ask(program):
        contract = SumContract.of(program, ["north", "south", "west"])
        answers = AnswerFile(tmp_path, "north", contract.digest)
        admit(StatsPolicy(), contract, program, table, answers, tmp_path)

    ask(DescribeProgram(("age",)))
    # all rows but four: the four are a group of the same query, which has a minimum count
    ask(PROGRAMS[kind]("small"))
    ask(PROGRAMS[kind]("first"))
    with pytest.raises(QueryRefused, match=r"\(second=a\) differ .* by 2 people.*leave rows with missing"):
        ask(PROGRAMS[kind]("second"))
