"""The base class of all generators: fitting, sampling, conditions, constraints and saving.

A generator implements two functions. `learn` turns numbers into tensors and metadata; `draw` turns those into
numbers again. Nothing else is kept: no row of the training table, and no index into it.
"""

from __future__ import annotations

import html
import json
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from torch import Tensor

from ..errors import BadData, BadParameter
from ..files import write_atomic
from ..parameters import bad, check, to_table
from ..parties.ledger import Ledger
from ..people import encode_person, pick_one_row
from ..results import JobResult, check_absent, encode_plain
from .columns import Column
from .constraints import Ordered, Unique
from .dependencies import with_dependencies
from .encode import Conditions, Layout, split_by_shares
from .outliers import protect_outliers
from .protect import FLOOR, Protection, protect_cells
from .reading import is_repeated_id
from .table import Table

CHUNK = 65_536  # rows drawn at a time, so that a large sample is never in memory as a whole
PROTECTION = "protection"  # in the metadata of a state
FORMAT = "tacit.synth/1"  # of saved generators
PATIENCE = 200  # rows drawn for each accepted row before sampling fails
NOT_PRIVATE = (
    "NOT DIFFERENTIALLY PRIVATE: nothing bounds what the synthetic rows reveal about the training rows. "
    "Measure it beside rows held out (tacit synth --report FILE, or in Python tacit.synth.evaluate) before "
    "you release anything."
)

Watch = Callable[[dict[str, Any]], None]


def unprotected_ledger() -> Ledger:
    """Return a ledger that states that nothing is differentially private."""
    ledger = Ledger()
    ledger.stamp(NOT_PRIVATE)
    return ledger


@dataclass
class GeneratorState:
    """Everything a generator has learned.

    `metadata` is JSON, `history` has one row per epoch, and `ledger` states the privacy spent.
    """

    tensors: dict[str, Tensor]
    metadata: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=unprotected_ledger)


