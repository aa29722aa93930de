"""Split networks in daily use: blank cells, new categories, people only one party has, early stopping."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import data
from tacit.errors import BadData
from tests.cli.shell import said

JOB = """
[split]
epochs = 15
[parties.bank]
file = "bank.csv"
id = "id"
label = "1"
bottom = [8]
[parties.shop]
file = "shop.csv"
id = "id"
bottom = [8]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 200
    whole = pd.DataFrame({"id": [f"{k:03d}" for k in range(n)], "age": rng.normal(50, 9, n)})
    whole["basket"], whole["town"] = rng.normal(0, 1, n), rng.choice(["a", "b"], n)
    whole["1"] = np.where((whole.age - 50) / 9 + 2 * whole.basket > 0, "yes", "no")
    whole[["id", "age", "1"]].to_csv("bank.csv", index=False)
    whole[["id", "basket", "town"]].iloc[50:].to_csv("shop.csv", index=False)
    whole[["id", "age"]].iloc[:60].to_csv("bank-new.csv", index=False)
    Path("job.toml").write_text(JOB)
    return tmp_path


def predict(capsys: pytest.CaptureFixture[str], shop: str, *more: str) -> tuple[int, str]:
    files = ("--file", "bank=bank-new.csv", "--file", f"shop={shop}")
    return said(capsys, "predict", "parts", *files, "--out", "p.csv", "--force", *more)


def test_one_blank_cell_and_one_new_category_do_not_refuse_a_batch(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = said(capsys, "split", "job.toml", "--out", "parts")
    assert code == 0, out
    new = pd.read_csv("shop.csv", dtype={"id": str})
    new.to_csv("plain.csv", index=False)
    assert predict(capsys, "plain.csv")[0] == 0
    plain = pd.read_csv("p.csv", dtype={"id": str}).set_index("id")
    new.loc[new.id == "052", "town"] = "elsewhere"
    new.loc[new.id == "053", "basket"] = np.nan
    new.to_csv("messy.csv", index=False)
    code, out = predict(capsys, "messy.csv")
    assert code == 0, out
    assert (
        "note    messy.csv, column 'town': 1 values were not seen in training, like 'elsewhere'; they count as no"
        in out
    )
    assert "column 'basket': 1 of 150 cells are missing and were replaced by the training rows' mean" in out
    messy = pd.read_csv("p.csv", dtype={"id": str}).set_index("id")
    changed = plain.index[(plain["p(yes)"] - messy["p(yes)"].loc[plain.index]).abs() > 1e-6]
    assert set(changed) <= {"052", "053"}
    assert "053" in changed
    new.drop(columns="town").to_csv("short.csv", index=False)
    code, out = predict(capsys, "short.csv")
    assert code == 2
    assert "short.csv: the recipe needs a column 'town' and the table has none" in out


def test_a_job_file_declares_how_missing_cells_and_categories_are_handled(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = """
categories = {town = ["a", "other"]}
missing = ["basket"]
missing_codes = {basket = [-9999]}
unseen = "other"
impute = "median"
scaling = "robust"
winsorize = "none"
"""
    Path("job.toml").write_text(JOB + rules)
    code, out = said(capsys, "split", "job.toml", "--out", "parts")
    assert code == 0, out
    part = json.loads((place / "parts" / "shop" / "part.json").read_text())
    recipe = part["recipe"]
    assert recipe["categories"] == {"town": ["a", "other"]}
    assert part["columns"] == ["basket", "town=a", "town=other", "basket missing"]
    assert (recipe["impute"], recipe["scaling"]) == ("median", "robust")
    Path("job.toml").write_text(JOB + 'unseen = "refuse"\n')
    assert said(capsys, "split", "job.toml", "--out", "strict")[0] == 0
    new = pd.read_csv("shop.csv", dtype={"id": str})
    new.loc[0, "town"] = "elsewhere"
    new.to_csv("messy.csv", index=False)
    files = ("--file", "bank=bank-new.csv", "--file", "shop=messy.csv")
    code, out = said(capsys, "predict", "strict", *files, "--out", "q.csv")
    assert code == 2
    assert "the column 'town' has the value 'elsewhere', which is not in the recipe" in out
    Path("job.toml").write_text(JOB + 'impute = "mode"\ncategories = "town"\n')
    code, out = said(capsys, "split", "job.toml", "--out", "bad")
    assert code == 2
    assert "impute is 'mode'; it must be" in out or "categories is 'town'; it must be" in out


@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param((), id="in one process"),
        pytest.param(("--processes",), id="in processes", marks=pytest.mark.slow),
    ],
)
def test_a_left_join_scores_people_only_the_label_holder_has(
    place: Path, capsys: pytest.CaptureFixture[str], runtime: tuple[str, ...]
) -> None:
    Path("job.toml").write_text(JOB.replace("[split]", '[split]\njoin = "left"'))
    code, out = said(capsys, "split", "job.toml", "--out", "parts", *runtime)
    assert code == 0, out
    assert "rows    200, 150 of them shared" in out
    code, out = predict(capsys, "shop.csv", *runtime)
    assert code == 0, out
    assert len(pd.read_csv("p.csv")) == 60  # 10 of them are in both files
    one = pd.read_csv("bank-new.csv", dtype=str).iloc[:1]
    one.to_csv("bank-new.csv", index=False)
    before = pd.read_csv("p.csv", dtype={"id": str}).set_index("id").loc["000", "p(yes)"]
    assert predict(capsys, "shop.csv", *runtime)[0] == 0
    assert pd.read_csv("p.csv")["p(yes)"].tolist() == [pytest.approx(before, abs=1e-6)]
    Path("job.toml").write_text(
        JOB.replace("[split]", '[split]\njoin = "left"') + "[parties.third]\nmiddle = [4]\n"
    )
    assert "join = 'left' needs exactly two parties" in said(capsys, "split", "job.toml", "--out", "x")[1]


