"""Weight of evidence over columns of several parties with an ε, and as a job file between parties."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.boost.bins import Feature
from tacit.boost.bounded_cells import CELLS
from tacit.boost.count_noise import TOTAL_SHARE, CountNoise
from tacit.boost.declared_bins import DeclaredColumns
from tacit.errors import BadData, BadJob, BadParameter, PartyFailed, QueryRefused
from tacit.jobs.boost.query import BoostPolicy
from tacit.jobs.stats.policy import StatsPolicy
from tacit.jobs.vertical import woe_deployed, woe_programs
from tacit.runtimes import InProcess
from tests.cli.shell import answer, refused
from tests.security.test_regress_with_errors_attacks import Lying

from .test_woe import bins_of, loans

SHARED: dict[str, Any] = {
    "on": "id",
    "label": "paid",
    "labels": ["no", "yes"],
    "event": "no",
    "bins": 4,
    "bounds": {"income": (0, 200_000)},
    "cuts": {"age": (30, 45, 60)},
    "categories": {"job": list("abcdef")},
}


def parties(n: int) -> dict[str, pd.DataFrame]:
    table = loans(n).assign(id=[f"p{k}" for k in range(n)])
    return {"bank": table[["id", "age", "paid"]], "shop": table[["id", "income", "job"]].sample(frac=1)}


@pytest.mark.parametrize("helper", ["helper", None])
def test_noisy_counts_are_those_of_the_bins_up_to_the_stated_noise(helper):
    """A count of `cells` cells is within 7 standard deviations of two parties' noise, and what clipping at 0
    adds, except with a probability below 1e-11 for all counts.
    """
    split = parties(4000)
    found = tacit.boost.woe(split, helper=helper, epsilon=4.0, **SHARED)
    noise = CountNoise(4.0, 1e-6, 3, 1)
    deviation = math.sqrt(2 * 1.001 * noise.variance(noise.cell_share))
    table = split["bank"].merge(split["shop"], on="id")
    event = table["paid"] == "no"
    for column in found.columns:
        at = bins_of(table[column.name], column)
        for k, b in enumerate(column.bins):
            cells = len(column.place)
            for shown, rows in ((b.events, event & (at == k)), (b.others, ~event & (at == k))):
                assert abs(shown - int(rows.sum())) <= 7 * deviation * cells
    assert [(s.epsilon, s.delta, s.unit) for s in found.ledger.spent] == [(4.0, 1e-6, "row")]
    assert "How many people are shared, and who, has no noise" in found.ledger.stamps[-1]
    with pytest.raises(BadParameter, match="the bins have an ε"):
        found.scorecard()


def test_the_shares_of_all_releases_are_the_budget():
    """ρ of cuts, totals and cells, each Δ² / 2σ² with Δ² = 2, is ρ of (ε, δ)."""
    for columns, searched in ((3, 1), (5, 0), (1, 1)):
        noise = CountNoise(1.0, 1e-6, columns, searched)
        costs = [noise.cell_share] * columns + [noise.bin_share] * searched + [TOTAL_SHARE]
        assert sum(1 / noise.variance(c) for c in costs) == pytest.approx(noise.rho)


def test_one_person_changes_two_counts_of_a_column_and_nothing_that_is_refused():
    """Every value that a person may have gives a cell; what others see of a column's bins has noise."""
    declared = DeclaredColumns({"x": (0.0, 10.0)}, {"z": (1.0, 2.0)}, {"c": ("a", "1")})
    noise = CountNoise(1.0, 1e-6, 3, 1)
    rows = pd.DataFrame({"x": [1.0] * 50, "z": [1.5] * 50, "c": ["a"] * 50}, dtype=object)
    odd = ["text", np.inf, -np.inf, None, 1e300, -5, True, "3"]
    for value in odd:
        other = rows.copy()
        other.loc[7, ["x", "z", "c"]] = [value] * 3
        before, after = (declared.take(t, "shop") for t in (rows, other))
        for k, feature in enumerate(
            (Feature("x", (2.0, 5.0)), Feature("z", (1.0, 2.0)), Feature("c", levels=("a", "1")))
        ):
            cells = [np.bincount(feature.encode(t), minlength=feature.width + 1) for t in (before, after)]
            assert np.abs(cells[0] - cells[1]).sum() in (0, 2), (k, value)
    source = np.random.default_rng(0).bytes
    fitted = [declared.fit(before, 4, noise, source) for _ in range(2)]
    assert fitted[0].bins.names == ["x", "z", "c"]
    assert fitted[0].bins.features[0] != fitted[1].bins.features[0]  # its cuts have noise
    drawn = noise.draw(noise.bin_share, (CELLS,), source)
    assert len(set(drawn.tolist())) > 10


