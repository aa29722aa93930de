"""Models of tacit, XGBoost and scikit-learn as complete trees (`ensemble.py`). Nothing is unpickled: models
of XGBoost are read through their JSON, those of scikit-learn from the arrays of their trees.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np

from ..errors import BadParameter
from .ensemble import LEAF, Column, Ensemble, Inputs, PlainTree, key32, key64, make_ensemble
from .model import Booster
from .result import BoostResult
from .trees import Tree

ALWAYS_LEFT = int(key32(np.inf)) + 1  # every number is below it
LOGISTIC = ("binary:logistic", "reg:logistic")
EXPONENTIAL = ("count:poisson", "reg:gamma", "reg:tweedie")
IDENTITY = (
    *("reg:squarederror", "reg:squaredlogerror", "reg:absoluteerror", "reg:pseudohubererror"),
    *("reg:quantileerror", "binary:hinge", "binary:logitraw", "multi:softprob", "multi:softmax"),
    *("rank:pairwise", "rank:ndcg", "rank:map"),
)
SKLEARN = (
    "DecisionTree*, ExtraTree*, RandomForest*, ExtraTrees*, GradientBoosting* and HistGradientBoosting*, "
    "classifiers and regressors"
)


def is_ensemble(model: Any) -> bool:
    """Whether this is a model that `read_model` may be able to read."""
    return isinstance(model, Booster | BoostResult) or type(model).__module__.split(".")[0] in (
        "xgboost",
        "sklearn",
    )


def read_model(model: Any) -> Ensemble:
    """Return a model's complete trees; raise BadParameter where it cannot be evaluated on shares."""
    if isinstance(model, BoostResult):
        return _read_booster(model.booster)
    if isinstance(model, Booster):
        return _read_booster(model)
    if type(model).__module__.startswith("xgboost"):
        return _read_xgboost(model)
    return _read_sklearn(model)


# tacit -----------------------------------------------------------------------------------------------------


def _read_booster(model: Booster) -> Ensemble:
    coded = [f.name for f in model.bins.features if f.missing]
    if coded:
        raise BadParameter(
            f"infer: the model declares codes of missing values, in {', '.join(map(repr, coded))}, which "
            "cannot be compared on shares. Train it on tables with missing values instead of these codes."
        )
    columns = tuple(
        Column(f.name) if f.levels is None else Column(f.name, f.width, f.levels, True)
        for f in model.bins.features
    )
    outputs = model.objective.outputs
    trees = [_read_tree(tree, model) for tree in model.trees]
    labels = model.labels if model.objective.name in ("binary", "multiclass") else ()
    of = [t % outputs for t in range(len(trees))]
    return make_ensemble(Inputs(columns), trees, of, [model.base] * outputs, labels)


def _read_tree(tree: Tree, model: Booster) -> PlainTree:
    below, sets = [0] * len(tree), {}
    for node, f in enumerate(tree.feature):
        if f == LEAF:
            continue
        feature = model.bins.features[f]
        if feature.cuts is None:
            goes_left = np.zeros(feature.width, dtype=bool)
            goes_left[: len(tree.sets[node])] = tree.sets[node]
            sets[node] = goes_left
        else:
            j = tree.cut[node]
            below[node] = int(key32(feature.cuts[j])) if j < len(feature.cuts) else ALWAYS_LEFT
    value = np.array(tree.value, dtype=np.float32).astype(np.float64)[:, None]
    right = [child + 1 for child in tree.left]
    return PlainTree(tree.feature, tree.left, right, below, tree.default_left, sets, value)


# XGBoost ---------------------------------------------------------------------------------------------------


def _read_xgboost(model: Any) -> Ensemble:
    kinds = {kind.__name__ for kind in type(model).__mro__}  # no import: tacit does not depend on it
    if "XGBModel" in kinds:
        if not (model.missing is None or np.isnan(model.missing)):
            raise BadParameter(
                f"infer: the model takes missing={model.missing!r} for missing values. Train it with NaN, "
                "which is the default."
            )
        booster = model.get_booster()
        best = booster.attr("best_iteration")  # predict of the scikit-learn interface stops there
    elif "Booster" in kinds:
        booster, best = model, None
    else:
        raise BadParameter(
            f"infer: {type(model).__name__} is not a model. Give an xgboost.Booster, XGBClassifier or "
            "XGBRegressor."
        )
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    return from_xgboost_json(learner, None if best is None else int(best) + 1)


