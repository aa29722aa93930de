"""Synthesis of several tables with keys.

    model = LinkedTables(seed=0).fit(
        {"patients": patients, "visits": visits},
        keys=[PrimaryKey("patients", "patient_id"), ForeignKey("visits", "patient_id", "patients")],
        order={"visits": "date"},
        constraints=[Ordered("patients.enrolled", "visits.date")],
    )
    tables = model.sample(1000)  # 1,000 patients with their visits

Tables are generated from the top down, each given its parent, ancestors and earlier siblings (N. Patki, R.
Wedge, K. Veeramachaneni, *The Synthetic Data Vault*, DSAA 2016, has the same order). What is learned, and in
which order, is in `rows`. The rows of the tables without parents are the entities that are protected: values
that fewer than `floor` entities have are neither learned nor sampled, however many rows they have.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from ...errors import BadData, BadParameter
from ...files import write_atomic
from ...parameters import Kind, bad, check, part, to_table, whole
from ...parties.ledger import Ledger
from ...results import JobResult, check_absent, encode_plain
from ..cart import Cart
from ..columns import Column
from ..generator import Generator, Watch
from ..protect import FLOOR
from ..table import Table
from .across import LinkedConstraint, Place, check_totals, parse_rules
from .fit import FittedTables, Fitting
from .keys import Key, Schema, build_schema, fail
from .rows import RowModel
from .sample import Sampling

FORMAT = "tacit.synth.linked/1"
LEARNED_ROWS = 200_000  # more rows change a tree with leaves of hundreds of rows little, and take longer
OWNER = "LinkedTables"


@dataclass(frozen=True)
class LinkedTables(JobResult):
    """Learns several tables that are linked by keys, and samples all of them."""

    generator: Any = part(
        Cart(), of=Kind("a generator", {"Cart": Cart}, Generator, "Cart(…)"), doc="draws columns given others"
    )
    rows: int = whole(
        LEARNED_ROWS, least=100, doc="rows from which the columns of one table are learned, at most"
    )
    seed: int = whole(0, least=0, doc="random seed of the fit")

    title: ClassVar[str] = "A generator of linked tables"
    _fitted: ClassVar[FittedTables | None] = None

    def fit(
        self,
        frames: Mapping[str, pd.DataFrame],
        keys: Sequence[Key],
        order: Mapping[str, str] | None = None,
        *,
        tables: Mapping[str, Table | Mapping[str, str | Column]] | None = None,
        constraints: Sequence[LinkedConstraint] = (),
        floor: int | None = None,
        dependencies: bool = True,
        watch: Watch | None = None,
    ) -> Self:
        """Learn from data frames by name, and return self.

        `keys` are PrimaryKey and ForeignKey objects; the first foreign key of a table names its parent.
        `order` names, for a table of children, the column by which they are ordered (a time or a number).
        `tables` declares columns, as a Table without keys or as what `Table.infer` is to override.
        `constraints` have columns like "visits.date". Values that fewer than `floor` entities have (default:
        10; 1 turns this off) are neither learned nor sampled.
        """
        self._check_generator()
        if floor is not None and (isinstance(floor, bool) or not isinstance(floor, int) or floor < 1):
            raise bad("fit", "floor", floor, "a whole number of at least 1")
        frames = {
            t: f.set_axis([str(c) for c in f.columns], axis=1) if isinstance(f, pd.DataFrame) else f
            for t, f in frames.items()
        }
        schema, links = build_schema(frames, list(keys), order)
        rules = parse_rules(constraints, frames, schema)
        check_totals(rules, frames, schema, links)
        unknown = [t for t in tables or {} if t not in frames]
        fail([f"tables: there is no table {t!r}." for t in unknown], OWNER, BadParameter)
        fitting = Fitting(
            self.generator,
            schema,
            rules,
            dict(tables or {}),
            floor or FLOOR,
            bool(dependencies),
            watch,
            self.rows,
            self.seed,
        )
        return self.restore(fitting.run(frames, links))

    def restore(self, fitted: FittedTables) -> Self:
        """Set what was learned elsewhere and return self."""
        object.__setattr__(self, "_fitted", fitted)  # frozen: parameters stay those of the fit
        return self

    def _check_generator(self) -> None:
        check(self)
        if self.generator.private:
            raise BadParameter(
                f"{OWNER}: {type(self.generator).__name__} is differentially private for one row of one "
                "table, and an entity has rows in several. A guarantee for entities is not available here: "
                "join entities and events into one table and use PrivateSequences, or use Cart and measure "
                "the risk with evaluate_linked."
            )
        if not self.generator.conditional:
            raise BadParameter(
                f"{OWNER}: {type(self.generator).__name__} cannot draw columns given others. Use Cart."
            )

    @property
    def fitted(self) -> FittedTables:
        """Everything that was learned."""
        if self._fitted is None:
            raise BadParameter(f"{OWNER} is not fitted yet. Call fit(frames, keys) first.")
        return self._fitted

    @property
    def schema(self) -> Schema:
        """The tables, their keys and their order."""
        return self.fitted.schema

    @property
    def tables(self) -> dict[str, Table]:
        """The learned columns of each table, without keys."""
        return {t: m.table for t, m in self.fitted.models.items()}

    @property
    def ledger(self) -> Ledger:
        return self.fitted.ledger

    @property
    def value(self) -> dict[str, Table]:
        return self.tables

    def to_dict(self) -> dict[str, Any]:
        """Return parameters, keys and columns as plain values; what was learned is in `save`."""
        fitted = self.fitted
        return encode_plain(
            {
                "generator": to_table(self),
                "floor": fitted.floor,
                "schema": fitted.schema.to_dict(),
                "tables": {t: m.table.to_dict() for t, m in fitted.models.items()},
                "ledger": fitted.ledger,
            }
        )

    def _text(self) -> str:
        return super()._text() if self._fitted is not None else repr(self)

    def _summary(self) -> str:
        schema = self.schema
        lines = [f"{t}: {', '.join(self.fitted.columns[t])}" for t in schema.tables]
        return "\n".join([repr(self), *lines, *(str(k) for t in schema.tables for k in schema.foreign[t])])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text())}</pre>"

    def sample(self, n: int | Mapping[str, int], seed: int = 0) -> dict[str, pd.DataFrame]:
        """Return synthetic tables by name.

        `n` is the number of rows of the table without parents, or a dictionary if there are several.
        """
        fitted = self.fitted
        roots = fitted.schema.roots
        if isinstance(n, Mapping):
            wrong = [f"{t!r} is not a table without parents" for t in n if t not in roots]
            wrong += [f"{t!r} is missing" for t in roots if t not in n]
            if wrong:
                raise bad("sample", "n", dict(n), f"the rows of {', '.join(roots)} ({'; '.join(wrong)})")
            sizes = dict(n)
        elif len(roots) > 1:
            raise bad("sample", "n", n, f"a dictionary with the rows of each of {', '.join(roots)}")
        else:
            sizes = {roots[0]: n}
        for name, value, least in (*((f"n[{t!r}]", s, 1) for t, s in sizes.items()), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise bad("sample", name, value, f"a whole number of at least {least}")
        return Sampling(self.generator, fitted, sizes, int(seed)).run()

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write what was learned to one file: tensors as safetensors, the rest as JSON in its header."""
        from safetensors.torch import save

        fitted = self.fitted
        header = {
            "format": FORMAT,
            "generator": type(self.generator).__name__,
            "parameters": asdict(self.generator),
            "rows": self.rows,
            "seed": self.seed,
            "floor": fitted.floor,
            "schema": fitted.schema.to_dict(),
            "totals": [[list(a), list(b)] for a, b in fitted.totals],
            "dtypes": fitted.dtypes,
            "models": {t: m.to_dict() for t, m in fitted.models.items()},
            "new_keys": fitted.new_keys,
            "columns": fitted.columns,
            "ledger": fitted.ledger.to_dict(),
            "flat": fitted.flat,
        }
        tensors = {
            f"{t}/{name}": tensor.contiguous()
            for t, m in fitted.models.items()
            for name, tensor in m.tensors().items()
        }
        file = Path(path) if force else check_absent(path)
        try:
            write_atomic(file, save(tensors, metadata={"tacit": json.dumps(header, allow_nan=False)}))
        except OSError as error:
            raise BadParameter(
                f"save: {file} cannot be written: {error.strerror}. Choose a writable location."
            ) from None
        return file


