"""Disclosure control: what is not shown, and what a party does not answer.

A small count in a published table points at people. Counts below `least` are suppressed, and so is a second
one where the first could be computed from the total. These rules are about what is published: the sums
themselves are opened by the coordinator. What a party refuses to contribute to is in `QueryHistory` (rows
that differ in few people from an earlier query), `check_saturated`, `check_dominance` and
`check_concentration`.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import QueryRefused
from ..files import append_line, write_atomic

if TYPE_CHECKING:
    import pandas as pd

LEAST = 5  # smallest count shown: the usual rule of statistical offices
EFFECTIVE_ROWS = 3.0  # as in the dominance rule: never one or two people


def suppress(counts: np.ndarray, least: int) -> np.ndarray:
    """Return which counts of a distribution with a known total are not shown.

    Counts of 1 to least − 1 are hidden. If the hidden ones sum to less than `least`, or there is only one,
    the smallest shown count that is not zero is hidden as well, so that the total does not give it away.
    """
    counts = np.asarray(counts)
    hidden: np.ndarray = (counts > 0) & (counts < least)
    while hidden.any() and (hidden.sum() == 1 or counts[hidden].sum() < least):
        rest = np.flatnonzero(~hidden & (counts > 0))
        if not len(rest):
            break
        hidden[rest[np.argmin(counts[rest])]] = True
    return hidden


def suppress_table(counts: np.ndarray, least: int) -> np.ndarray:
    """Return which counts of a table with known totals of rows and columns are not shown.

    As `suppress`, in rows and columns, until no hidden count is alone in its row or column.
    """
    counts = np.asarray(counts)
    hidden: np.ndarray = (counts > 0) & (counts < least)
    while True:
        before = hidden.copy()
        for table, mask in ((counts, hidden), (counts.T, hidden.T)):
            for line, shut in zip(table, mask):
                while shut.any() and (shut.sum() == 1 or line[shut].sum() < least):
                    rest = np.flatnonzero(~shut & (line > 0))
                    if not len(rest):
                        break
                    shut[rest[np.argmin(line[rest])]] = True
        if (hidden == before).all():
            return hidden


def check_saturated(rows: int, parameters: int, least: int = 1) -> None:
    """Refuse a model with nearly as many parameters as rows: its coefficients are the rows."""
    if rows < parameters + least:
        raise QueryRefused(
            f"the model has {parameters} parameters and {rows} rows; at least {parameters + least} rows are "
            "needed. A saturated model reproduces its rows. Use fewer terms."
        )


def count_values(x: np.ndarray) -> np.ndarray:
    """For each column, in how many rows it is not 0, and in how many neither 0 nor 1."""
    present = x != 0
    return np.concatenate([present.sum(axis=0), (present & (x != 1)).sum(axis=0)])


def check_values(owner: str, names: Sequence[str], counts: np.ndarray, rows: int, least: int) -> None:
    """Refuse columns that few rows of all parties tell apart: a rare level, or a 0/1 column with few of
    one kind. `counts` is the sum of `count_values`.

    Levels, however they are coded, and columns of two other values are checked in `rare_rows.py`.
    """
    present, others = np.asarray(counts).reshape(2, -1)
    zeros = np.where(others == 0, rows - present, 0)
    few = [n for n, a, b in zip(names, present, zeros) if 0 < a < least or 0 < b < least]
    if few:
        raise QueryRefused(
            f"{owner}: of all parties' {rows} rows, 1 to {least - 1} alone have another value in "
            f"{', '.join(map(repr, few))}, and figures about so few are nearly theirs. Merge the level with "
            "another, leave the column out, or set min_count=1 if they may be shown."
        )


def check_own_rows(parameters: int, rows: int, least: float) -> None:
    """Refuse a model for which this party's own rows are few.

    How many rows all parties have together is the coordinator's word, and a party cannot check it. With as
    many rows of its own as the model has coefficients it need not: its part of the sums is not saturated.
    """
    if rows < least * parameters:
        raise QueryRefused(
            f"this party has {rows} complete rows, and the model has {parameters} coefficients; its policy "
            f"requires {least:g} rows per coefficient (rows_per_coefficient). The sums of all parties may "
            "have enough rows, but only the coordinator knows. Nothing was sent."
        )


def check_dominance(contributions: np.ndarray, share: float = 0.9, least: int = 3) -> None:
    """Refuse a sum of nonnegative contributions of which `least` − 1 people make up more than `share`.

    The (n, k) dominance rule of statistical offices: such a sum is nearly one person's value.
    """
    sizes = np.sort(np.abs(np.asarray(contributions, dtype=np.float64)))[::-1]
    total = float(sizes.sum())
    if total > 0 and float(sizes[: least - 1].sum()) > share * total:
        raise QueryRefused(
            f"{least - 1} rows make up more than {share:.0%} of a sum, which would nearly be theirs. The "
            "party does not contribute to it."
        )


_REQUIRED: ContextVar[float] = ContextVar("effective rows that a party's policy requires", default=0.0)


@contextmanager
def require_effective_rows(least: float) -> Iterator[None]:
    """Apply a party's own rule to every step that it answers inside this context."""
    token = _REQUIRED.set(least)
    try:
        yield
    finally:
        _REQUIRED.reset(token)


