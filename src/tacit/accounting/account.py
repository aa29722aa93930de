"""What was spent, and whether more may be. Privacy once given away stays given away: a release is written
down before it is made.

A round that was computed, lost in a crash and computed again has been released twice, with different noise.
So the account counts rounds begun, in a file of its own that is never wound back. Each line has the settings
of its release, and ε composes the lines as they were spent (`mixture.py`), whatever the settings of the
account that reads them.

One file may serve several agreements on the same data. Each has a `key`: budget and limit count the lines of
that key, and `lifetime` composes them all.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BudgetSpent
from ..parameters import bad
from .account_file import AccountFile, Line
from .compose import Release, most_steps
from .mixture import mixed_epsilon

FILE = "spent.jsonl"
ROUNDING = 1 + 1e-9  # an ε that was found to meet a budget may exceed it by this much in floating point


@dataclass
class Account:
    """Releases under one agreement. `budget` is an ε that is never exceeded, `limit` a number of releases;
    None: no such bound.
    """

    release: Release
    delta: float
    budget: float | None = None
    rounds: int = 0  # how many are planned: what the run may need at most
    file: Path | None = None
    spent: int = 0  # releases so far under this key
    limit: int | None = field(default=None, kw_only=True)
    key: str = field(default="", kw_only=True)
    _allowed: int | None = field(default=None, repr=False)  # by rounds and budget
    _done: int = field(
        default=0, init=False, repr=False
    )  # planned rounds that were begun through this object
    _known: int = field(default=0, init=False, repr=False)  # complete lines under this key
    _memory: list[Line] = field(default_factory=list, init=False, repr=False)  # what is in no file
    _book: AccountFile | None = field(default=None, init=False, repr=False)
    _token: str = field(default_factory=lambda: secrets.token_hex(8), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.limit is not None and (
            isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 0
        ):
            raise bad("Account", "limit", self.limit, "a whole number of at least 0, or None")
        if self.spent:
            self._memory.append(Line(self.key, self._session, self.release, self.spent))
            self._known = self.spent
        self._refresh()

    @property
    def _session(self) -> str:
        return f"{self._token}.{os.getpid()}"  # a process that was forked has passes of its own

    @property
    def allowed(self) -> int:
        """How many releases budget and limit allow in all, of those the run may need."""
        if self._allowed is None:
            left = max(0, self.rounds - self._done)
            if not self.rounds and self.limit is not None:
                left = max(0, self.limit - self.spent)
            if self.budget is not None:
                lines = self._mine()
                left = most_steps(lambda more: self._epsilon(lines, more), self.budget * ROUNDING, left)
            self._allowed = self.spent + left
        return self._allowed if self.limit is None else min(self._allowed, self.limit)

    def epsilon(self, rounds: int | None = None) -> float:
        """ε so far, or after this many releases."""
        lines = self._mine()
        if rounds is None or rounds >= self.spent:
            return self._epsilon(lines, 0 if rounds is None else rounds - self.spent)
        first = []
        for line in lines:
            first.append(line._replace(times=min(line.times, rounds)))
            rounds -= first[-1].times
        return self._epsilon(first)

    def epsilon_with(self, more: Sequence[tuple[Release, int]]) -> float:
        """ε after what was spent so far and so many more of these releases."""
        return mixed_epsilon([*self._groups(self._mine(), self.delta), *more], self.delta)

    def count_steps(self) -> int:
        """How many of the releases so far were of the planned kind."""
        return sum(line.times for line in self._mine() if line.release == self.release)

    def lifetime(self, delta: float | None = None) -> float:
        """ε of every line of the file, whatever its key: what was spent on the data in all."""
        self._refresh()
        return self._epsilon(self._lines(), delta=delta)

    def may_spend(self) -> bool:
        """Whether one more planned release is within budget and limit, with what other processes spent from
        this file.
        """
        self._refresh()
        return self.spent < self.allowed

    def spend(self, number: int, release: Release | None = None) -> None:
        """Round `number` (from 1) is about to be released; `release` where it is not one of the planned kind.
        On the disk when this returns.

        Raises BudgetSpent, and writes nothing, where budget or limit would be exceeded.
        """
        what = self.release if release is None else release
        if self.file is None:
            self._decide(what)
            self._memory.append(Line(self.key, self._session, what))
            self._note(self._memory[-1:])
        else:
            book = self._opened(self.file)
            with book.writing() as fd:
                self._note(book.read(fd))
                self._decide(what)
                book.append(fd, number, self.key, self._session, what, self.delta)
                self._note(book.read(fd))
        self._done += release is None

    # what was spent -----------------------------------------------------------------------------------------

    def _decide(self, release: Release) -> None:
        if self.limit is not None and self.spent >= self.limit:
            raise BudgetSpent(
                f"{self.limit} releases were agreed to, and {self.spent} were made. Nothing more was "
                "released; more needs a new agreement."
            )
        if self.budget is None or (release == self.release and self.spent < self.allowed):
            return
        lines = self._mine()
        cost = (
            self._epsilon(lines, 1)
            if release == self.release
            else mixed_epsilon([*self._groups(lines, self.delta), (release, 1)], self.delta)
        )
        if cost > self.budget * ROUNDING:
            raise BudgetSpent(
                f"one more release would cost ε = {cost:.4g} at δ = {self.delta:g}, and the budget is "
                f"{self.budget:g}. "
                "Nothing was released; what was spent stays spent."
            )

    def _refresh(self) -> None:
        if self.file is not None:
            self._note(self._opened(self.file).refresh())

    def _opened(self, file: Path) -> AccountFile:
        if self._book is None or self._book.path != file:
            self._book = AccountFile(file)
        return self._book

    def _note(self, new: list[Line]) -> None:
        """Count complete lines that were not known yet, and what follows them in the file."""
        tail = None if self._book is None else self._book.tail
        if tail is not None or any(
            line.session != self._session or line.release != self.release for line in new
        ):
            self._allowed = None  # somebody else spent, or something else was spent
        self._known += sum(line.times for line in new if line.key in (self.key, None))
        self.spent = self._known + (tail is not None and tail.key in (self.key, None))

    def _lines(self) -> list[Line]:
        book = self._book
        return (
            self._memory
            if book is None
            else [*self._memory, *book.lines, *([book.tail] if book.tail is not None else [])]
        )

    def _mine(self) -> list[Line]:
        return [line for line in self._lines() if line.key in (self.key, None)]

    def _epsilon(self, lines: list[Line], more: int = 0, delta: float | None = None) -> float:
        delta = self.delta if delta is None else delta
        return mixed_epsilon(
            self._groups([*lines, Line(self.key, self._session, self.release, more)], delta), delta
        )

    def _groups(self, lines: list[Line], delta: float) -> list[tuple[Release, int]]:
        """(release, steps), those counted by passes apart for each session."""
        counts: dict[tuple[Release, str], int] = {}
        torn = 0
        for line in lines:
            if line.release is None:
                torn += line.times
            elif line.times:
                at = line.release, line.session if line.release.by_pass else ""
                counts[at] = counts.get(at, 0) + line.times
        groups = [(release, n) for (release, _), n in counts.items()]
        if not torn:
            return groups
        # A line cut short was of one of the kinds in the file, or of a kind never seen, which was not
        # released: the dearest counts.
        known = {self.release, *(line.release for line in self._lines() if line.release is not None)}
        return [*groups, *[(max(known, key=lambda r: mixed_epsilon([(r, 1)], delta)), 1)] * torn]
