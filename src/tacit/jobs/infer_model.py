"""A saved model as `tacit infer` evaluates it: what is private, and what the other side must know of it.

Trees: XGBoost's JSON, written by `tacit boost` or by XGBoost. Networks: the directory of a run. Nothing is
unpickled. Public are the names of columns, the levels of categories and the names of classes; of a network
also how its columns are scaled, which are statistics of its training rows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..boost.ensemble import Ensemble, Inputs
from ..boost.read_model import EXPONENTIAL, LOGISTIC, from_xgboost_json, read_model
from ..boost.xgboost_json import ATTRIBUTE, from_json
from ..data.table_files import read_table
from ..data.thousands import refuse_thousands
from ..engine.members import as_one_network
from ..errors import BadData, BadParameter, BadRun, MissingFiles, ProtocolError
from ..mpc.model import compile, to_text
from ..mpc.ring import FixedPoint
from ..mpc.trees import compile_trees, encode_rows
from ..release import score
from ..release.release import Release, has_release
from ..release.release import read_model as read_run

if TYPE_CHECKING:
    import pandas as pd

LINKS = ("identity", "sigmoid", "softmax", "exp")
MOST_WIDTH = 1 << 16  # numbers of an encoded row, in what another party describes


@dataclass(frozen=True)
class PublicModel:
    """What all that take part know of the model: how rows are encoded, and what its outputs mean."""

    inputs: Inputs | None = None  # of trees
    labels: tuple[str, ...] = ()
    link: str = "identity"
    release: Release | None = None  # of a network

    @property
    def columns(self) -> list[str]:
        if self.inputs is not None:
            return [c.name for c in self.inputs.columns]
        assert self.release is not None
        assert self.release.pipeline is not None
        return list(self.release.pipeline.recipe.inputs)

    def to_text(self) -> str:
        if self.inputs is not None:
            entry = {"inputs": self.inputs.to_dict(), "labels": list(self.labels), "link": self.link}
        else:
            assert self.release is not None
            entry = {"release": self.release.to_dict()}
        return json.dumps(entry, allow_nan=False)

    @classmethod
    def from_text(cls, text: str, sender: str) -> PublicModel:
        """Read what the model's holder sent, which is untrusted."""
        try:
            entry = json.loads(text)
            if "release" in entry:
                release = Release.from_dict(entry["release"], f"the description that {sender!r} sent")
                if release.pipeline is None:
                    raise ValueError("there is no preparation of a table")
                return cls(release=release)
            labels, link = tuple(map(str, entry["labels"])), entry["link"]
            if link not in LINKS:
                raise ValueError(f"the link {link!r:.40}")
            inputs = Inputs.from_dict(entry["inputs"])
            if not 0 < inputs.width <= MOST_WIDTH:  # each row takes so much memory
                raise ValueError(f"rows of {inputs.width} numbers; at most {MOST_WIDTH} are encoded")
            return cls(inputs, labels, link)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadData, BadRun) as error:
            raise ProtocolError(f"{sender!r} sent no description of a model: {error!r:.300}.") from None

    def encode(self, frame: pd.DataFrame, fixed: FixedPoint) -> tuple[Tensor, list[str]]:
        """Return the rows of a table as the programs take them, and notes."""
        if self.inputs is not None:
            return encode_rows(self.inputs.encode(frame), fixed), []
        assert self.release is not None
        assert self.release.pipeline is not None
        recipe = self.release.pipeline.recipe
        table, _ = score.select_columns(recipe, frame, self.release.pipeline.label)
        table = score.interpret(table, recipe)
        notes = score.note_unseen(score.count_unseen(table, recipe), recipe)
        return self.release.pipeline.encode(table), notes

    def decode(self, outputs: Tensor, reveal: str) -> dict[str, Any]:
        """Return the columns of the scores: probabilities and labels, or numbers; or only labels."""
        labels = self.labels if self.release is None else self.release.labels
        if reveal == "argmax":
            codes = outputs.long().reshape(-1)
            if not labels or not bool(((codes >= 0) & (codes < len(labels))).all()):
                raise ProtocolError("the opened classes are not among the model's.")
            return {"prediction": [labels[k] for k in codes.tolist()]}
        if self.release is not None:
            return score.decode(self.release, outputs.double(), score.check_threshold(self.release, None))
        found = outputs.double().reshape(len(outputs), -1)
        if self.link == "sigmoid":
            found = torch.sigmoid(found)
        elif self.link == "softmax":
            found = found.softmax(1)
        elif self.link == "exp":
            found = found.exp()
        if labels and self.link != "identity":
            p = found if found.shape[1] > 1 else torch.cat([1 - found, found], 1)
            best = [labels[k] for k in p.argmax(1).tolist()]
            return {"prediction": best, **{f"p({n})": p[:, k].numpy() for k, n in enumerate(labels)}}
        names = ["score"] if found.shape[1] == 1 else [f"score({n})" for n in labels or range(found.shape[1])]
        return {name: found[:, k].numpy() for k, name in enumerate(names)}