# --- early stopping and convergence -------------------------------------------------------------------------


def numbers(n: int = 300) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    return {"a": x[:, :3], "b": x[:, 3:]}, (x @ torch.tensor([1.0, -1, 2, 0, 1, -2]) > 0).long()


def test_training_stops_early_and_keeps_the_best_epoch_at_every_party() -> None:
    """The kept weights have the lowest loss on the validation rows, computed here in one place."""
    x, y = numbers()
    run = tacit.splitnn(x, {"a": y}, patience=3, lr=0.1, seed=2)
    losses = [row["validation_loss"] for row in run.history]
    assert 3 < len(losses) < 100
    best = int(np.argmin(losses))
    assert len(losses) - 1 - best <= 3 + 2  # smaller improvements than 0.1% do not count
    terms = run.shares["a"].terms
    train, _ = data.vertical.split_rows(300, 0.2, 2)
    held = train[terms.validation()]
    assert len(held) == 36
    chances = run.predict({name: v[held] for name, v in x.items()})
    loss = float(-chances[range(36), y[held]].log().mean())
    assert loss == pytest.approx(run.metrics["validation_loss"], rel=1e-4)
    assert run.metrics["validation_loss"] <= min(losses) * 1.002
    kinds = [line.kind for line in run.ledger.seen if line.party == "b"]
    assert "EpochEnd" in kinds


def test_validation_rows_are_in_no_batch_and_all_other_rows_are() -> None:
    x, y = numbers()
    run = tacit.splitnn(x, {"a": y}, epochs=1)
    terms = run.shares["b"].terms
    rows = torch.cat(terms.batches(3, 0))
    assert not torch.isin(terms.validation(), rows).any()
    assert sorted([*rows.tolist(), *terms.validation().tolist()]) == list(range(240))