def test_all_that_is_not_declared_is_refused_at_once():
    split = parties(300)
    undeclared = {**SHARED, "bounds": None, "categories": ["job"], "cuts": None}
    with pytest.raises(BadData) as caught:
        tacit.boost.woe(split, epsilon=1.0, **undeclared)
    for text in (
        "the levels of 'job' are not declared",
        "'age', 'income' must have bounds, cuts or levels",
    ):
        assert text in str(caught.value)
    with pytest.raises(BadParameter, match="labels is None; it must be the two outcomes, with epsilon"):
        tacit.boost.woe(split, epsilon=1.0, **{**SHARED, "labels": None})
    chosen = {**SHARED, "bounds": None, "features": ["age", "job"]}
    some = tacit.boost.woe(split, epsilon=50.0, **chosen)
    assert [c.name for c in some.columns] == ["age", "job"]
    with pytest.raises(BadParameter, match="a column of 'shop', too: or leave that party out"):
        tacit.boost.woe(split, epsilon=50.0, **{**chosen, "features": ["age"], "categories": None})


def programs(columns: int, declared: int, change: Any = None) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    y = (rng.random(300) < 0.4).astype(np.int64)
    table = pd.DataFrame({f"x{k}": rng.random(300) for k in range(columns)})
    known = DeclaredColumns(cuts={f"x{k}": (0.5,) for k in range(columns)})
    settings = {"bins": 4, "monotone": True, "min_share": 0.05, "min_rows": 1, "min_cell": 1}
    settings |= {"epsilon": 5.0, "delta": 1e-6, "columns": declared, "searched": 0}
    noise = CountNoise.read(settings)
    assert noise is not None
    common = {"names": ["bank", "shop"], "helper": "helper", "settings": settings}

    def arguments(of: DeclaredColumns) -> dict[str, Any]:
        own = of.fit(table, 4, noise, rng.bytes)
        seen = [[True] * (f.width + 1) for f in own.bins.features]
        codes = own.encode(table) if own.bins.features else np.zeros((300, 0), np.uint8)
        return {"codes": torch.from_numpy(codes), "bins": own.to_dict(), "seen": seen}

    async def bank(me: Any) -> Any:
        return await woe_programs.hold_label(
            Lying(me, change) if change else me,
            y=torch.from_numpy(y),
            declared={"bank": 0, "shop": declared},
            **common,
            **arguments(DeclaredColumns()),
        )

    async def shop(me: Any) -> Any:
        return await woe_programs.hold_columns(me, label_at="bank", **common, **arguments(known))

    async def helper(me: Any) -> Any:
        await woe_programs.help_counts(me, ["bank", "shop"], "bank", settings, 300)

    return {"bank": bank, "shop": shop, "helper": helper}


def test_a_party_with_more_columns_than_the_noise_is_for_learns_nothing():
    found = InProcess().run_sync(programs(2, 2))
    assert len(found["shop"]["columns"]) == 2
    with pytest.raises(PartyFailed, match="'shop' has 3 columns, and declared 2"):
        InProcess().run_sync(programs(3, 2))


def test_what_is_opened_differs_in_each_run():
    """The label holder sees other counts in a second run over the same rows: each of 12 counts is equal with
    a probability below 0.15, all of them below 1e-9.
    """
    seen = []
    before = woe_programs.unpack

    def watched(words: np.ndarray) -> np.ndarray:
        seen.append(before(words))
        return seen[-1]

    try:
        woe_programs.unpack = watched
        for _ in range(2):
            InProcess().run_sync(programs(2, 2))
    finally:
        woe_programs.unpack = before
    assert (seen[0] != seen[1]).any()


def test_false_totals_and_counts_are_refused():
    def no_events(message: Any) -> Any:
        return type(message)(message.columns, [300, 0]) if message.kind == "WoeCounts" else message

    def negative(message: Any) -> Any:
        if message.kind != "WoeCounts":
            return message
        columns = [json.loads(c) for c in message.columns]
        columns[0]["bins"][0]["events"] = -3
        return type(message)([json.dumps(c) for c in columns], message.totals)

    with pytest.raises(PartyFailed, match=r"'bank' sent \[300, 0\] others and events"):
        InProcess().run_sync(programs(2, 2, no_events))
    with pytest.raises(PartyFailed, match="'bank' sent no bins of 'x"):
        InProcess().run_sync(programs(2, 2, negative))


# as a job file ----------------------------------------------------------------------------------------------

JOB = """
[stats]
event = "no"
bins = 4
{stats}
[parties.bank]
file = "bank.csv"
id = "id"
label = "paid"
{bank}
[parties.shop]
file = "shop.csv"
id = "id"
{shop}
"""
HELPER = "[parties.notary]\nhelper = true\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, frame in parties(600).items():
        frame.to_csv(f"{name}.csv", index=False)
    return tmp_path


def write(text: str = HELPER, stats: str = "", bank: str = "", shop: str = "") -> None:
    Path("job.toml").write_text(JOB.format(stats=stats, bank=bank, shop=shop) + text)


