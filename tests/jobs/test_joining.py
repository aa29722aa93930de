"""`tacit.join`: figures on shares equal those of the merged table, to the last decimal."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.errors import BadData, BadParameter
from tacit.mpc import joined
from tacit.mpc.joined import JoinQuery, JoinTerms

from ..mpc.at_table import value


def banks():
    """Three banks with other customers each, amounts with cents, overdrafts, and repeated and missing rows."""
    rng = np.random.default_rng(1)
    ids = np.array([f"C{k:03d}" for k in range(200)])
    frames = {}
    for k, who in enumerate(("north", "south", "east")):
        frame = pd.DataFrame({"customer": ids, "cash": rng.normal(500, 900, 200).round(2)})
        frame["loans"] = rng.exponential(300, 200).round(2)
        frame["segment"] = rng.choice(["private", "business", "staff"], 200, p=[0.7, 0.28, 0.02])
        frames[who] = frame.sample(frac=0.9, random_state=k)
    frames["south"] = frames["south"][["customer", "cash"]]
    frames["east"].loc[frames["east"].index[:3], "cash"] = np.nan
    frames["north"] = pd.concat([frames["north"], frames["north"].iloc[:2]])
    return frames


def merged():
    frames = banks()
    whole = frames["north"].drop_duplicates()
    for who in ("south", "east"):
        whole = whole.merge(frames[who].dropna(), on="customer", suffixes=("", f"_{who}"))
    return whole.assign(all_cash=(whole["cash"] + whole["cash_south"] + whole["cash_east"]).round(2))


def test_figures_equal_those_of_the_merged_table():
    table, whole = tacit.join(banks(), on="customer"), merged()
    assert table.people == len(whole)
    assert table.total("cash") == round(whole["all_cash"].sum(), 2)
    assert table.mean("cash") == pytest.approx(whole["all_cash"].mean(), abs=1e-9)
    assert table.count_above("cash", 2000) == int((whole["all_cash"] > 2000).sum())
    edge = float(whole["cash_south"].median())  # a value that is there: above is strict
    assert table.count_above("south.cash", edge) == int((whole["cash_south"] > edge).sum())
    net = (whole["all_cash"] - whole["loans"] - whole["loans_east"]).round(2)
    rich = table.total(["cash", "-north.loans", "-east.loans"], above=500.5)
    assert rich == round(net[net > 500.5].sum(), 2)
    by = table.sum_by("cash", "north.segment")
    groups = whole.groupby("segment")["all_cash"]
    assert "staff" not in by.index  # too few people; and one more group, so that the total does not tell
    for name in by.index:
        assert by.loc[name, "total"] == round(groups.sum()[name], 2)
        assert by.loc[name, "people"] == groups.size()[name]
    bands = table.count_above("east.cash", [-1000, 0, 1000, 1e6], by="east.segment")
    inside = whole["cash_east"][whole["segment_east"] == "private"]
    assert bands.loc["private", "above 0"] == int((inside > 0).sum())
    assert np.isnan(bands.loc["private", "above 1e+06"])
    assert "have missing values" in " ".join(table.notes)
    assert any(stamp.startswith("MATCHED") for stamp in table.ledger.stamps)
    assert len(table.answers) == 7
    assert "FigureShare" in {line.kind for line in table.ledger.seen}


@pytest.mark.parametrize(
    ("what", "above"), [("total", ()), ("count", (-50,)), ("total", (-30, 0, 40)), ("count", (-200, -199, 0))]
)
def test_the_protocol_equals_its_ideal_function(what, above):
    g = torch.Generator().manual_seed(0)
    v = torch.randint(-100, 100, (60,), generator=g)
    groups = torch.nn.functional.one_hot(torch.randint(0, 3, (60,), generator=g), 3).T.contiguous()
    terms = JoinTerms(("a", "b"), "h", 60, 5, (query := JoinQuery(what, (("a", "x", 1),), above),))

    async def step(ctx, v, groups):
        return await joined.answer(ctx, terms, query, v, groups)

    shown, figures, _ = value(step, v, groups, parties=3).tolist()
    got = [[f if s else None for f, s in zip(fs, ss)] for fs, ss in zip(figures, shown)]
    assert got == joined.ideal(terms, query, v, groups)
    assert all(f == 0 for fs, ss in zip(figures, shown) for f, s in zip(fs, ss) if not s)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda t: t.total("money"), "of is 'money'; it must be a column of the parties"),
        (lambda t: t.total([]), "of is"),
        (lambda t: t.total(["cash", "north.cash"]), "each column once"),
        (lambda t: t.count_above("cash", "much"), "above is 'much'"),
        (lambda t: t.count_above("cash", [3, 1]), "thresholds in increasing order"),
        (lambda t: t.count_above("cash", 1e15), "within"),
        (lambda t: t.sum_by("cash", "segment"), "a category of one party"),
        (lambda t: t.total("segment"), "contains non-numeric values"),
    ],
)
def test_bad_questions(ask, words):
    table = tacit.join(banks(), on="customer")
    with pytest.raises((BadParameter, BadData), match=words):
        ask(table)


def test_bad_tables():
    frames = banks()
    with pytest.raises(BadData, match="has more than 1 decimals"):
        tacit.join(frames, on="customer", decimals=1).total("cash")
    with pytest.raises(BadParameter, match="decimals is 9"):
        tacit.join(frames, on="customer", decimals=9)
    with pytest.raises(BadParameter, match="a DataFrame with a column 'id'"):
        tacit.join(frames, on="id")
    for columns in (["cash"], {"nroth": ["cash"]}):
        with pytest.raises(BadParameter, match=r"join: columns is .*; it must be the columns of each party"):
            tacit.join(frames, on="customer", columns=columns)
    with pytest.raises(BadData, match="has no column 'cahs'"):
        tacit.join(frames, on="customer", columns={"north": ["cahs"]})
    with pytest.raises(BadData, match="rows have the id of an earlier row and other values"):
        tacit.join(
            {**frames, "south": pd.concat([frames["south"], frames["south"].assign(cash=1.0)])}, on="customer"
        )