def check_concentration(weights: np.ndarray) -> None:
    """Refuse a weighted sum that rests on few rows, whatever made it so.

    The effective number of rows, (Σw)²/Σw², must be at least 3; of small parties at least 1 + n/80, because a
    fit without any attack may rest on an outlier there. A party's policy requires more (`effective_rows`,
    default 2: the heaviest row has at most about 70% of the weight). A coordinator could otherwise choose
    coefficients under which one person has all the weight of a step, and read that person's row off the sums.
    """
    weights = np.asarray(weights, dtype=np.float64)
    n, peak = len(weights), float(np.abs(weights).max(initial=0.0))
    if n < 2:
        return
    needed = max(min(EFFECTIVE_ROWS, 1 + n / 80), min(_REQUIRED.get(), (n + 1) / 2))
    unit = weights / peak if peak > 0 else weights
    effective = float(unit.sum()) ** 2 / float((unit**2).sum()) if peak > 0 else 0.0
    if not effective >= needed:
        raise QueryRefused(
            f"the weights of this step rest on {effective:.2g} of {n} rows of this party; at least "
            f"{needed:.2g} are required (effective_rows of its policy), because sums of so few are nearly "
            "theirs. Either the coordinator's coefficients single rows out, or the model predicts nearly all "
            "rows perfectly (separation: use fewer terms, a penalty or firth=True). Nothing was sent."
        )


class QueryHistory:
    """The row sets that a party has answered queries about, on its own disk.

    A query is refused if its rows differ from those of an earlier one by at least one row and by fewer than
    `least`: subtracting the answers would show these people. Rows are identified by their content, so
    a table in another order is the same set; equal rows are counted.

        STATE/row-sets.jsonl   {"contract": "…", "rows": N, "file": "row-sets/….npy"[, "group_of": "…"]
                                [, "hashed": "text"]}

    `hashed` names the kind of hashes; sets of two kinds are not compared. Tables had "" until tacit 0.6, and
    have "text" (`hash_texts`).
    """

    def __init__(self, folder: Path, least: int = 10):
        self.file, self.folder, self.least = folder / "row-sets.jsonl", folder / "row-sets", least

    def admit(
        self,
        contract: str,
        row_sets: Mapping[str, np.ndarray],
        whole: np.ndarray | None = None,
        hashed: str = "",
    ) -> None:
        """Record the row sets (hashes of rows, uint64) of a query before it is answered, or raise.

        `whole` are the rows of the table. A group ("arm=drug") may differ from them by few, in either order:
        the difference is the other groups, which the same query is about, and which have its minimum count.
        """
        table = None if whole is None else _file_of(np.sort(np.asarray(whole, dtype=np.uint64)))
        new = {name: np.sort(np.asarray(rows, dtype=np.uint64)) for name, rows in row_sets.items()}

        def check(lines: list[str]) -> None:
            for line in lines:
                entry = json.loads(line)
                if entry["contract"] == contract or entry.get("hashed", "") != hashed:
                    continue
                earlier = np.load(self.folder / entry["file"], allow_pickle=False)
                for name, rows in new.items():
                    if is_group(name) and entry["file"] == table:
                        continue
                    if entry.get("group_of") == _file_of(rows):
                        continue
                    differ = difference(rows, earlier)
                    if 0 < differ < self.least:
                        raise QueryRefused(
                            f"the rows of this query ({name}) differ from those of an earlier one by "
                            f"{differ} people; at least {self.least} are required (min_difference of the "
                            "policy). Subtracting the two answers would show them. Ask both about the same "
                            "rows: leave rows with missing values out of the table. Nothing was sent."
                        )

        self._write(contract, new, table, hashed, check)

    def has(self, hashed: str) -> bool:
        """Return whether there are sets with this kind of hashes."""
        if not self.file.is_file():
            return False
        lines = self.file.read_text(encoding="utf-8").splitlines()
        return any(json.loads(line).get("hashed", "") == hashed for line in lines)

    def _write(
        self,
        contract: str,
        new: Mapping[str, np.ndarray],
        table: str | None,
        hashed: str,
        check: Callable[[list[str]], None],
    ) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, rows in new.items():
            file = _file_of(rows)
            if not (self.folder / file).exists():
                content = io.BytesIO()
                np.save(content, rows, allow_pickle=False)
                write_atomic(self.folder / file, content.getvalue(), 0o600)
            entry: dict[str, object] = {"contract": contract, "rows": len(rows), "file": file}
            if is_group(name) and table is not None:
                entry["group_of"] = table
            if hashed:
                entry["hashed"] = hashed
            append_line(self.file, json.dumps(entry), check)


