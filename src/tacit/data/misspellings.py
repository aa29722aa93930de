"""Find values of a column that are probably misspelled forms of more frequent ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .recipe import RARE_COUNT, RARE_SHARE

if TYPE_CHECKING:
    from pandas import Series

MANY = 500  # comparing all pairs of a long code list finds neighbors, not typos
RATIO = 10  # a typo is so much rarer than the word that was meant
SHORT = 5  # words with fewer letters are near to too many others; with so many, one is missing or too much
LONG = 8  # from so many letters on, two may be wrong


def find_misspellings(known: Series) -> list[tuple[str, str]]:
    """Return (value, the more frequent value that was probably meant).

    They differ in case or spaces only, or a rare value is one or two letters off.
    """
    counts: dict[str, int] = known.astype(str).value_counts().to_dict()
    if len(counts) > MANY:
        return []
    folded = {value: " ".join(value.casefold().split()) for value in counts}
    most_frequent: dict[str, str] = {}  # of the values that are folded to this
    pairs = []
    for value in counts:  # from the most frequent on
        meant: str | None = most_frequent.setdefault(folded[value], value)
        if meant == value:
            is_rare = counts[value] < max(RARE_COUNT, RARE_SHARE * len(known))
            larger = [v for v in counts if counts[v] >= RATIO * counts[value]] if is_rare else []
            meant = next((v for v in larger if is_misspelled(folded[value], folded[v])), None)
        if meant is not None:
            pairs.append((value, meant))
    return pairs


def is_misspelled(written: str, meant: str) -> bool:
    """Whether a word is another with one letter wrong, missing, doubled or swapped, or two in a long one.

    Digits are codes, and another first letter makes another word: male, female; finished, unfinished.
    """
    shorter = min(len(written), len(meant))
    most = 1 if shorter < LONG else 2
    if shorter < SHORT or (len(written) == len(meant) == SHORT):
        return False
    if abs(len(written) - len(meant)) > most or re.search(r"\d", written + meant):
        return False
    same = next((k for k, (a, b) in enumerate(zip(written, meant)) if a != b), shorter)
    if same == 0 or not written[same - 1].isalnum():
        return False
    return count_edits(written[same:], meant[same:]) <= most


def count_edits(a: str, b: str) -> int:
    """Return how many insertions, deletions, substitutions and swaps of neighbors turn one text into another.

    This is the optimal string alignment distance.
    """
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        now = [i]
        for k, y in enumerate(b, 1):
            now.append(min(last[k] + 1, now[k - 1] + 1, last[k - 1] + (x != y)))
            if i > 1 and k > 1 and x == b[k - 2] and a[i - 2] == y:
                now[k] = min(now[k], before[k - 2] + 1)
        before, last = last, now
    return last[-1]