def from_xgboost_json(learner: dict[str, Any], rounds: int | None = None) -> Ensemble:
    """Return the first `rounds` rounds of a model in XGBoost's JSON."""
    booster = learner["gradient_booster"]
    weights = booster.get("weight_drop") if booster["name"] == "dart" else None
    if booster["name"] not in ("gbtree", "dart"):
        raise BadParameter(f"infer: booster={booster['name']!r} has no trees. Use 'gbtree' or 'dart'.")
    data = (booster["gbtree"] if booster["name"] == "dart" else booster)["model"]
    entries = data["trees"]
    if any(int(entry["tree_param"]["size_leaf_vector"]) > 1 for entry in entries) or (
        int(learner["learner_model_param"]["num_target"]) > 1
    ):
        raise BadParameter("infer: models with several targets cannot be evaluated on shares. Use one each.")
    count = len(entries) if rounds is None else data["iteration_indptr"][rounds]
    objective = learner["objective"]["name"]
    outputs = max(1, int(learner["learner_model_param"]["num_class"]))
    columns = _xgboost_columns(learner, data)
    inputs = Inputs(columns)
    trees = [_read_xgboost_tree(entry, inputs) for entry in entries[:count]]
    if weights is not None:
        trees = [tree._replace(value=tree.value * w) for tree, w in zip(trees, weights)]
    base = _xgboost_base(objective, str(learner["learner_model_param"]["base_score"]), outputs)
    is_class = objective.startswith(("binary:", "multi:"))
    return make_ensemble(
        inputs, trees, data["tree_info"][:count], base, range(max(outputs, 2)) if is_class else ()
    )


def _xgboost_base(objective: str, text: str, outputs: int) -> list[float]:
    """Return the constant of each output before the link function."""
    values = np.array(json.loads(text if text.startswith("[") else f"[{text}]"), dtype=np.float64)
    base = np.broadcast_to(values, (outputs,))
    if objective in LOGISTIC:
        return list(-np.log(1 / base - 1))
    if objective in EXPONENTIAL:
        return list(np.log(base))
    if objective in IDENTITY:
        return list(base)
    raise BadParameter(
        f"infer: the objective {objective!r} is not supported. Supported are "
        f"{', '.join((*LOGISTIC, *EXPONENTIAL, *IDENTITY))}."
    )


def _xgboost_columns(learner: dict[str, Any], data: dict[str, Any]) -> tuple[Column, ...]:
    features = int(learner["learner_model_param"]["num_feature"])
    names = learner["feature_names"] or [f"f{k}" for k in range(features)]
    kinds = learner["feature_types"] or ["float"] * features
    most = [-1] * features
    for entry in data["trees"]:
        starts = entry["categories_segments"]
        for node, start, size in zip(entry["categories_nodes"], starts, entry["categories_sizes"]):
            f = entry["split_indices"][node]
            most[f] = max(most[f], *entry["categories"][start : start + size])
    levels = _xgboost_levels(data.get("cats", {}), features)
    return tuple(
        # one cell more, for codes that no set has: they go left
        Column(str(name), max(len(levels[k]), most[k] + 1) + 1, levels[k])
        if kinds[k] == "c" or most[k] >= 0
        else Column(str(name))
        for k, name in enumerate(names)
    )


def _xgboost_levels(cats: dict[str, Any], features: int) -> list[tuple[str, ...]]:
    """Return the levels of each column, where the model has been trained on a table that named them."""
    levels: list[tuple[str, ...]] = [()] * features
    for k, entry in enumerate(cats.get("enc", [])):
        values, offsets = entry["values"], entry.get("offsets")
        if offsets:  # text: the bytes of all levels, one after the other
            text = bytes(v & 255 for v in values)
            levels[k] = tuple(text[a:b].decode() for a, b in itertools.pairwise(offsets))
        else:
            levels[k] = tuple(str(v) for v in values)
    return levels


def _read_xgboost_tree(entry: dict[str, Any], inputs: Inputs) -> PlainTree:
    is_leaf = [child == -1 for child in entry["left_children"]]
    conditions = np.array(entry["split_conditions"], dtype=np.float32)
    sets = {}
    for node, start, size in zip(
        entry["categories_nodes"], entry["categories_segments"], entry["categories_sizes"]
    ):
        goes_left = np.ones(inputs.columns[entry["split_indices"][node]].codes, dtype=bool)
        goes_left[entry["categories"][start : start + size]] = False
        sets[node] = goes_left
    return PlainTree(
        [LEAF if leaf else f for leaf, f in zip(is_leaf, entry["split_indices"])],
        entry["left_children"],
        entry["right_children"],
        key32(conditions).tolist(),
        [bool(d) for d in entry["default_left"]],
        sets,
        conditions.astype(np.float64)[:, None],
    )


# scikit-learn ----------------------------------------------------------------------------------------------


