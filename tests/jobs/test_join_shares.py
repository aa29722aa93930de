"""`tacit.join(reveal="shares")`: figures over people whom nobody knows equal those of the merged table."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.errors import BadData, BadParameter, QueryRefused
from tacit.jobs.vertical.join_shares import SecretTable
from tacit.mpc import shared_join, shared_moments
from tacit.mpc.joined import JoinQuery
from tacit.mpc.shared_join import SharedRows, SharedTerms

from ..mpc.at_table import play_on

N = 260


def tables() -> dict[str, pd.DataFrame]:
    """A bank with 200 people and a shop with 170, of whom 110 are shared; amounts with cents."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"p{k}" for k in range(N)]})
    frame["cash"] = rng.normal(3000, 2500, N).round(2)
    frame["region"] = np.where(np.arange(N) % 3, "country", "city")
    frame["spent"] = (0.02 * frame.cash + rng.normal(-20, 30, N)).round(2)
    frame["visits"] = rng.poisson(4, N)
    frame["kind"] = rng.choice(["new", "old", "rare"], N, p=[0.5, 0.46, 0.04])
    bank = frame[["id", "cash", "region"]].iloc[:200].sample(frac=1, random_state=1)
    shop = frame[["id", "spent", "visits", "kind"]].iloc[90:].sample(frac=1, random_state=2)
    return {"bank": bank, "shop": shop}


@pytest.fixture(scope="module")
def inner() -> SecretTable:
    return tacit.join(tables(), on="id", reveal="shares")


@pytest.fixture(scope="module")
def left() -> SecretTable:
    return tacit.join(tables(), on="id", reveal="shares", how="left")


def merged(how: str) -> pd.DataFrame:
    bank, shop = tables().values()
    return bank.merge(shop, on="id", how=how, indicator="where")


def test_figures_equal_those_of_the_inner_merge(inner: SecretTable) -> None:
    whole = merged("inner")
    assert inner.people is None
    assert inner.count() == len(whole) == 110
    assert inner.total("spent") == round(whole.spent.sum(), 2)
    assert inner.total(["cash", "-spent"]) == round((whole.cash - whole.spent).sum(), 2)
    assert inner.mean("cash") == pytest.approx(whole.cash.mean())
    both = (whole.cash + whole.spent).round(2)
    table = inner.count_above(["cash", "spent"], [1000, 4000])
    assert table["count"].tolist() == [int((both > t).sum()) for t in (1000, 4000)]
    by = inner.sum_by("spent", "bank.region")
    groups = whole.groupby("region").spent
    assert by["total"].round(2).to_dict() == groups.sum().round(2).to_dict()
    assert by["people"].to_dict() == groups.size().to_dict()
    assert inner.count(by="region")["people"].to_dict() == groups.size().to_dict()


def test_a_group_that_a_total_would_give_away_takes_another_one_with_it(inner: SecretTable) -> None:
    """Few people are 'rare'; who has a total could subtract the others."""
    sizes = merged("inner").kind.value_counts()
    assert 0 < sizes["rare"] < 10
    by = inner.sum_by("cash", "shop.kind")
    assert "rare" not in by.index  # fewer than the minimum in the shop's own table
    assert by.loc["new"].isna().all()  # the first one shown is hidden, too
    assert by.loc["old", "people"] == sizes["old"]


def test_figures_of_a_left_join_count_all_people_of_the_first_party(left: SecretTable) -> None:
    whole = merged("left")
    assert left.people == left.count() == 200
    assert left.total("spent") == round(whole.spent.sum(), 2)
    assert left.total("cash") == round(whole.cash.sum(), 2)
    has = whole["where"] == "both"
    by = left.count_above("shop.matched", 0, by="region")
    assert by["count"].to_dict() == has.groupby(whole.region).sum().to_dict()
    assert by["people"].to_dict() == whole.groupby("region").size().to_dict()


def test_enough_opens_one_bit(inner: SecretTable) -> None:
    before = len(inner.answers)
    assert inner.enough(100) is True
    assert inner.answers[before]["figures"] == [[True]]
    assert inner.answers[before]["people"] == [None]
    with pytest.raises(QueryRefused, match="another number of people was asked before"):
        inner.enough(101)
    by = inner.enough(40, by="kind")
    assert by["enough"].to_dict() == (merged("inner").kind.value_counts() >= 40).drop("rare").to_dict()
    with pytest.raises(BadParameter, match=r"enough is 9; it must be at least 10 \(minimum\) people"):
        inner.enough(9)