def test_a_run_that_ends_too_early_says_so() -> None:
    x, y = numbers()
    short = tacit.splitnn(x, {"a": y}, epochs=5, optimizer="sgd")
    assert any("was still falling when training ended after 5 epochs" in note for note in short.notes)
    assert not any("still falling" in note for note in tacit.splitnn(x, {"a": y}).notes)


def test_the_default_settings_reach_logistic_regression_on_pooled_columns() -> None:
    """On wine, 10 epochs of SGD (the defaults before) had an accuracy of 0.78."""
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0)).float()
    run = tacit.splitnn({"a": x[:, :6], "b": x[:, 6:]}, {"a": y})
    assert run.metrics["accuracy"] > 0.9


def test_threads_of_torch_are_few_while_small_networks_train_and_as_before_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, calls = torch.get_num_threads(), []
    setter = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda n: (calls.append(n), setter(n)))
    x, y = numbers(60)
    tacit.splitnn(x, {"a": y}, epochs=1)
    assert calls[0] == 1
    assert torch.get_num_threads() == before


# --- audit of tables ----------------------------------------------------------------------------------------


def test_an_audit_takes_data_frames_tables_and_encoded_numbers(place: Path) -> None:
    bank, shop = (pd.read_csv(f"{n}.csv", dtype={"id": str}) for n in ("bank", "shop"))
    bank = bank.iloc[50:].reset_index(drop=True)
    tables: dict[str, Any] = {
        "bank": data.from_frame(bank, "1", id="id"),
        "shop": data.from_frame(shop, id="id"),
    }
    run = tacit.splitnn(tables, epochs=2)
    frames = {"bank": bank, "shop": shop}
    audit = run.audit(frames, bank["1"])
    assert set(audit.measures) == {"shop"}
    assert set(audit.labels) == {"shop"}
    encoded = {name: run.shares[name].recipe.transform(frames[name]) for name in frames}  # type: ignore[union-attr]
    assert run.audit(encoded, (bank["1"] == "yes").astype(int)).measures == audit.measures
    with pytest.raises(BadData, match="audit: the rows of 'shop': the recipe needs a column 'town'"):
        run.audit({"bank": bank, "shop": shop.drop(columns="town")})
    with pytest.raises(
        BadData, match=r"audit: 150 rows of 'bank', 149 rows of 'shop'; they must be of the same"
    ):
        run.audit({"bank": bank, "shop": shop.iloc[1:]})
    with pytest.raises(BadData, match=r"the rows of 'shop' contain non-numeric values\. Give a data frame"):
        run.audit({"bank": bank, "shop": shop.to_numpy()})
    with pytest.raises(BadData, match=r"have shape \(150, 1\); expected \(rows, 3 columns\)"):
        run.audit({"bank": bank, "shop": np.zeros((150, 1))})
    with pytest.raises(BadData, match="the label 'maybe' is not among those of training: no, yes"):
        run.audit(frames, ["maybe"] * 150)


def test_a_split_regression_predicts_in_the_units_of_the_label(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank, shop = (pd.read_csv(f, dtype={"id": str}).set_index("id") for f in ("bank.csv", "shop.csv"))
    costs = 5000 + 900 * ((bank.age - 50) / 9 + 2 * shop.basket.reindex(bank.index).fillna(0.0))
    bank.assign(**{"1": costs.round(2)}).reset_index().to_csv("bank.csv", index=False)
    Path("job.toml").write_text(JOB.replace("epochs = 15", "epochs = 60\nregression = true"))
    code, out = said(capsys, "split", "job.toml", "--out", "parts")
    assert code == 0, out
    assert json.loads((place / "parts" / "bank" / "part.json").read_text())["target"][0] > 3000
    assert predict(capsys, "shop.csv")[0] == 0
    scored = pd.read_csv("p.csv", dtype={"id": str}).set_index("id")
    assert list(scored.columns) == ["prediction"]
    assert np.corrcoef(scored["prediction"], costs.loc[scored.index])[0, 1] > 0.8
    assert (scored["prediction"] - costs.loc[scored.index]).abs().mean() < 0.5 * costs.std()