def _read_sklearn(model: Any) -> Ensemble:
    from sklearn import ensemble, tree
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    known = (
        *(tree.BaseDecisionTree, ensemble.BaseEnsemble),
        *(ensemble.HistGradientBoostingClassifier, ensemble.HistGradientBoostingRegressor),
    )
    forests = (
        *(ensemble.RandomForestClassifier, ensemble.RandomForestRegressor),
        *(ensemble.ExtraTreesClassifier, ensemble.ExtraTreesRegressor),
    )
    boosted = (ensemble.GradientBoostingClassifier, ensemble.GradientBoostingRegressor)
    refusal = BadParameter(
        f"infer: scikit-learn's {type(model).__name__} cannot be evaluated on shares. Supported are "
        f"{SKLEARN}."
    )
    if not isinstance(model, known):
        raise refusal
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise BadParameter(f"infer: this {type(model).__name__} is not fitted. Call fit first.") from None
    if getattr(model, "n_outputs_", 1) > 1:
        raise BadParameter(
            "infer: models with several targets cannot be evaluated on shares. Fit one for each."
        )
    names = getattr(model, "feature_names_in_", [f"x{k}" for k in range(model.n_features_in_)])
    columns = tuple(Column(str(name)) for name in names)
    labels = tuple(getattr(model, "classes_", ()))
    takes_missing = bool(model.__sklearn_tags__().input_tags.allow_nan)
    if isinstance(model, known[2:]):
        return _read_hist(model, columns, labels)
    inputs = Inputs(columns, takes_missing=takes_missing)
    if isinstance(model, boosted):
        return _read_boosted(model, inputs, labels)
    if isinstance(model, tree.BaseDecisionTree):
        parts = [model]
    elif isinstance(model, forests):
        parts = list(model.estimators_)
    else:
        raise refusal
    trees = [_read_sklearn_tree(part.tree_, bool(labels)) for part in parts]
    trees = [t._replace(value=t.value / len(trees)) for t in trees]
    values = trees[0].value.shape[1]
    return make_ensemble(inputs, trees, [0] * len(trees), [0.0] * values, labels)


def _read_sklearn_tree(data: Any, is_class: bool, scale: float = 1.0) -> PlainTree:
    value = data.value[:, 0, :]
    if is_class:  # shares of classes
        value = value / value.sum(axis=1, keepdims=True)
    leaf = data.children_left == -1
    return PlainTree(
        np.where(leaf, LEAF, data.feature).tolist(),
        data.children_left.tolist(),
        data.children_right.tolist(),
        (key32(_round_down(data.threshold)) + 1).tolist(),
        [bool(m) for m in data.missing_go_to_left],
        {},
        value * scale,
    )


def _round_down(thresholds: np.ndarray) -> np.ndarray:
    """Return the largest float32 not above each threshold: a float32 is ≤ the one if it is ≤ the other."""
    near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)


def _read_boosted(model: Any, inputs: Inputs, labels: tuple[Any, ...]) -> Ensemble:
    if model.init is not None and model.init != "zero":
        raise BadParameter(
            f"infer: this {type(model).__name__} begins with a model of its own (init={model.init!r}), which "
            "is not a tree. Use init=None or 'zero'."
        )
    base = np.asarray(model._raw_predict_init(np.zeros((1, model.n_features_in_))), dtype=np.float64)[0]
    stages = model.estimators_
    trees = [_read_sklearn_tree(part.tree_, False, model.learning_rate) for part in stages.ravel()]
    of = [k % stages.shape[1] for k in range(stages.size)]
    return make_ensemble(inputs, trees, of, list(base), labels)


def _read_hist(model: Any, columns: tuple[Column, ...], labels: tuple[Any, ...]) -> Ensemble:
    if model.is_categorical_ is not None and model.is_categorical_.any():
        raise BadParameter(
            f"infer: this {type(model).__name__} has categorical features, which are not supported. Encode "
            "them as numbers (OrdinalEncoder, OneHotEncoder), or use tacit.boost or XGBoost."
        )
    stages = model._predictors
    trees = []
    for part in (predictor for stage in stages for predictor in stage):
        n = part.nodes
        trees.append(
            PlainTree(
                np.where(n["is_leaf"], LEAF, n["feature_idx"].astype(np.int64)).tolist(),
                n["left"].astype(np.int64).tolist(),
                n["right"].astype(np.int64).tolist(),
                (key64(n["num_threshold"]) + 1).tolist(),
                [bool(m) for m in n["missing_go_to_left"]],
                {},
                n["value"].astype(np.float64)[:, None],
            )
        )
    base = np.ravel(model._baseline_prediction).astype(np.float64)
    of = [k % len(base) for k in range(len(trees))]
    return make_ensemble(Inputs(columns, wide=True), trees, of, list(base), labels)
