"""What every generator has in common: a frozen dataclass of hyper-parameters that learns from numbers, and
what it learnt, which draws numbers.

A generator writes two functions. `learn` turns numbers into tensors and plain facts; `draw` turns those into
numbers again. Between them nothing else survives: no row of the training table, no index into it. What
surrounds them is here, once: the table's domains and constraints, conditions (`given`), identifiers, drawing
in chunks, saving.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, check
from ..parties.ledger import Ledger
from .conditions import Conditions
from .constraints import Ordered, Unique
from .encode import Layout
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame

CHUNK = 65_536  # rows drawn at a time: 10 million rows never lie in memory together
PATIENCE = 200  # rows drawn for each that is kept, before a sample is given up
NOT_PRIVATE = (
    "NOT DIFFERENTIALLY PRIVATE: this generator bounds nothing that its rows give away about the rows it "
    "learnt from. "
    "Measure it with tacit.synth.evaluate(real, synthetic, holdout=…) before you release anything."
)

Watch = Callable[[dict[str, Any]], None]
Given = Mapping[str, Any]


@dataclass
class Learned:
    """All that a generator knows: tensors, JSON facts, one history row an epoch, and what privacy it
    spent.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    ledger: Ledger | None = None


class Generator(ABC):
    """Subclass as a frozen dataclass with declared parameters and `seed`; list it in `synth.ALL`."""

    seed: int
    private = False  # a private generator sets it, and gives a ledger with what was spent

    @abstractmethod
    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        """From the variables of `layout`, float64 [rows, variables]: codes of discrete ones (complete),
        numbers of the others (NaN: missing).
        """

    @abstractmethod
    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        """`n` rows of the same kind. `given` may be used to draw fewer rows in vain; what does not match is
        thrown away by the caller.
        """

    def fit(self, frame: DataFrame, table: Table | None = None, watch: Watch | None = None) -> Fitted:
        """Learn from a data frame. `table` says what its columns are; without it, it is read off the data."""
        check(self)
        if table is None:
            if self.private:
                raise BadData(
                    f"{type(self).__name__} needs a table with declared domains: table=Table.infer(frame, "
                    "age=integer(0, 120), …). "
                    "Domains read off the data would give away facts about single rows."
                )
            table = Table.infer(frame)
        x = table.numbers(frame)
        table = table.settled(x)
        layout = Layout(table)
        learned = self.learn(
            layout.forward(x), layout, np.random.default_rng([self.seed, 0]), watch or (lambda event: None)
        )
        if learned.ledger is None:
            learned.ledger = Ledger()
            learned.ledger.stamp(NOT_PRIVATE)
        return Fitted(self, table, learned)


@dataclass
class Fitted:
    """A generator that has learnt. The same seed gives the same rows, today and after `save` and `load`."""

    generator: Generator
    table: Table
    learned: Learned = field(repr=False)

    @property
    def ledger(self) -> Ledger:
        assert self.learned.ledger is not None
        return self.learned.ledger

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.learned.history

    def sample(self, n: int, given: Given | None = None, seed: int = 0) -> DataFrame:
        """`n` synthetic rows. `given` fixes columns: a value, a list of values, or for numbers a tuple (low,
        high).
        """
        import pandas as pd

        return pd.concat(list(self.chunks(n, given, seed)), ignore_index=True)

    def chunks(self, n: int, given: Given | None = None, seed: int = 0) -> Iterator[DataFrame]:
        """The rows of `sample`, a data frame at a time."""
        for name, value, least in (("n", n, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise bad("sample", name, value, f"a whole number of at least {least}")
        layout, conditions = Layout(self.table), Conditions.of(self.table, given or {})
        return self._chunks(int(n), int(seed), layout, conditions)

    def _chunks(self, n: int, seed: int, layout: Layout, conditions: Conditions) -> Iterator[DataFrame]:
        seen: list[set[bytes]] = [set() for c in self.table.constraints if isinstance(c, Unique)]
        for i, first in enumerate(range(0, n, CHUNK)):
            x = self._fill(
                min(CHUNK, n - first), np.random.default_rng([seed, i, 1]), layout, conditions, seen
            )
            yield self.table.frame(x, seed, first)

    def _fill(
        self, n: int, rng: np.random.Generator, layout: Layout, conditions: Conditions, seen: list[set[bytes]]
    ) -> np.ndarray:
        """`n` rows that satisfy everything: those that do not are drawn again, until patience ends."""
        kept: list[np.ndarray] = []
        have, drawn, most = 0, 0, max(PATIENCE * n, CHUNK)
        while have < n:
            rate = max(have, 1) / drawn if drawn else 1.0
            size = int(min(CHUNK, max(n - have, (n - have) * 1.1 / rate if drawn else 0)))
            x = self.table.tidied(
                layout.back(self.generator.draw(self.learned, layout, size, rng, conditions))
            )
            drawn += size
            fine = conditions.hold(x)
            for c in self.table.constraints:
                if isinstance(c, Ordered):
                    fine &= c.holds(x, self.table)
            x = self._unrepeated(x[fine], seen, n - have)
            kept.append(x)
            have += len(x)
            if have < n and drawn >= most:
                raise self._in_vain(n, have, drawn, conditions)
        return np.concatenate(kept)

    def _unrepeated(self, x: np.ndarray, seen: list[set[bytes]], most: int) -> np.ndarray:
        unique = [c for c in self.table.constraints if isinstance(c, Unique)]
        if not unique:
            return x[:most]
        keys = [c.keys(x, self.table) for c in unique]
        fine: list[int] = []
        for i in range(len(x)):
            row = [k[0][i].tobytes() if k[1][i] else None for k in keys]
            if len(fine) < most and not any(key in s for key, s in zip(row, seen) if key is not None):
                fine.append(i)
                for key, s in zip(row, seen):
                    if key is not None:
                        s.add(key)
        return x[fine]

    def _in_vain(self, n: int, have: int, drawn: int, conditions: Conditions) -> BadData:
        asked = [repr(c) for c in self.table.constraints if isinstance(c, Ordered | Unique)] + (
            [f"given={dict(conditions.told)!r}"] if conditions.told else []
        )
        return BadData(
            f"{type(self.generator).__name__}: only {have} of {n} rows satisfy {' and '.join(asked)} after "
            f"{drawn:,} were drawn. "
            "Ask for fewer rows, loosen it, or take a generator that follows the data more closely (Cart)."
        )

    def save(self, path: str | Path) -> Path:
        """One file: tensors as safetensors, everything else as JSON in its header. No code, no training
        row.
        """
        from . import saved

        return saved.write(self, Path(path))