def run_epochs(
    epochs: int,
    train_epoch: Callable[[int], dict[str, float]],
    watch: Watch,
    until: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Call `train_epoch(epoch)`, which returns losses; return one history row per epoch.

    Ends before the last epoch if `until()` is true after one.
    """
    history: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        started = time.monotonic()
        history.append({"epoch": epoch, **train_epoch(epoch), "seconds": time.monotonic() - started})
        watch({"kind": "epoch", "epochs": epochs, **history[-1]})
        if until():
            break
    return history


@dataclass(frozen=True)
class FitOptions:
    """The options of `fit` that are not parameters of a generator."""

    floor: int = FLOOR
    people: np.ndarray | None = None  # the person of each row
    dependencies: bool = True
    protect: Literal["outliers"] | None = None


class IdentifierWarning(UserWarning):
    """A column may be an id of people with several rows."""


def _warn_of_ids(frame: pd.DataFrame) -> None:
    for i, name in enumerate(map(str, frame.columns)):
        if is_repeated_id(frame.iloc[:, i].dropna(), name):
            warnings.warn(
                f"the column {name!r} has {frame.iloc[:, i].nunique():,} different values in {len(frame):,} "
                f"rows: it may be an id of people with several rows. "
                f"Give fit(…, person={name!r}), or declare it.",
                IdentifierWarning,
                stacklevel=4,
            )


class Generator(JobResult, ABC):
    """Learns the distribution of a table and samples synthetic rows from it.

    A subclass is a frozen dataclass of declared parameters, listed in `synth.ALL`. `fit` returns the
    generator itself; `table`, `state`, `history` and `ledger` are available after it. The same seed gives the
    same rows, also after `save` and `load`.
    """

    title = "A generator of synthetic rows"

    seed: int
    private: ClassVar[bool] = False  # whether its ledger states an (ε, δ) guarantee
    federated: ClassVar[bool] = False  # whether several holders can fit it together (`tacit.synthesize`)
    conditional: ClassVar[bool] = False  # whether it has `learn_given` and `draw_given`, for `LinkedTables`
    _fitted: tuple[Table, GeneratorState] | None = None

    @abstractmethod
    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        """Learn from the variables of `layout`, float64 [rows, variables].

        Discrete variables are codes without missing values; numbers are NaN where missing.
        """

    @abstractmethod
    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        """Draw `n` rows, in the form that `learn` receives.

        `conditions` may be used to propose better rows; the caller rejects rows that do not match.
        """

    def learn_given(
        self,
        v: np.ndarray,
        layout: Layout,
        given: int,
        rng: np.random.Generator,
        watch: Watch,
        people: np.ndarray | None = None,
    ) -> GeneratorState:
        """Learn the later variables of `layout` given the first `given` ones, which are not learned.

        `people` tells whose each row is, if people have several rows.
        """
        raise BadParameter(f"{type(self).__name__} cannot draw columns given others. Use Cart.")

    def draw_given(
        self, state: GeneratorState, layout: Layout, given: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw one row for each row of `given`, [rows, first variables]; return all variables."""
        raise BadParameter(f"{type(self).__name__} cannot draw columns given others. Use Cart.")

    def fit(
        self,
        frame: pd.DataFrame,
        table: Table | Mapping[str, Column] | None = None,
        watch: Watch | None = None,
        *,
        floor: int | None = None,
        person: str | None = None,
        dependencies: bool = True,
        protect: Literal["outliers"] | None = None,
    ) -> Self:
        """Learn from a data frame and return self.

        `table` declares the columns, as a Table or a dictionary of columns; without it they are inferred from
        the data. Private generators require it. `watch` is called with a dictionary per epoch. Values that
        fewer than `floor` rows share (default: 10) are neither learned nor sampled; 1 turns this off. Private
        generators need no floor.

        `person` is the column that tells whose a row is, if people have several rows. It is not learned; the
        floor counts people, and a private generator uses one row of each person, so that its ε is for people.
        `dependencies`: a column that another one determines keeps to it (not with private generators).
        `protect="outliers"`: rows that are far from all others are generalized or left out (`outliers.py`).
        """
        check(self)
        if protect not in (None, "outliers"):
            raise bad("fit", "protect", protect, "None or 'outliers'")
        if protect is not None and self.private:
            raise bad("fit", "protect", protect, "None: the noise of a private generator covers outliers")
        if floor is not None and (
            isinstance(floor, bool) or not isinstance(floor, int | np.integer) or floor < 1
        ):
            raise bad("fit", "floor", floor, "a whole number of at least 1")
        if floor is not None and self.private:
            raise bad("fit", "floor", floor, "None: the noise of a private generator covers rare values")
        watch = watch or (lambda event: None)
        people = None
        if person is not None:
            frame, people = self._take_person(frame, table, person)
        options = FitOptions(FLOOR if floor is None else int(floor), people, bool(dependencies), protect)
        fitted, state = self._learn_frame(frame, table, watch, options)
        if person is not None:
            whose = f"person ({person}), added or removed; one row of each was used"
            state.ledger.spent[:] = [replace(s, unit=whose) for s in state.ledger.spent]
        return self.restore(fitted, state)

    def _take_person(
        self, frame: pd.DataFrame, table: Table | Mapping[str, Column] | None, person: str
    ) -> tuple[pd.DataFrame, np.ndarray | None]:
        """The rows to learn from without the column of people, and the person of each."""
        people = encode_person(frame, person, [], "fit")
        names = (
            [] if table is None else [c.name for c in table.columns] if isinstance(table, Table) else table
        )
        if person in names:
            raise bad("fit", "person", person, "a column that `table` does not declare: it is not learned")
        frame = frame.drop(columns=person)
        if not self.private:
            return frame, people
        if isinstance(table, Table):
            table.check_unspent("fit: with person=…, use domain_epsilon, which reads one row of each person.")
        return frame.iloc[pick_one_row(people)].reset_index(drop=True), None

    def _learn_frame(
        self,
        frame: pd.DataFrame,
        table: Table | Mapping[str, Column] | None,
        watch: Watch,
        options: FitOptions,
    ) -> tuple[Table, GeneratorState]:
        if table is None:
            if self.private:
                raise BadData(
                    f"{type(self).__name__} is private and needs declared domains: fit(frame, table=…). "
                    "Domains inferred from the data would reveal facts about single rows."
                )
            table = Table.infer(frame)
            _warn_of_ids(frame)
        elif not isinstance(table, Table):
            table = Table.declare(table)
        x = table.to_numbers(frame)
        table.resolve_constraints(x)  # the real rows must satisfy them
        if options.dependencies:
            table = with_dependencies(table, x, options.floor)
        rng = np.random.default_rng([self.seed, 2])
        x, table, protection, valid = protect_cells(x, table, options.floor, rng, options.people)
        if options.protect == "outliers":
            people = None if options.people is None else options.people[valid]
            x, found = protect_outliers(x[valid], table, max(options.floor, FLOOR), rng, people)
            protection = replace(protection, outliers=found)
        else:
            x = x[valid]
        table = table.resolve_constraints(x)
        layout = Layout(table)
        state = self.learn(layout.encode(x), layout, np.random.default_rng([self.seed, 0]), watch)
        state.metadata[PROTECTION] = protection.to_dict()
        return table, state

    def restore(self, table: Table, state: GeneratorState) -> Self:
        """Set what was learned elsewhere (a saved file, several holders) and return self."""
        object.__setattr__(self, "_fitted", (table, state))  # frozen: parameters stay those of the fit
        return self

    @property
    def is_fitted(self) -> bool:
        return self._fitted is not None

    @property
    def table(self) -> Table:
        """The columns and constraints of the fitted table."""
        return self._require_fit()[0]

    @property
    def state(self) -> GeneratorState:
        """What was learned."""
        return self._require_fit()[1]

    @property
    def value(self) -> GeneratorState:
        return self.state

    def to_dict(self) -> dict[str, Any]:
        """Return parameters, columns, history and ledger as plain values; what was learned is in `save`."""
        values = {"generator": to_table(self), **self.table.to_dict()}
        return encode_plain({**values, "history": self.history, "ledger": self.ledger})

    @property
    def ledger(self) -> Ledger:
        """The privacy spent by fitting; sampling spends nothing more."""
        return self.state.ledger

    @property
    def protection(self) -> Protection:
        """What is not sampled because too few rows share it."""
        found = self.state.metadata.get(PROTECTION)
        return Protection(1) if found is None else Protection.from_dict(found)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row per epoch of the fit."""
        return self.state.history

    def _require_fit(self) -> tuple[Table, GeneratorState]:
        if self._fitted is None:
            raise BadParameter(f"{type(self).__name__} is not fitted yet. Call fit(frame) first.")
        return self._fitted

    def sample(
        self,
        n: int,
        conditions: Mapping[str, Any] | None = None,
        seed: int = 0,
        *,
        shares: Mapping[str, Mapping[Any, float]] | None = None,
    ) -> pd.DataFrame:
        """Return `n` synthetic rows.

        `conditions` fixes columns: a value, a list of values, or for numbers a tuple (low, high). `shares`
        sets how many rows have certain values of one column, like {"income": {">50K": 0.5}}: the other values
        share the rest.
        """
        return pd.concat(list(self.chunks(n, conditions, seed, shares=shares)), ignore_index=True)

    def chunks(
        self,
        n: int,
        conditions: Mapping[str, Any] | None = None,
        seed: int = 0,
        *,
        shares: Mapping[str, Mapping[Any, float]] | None = None,
    ) -> Iterator[pd.DataFrame]:
        """Yield the rows of `sample` in data frames of at most 65,536 rows."""
        parts = self.parse_parts(n, conditions, seed, shares)
        return self._chunks(int(n), int(seed), Layout(self.table), parts)

    def parse_parts(
        self,
        n: int,
        conditions: Mapping[str, Any] | None,
        seed: int,
        shares: Mapping[str, Mapping[Any, float]] | None,
    ) -> list[tuple[float, Conditions]]:
        """Check the arguments of `sample`; return the parts of a sample with their conditions."""
        for name, value, least in (("n", n, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise bad("sample", name, value, f"a whole number of at least {least}")
        fixed = dict(conditions or {})
        parts = [(1.0, fixed)] if shares is None else split_by_shares(self.table, shares, fixed)
        return [(share, Conditions.parse(self.table, values)) for share, values in parts]

    def _chunks(
        self, n: int, seed: int, layout: Layout, parts: Sequence[tuple[float, Conditions]]
    ) -> Iterator[pd.DataFrame]:
        seen: list[set[bytes]] = [set() for c in self.table.constraints if isinstance(c, Unique)]
        ends = np.cumsum([0.0, *(share for share, _ in parts)])
        for i, first in enumerate(range(0, n, CHUNK)):
            size, rng = min(CHUNK, n - first), np.random.default_rng([seed, i, 1])
            counts = np.diff(np.rint(ends * size).astype(np.int64))
            drawn = [
                self._draw_valid(int(count), rng, layout, conditions, seen)
                for count, (_, conditions) in zip(counts, parts)
                if count
            ]
            x = drawn[0] if len(drawn) == 1 else rng.permutation(np.concatenate(drawn))
            yield self.table.to_frame(x, seed, first)

    def _draw_valid(
        self, n: int, rng: np.random.Generator, layout: Layout, conditions: Conditions, seen: list[set[bytes]]
    ) -> np.ndarray:
        """Draw until `n` rows satisfy all conditions and constraints (rejection sampling)."""
        parts: list[np.ndarray] = []
        accepted, drawn, most = 0, 0, max(PATIENCE * n, CHUNK)
        protection = self.protection
        while accepted < n:
            rate = max(accepted, 1) / drawn if drawn else 1.0
            size = int(min(CHUNK, max(n - accepted, (n - accepted) * 1.1 / rate if drawn else 0)))
            x = self.table.fit_to_domain(layout.decode(self.draw(self.state, layout, size, rng, conditions)))
            x = protection.clip(x, self.table)
            drawn += size
            valid = conditions.matches(x) & protection.allows(x, self.table)
            for c in self.table.constraints:
                if isinstance(c, Ordered):
                    valid &= c.holds(x, self.table)
            x = self._drop_repeats(x[valid], seen, n - accepted)
            parts.append(x)
            accepted += len(x)
            if accepted < n and drawn >= most:
                raise self._too_few(n, accepted, drawn, conditions)
        return np.concatenate(parts)

    def _drop_repeats(self, x: np.ndarray, seen: list[set[bytes]], most: int) -> np.ndarray:
        """Keep at most `most` rows that violate no Unique constraint."""
        unique = [c for c in self.table.constraints if isinstance(c, Unique)]
        if not unique:
            return x[:most]
        keys = [c.keys(x, self.table) for c in unique]
        valid: list[int] = []
        for i in range(len(x)):
            row = [k[0][i].tobytes() if k[1][i] else None for k in keys]
            if len(valid) < most and not any(key in s for key, s in zip(row, seen) if key is not None):
                valid.append(i)
                for key, s in zip(row, seen):
                    if key is not None:
                        s.add(key)
        return x[valid]

    def _too_few(self, n: int, accepted: int, drawn: int, conditions: Conditions) -> BadData:
        rules = [repr(c) for c in self.table.constraints if isinstance(c, Ordered | Unique)]
        if conditions.mapping:
            rules.append(f"conditions={dict(conditions.mapping)!r}")
        return BadData(
            f"{type(self).__name__}: only {accepted} of {n} rows satisfy {' and '.join(rules)} after "
            f"{drawn:,} were drawn. Request fewer rows, relax the conditions or constraints, or use a "
            "generator that follows the data more closely (Cart)."
        )

    def _text(self) -> str:
        return super()._text() if self.is_fitted else repr(self)

    def _summary(self) -> str:
        names = [c.name for c in self.table.columns]
        lines = [repr(self), f"{len(names)} columns: {', '.join(names)}"]
        for row in self.history[-1:]:  # the losses of the last epoch
            lines += [
                f"{name:16} {value:.6g}" for name, value in row.items() if isinstance(value, int | float)
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text())}</pre>"

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the fitted generator to one file, which must not exist unless `force`.

        Tensors as safetensors, the rest as JSON in its header; no code and no training row.
        """
        from safetensors.torch import save

        header = {
            "format": FORMAT,
            "generator": type(self).__name__,
            "parameters": asdict(self),  # type: ignore[call-overload]
            "table": self.table.to_dict(),
            "facts": self.state.metadata,
            "history": self.history,
            "ledger": self.ledger.to_dict(),
        }
        tensors = {name: t.detach().cpu().contiguous() for name, t in self.state.tensors.items()}
        path = Path(path) if force else check_absent(path)
        try:
            write_atomic(path, save(tensors, metadata={"tacit": json.dumps(header, allow_nan=False)}))
        except OSError as error:
            raise BadParameter(
                f"save: {path} cannot be written: {error.strerror}. Choose a writable location."
            ) from None
        return path


def load(path: str | Path, also: Sequence[type[Generator]] = ()) -> Generator:
    """Load a generator saved with `Generator.save`; it samples the same rows as before.

    `also` lists generator classes of your own that the file may contain.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as load_tensors

    from . import ALL

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadData(
            f"{path} cannot be read: {error.strerror}. Give a file written by Generator.save."
        ) from None
    try:
        header = _header(data)
        cls = {**ALL, **{c.__name__: c for c in also}}[header["generator"]]
        parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in header["parameters"].items()}
        state = GeneratorState(
            dict(load_tensors(data)), header["facts"], header["history"], Ledger.from_dict(header["ledger"])
        )
        return cls(**parameters).restore(Table.from_dict(header["table"]), state)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise BadData(
            f"{path} is not a generator saved by tacit ({type(error).__name__}: {error}). Give a file "
            "written by Generator.save."
        ) from None


def _header(data: bytes) -> dict[str, Any]:
    """Read tacit's part of a safetensors header: eight bytes of length, then JSON."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["tacit"])
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r}, and this version of tacit reads {FORMAT!r}")
    return header
