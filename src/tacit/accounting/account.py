"""Privacy accounting: how much was spent, and whether more may be. Spent privacy cannot be recovered, so a
release is recorded before it is made.

A round that was computed, lost in a crash and computed again was released twice, with different noise. So the
account counts rounds that were started, in a file that is never rolled back. Each line has the settings of
its release, and ε composes the lines as they were spent (`mixture.py`), independent of the settings of the
account that reads them.

One file may serve several agreements on the same data. Each has a `key`: budget and limit apply to the lines
of that key, `lifetime` composes all lines, and `total` bounds them: what a party's owner allows for all
training runs and all statistics about its data together (policy.toml, [privacy]).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import BudgetSpent
from ..parameters import bad
from .account_file import AccountFile, AccountLine
from .compose import Release, most_steps
from .mixture import mixed_epsilon

FILE = "spent.jsonl"
ROUNDING = 1 + 1e-9  # tolerance for an ε that was calibrated to a budget in floating point


@dataclass
class Account:
    """The releases under one agreement.

    `budget` is the maximum ε and `limit` the maximum number of releases; None means no bound.
    """

    release: Release
    delta: float
    budget: float | None = None
    rounds: int = 0  # planned: the most that the run may need
    file: Path | None = None
    spent: int = 0  # releases so far under this key
    limit: int | None = field(default=None, kw_only=True)
    key: str = field(default="", kw_only=True)
    total: float | None = field(default=None, kw_only=True)  # the most ε of all lines, with any key
    _allowed: int | None = field(default=None, repr=False)  # by rounds and budget
    _done: int = field(default=0, init=False, repr=False)  # planned rounds started through this object
    _known: int = field(default=0, init=False, repr=False)  # complete lines under this key
    _memory: list[AccountLine] = field(default_factory=list, init=False, repr=False)  # not in a file
    _file: AccountFile | None = field(default=None, init=False, repr=False)
    _token: str = field(default_factory=lambda: secrets.token_hex(8), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.limit is not None and (
            isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 0
        ):
            raise bad("Account", "limit", self.limit, "a whole number of at least 0, or None")
        if self.spent:
            self._memory.append(AccountLine(self.key, self._session, self.release, self.spent))
            self._known = self.spent
        self._refresh()

    @property
    def _session(self) -> str:
        return f"{self._token}.{os.getpid()}"  # a forked process counts its own passes

    @property
    def allowed(self) -> int:
        """The total number of releases that budget and limit allow, at most those planned."""
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
        """ε so far, or after this number of releases."""
        lines = self._mine()
        if rounds is None or rounds >= self.spent:
            return self._epsilon(lines, 0 if rounds is None else rounds - self.spent)
        first = []
        for line in lines:
            first.append(line._replace(times=min(line.times, rounds)))
            rounds -= first[-1].times
        return self._epsilon(first)

    def epsilon_with(self, more: Sequence[tuple[Release, int]]) -> float:
        """ε of what was spent so far and of more releases, (release, count) each."""
        return mixed_epsilon([*self._groups(self._mine(), self.delta), *more], self.delta)

    def count_steps(self) -> int:
        """The number of releases so far that were of the planned kind."""
        return sum(line.times for line in self._mine() if line.release == self.release)

    def lifetime(self, delta: float | None = None) -> float:
        """ε of all lines of the file, with any key: the total spent on the data."""
        self._refresh()
        return self._epsilon(self._lines(), delta=delta)

    def may_spend(self) -> bool:
        """Whether one more planned release is within budget and limit, including what other processes spent
        from this file.
        """
        self._refresh()
        return self.spent < self.allowed

    def spend(self, number: int, release: Release | None = None, times: int = 1) -> None:
        """Record that round `number` (from 1) is about to be released; on disk when this returns.

        `release` is given if it is not of the planned kind, `times` if the round has several equal ones.
        Raises BudgetSpent, and writes nothing, if budget
        or limit would be exceeded.
        """
        current = self.release if release is None else release
        if self.file is None:
            self._check_allowed(current, times)
            self._memory.append(AccountLine(self.key, self._session, current, times))
            self._count(self._memory[-1:])
        else:
            account_file = self._opened(self.file)
            with account_file.writing() as fd:
                self._count(account_file.read(fd))
                self._check_allowed(current, times)
                account_file.append(fd, number, self.key, self._session, current, self.delta, times)
                self._count(account_file.read(fd))
        self._done += times if release is None else 0

    # lines --------------------------------------------------------------------------------------------------

    def _check_allowed(self, release: Release, times: int = 1) -> None:
        if self.total is not None:
            cost = mixed_epsilon([*self._groups(self._lines(), self.delta), (release, times)], self.delta)
            if cost > self.total * ROUNDING:
                raise BudgetSpent(
                    f"with this release all training and statistics about these data would have ε = "
                    f"{cost:.4g} at δ = {self.delta:g} together, and their owner allows {self.total:g} "
                    "(policy.toml, [privacy]). Nothing was released; what was spent stays spent."
                )
        if self.limit is not None and self.spent + times > self.limit:
            raise BudgetSpent(
                f"{self.spent} of {self.limit} agreed releases were made. Nothing more was released; more "
                "releases need a new agreement."
            )
        if self.budget is None or (release == self.release and self.spent + times <= self.allowed):
            return
        cost = (
            self._epsilon(self._mine(), times)
            if release == self.release
            else self.epsilon_with([(release, times)])
        )
        if cost > self.budget * ROUNDING:
            raise BudgetSpent(
                f"one more release would cost ε = {cost:.4g} at δ = {self.delta:g}, and the budget is "
                f"{self.budget:g}. "
                "Nothing was released; what was spent stays spent."
            )

    def _refresh(self) -> None:
        if self.file is not None:
            self._count(self._opened(self.file).refresh())

    def _opened(self, file: Path) -> AccountFile:
        if self._file is None or self._file.path != file:
            self._file = AccountFile(file)
        return self._file

    def _count(self, new: list[AccountLine]) -> None:
        """Count new complete lines, and an incomplete one at the end of the file."""
        tail = None if self._file is None else self._file.tail
        if tail is not None or any(
            line.session != self._session or line.release != self.release for line in new
        ):
            self._allowed = None  # another process, or another kind of release, spent
        self._known += sum(line.times for line in new if line.key in (self.key, None))
        self.spent = self._known + (tail is not None and tail.key in (self.key, None))

    def _lines(self) -> list[AccountLine]:
        if self._file is None:
            return self._memory
        return [*self._memory, *self._file.lines, *filter(None, [self._file.tail])]

    def _mine(self) -> list[AccountLine]:
        return [line for line in self._lines() if line.key in (self.key, None)]

    def _epsilon(self, lines: list[AccountLine], more: int = 0, delta: float | None = None) -> float:
        delta = self.delta if delta is None else delta
        return mixed_epsilon(
            self._groups([*lines, AccountLine(self.key, self._session, self.release, more)], delta), delta
        )

    def _groups(self, lines: list[AccountLine], delta: float) -> list[tuple[Release, int]]:
        """(release, steps); releases counted by passes are grouped by session."""
        counts: dict[tuple[Release, str], int] = {}
        incomplete = 0
        for line in lines:
            if line.release is None:
                incomplete += line.times
            elif line.times:
                at = line.release, line.session if line.release.by_pass else ""
                counts[at] = counts.get(at, 0) + line.times
        groups = [(release, n) for (release, _), n in counts.items()]
        if not incomplete:
            return groups
        # An incomplete line was of a kind in the file, or of a new kind that was not released: charge the
        # most expensive one.
        known = {self.release, *(line.release for line in self._lines() if line.release is not None)}
        return [*groups, *[(max(known, key=lambda r: mixed_epsilon([(r, 1)], delta)), 1)] * incomplete]
