"""Columns of the same people at different parties: who holds what, ids as text, and what does not fit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import data
from tacit.data.vertical import Columns, Vertical, split_rows
from tacit.errors import BadData, BadParameter


@pytest.fixture
def csv(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": [f"{k:03d}" for k in range(50)],
            "age": rng.normal(50, 9, 50),
            "town": rng.choice(["a", "b"], 50),
            "pulse": rng.normal(70, 9, 50),
            "ill": rng.choice(["yes", "no"], 50),
        }
    )
    frame.loc[3, "pulse"] = np.nan
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv", frame


def test_columns_are_partitioned_and_every_row_keeps_its_id(csv):
    path, frame = csv
    made = data.from_csv(path, label="ill", id="id").vertical(
        into={"a": ["age"], "b": ["town", "pulse"]}, label_at="a"
    )
    assert made.parties["b"].columns == ("pulse", "town=a", "town=b", "pulse missing")
    known = frame.set_index("id")
    for k, person in enumerate(made.parties["a"].ids):
        assert float(made.parties["a"].x[k, 0]) == pytest.approx(known.loc[person, "age"], rel=1e-5)
        assert bool(made.parties["b"].x[k, 1]) == (known.loc[person, "town"] == "a")
        assert made.parties["a"].labels[int(made.y[k])] == known.loc[person, "ill"]
    assert sorted([*made.train.tolist(), *made.test.tolist()]) == list(range(50))
    assert "id" not in made.parties["a"].columns


def test_statistics_are_a_partys_own_and_of_the_rows_learned_from(csv):
    made = data.from_csv(csv[0], label="ill", id="id").vertical(
        into={"a": ["age"], "b": ["pulse"]}, label_at="a"
    )
    x, recipe = made.parties["a"].standardize(made.train)
    age = made.parties["a"].x[made.train, 0]
    assert torch.allclose(x[made.train, 0], (age - age.mean()) / age.std(correction=0), atol=1e-5)
    assert recipe.mean == pytest.approx((float(age.mean()),), rel=1e-5)
    other = made.parties["b"]
    assert not torch.isfinite(other.x).all()  # a missing number is NaN until it is standardized
    assert torch.isfinite(other.standardize(made.train)[0]).all()


def test_a_file_without_a_label_is_a_partys_columns_and_one_without_columns_its_labels(csv, tmp_path):
    frame = csv[1]
    frame[["id", "age"]].to_csv(tmp_path / "shop.csv", index=False)
    shop = data.from_csv(tmp_path / "shop.csv", id="id")
    assert isinstance(shop, Columns)
    assert shop.ids[7] == "007"
    frame[["id", "ill"]].to_csv(tmp_path / "labels.csv", index=False)
    labels = Columns.of(data.from_csv(tmp_path / "labels.csv", id="id", label="ill"))
    assert labels.x.shape == (50, 0)
    assert set(labels.ids) == set(frame["id"])


def test_the_holder_of_the_label_may_have_no_columns(csv):
    for made in (
        data.from_csv(csv[0], label="ill", id="id").vertical(
            into={"clinic": ["age", "pulse"], "registry": []}, label_at="registry"
        ),
        data.digits().vertical(into={"clinic": range(64), "registry": []}, label_at="registry"),
    ):
        run = tacit.splitnn(made, configuration="vanilla", epochs=1)
        assert set(run.shares) == {"clinic", "registry"}
        assert run.shares["registry"].bottom is None


def test_data_without_names_is_partitioned_by_position():
    made = data.digits().vertical(into={"left": range(32), "right": range(32, 64)}, label_at="right")
    assert made.parties["left"].x.shape[1] == 32
    assert made.classes == 10


def test_held_out_rows_are_the_same_for_all_who_have_the_seed():
    one, two = split_rows(103, 0.2, 5), split_rows(103, 0.2, 5)
    assert all(torch.equal(a, b) for a, b in zip(one, two))
    assert len(one[1]) == 21
    assert not torch.equal(split_rows(103, 0.2, 6)[1], one[1])
    assert sorted(torch.cat(one).tolist()) == list(range(103))


def test_columns_that_do_not_fit_are_refused(csv, tmp_path):
    path, frame = csv
    whole = data.from_csv(path, label="ill", id="id")
    for ask, kind, words in (
        (
            lambda: whole.vertical(into={"a": ["aeg"]}, label_at="a"),
            BadData,
            r"there is no column 'aeg' for 'a'\. Did you mean 'age'\?",
        ),
        (
            lambda: whole.vertical(into={"a": ["age"]}, label_at="b"),
            BadParameter,
            r"label_at is 'b'; it must be one of the parties",
        ),
        (
            lambda: whole.vertical(into={"a": [], "b": ["age"]}, label_at="b"),
            BadParameter,
            r"the columns of 'a' is \[\]; it must be at least one column",
        ),
        (
            lambda: data.digits().vertical(into={"a": [99]}, label_at="a"),
            BadParameter,
            r"positions from 0 to 63",
        ),
        (
            lambda: data.from_csv(path),
            BadParameter,
            r"label is None; it must be the column to predict\. Only a table with an id",
        ),
        (lambda: data.from_csv(path, id="ident", label="ill"), BadData, r"has no column 'ident'"),
        (
            lambda: data.from_csv(path, id="id", drop=["age", "town", "pulse", "ill"]),
            BadData,
            r"there is no feature besides the id",
        ),
    ):
        with pytest.raises(kind, match=words):
            ask()
    frame.loc[1, "id"] = frame.loc[0, "id"]
    frame.to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(BadData, match="an id is in more than one row"):
        data.from_csv(tmp_path / "twice.csv", label="ill", id="id").vertical(
            into={"a": ["age"]}, label_at="a"
        )


def test_columns_of_other_people_or_in_another_order_are_not_put_side_by_side(csv):
    made = data.from_csv(csv[0], label="ill", id="id").vertical(
        into={"a": ["age"], "b": ["pulse"]}, label_at="a"
    )
    with pytest.raises(BadData, match="are not the same records in the same order"):
        Vertical.of({"a": made.parties["a"], "b": made.parties["b"].take(np.arange(50)[::-1])}, "a")
    with pytest.raises(BadData, match="its table was read without one"):
        Vertical.of(made.parties, "b")