def test_moments_equal_those_of_the_merged_table(inner: SecretTable, left: SecretTable) -> None:
    whole = merged("inner")[["cash", "spent", "visits"]]
    table = inner.describe()
    assert table.index.tolist() == ["bank.cash", "shop.spent", "shop.visits"]
    assert table["count"].tolist() == [110] * 3
    np.testing.assert_allclose(table["mean"], whole.mean(), rtol=1e-5)
    np.testing.assert_allclose(table["std"], whole.std(), rtol=1e-5)
    np.testing.assert_allclose(inner.moments().correlations(), whole.corr(), atol=1e-5)
    table = left.describe(["cash", "visits"])
    assert table["count"].tolist() == [200, 110]
    np.testing.assert_allclose(table["mean"], [merged("left").cash.mean(), whole.visits.mean()], rtol=1e-5)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_regression_equals_that_of_the_merged_table(
    how: str, inner: SecretTable, left: SecretTable
) -> None:
    fit = (inner if how == "inner" else left).regress("bank.cash", ["spent", "visits"])
    whole = merged(how)
    columns = [whole.spent.fillna(0), whole.visits.fillna(0)]
    columns += [(whole["where"] == "both").astype(float)] if how == "left" else []
    x, y = np.column_stack([*columns, np.ones(len(whole))]), whole.cash.to_numpy()
    beta, *_ = np.linalg.lstsq(x, y, rcond=None)
    residual = y - x @ beta
    spread = np.linalg.inv(x.T @ x) * (residual @ residual) / (len(y) - x.shape[1])
    se = np.sqrt(np.diag(spread))
    assert fit.people == len(whole)
    assert np.abs((fit.table["coef"] - beta) / se).max() < 1e-4
    np.testing.assert_allclose(fit.table["se"], se, rtol=1e-4)
    assert fit.r2 == pytest.approx(1 - residual @ residual / ((y - y.mean()) @ (y - y.mean())), abs=1e-6)


def test_a_label_of_the_second_party_is_explained_by_columns_of_both(inner: SecretTable) -> None:
    fit, whole = inner.regress("spent", ["cash"]), merged("inner")
    slope, constant = np.polyfit(whole.cash, whole.spent, 1)
    np.testing.assert_allclose(fit.table["coef"], [slope, constant], rtol=1e-4)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_logistic_regression_equals_that_of_the_merged_table(how: str) -> None:
    frames, rng = tables(), np.random.default_rng(4)
    score = (frames["bank"].cash - 3000) / 2500 - 0.5
    frames["bank"]["default"] = (rng.random(200) < 1 / (1 + np.exp(-score))).astype(int)
    table = tacit.join(frames, on="id", reveal="shares", how=how)
    fit = table.regress("default", ["cash", "visits"], family="binomial")
    whole = frames["bank"].merge(frames["shop"], on="id", how=how)
    columns = [whole.cash, whole.visits.fillna(0)]
    columns += [whole.visits.notna().astype(float)] if how == "left" else []
    beta, se, loglik = logistic(np.column_stack([*columns, np.ones(len(whole))]), whole.default.to_numpy())
    assert fit.converged
    assert np.abs((fit.table["coef"] - beta) / se).max() < 1e-3
    np.testing.assert_allclose(fit.table["se"], se, rtol=1e-3)
    assert fit.loglik == pytest.approx(loglik, abs=1e-3)
    assert fit.people == len(whole)


