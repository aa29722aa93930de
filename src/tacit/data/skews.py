"""Skews: how the rows of a data set are partitioned across parties.

A skew is a frozen dataclass with up to three methods. `partition` says which party holds which rows. `alter`
changes the rows after that (noise, permuted labels). `at` returns the rows of a given round. Most skews have
only `partition`.

Label skew          Dirichlet, LabelsPerParty
Quantity skew       Quantity
Feature skew        FeatureNoise, CovariateShift
Concept shift       ConceptShift (between parties), ConceptDrift (over rounds)
No added skew       IID, ByColumn

Hsu, Qi, Brown 2019 (Dirichlet); McMahan et al. 2017 and Li, Diao, Chen, He 2021 "NIID-Bench" (labels per
party, quantity, noise).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ..errors import BadData
from ..parameters import bad, choice, real, whole
from .cells import show_row
from .federation import Rows, check_one_label, party_names

if TYPE_CHECKING:
    from .federation import Dataset, Federation

DRAWS = 50  # draws before the smallest parties are topped up; 10 parties with alpha 0.5 need a handful
MANY = 1000  # with more parties some are always too small: one draw, then topping up


@dataclass(frozen=True, repr=False)
class Skew:
    """The interface of all skews. The defaults partition the rows evenly and at random."""

    tops_up: ClassVar[bool] = False  # sizes are drawn, so parties below the minimum may be topped up

    def __repr__(self) -> str:
        """Show numbers, and options that differ from their default: Dirichlet(alpha=0.5)."""
        fields = [(f, getattr(self, f.name)) for f in dataclasses.fields(self)]
        shown = [
            f"{f.name}={value!r}"
            for f, value in fields
            if value != f.default or not isinstance(value, str | None)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def names(self, dataset: Dataset, parties: int) -> tuple[str, ...]:
        return party_names(parties)

    def partition(
        self, dataset: Dataset, parties: int, rng: np.random.Generator, min_size: int = 1
    ) -> list[np.ndarray]:
        """Return the rows of each party. Every row has at most one owner."""
        return np.array_split(rng.permutation(len(dataset)), parties)

    def notes(self, dataset: Dataset) -> tuple[str, ...]:
        """Return remarks about how the rows are partitioned."""
        return ()

    def alter(self, fed: Federation, rng: np.random.Generator) -> Rows:
        """Return the changed rows of a partitioned data set. The global test set does not change."""
        return fed.rows

    def at(self, fed: Federation, round: int) -> Rows:
        return fed.rows

    def test_at(self, fed: Federation, round: int) -> Rows:
        return fed.test

    def test_owner(self, dataset: Dataset, names: tuple[str, ...]) -> np.ndarray | None:
        """Return the party of each test row (−1: none of them), or None if it is not known."""
        return None


@dataclass(frozen=True, repr=False)
class IID(Skew):
    """No skew: equal sizes, and the same label distribution up to chance."""


@dataclass(frozen=True, repr=False)
class Dirichlet(Skew):
    """Label skew: shares of each class drawn from Dir(α); a small α gives each party few classes.

    variant "class": each class is divided among the parties by p ~ Dir(α). An exact partition; the usual one.
    variant "capped": the same, but a party that already has an equal share of the rows gets no more
    (NIID-Bench).
    variant "party": each party draws its class distribution q ~ Dir(α) and takes the share q_c of the rows of
    class c. With few parties most rows stay unused (3 parties of 10 equal classes use 3/10). If the parties
    draw more rows of a class than there are, their shares are scaled down, so that no row has two owners.
    """

    tops_up: ClassVar[bool] = True
    alpha: float = real(
        0.5, above=0, doc="concentration of the Dirichlet; 100 is nearly IID, 0.1 nearly one class per party"
    )
    variant: str = choice(
        "class", ("class", "capped", "party"), doc="who draws the shares, and whether a full party gets more"
    )

    def partition(
        self, dataset: Dataset, parties: int, rng: np.random.Generator, min_size: int = 1
    ) -> list[np.ndarray]:
        y, classes = _labels(self, dataset)
        rows = [rng.permutation(np.flatnonzero(y == c)) for c in range(classes)]
        available = np.array([len(r) for r in rows])
        counts = _first_draw(lambda: self._counts(available, parties, rng), min_size)
        owner = np.full(len(y), -1)
        for c in range(classes):
            owner[rows[c][: counts[c].sum()]] = np.repeat(np.arange(parties), counts[c])
        return _lists(owner, parties)

    def _counts(self, available: np.ndarray, parties: int, rng: np.random.Generator) -> np.ndarray:
        """Return how many rows of each class each party gets, [class, party]."""
        if self.variant == "party":
            counts = np.floor(
                rng.dirichlet(np.full(len(available), self.alpha), parties).T * available[:, None]
            )
            over = counts.sum(1) / np.maximum(available, 1)
            return np.asarray(counts / np.maximum(over, 1)[:, None], dtype=np.int64)  # rounded down
        counts = np.zeros((len(available), parties), dtype=np.int64)
        for c, n in enumerate(available):
            share = rng.dirichlet(np.full(parties, self.alpha))
            if self.variant == "capped":
                open_ = share * (counts.sum(0) < available.sum() / parties)
                share = open_ / open_.sum() if open_.sum() > 0 else share
            counts[c] = _divide(share, n)
        return counts


@dataclass(frozen=True, repr=False)
class LabelsPerParty(Skew):
    """Label skew: each party holds some labels and no others.

    An integer n: each party holds n labels, and the rows of a label are divided evenly among its holders
    (#C = n). Labels are assigned in shuffled order, so that every label has an owner and all have about the
    same number of owners. A tuple (2, 3, 5): the first party has the first two labels, the second the next
    three, and so on; there is one count per party, and the counts add up to the number of labels.
    """

    labels: int | tuple[int, ...] = 2

    def partition(
        self, dataset: Dataset, parties: int, rng: np.random.Generator, min_size: int = 1
    ) -> list[np.ndarray]:
        y, classes = _labels(self, dataset)
        owner = np.empty(len(y), dtype=np.int64)
        for c, holders in enumerate(self._holders(classes, parties, rng)):
            rows = rng.permutation(np.flatnonzero(y == c))
            owner[rows] = np.repeat(holders, _divide(np.full(len(holders), 1 / len(holders)), len(rows)))
        return _lists(owner, parties)

    def _holders(self, classes: int, parties: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Return the parties that hold each class."""
        n = self.labels
        if isinstance(n, tuple | list):
            counts = [k for k in n if isinstance(k, int) and not isinstance(k, bool) and k > 0]
            if len(counts) != len(n) or len(n) != parties or sum(n) != classes:
                raise bad(
                    "LabelsPerParty",
                    "labels",
                    n,
                    f"{parties} whole numbers above 0, one a party, adding up to the {classes} labels",
                )
            return [np.array([k]) for k in np.repeat(np.arange(parties), counts)]
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= classes:
            raise bad(
                "LabelsPerParty",
                "labels",
                n,
                f"a whole number from 1 to {classes}, the number of labels, or one count per party",
            )
        if n * parties < classes:
            raise bad(
                "LabelsPerParty",
                "labels",
                n,
                f"at least {-(-classes // parties)} when {parties} parties share {classes} labels",
                "Otherwise the rows of some labels would belong to no party.",
            )
        labels_of: list[list[int]] = []  # labels of each party
        queue: list[int] = []  # shuffled labels that are not assigned yet
        for _ in range(parties):
            own, queue = queue[:n], queue[n:]
            if len(own) < n:  # shuffle again; labels that this party already has come last
                fresh = rng.permutation(classes).tolist()
                queue = [c for c in fresh if c not in own] + [c for c in fresh if c in own]
                missing = n - len(own)
                own, queue = own + queue[:missing], queue[missing:]
            labels_of.append(own)
        label, party = np.array(labels_of).reshape(-1), np.repeat(np.arange(parties), n)
        return [party[label == c] for c in range(classes)]


@dataclass(frozen=True, repr=False)
class Quantity(Skew):
    """Quantity skew: the same label distribution everywhere, sizes drawn from Dir(α)."""

    tops_up: ClassVar[bool] = True
    alpha: float = real(0.5, above=0, doc="concentration of the Dirichlet; small means a few large parties")

    def partition(
        self, dataset: Dataset, parties: int, rng: np.random.Generator, min_size: int = 1
    ) -> list[np.ndarray]:
        n = len(dataset)
        sizes = _first_draw(lambda: _divide(rng.dirichlet(np.full(parties, self.alpha)), n)[None], min_size)[
            0
        ]
        return np.split(rng.permutation(n), np.cumsum(sizes)[:-1])


@dataclass(frozen=True, repr=False)
class FeatureNoise(Skew):
    """Feature skew: IID rows, and noise of σ·i/N on the features of party i = 1 … N.

    `of` says whether σ·i/N is the standard deviation of the noise or, as in NIID-Bench, its variance.
    """

    sigma: float = real(0.1, least=0, doc="noise of the last party")
    of: str = choice("deviation", ("deviation", "variance"), doc="what σ·i/N is")

    def alter(self, fed: Federation, rng: np.random.Generator) -> Rows:
        x = fed.rows.matrix("FeatureNoise")
        if not x.is_floating_point():
            raise BadData(
                f"{self} needs features that are numbers; the rows of {fed.name} are tokens. Use a label or "
                "quantity skew."
            )
        level = self.sigma * torch.arange(1, len(fed) + 1, dtype=torch.float32) / len(fed)
        level = level.sqrt() if self.of == "variance" else level
        noise = torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32))
        return Rows(x + noise * level[fed.owner].reshape(-1, *[1] * (x.dim() - 1)), fed.rows.y)