@dataclass(frozen=True)
class SavedModel:
    """The holder's side: `layers` are public, `weights` are not."""

    public: PublicModel
    layers: str
    weights: Mapping[str, Tensor]


def read_saved(path: str | Path, reveal: str, fixed: FixedPoint) -> SavedModel:
    """Read a model file, or the directory of a run; check that it can be evaluated on shares."""
    place = Path(path)
    if place.is_dir():
        return _read_network(place, reveal, fixed)
    if not place.is_file():
        raise MissingFiles(f"there is no model {place}. Give XGBoost's JSON, or the directory of a run.")
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
        learner = data["learner"]
        is_own = ATTRIBUTE in learner.get("attributes", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadData(
            f"{place} is no model that can be read: {error!r:.200}. Give XGBoost's JSON (booster.save_model("
            "'model.json')), or the directory of a run."
        ) from None
    if is_own:
        booster = from_json(data, str(place))
        ensemble, objective = read_model(booster), booster.objective.name
        link = {"binary": "sigmoid", "multiclass": "softmax", "poisson": "exp"}.get(objective, "identity")
        labels = tuple(map(str, booster.labels))
    else:
        try:
            ensemble, objective = from_xgboost_json(learner), str(learner["objective"]["name"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BadData(f"{place} is damaged, or of an unknown version: {error!r:.200}.") from None
        link = (
            "sigmoid"
            if objective in LOGISTIC
            else "exp"
            if objective in EXPONENTIAL
            else "softmax"
            if objective.startswith("multi:")
            else "identity"
        )
        labels = tuple(map(str, ensemble.labels))
    return _from_trees(ensemble, labels, link, reveal, fixed)


def _from_trees(
    ensemble: Ensemble, labels: tuple[str, ...], link: str, reveal: str, fixed: FixedPoint
) -> SavedModel:
    if reveal == "argmax" and not labels:
        raise BadParameter("infer: reveal is 'argmax'; a regression has no classes. Use 'logits'.")
    layers, weights = compile_trees(
        ensemble.nodes,
        ensemble.offsets,
        ensemble.leaves,
        ensemble.outputs,
        fixed,
        bound=ensemble.bound,
        reveal=reveal,
    )
    return SavedModel(PublicModel(ensemble.inputs, labels, link), to_text(layers), weights)


def _read_network(folder: Path, reveal: str, fixed: FixedPoint) -> SavedModel:
    if not has_release(folder):
        raise MissingFiles(f"{folder} is not the directory of a run. Give one, or XGBoost's JSON.")
    release, module = read_run(folder)
    if release.pipeline is None:
        raise BadParameter(
            f"infer: the model in {folder} was not trained on a table, so it cannot read one. Use "
            "tacit.infer in Python."
        )
    if reveal == "argmax" and not release.labels:
        raise BadParameter("infer: reveal is 'argmax'; a regression has no classes. Use 'logits'.")
    layers, weights = compile(as_one_network(module))
    for name, w in weights.items():
        fixed.encode(w, f"the model's {name}")
    loss = {"loss": release.loss} if release.loss else {}
    public = dataclasses.replace(release, metadata=loss)  # the rest is about the run
    return SavedModel(PublicModel(release=public), to_text(layers), weights)


def read_rows(
    file: str | Path, columns: Sequence[str], id_: str, is_text: bool, reading: Mapping[str, Any]
) -> tuple[pd.DataFrame, list[str]]:
    """Read the agreed columns of a table, and the ids (or numbers) of its rows.

    `is_text`: every cell as text, as a network's own preparation reads it. `reading`: how a CSV file is read.
    """
    from ..parameters import nearest

    frame = read_table(file, ids=(id_,) if id_ else (), text=is_text, **reading)
    known = list(map(str, frame.columns))
    missing = [c for c in (*columns, *([id_] if id_ else [])) if c not in known]
    if missing:
        raise BadData(f"{file} has no column {missing[0]!r}. {nearest(missing[0], known)}")
    if not len(frame):
        raise BadData(f"{file} has column names and no rows. Give at least one row.")
    ids = [str(v) for v in frame[id_]] if id_ else [str(k) for k in range(1, len(frame) + 1)]
    chosen = frame[list(columns)]
    if is_text:
        if reading.get("decimal") == ",":
            refuse_thousands(file, chosen)
        chosen = chosen.astype(object).where(chosen.notna(), np.nan)
    return chosen, ids
