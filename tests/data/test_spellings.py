"""Spellings are read alike in training, in prediction, in an ONNX file and by a real party."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit import data
from tacit.data.totals import is_total
from tacit.errors import BadData
from tacit.jobs.boost.horizontal import read_tables
from tacit.jobs.train.party_rows import read_rows

# as written: as meant; the last is no spelling of anything
CELLS = {
    "yes": "yes",
    "1": "yes",
    "TRUE": "yes",
    "unk": None,
    "unknown": None,
    "-": "no",
    "n": "no",
    "?!": "?!",
}
DECLARED = {
    "spellings": {"smokes": {"1": "yes", "TRUE": "yes", "unk": "unknown", "-": "no", "n": "no"}},
    "missing_codes": {"smokes": ["unknown", "-"]},  # "-" is read as "no" before it could mean "missing"
}


def patients(n: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    words = [w for w in CELLS if w != "?!"]
    frame = pd.DataFrame({"age": rng.integers(20, 90, n), "smokes": rng.choice(words, n)})
    frame["ill"] = np.where(frame["age"] + rng.normal(0, 20, n) > 55, "b", "a")
    return frame


def test_a_value_that_is_meant_may_mean_missing_wherever_rows_are_read(tmp_path: Path) -> None:
    """Before, codes came first in prediction and for real parties, and second in training."""
    frame = patients()
    fed = data.from_frame(frame, "ill", **DECLARED).split(2)
    assert fed.pipeline.recipe.categories == {"smokes": ("no", "yes")}
    run = tacit.train(fed, model="logistic", rounds=2, out=tmp_path / "run")
    new = pd.DataFrame({"age": 50, "smokes": list(CELLS)})
    meant = pd.DataFrame({"age": 50, "smokes": list(CELLS.values())}, dtype=object)
    p = ["p(a)", "p(b)"]
    expected = run.predict(meant)[p].to_numpy()
    np.testing.assert_array_equal(run.predict(new)[p], expected)
    np.testing.assert_array_equal(tacit.load(tmp_path / "run").predict(new)[p], expected)

    frame.to_csv(tmp_path / "a.csv", index=False)
    layout = {
        "label": "ill",
        "labels": ["a", "b"],
        "numbers": ["age"],
        "categories": {"smokes": ["no", "yes"]},
    }
    layout |= {**DECLARED, "missing": ["smokes"], "fit": "none"}
    rows = read_rows("a", tmp_path / "a.csv", layout, seed=0)
    flags = [CELLS[w] for w in frame["smokes"]]
    by_hand = np.array([[f == "no", f == "yes", f is None] for f in flags], dtype=np.float32)
    np.testing.assert_array_equal(rows.rows.x[:, 1:].numpy(), by_hand)

    import onnxruntime

    run.export(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    inputs = {"age": np.full((len(CELLS), 1), 50.0), "smokes": new[["smokes"]].to_numpy(object)}
    np.testing.assert_allclose(session.run(["probabilities"], inputs)[0], expected, atol=1e-12)


def test_a_spelling_that_is_a_whole_number_may_come_as_a_float(tmp_path: Path) -> None:
    frame = patients()
    run = tacit.train(data.from_frame(frame, "ill", **DECLARED).split(2), model="logistic", rounds=2)
    p = ["p(a)", "p(b)"]
    (expected,) = run.predict(pd.DataFrame({"age": [50], "smokes": ["yes"]}))[p].to_numpy()
    for cells in ([1.0, None], [1, 1], ["1.0", "n"]):
        got = run.predict(pd.DataFrame({"age": [50, 50], "smokes": cells}))[p].to_numpy()
        np.testing.assert_array_equal(got[0], expected)
    import onnxruntime

    run.export(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    inputs = {"age": np.full((1, 1), 50.0), "smokes": np.array([["1.0"]], dtype=object)}
    np.testing.assert_allclose(session.run(["probabilities"], inputs)[0][0], expected, atol=1e-12)


def test_columns_called_self_can_have_spellings_and_rows_left_out(tmp_path: Path) -> None:
    frame = patients().rename(columns={"ill": "self"}).astype({"self": object})
    frame.loc[0, "self"], frame.loc[1, "self"] = "Total", "B"
    declared = {"drop_rows": {"self": ["Total"]}, "spellings": {"self": {"B": "b"}}}
    fed = data.from_frame(frame, "self", **declared).split(2)
    assert fed.classes == 2
    assert fed.sizes.sum() + len(fed.test.y) == len(frame) - 1
    frame.to_csv(tmp_path / "a.csv", index=False)
    layout = {"label": "self", "labels": ["a", "b"], "numbers": ["age"], "fit": "none"}
    assert len(read_rows("a", tmp_path / "a.csv", layout | declared, seed=0).rows.y) == len(frame) - 1


def test_boosted_trees_refuse_spellings_which_they_would_not_read_in_new_rows() -> None:
    fed = data.from_frame(patients(), "ill", **DECLARED).split(2)
    with pytest.raises(BadData, match=r"'smokes' have declared spellings, which this model does not keep"):
        tacit.boost.train(fed, trees=2)
    label_only = data.from_frame(
        patients().replace({"ill": {"a": "A"}}), "ill", drop=["smokes"], spellings={"ill": {"A": "a"}}
    )
    frames, label, _ = read_tables(label_only.split(2), "boost.train")  # the label is no input of the model
    assert {v for frame in frames.values() for v in frame[label]} == {"a", "b"}


@pytest.mark.parametrize(
    ("word", "is_one"),
    [
        ("Total", True),
        ("Grand total:", True),
        ("total patients", True),
        ("Sum Wong", False),
        ("Total Smith", False),
    ],
)
def test_a_name_is_no_line_of_totals(word: str, is_one: bool) -> None:
    assert is_total(word) == is_one