def _read_header(data: bytes) -> dict[str, Any]:
    """Read tacit's part of a safetensors header: eight bytes of length, then JSON."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["tacit"])
    return header


def is_linked_file(path: str | Path) -> bool:
    """Whether a file was written by `LinkedTables.save`."""
    try:
        return bool(_read_header(Path(path).read_bytes())["format"] == FORMAT)
    except (OSError, KeyError, ValueError, TypeError):
        return False


def load_linked(path: str | Path) -> LinkedTables:
    """Load what `LinkedTables.save` wrote; it samples the same tables as before."""
    from safetensors import SafetensorError
    from safetensors.torch import load as load_tensors

    from .. import ALL

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadData(
            f"{path} cannot be read: {error.strerror}. Give a file written by LinkedTables.save."
        ) from None
    try:
        header = _read_header(data)
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}, and this reads {FORMAT!r}")
        tensors = load_tensors(data)
        models = {}
        for t, about in header["models"].items():
            own = {k[len(t) + 1 :]: tensor for k, tensor in tensors.items() if k.startswith(f"{t}/")}
            models[t] = RowModel.from_dict(about, own)
        schema = Schema.from_dict(header["schema"])
        totals: list[tuple[Place, Place]] = [((a[0], a[1]), (b[0], b[1])) for a, b in header["totals"]]
        model = LinkedTables(ALL[header["generator"]](**header["parameters"]), header["rows"], header["seed"])
        fitted = FittedTables(
            schema,
            totals,
            models,
            header["new_keys"],
            header["columns"],
            header["dtypes"],
            header["floor"],
            Ledger.from_dict(header["ledger"]),
            header["flat"],
        )
    except (SafetensorError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise BadData(
            f"{path} is not a model of linked tables saved by tacit ({type(error).__name__}: {error}). Give "
            "a file written by LinkedTables.save."
        ) from None
    return model.restore(fitted)