@dataclass(frozen=True, repr=False)
class CovariateShift(Skew):
    """Feature skew: rows sorted along a direction, so p(x) differs between parties and p(y|x) does not.

    Parties take consecutive parts. `strength` 1 sorts fully and 0 is IID; in between, the sort key is
    strength · rank + (1 − strength) · random. The direction is a feature, or the first principal component.
    """

    strength: float = real(1.0, least=0, most=1, doc="0 is IID, 1 fully sorted")
    feature: int | None = whole(
        None, least=0, none=True, doc="the feature to sort by; None: the first principal component"
    )

    def partition(
        self, dataset: Dataset, parties: int, rng: np.random.Generator, min_size: int = 1
    ) -> list[np.ndarray]:
        place = _along(self, dataset, rng).argsort(kind="stable").argsort(kind="stable") / len(dataset)
        chance = rng.permutation(len(dataset)) / len(dataset)
        return np.array_split(
            np.argsort(self.strength * place + (1 - self.strength) * chance, kind="stable"), parties
        )


@dataclass(frozen=True, repr=False)
class ConceptShift(Skew):
    """Concept shift between parties: the same features have different labels.

    The rows are partitioned IID. Party k belongs to group k mod `groups`. The first group keeps its labels;
    each other group permutes them, without a fixed point. The global test set keeps the labels of the first
    group.
    """

    groups: int = whole(2, least=1, doc="how many different concepts there are")

    def partition(
        self, dataset: Dataset, parties: int, rng: np.random.Generator, min_size: int = 1
    ) -> list[np.ndarray]:
        if self.groups > parties:
            raise bad("ConceptShift", "groups", self.groups, f"at most {parties}, the number of parties")
        if _labels(self, dataset)[1] < 2:
            raise BadData(
                f"{self} renames labels, and {dataset.name} has only one. Use a data set with two or more."
            )
        return super().partition(dataset, parties, rng, min_size)

    def alter(self, fed: Federation, rng: np.random.Generator) -> Rows:
        assert fed.classes is not None
        meaning = np.stack(
            [np.arange(fed.classes)] + [_derangement(fed.classes, rng) for _ in range(1, self.groups)]
        )
        return Rows(fed.rows.x, torch.from_numpy(meaning)[fed.owner % self.groups, fed.rows.y])


