"""Shakespeare: the lines of 37 plays, one client for every speaking role.

McMahan et al. 2017; J. Bosak's edition of the Moby text, public domain. A row is one line of verse or prose:
its characters, and for each of them the next character, up to the end of the line. The last fifth of a role's
lines, at least one, is the global test set. The file has a line of JSON for each role of each play, {"play":
…, "role": …, "speeches": […]}, with newlines between the lines of a speech; `data_dir` or TACIT_DATA says
where it is. It cannot be downloaded: it was made from Bosak's XML, one file per play. With `verify=False` you
can use a file that you made in the same way.
"""

from __future__ import annotations

import json
import math
import os

import numpy as np

from ..errors import BadData
from .arrays import from_arrays
from .federation import Dataset, check_fraction, check_whole
from .sources import Published, contents, folders

FILE = Published(
    "shakespeare_by_role.jsonl.gz", inside="03c93d4c67999b0a6fa0d1c161ee403b0b647f9293961d45c79a3054b4790bc4"
)
NONE = -1  # the label after the end of a line
# characters per row, the context of the paper's network; a longer line continues in the next row
LONGEST = 80


def shakespeare(
    least: int = 2,
    test_fraction: float = 0.2,
    data_dir: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> Dataset:
    """Shakespeare: the lines of 37 plays, one client for every speaking role.

    Characters [N, 65] and the next character of each; `.by("role")`.
    Roles with fewer than `least` lines are left out. Every role keeps at least one line for training.
    """
    two = "a whole number of at least 2: one line for training, one for testing"
    check_whole("shakespeare", "least", least, 2, must_be=two)
    check_fraction("shakespeare", "test_fraction", test_fraction)
    (text,) = contents("shakespeare", (FILE,), folders("shakespeare", data_dir), verify, download=True)
    roles = {name: lines for name, lines in _roles(text).items() if len(lines) >= least}
    if not roles:
        raise BadData(f"shakespeare: no role has {least} lines. Ask for fewer.")
    letters = sorted({"\n", *(c for lines in roles.values() for line in lines for c in line)})
    at = {c: i for i, c in enumerate(letters)}
    rows: dict[bool, list[tuple[list[int], str]]] = {False: [], True: []}
    for name, lines in roles.items():
        tested = min(len(lines) - 1, math.ceil(test_fraction * len(lines)))
        for i, line in enumerate(lines):
            whole = [at[c] for c in f"\n{line}\n"]
            rows[i >= len(lines) - tested] += [
                (whole[j : j + LONGEST + 1], name) for j in range(0, len(whole) - 1, LONGEST)
            ]
    width = max(len(row) for part in rows.values() for row, _ in part) - 1
    (x, y), test = (_to_arrays(part, width) for part in rows.values())
    return from_arrays(
        x,
        y,
        test=test,
        classes=len(letters),
        labels=letters,
        name="shakespeare",
        tokens=True,
        groups={"role": [name for _, name in rows[False]]},
    )


def _roles(text: bytes) -> dict[str, list[str]]:
    """Return the lines of every role, by its play and name."""
    out: dict[str, list[str]] = {}
    for i, line in enumerate(text.splitlines(), 1):
        try:
            record = json.loads(line)
            if not isinstance(record["speeches"], list):
                raise TypeError("speeches is not a list")
            out.setdefault(f"{record['play']}: {record['role']}", []).extend(
                part for speech in record["speeches"] for part in speech.splitlines() if part
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadData(
                f"shakespeare: line {i} of {FILE.name} is not a role with speeches "
                f"({type(error).__name__}: {error}). Get the file again."
            ) from None
    if not out:
        raise BadData(f"shakespeare: {FILE.name} is empty. Get the file again.")
    return out


def _to_arrays(rows: list[tuple[list[int], str]], width: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.zeros((len(rows), width), dtype=np.int64), np.full((len(rows), width), NONE, dtype=np.int64)
    for i, (row, _) in enumerate(rows):
        x[i, : len(row) - 1], y[i, : len(row) - 1] = row[:-1], row[1:]
    return x, y
