"""A model in use: the same row has the same score alone and among a thousand, in this process, in another, from
the command line and in ONNX; bad rows have clear errors.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import tacit
from tacit import data
from tacit.errors import BadData, BadParameter, BadRun, MissingExtra
from tacit.release import onnx_file
from tacit.release.release import FILE, Release, read_release, write_release
from tacit.release.score_file import score_file

NAMES = ["p(ALIVE)", "p(DEAD)"]
WARDS = ("north", "south", "west")


def patients(rows: int, seed: int = 0) -> pd.DataFrame:
    """A messy hospital table: heavy tails, missing cells, a code for missing, numbers as categories, rare values."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 95, rows).astype(float)
    lactate = np.exp(rng.normal(0.5, 1.2, rows)).round(3)
    ward = rng.choice([*WARDS, "ICU-7"], rows, p=[0.4, 0.35, 0.245, 0.005])
    risk = (age - 55) / 15 + np.log(lactate) + (ward == "west")
    return pd.DataFrame(
        {
            "patient": [f"P{k:05d}" for k in range(rows)],
            "site": rng.choice(["a", "b", "c"], rows),
            "age": np.where(rng.random(rows) < 0.05, -9999, age),
            "lactate": np.where(rng.random(rows) < 0.1, np.nan, lactate),
            "ward": np.where(rng.random(rows) < 0.05, None, ward),
            "grade": rng.choice([1.0, 2.0, 3.0, np.nan], rows, p=[0.3, 0.3, 0.3, 0.1]),
            "outcome": np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "DEAD", "ALIVE"),
        }
    )


def federation(frame: pd.DataFrame, **options) -> data.Federation:
    features = frame.drop(columns=["patient", "site", "outcome"])
    recipe = data.Recipe.infer(features, ["grade"], missing_codes={"age": [-9999]}, **options)
    return data.from_frame(frame, "outcome", drop=["patient"], fit=recipe).by("site")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[tacit.Result, pd.DataFrame]:
    """A run, and a thousand new patients of whom some are in an unknown ward."""
    fed = federation(patients(600))
    run = tacit.train(fed, model="mlp", rounds=3, out=tmp_path_factory.mktemp("use") / "run")
    new = patients(1000, seed=1).drop(columns="outcome")
    new.loc[7, "ward"] = "a ward that nobody had"
    new.loc[8, ["age", "lactate", "ward", "grade"]] = np.nan
    new.index = [f"row {k}" for k in range(len(new))]
    return run, new


def through_onnx(run: tacit.Result, rows: pd.DataFrame, file: Path) -> tuple[np.ndarray, np.ndarray]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    recipe = run.pipeline.recipe
    feed = {}
    for name in recipe.inputs:
        column = rows[name]
        if name in recipe.numbers:
            feed[name] = column.to_numpy(np.float64)[:, None]
        else:  # a category is text, "" if it is missing; a number as a category may be "7" or "7.0"
            text = ["" if pd.isna(v) else str(v) for v in column]
            text[::2] = [t.removesuffix(".0") for t in text[::2]]
            feed[name] = np.array(text, dtype=object)[:, None]
    return session.run(["probabilities", "prediction"], feed)


