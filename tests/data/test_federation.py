from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import data
from tacit.data.conformance import check_dataset
from tacit.errors import BadData, BadParameter


def numbered(n: int = 100, test_fraction: float = 0.0) -> data.Dataset:
    """Row i has the feature i, so that a row can be followed."""
    return data.from_arrays(
        np.arange(n)[:, None],
        np.arange(n) % 4,
        groups={"site": np.array(list("abc"))[np.arange(n) % 3]},
        test_fraction=test_fraction,
    )


def test_train_held_and_test_rows_are_disjoint_and_together_all():
    fed = numbered(200, test_fraction=0.25).split(7, data.Dirichlet(0.5))
    parts = [fed.rows.x[fed.train.index], fed.rows.x[fed.held.index], fed.test.x]
    assert sorted(torch.cat(parts).flatten().tolist()) == list(range(200))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 60), parties=st.integers(1, 30), held=st.floats(0, 0.99))
def test_everyone_keeps_a_row_to_train_on_and_holds_one_back_if_it_has_two(n, parties, held):
    parties = min(n, parties)
    fed = data.from_arrays(np.zeros((n, 1)), np.arange(n) % 2, test_fraction=0).split(
        parties, held_fraction=held
    )
    assert (fed.train.sizes >= 1).all()
    assert ((fed.held.sizes >= 1) == ((fed.sizes > 1) & (held > 0))).all()


def test_repr_shows_the_number_of_rows_and_no_row():
    assert repr(numbered(200, test_fraction=0.25)) == "<Dataset 'arrays': 150 rows, 50 test rows, 4 classes>"
    assert (
        repr(numbered(100).by("site"))
        == "<Federation 'arrays': 3 parties, 33 to 34 rows each, 0 test rows, 4 classes>"
    )
    assert "a number to predict" in repr(data.from_arrays(np.zeros((10, 1)), np.arange(10) / 4))


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_a_missing_label_is_not_a_class(missing):
    with pytest.raises(
        BadData, match=r"arrays: y has 1 missing labels, the first in row 2. Fill or drop them first."
    ):
        data.from_arrays(np.zeros((4, 1)), np.array(["ill", "well", missing, "ill"], dtype=object))


def test_ten_percent_is_held_by_default():
    assert numbered(400).split(4).held.sizes.tolist() == [10] * 4


def test_party_names_sort_in_their_order():
    for n in (1, 9, 10, 11, 100):
        names = numbered(100).split(n, min_size=1).parties
        assert list(names) == sorted(names)
    assert numbered().split(10).parties[:2] == ("p00", "p01")


def test_by_column_names_parties_after_the_values_and_gives_them_their_rows():
    fed = numbered().by("site")
    assert fed.parties == ("a", "b", "c")
    for k in range(3):
        mine = torch.cat([fed.train.of(k), fed.held.of(k)])
        assert set((fed.rows.x[mine].flatten() % 3).tolist()) == {k}
    assert repr(fed.skew) == "ByColumn(column='site')"
    assert numbered().split(3, data.ByColumn("site")).parties == fed.parties


