"""The result of `tacit.boost.train` for parties with different columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...boost.model import KINDS, rank_columns
from ...boost.vertical_grower import LEAF
from ...data.identifiers import normal
from ...errors import BadData, MissingFiles
from ...parameters import bad
from ...parties.ledger import Ledger
from ...results import JobResult
from .boost_parts import BoostPart, read_any
from .split import folder_of
from .split_deployed import check_vacant

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class VerticalBoostResult(JobResult):
    """Boosted trees over columns of several parties.

    `parts`: each party's own part of the trees. They are in one object only because this is one process: a
    deployed party has its own part.
    """

    title = "Boosted trees over columns of several parties"
    facts: ClassVar[tuple[str, ...]] = (
        "objective",
        "label",
        "rows",
        "parties",
        "trees",
        "leaves",
        "best_round",
        "backend",
        "importances",
        "losses",
        "notes",
    )

    parts: dict[str, BoostPart] = field(repr=False)
    ledger: Ledger = field(repr=False)
    best_round: int | None = None
    notes: tuple[str, ...] = ()
    backend: str = ""  # how sums were hidden; empty if it was read from files

    @property
    def value(self) -> dict[str, BoostPart]:
        return self.parts

    @property
    def _holder(self) -> BoostPart:
        return self.parts[next(iter(self.parts.values())).label_at]

    @property
    def objective(self) -> str:
        return self._holder.objective_name

    @property
    def label(self) -> str:
        return self._holder.label

    @property
    def rows(self) -> int:
        return self._holder.rows

    @property
    def parties(self) -> list[str]:
        return list(self.parts)

    @property
    def trees(self) -> int:
        return len(self._holder.trees)

    @property
    def leaves(self) -> int:
        return sum((len(tree) + 1) // 2 for tree in self._holder.trees)

    @property
    def losses(self) -> list[float]:
        """The mean losses of held-out rows after each round."""
        return list(self._holder.losses)

    @property
    def importances(self) -> list[dict[str, Any]]:
        return [{"feature": name, "gain": float(v)} for name, v in self.importance().items()]

    def importance(self, kind: str = "gain") -> pd.Series:
        """Return a number for each column of each party, in descending order: mean "gain" of its splits,
        "total_gain", "weight" (how many splits), "cover" and "total_cover" (Hessians).

        Of a real federation, the label holder has gains by party, and each party how often its columns split.
        """

        if kind not in KINDS:
            raise bad("importance", "kind", kind, ", ".join(map(repr, KINDS)))
        names = [(p, c) for p, part in self.parts.items() for c in part.bins.bins.names]
        place = {name: k for k, name in enumerate(names)}
        count = np.zeros(len(names))
        gain, cover = count.copy(), count.copy()
        for tree in self._holder.trees:
            for node, owner in enumerate(tree.owner):
                if owner == LEAF:
                    continue
                part = self.parts[self._holder.parties[owner]]
                column = part.bins.bins.names[part.splits[tree.split[node]].column]
                at = place[part.party, column]
                count[at] += 1
                gain[at] += tree.gain[node]
                cover[at] += tree.cover[node]
        columns = [c for _, c in names]
        index = [c if columns.count(c) == 1 else f"{p}.{c}" for p, c in names]
        return rank_columns(kind, index, count, gain, cover)

    def predict(self, tables: Mapping[str, Any], *, margin: bool = False) -> np.ndarray:
        """Return a prediction for each row of {party: DataFrame}, with the same rows in the same order.

        Tables that have the id column are compared by it, and refused if a row is of different people.

        With two classes the probability of the second, with more classes one column for each, otherwise the
        value; `margin` returns what comes before the sigmoid, softmax or exponential. This multiplies the
        parties' factors in one place; `tacit predict` does it between real parties, on shares.
        """
        wanted = [n for n, p in self.parts.items() if p.bins.bins.features]
        if not isinstance(tables, Mapping) or not set(wanted) <= set(tables):
            names = list(tables) if isinstance(tables, Mapping) else type(tables).__name__
            raise bad("predict", "tables", names, f"the tables of {wanted} by party")
        sizes = {n: len(t) for n, t in tables.items() if n in self.parts}
        if len(set(sizes.values())) != 1:
            raise bad("predict", "the number of rows", sizes, "the same at all parties")
        self._check_ids({n: tables[n] for n in wanted})
        import pandas as pd

        blank = pd.DataFrame(index=range(next(iter(sizes.values()))))
        products = np.prod([p.factors(tables.get(n, blank)) for n, p in self.parts.items()], axis=0)
        found = self._holder.margins(products)
        if margin:
            return found if found.shape[1] > 1 else found[:, 0]
        return self._holder.objective.predict(found)

    def _check_ids(self, tables: Mapping[str, Any]) -> None:
        """Refuse rows of different people: their factors would be multiplied without an error."""
        ids = {n: list(t[self.parts[n].id]) for n, t in tables.items() if self.parts[n].id in t}
        for name, other in list(ids.items())[1:]:
            first = next(iter(ids))
            for k, (a, b) in enumerate(zip(ids[first], other), 1):
                if a != b and normal(str(a)) != normal(str(b)):
                    raise BadData(
                        f"predict: row {k} of {first!r} and of {name!r} have different ids. Give the same "
                        "people in the same order; tacit.align finds the rows."
                    )

    def save(self, path: str | Path) -> Path:
        """Write each party's part to a folder of its own in a new folder; `load` reads them."""
        place = Path(path)
        folders = [check_vacant(place / folder_of(name, k)) for k, name in enumerate(self.parts)]
        for folder, part in zip(folders, self.parts.values()):
            part.write(folder)
        return place

    @classmethod
    def load(cls, path: str | Path) -> VerticalBoostResult:
        """Read the parts of all parties that `save` or `tacit boost` wrote; a helper's has no trees."""
        found = [read_any(f.parent) for f in sorted(Path(path).glob("*/part.json"))]
        parts = [p for p in found if isinstance(p, BoostPart)]
        if not parts:
            raise MissingFiles(f"there are no parts of boosted trees in {path}.")
        by_name = {p.party: p for p in parts}
        missing = [n for n in parts[0].parties if n not in by_name]
        if missing:
            raise BadData(f"{path} has no part of {missing[0]!r}.")
        return cls({n: by_name[n] for n in parts[0].parties}, Ledger())