_DRIFTED: dict[Any, tuple[torch.Tensor, Rows]] = {}


@dataclass(frozen=True, repr=False)
class ConceptDrift(Skew):
    """Concept drift: every `every` rounds, `labels` random labels are permuted in a cycle.

    The rows are partitioned IID. A change applies to all parties and the global test set, on top of earlier
    changes. It depends on the seed and the round alone, so a resumed run and a late party see the same.
    """

    every: int = whole(10, least=1, doc="rounds between two changes")
    labels: int = whole(2, least=2, doc="how many labels are permuted at a change")

    def partition(
        self, dataset: Dataset, parties: int, rng: np.random.Generator, min_size: int = 1
    ) -> list[np.ndarray]:
        _, classes = _labels(self, dataset)
        if self.labels > classes:
            raise bad("ConceptDrift", "labels", self.labels, f"at most {classes}, the number of labels")
        return super().partition(dataset, parties, rng, min_size)

    def at(self, fed: Federation, round: int) -> Rows:
        return self._relabel(fed, round, fed.rows)

    def test_at(self, fed: Federation, round: int) -> Rows:
        return self._relabel(fed, round, fed.test)

    def _relabel(self, fed: Federation, round: int, rows: Rows) -> Rows:
        """Return the relabeled rows.

        The same object until the next change, so that copies on a GPU stay valid.
        """
        change = max(round - 1, 0) // self.every
        name = (self.every, self.labels, fed.seed, fed.classes, id(rows.y), change)
        if name not in _DRIFTED:
            while len(_DRIFTED) >= 8:  # a run needs two at a time: its rows and its test set
                del _DRIFTED[next(iter(_DRIFTED))]
            _DRIFTED[name] = (
                rows.y,
                Rows(rows.x, self.meaning(fed, round)[rows.y]),
            )  # keeping the original prevents reuse of its id()
        return _DRIFTED[name][1]

    def meaning(self, fed: Federation, round: int) -> torch.Tensor:
        """Return the new label of each original label in this round (0: before training)."""
        assert fed.classes is not None
        meaning = np.arange(fed.classes)
        for change in range(1, max(round - 1, 0) // self.every + 1):
            ring = np.random.default_rng([fed.seed, 3, change]).permutation(fed.classes)[: self.labels]
            renamed = np.arange(fed.classes)
            renamed[ring] = np.roll(ring, -1)
            meaning = renamed[meaning]
        return torch.from_numpy(meaning)


SMALL = ("refuse", "merge", "drop")
MERGED = "small parties"
USUAL_ROWS = 20  # parties with fewer rows are small, if it is said what to do with those but not how small


@dataclass(frozen=True, repr=False)
class ByColumn(Skew):
    """One party for each value of a column (a hospital, a device), named after it."""

    column: str
    min_rows: int | None = whole(None, least=1, none=True, doc="parties with fewer rows are small")
    small: str = choice("refuse", SMALL, doc="what to do with small parties")
    # "refuse", "drop", or the name of a party
    missing_party: str = "refuse"

    def __str__(self) -> str:
        return f"by {self.column}"

    def _values(self, dataset: Dataset) -> np.ndarray:
        """Return the party of each row, "" for rows that are left out."""
        values = np.asarray(dataset.column(self.column)).astype(object)
        absent = values == ""
        if absent.any() and self.missing_party == "refuse":
            first = show_row(int(absent.argmax())) if dataset.table is None else ""
            raise BadData(
                f"{dataset.name}: {int(absent.sum())} rows have no {self.column!r}, so they belong to no "
                f"party{f'; the first is {first}' if first else ''}. Fill them, leave them out with "
                "missing_party='drop', or name a party for them, missing_party='unknown'."
            )
        if self.missing_party not in ("refuse", "drop"):
            if not self.missing_party.strip():
                raise bad(
                    "by", "missing_party", self.missing_party, "'refuse', 'drop' or the name of a party"
                )
            values[absent] = self.missing_party
        names, counts = np.unique(values[values != ""].astype(str), return_counts=True)
        few = names[counts < self._least]
        if 1 < len(few) == len(names):  # merged they would be one party, and left out none
            raise BadData(
                f"{dataset.name}: all {len(names)} parties have fewer than {self._least} rows, the largest "
                f"has {counts.max()}. Use a smaller min_rows, or a column with fewer values."
            )
        if len(few) and self.small == "refuse":
            raise BadData(
                f"{dataset.name}: {len(few)} of {len(names)} parties have fewer than {self._least} rows: "
                f"{', '.join(few[:10])}{', …' if len(few) > 10 else ''}. Pass small='merge' to make one "
                "party of them, or small='drop' to leave them out."
            )
        if len(few):
            values[np.isin(values.astype(str), few)] = MERGED if self.small == "merge" else ""
        if not (values != "").any():
            raise BadData(f"{dataset.name}: no party has {self._least} rows. Use a smaller min_rows.")
        return values.astype(str)

    @property
    def _least(self) -> int:
        return self.min_rows if self.min_rows is not None else (0 if self.small == "refuse" else USUAL_ROWS)

    def names(self, dataset: Dataset, parties: int) -> tuple[str, ...]:
        values = self._values(dataset)
        return tuple(str(v) for v in np.unique(values[values != ""]))

    def sizes(self, dataset: Dataset) -> np.ndarray:
        """Return the number of rows of each party."""
        values = self._values(dataset)
        return np.unique(values[values != ""], return_counts=True)[1]

    def notes(self, dataset: Dataset) -> tuple[str, ...]:
        values, names = self._values(dataset), set(map(str, np.unique(dataset.column(self.column))))  # type: ignore[arg-type]
        notes = []
        if "" in names:
            what = "are left out" if self.missing_party == "drop" else f"are of party {self.missing_party!r}"
            notes.append(f"Rows without {self.column!r} {what}.")
        few = names - set(map(str, np.unique(values))) - {""}
        if few:
            shown = ", ".join(sorted(few)[:10]) + (", …" if len(few) > 10 else "")
            what = f"are one party, {MERGED!r}" if self.small == "merge" else "are left out"
            notes.append(f"{len(few)} parties with fewer than {self._least} rows {what}: {shown}.")
        return tuple(notes)

    def partition(
        self, dataset: Dataset, parties: int, rng: np.random.Generator, min_size: int = 1
    ) -> list[np.ndarray]:
        values = self._values(dataset)
        names, place = np.unique(values, return_inverse=True)
        return _lists(place - 1 if names[0] == "" else place, parties)

    def test_owner(self, dataset: Dataset, names: tuple[str, ...]) -> np.ndarray | None:
        values = dataset.column(self.column, test=True)
        if values is None:
            return None
        place = {name: k for k, name in enumerate(names)}
        # a site without a training row is a small one
        rest = MERGED if self.small == "merge" else ""
        party_of = dict(zip(np.asarray(dataset.column(self.column)).astype(str), self._values(dataset)))
        party_of.setdefault("", self.missing_party)
        return np.array([place.get(party_of.get(str(v), rest), -1) for v in values], dtype=np.int64)


SKEWS: dict[str, type[Skew]] = {
    "IID": IID,
    "Dirichlet": Dirichlet,
    "LabelsPerParty": LabelsPerParty,
    "Quantity": Quantity,
    "FeatureNoise": FeatureNoise,
    "CovariateShift": CovariateShift,
    "ConceptShift": ConceptShift,
    "ConceptDrift": ConceptDrift,
    "ByColumn": ByColumn,
}


def _labels(skew: Skew, dataset: Dataset) -> tuple[np.ndarray, int]:
    if dataset.classes is None:
        able = ", ".join(name for name in ("IID", "Quantity", "FeatureNoise", "CovariateShift", "ByColumn"))
        raise BadData(
            f"{skew} needs class labels, and {dataset.name} has none: it is a regression. Use one of {able}."
        )
    check_one_label(str(skew), dataset)
    return dataset.rows.y.numpy(), dataset.classes


def _lists(owner: np.ndarray, parties: int) -> list[np.ndarray]:
    """Return the rows of each owner, in order; rows with owner −1 belong to no party."""
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner[owner >= 0], minlength=parties)
    return np.split(order[len(owner) - sizes.sum() :], np.cumsum(sizes)[:-1])


