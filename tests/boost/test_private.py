"""Boosting with differential privacy: what one row changes, the noise, the account."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost
from sklearn.metrics import roc_auc_score

import tacit
from tacit.boost.private_program import SCALE, PrivateBoostProgram
from tacit.config.boost import BoostConfig
from tacit.errors import BadData, BadParameter
from tacit.jobs.boost.horizontal import make_private, make_terms
from tacit.stats import noise_share

from .tables import COLUMNS, divide, make_table

LEVELS = {"c": list("xyzuvw")}
BOUNDS = {"a": (-3, 3), "b": (0, 40), "d": (0, 5)}
BINARY = {"label": "yes", "labels": ["no", "yes"], "bounds": BOUNDS}
NUMBER = {"label": "size", "objective": "regression", "bounds": {**BOUNDS, "size": (-4, 9)}}


def make(table: pd.DataFrame, **options) -> PrivateBoostProgram:
    options = {"features": list(COLUMNS), "categories": LEVELS, "epsilon": 1.0, "trees": 6, **options}
    config = BoostConfig(**options)
    return make_private(config, make_terms(config, {"p": table}), 3)


@pytest.mark.parametrize("options", [BINARY, NUMBER], ids=["binary", "regression"])
def test_one_row_changes_every_release_by_at_most_its_sensitivity(options):
    """Over all steps, for rows added at random and for rows far outside the declared bounds."""
    rng = np.random.default_rng(0)
    table = make_table(300)
    program = make(table, **options)
    extreme = table.iloc[:1].assign(a=1e9, b=-1000, d=np.nan, c="never seen", size=1e6)
    others = pd.concat([make_table(12, seed=5), extreme], ignore_index=True)
    steps = program.coordinate()
    down, largest = next(steps), {}
    for step in range(program.max_steps):
        before = program.exact(step, table.copy(), down)
        for k in range(len(others)):
            after = program.exact(step, pd.concat([table, others.iloc[[k]]], ignore_index=True), down)
            for block, (x, y) in enumerate(zip(before, after)):
                change = float(np.linalg.norm(y - x))
                assert change <= program.blocks(step)[block].sensitivity + 1e-9
                largest[block, step > 0] = max(largest.get((block, step > 0), 0.0), change)
        total = np.concatenate(before) * SCALE + rng.normal(size=program.length(step, down)) * SCALE
        if step + 1 < program.max_steps:
            down = steps.send(np.rint(total).astype(np.int64))
    # the bounds are not idle: some row changes every kind of release
    assert all(change > 0 for change in largest.values())


@pytest.mark.parametrize("options", [BINARY, NUMBER], ids=["binary", "regression"])
def test_a_row_without_a_declared_label_is_no_reason_to_refuse(options):
    """A refusal has no noise. Nor may a coordinator send other classes than those that were declared."""
    table = make_table(100)
    program = make(table, **options)
    steps = program.coordinate()
    down = next(steps)
    for step in range(2):
        before = program.exact(step, table, down)
        odd = table.iloc[:1].assign(**{options["label"]: np.nan if options is NUMBER else "perhaps"})
        after = program.exact(step, pd.concat([table, odd], ignore_index=True), down)
        assert all((x == y).all() for x, y in zip(before, after))
        if step == 0:
            down = steps.send(np.rint(np.concatenate(before) * SCALE).astype(np.int64))
    text = bytes(down["agreed"].tolist()).decode()
    assert json.loads(text)["labels"] == options.get("labels", [])
    lie = json.dumps({**json.loads(text), "labels": ["no", "maybe"], "weights": [1.0, 1.0]}).encode()
    with pytest.raises(BadData, match="sent other classes"):
        program.exact(1, table, {**down, "agreed": torch.tensor(list(lie), dtype=torch.uint8)})


def test_the_shares_of_all_releases_are_the_budget():
    program = make(make_table(50), **BINARY)
    spent = sum(block.share for step in range(program.max_steps) for block in program.blocks(step))
    assert spent == pytest.approx(1.0)


def test_every_answer_has_the_noise_that_its_share_needs():
    """The sample variance of 4,000 draws; a false alarm has a probability below 1e-8 (6 standard errors)."""
    table = make_table(50)
    program = make(table, **BINARY)
    block = program.blocks(0)[0]
    exact = program.exact(0, table, {})[0]
    draws = np.concatenate(
        [program.local(0, table, {})[: block.length] / SCALE - exact for _ in range(4000 // block.length + 1)]
    )
    expected = noise_share.total_variance(1.0, 1e-6, 3, block) / 3
    assert abs(draws.var() / expected - 1) < 6 * np.sqrt(2 / len(draws))


def test_a_private_model_learns_and_its_ledger_has_its_epsilon(tmp_path):
    table = make_table(8000)
    options = {"features": list(COLUMNS), "categories": LEVELS, **BINARY}
    model = tacit.boost.train(divide(table, 4), epsilon=8.0, learning_rate=0.5, trees=60, **options)
    # AUC 0.77 with a standard deviation below 0.01 over noise: 0.6 is 15 of them away
    assert roc_auc_score(table["yes"] == "yes", model.predict(table)) > 0.6
    (spent,) = model.ledger.spent
    assert (spent.epsilon, spent.delta, spent.unit) == (8.0, 1e-6, "row")
    assert "half" in spent.adversary or "2 of 4" in spent.adversary
    assert "one row shows" not in str(model.ledger)
    model.save(tmp_path / "m.json")
    assert np.array_equal(tacit.boost.load(tmp_path / "m.json").predict(table), model.predict(table))


def test_xgboost_loads_a_private_model_of_categories(tmp_path):
    """A random split may send no level to the right; XGBoost refused the file with its empty list."""
    table = make_table(600)
    options = {
        "features": ["c"],
        "categories": {"c": ["x", "y"]},
        "labels": BINARY["labels"],
        "label": BINARY["label"],
    }
    model = tacit.boost.train(divide(table, 3), epsilon=4.0, trees=40, **options)
    splits = [s for tree in model.booster.trees for s in tree.sets.values()]
    assert any(s.all() for s in splits)
    file = model.save(tmp_path / "m.json")
    theirs = xgboost.Booster(model_file=file)
    odd = pd.DataFrame({"c": [None, "unknown", *LEVELS["c"]]})
    rows = xgboost.DMatrix(
        model.encode(odd), feature_names=["c"], feature_types=["c"], enable_categorical=True
    )
    assert theirs.predict(rows) == pytest.approx(model.predict(odd), abs=1e-6)
    assert np.array_equal(tacit.boost.load(file).predict(odd), model.predict(odd))


def test_real_parties_give_a_private_model():
    table = make_table(400)
    options = {"features": list(COLUMNS), "categories": LEVELS, **NUMBER}
    model = tacit.boost.train(divide(table, 3), epsilon=1.0, trees=3, runtime="inprocess", **options)
    low, high = NUMBER["bounds"]["size"]
    assert model.booster.base == (low + high) / 2
    assert len(model.booster.trees) == 3


def test_what_a_private_model_cannot_have_is_refused_all_at_once():
    with pytest.raises(BadParameter) as error:
        make(
            make_table(50),
            label="yes",
            categories=["c"],
            bounds={"a": (1, 0)},
            early_stopping=3,
            subsample=0.5,
        )
    text = str(error.value)
    for part in (
        "early_stopping",
        "subsample",
        "low < high",
        "range of 'b', 'd'",
        "levels of 'c'",
        "classes in order",
    ):
        assert part in text
    with pytest.raises(BadParameter, match="'binary' or 'regression' with epsilon"):
        make(make_table(50), label="count", objective="poisson", bounds={**BOUNDS, "count": (0, 9)})