def test_by_an_unknown_column_is_refused_with_the_nearest():
    with pytest.raises(BadData, match=r"arrays has no column 'sites' to partition by. Did you mean 'site'\?"):
        numbered().by("sites")
    with pytest.raises(
        BadParameter, match="split: parties is 5; it must be 3, the number of different values in 'site'"
    ):
        numbered().split(5, data.ByColumn("site"))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            {"parties": 101},
            "split: parties is 101; it must be a whole number from 1 to 100, the number of rows of arrays.",
        ),
        ({"parties": 0}, "split: parties is 0; it must be a whole number from 1 to 100"),
        ({"parties": None}, "split: parties is None; it must be a whole number from 1 to 100"),
        (
            {"parties": 10, "min_size": 11},
            "split: min_size is 11; it must be a whole number from 1 to 10, an equal share of the rows.",
        ),
        (
            {"parties": 10, "held_fraction": 1},
            "split: held_fraction is 1; it must be a number of at least 0 and below 1.",
        ),
        ({"parties": 10, "seed": 1.5}, "split: seed is 1.5; it must be a whole number of at least 0."),
        (
            {"parties": 5, "skew": "Dirichlet"},
            "split: skew is 'Dirichlet'; it must be a skew with its parameters: IID(…), Dirichlet(…), ",
        ),
        ({"parties": 5, "skew": "dirichlet"}, "Write data.Dirichlet(…)."),
        (
            {"parties": 5, "skew": data.Dirichlet},
            "split: skew is 'Dirichlet'; it must be a skew with its parameters: ",
        ),
        ({"parties": 5, "skew": 0.5}, "split: skew is 0.5; it must be a skew"),
    ],
)
def test_a_bad_request_is_refused_with_what_is_allowed(request_, words):
    with pytest.raises(BadParameter) as caught:
        numbered().split(**request_)
    assert words in str(caught.value)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_whole_numbers_are_classes_however_they_are_stored(dtype):
    made = data.from_arrays(
        np.zeros((8, 1)), np.array([3, 1, 2, 3, 1, 2, 3, 1], dtype=dtype), test_fraction=0
    )
    assert (made.classes, made.labels) == (3, ("1", "2", "3"))
    assert made.rows.y.tolist() == [2, 0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("y", [[1.0, 2.0, 3.5, 4.0], [0.1, 0.2, 0.3, 0.4]])
def test_numbers_of_which_one_has_a_fraction_are_targets(y):
    made = data.from_arrays(np.zeros((4, 1)), y, test_fraction=0)
    assert made.classes is None
    assert made.rows.y.tolist() == pytest.approx(y)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_integers_are_targets_if_requested(dtype):
    made = data.from_arrays(
        np.zeros((4, 1)), np.array([100, 250, 250, 70], dtype=dtype), regression=True, test_fraction=0
    )
    assert made.classes is None
    assert made.rows.y.tolist() == [100, 250, 250, 70]


@pytest.mark.parametrize(
    ("y", "more", "words"),
    [
        (["a", "b"], {}, "regression=True predicts numbers, and y holds text. Leave one of them out."),
        ([True, False], {}, "regression=True predicts numbers, and y holds true and false."),
        ([0, 1], {"classes": 2}, "regression=True predicts numbers, and classes=2 was given."),
        ([0.0, np.nan], {}, "a target is NaN or infinite in row 1. Fill or drop it."),
    ],
)
def test_a_regression_of_non_numeric_targets_is_refused(y, more, words):
    with pytest.raises(BadData) as caught:
        data.from_arrays(np.zeros((2, 1)), y, regression=True, **more)
    assert words in str(caught.value)


def test_a_party_alone_has_its_own_rows_and_no_one_elses():
    fed = numbered(90, test_fraction=0.1).by("site")
    alone = fed.party("b")
    assert set((alone.rows.x.flatten() % 3).tolist()) == {1}
    assert alone.parties == ("b",)
    assert len(alone.test.y) == 0
    assert torch.equal(alone.rows.x[alone.train.index], fed.rows.x[fed.train.of(1)])
    assert torch.equal(alone.rows.x[alone.held.index], fed.rows.x[fed.held.of(1)])
    with pytest.raises(BadData, match=r"there is no party 'd'. Known: a, b, c"):
        fed.party("d")


def test_the_summary_by_hand():
    """Two sites: x = 0, 2 and x = 4, 6. Pooled mean 3, deviation √5; the sites' means lie 2 away, so 2/√5
    deviations.
    """
    made = data.from_arrays(
        [[0.0], [2], [4], [6]],
        ["n", "y", "y", "y"],
        groups={"s": ["l", "l", "r", "r"]},
        test_fraction=0,
        name="four",
    )
    summary = made.by("s").summary()
    assert summary.pop("shift") == pytest.approx([2 / 5**0.5] * 2)
    assert summary == {
        "name": "four",
        "parties": ["l", "r"],
        "sizes": [2, 2],
        "labels": ["n", "y"],
        "counts": [[1, 1], [0, 2]],
        "test_rows": 0,
        "held_rows": 2,
    }


def test_the_summary_is_plain_json_for_regressions_and_tokens_too():
    regression = data.from_arrays(np.ones((10, 2)), np.linspace(0, 1, 10)).split(2).summary()
    tokens = data.from_arrays(np.ones((10, 2), dtype=int), np.arange(10) % 2, tokens=True).split(2).summary()
    assert regression["counts"] is None
    assert regression["shift"] == [0.0, 0.0]  # no feature varies
    assert tokens["shift"] is None
    json.dumps([regression, tokens])


def test_the_shift_of_very_many_parties_goes_in_blocks():
    made = data.from_arrays(
        np.random.default_rng(0).standard_normal((3000, 2000)), np.arange(3000) % 2, test_fraction=0
    )
    fed = made.split(3000, min_size=1)  # 2^22 / 2000 = 2097 parties a block: two blocks
    x = fed.rows.x
    by_hand = ((x - x.mean(0)).abs() / x.std(0, correction=0)).mean(1)
    assert torch.allclose(torch.tensor(fed.summary()["shift"]), by_hand[fed.train.index], atol=1e-4)


def test_the_plot_is_a_drawing_that_can_be_saved(tmp_path):
    figure = numbered().by("site").plot(tmp_path / "who.svg")
    assert (tmp_path / "who.svg").read_text(encoding="utf-8") == figure.svg
    assert "<svg" in figure._repr_svg_()


def test_from_arrays_takes_lists_arrays_tensors_and_names_the_labels():
    x = [[1, 2], [3, 4], [5, 6], [7, 8]]
    marks = torch.tensor([True, False, False, True])
    for xs, ys in (
        (x, ["b", "a", "a", "b"]),
        (np.array(x), np.array([7, 3, 3, 7])),
        (torch.tensor(x), marks),
    ):
        made = check_dataset(data.from_arrays(xs, ys, test=(xs, ys)))
        assert made.rows.y.tolist() == [1, 0, 0, 1]
        assert torch.equal(made.test.x, made.rows.x)
    assert data.from_arrays(x, ["b", "a", "a", "b"], test_fraction=0).labels == ("a", "b")
    assert data.from_arrays(x, [1, 0, 0, 1], classes=5, test_fraction=0).classes == 5
    assert data.from_arrays(x, [0.5, 1, 2, 3], test_fraction=0).classes is None


@pytest.mark.parametrize(
    ("x", "y", "more", "words"),
    [
        (np.zeros((0, 2)), [], {}, "there are no rows"),
        (np.zeros((3, 2)), [0, 1], {}, "x and y do not fit: 3 rows and labels of shape (2,)"),
        (np.zeros(3), [0, 1, 1], {}, "x has shape (3,). Give one row an example"),
        (
            np.zeros((3, 2)),
            [1, 1, 1],
            {},
            "every row has the label '1'. There is nothing to learn from one class",
        ),
        ([[0, np.nan], [1, 2]], [0, 1], {}, "x has a NaN or infinite value in row 0"),
        ([["a"], ["b"]], [0, 1], {}, "x contains text, e.g. 'a'"),
        ([[1, 2], [3]], [0, 1], {}, "Give every row the same shape"),
        (
            np.zeros((2, 2)),
            [0, 3],
            {"classes": 3},
            "with classes=3 every label must be a whole number from 0 to 2; found 0, 3",
        ),
        (np.zeros((2, 2)), [0.1, np.inf], {}, "a target is NaN or infinite in row 1"),
        (
            np.zeros((2, 2)),
            [0, 1],
            {"test": (np.zeros((1, 3)), [0])},
            "a test row has shape (3,), a training row (2,)",
        ),
        (np.zeros((2, 2)), [0, 1], {"groups": {"g": [1]}}, "the group 'g' has 1 values for 2 rows"),
        (np.zeros((2, 2)), [0, 1], {"labels": ["one"]}, "1 names for 2 labels"),
        (np.zeros((2, 2)), [0, 1], {"tokens": True}, "contains float64 values; tokens must be integers"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(x, y, more, words):
    with pytest.raises(BadData) as caught:
        data.from_arrays(x, y, **more)
    assert words in str(caught.value)