def _divide(share: np.ndarray, n: int) -> np.ndarray:
    """Divide n rows by shares, cutting at the rounded cumulative shares."""
    cuts = np.minimum(np.floor(np.cumsum(share) * n + 0.5), n).astype(np.int64)
    cuts[-1] = n
    return np.diff(cuts, prepend=0)


def _first_draw(draw: Callable[[], np.ndarray], min_size: int) -> np.ndarray:
    """Draw counts [·, party] until every party has `min_size` rows, at most DRAWS times."""
    for _ in range(DRAWS):
        counts = draw()
        if counts.sum(0).min() >= min_size or counts.shape[1] > MANY:
            break
    return counts


def top_up(lists: list[np.ndarray], min_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Give each party `min_size` rows, by cutting the largest parties to one level."""
    sizes = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    needed = np.maximum(min_size - sizes, 0)
    if needed.sum() > np.maximum(sizes - min_size, 0).sum():
        return lists  # not enough rows: `split` raises
    low, high = min_size, int(sizes.max())
    while low < high:  # the highest level that frees enough rows
        level = (low + high + 1) // 2
        low, high = (level, high) if np.maximum(sizes - level, 0).sum() >= needed.sum() else (low, level - 1)
    spare = np.maximum(sizes - low, 0)
    freed, lists = [], list(lists)
    for k in np.flatnonzero(spare):
        mixed = rng.permutation(lists[k])
        lists[k] = mixed[spare[k] :]
        freed.append(mixed[: spare[k]])
    pool = rng.permutation(np.concatenate(freed))
    small = np.flatnonzero(needed)
    *parts, left = np.split(pool, np.cumsum(needed[small]))
    for k, rows in zip(small, parts):
        lists[k] = np.concatenate([lists[k], rows])
    back = np.flatnonzero(spare)[
        : len(left)
    ]  # less than one row for each party that gave some, as the level was the highest possible
    for k, row in zip(back, left):
        lists[k] = np.append(lists[k], row)
    return lists


def _derangement(classes: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a permutation without a fixed point; about one draw in e is one."""
    while (order := rng.permutation(classes))[order == np.arange(classes)].size:
        pass
    return order


def _along(skew: CovariateShift, dataset: Dataset, rng: np.random.Generator) -> np.ndarray:
    """Return each row's coordinate along the sorting direction."""
    features = dataset.rows.matrix("CovariateShift")
    if not features.is_floating_point():
        raise BadData(
            f"{skew} needs features that are numbers; the rows of {dataset.name} are tokens. Use a label or "
            "quantity skew."
        )
    x = features.reshape(len(dataset), -1)
    if skew.feature is not None and skew.feature >= x.shape[1]:
        raise bad(
            "CovariateShift",
            "feature",
            skew.feature,
            f"below {x.shape[1]}, the number of features of {dataset.name}",
        )
    if dataset.table is not None:
        x = dataset.table.recipe.standardize(
            x
        )  # only for sorting: the parties still use their own statistics
    if skew.feature is not None:
        return x[:, skew.feature].numpy()
    sample = x[torch.from_numpy(rng.permutation(len(dataset))[:5000])]  # enough to estimate a direction
    sample = sample - sample.mean(0)
    direction = torch.from_numpy(rng.standard_normal(x.shape[1], dtype=np.float32))
    for _ in range(50):  # power iteration
        direction = torch.nn.functional.normalize(sample.T @ (sample @ direction), dim=0)
    direction = direction * torch.sign(
        direction[direction.abs().argmax()]
    )  # the sign of a component is arbitrary
    return torch.matmul(x, direction).numpy()
