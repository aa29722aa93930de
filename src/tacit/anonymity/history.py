"""What earlier releases published about whom, as a file that the owner keeps.

A reader who has several releases of the same people compares them: rows that are in the second table only
belong to newcomers (subtraction), and a person who is in both is in both of their classes (intersection).
Each table may satisfy its models while a difference of two is about one person. J.-W. Byun, Y. Sohn, E.
Bertino, N. Li: "Secure Anonymization for Incremental Datasets", SDM 2006; X. Xiao, Y. Tao: "m-Invariance",
SIGMOD 2007.

Whom the next release must leave out is found by `withhold.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from ..errors import BadData, BadJob, BadParameter, MissingFiles
from ..files import write_atomic
from ..parameters import from_table, to_table
from .builders import Builder, Codes, Dates, Flat, Intervals, Prefixes, suggest
from .classes import Classes, SensitiveColumn
from .codes import encode_used, pack_keys
from .hierarchies import NULL, Hierarchy
from .models import ALL, KAnonymity, LDiversity, PrivacyModel
from .result import AnonymizationResult

FORMAT = 1
KIND = "tacit anonymized releases"
# Adding people to a group keeps these models satisfied, or they can be satisfied by adding more
MODELS: dict[str, type[PrivacyModel]] = {"KAnonymity": KAnonymity, "LDiversity": LDiversity}
BUILDERS: dict[str, type[Builder]] = {
    "Flat": Flat,
    "Intervals": Intervals,
    "Prefixes": Prefixes,
    "Dates": Dates,
    "Codes": Codes,
}


@dataclass(frozen=True)
class PublishedRows:
    """The rows of one release: whose, in which class, with which sensitive values."""

    person: np.ndarray  # number of the person of each row
    cell: np.ndarray  # class of each row
    cells: list[list[str]]  # the words of each class, in the order of `quasi`
    sensitive: dict[str, tuple[np.ndarray, list[str]]]  # (code of each row, words of the codes)

    def select(self, kept: np.ndarray) -> PublishedRows:
        return PublishedRows(
            self.person[kept],
            self.cell[kept],
            self.cells,
            {name: (codes[kept], words) for name, (codes, words) in self.sensitive.items()},
        )

    def renumber(self, number: np.ndarray) -> PublishedRows:
        return PublishedRows(number[self.person], self.cell, self.cells, self.sensitive)

    def label(self, people: int) -> np.ndarray:
        """The classes in which each person is published, as a number; 0: the person is absent."""
        pairs = np.unique(self.person.astype(np.int64) * max(len(self.cells), 1) + self.cell)
        whose, cell = pairs // max(len(self.cells), 1), pairs % max(len(self.cells), 1)
        start = np.flatnonzero(np.diff(whose, prepend=-1))
        label = np.zeros(people, np.int64)
        if len(start) == len(whose):  # everybody is in one class
            label[whose] = cell + 1
            return label
        code: dict[bytes, int] = {}
        for first, end in zip(start, np.append(start[1:], len(whose))):
            label[whose[first]] = code.setdefault(cell[first:end].tobytes(), len(code) + 1)
        return label

    def classes(self, group: np.ndarray, number: int, rows: np.ndarray) -> Classes:
        """Some of the rows as classes by the group of their person."""
        person = self.person[rows]
        columns = {}
        for name, (codes, words) in self.sensitive.items():
            values = codes[rows]
            overall = np.bincount(values, minlength=len(words))
            columns[name] = SensitiveColumn.from_rows(name, values, words, overall, person)
        return Classes(group[person], number, sensitive=columns, members=(np.arange(len(person)), person))


@dataclass(frozen=True)
class ReleaseHistory:
    """What one or more releases of the same people published. It is as confidential as the tables' originals.

    `.record_release()` of `tacit.anonymize(…, person=…)` is the first one; `tacit.anonymize_again` needs it.
    """

    quasi: list[str]
    sensitive: list[str]
    person: str
    models: tuple[PrivacyModel, ...]
    levels: dict[str, int]
    hierarchies: dict[str, Hierarchy]
    builders: dict[str, Builder]  # of the columns whose hierarchy can be extended to new values
    nulls: str
    people: list[str] = field(repr=False)
    releases: list[PublishedRows] = field(repr=False)

    def trajectories(self) -> np.ndarray:
        """[people, releases]: where each person is published, as a number; 0: absent."""
        return np.stack([r.label(len(self.people)) for r in self.releases], axis=1)

    def count_groups(self) -> np.ndarray:
        """People of each group who are published in the same classes of the same releases."""
        labels = self.trajectories()
        return np.unique(labels[labels.any(axis=1)], axis=0, return_counts=True)[1]

    @property
    def k(self) -> int:
        """The size of the smallest group: what a reader of all releases can narrow a person down to."""
        return min(self.count_groups().tolist(), default=0)

    def merge_hierarchies(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The source of each column's hierarchy for a table that may have new values."""
        return {c: given.get(c, self.builders.get(c, self.hierarchies[c])) for c in self.quasi}

    def check_hierarchy(self, name: str, hierarchy: Hierarchy) -> None:
        """Raise unless the values of the earlier releases have the words they had."""
        before = self.hierarchies[name]
        now = {row[0]: row[1:] for row in zip(*hierarchy.levels)}
        changed = [r[0] for r in zip(*before.levels) if now.get(r[0], r[1:]) != r[1:]]
        if changed or before.height != hierarchy.height:
            reason = (
                f"it has {hierarchy.height} levels above the values instead of {before.height}"
                if before.height != hierarchy.height
                else f"{changed[0]!r} has other words in it"
            )
            raise BadData(
                f"The hierarchy of column {name!r} is not that of the earlier releases: {reason}. Every "
                "release needs the same hierarchy; values may only be added to it."
            )

    def extend(
        self, people: Sequence[str], rows: PublishedRows, hierarchies: Mapping[str, Hierarchy]
    ) -> ReleaseHistory:
        """The history with one more release, whose rows number `people`."""
        everybody, number = join_people(self.people, people)
        merged = {}
        for name, before in self.hierarchies.items():
            known = set(hierarchies[name].values)
            more = [row for row in zip(*before.levels) if row[0] not in known]
            merged[name] = Hierarchy(tuple(zip(*[*zip(*hierarchies[name].levels), *more])))
        return ReleaseHistory(
            **{
                **vars(self),
                "people": everybody,
                "hierarchies": merged,
                "releases": [*self.releases, rows.renumber(number)],
            }
        )

    def save(self, path: str | Path) -> Path:
        """Write the history to a new JSON file that only its owner can read."""
        file = Path(path)
        content = {
            "kind": KIND,
            "format": FORMAT,
            "quasi": self.quasi,
            "sensitive": self.sensitive,
            "person": self.person,
            "models": [to_table(m) for m in self.models],
            "nulls": self.nulls,
            "levels": self.levels,
            "hierarchies": {c: [list(level) for level in h.levels] for c, h in self.hierarchies.items()},
            "builders": {c: to_table(b) for c, b in self.builders.items()},
            "people": self.people,
            "releases": [
                {
                    "person": r.person.tolist(),
                    "class": r.cell.tolist(),
                    "classes": r.cells,
                    "sensitive": {
                        name: {"values": words, "codes": codes.tolist()}
                        for name, (codes, words) in r.sensitive.items()
                    },
                }
                for r in self.releases
            ],
        }
        try:
            write_atomic(file, json.dumps(content, ensure_ascii=False), mode=0o600, replace=False)
        except FileExistsError:
            raise BadParameter(
                f"{file} already exists. Keep the history of each release in a file of its own: choose "
                "another name."
            ) from None
        return file

    @classmethod
    def load(cls, path: str | Path) -> ReleaseHistory:
        """Read the JSON file that `save` wrote."""
        file = Path(path)
        if not file.is_file():
            raise MissingFiles(
                f"There is no history of releases {file}. `.record_release().save(…)` of an anonymized table "
                "writes it."
            )
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content["kind"] != KIND or content["format"] != FORMAT:
                raise ValueError(f"it has format {content['format']!r}, this version reads {FORMAT}")
            return _parse(content)
        except (BadData, BadJob, BadParameter, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadData(
                f"{file} is not a history of releases, or is damaged ({type(error).__name__}: {error}). Use "
                "the file that `.record_release().save(…)` wrote, unchanged."
            ) from error


def find_builder(source: Any, hierarchy: Hierarchy) -> Builder | None:
    """The builder of this hierarchy, which extends it to new values; None if its values are declared."""
    values = [v for v in hierarchy.values if v != NULL]
    builder: Any = suggest(values) if source is None else source
    return builder if isinstance(builder, Flat | Intervals | Prefixes | Dates | Codes) else None


def record_release(made: AnonymizationResult) -> ReleaseHistory:
    """The history of a first release, or of the releases before `made` and itself."""
    problems = []
    models = tuple(from_table(m, ALL, "models") for m in made.settings["models"])
    others = sorted({type(m).__name__ for m in models if not isinstance(m, tuple(MODELS.values()))})
    if made.person is None:
        problems.append(
            "person= names the column that tells whose a row is, with the same ids in every release"
        )
    if others:
        problems.append(f"only k and l are supported over several releases, not {', '.join(others)}")
    if made.settings["suppressed"] != "drop":
        problems.append("suppressed='drop' is needed: rows shown as * are published in every release")
    if any(level is None for level in made.levels.values()):
        problems.append("a method with one level per column is needed: 'optimal' or Fixed(levels)")
    if problems:
        raise BadParameter("This release cannot have a history: " + "; ".join(problems) + ".")
    assert made.person is not None
    assert made.original is not None
    assert made.rows is not None
    ids, number = number_people(made.original[made.person].iloc[made.rows])
    rows = collect_rows(made.table, made.quasi, made.sensitive, number)
    if made.history is not None:
        return made.history.extend(ids, rows, made.hierarchies)
    return ReleaseHistory(
        quasi=list(made.quasi),
        sensitive=list(made.sensitive),
        person=made.person,
        models=models,
        levels={c: int(level) for c, level in made.levels.items() if level is not None},
        hierarchies=made.hierarchies,
        builders=made.builders,
        nulls=made.settings["nulls"],
        people=ids,
        releases=[rows],
    )


def number_people(ids: pandas.Series) -> tuple[list[str], np.ndarray]:
    """(the ids as text, the number of each row's)."""
    codes, words = encode_used(ids)
    return words, codes.astype(np.int64)


def collect_rows(
    table: pandas.DataFrame, quasi: Sequence[str], sensitive: Sequence[str], person: np.ndarray
) -> PublishedRows:
    """The rows of a generalized table."""
    parts = [encode_used(table[c]) for c in quasi]
    key, _ = pack_keys([codes for codes, _ in parts], [len(words) for _, words in parts])
    _, first, cell = np.unique(key, return_index=True, return_inverse=True)
    cells = [[words[codes[i]] for codes, words in parts] for i in first]
    columns = {}
    for name in sensitive:
        codes, words = encode_used(table[name])
        columns[name] = (codes.astype(np.int64), words)
    return PublishedRows(person, cell.reshape(-1), cells, columns)


def _parse(content: Mapping[str, Any]) -> ReleaseHistory:
    """Build the history from JSON. Every number is checked, since each is an index."""
    quasi, sensitive, people = (_texts(content[name]) for name in ("quasi", "sensitive", "people"))
    if not isinstance(content["person"], str) or not isinstance(content["nulls"], str):
        raise ValueError("person and nulls must be texts")
    if len(set(people)) < len(people):
        raise ValueError("a person is in it twice")
    hierarchies = {c: Hierarchy.from_rows(list(zip(*map(_texts, content["hierarchies"][c])))) for c in quasi}
    levels = {c: int(content["levels"][c]) for c in quasi}
    if not all(0 <= levels[c] <= hierarchies[c].height for c in quasi):
        raise ValueError("a level is not in its hierarchy")
    releases = []
    for r in content["releases"]:
        cells = [_texts(words) for words in r["classes"]]
        if any(len(words) != len(quasi) for words in cells):
            raise ValueError("a class does not have a word for each quasi-identifier")
        person = _codes(r["person"], len(people), len(r["person"]))
        columns = {}
        for name in sensitive:
            words = _texts(r["sensitive"][name]["values"])
            columns[name] = (_codes(r["sensitive"][name]["codes"], len(words), len(person)), words)
        releases.append(PublishedRows(person, _codes(r["class"], len(cells), len(person)), cells, columns))
    if not releases:
        raise ValueError("it has no release")
    return ReleaseHistory(
        quasi=quasi,
        sensitive=sensitive,
        person=content["person"],
        models=tuple(from_table(m, MODELS, "models") for m in content["models"]),
        levels=levels,
        hierarchies=hierarchies,
        builders={
            c: from_table(b, BUILDERS, "builders") for c, b in content["builders"].items() if c in quasi
        },
        nulls=content["nulls"],
        people=people,
        releases=releases,
    )


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise ValueError("expected a list of texts")
    return values


def _codes(values: Any, below: int, length: int) -> np.ndarray:
    codes = np.asarray(values)
    if codes.shape != (length,) or (length and codes.dtype.kind != "i"):
        raise ValueError(f"expected a list of {length} whole numbers")
    codes = codes.astype(np.int64)
    if length and not (codes.min() >= 0 and codes.max() < below):
        raise ValueError(f"a number is not below {below}")
    return codes


def join_people(before: Sequence[str], now: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """(everybody, the number of each of `now` among them)."""
    position = {p: i for i, p in enumerate(before)}
    number = np.array([position.setdefault(p, len(position)) for p in now], dtype=np.int64)
    return list(position), number