def test_a_patient_has_the_same_score_alone_and_among_a_thousand_everywhere(trained, tmp_path, capsys):
    run, new = trained
    expected = run.predict(new)
    assert list(expected.columns) == [*NAMES, "prediction"]
    assert expected.index.equals(new.index)
    np.testing.assert_allclose(expected[NAMES].sum(axis=1), 1.0)
    assert expected["prediction"].nunique() == 2
    assert expected["p(DEAD)"].std() > 0.05  # scores that do not look at the patient would be equal

    one_by_one = pd.concat([run.predict(new.iloc[[k]]) for k in range(0, 20)])
    pd.testing.assert_frame_equal(one_by_one, expected.iloc[:20], rtol=0, atol=1e-9)

    moved = tmp_path / "elsewhere"  # a loaded run needs its directory alone
    shutil.copytree(run.directory, moved)
    new.to_csv(tmp_path / "new.csv", index=False)
    program = (
        "import sys, pandas, tacit; run = tacit.load(sys.argv[1]); rows = pandas.read_csv(sys.argv[2]); "
        "print(run.predict(rows.iloc[[7]]).to_json()); print(run.predict(rows).to_json(double_precision=15))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(moved), str(tmp_path / "new.csv")],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    alone, loaded = (pd.DataFrame(json.loads(line)) for line in out)
    np.testing.assert_allclose(loaded[NAMES].to_numpy(float), expected[NAMES], rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        alone[NAMES].to_numpy(float)[0], expected[NAMES].to_numpy()[7], rtol=0, atol=1e-6
    )
    assert list(loaded["prediction"]) == list(expected["prediction"])

    from tacit import cli

    new.iloc[[7]].to_csv(tmp_path / "one.csv", index=False)
    for table, rows in (("new.csv", slice(None)), ("one.csv", slice(7, 8))):
        scored = tmp_path / f"scored-{table}"
        words = ["predict", str(moved), str(tmp_path / table), "--out", str(scored), "--keep", "patient"]
        assert cli.main(words) == 0, capsys.readouterr().err
        read = pd.read_csv(scored, dtype={"patient": str})
        assert list(read["patient"]) == list(new["patient"].iloc[rows])
        np.testing.assert_allclose(read[NAMES], expected[NAMES].iloc[rows], rtol=0, atol=1e-6)
        assert list(read["prediction"]) == list(expected["prediction"].iloc[rows])

    file = run.export(tmp_path / "model.onnx")
    for rows in (new, new.iloc[[7]], new.iloc[[8]]):
        p, names = through_onnx(run, rows, file)
        np.testing.assert_allclose(p, run.predict(rows)[NAMES], rtol=0, atol=1e-6)
        assert list(names) == list(run.predict(rows)["prediction"])


def test_scores_equal_those_of_scikit_learn_on_rows_prepared_by_hand():
    """A logistic regression trained to convergence on two numbers; its scores follow from means and deviations."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal([50, 1000], [10, 300], (400, 2)), columns=["a", "b"])
    frame["y"] = np.where(frame["a"] / 10 + rng.normal(0, 1, 400) > 5, "yes", "no")
    fed = data.from_frame(frame, "y", test_fraction=0.0, fit=data.Recipe(("a", "b"), winsorize="none")).split(
        2, held_fraction=0.0
    )
    run = tacit.train(
        fed, model="logistic", algorithm=tacit.algorithms.FedSGD(lr=2.0), rounds=400, batch_size=None, l2=0.0
    )
    x = (frame[["a", "b"]] - frame[["a", "b"]].mean()) / frame[["a", "b"]].std(ddof=0)
    judge = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x, frame["y"])
    np.testing.assert_allclose(run.predict(frame)["p(yes)"], judge.predict_proba(x)[:, 1], atol=0.002)


def test_a_regression_predicts_in_the_units_of_the_table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(0, 1, 300), "site": rng.choice(["a", "b"], 300)})
    frame["cost"] = 5000 + 1200 * frame["x"] + rng.normal(0, 10, 300)
    fed = data.from_frame(frame, "cost", regression=True).by("site")
    run = tacit.train(fed, model="logistic", algorithm=tacit.algorithms.FedSGD(lr=0.3), rounds=60, l2=0.0)
    rows = pd.DataFrame({"x": [-1.0, 0.0, 1.0]}, index=["low", "mid", "high"])
    scored = run.predict(rows)
    assert list(scored.columns) == ["prediction"]
    np.testing.assert_allclose(scored["prediction"], [3800, 5000, 6200], atol=30)
    file = run.export(tmp_path / "cost.onnx")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {"x": rows[["x"]].to_numpy()})
    np.testing.assert_allclose(out, scored["prediction"], rtol=1e-9)
    with pytest.raises(BadParameter, match="it must be left out: a threshold is for two classes"):
        run.predict(rows, threshold=0.5)


def test_a_threshold_moves_the_prediction_and_not_the_probability(trained):
    run, new = trained
    strict, loose = (run.predict(new, threshold=t) for t in (0.9, 0.1))
    pd.testing.assert_frame_equal(strict[NAMES], loose[NAMES])
    assert (strict["prediction"] == np.where(strict["p(DEAD)"] >= 0.9, "DEAD", "ALIVE")).all()
    assert (strict["prediction"] == "DEAD").sum() < (loose["prediction"] == "DEAD").sum()
    with pytest.raises(BadParameter, match=r"threshold is 1.5; it must be a probability"):
        run.predict(new, threshold=1.5)


def test_the_threshold_of_the_run_is_that_of_its_predictions(tmp_path):
    run = tacit.train(
        federation(patients(300)), model="logistic", rounds=2, threshold=0.8, out=tmp_path / "run"
    )
    new = patients(200, seed=4)
    scored = tacit.load(tmp_path / "run").predict(new)
    assert (scored["prediction"] == np.where(scored["p(DEAD)"] >= 0.8, "DEAD", "ALIVE")).all()
    _, names = through_onnx(run, new, run.export(tmp_path / "m.onnx"))
    assert list(names) == list(scored["prediction"])
    assert "- threshold: 0.8" in run.card()


def test_an_unknown_category_and_missing_cells_count_as_declared(trained):
    run, new = trained
    recipe = run.pipeline.recipe
    encoded = pd.DataFrame(run.pipeline.encode(new), columns=recipe.columns)
    assert encoded.loc[7, "ward=other"] == 1
    wards = [c for c in recipe.columns if c.startswith("ward=")]
    assert encoded.loc[8, wards].sum() == 0
    assert (encoded.loc[8, [f"{c} missing" for c in ("age", "lactate", "ward", "grade")]] == 1).all()
    as_code = new.iloc[[20]].assign(age=-9999)
    pd.testing.assert_frame_equal(run.predict(as_code), run.predict(as_code.assign(age=np.nan)))


def test_an_integer_category_may_be_written_as_a_float(trained):
    run, new = trained
    rows = new.dropna(subset=["grade"]).head(30)
    expected = run.predict(rows)
    for text in (rows["grade"].map("{:g}".format), rows["grade"].map("{:.1f}".format)):
        pd.testing.assert_frame_equal(run.predict(rows.assign(grade=text)), expected)
    recipe = data.Recipe((), {"g": ("1", "1.0", "07", "-2")}, unseen="refuse")
    frame = pd.DataFrame({"g": ["1", "1.0", "07", "-2.0"]})
    assert recipe.place_of("g", frame).tolist() == [0, 1, 2, 3]  # what is declared is meant
    with pytest.raises(BadData, match=r"'07\.0', which is not in the recipe"):
        recipe.place_of("g", pd.DataFrame({"g": ["07.0"]}))


def test_bad_rows_are_refused_by_name(trained):
    run, new = trained
    with pytest.raises(BadData, match=r"no columns 'age', 'grade'; the model needs them"):
        run.predict(new.drop(columns=["age", "grade"]))
    with pytest.raises(BadData, match=r"no column 'ward'; the model needs it. Did you mean 'Ward'"):
        run.predict(new.rename(columns={"ward": "Ward"}))
    with pytest.raises(BadData, match=r"'age' as a number; the table contains text, e.g. 'old'"):
        run.predict(new.iloc[:1].assign(age="old"))
    with pytest.raises(BadData, match="'lactate' has an infinite value"):
        run.predict(new.assign(lactate=np.inf))
    with pytest.raises(BadData, match="two columns are named 'age'"):
        run.predict(pd.concat([new, new[["age"]]], axis=1))
    with pytest.raises(BadParameter, match=r"rows is 'dict'.*pandas.DataFrame\(\[row\]\)"):
        run.predict(new.iloc[0].to_dict())
    with pytest.raises(BadParameter, match=r"rows is 'Series'.*to_frame"):
        run.predict(new.iloc[0])
    assert len(run.predict(new.iloc[:0])) == 0


def test_other_columns_are_ignored_with_a_note(trained):
    run, new = trained
    new = new[new["ward"].isin(WARDS)]
    labeled = new.assign(outcome="DEAD")
    scored = run.predict(labeled)
    pd.testing.assert_frame_equal(scored, run.predict(new))
    assert scored.attrs["notes"] == [
        "columns that the model does not use were ignored: 'patient', 'site'.",
        "'outcome' is the label: its values were not used.",
    ]


def test_values_that_are_no_categories_are_noted_in_python_and_from_a_file(trained, tmp_path):
    run, new = trained
    rows = new.dropna(subset=["ward"]).head(4).assign(ward=["north", "Nord", "south", "Ost"], grade=1.0)
    expected = (
        "'ward' has values that are not among its categories, in 2 rows, like 'Nord': they count as 'other'."
    )
    assert run.predict(rows).attrs["notes"][-1] == expected
    assert not any("categories" in note for note in run.predict(rows.assign(ward="north")).attrs["notes"])
    rows.to_csv(tmp_path / "new.csv", index=False)
    scored = score_file(run.release, run.model, tmp_path / "new.csv", tmp_path / "scored.csv")
    assert scored.notes[-1] == expected


def test_numbers_are_refused_where_the_categories_are_codes_with_leading_zeros():
    """pandas reads 01067 as 1067, which is another code: every such row would be scored as 'other'."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "zip": rng.choice(["01067", "80331"], 200),
            "age": rng.normal(50, 9, 200).round(),
            "site": rng.choice(["a", "b", "c"], 200),
            "ill": rng.choice(["no", "yes"], 200),
        }
    )
    run = tacit.train(data.from_frame(frame, label="ill").by("site"), model="logistic", rounds=1)
    new = frame.drop(columns=["site", "ill"]).head(3)
    run.predict(new)
    with pytest.raises(BadData, match=r"categories of 'zip' are codes.*dtype=\{'zip': str\}"):
        run.predict(new.assign(zip=new["zip"].astype(int)))
    assert len(run.predict(new.assign(zip=np.nan))) == 3  # all missing is no number


