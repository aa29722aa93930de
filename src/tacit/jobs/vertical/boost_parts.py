"""One party's part of boosted trees over columns of several parties, and its file.

FOLDER/part.json     {"format": 2, "kind": "boost", "party": …, "bins": …, "splits": …, "trees": …}

Every part has the shape of the trees and the party's own splits. Values of leaves, gains and the constant are
in the label holder's part only. Nobody has the splits of another party.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...boost.objectives import OBJECTIVES, Objective
from ...boost.vertical_bins import OwnBins, OwnSplit
from ...boost.vertical_grower import LEAF, VerticalTree
from ...crypto.prg import KEY
from ...errors import BadData, MissingFiles
from ...files import write_atomic
from ...mpc.leaf_scores import draw_mask
from .boost_programs import check_tree, count_leaves, leaf_words, mark_trees, to_trees

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2
KIND = "boost"


@dataclass(frozen=True)
class BoostPart:
    """What one party has after training."""

    party: str
    parties: tuple[str, ...]
    label_at: str
    helper: str
    objective_name: str
    rows: int
    bins: OwnBins = field(repr=False)
    splits: tuple[OwnSplit, ...] = field(repr=False)
    trees: tuple[VerticalTree, ...] = field(repr=False)
    id: str = ""
    job: str = ""  # digest of the job
    outputs: int = 1
    base: float | None = None  # at the label holder, with values of leaves
    labels: tuple[str, ...] = ()
    label: str = ""
    losses: tuple[float, ...] = ()
    masked: tuple[int, ...] = ()  # at the others: the values of leaves under the mask of training
    leaf_key: str = ""  # at the label holder: the key of this mask

    @property
    def has_label(self) -> bool:
        return self.party == self.label_at

    @property
    def place(self) -> int:
        return self.parties.index(self.party)

    @property
    def objective(self) -> Objective:
        return OBJECTIVES[self.objective_name](len(self.labels))

    @cached_property
    def terms(self) -> list[LeafTerm]:
        """The leaves of all trees, those with the same conditions of others taken together."""
        return make_terms(self.trees, self.parties.index(self.label_at))

    def goes_left(self, frame: pd.DataFrame) -> np.ndarray:
        """Return for each row and each of the party's splits whether it goes left."""
        codes = self.bins.encode(frame)
        if not self.splits:
            return np.zeros((len(frame), 0), dtype=bool)
        return np.stack([split.sides(codes) for split in self.splits], axis=1)

    @property
    def leaf_outputs(self) -> list[int]:
        """The output that each leaf adds to."""
        return [k % self.outputs for k, t in enumerate(self.trees) for o in t.owner if o == LEAF]

    @property
    def mask(self) -> Tensor:
        """At the label holder: the words that hide the values of leaves."""
        return draw_mask(bytes.fromhex(self.leaf_key), len(self.leaf_outputs))

    @property
    def leaves(self) -> Tensor:
        """The values of leaves as words: at the label holder as they are, at the others masked."""
        if self.has_label:
            return leaf_words(self.trees, self.base or 0.0)
        return torch.tensor(self.masked, dtype=torch.int64)

    @property
    def mark(self) -> str:
        """A digest that is the same at all parties: of the trees, and the masked values of leaves.

        The label holder computes it from its values, so that those of another model are refused.
        """
        masked = self.leaves - self.mask if self.has_label else self.leaves
        return mark_trees(self.trees, masked.tolist())

    def conditions(self, frame: pd.DataFrame) -> np.ndarray:
        """Return whether this party's own conditions of each leaf hold: rows × leaves, int64."""
        left = self.goes_left(frame)
        found = []
        for tree in self.trees:
            holds = {0: np.ones(len(frame), dtype=bool)}
            for node, owner in enumerate(tree.owner):  # children come after their parents
                if owner == LEAF:
                    continue
                for side, child in ((True, tree.left[node]), (False, tree.left[node] + 1)):
                    own = left[:, tree.split[node]] == side if owner == self.place else True
                    holds[child] = holds[node] & own
            found += [holds[node] for node, owner in enumerate(tree.owner) if owner == LEAF]
        return np.stack(found, axis=1).astype(np.int64) if found else np.zeros((len(frame), 0), np.int64)

    def factors(self, frame: pd.DataFrame) -> np.ndarray:
        """Return this party's factor of each term: rows × terms.

        A holder of columns: whether its conditions hold. The label holder: the values of the leaves whose
        conditions of its own hold. The product over all parties, summed over terms, is the margin.
        """
        left = self.goes_left(frame)
        out = np.empty((len(frame), len(self.terms)))
        for k, term in enumerate(self.terms):
            if self.has_label:
                out[:, k] = sum(
                    _hold(left, conditions).astype(np.float64) * self.trees[term.tree].value[leaf]
                    for leaf, conditions in term.leaves
                )
            else:
                out[:, k] = _hold(left, term.others.get(self.place, ()))
        return out

    def margins(self, products: np.ndarray) -> np.ndarray:
        """Return the margins of rows × terms products: rows × outputs."""
        margin = np.full((len(products), self.outputs), 0.0 if self.base is None else self.base)
        for k, term in enumerate(self.terms):
            margin[:, term.tree % self.outputs] += products[:, k]
        return margin

    def to_dict(self) -> dict[str, Any]:
        keys = ("left", "owner", "split", *(("value", "gain", "cover", "rows") if self.has_label else ()))
        own: dict[str, Any] = {
            "format": FORMAT,
            "kind": KIND,
            "party": self.party,
            "parties": list(self.parties),
            "label_at": self.label_at,
            "helper": self.helper,
            "objective": self.objective_name,
            "rows": self.rows,
            "outputs": self.outputs,
            "id": self.id,
            "job": self.job,
            "bins": self.bins.to_dict(),
            "splits": [s.to_dict(self.bins.bins) for s in self.splits],
            "trees": [{key: getattr(t, key) for key in keys} for t in self.trees],
        }
        if self.has_label:
            own |= {
                "base": self.base,
                "labels": list(self.labels),
                "label": self.label,
                "losses": list(self.losses),
                "leaf_key": self.leaf_key,
            }
        else:
            own["masked"] = list(self.masked)
        return own

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "part.json", json.dumps(self.to_dict(), ensure_ascii=False), mode=0o600)
        return folder

    @classmethod
    def from_dict(cls, t: Mapping[str, Any], where: str) -> BoostPart:
        """Read a part; the file is untrusted data."""
        try:
            if t["kind"] != KIND or t["format"] != FORMAT or t["objective"] not in OBJECTIVES:
                raise ValueError(f"format {t['format']} of {t['kind']!r:.40}")
            parties = tuple(map(str, t["parties"]))
            place, bins = parties.index(str(t["party"])), OwnBins.from_dict(t["bins"])
            splits = tuple(OwnSplit.from_dict(s, bins.bins) for s in t["splits"])
            has_label = t["party"] == t["label_at"]
            for entry in t["trees"]:
                problem = check_tree(entry, len(parties), {place: len(splits)})
                if problem or (has_label and not all(math.isfinite(v) for v in entry["value"])):
                    raise ValueError(problem or "a leaf is not finite")
                if has_label and len({len(entry[k]) for k in ("left", "value", "gain", "cover", "rows")}) > 1:
                    raise ValueError("a tree is incomplete")
            outputs = int(t["outputs"])
            labels = tuple(map(str, t["labels"])) if has_label else ()
            if outputs < 1 or len(t["trees"]) % outputs or t["label_at"] not in parties:
                raise ValueError("trees of incomplete rounds")
            if has_label and t["objective"] in ("binary", "multiclass") and len(labels) < 2:
                raise ValueError("classes without names")
            return cls(
                str(t["party"]),
                parties,
                str(t["label_at"]),
                str(t["helper"]),
                str(t["objective"]),
                int(t["rows"]),
                bins,
                splits,
                tuple(to_trees(t["trees"])),
                str(t["id"]),
                str(t["job"]),
                outputs,
                float(t["base"]) if has_label else None,
                labels,
                str(t["label"]) if has_label else "",
                tuple(float(v) for v in t["losses"]) if has_label else (),
                () if has_label else _read_masked(t),
                _read_key(t) if has_label else "",
            )
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise BadData(f"{where} is no part of boosted trees, or it is damaged: {error!r:.200}.") from None


