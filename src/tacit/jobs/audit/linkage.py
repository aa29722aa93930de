"""`tacit.audit.linkage`: match the rows of a published table with a background table, as attackers would.

The three attackers of K. El Emam, F. Dankar: "Protecting Privacy Using k-Anonymity", JAMIA 15(5), 2008, not
as formulas but by matching. Each knows the quasi-identifiers of the background table.

prosecutor: knows that a person is in the table, finds the published rows that fit her, and points at one.
journalist: chooses the published row that the fewest people of the background fit, and names one of them.
marketer:   names somebody of the background for every published row.

A published cell fits a value if it covers it: it is the value itself, a group of it in the column's
hierarchy, or *. What is right is known to the owner, who has the original: by the published rows' labels,
or by a column `key` that all three tables have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...anonymity.classes import check_columns
from ...anonymity.codes import encode_used
from ...anonymity.hierarchies import as_hierarchy
from ...anonymity.measures import compare_column, match_rows
from ...anonymity.result import AnonymizationResult
from ...errors import BadData, BadParameter
from ...parameters import bad
from ...parties.ledger import Ledger
from ...results import JobResult

if TYPE_CHECKING:
    from pandas import DataFrame

MOST = 5_000  # people, and published rows, that are attacked
NUMBER = r"\s*(-?(?:\d+\.?\d*|\.\d+|inf))\s*"
RANGE = re.compile(rf"([\[(]){NUMBER},{NUMBER}([\])])")  # as tacit.anonymize spells ranges
BLOCK = 2**24  # cells compared at once


@dataclass(frozen=True)
class Matching:
    """One attacker: what he tried, how often he was right, and how often the sizes of groups say he is."""

    tried: int
    right: int
    expected: float  # the mean of 1 / (number of rows or people that fit)
    unique: int  # of the tried, those that one row or person alone fits

    @property
    def rate(self) -> float:
        return self.right / self.tried if self.tried else 0.0


@dataclass
class Linkage(JobResult):
    """The attackers' success by matching, beside the risk that the sizes of classes imply."""

    title: ClassVar[str] = "Linkage with a background table"
    facts: ClassVar[tuple[str, ...]] = (
        *("quasi", "background", "prosecutor", "journalist", "marketer", "analytic", "disclosed", "notes"),
    )

    quasi: tuple[str, ...]
    background: int  # people in the background table
    prosecutor: Matching
    journalist: Matching
    marketer: Matching
    analytic: dict[str, float]  # average prosecutor, highest journalist, marketer, by class sizes
    disclosed: dict[str, float]  # share of attacked people whose sensitive value all fitting rows agree in
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The largest share of right matches of the prosecutor and the marketer."""
        return max(self.prosecutor.rate, self.marketer.rate)

    def _summary(self) -> str:
        lines = [f"{self.background} people in the background table, who know {', '.join(self.quasi)}"]
        for name in ("prosecutor", "journalist", "marketer"):
            m: Matching = getattr(self, name)
            lines.append(
                f"{name}: {m.right} of {m.tried} matches right ({m.rate:.1%}; expected {m.expected:.1%}; "
                f"by class "
                f"sizes {self.analytic[name]:.1%}), {m.unique} without any choice"
            )
        lines += [f"{c}: known of {share:.1%} without choosing a row" for c, share in self.disclosed.items()]
        return "\n".join([*lines, *self.notes])


def linkage(
    original: DataFrame,
    published: DataFrame | AnonymizationResult,
    quasi: Sequence[str] | None = None,
    *,
    background: DataFrame | None = None,
    key: str | None = None,
    sensitive: Sequence[str] | str = (),
    hierarchies: Mapping[str, Any] | None = None,
    most: int = MOST,
    seed: int = 0,
) -> Linkage:
    """Match a published table with a background table and count who is found.

    `published` is a table of any program, or a result of tacit.anonymize (which brings `quasi`, `sensitive`
    and `hierarchies`). `background` is what the attacker has: rows with the quasi-identifiers (default: the
    original itself, the worst case). Who is who is told by the column `key`, which the original and the
    background have, or by equal row labels. At most `most` people and published rows are attacked, drawn by
    `seed`.
    """
    from pandas import DataFrame

    from ...anonymity.risk import measure_exposure

    result = published if isinstance(published, AnonymizationResult) else None
    table = result.table if result is not None else published
    for name, frame in (("original", original), ("published", table), ("background", background)):
        if not isinstance(frame, DataFrame) and not (name == "background" and frame is None):
            raise bad("linkage", name, type(frame).__name__, "a pandas DataFrame")
    assert isinstance(table, DataFrame)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise bad("linkage", "most", most, "a whole number of at least 1")
    quasi = result.quasi if result is not None and quasi is None else quasi
    quasi = check_columns(original, quasi, "quasi")
    sensitive = [sensitive] if isinstance(sensitive, str) else list(sensitive)
    sensitive = sensitive or ([] if result is None else list(result.sensitive))
    missing = [c for c in (*quasi, *sensitive) if c not in table.columns]
    people = original if background is None else background
    missing += [c for c in quasi if c not in people.columns]
    if missing:
        raise BadData(f"linkage: there is no column {', '.join(map(repr, missing))} in the other tables.")
    if not len(table) or not len(people):
        raise BadData("linkage: a table without rows cannot be matched.")
    row_of = _rows_of(original, table, result, key)
    person_of = _people_of(original, people, background is None, key)
    known: dict[str, Any] = {} if result is None else dict(result.hierarchies)
    known |= dict(hierarchies or {})
    fits = _Fits(people, table, quasi, known)
    rng = np.random.default_rng(seed)
    sits = np.full(len(people), -1)
    owner = None
    if row_of is not None:  # the person of each published row, −1: nobody of the background
        owner = person_of[row_of]
        sits[owner[owner >= 0]] = np.flatnonzero(owner >= 0)
        targets = np.flatnonzero(sits >= 0)
    else:
        targets = person_of[person_of >= 0]
    if not len(targets):
        raise BadData(
            "linkage: nobody of the background table is in the published one, so there is nobody to find. "
            "Check "
            "that key= names the same people."
        )
    targets = rng.permutation(targets)[:most]
    rows = rng.permutation(len(table))[:most]
    prosecutor, disclosed = _prosecute(
        fits, targets, sits if row_of is not None else None, table, sensitive, rng
    )
    if owner is None:  # a row is of one of the originals that fit it: how many of them the attacker knows
        sources = _Fits(original, table, quasi, known)
        crowds = np.concatenate([sources.of_rows(part).sum(1) for part in _blocks(rows, len(original))])
        is_original = np.zeros(len(people), dtype=bool)
        is_original[person_of[person_of >= 0]] = True
    else:
        crowds, is_original = np.ones(len(rows)), np.ones(len(people), dtype=bool)
    marketer, fewest = _market(fits, rows, owner, crowds, is_original, rng)
    exposure = measure_exposure(table, quasi, sensitive)
    notes = [] if background is not None else ["the background table is the original itself: the worst case"]
    if row_of is None:
        notes.append(
            "published rows have no labels or key, so nobody can check a match: right is the number "
            "expected if a "
            "person's row is among those that fit, which is at least the true one"
        )
    return Linkage(
        tuple(map(str, quasi)),
        len(people),
        prosecutor,
        fewest,
        marketer,
        {
            "prosecutor": exposure.prosecutor.average,
            "journalist": exposure.journalist.highest,
            "marketer": exposure.marketer,
        },
        disclosed,
        Ledger() if result is None else result.ledger,
        tuple(notes),
    )


class _Fits:
    """Which published rows fit which people."""

    def __init__(self, people: DataFrame, table: DataFrame, quasi: Sequence[str], known: Mapping[str, Any]):
        self.columns = []
        for c in quasi:
            source = known.get(c)
            hierarchy = None if source is None else as_hierarchy(source, c, encode_used(people[c])[1])
            column = compare_column(people, table, c, None, hierarchy, None)
            for i, word in enumerate(column.words):
                if i not in column.covers and (inside := _read_range(word)) is not None:
                    column.covers[i] = np.flatnonzero([inside(v) for v in column.values])
            unknown = [w for i, w in enumerate(column.words) if i not in column.covers]
            if hierarchy is None:
                # a value of somebody who is not in the background table
                unknown = [w for w in unknown if _is_group(w)]
            if unknown:
                raise BadParameter(
                    f"linkage: column {c!r} of the published table has {unknown[0]!r}, and it is not known "
                    f"which "
                    f"values that covers. Pass hierarchies={{{c!r}: …}}, as the table was generalized with."
                )
            covers = np.zeros((len(column.words), len(column.values)), dtype=bool)
            for w, values in column.covers.items():
                covers[w, values] = True
            self.columns.append((covers, column.published, column.codes))

    def of_people(self, people: np.ndarray) -> np.ndarray:
        """[people, published rows]"""
        found: Any = True
        for covers, words, codes in self.columns:
            found = covers[words][:, codes[people]].T & found
        return np.asarray(found)

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """[rows, people]"""
        found: Any = True
        for covers, words, codes in self.columns:
            found = covers[words[rows]][:, codes] & found
        return np.asarray(found)


def _read_range(word: str) -> Callable[[str], bool] | None:
    """Whether a value is in a range that a word spells out, such as [20, 30); None if it does not."""
    found = RANGE.fullmatch(word)
    if found is None:
        return None
    low, high = float(found[2]), float(found[3])

    def inside(value: str) -> bool:
        try:
            x = float(value)
        except ValueError:
            return False
        return (x > low or (x == low and found[1] == "[")) and (x < high or (x == high and found[4] == "]"))

    return inside


def _is_group(word: str) -> bool:
    """Whether a word looks like a group of values, such as 20-29, [20, 30), 1305* or {a, b}."""
    body = word.lstrip("-")
    return (
        "*" in word or any(c in word for c in "[{<>≥≤…") or ("-" in body and any(c.isdigit() for c in body))
    )


def _rows_of(
    original: DataFrame, table: DataFrame, result: AnonymizationResult | None, key: str | None
) -> np.ndarray | None:
    """[published rows]: the original row of each; None if nothing tells."""
    if result is not None and result.rows is not None:
        return np.asarray(result.rows)
    if key is not None and key in table.columns:
        place = {v: i for i, v in enumerate(original[key].astype(str))}
        found = np.array([place.get(v, -1) for v in table[key].astype(str)])
        if (found >= 0).all():
            return found
    return match_rows(original, table)


def _people_of(original: DataFrame, people: DataFrame, is_same: bool, key: str | None) -> np.ndarray:
    """[original rows]: each one's row in the background table, or −1."""
    if is_same:
        return np.arange(len(original))
    if key is None:
        import pandas as pd

        if people.index.equals(pd.RangeIndex(len(people))) and len(people) != len(original):
            raise BadParameter(
                "linkage: the background table's rows are numbered, which does not tell who is who. Name a "
                "column of "
                "both tables with key=."
            )
        if not (original.index.is_unique and people.index.is_unique):
            raise BadParameter("linkage: row labels repeat. Name the column that tells who is who with key=.")
        return people.index.get_indexer(original.index)
    for name, frame in (("original", original), ("background", people)):
        if key not in frame.columns:
            raise BadData(f"linkage: the {name} table has no column {key!r}, the key.")
        if frame[key].duplicated().any():
            raise BadData(
                f"linkage: the key {key!r} of the {name} table repeats. Give one row for each person."
            )
    place = {v: i for i, v in enumerate(people[key].astype(str))}
    return np.array([place.get(v, -1) for v in original[key].astype(str)])