def test_a_loaded_run_is_the_run(trained):
    run, _ = trained
    again = tacit.load(run.directory)
    assert again.metrics == run.metrics
    assert again.events == run.events
    assert again.ledger == run.ledger
    assert again.pipeline == run.pipeline
    assert again.config["train"]["rounds"] == 3
    assert again.history == run.history
    for a, b in zip(again.model.parameters(), run.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert again.card() == run.card() == (run.directory / "card.md").read_text()
    assert "Model card" in again.report(run.directory / "r.html").read_text()


def test_a_saved_result_can_be_loaded(trained, tmp_path):
    run, new = trained
    memory = tacit.train(federation(patients(600)), model="mlp", rounds=3)
    assert memory.directory is None
    memory.save(tmp_path / "saved")
    pd.testing.assert_frame_equal(tacit.load(tmp_path / "saved").predict(new), run.predict(new))


def test_the_pipeline_is_written_before_training_and_the_model_after(tmp_path):
    def stop(event):
        if event["kind"] == "round" and event["round"] == 1:
            raise KeyboardInterrupt

    fed = federation(patients(200))
    with pytest.raises(KeyboardInterrupt):
        tacit.train(fed, model="logistic", rounds=3, out=tmp_path / "run", watch=stop)
    release, digest = read_release(tmp_path / "run")
    assert (release.pipeline, digest) == (fed.pipeline, None)
    with pytest.raises(BadRun, match="no trained model yet: the run is not finished"):
        tacit.load(tmp_path / "run")
    tacit.train(fed, model="logistic", rounds=3, out=tmp_path / "run", resume=True)
    assert len(tacit.load(tmp_path / "run").predict(patients(3))) == 3


class Own(nn.Module):
    def __init__(self, width: int = 13):
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, x):
        return torch.tanh(self.layer(x))