def _read_masked(t: Mapping[str, Any]) -> tuple[int, ...]:
    masked = tuple(t["masked"])
    if len(masked) != count_leaves(t["trees"]) or not all(
        type(v) is int and -(1 << 63) <= v < 1 << 63 for v in masked
    ):
        raise ValueError("masked values of other leaves")
    return masked


def _read_key(t: Mapping[str, Any]) -> str:
    key = str(t["leaf_key"])
    if len(bytes.fromhex(key)) != KEY:
        raise ValueError("no key of the leaves")
    return key


@dataclass(frozen=True)
class LeafTerm:
    """Leaves of a tree with the same conditions of parties other than the label holder.

    A condition is (which of the owner's splits, whether it goes left); `leaves` have those of the label
    holder.
    """

    tree: int
    others: Mapping[int, tuple[tuple[int, bool], ...]]
    leaves: tuple[tuple[int, tuple[tuple[int, bool], ...]], ...]


def make_terms(trees: tuple[VerticalTree, ...], label_place: int) -> list[LeafTerm]:
    terms = []
    for number, tree in enumerate(trees):
        found: dict[Any, tuple[dict[int, Any], list[Any]]] = {}
        waiting: list[tuple[int, tuple[tuple[int, int, bool], ...]]] = [(0, ())]
        while waiting:
            node, path = waiting.pop()
            owner = tree.owner[node]
            if owner != LEAF:
                for side, child in ((True, tree.left[node]), (False, tree.left[node] + 1)):
                    waiting.append((child, (*path, (owner, tree.split[node], side))))
                continue
            own = tuple((s, side) for o, s, side in path if o == label_place)
            others: dict[int, tuple[tuple[int, bool], ...]] = {}
            for o, s, side in path:
                if o != label_place:
                    others[o] = (*others.get(o, ()), (s, side))
            key = tuple(sorted(others.items()))
            found.setdefault(key, (others, []))[1].append((node, own))
        terms += [LeafTerm(number, others, tuple(leaves)) for others, leaves in found.values()]
    return terms


