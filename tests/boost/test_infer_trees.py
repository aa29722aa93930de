"""Trees on secret shares: the plain prediction of every library, and what the parties' messages show."""

from __future__ import annotations

import functools
import json

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import tacit
from tacit.boost.ensemble import Inputs, key32, key64
from tacit.boost.read_model import read_model
from tacit.errors import BadData, BadParameter, ProtocolError
from tacit.mpc import inference
from tacit.mpc.inference import Architecture
from tacit.mpc.model import to_text
from tacit.mpc.ring import FixedPoint
from tacit.mpc.trees import compile_trees, encode_rows
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.runtimes import InProcess

RESOLUTION = 2.0**-16  # of the result; rounded by less than one unit


def rows(n=40, missing=0.0, seed=0):
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=n), rng.integers(-3, 4, n), rng.exponential(1e4, n)])
    x[rng.random(x.shape) < missing] = np.nan
    return x


def classes(x, k=2):
    score = np.nan_to_num(x[:, 0]) + np.nan_to_num(x[:, 1]) / 2
    return np.digitize(score, np.quantile(score, np.arange(1, k) / k))


X, XM = rows(), rows(missing=0.2)
AMOUNT = X[:, 0] * 50 + X[:, 1] * 1000


def margin(model, x):
    return model.predict(x, output_margin=True)