def hash_texts(table: pd.DataFrame) -> np.ndarray:
    """Return a hash of each row (uint64) that does not depend on how its file was read.

    A coordinator's job says how files are read. With another decimal sign, numbers become texts; with another
    encoding, letters beyond ASCII change; a declared value such as NA is not missing. So a text that is a
    number with either sign counts as that number, one that can mean a missing cell as missing, and of others
    only ASCII letters count.
    """
    import pandas as pd

    from ..data.table_files import NULLS

    state = np.zeros(len(table), np.uint64)
    for place in range(table.shape[1]):
        column = table.iloc[:, place]
        if pd.api.types.is_numeric_dtype(column.dtype):
            cells = _hash_numbers(column.to_numpy(float, na_value=np.nan))
        else:
            codes, values = pd.factorize(column)  # -1: missing
            texts = pd.Series(
                [str(v).encode("ascii", "ignore").decode().strip() for v in values], dtype=object
            )
            read = pd.to_numeric(texts.str.replace(",", ".", regex=False), errors="coerce").to_numpy(float)
            is_number = ~np.isnan(read) | texts.isin(NULLS).to_numpy()
            known = np.where(is_number, _hash_numbers(read), pd.util.hash_array(texts.to_numpy()))
            cells = np.append(known, _hash_numbers(np.array([np.nan])))[codes]
        state = state * np.uint64(0x9E3779B97F4A7C15) + cells
        state ^= state >> np.uint64(29)
    return state


def _hash_numbers(values: np.ndarray) -> np.ndarray:
    import pandas as pd

    found = values + 0.0  # −0 becomes 0
    found[np.isnan(found)] = np.nan  # one NaN
    return np.asarray(pd.util.hash_array(found), np.uint64)


def is_group(name: str) -> bool:
    """Whether a row set is one group of several, "column=level", as `columns.level_sets` names them."""
    return "=" in name


def _file_of(rows: np.ndarray) -> str:
    return hashlib.sha256(rows.tobytes()).hexdigest()[:32] + ".npy"


def difference(first: np.ndarray, second: np.ndarray) -> int:
    """How many rows are in one of two sorted collections and not in the other; equal rows are counted."""
    a, count_a = np.unique(first, return_counts=True)
    b, count_b = np.unique(second, return_counts=True)
    both, i, j = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    common = int(np.minimum(count_a[i], count_b[j]).sum()) if len(both) else 0
    return len(first) + len(second) - 2 * common


def check_parties(parties: Sequence[str], least: int = 3, threshold: float = 1.0) -> None:
    """Refuse sums over fewer parties than the owner wants: with two, each could subtract its own part.

    Below a `threshold` of 1, parties may leave: the coordinator decides who is in a sum.
    """
    fewest = min(len(parties), max(2, math.ceil(threshold * len(parties))))
    if fewest < least:
        left = f" of {len(parties)} (threshold = {threshold:g})" * (fewest < len(parties))
        raise QueryRefused(
            f"the query may open a sum over {fewest} parties{left}, and this party requires {least}. Set "
            "min_parties in its policy if fewer are wanted."
        )