def _hold(left: np.ndarray, conditions: tuple[tuple[int, bool], ...]) -> np.ndarray:
    out = np.ones(len(left), dtype=bool)
    for split, side in conditions:
        out &= left[:, split] == side
    return out


@dataclass(frozen=True)
class HelperPart:
    """What the helper has after training: whom it helped, and with which trees, by a digest."""

    party: str
    parties: tuple[str, ...]
    label_at: str
    rows: int
    job: str
    mark: str
    leaf_key: str

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": KIND, "is_helper": True, **asdict(self)}

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / "part.json", json.dumps(self.to_dict(), ensure_ascii=False), mode=0o600)
        return folder

    @classmethod
    def from_dict(cls, t: Mapping[str, Any], where: str) -> HelperPart:
        try:
            if t["kind"] != KIND or t["format"] != FORMAT:
                raise ValueError(f"format {t['format']} of {t['kind']!r:.40}")
            names = tuple(map(str, t["parties"]))
            if t["label_at"] not in names or len(names) < 2:
                raise ValueError("a label at no party")
            return cls(
                str(t["party"]),
                names,
                str(t["label_at"]),
                int(t["rows"]),
                str(t["job"]),
                str(t["mark"]),
                _read_key(t),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadData(f"{where} is no part of boosted trees, or it is damaged: {error!r:.200}.") from None


def is_part(folder: str | Path) -> bool:
    """Whether a folder has a party's part of boosted trees."""
    try:
        content = json.loads((Path(folder) / "part.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("kind") == KIND


def read_any(folder: str | Path) -> BoostPart | HelperPart:
    """Read a party's part, or the helper's."""
    file = Path(folder) / "part.json"
    if not file.is_file():
        raise MissingFiles(f"there is no part of boosted trees in {folder}: part.json is missing.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(f"{file} cannot be read: {error}.") from None
    if isinstance(content, dict) and content.get("is_helper") is True:
        return HelperPart.from_dict(content, str(file))
    return BoostPart.from_dict(content, str(file))


def read_part(folder: str | Path) -> BoostPart:
    part = read_any(folder)
    if isinstance(part, HelperPart):
        raise BadData(f"{folder} contains the part of the helper, which has no columns.")
    return part


def make_part(
    result: Mapping[str, Any],
    party: str,
    parties: tuple[str, ...],
    label_at: str,
    helper: str,
    objective: str,
    bins: OwnBins,
    outputs: int,
    label: str = "",
    id: str = "",
    job: str = "",
) -> BoostPart:
    """Convert what a program of `boost_programs` returned."""
    return BoostPart(
        party,
        parties,
        label_at,
        helper,
        objective,
        int(result["rows"]),
        bins,
        tuple(OwnSplit.from_dict(s, bins.bins) for s in result["splits"]),
        tuple(to_trees(result["trees"])),
        id,
        job,
        outputs,
        result.get("base"),
        tuple(result.get("labels", ())),
        label,
        tuple(result.get("losses", ())),
        tuple(result.get("masked", ())),
        str(result.get("leaf_key", "")),
    )