MODELS = {
    "xgboost, two classes": (
        xgboost.XGBClassifier(n_estimators=4, max_depth=3, n_jobs=1).fit(XM, classes(XM)),
        XM,
        margin,
    ),
    "xgboost, three classes": (
        xgboost.XGBClassifier(n_estimators=3, max_depth=2, num_parallel_tree=2, n_jobs=1).fit(
            X, classes(X, 3)
        ),
        X,
        margin,
    ),
    "xgboost, regression": (
        xgboost.XGBRegressor(n_estimators=4, max_depth=3, n_jobs=1).fit(XM, AMOUNT / 1000),
        XM,
        margin,
    ),
    "xgboost, poisson": (
        xgboost.XGBRegressor(n_estimators=3, max_depth=2, objective="count:poisson", n_jobs=1).fit(
            X, np.abs(X[:, 1])
        ),
        X,
        margin,
    ),
    "xgboost, raw logits": (
        xgboost.XGBClassifier(n_estimators=2, max_depth=2, objective="binary:logitraw", n_jobs=1).fit(
            X[:30], classes(X)[:30]
        ),
        X,
        margin,
    ),
    "xgboost, dart": (
        xgboost.XGBClassifier(
            n_estimators=4, max_depth=2, booster="dart", rate_drop=0.5, random_state=1, n_jobs=1
        ).fit(X, classes(X)),
        X,
        margin,
    ),
    "xgboost, early stopping": (
        xgboost.XGBClassifier(
            n_estimators=30, max_depth=3, learning_rate=1, early_stopping_rounds=1, n_jobs=1
        ).fit(X[:20], classes(X)[:20], eval_set=[(X[20:], classes(X)[20:])], verbose=False),
        X,
        margin,
    ),
    "forest": (
        RandomForestClassifier(4, max_depth=3, random_state=0).fit(XM, classes(XM, 3)),
        XM,
        lambda model, x: model.predict_proba(x),
    ),
    "forest, regression": (
        RandomForestRegressor(3, max_depth=3, random_state=0).fit(X, AMOUNT),
        X,
        lambda model, x: model.predict(x),
    ),
    "extra trees": (
        ExtraTreesClassifier(3, max_depth=3, random_state=0).fit(X, classes(X)),
        X,
        lambda model, x: model.predict_proba(x),
    ),
    "tree": (
        DecisionTreeClassifier(max_depth=4, random_state=0).fit(X, classes(X, 3)),
        X,
        lambda model, x: model.predict_proba(x),
    ),
    "tree, regression": (
        DecisionTreeRegressor(max_depth=2, random_state=0).fit(X, AMOUNT),
        X,
        lambda model, x: model.predict(x),
    ),
    "boosting": (
        GradientBoostingClassifier(n_estimators=3, max_depth=2, random_state=0).fit(X, classes(X, 3)),
        X,
        lambda model, x: model.decision_function(x),
    ),
    "boosting, regression": (
        GradientBoostingRegressor(n_estimators=3, max_depth=2, random_state=0).fit(X, AMOUNT),
        X,
        lambda model, x: model.predict(x),
    ),
    "histograms": (
        HistGradientBoostingClassifier(max_iter=3, max_depth=3, min_samples_leaf=2).fit(XM, classes(XM)),
        XM,
        lambda model, x: model.decision_function(x),
    ),
    "histograms, regression": (
        HistGradientBoostingRegressor(max_iter=3, max_depth=3, min_samples_leaf=2).fit(XM, AMOUNT),
        XM,
        lambda model, x: model.predict(x),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_result_is_the_plain_prediction_to_the_resolution(name):
    model, x, plain = MODELS[name]
    expected = plain(model, x)
    out = tacit.infer(model, x)
    assert out.value.shape == expected.shape
    # XGBoost predicts in float32, which is coarser than the fixed point for large margins
    assert np.abs(out.value.numpy() - expected).max() < RESOLUTION + 4e-7 * np.abs(expected).max()


@pytest.mark.parametrize(
    "name", ["xgboost, two classes", "xgboost, three classes", "forest", "boosting", "histograms"]
)
def test_only_the_class_is_opened_with_argmax(name):
    model, x, _ = MODELS[name]
    out = tacit.infer(model, x, reveal="argmax")
    assert out.value.tolist() == model.predict(x).tolist()
    shares = [line for line in out.ledger.seen if line.kind == "ResultShare"]
    assert [(s.party, s.sender) for s in shares] == [("client", "owner")]
    assert shares[0].bytes < 120 + 8 * len(x)  # one word a row: the margins are not in it


@pytest.mark.parametrize(
    "options",
    [{"private": ("input",)}, {"helper": None}, {"adversary": "active"}, {"batch": 3}, {"debug": True}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("name", ["xgboost, two classes", "forest"])
def test_every_way_to_infer_takes_trees(name, options):
    model, x, plain = MODELS[name]
    out = tacit.infer(model, x[:4], **options)
    assert np.abs(out.value.numpy() - plain(model, x[:4])).max() < 2 * RESOLUTION
    if options.get("debug"):
        assert out.max_error_vs_plain < RESOLUTION


def test_processes_with_certificates_give_the_same():
    model, x, plain = MODELS["xgboost, two classes"]
    out = tacit.infer(model, x[:3], runtime=tacit.Processes())
    assert np.abs(out.value.numpy() - plain(model, x[:3])).max() < RESOLUTION


def test_values_at_a_threshold_go_where_the_library_sends_them():
    """XGBoost splits by <, scikit-learn by ≤; the next float32 on either side of a threshold counts, too."""
    x = np.repeat(np.array([-1e-30, 0.0, 1.0, 3.0, 1e30]), 4)[:, None]
    y = np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], 4)
    models = [
        xgboost.XGBRegressor(n_estimators=1, max_depth=3, learning_rate=1, reg_lambda=0, n_jobs=1).fit(x, y),
        DecisionTreeRegressor().fit(x, y),
    ]
    for model in models:
        if isinstance(model, DecisionTreeRegressor):
            cuts = model.tree_.threshold[model.tree_.feature >= 0]
        else:
            frame = model.get_booster().trees_to_dataframe()
            cuts = frame["Split"].dropna().to_numpy()
        cuts = cuts.astype(np.float32)
        near = np.concatenate(
            [cuts, *(np.nextafter(cuts, np.float32(side)) for side in (-np.inf, np.inf)), [0.0, -0.0]]
        )[:, None]
        out = tacit.infer(model, near)
        assert len(cuts) >= 3
        assert np.abs(out.value.numpy() - model.predict(near)).max() < RESOLUTION


def test_keys_have_the_order_of_floats():
    values = np.sort(np.concatenate([rows()[:, 0], [0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, np.inf, -np.inf]]))
    narrow = values.astype(np.float32)
    assert (np.sign(np.diff(key32(narrow))) == (narrow[1:] > narrow[:-1])).all()
    assert key32(-0.0) == key32(0.0) == 0
    assert (np.diff(key64(values)) >= 0).all()
    finite = values[np.isfinite(values)]
    apart = finite[:-1] + 2.0**-30 * np.abs(finite[:-1]) < finite[1:]
    assert apart.sum() > 40
    assert (np.diff(key64(finite))[apart] > 0).all()
    assert key64(np.inf) + 1 < 1 << 42
    assert key32(np.inf) + 1 < 1 << 32


def table(n=60, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.integers(20, 80, n).astype(float), "job": rng.choice(list("abcde"), n)})
    frame.loc[rng.random(n) < 0.2, "age"] = np.nan
    frame.loc[rng.random(n) < 0.2, "job"] = None
    up = (frame["age"].fillna(30) > 50) ^ frame["job"].isin(["b", "d"])
    return frame.assign(ill=np.where(up, "yes", "no"))


def test_a_model_of_tacit_takes_tables_with_categories_and_missing_values():
    frame = table()
    model = tacit.boost.train({"a": frame[:30], "b": frame[30:]}, label="ill", trees=4, depth=3)
    new = pd.concat([table(12, 1), pd.DataFrame({"age": [1e300, -1.0], "job": ["unseen", "a"]})])
    out = tacit.infer(model, new)
    assert np.abs(out.value.numpy() - model.predict(new, margin=True)).max() < RESOLUTION
    classes = np.array(model.booster.labels)[tacit.infer(model.booster, new, reveal="argmax").value.numpy()]
    assert classes.tolist() == np.where(model.predict(new) > 0.5, "yes", "no").tolist()


def test_an_xgboost_model_takes_tables_with_categories():
    frame = table()
    x = frame[["age", "job"]].assign(job=frame["job"].astype("category"))
    model = xgboost.XGBClassifier(n_estimators=4, max_depth=3, enable_categorical=True, max_cat_to_onehot=2)
    model.fit(x, frame["ill"] == "yes")
    expected = margin(model, x)
    assert np.abs(tacit.infer(model, x).value.numpy() - expected).max() < RESOLUTION
    codes = np.column_stack([x["age"], x["job"].cat.codes.replace(-1, np.nan)])
    assert np.abs(tacit.infer(model, codes).value.numpy() - expected).max() < RESOLUTION
    with pytest.raises(BadData, match="column 'job' has levels that the model does not know: 'z'"):
        tacit.infer(model, x.assign(job=["z"] * len(x)))
    with pytest.raises(BadData, match="codes are whole numbers from 0"):
        tacit.infer(model, np.array([[20.0, 0.5]]))


def test_equal_outputs_have_the_first_class_as_in_scikit_learn():
    """Two trees vote for different classes with equal weight."""
    x, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 0, 1, 1])
    forest = RandomForestClassifier(2, bootstrap=False, random_state=0).fit(x, y)
    forest.estimators_[1].tree_.value[:] = forest.estimators_[0].tree_.value[:, :, ::-1]
    assert (forest.predict_proba(x) == 0.5).all()
    for _ in range(5):  # truncation would round at random
        assert tacit.infer(forest, x, reveal="argmax").value.tolist() == [0, 0, 0, 0]