def _prosecute(
    fits: _Fits,
    targets: np.ndarray,
    sits: np.ndarray | None,
    table: DataFrame,
    sensitive: Sequence[str],
    rng: np.random.Generator,
) -> tuple[Matching, dict[str, float]]:
    """Look for each target among the published rows."""
    values = {c: encode_used(table[c])[0] for c in sensitive}
    right = unique = 0
    expected, told = 0.0, dict.fromkeys(sensitive, 0)
    for part in _blocks(targets, len(table)):
        for person, fit in zip(part, fits.of_people(part)):
            found = np.flatnonzero(fit)
            if not len(found):
                continue
            unique += len(found) == 1
            if sits is None:
                expected += 1 / len(found)
            else:
                expected += bool(fit[sits[person]]) / len(found)
                right += int(rng.choice(found) == sits[person])
            for c, codes in values.items():
                told[c] += len(np.unique(codes[found])) == 1
    n = len(targets)
    right = round(expected) if sits is None else right
    return Matching(n, right, expected / n, unique), {str(c): k / n for c, k in told.items()}


def _market(
    fits: _Fits,
    rows: np.ndarray,
    owner: np.ndarray | None,
    crowds: np.ndarray,
    is_original: np.ndarray,
    rng: np.random.Generator,
) -> tuple[Matching, Matching]:
    """Name somebody for each published row; and for those alone that the fewest people fit.

    Without `owner`, `crowds` are the originals that fit each row, one of whom it is.
    """
    sizes = np.zeros(len(rows), dtype=np.int64)
    is_right, chance = np.zeros(len(rows), dtype=bool), np.zeros(len(rows))
    at = 0
    for part in _blocks(rows, len(fits.columns[0][2])):
        for row, fit in zip(part, fits.of_rows(part)):
            found = np.flatnonzero(fit)
            sizes[at] = len(found)
            if len(found) and owner is None:
                # P(its person is known) · P(she is the one who is named)
                chance[at] = is_original[found].sum() / max(crowds[at], 1) / len(found)
            elif len(found) and owner is not None:
                is_right[at] = rng.choice(found) == owner[row]
                chance[at] = (owner[row] >= 0 and fit[owner[row]]) / len(found)
            at += 1
    fewest = sizes == sizes[sizes > 0].min(initial=len(fits.columns[0][2]))

    def count(which: np.ndarray) -> Matching:
        expected = float(chance[which].mean()) if which.any() else 0.0
        right = int(is_right[which].sum()) if owner is not None else round(expected * which.sum())
        return Matching(int(which.sum()), right, expected, int((sizes[which] == 1).sum()))

    return count(np.ones(len(rows), dtype=bool)), count(fewest)


def _blocks(which: np.ndarray, width: int) -> list[np.ndarray]:
    return np.array_split(which, max(1, -(-len(which) * width // BLOCK)))
