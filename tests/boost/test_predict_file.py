"""`tacit predict MODEL.json new.csv`: a saved booster or scorecard scores a file."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import tacit
from tests.cli.shell import answer, refused, run

LEVELS = ("north", "south", "01067")


def rows(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(50, 12, n).round(1),
            "smoker": rng.choice([True, False], n),
            "region": rng.choice(LEVELS, n),
            "stage": rng.choice([1, 2, 3], n),
        }
    )
    frame.loc[rng.choice(n, n // 10, replace=False), "age"] = np.nan
    risk = (frame["age"].fillna(60) - 50) / 12 + (frame["region"] == "south") + frame["stage"] - 2
    frame["ill"] = np.where(risk + rng.normal(size=n) > 0.5, "yes", "no")
    return frame


def parties(n: int = 400) -> dict[str, pd.DataFrame]:
    table = rows(n)
    return {"a": table[: n // 2], "b": table[n // 2 :].reset_index(drop=True)}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_saved_booster_scores_a_file_as_it_scores_a_table(here, capsys):
    model = tacit.boost.train(parties(), label="ill", trees=5, depth=3, categories=["region", "stage"])
    model.save("model.json")
    new = rows(60, seed=1)
    new.insert(0, "id", [f"{k:03d}" for k in range(60)])
    new.to_csv("new.csv", index=False)
    value = answer(capsys, "predict", "model.json", "new.csv", "--out", "s.csv", "--keep", "id,ill")
    assert value == {"rows": 60, "out": "s.csv", "notes": []}
    scored = pd.read_csv("s.csv", dtype={"id": str})
    assert list(scored) == ["id", "ill", "p(no)", "p(yes)", "prediction"]
    assert list(scored["id"]) == list(new["id"])
    expected = model.predict(new)
    np.testing.assert_allclose(scored["p(yes)"], expected, rtol=1e-12)
    assert list(scored["prediction"]) == ["yes" if p > 0.5 else "no" for p in expected]
    answer(capsys, "predict", "model.json", "new.csv", "--out", "t.csv", "--threshold", "0.2")
    assert list(pd.read_csv("t.csv")["prediction"]) == ["yes" if p >= 0.2 else "no" for p in expected]


def test_a_cell_means_the_same_whatever_the_other_rows_are(here, capsys):
    """A column of one row that looks like a number, a code or a word is read as in training."""
    model = tacit.boost.train(parties(), label="ill", trees=3, depth=3, categories=["region", "stage"])
    model.save("model.json")
    lines = ["61.5,TRUE,01067,2.0", "NA,false,south,1", "40, True,?,3", "1e2,True,elsewhere,9"]
    header = "age,smoker,region,stage\n"
    (here / "all.csv").write_text(header + "\n".join(lines) + "\n")
    code, out, _ = run(capsys, "predict", "model.json", "all.csv", "--out", "all-out.csv")
    assert code == 0
    assert "'region' has values that are not among its categories, in 1 row, like 'elsewhere'" in out
    assert "as one level with all others that were not in training" in out
    together = pd.read_csv("all-out.csv")
    for k, line in enumerate(lines):
        (here / f"{k}.csv").write_text(f"{header}{line}\n")
        answer(capsys, "predict", "model.json", f"{k}.csv", "--out", f"{k}-out.csv")
        alone = pd.read_csv(f"{k}-out.csv")
        pd.testing.assert_frame_equal(alone, together.iloc[k : k + 1].reset_index(drop=True))
    typed = pd.DataFrame(
        {
            "age": [61.5, np.nan, 40, 100],
            "smoker": [True, False, True, True],
            "region": ["01067", "south", None, "elsewhere"],
            "stage": [2, 1, 3, 9],
        }
    )
    np.testing.assert_allclose(together["p(yes)"], model.predict(typed), rtol=1e-12)


@pytest.mark.parametrize("objective", ["regression", "poisson", "multiclass"])
def test_numbers_and_several_classes(here, capsys, objective):
    label = "stage" if objective == "multiclass" else "age"
    frames = {n: f.dropna().drop(columns="ill") for n, f in parties().items()}
    if objective == "poisson":
        frames = {n: f.assign(age=f["age"].clip(0).round()) for n, f in frames.items()}
    model = tacit.boost.train(frames, label=label, objective=objective, trees=2, depth=2)
    model.save("model.json")
    new = rows(20, seed=2).drop(columns="ill")
    new.to_csv("new.csv", index=False)
    answer(capsys, "predict", "model.json", "new.csv", "--out", "s.csv")
    scored = pd.read_csv("s.csv")
    if objective == "multiclass":
        assert list(scored) == ["p(1)", "p(2)", "p(3)", "prediction"]
        np.testing.assert_allclose(scored.iloc[:, :3], model.predict(new), rtol=1e-12)
    else:
        np.testing.assert_allclose(scored["prediction"], model.predict(new), rtol=1e-12)


def test_a_scorecard_scores_a_file(here, capsys):
    card = tacit.boost.woe(parties(), label="ill", event="yes", categories=["region", "stage"]).scorecard()
    card.save("card.json")
    new = rows(30, seed=3)
    new.to_csv("new.csv", index=False)
    answer(capsys, "predict", "card.json", "new.csv", "--out", "s.csv")
    scored = pd.read_csv("s.csv")
    assert list(scored) == ["score", "p(yes)"]
    assert list(scored["score"]) == list(card.score(new))
    np.testing.assert_allclose(scored["p(yes)"], card.card.predict(new), rtol=1e-12)
    assert "a scorecard gives points" in refused(
        capsys, "predict", "card.json", "new.csv", "--out", "t.csv", "--threshold", "0.5"
    )


def test_what_cannot_be_scored_is_refused_and_writes_nothing(here, capsys):
    tacit.boost.train(parties(), label="ill", trees=2, depth=2).save("model.json")
    rows(5).to_csv("new.csv", index=False)
    (here / "not.json").write_text("{")
    (here / "other.json").write_text('{"learner": {"attributes": {}}}')
    edited = json.loads((here / "model.json").read_text())
    edited["learner"]["gradient_booster"]["model"]["trees"][0]["left_children"][0] = 0  # a cycle
    (here / "cycle.json").write_text(json.dumps(edited))
    (here / "text.csv").write_text("age,smoker,region,stage\nold,True,north,1\n")
    (here / "short.csv").write_text("age,stage\n61,1\n")
    (here / "endless.csv").write_text("age,smoker,region,stage\ninf,True,north,1\n")
    cases = {
        ("none.json", "new.csv"): "there is no file none.json",
        ("not.json", "new.csv"): "is not JSON",
        ("other.json", "new.csv"): "is not a model that tacit.boost saved",
        ("cycle.json", "new.csv"): "tree",
        ("model.json",): "give it the new rows",
        ("model.json", "text.csv"): "'age' as a number; the table contains text, e.g. 'old'",
        ("model.json", "short.csv"): "no columns 'smoker', 'region'",
        ("model.json", "endless.csv"): "infinite",
        ("model.json", "new.csv", "--receiver", "a"): "without --file, --kit, --receiver",
        ("model.json", "new.csv", "--threshold", "2"): "a probability between 0 and 1",
    }
    for words, why in cases.items():
        assert why in refused(capsys, "predict", *words, "--out", "s.csv"), words
    assert not (here / "s.csv").exists()