# what messages show -----------------------------------------------------------------------------------------


def watch(model, x, fraction=16):
    """Return the tap on all messages of one inference, and the client's result."""
    ensemble, fixed, tap = read_model(model), FixedPoint(fraction), Tap()
    layers, weights = compile_trees(
        ensemble.nodes, ensemble.offsets, ensemble.leaves, ensemble.outputs, fixed, bound=ensemble.bound
    )
    batches = [encode_rows(ensemble.inputs.encode(x), fixed)]
    programs = {
        "owner": functools.partial(inference.owner, layers=to_text(layers), weights=weights),
        "client": functools.partial(inference.client, batches=batches),
        "helper": inference.helper,
    }
    results = InProcess().run_sync(tap.on(programs))
    secrets = {
        *fixed.encode(weights["nodes.bias"], scale=2).flatten().tolist(),
        *fixed.encode(weights["leaves.bias"], scale=2).flatten().tolist(),
        *fixed.encode(weights["leaves.weight"], scale=2).flatten().tolist(),
        *fixed.encode(batches[0]).flatten().tolist(),
    } - {0, 1}
    return tap, results["client"]["value"], secrets


def words(tap):
    for _, _, _, frame in tap.frames:
        for value in vars(decode(frame)).values():
            for tensor in value if isinstance(value, list) else []:
                if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.int64:
                    yield from tensor.flatten().tolist()