def test_a_job_gives_each_party_the_bins_of_its_columns(place, capsys):
    write(shop='categories = ["job"]')
    value = answer(capsys, "stats", "woe", "job.toml", "--out", "parts")
    frames = {n: pd.read_csv(f"{n}.csv") for n in ("bank", "shop")}
    twin = tacit.boost.woe(frames, on="id", label="paid", event="no", bins=4, categories=["job"])
    assert value["rows"] == 600
    assert value["iv"] == {f"{twin.owners[c.name]}.{c.name}": c.iv for c in twin.columns}
    bank, shop = (json.loads(Path("parts", n, "part.json").read_text()) for n in ("bank", "shop"))
    assert [c["name"] for c in bank["columns"]] == ["age"]
    assert [c["name"] for c in shop["columns"]] == ["income", "job"]
    woe = pd.read_csv("parts/shop/woe.csv")
    assert list(woe) == ["id", "income", "job"]
    rows = frames["shop"].merge(frames["bank"], on="id").set_index("id").loc[woe["id"]]
    assert woe["income"].to_numpy() == pytest.approx(twin.transform(rows)["income"].to_numpy())
    assert list(pd.read_csv("parts/bank/woe.csv")) == ["id", "paid", "age"]
    text = refused(capsys, "stats", "woe", "job.toml", "--out", "parts")
    assert "already contains a party's part" in text


def test_a_private_job_reads_declared_columns_only_and_cells_as_they_are(place, capsys):
    """A column that is not declared is not read; one person's text in a number changes that person's cell."""
    frame = pd.read_csv("shop.csv", dtype=str)
    frame.loc[3, "income"] = "unknown"
    frame.assign(secret="x").to_csv("shop.csv", index=False)
    write(
        text="",
        stats='labels = ["no", "yes"]\nepsilon = 20.0',
        bank="bounds = { age = [18, 90] }",
        shop='drop = ["secret"]\nbounds = { income = [0, 200000] }\n'
        'categories = { job = ["a", "b", "c", "d", "e", "f"] }',
    )
    value = answer(capsys, "stats", "woe", "job.toml", "--out", "parts")
    assert set(value["iv"]) == {"bank.age", "shop.income", "shop.job"}
    part = json.loads(Path("parts/shop/part.json").read_text())
    assert part["epsilon"] == 20.0
    ledger = json.loads(Path("parts/shop/ledger.json").read_text())
    assert [s["epsilon"] for s in ledger["spent"]] == [20.0]
    assert "secret" not in Path("parts/shop/woe.csv").read_text()


def test_bad_jobs_are_refused_with_all_problems(place, capsys):
    write(
        stats='labels = ["no", "yes"]\nepsilon = 1.0',
        bank="bounds = { age = [90, 18] }",
        shop='categories = ["job"]',
    )
    text = refused(capsys, "stats", "woe", "job.toml", "--out", "parts")
    assert "parties.bank: bounds of 'age' must be [low, high]" in text
    assert "parties.shop: the levels of 'job' are not declared" in text
    cases = {
        "epsilon = 1.0": "labels is None; it must be the two outcomes, with epsilon",
        "trees = 3": "it has no key 'trees'",
    }
    for stats, why in cases.items():
        write(stats=stats)
        assert why in refused(capsys, "stats", "woe", "job.toml", "--out", "parts")
    write(bank="cuts = { age = [40] }")
    with pytest.raises(BadJob, match="cuts is for jobs with epsilon"):
        woe_deployed.read("job.toml")
    write(stats='labels = ["no", "yes"]\nepsilon = 1.0', bank="bounds = { age = [18, 90] }", shop="")
    text = refused(capsys, "stats", "woe", "job.toml", "--out", "parts")
    assert "'shop'" in text  # which columns are not declared, only the shop is told
    write()
    assert "Give --out" in refused(capsys, "stats", "woe", "job.toml")
    assert "--set and --state" in refused(
        capsys, "stats", "woe", "job.toml", "--out", "p", "--set", "stats.bins=3"
    )
    assert not Path("parts").exists() or not list(Path("parts").rglob("part.json"))


def test_policies_are_checked_before_anything_is_sent():
    settings = {"min_rows": 5, "min_cell": 2, "epsilon": None}
    boost, stats = BoostPolicy(min_rows=20, backends=("he",)), StatsPolicy(only_private=True)
    with pytest.raises(QueryRefused) as caught:
        woe_deployed.check_policy(boost, stats, settings, "notary")
    for text in ("only_private", "min_rows is 5, and this party requires 20", "'shares'"):
        assert text in str(caught.value)
    with pytest.raises(QueryRefused, match="min_cell = 2"):
        woe_deployed.check_policy(BoostPolicy(), StatsPolicy(min_count=5), settings, "")
    woe_deployed.check_policy(BoostPolicy(), StatsPolicy(only_private=True), {**settings, "epsilon": 1.0}, "")