def logistic(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """(coefficients, standard errors, log-likelihood) by Newton's method in the clear."""
    beta = np.zeros(x.shape[1])
    for _ in range(30):
        mean = 1 / (1 + np.exp(-x @ beta))
        inverse = np.linalg.inv(x.T @ (x * (mean * (1 - mean))[:, None]))
        beta = beta + inverse @ x.T @ (y - mean)
    return beta, np.sqrt(np.diag(inverse)), float((y * np.log(mean) + (1 - y) * np.log(1 - mean)).sum())


def test_questions_without_columns_open_nothing(inner: SecretTable) -> None:
    before = len(inner.answers)
    for columns in ([], "spent"):
        with pytest.raises(BadParameter, match="a list of columns, at least one besides the label"):
            inner.regress("cash", columns)  # type: ignore[arg-type]
    with pytest.raises(BadParameter, match=r"columns is \[\]; it must be one or more columns of numbers"):
        inner.moments([])
    assert len(inner.answers) == before


def test_a_label_of_a_logistic_regression_is_0_and_1_and_neither_is_rare(inner: SecretTable) -> None:
    with pytest.raises(BadParameter, match="a column of 0 and 1 with family='binomial'"):
        inner.regress("cash", ["spent"], family="binomial")
    with pytest.raises(BadParameter, match="family is 'poisson'; it must be one of 'gaussian', 'binomial'"):
        inner.regress("cash", ["spent"], family="poisson")
    frames = tables()
    frames["shop"]["rare"] = (np.arange(170) < 9).astype(int)
    with pytest.raises(QueryRefused, match="fewer than the minimum have a 0 or a 1"):
        tacit.join(frames, on="id", reveal="shares").regress("rare", ["cash"], family="binomial")


def test_nobody_learns_who_is_matched(inner: SecretTable) -> None:
    conclusions = [line.reveals for line in inner.ledger.seen if line.kind == "Conclusion"]
    assert len(conclusions) == 2
    assert all("nothing about which are shared, nor how many" in text for text in conclusions)
    assert any(stamp.startswith("MEMBERSHIP STAYS SHARED") for stamp in inner.ledger.stamps)
    assert {"SharedIds", "Outputs", "IdTags"}.isdisjoint({line.kind for line in inner.ledger.seen})


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(
    "query",
    [
        JoinQuery("total", (("b", "x", 1),)),
        JoinQuery("total", (("a", "y", -1), ("b", "x", 1)), by=("a", "g")),
        JoinQuery("total", (("b", "x", 1),), by=("b", "k")),
        JoinQuery("count", (("a", "y", 1), ("b", "x", 1)), (-20, 5)),
        JoinQuery("total", (("a", "y", 1), ("b", "x", 1)), (0,), ("a", "g")),
        JoinQuery("count", by=("b", "k")),
        JoinQuery("enough", least=12, by=("a", "g")),
    ],
)
def test_the_protocol_equals_its_ideal_function(how: str, query: JoinQuery) -> None:
    bins, g = 90, torch.Generator().manual_seed(1)
    words = (("x", "value"), ("k", "code"))
    terms = SharedTerms(("a", "b"), "h", bins, 5, (query,), how, words)
    present = (torch.rand(bins, generator=g) < 0.8).long()
    match = present * (torch.rand(bins, generator=g) < 0.6).long()
    y = present * torch.randint(-50, 50, (bins,), generator=g)
    x, code = (
        match * torch.randint(-50, 50, (bins,), generator=g),
        match * torch.randint(0, 4, (bins,), generator=g),
    )
    group = torch.randint(0, 3, (bins,), generator=g)
    own = torch.stack([(group == k).long() * present for k in range(3)])
    count = 1 if query.by is None else 3
    measure = sum((s * y for w, c, s in query.of if w == "a"), torch.zeros(bins).long())

    async def step(ctx, match, words, present, measure, own):
        return await shared_join.figures(
            ctx, terms, query, SharedRows(match, words, present), measure, own, count
        )

    def split(value: torch.Tensor) -> list[torch.Tensor]:
        mask = torch.randint(-(2**63), 2**63 - 1, value.shape, generator=g)
        return [mask, value - mask]

    def private(value: torch.Tensor) -> list[torch.Tensor]:
        return [value, torch.zeros_like(value)]

    indicator = own if query.by == ("a", "g") else torch.zeros(count, bins).long()
    shares = [
        split(match),
        split(torch.stack([x, code], 1)),
        private(present),
        private(measure),
        private(indicator),
    ]
    shown, figures, _ = sum(play_on(step, *shares)).tolist()
    v = measure + sum(s * x for w, _, s in query.of if w == "b")
    there = (match if how == "inner" else present).bool()
    groups = {None: torch.ones(1, bins), "a": own, "b": torch.stack([code == k for k in (1, 2, 3)])}
    members = groups[None if query.by is None else query.by[0]].long()[:, there]
    judged = match[there] if how == "left" and query.what == "total" and ("b", "x", 1) in query.of else None
    expected = shared_join.ideal(terms, query, (v + torch.zeros(bins).long())[there], members, judged)
    if query.what == "enough":
        assert shown == expected
        assert not any(any(row) for row in figures)
        return
    assert [[f if s else None for f, s in zip(fs, ss)] for fs, ss in zip(figures, shown)] == expected
    assert all(f == 0 for fs, ss in zip(figures, shown) for f, s in zip(fs, ss) if not s)


def test_what_cannot_be_asked_is_refused(inner: SecretTable, left: SecretTable) -> None:
    frames = tables()
    for more, words in (
        ({"reveal": "nobody"}, "reveal is 'nobody'; it must be 'all' .* or 'shares'"),
        ({"how": "outer", "reveal": "shares"}, "how is 'outer'; it must be 'inner' or 'left'"),
        ({"how": "left"}, "Use reveal='shares', or tacit.align"),
    ):
        with pytest.raises(BadParameter, match=words):
            tacit.join(frames, on="id", **more)
    with pytest.raises(BadParameter, match="the number of parties is 3; it must be 2"):
        tacit.join({**frames, "third": frames["bank"]}, on="id", reveal="shares")
    with pytest.raises(BadParameter, match=r"asked by count_above\(…, 0\)"):
        left.total("shop.matched")
    with pytest.raises(BadParameter, match="a column of text or categories"):
        inner.sum_by("cash", "visits")
    with pytest.raises(BadParameter, match="a column of numbers"):
        inner.total("kind")
    with pytest.raises(BadData, match="'region' of 'bank' contains non-numeric values"):
        inner.total("region")
    with pytest.raises(BadData, match="'kind' of 'shop' contains non-numeric values"):
        inner.describe(["kind"])
    with pytest.raises(BadParameter, match="column is 'money'; it must be one column of one party"):
        inner.regress("money", ["cash"])
    with pytest.raises(BadParameter, match="each column once"):
        inner.describe(["cash", "bank.cash"])
    with pytest.raises(BadParameter, match="'inner' for correlations"):
        left.moments().correlations()
    inner.count_above("spent", 10)
    with pytest.raises(
        QueryRefused, match="another question with thresholds of this measure was asked before"
    ):
        inner.count_above("spent", 10, by="kind")


def test_collinear_and_constant_columns_have_errors_of_their_own() -> None:
    frames = tables()
    frames["bank"]["double"] = 2 * frames["bank"]["cash"]
    frames["bank"]["same"] = 1.0
    table = tacit.join(frames, on="id", reveal="shares")
    with pytest.raises(BadParameter, match="columns that are not collinear"):
        table.regress("spent", ["cash", "double"])
    with pytest.raises(BadData, match=r"'bank\.same' has the same value in every row"):
        table.describe(["same"])


def test_with_few_matched_people_nothing_is_opened() -> None:
    frames = tables()
    frames["shop"] = frames["shop"].sort_values("id").iloc[-70:]  # p9x, of which the bank has some
    whole = frames["bank"].merge(frames["shop"], on="id")
    frames["bank"] = frames["bank"][~frames["bank"].id.isin(whole.id.iloc[9:])]
    table = tacit.join(frames, on="id", reveal="shares")
    assert table.count() is None
    assert table.total("spent") is None
    assert table.mean("cash") is None
    assert table.enough(10) is False
    with pytest.raises(QueryRefused, match="fewer people are matched than the 20 that these columns need"):
        table.describe(["cash"])


def test_a_party_may_have_ids_alone() -> None:
    frames, whole = tables(), merged("inner")
    table = tacit.join({**frames, "shop": frames["shop"][["id"]]}, on="id", reveal="shares")
    assert table.total("cash") == round(whole.cash.sum(), 2)
    assert table.describe()["count"].tolist() == [110]
    table = tacit.join({**frames, "bank": frames["bank"][["id"]]}, on="id", reveal="shares")
    assert table.count() == 110
    assert table.describe(["visits"])["mean"].tolist() == pytest.approx([whole.visits.mean()])


def test_the_words_of_a_join_follow_from_its_columns(inner: SecretTable) -> None:
    assert inner._terms is not None
    assert inner._terms.words == (
        ("spent", "value"),
        ("spent", "score"),
        ("visits", "value"),
        ("visits", "score"),
        ("kind", "code"),
    )
    again = SharedTerms.read(inner._terms.to_dict())
    assert again == dataclasses.replace(inner._terms)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_moments_on_shares_equal_their_ideal_function(how: str) -> None:
    bins, g = 80, torch.Generator().manual_seed(2)
    terms = SharedTerms(("a", "b"), "h", bins, 5, (), how, (("x", "score"),))
    present = (torch.rand(bins, generator=g) < 0.9).long()
    match = present * (torch.rand(bins, generator=g) < 0.7).long()
    z = torch.randn(bins, 2, generator=g, dtype=torch.float64)
    words = (z * 2.0**shared_moments.FRACTION).round().long() * torch.stack([present, match], 1)

    async def step(ctx, match, words, present, own):
        return await shared_moments.moments(ctx, terms, SharedRows(match, words, present), own, [0], [])

    for fewer in (False, True):  # then with too few matched people
        m = match * (match.cumsum(0) <= 20) if fewer else match
        values = [m, words[:, 1:] * m[:, None], present, words[:, :1]]
        opened = sum(play_on(step, *[[v, torch.zeros_like(v)] for v in values]))
        columns = [
            words[:, :1] * (m[:, None] if how == "inner" else 1),
            words[:, 1:] * m[:, None],
            m[:, None],
        ]
        columns += [present[:, None]] if how == "left" else []
        x = torch.cat([*columns[:2], *(c << shared_moments.FRACTION for c in columns[2:])], 1)
        there = present.bool()
        expected = shared_moments.ideal(terms, x[there], m[there], 1)
        assert int(opened[0]) == (expected is not None) == (not fewer)
        assert opened[1:].equal(
            torch.zeros(len(opened) - 1).long() if expected is None else expected.flatten()
        )