def test_no_message_contains_a_number_of_the_model_or_of_the_rows():
    """About 10,000 uniform words and 90 numbers: a false alarm has a probability below 1e-12."""
    model, x, _ = MODELS["xgboost, two classes"]
    tap, _, secrets = watch(model, x)
    sent = list(words(tap))
    assert len(sent) > 5000
    assert len(secrets) > 50
    assert not secrets.intersection(sent)


def test_messages_depend_on_public_sizes_only():
    """Two models with other features, thresholds and shapes of trees, and other rows: the same messages."""
    x = rows(200, missing=0.2, seed=3)
    y = np.random.default_rng(5).integers(0, 2, len(x))  # no pattern, so that trees are full
    full = xgboost.XGBClassifier(n_estimators=2, max_depth=3, n_jobs=1).fit(x, y)
    thin = xgboost.XGBClassifier(n_estimators=2, max_depth=3, max_leaves=5, grow_policy="lossguide", n_jobs=1)
    thin.fit(x[:, ::-1], y)
    sizes = [len(m.get_booster().trees_to_dataframe()) for m in (full, thin)]
    assert sizes[0] != sizes[1]
    first, second = watch(full, x[:5])[0], watch(thin, -x[:5])[0]
    assert [(s, to, len(f)) for s, to, _, f in first.frames] == [
        (s, to, len(f)) for s, to, _, f in second.frames
    ]
    plain = [f for _, _, _, f in first.frames if type(decode(f)) is Architecture]
    assert plain == [f for _, _, _, f in second.frames if type(decode(f)) is Architecture]
    assert len(plain) == 2
    described = json.loads(decode(plain[0]).layers)
    assert described[0]["shape"] == [6, 2 * 7]
    assert described[1]["shape"] == [2, 4, 1]


def test_an_owner_that_describes_impossible_trees_is_refused():
    layers, _ = compile_trees(np.zeros((2, 6)), np.zeros(6), np.zeros((2, 4, 1)), 1, FixedPoint(), bound=1.0)
    layers[1]["shape"] = [2, 8, 1]
    described = Architecture(to_text(layers), True, "logits", 16)
    with pytest.raises(BadData, match="2 trees of 16 leaves do not have 6 inner nodes"):
        list(inference.plan_requests(described, [[1, 2]]))
    with pytest.raises(BadData, match="rows of 2 whole numbers, and get a shape of \\[1, 3\\]"):
        list(inference.plan_requests(described, [[1, 3]]))
    with pytest.raises(ProtocolError, match="unknown layer 'shout'"):
        Architecture('[{"kind": "shout"}]', True, "logits", 16).network()


