"""Whom a later release must leave out, so that readers of all releases learn no more than the models allow.

A *trajectory* is the class in which a person is published, in every release; "absent" is one of them. The
releases together tell at most as much as one table with the trajectory as a further quasi-identifier, so the
privacy models must hold for every group of people with the same trajectory, with the sensitive values of
every release. All releases have the same hierarchies and levels. Then the groups of the earlier releases are
divided by the new one as follows.

1. A part that violates a model is withheld from the new release: newcomers until there are enough of them,
   and people who moved to another class.
2. If the part of a group that is absent violates a model (one person has left), more of the group are
   withheld, drawn by the operating system's randomness, until it does not. In the worst case all of it is
   withheld, which is the group of the earlier releases and satisfies the models by induction.

Nobody is added or changed: m-invariance needs counterfeit rows, this does not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from ..errors import BadData
from .history import PublishedRows, ReleaseHistory, join_people
from .models import KAnonymity, PrivacyModel

TRIES = 32  # people added one by one to a group that is not diverse; then the rest of their part is


def find_withheld(history: ReleaseHistory, people: Sequence[str], rows: PublishedRows) -> np.ndarray:
    """Which of `people` the new release must not publish, so that the models hold over all releases.

    `rows` are the rows of the new table at the levels of the history, before any is withheld.
    """
    everybody, number = join_people(history.people, people)
    overlap = len(history.people) + len(people) - len(everybody)
    if not overlap:
        raise BadData(
            f"None of the {len(history.people):,} people of the earlier releases is in the table, so nothing "
            f"can be compared. Use the same ids in {history.person!r} as before (and the same key of "
            "pseudonyms). If these are other people, publish them by anonymize(…) with method=Fixed(levels)."
        )
    every = [*history.releases, rows.renumber(number)]
    guard = _Groups(every, len(everybody), history.models)
    before = np.unique(
        np.stack([r.label(len(everybody)) for r in history.releases], axis=1), axis=0, return_inverse=True
    )[1].reshape(-1)
    was_published = np.zeros(len(everybody), bool)
    for r in history.releases:
        was_published[r.person] = True
    now = every[-1].label(len(everybody))
    present = now > 0
    now[~guard.hold(before, now)] = 0  # step 1; absent people stay absent
    is_bad = ~guard.hold(before, now) & was_published
    order = np.argsort(before, kind="stable")
    for b in np.unique(before[is_bad]):  # step 2
        low, high = np.searchsorted(before[order], [b, b + 1])
        _withhold_more(guard, now, order[low:high])
    if not guard.hold(before, now)[was_published | (now > 0)].all():
        raise RuntimeError(
            "internal error (please report it): a group of the releases violates a privacy model. Nothing "
            "was published."
        )
    return np.asarray((present & (now == 0))[number])


class _Groups:
    """Whether groups of people satisfy the models with the sensitive values of every release."""

    def __init__(
        self, releases: Sequence[PublishedRows], people: int, models: tuple[PrivacyModel, ...]
    ) -> None:
        self.releases, self.models, self.people = releases, models, people
        self.order = [np.argsort(r.person, kind="stable") for r in releases]
        self.start = [
            np.searchsorted(r.person[o], np.arange(people + 1)) for r, o in zip(releases, self.order)
        ]

    def hold(self, before: np.ndarray, now: np.ndarray) -> np.ndarray:
        """Whether each person's group holds: those with the same numbers `before` and `now`.

        A release that does not publish the group does not count.
        """
        distinct, group = np.unique(before * (int(now.max(initial=0)) + 1) + now, return_inverse=True)
        group = group.reshape(-1)
        satisfied = np.ones(len(distinct), bool)
        for i, r in enumerate(self.releases):
            is_last = i == len(self.releases) - 1
            rows = np.flatnonzero(now[r.person] > 0) if is_last else np.arange(len(r.person))
            classes = r.classes(group, len(distinct), rows)
            for m in self.models:
                satisfied &= m.holds(classes) | (classes.sizes == 0)
        return np.asarray(satisfied[group])

    def holds(self, people: np.ndarray, with_last: bool) -> bool:
        """For one group, which the last release publishes or not."""
        group = np.zeros(self.people, np.int64)
        for r, order, start in zip(self.releases[: None if with_last else -1], self.order, self.start):
            rows = (
                np.concatenate([order[start[p] : start[p + 1]] for p in people]) if len(people) else order[:0]
            )
            if not len(rows):
                continue
            classes = r.classes(group, 1, rows)
            if not all(m.holds(classes)[0] for m in self.models):
                return False
        return True


def _withhold_more(guard: _Groups, now: np.ndarray, members: np.ndarray) -> None:
    """Make more of a group of the earlier releases absent until those who are absent satisfy the models."""
    absent = members[now[members] == 0]
    if not len(absent) or guard.holds(absent, False):
        return
    parts = [members[now[members] == v] for v in np.unique(now[members]) if v > 0]
    least = max((m.k for m in guard.models if isinstance(m, KAnonymity)), default=1)
    draw = random.SystemRandom()
    for part in sorted(parts, key=len, reverse=True):  # the largest can spare most
        order = part.copy()
        draw.shuffle(order)
        first = max(least - len(absent), 1)
        for n in range(first, min(first + TRIES, len(order))):
            if guard.holds(np.append(absent, order[:n]), False):
                if guard.holds(order[n:], True):
                    now[order[:n]] = 0
                    return
                break
        now[part] = 0
        absent = np.append(absent, part)
        if guard.holds(absent, False):
            return