def test_a_model_that_is_code_needs_its_code(tmp_path):
    fed = federation(patients(200))
    width = fed.rows.x.shape[1]
    run = tacit.train(fed, model=Own(width), rounds=1, out=tmp_path / "run")
    with pytest.raises(BadRun, match=r"'own' is code .* tacit.load\(directory, model=…\)"):
        tacit.load(tmp_path / "run")
    with pytest.raises(BadRun, match=r"does not fit the given model: layer.weight"):
        tacit.load(tmp_path / "run", model=Own(width + 1))
    again = tacit.load(tmp_path / "run", model=lambda: Own(width))
    pd.testing.assert_frame_equal(again.predict(patients(5)), run.predict(patients(5)))


def test_damaged_directories_are_refused(trained, tmp_path):
    run, _ = trained

    def copy(name: str) -> Path:
        return Path(shutil.copytree(run.directory, tmp_path / name))

    with pytest.raises(BadRun, match="there is no directory"):
        tacit.load(tmp_path / "nowhere")
    with pytest.raises(BadRun, match=rf"has no {FILE}.*These do: .*run"):
        tacit.load(run.directory.parent)
    other = copy("other model")
    (other / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(BadRun, match="its digest differs"):
        tacit.load(other)
    for name, change, why in (
        ("format", {"format": "tacit pipeline 9"}, "has the format 'tacit pipeline 9'"),
        ("outputs", {"model": {"name": "mlp", "spec": {"name": "mlp"}, "shape": [13], "outputs": -1, "tokens": False}}, "cannot be read"),
        ("labels", {"labels": ["a", "b", "c"]}, "cannot be read"),
        ("pipeline", {"pipeline": {"recipe": {}}}, "cannot be read"),
        ("spec", {"model": {"name": "mlp", "spec": {"name": "rm -rf"}, "shape": [13], "outputs": 2, "tokens": False}}, "is not known here"),
        ("sizes", {"model": {"name": "mlp", "spec": {"name": "mlp", "hidden": [10**9, 10**9]}, "shape": [13], "outputs": 2, "tokens": False}}, "does not fit the model"),
    ):  # fmt: skip
        file = copy(name) / FILE
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        with pytest.raises(BadRun, match=why):
            tacit.load(file.parent)
    for number, (name, text) in enumerate(
        [
            (FILE, "{"),
            (FILE, "[" * 100_000),
            ("ledger.json", "[]"),
            ("ledger.json", "[" * 100_000),
            ("ledger.json", '{"seen": [5]}'),
            ("events.jsonl", '[1]\n{"kind": "end"}\n'),
            ("events.jsonl", '{"round": 1}\n{"kind": "end"}\n'),
            ("events.jsonl", '{"kind": "end", "metrics": 5}\n'),
            ("events.jsonl", "[" * 100_000 + "\n"),
            ("job.toml", "= 3"),
        ]
    ):
        broken = copy(f"broken {number}")
        (broken / name).write_text(text)
        with pytest.raises(BadRun, match=re.escape(name)):
            tacit.load(broken)


def test_a_party_keeps_the_final_model_in_a_folder_that_predicts(trained, tmp_path):
    run, new = trained
    write_release(tmp_path / "state" / "model", run.release, run.model, party="a", run="icu")
    again = tacit.load(tmp_path / "state" / "model")
    pd.testing.assert_frame_equal(again.predict(new), run.predict(new))
    assert again.release.metadata["party"] == "a"
    assert sorted(p.name for p in (tmp_path / "state" / "model").iterdir()) == ["model.safetensors", FILE]


def test_data_without_a_table_are_scored_as_arrays(tmp_path):
    digits = data.digits()
    run = tacit.train(digits.split(2), model="logistic", rounds=1, out=tmp_path / "run")
    scored = tacit.load(tmp_path / "run").predict(digits.test.x[:7].numpy())
    assert scored.shape == (7, 11)
    with pytest.raises(BadParameter, match=r"an array of shape \(rows, 64\)"):
        run.predict(np.zeros((2, 3)))
    with pytest.raises(BadData, match="no pipeline for a table"):
        run.predict(pd.DataFrame(np.zeros((2, 64))))
    session = onnxruntime.InferenceSession(
        run.export(tmp_path / "d.onnx"), providers=["CPUExecutionProvider"]
    )
    p, _ = session.run(None, {"encoded": digits.test.x[:7].numpy()})
    np.testing.assert_allclose(p, scored.iloc[:, :-1].to_numpy(float), atol=1e-6)


def test_a_torch_program_scores_encoded_rows(trained, tmp_path):
    run, new = trained
    file = run.export(tmp_path / "model.pt2")
    extra = {"pipeline.json": ""}
    program = torch.export.load(file, extra_files=extra).module()
    release = Release.from_dict({k: v for k, v in json.loads(extra["pipeline.json"]).items() if k != "input"})
    for rows in (new, new.iloc[[7]]):
        p = program(release.pipeline.encode(rows)).detach()
        np.testing.assert_allclose(p, run.predict(rows)[NAMES], rtol=0, atol=1e-6)


def test_a_rank_transform_is_exported_exactly(tmp_path):
    fed = federation(patients(400), scaling="quantile", impute="median")
    run = tacit.train(fed, model="logistic", rounds=2)
    assert run.pipeline.recipe.knots
    new = patients(300, seed=5).drop(columns="outcome")
    p, _ = through_onnx(run, new, run.export(tmp_path / "model.onnx"))
    np.testing.assert_allclose(p, run.predict(new)[NAMES], rtol=0, atol=1e-6)


def test_what_onnx_cannot_express_is_refused_with_the_remedy(tmp_path, monkeypatch):
    frame = patients(200).assign(day="2016-03-01")
    run = tacit.train(federation(frame, dates={"day": ["month"]}), model="logistic", rounds=1)
    with pytest.raises(BadParameter, match=r"no dates \(columns 'day'\).*encoded=True"):
        run.export(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    file = run.export(tmp_path / "m.onnx", encoded=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["input"] == "encoded rows"
    assert json.loads(facts["pipeline"]) == run.pipeline.to_dict()
    p, _ = session.run(None, {"encoded": run.pipeline.encode(frame).numpy()})
    np.testing.assert_allclose(p, run.predict(frame)[NAMES], rtol=0, atol=1e-6)
    with pytest.raises(BadParameter, match="already exists"):
        run.export(file)
    with pytest.raises(BadParameter, match=r"must end in .onnx or .pt2"):
        run.export(tmp_path / "m.pkl")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"tacit\[onnx\]"):
        run.export(tmp_path / "n.onnx", encoded=True)


def test_a_model_that_is_code_is_exported_by_torch(tmp_path):
    fed = federation(patients(200))
    run = tacit.train(fed, model=Own(fed.rows.x.shape[1]), rounds=1)
    new = patients(50, seed=2)
    p, _ = through_onnx(run, new, run.export(tmp_path / "own.onnx"))
    np.testing.assert_allclose(p, run.predict(new)[NAMES], rtol=0, atol=1e-6)


def test_a_column_named_like_an_output_is_refused_by_onnx_and_scored_by_tacit(tmp_path):
    frame = patients(300).rename(columns={"lactate": "prediction", "ward": "p(DEAD)"})
    frame = frame.drop(columns=["patient", "grade"])
    run = tacit.train(data.from_frame(frame, "outcome").by("site"), model="logistic", rounds=3)
    with pytest.raises(BadParameter, match=r"'prediction' is the name of an output or a step\. Rename"):
        run.export(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
    one = run.predict(frame.iloc[[7]])
    np.testing.assert_allclose(one[NAMES], run.predict(frame)[NAMES].iloc[[7]], atol=1e-12)
    run.export(tmp_path / "m.onnx", encoded=True)


def test_interpolation_in_onnx_is_that_of_numpy(tmp_path):
    """Also at equal points, at the ends and beyond them."""
    import onnx

    at, values = np.array([0.0, 1.0, 1.0, 2.0, 5.0]), np.array([0.1, 0.2, 0.4, 0.7, 0.9])
    x = np.array([-1, 0, 0.5, 1, 1.5, 2, 4, 5, 9.0])[:, None]
    graph = onnx_file.Graph(onnx, "g")
    graph.input("x", onnx.TensorProto.DOUBLE)
    graph.result = graph.interpolate("x", at, values)
    model = graph.model(onnx.TensorProto.DOUBLE, ["rows", 1]).SerializeToString()
    (out,) = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(out[:, 0], np.interp(x[:, 0], at, values), rtol=0, atol=1e-15)
