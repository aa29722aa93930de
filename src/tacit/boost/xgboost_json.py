"""XGBoost's JSON form of a model: `xgboost.Booster().load_model(path)` gives the same predictions.

https://xgboost.readthedocs.io/en/stable/tutorials/saving_model.html. Written as version 2.1, which later
versions read. Categories are codes (`Bins.to_matrix`): the place of the level in sorted order. The bins are
kept beside the trees, as an attribute that XGBoost ignores, so that `load` gives back a model that takes
tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadData, TacitError
from .bins import Bins
from .model import Booster, thresholds
from .objectives import OBJECTIVES, POISSON_STEP, Custom, Objective
from .trees import LEAF, Tree

VERSION = [2, 1, 0]
ROOT_PARENT = 2147483647
CATEGORY_CONDITION = 1e-45  # what XGBoost writes where a set decides
ATTRIBUTE = "tacit"
FORMAT = 1


def to_json(model: Booster) -> dict[str, Any]:
    """Return the model as plain values."""
    objective, bins = model.objective, model.bins
    features = len(bins.features)
    trees = [_tree(tree, k, bins) for k, tree in enumerate(model.trees)]
    outputs = objective.outputs
    about = {
        "format": FORMAT,
        "bins": bins.to_dict(),
        "labels": list(model.labels),
        "objective": objective.name,
        "base": model.base,
        "rows": [tree.rows for tree in model.trees],
    }
    return {
        "version": VERSION,
        "learner": {
            "attributes": {ATTRIBUTE: json.dumps(about, ensure_ascii=False)},
            "feature_names": bins.names,
            "feature_types": ["c" if c else "float" for c in bins.is_category],
            "gradient_booster": {
                "name": "gbtree",
                "model": {
                    "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
                    "iteration_indptr": list(range(0, len(trees) + 1, outputs)),
                    "tree_info": [k % outputs for k in range(len(trees))],
                    "trees": trees,
                },
            },
            "learner_model_param": {
                "base_score": repr(float(np.float32(_base_score(objective, model.base)))),
                "boost_from_average": "1",
                "num_class": str(outputs if outputs > 1 else 0),
                "num_feature": str(features),
                "num_target": "1",
            },
            "objective": _objective(objective),
        },
    }


def _base_score(objective: Objective, base: float) -> float:
    """Return the constant as XGBoost has it: a probability, a mean; for several classes nothing."""
    if objective.name == "binary":
        return 1.0 / (1.0 + float(np.exp(-base)))
    if objective.name == "poisson":
        return float(np.exp(base))
    return base


def _objective(objective: Objective) -> dict[str, Any]:
    if objective.name == "multiclass":
        return {"name": objective.xgboost, "softmax_multiclass_param": {"num_class": str(objective.classes)}}
    if objective.name == "poisson":
        return {"name": objective.xgboost, "poisson_regression_param": {"max_delta_step": str(POISSON_STEP)}}
    return {"name": objective.xgboost, "reg_loss_param": {"scale_pos_weight": "1"}}


def _tree(tree: Tree, index: int, bins: Bins) -> dict[str, Any]:
    n, cuts = len(tree), thresholds(tree, bins)
    parents = [ROOT_PARENT] * n
    for node, f in enumerate(tree.feature):
        if f != LEAF:
            parents[tree.left[node]] = parents[tree.left[node] + 1] = node
    nodes = sorted(tree.sets)
    # listed categories go right. XGBoost reads no empty list, which a random split may have: a code of no row
    right = [np.flatnonzero(~tree.sets[node]).tolist() or [len(tree.sets[node])] for node in nodes]
    sizes = [len(r) for r in right]
    is_leaf = [f == LEAF for f in tree.feature]
    conditions = [
        v if leaf else CATEGORY_CONDITION if node in tree.sets else cut
        for node, (v, leaf, cut) in enumerate(zip(tree.value, is_leaf, cuts))
    ]
    return {
        "base_weights": [v if leaf else w for v, leaf, w in zip(tree.value, is_leaf, tree.weight)],
        "categories": [c for r in right for c in r],
        "categories_nodes": nodes,
        "categories_segments": np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int).tolist()
        if nodes
        else [],
        "categories_sizes": sizes,
        "default_left": [int(d) for d in tree.default_left],
        "id": index,
        "left_children": [-1 if leaf else c for leaf, c in zip(is_leaf, tree.left)],
        "loss_changes": tree.gain,
        "parents": parents,
        "right_children": [-1 if leaf else c + 1 for leaf, c in zip(is_leaf, tree.left)],
        "split_conditions": conditions,
        "split_indices": [0 if leaf else f for leaf, f in zip(is_leaf, tree.feature)],
        "split_type": [int(node in tree.sets) for node in range(n)],
        "sum_hessian": tree.cover,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(len(bins.features)),
            "num_nodes": str(n),
            "size_leaf_vector": "1",
        },
    }


def from_json(data: Any, source: str = "this file") -> Booster:
    """Return a model that `to_json` described; raise BadData for anything else."""
    try:
        about = json.loads(data["learner"]["attributes"][ATTRIBUTE])
        if about["format"] != FORMAT:
            raise BadData(f"{source} was written by another version of tacit (format {about['format']}).")
        bins, labels = Bins.from_dict(about["bins"]), tuple(map(str, about["labels"]))
        name = str(about["objective"])
        objective = Custom(_no_gradients, 1.0, 1.0) if name == "custom" else OBJECTIVES[name](len(labels))
        entries = data["learner"]["gradient_booster"]["model"]["trees"]
        trees = [_read_tree(entry, rows, bins) for entry, rows in zip(entries, about["rows"], strict=True)]
        return Booster(bins, objective, float(about["base"]), labels, trees)
    except TacitError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadData(
            f"{source} is not a model that tacit.boost saved ({type(error).__name__}: {error}). Files of "
            "XGBoost itself do not say how a table is binned; load them with xgboost."
        ) from None


def _no_gradients(margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    raise BadData("the custom objective of a saved model is not in its file; the model only predicts.")


def _read_tree(entry: dict[str, Any], rows: list[int], bins: Bins) -> Tree:
    n = len(entry["left_children"])
    tree = Tree(
        feature=[LEAF if c == -1 else int(f) for c, f in zip(entry["left_children"], entry["split_indices"])],
        cut=[0] * n,
        default_left=[bool(d) for d in entry["default_left"]],
        left=[max(int(c), 0) for c in entry["left_children"]],
        value=[0.0] * n,
        gain=[float(v) for v in entry["loss_changes"]],
        cover=[float(v) for v in entry["sum_hessian"]],
        rows=[int(v) for v in rows],
        weight=[float(v) for v in entry["base_weights"]],
    )
    right: dict[int, list[int]] = {}
    for node, start, size in zip(
        entry["categories_nodes"], entry["categories_segments"], entry["categories_sizes"], strict=True
    ):
        right[int(node)] = [int(c) for c in entry["categories"][start : start + size]]
    for node, condition in enumerate(entry["split_conditions"]):
        f = tree.feature[node]
        if f == LEAF:
            tree.value[node] = float(np.float32(condition))
        elif node in right:
            goes_left = np.ones(int(bins.widths[f]), dtype=bool)
            if right[node] != [len(goes_left)]:  # no category
                goes_left[right[node]] = False
            tree.sets[node] = goes_left
        else:
            cuts = np.asarray(bins.features[f].cuts, dtype=np.float32)
            tree.cut[node] = int(np.searchsorted(cuts, np.float32(condition)))
    tree.check(bins)
    return tree


def load(path: str | Path) -> Booster:
    """Read a model that `save` wrote; `predict` and `importance` are those of the trained one."""
    file = Path(path)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise BadData(f"{file} is not JSON: {error}.") from None
    return from_json(data, str(file))
