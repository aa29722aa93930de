"""Weight of evidence with noise, and over columns of several parties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.boost.private_woe_program import PrivateWoeProgram
from tacit.boost.vertical_bins import OwnBins
from tacit.errors import BadData, BadParameter, PartyFailed
from tacit.jobs.vertical import woe_programs as vertical_woe
from tacit.parties import decode
from tacit.runtimes import InProcess
from tacit.stats import noise_share
from tests.security.test_mpc import looks_uniform
from tests.security.test_regress_with_errors_attacks import Lying
from tests.security.test_regression_attacks import Recorder

from .tables import divide
from .test_woe import bins_of, loans

DECLARED: dict[str, Any] = {
    "label": "paid",
    "labels": ["no", "yes"],
    "event": "no",
    "bins": 5,
    "bounds": {"age": (18, 90), "income": (0, 200_000)},
    "categories": {"job": list("abcdef")},
}


# with noise -------------------------------------------------------------------------------------------------


def test_noisy_counts_are_those_of_the_bins_up_to_the_stated_noise():
    """Each count is within 7 standard deviations and half a row, except with probability 1e-11 for all of them; bins that
    joined several cells have the noise of each.
    """
    table = loans(20_000)
    found = tacit.boost.woe(divide(table, 3), epsilon=1.0, **DECLARED)
    event = table["paid"] == "no"
    for column in found.columns:
        at = bins_of(table[column.name], column)
        cells = 1 + sum(len(c.place) for c in found.columns)
        block = noise_share.Block(2 * len(column.place), 1.0, 0.8 / 3)
        deviation = math.sqrt(noise_share.total_variance(1.0, 1e-6, 3, block))
        for k, b in enumerate(column.bins):
            joined = cells if "," in b.name else 1
            bound = 7 * deviation * math.sqrt(joined) + 0.5 * joined
            assert abs(b.events - int((event & (at == k)).sum())) <= bound
            assert abs(b.others - int((~event & (at == k)).sum())) <= bound
    assert [(s.epsilon, s.delta, s.unit) for s in found.ledger.spent] == [(1.0, 1e-6, "row")]
    assert "noisy sums over all parties only" in found.ledger.stamps[0]
    plain = tacit.boost.woe(divide(table, 3), label="paid", event="no", bins=5)
    assert list(found.iv().index) == list(plain.iv().index)


def test_what_is_opened_has_noise_and_one_row_changes_each_column_by_one():
    table = loans(200)
    terms = tacit.boost.woe  # the program is made as the verb makes it
    assert callable(terms)
    from tacit.config.woe import WoeConfig
    from tacit.jobs.boost.horizontal import make_terms
    from tacit.jobs.boost.woe import _for_terms, _program

    config = WoeConfig(epsilon=1.0, **DECLARED)
    program = _program(config, make_terms(_for_terms(config), {"a": table}), 1)
    assert isinstance(program, PrivateWoeProgram)
    steps = program.coordinate()
    down = next(steps)
    for step in range(2):
        without = table.drop(index=5).reset_index(drop=True)
        exact, less = (program.exact(step, t, down) for t in (table, without))
        for part, other, block in zip(exact, less, program.blocks(step, program._read(step, down))):
            assert np.abs(part - other).sum() <= 1
            assert len(part) == block.length
        for odd in ("perhaps", None):  # not declared, and no reason to refuse: that would tell of the row
            more = pd.concat([table, table.iloc[[5]].assign(paid=odd)], ignore_index=True)
            again = program.exact(step, more, down)
            assert all((a == b).all() for a, b in zip(again, exact))
        noisy = [program.local(step, table, down) for _ in range(2)]
        assert (noisy[0] != noisy[1]).mean() > 0.99
        if step == 0:
            down = steps.send(noisy[0])
    shares = [b.share for step in range(2) for b in program.blocks(step, program._read(step, down))]
    assert sum(shares) == pytest.approx(1.0)


def test_a_scorecard_of_noisy_bins_needs_noise_and_adds_its_cost():
    table = loans(8000)
    found = tacit.boost.woe(divide(table, 3), epsilon=2.0, **DECLARED)
    with pytest.raises(
        BadParameter, match="epsilon is None; it must be a number above 0, as the bins have noise"
    ):
        found.scorecard()
    card = found.scorecard(epsilon=3.0)
    assert sorted(s.epsilon for s in card.ledger.spent) == [2.0, 3.0]
    plain = tacit.boost.woe(divide(table, 3), label="paid", event="no", bins=5).scorecard()
    # 0.953 with a deviation of 0.002 over the noise
    assert np.corrcoef(card.score(table), plain.score(table))[0, 1] > 0.9
    with pytest.raises(BadParameter, match="it must be None for bins without"):
        tacit.boost.woe(divide(table, 3), label="paid", event="no").scorecard(epsilon=1.0)


def test_all_that_is_not_declared_is_refused_at_once():
    with pytest.raises(BadParameter) as caught:
        tacit.boost.woe(divide(loans(300), 2), label="paid", epsilon=1.0, bounds={"age": (90, 18)})
    for text in (
        "bounds of 'age' is (90, 18)",
        "the range of 'income' too",
        "the levels of 'job' too",
        "the two outcomes",
    ):
        assert text in str(caught.value)
    with pytest.raises(BadParameter, match="None without epsilon"):
        tacit.boost.woe(divide(loans(300), 2), label="paid", bounds={"age": (0, 9)})
    with pytest.raises(BadParameter, match="epsilon"):
        tacit.boost.woe(divide(loans(300), 2), epsilon=-1.0, **DECLARED)


# over columns of several parties ----------------------------------------------------------------------------


def parties(n: int = 1500) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    table = loans(n).assign(id=[f"p{k}" for k in range(n)])
    # few missing values and rare levels join the largest cell, not the largest bin as pooled ones
    table["age"] = table["age"].fillna(40.0)
    table["job"] = table["job"].replace("f", "e")
    bank = table[["id", "age", "paid"]].iloc[: n - 100]
    telecom = table[["id", "income"]].sample(frac=1, random_state=0)
    shop = table[["id", "job"]].iloc[50:]
    return {"bank": bank, "telecom": telecom, "shop": shop}, table.iloc[50 : n - 100]


@pytest.mark.parametrize("helper", ["helper", None])
def test_bins_of_three_parties_are_those_of_the_pooled_rows(helper):
    split, pooled = parties()
    found = tacit.boost.woe(split, on="id", label="paid", event="no", bins=4, helper=helper)
    plain = tacit.boost.woe({"all": pooled.drop(columns="id")}, label="paid", event="no", bins=4)
    assert found.owners == {"age": "bank", "income": "telecom", "job": "shop"}
    assert found.totals == plain.totals
    by_name = {c.name: c for c in plain.columns}
    for column in found.columns:
        assert column.bins == by_name[column.name].bins
        assert column.feature == by_name[column.name].feature
    assert found.transform(pooled).to_numpy() == pytest.approx(
        plain.transform(pooled)[found.transform(pooled).columns].to_numpy()
    )
    assert "each anonymous cell" in found.ledger.stamps[-1]


def test_rare_levels_and_few_missing_values_join_a_cell_with_many_rows():
    table = loans(1500).assign(id=range(1500))
    split = {"bank": table[["id", "age", "paid"]], "shop": table[["id", "job"]]}
    found = tacit.boost.woe(split, on="id", label="paid", event="no", bins=6)
    names = [b.name for c in found.columns for b in c.bins]
    assert any(n.endswith("), missing") for n in names)
    assert any(n.endswith(", other") for n in names)
    for column in found.columns:
        at = bins_of(table[column.name], column)
        assert [b.rows for b in column.bins] == [int((at == k).sum()) for k in range(len(column.bins))]
        assert min(min(b.events, b.others) for b in column.bins) >= 5


def test_a_scorecard_over_several_parties_is_that_of_the_pooled_rows(tmp_path):
    split, pooled = parties()
    card = tacit.boost.woe(split, on="id", label="paid", event="no", bins=4).scorecard()
    plain = tacit.boost.woe({"all": pooled.drop(columns="id")}, label="paid", event="no", bins=4).scorecard()
    assert card.card.coefficients == pytest.approx(plain.card.coefficients, abs=1e-4)
    assert (card.score(pooled) - plain.score(pooled)).abs().max() <= 1
    assert (
        tacit.boost.load_scorecard(card.save(tmp_path / "card.json")).score(pooled).equals(card.score(pooled))
    )
    assert list(card.coefficients.index) == ["Intercept", "age", "income", "job"]


def programs(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y = pd.DataFrame({"x": rng.normal(size=300)}), (rng.random(300) < 0.3).astype(np.int64)
    own = {"bank": OwnBins.fit(x[[]], [], 10, 20, "bank"), "shop": OwnBins.fit(x, [], 10, 20, "shop")}
    settings = {"bins": 4, "monotone": True, "min_share": 0.05, "min_rows": 20, "min_cell": 5}
    common = {"names": ["bank", "shop"], "helper": "helper", "settings": settings}
    rows = {
        n: {
            "codes": torch.from_numpy(b.encode(x)),
            "bins": b.to_dict(),
            "seen": vertical_woe.cells_seen(b, x),
        }
        for n, b in own.items()
    }

    async def bank(me: Any) -> Any:
        me = Lying(me, changes["bank"]) if "bank" in changes else me
        return await vertical_woe.hold_label(me, y=torch.from_numpy(y), **common, **rows["bank"])

    async def shop(me: Any) -> Any:
        me = Lying(me, changes["shop"]) if "shop" in changes else me
        return await vertical_woe.hold_columns(me, label_at="bank", **common, **rows["shop"])

    async def helper(me: Any) -> Any:
        await vertical_woe.help_counts(me, ["bank", "shop"], "bank", settings, 300)

    return {"bank": bank, "shop": shop, "helper": helper}


def test_messages_are_uniform_and_a_second_sum_is_refused():
    """`looks_uniform` states its false-alarm probability."""
    recorder = Recorder()
    recorder.run_sync(programs())
    sent = [(by, to, decode(frame)) for by, to, _, frame in recorder.tap.frames]
    for kind in ("MaskedCells", "MaskedVectors", "SumShares"):
        values = [m.values for _, _, m in sent if m.kind == kind]
        assert values
        assert kind == "SumShares" or looks_uniform(values)
    assert {m.kind for by, to, m in sent if (by, to) == ("bank", "shop")} == {
        "MaskedVectors",
        "TreeShapes",
        "WoeCounts",
    }

    def ask_twice(message: Any) -> Any:
        if message.kind == "MaskedVectors":
            return type(message)(torch.cat([message.values, message.values]))
        return message

    with pytest.raises(PartyFailed, match="asked for 2 sums; the agreed trees need at most 1"):
        InProcess().run_sync(programs(bank=ask_twice))


def test_false_counts_and_false_sums_are_refused():
    def change_counts(message: Any) -> Any:
        return type(message)(["{}"], message.totals) if message.kind == "WoeCounts" else message

    def change_sums(message: Any) -> Any:
        return type(message)(message.values + 1) if message.kind == "SumShares" else message

    with pytest.raises(PartyFailed, match="'bank' sent no bins of 'x'"):
        InProcess().run_sync(programs(bank=change_counts))
    with pytest.raises(PartyFailed, match="do not add up to all rows"):
        InProcess().run_sync(programs(shop=change_sums))


def test_options_and_tables_that_do_not_fit_are_refused():
    split, _ = parties(400)
    with pytest.raises(BadParameter, match="left out for vertical parties without epsilon"):
        tacit.boost.woe(split, on="id", label="paid", cuts={"age": [40]})
    with pytest.raises(BadParameter, match="guard"):
        tacit.boost.woe(split, on="id", label="paid", guard=tacit.guard.SecAgg())
    with pytest.raises(BadData, match="the event is 'maybe'"):
        tacit.boost.woe(split, on="id", label="paid", event="maybe")
    with pytest.raises(BadData, match="at least 500 of each are needed"):
        tacit.boost.woe(split, on="id", label="paid", min_cell=500)
    twice = {**split, "shop": split["shop"].rename(columns={"job": "income"})}
    with pytest.raises(BadData, match="several parties have a column 'income'"):
        tacit.boost.woe(twice, on="id", label="paid")
    with pytest.raises(BadParameter, match="helper"):
        tacit.boost.woe({"a": loans(300)}, label="paid", helper=None)