def test_the_public_description_of_columns_has_no_thresholds_and_survives_json():
    frame = table()
    model = tacit.boost.train({"a": frame[:30], "b": frame[30:]}, label="ill", trees=2, depth=2)
    inputs = read_model(model).inputs
    text = json.dumps(inputs.to_dict())
    assert json.loads(text)["columns"] == [
        ["age", 0, [], False],
        ["job", 6, ["a", "b", "c", "d", "e"], True],
    ]
    again = Inputs.from_dict(json.loads(text))
    assert again == inputs
    assert (again.encode(frame) == inputs.encode(frame)).all()
    for entry in ([], {"columns": [["a", 1, ["x", "y"], True]], "wide": False, "takes_missing": True}):
        with pytest.raises(BadData, match="not the description of a model's columns"):
            Inputs.from_dict(entry)


# refusals ---------------------------------------------------------------------------------------------------


def refused(match, model, x=X, error=BadParameter, **options):
    with pytest.raises(error, match=match):
        tacit.infer(model, x, **options)


def test_models_that_cannot_be_evaluated_are_refused_by_name():
    y = classes(X)
    refused(
        "scikit-learn's LogisticRegression cannot be evaluated",
        LogisticRegression(max_iter=1000).fit(X[:, :2], y),
    )
    refused("scikit-learn's IsolationForest cannot be evaluated", IsolationForest(n_estimators=2).fit(X))
    refused("is not fitted", RandomForestClassifier())
    refused("several targets", DecisionTreeRegressor().fit(X, X[:, :2]))
    refused(
        "begins with a model of its own", GradientBoostingClassifier(init=DecisionTreeClassifier()).fit(X, y)
    )
    frame = pd.DataFrame({"a": X[:, 0], "c": pd.Categorical(np.where(X[:, 1] > 0, "u", "v"))})
    hist = HistGradientBoostingClassifier(max_iter=1, categorical_features=[1]).fit(frame, y)
    refused("has categorical features, which are not supported", hist, frame)
    refused("booster='gblinear' has no trees", xgboost.XGBRegressor(booster="gblinear").fit(X, y))
    refused("takes missing=-999.0", xgboost.XGBRegressor(missing=-999.0, n_estimators=1).fit(X, y))
    refused("DMatrix is not a model", xgboost.DMatrix(X))
    aft = xgboost.train({"objective": "survival:cox"}, xgboost.DMatrix(X, y + 1), 1)
    refused("the objective 'survival:cox' is not supported", aft)
    refused("a torch.nn.Module, or trees of", 3)


def test_too_deep_trees_and_too_large_outputs_are_refused_with_what_to_do():
    line = np.arange(40.0)[:, None]
    chain = DecisionTreeRegressor().fit(line, 2.0 ** np.arange(40))  # halves the largest, again and again
    refused("Train with a smaller max_depth or fewer trees", chain, line)
    tree = DecisionTreeRegressor(max_depth=1).fit(line, 1e9 * line[:, 0])
    refused("may reach ±.*must stay within", tree, line)
    wide = xgboost.XGBClassifier(n_estimators=1, max_depth=1, learning_rate=1e5).fit(X, classes(X))
    refused("reveal='argmax' they must stay within", wide, reveal="argmax")


def test_bad_rows_are_refused_before_anything_is_sent():
    boosted, _x, _ = MODELS["boosting"]
    refused("column 'x0' has 1 missing values, and the model takes none", boosted, [[np.nan, 0, 0]], BadData)
    refused("has the shape \\(1, 2\\); the model takes rows of 3 columns", boosted, [[0, 0]], BadData)
    refused("not a matrix of numbers", boosted, [["a", "b", "c"]], BadData)
    refused("the table has no column 'x1', 'x2'", boosted, pd.DataFrame({"x0": [1.0]}), BadData)
    refused("'logits' for a regression", MODELS["boosting, regression"][0], reveal="argmax")
