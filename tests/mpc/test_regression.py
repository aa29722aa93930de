"""Regression on shares over columns at different parties equals the same descent in float64; its test metrics
equal scikit-learn's.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, replace

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, precision_score, recall_score, roc_auc_score

from tacit.errors import PartyFailed
from tacit.mpc import regression, scoring
from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Stock, dealer, plan
from tacit.mpc.regression import RegressionTerms
from tacit.mpc.ring import FixedPoint
from tacit.mpc.share import split
from tacit.parties import Ledger
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess

from .at_table import MASKED

KINDS = {"ColumnCount", "CoefficientShare", *MASKED}


def world(n=60, names=("a", "b", "c")):
    """Columns of very different scales, one of them constant."""
    g = torch.Generator().manual_seed(0)
    x = {name: torch.randn(n, 2 + k, generator=g) * 10.0**k + 3 for k, name in enumerate(names)}
    score = sum(((v - 3) / 10.0**k) @ torch.linspace(-1, 1.5, v.shape[1]) for k, v in enumerate(x.values()))
    x["a"][:, 1] = 7.0
    return x, score


def programs(terms, x, y, **other):
    told = {**asdict(terms), "names": list(terms.names)}
    return {
        "helper": functools.partial(regression.helper, terms=told),
        **{
            who: functools.partial(
                regression.holder,
                **{"terms": told, "x": v, "y": y if who == terms.label_at else None} | other.get(who, {}),
            )
            for who, v in x.items()
        },
    }


@pytest.mark.parametrize(
    ("family", "l2", "batch_size"),
    [("logistic", 0.0, None), ("logistic", 0.1, 20), ("linear", 0.0, 20), ("linear", 0.1, None)],
)
def test_coefficients_equal_the_descent_in_float64(family, l2, batch_size):
    x, score = world()
    y = (score > 0).double() if family == "logistic" else 500 + 40 * score.double()
    terms = RegressionTerms(
        ("a", "b", "c"),
        "b",
        "helper",
        60,
        family=family,
        epochs=6,
        batch_size=batch_size,
        momentum=0.5,
        l2=l2,
    )
    ledger = Ledger()
    got = InProcess().run_sync(programs(terms, x, y), ledger=ledger)
    unit = float(y.std()) if family == "linear" else 1.0
    for name, w in regression.ideal(terms, x, y).items():
        mine = w[:-1] if name == "b" else w
        std = x[name].double().std(0, correction=0)
        assert torch.allclose(got[name]["weights"] * std / unit, mine * std / unit, rtol=0, atol=1e-3), name
    assert got["a"]["weights"][1] == 0
    assert got["b"]["intercept"] == pytest.approx(
        float(regression.ideal(terms, x, y)["b"][-1]), abs=5e-3 * unit
    )
    assert {line.kind for line in ledger.seen if line.party == "helper"} == {"ColumnCount"}
    assert {line.kind for line in ledger.seen} == KINDS - (
        {"MaskedValues", "MaskedBits", "MaskedSigns"} if family == "linear" else set()
    ) | ({"LabelExponent"} if family == "linear" else set())


def test_a_table_of_other_length_and_other_settings_are_refused():
    x, score = world(names=("a", "b"))
    terms = RegressionTerms(("a", "b"), "a", "helper", 60, epochs=1)
    with pytest.raises(PartyFailed, match="'b' has 20 rows; expected 60"):
        InProcess().run_sync(programs(terms, x, (score > 0).double(), b={"x": x["b"][:20]}))
    other = {**asdict(replace(terms, l2=0.5)), "names": ["a", "b"]}
    with pytest.raises(PartyFailed, match="have different settings"):
        InProcess().run_sync(programs(terms, x, (score > 0).double(), b={"terms": other}))


def opened(family, x, w, y):
    """The sums over test rows that two parties open, from shares of everything."""
    fixed, names = FixedPoint(), ("a", "b")
    values = [fixed.encode(x), fixed.encode(w), y.long() if family == "logistic" else fixed.encode(y)]
    shares = [split(v, 2, Secret()) for v in values]

    def step(ctx, x, w, y):
        return scoring.evaluate(ctx, family, False, x, w, y)

    def program(rank):
        async def party(me):
            made = await step(
                RingContext(me, rank, names, await Stock.connect(me, rank, 2, "dealer"), fixed),
                *[s[rank] for s in shares],
            )
            return await scoring.open_to(me, names, "a", made, False)

        return party

    async def deal(me):
        await dealer(
            me,
            names,
            plan(
                lambda ctx: step(
                    ctx, *[torch.empty(v.shape, dtype=torch.int64, device="meta") for v in values]
                ),
                fixed=fixed,
            ),
        )

    return InProcess().run_sync({"a": program(0), "b": program(1), "dealer": deal})["a"]


def test_metrics_on_shares_equal_scikit_learns_with_ties():
    """Whole numbers in two columns: a third of the 60 rows share a score with others, and ties count one
    half.
    """
    g = torch.Generator().manual_seed(3)
    x = torch.randint(-2, 3, (60, 2), generator=g).double()
    x = torch.cat([x, torch.ones(60, 1)], 1).double()
    w = torch.tensor([0.8, 0.3, 0.05], dtype=torch.float64)
    score = x @ w
    y = (score + torch.randn(60, generator=g) > 0.2).long()
    assert len(score.round(decimals=6).unique()) < 40
    found = scoring.compute_metrics("logistic", opened("logistic", x, w, y), y, 1.0)
    guess = (score > 0).long()
    assert found["auc"] == pytest.approx(roc_auc_score(y, score.round(decimals=6)), abs=1e-12)
    assert found["loss"] == pytest.approx(log_loss(y, torch.sigmoid(score)), abs=1e-3)
    assert found["accuracy"] == pytest.approx(accuracy_score(y, guess))
    for name, theirs in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        assert found[name] == pytest.approx(theirs(y, guess, average="macro"))


def test_errors_of_numbers_on_shares():
    g = torch.Generator().manual_seed(0)
    x, w, y = (
        torch.randn(40, 3, generator=g).double(),
        torch.tensor([1.0, -0.5, 2.0]).double(),
        torch.randn(40, generator=g).double(),
    )
    off = x @ w - y
    found = scoring.compute_metrics("linear", opened("linear", x, w, y), y, 3.0)
    assert found["loss"] == pytest.approx(float(9 * off.square().mean()), abs=1e-2)
    assert found["mae"] == pytest.approx(float(3 * off.abs().mean()), abs=1e-3)


def test_the_auc_is_left_out_above_its_limit(monkeypatch):
    monkeypatch.setattr(scoring, "AUC_ROWS", 20)
    x, y = torch.ones(21, 1).double(), torch.arange(21) % 2
    assert len(opened("logistic", x, torch.ones(1).double(), y)) == 3
    assert "auc" not in scoring.compute_metrics("logistic", torch.tensor([0, 21, 10]), y, 1.0)
