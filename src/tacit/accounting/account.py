"""What a run has spent, and whether it may go on. Privacy once given away stays given away: it is written down before a round begins.

A round that was computed, lost in a crash and computed again has been released twice, with different noise. So the account counts rounds begun,
in a file of its own that is never wound back; a resumed run goes on from there, and may have to stop earlier.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import BadRun
from .compose import Release

FILE = "spent.jsonl"


@dataclass
class Account:
    """Rounds begun under one guarantee. `budget` is an ε that is never exceeded; None counts only."""

    release: Release
    delta: float
    budget: float | None = None
    rounds: int = 0  # how many are planned: what the run may need at most
    file: Path | None = None
    spent: int = 0
    limit: int | None = None
    key: str = ""
    _allowed: int | None = field(default=None, repr=False)
    _torn: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            text = self.file.read_text(encoding="utf-8")
            lines = [line for line in text.split("\n") if line]
            self._torn = bool(text) and not text.endswith("\n")
            try:
                for i, line in enumerate(lines[:-1]):
                    try:
                        json.loads(line)["round"]
                    except ValueError:
                        if json.loads(lines[i + 1])["begun"] != i + 2:  # cut short by a crash, and the run went on: what followed counted it
                            raise
            except (ValueError, KeyError, TypeError) as error:
                raise BadRun(f"{self.file} cannot be read: {error}. It says what privacy was spent, so the run cannot go on without it. "
                             "Put it back from a copy, or start anew and add what this run spent by hand.") from error
            self.spent = len(lines)  # a line cut short by a crash was begun all the same

    @property
    def allowed(self) -> int:
        """How many rounds the budget allows in all, of those the run may need."""
        if self._allowed is None:
            most = self.spent + self.rounds
            self._allowed = most if self.budget is None else self.release.steps_within(self.budget * (1 + 1e-9), self.delta, most)
        return self._allowed

    def epsilon(self, rounds: int | None = None) -> float:
        """ε so far, or after this many rounds."""
        return self.release.epsilon(self.spent if rounds is None else rounds, self.delta)

    def may_spend(self) -> bool:
        return self.spent < self.allowed

    def spend(self, number: int) -> None:
        """Round `number` (from 1) is about to be released."""
        self.spent += 1
        if self.file is not None:
            line: dict[str, Any] = {"round": number, "begun": self.spent, "multiplier": self.release.multiplier, "rate": self.release.rate,
                                    "sampling": self.release.sampling, "accountant": self.release.accountant, "delta": self.delta}
            with open(self.file, "a", encoding="utf-8") as out:
                out.write("\n" * self._torn + json.dumps(line) + "\n")  # behind a line cut short, not at its end: the two would count as one
                out.flush()
                os.fsync(out.fileno())
            self._torn = False
