"""`tacit.splitnn`: train one network whose parts are held by different parties.

Rows are aligned by private set intersection if necessary.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...config.vertical import PATIENCE, RELAY_EPOCHS, SplitSettings
from ...data.federation import Dataset
from ...data.vertical import Columns
from ...errors import BadData, MissingFiles
from ...parameters import bad, check
from ...parties.ledger import Ledger
from ...protocols import splitnn as protocol
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_terms import Route, SplitTerms
from ...protocols.splitnn_worker import CHUNK
from ...results import JobResult
from ...runs import check_empty
from ...runtimes.choose import SyncRuntime, choose_runtime
from ...runtimes.inprocess import InProcess
from ..threads import is_small, one_thread_if
from . import split_parts as parts
from .split_layout import SplitRows, align_tables, arrange_rows, build_network
from .split_parts import SplitShare

if TYPE_CHECKING:
    from .split_audit import Audit


@dataclass
class PartsResult(JobResult):
    """A trained model in parts.

    `metrics` are of held-out rows; `shares` contain each party's part, as that party alone would have it.
    """

    facts: ClassVar[tuple[str, ...]] = ("metrics", "history", "config", "notes")

    metrics: dict[str, float]
    history: list[dict[str, Any]] = field(repr=False)
    ledger: Ledger
    config: dict[str, Any] = field(repr=False)
    shares: dict[str, SplitShare] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def value(self) -> dict[str, SplitShare]:
        return self.shares

    def save(self, path: str | Path) -> Path:
        """Write a new directory, a folder for each party: layers, settings and weights, but no rows."""
        return self._write(check_empty(path))

    def _write(self, directory: Path) -> Path:
        for k, share in enumerate(self.shares.values()):
            share.write(directory / folder_of(share.party, k))
        return directory


class SplitResult(PartsResult):
    """A trained split network."""

    title = "A split network"

    def predict(
        self, rows: Mapping[str, Any], runtime: SyncRuntime | str | None = None, ledger: Ledger | None = None
    ) -> Tensor:
        """Predict jointly: return class probabilities, or numbers.

        `rows` by party: tables with ids (`data.from_csv(…, id=…)`), which are aligned and encoded as in
        training; or data frames with the same people in the same order; or tensors, as the bottoms accept
        them. Missing cells and new categories are handled as the parts' recipes say.
        """
        return predict(self.shares, rows, runtime, ledger)[0]

    @classmethod
    def load(cls, folder: str | Path, makers: Mapping[str, Any] | None = None) -> SplitResult:
        """Load all parts, for tests and for a machine that may hold all of them."""
        places = sorted(p.parent for p in Path(folder).glob("*/part.json"))
        if not places:
            raise MissingFiles(
                f"there is no saved split network in {folder}. Give the folder that save() wrote."
            )
        shares = {s.party: s for s in (parts.read(p, makers) for p in places)}
        return cls({}, [], Ledger(), {}, shares)

    def audit(
        self,
        rows: Mapping[str, Any],
        y: Any = None,
        own: Mapping[str, Any] | None = None,
        sample: int = 500,
        seed: int = 0,
    ) -> Audit:
        """Attack what crosses the cuts."""
        from .split_audit import audit

        return audit(self, rows, y, own, sample, seed)

    def report(self, path: str | Path | None = None, audited: Audit | None = None) -> Path:
        """Write the report; with `audited`, also what the attacks of `audit` found."""
        from ...report.result import render

        sections = () if audited is None else audited.sections()
        return self._write_page(path, render(self.title, self.to_dict(), sections))


def folder_of(party: str, k: int) -> str:
    """Return a party's folder name: its name if it is a plain word, else its number."""
    return party if party.isidentifier() or party.replace("-", "").isalnum() else f"party-{k}"


def splitnn(
    parties: Any,
    labels: Any = None,
    *,
    bottoms: Any = None,
    top: Any = None,
    middles: Mapping[str, Any] | None = None,
    configuration: str = "vertical",
    merge: str = "concat",
    width: int = 16,
    epochs: int | None = None,
    patience: int | None = None,
    batch_size: int = 64,
    lr: float | None = None,
    optimizer: str = "adam",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: str | None = None,
    test: Any = None,
    test_fraction: float = 0.2,
    join: str = "inner",
    guard: Sequence[Any] = (),
    protect: Any = None,
    nopeek: float = 0.0,
    clients: str = "hand on",
    slices: int = 1,
    every: int = 1,
    seed: int = 0,
    runtime: SyncRuntime | str | None = None,
    out: str | Path | None = None,
) -> SplitResult:
    """Train one network whose parts are held by different parties.

    `parties`: `dataset.vertical(…)`; or each party's table (`data.from_csv(…, id=…)`), aligned by private set
    intersection; or rows by party ({"clinic": x}) in the same order; in a relay a federation, or each
    client's rows. `labels`: the party that holds them, or {"lab": y}. `bottoms`, `middles` and `top` are the
    parts (modules, or functions that build them; `tacit.cut` cuts a network); by default small ones of this
    `width`.

    `join`: "inner" trains on people that all parties hold. "left", for two tables with ids, keeps all rows of
    the label holder; the other party's columns are missing in rows of people that it does not hold. It learns
    no more than with "inner": it sends the same activations for each of these rows and gets zeros back.

    Training stops when the loss on 15% of the training rows has not fallen for `patience` epochs (default
    10; 0: never), or after `epochs` (default 100), and the weights of the best epoch are kept. `lr` is 0.01
    for `optimizer` "adam" and 0.1 for "sgd", unless given. A relay has no early stopping and 10 epochs.

    `configuration`: "vanilla" (columns and labels at two parties), "u" (both at one party, the middle
    elsewhere), "vertical" (several parties with columns), "relay" (clients take turns; `clients` "hand on"
    weights or "average" them). `merge`: "concat", "sum" or "gated". `guard` is applied to activations,
    `protect` to gradients; `nopeek` is the weight of the distance correlation between columns and activations
    in the loss. `slices` splits a batch so that parties compute concurrently. `runtime` as in `tacit.psi`.
    With `out`, an unused folder, each party's part is saved there.
    """
    parts.check_unused(out)
    ledger = Ledger()
    relay = configuration == "relay"
    epochs = (RELAY_EPOCHS if relay else SplitSettings().epochs) if epochs is None else epochs
    patience = (0 if relay else PATIENCE) if patience is None else patience
    checked = SplitSettings(
        optimizer=optimizer, lr=lr, momentum=momentum, weight_decay=weight_decay, nopeek=nopeek, slices=slices
    )
    settings = check(checked, "splitnn").optimizer_settings()
    guards = check_cut_guards("splitnn", guard, protect)
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise bad("splitnn", "width", width, "a whole number of at least 1")
    rows = arrange_rows(parties, labels, configuration, test, test_fraction, seed, runtime, ledger, join)
    net = build_network(rows, configuration, bottoms, middles, top, merge, width, loss, seed)
    terms = check(
        SplitTerms(
            net.routes,
            tuple(map(len, rows.y)),
            tuple(map(len, rows.test_y)),
            epochs,
            batch_size,
            slices,
            seed,
            net.loss,
            clients,
            every,
            patience,
            join,
        ),
        "splitnn",
    )
    shares: dict[str, SplitShare] = {}
    for route in terms.routes:
        for name in route.parties:
            if name in shares:
                continue
            own_stops: dict[int, parts.StopPart] = {
                d: copy.deepcopy(net.stops[d]) for d, stop in enumerate(route.stops) if stop == name
            }
            shares[name] = SplitShare(
                name,
                terms,
                net.bottoms.get(name),
                own_stops,
                {},
                optimizer,
                settings,
                guards if name in rows.sources else (),
                protect if any(r.stops[-1] == name for r in terms.routes) else None,
                nopeek if name in rows.sources else 0.0,
                rows.classes,
                rows.labels if name in rows.label_at else (),
                rows.columns.get(name, ()),
                rows.recipes.get(name),
                rows.fingerprint if name in (*rows.sources, *rows.label_at) else b"",
                "",
                net.makers.get(name, {}),
            )
    if len(set(rows.label_at)) == 1:  # holders of labels do not tell each other their targets
        shares[rows.label_at[0]].fit_target(torch.cat([y.reshape(-1) for y in rows.y]))
    modules = [*net.bottoms.values(), *(stop.body for stop in net.stops)]
    with one_thread_if(is_small(modules, batch_size)):
        results = _run(shares, _rows_of(rows, terms, shares), runtime, ledger, "seat")
    for name, share in shares.items():
        share.state = results[name]["state"]
    history = _history(
        [results[name]["history"] for name in dict.fromkeys(rows.label_at)],
        [
            sum(n for n, at in zip(terms.tests, rows.label_at) if at == name)
            for name in dict.fromkeys(rows.label_at)
        ],
    )
    metrics = final_metrics(history, results[rows.label_at[0]] if len(set(rows.label_at)) == 1 else {})
    config = {
        "configuration": configuration,
        "merge": merge,
        "optimizer": optimizer,
        **settings,
        "guards": [str(g) for g in guards],
        "protect": str(protect),
        "nopeek": nopeek,
        **{k: v for k, v in asdict(terms).items() if k != "routes"},
        "routes": [asdict(r) for r in terms.routes],
    }
    notes = (*rows.notes, *describe_convergence(history, terms))
    run = SplitResult(metrics, history, ledger, config, shares, notes)
    if out is not None:
        run._write(Path(out))
    return run


def final_metrics(history: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of the weights that were kept: those of the best epoch, or of the last one."""
    if not history:
        return {}
    best = history[result.get("best_epoch", len(history)) - 1]
    losses = {k: v for k, v in best.items() if k not in ("epoch", "seconds")}
    return {**losses, **result.get("metrics", {})}


FALLING = 0.01  # a loss that fell by this share in the last fifth of the epochs was still falling


def describe_convergence(history: Sequence[Mapping[str, Any]], terms: SplitTerms) -> list[str]:
    """Return a note if training reached its last epoch while the loss was still falling."""
    losses = [row.get("validation_loss", row["train_loss"]) for row in history]
    last = max(len(losses) // 5, 1)
    if len(losses) < max(terms.epochs, 2) or not min(losses[:-last]) > 0:
        return []
    before, after = min(losses[:-last]), min(losses[-last:])
    if after >= before * (1 - FALLING):
        return []
    which = "loss on validation rows" if "validation_loss" in history[-1] else "training loss"
    return [
        f"The {which} was still falling when training ended after {len(losses)} epochs: from {before:.3g} to "
        f"{after:.3g} in the last {last}. Train longer (epochs), or use a larger learning rate (lr)."
    ]


def check_cut_guards(owner: str, guard: Any, protect: Any) -> tuple[Any, ...]:
    """Check the guards on activations and gradients; return those on activations."""
    guards = tuple(guard) if isinstance(guard, Sequence) else (guard,)
    for g in guards:
        if type(g).__name__ not in ACTIVATIONS:
            raise bad(
                owner,
                "guard",
                g,
                f"of {', '.join(f'{k}(…)' for k in ACTIVATIONS)}",
                "They are in tacit.protocols.splitnn_guards.",
            )
        check(g)
    if protect is not None:
        if type(protect).__name__ not in GRADIENTS:
            raise bad(owner, "protect", protect, f"one of {', '.join(f'{k}(…)' for k in GRADIENTS)}, or None")
        check(protect)
    return guards


def _rows_of(
    rows: SplitRows, terms: SplitTerms, shares: Mapping[str, SplitShare]
) -> dict[str, dict[str, dict[int, Tensor]]]:
    """Return each party's own rows: {"x": {route: …}, "y": …, "test_x": …, "test_y": …}."""
    by_party: dict[str, dict[str, dict[int, Tensor]]] = {}
    for turn, route in enumerate(terms.routes):
        for name in route.sources:
            own = by_party.setdefault(name, {k: {} for k in parts.KEYS})
            own["x"][turn], own["test_x"][turn] = rows.x[turn][name], rows.test_x[turn][name]
        own = by_party.setdefault(route.stops[-1], {k: {} for k in parts.KEYS})
        to_target = shares[route.stops[-1]].to_target
        own["y"][turn], own["test_y"][turn] = to_target(rows.y[turn]), to_target(rows.test_y[turn])
        if rows.absent is not None:
            own["absent"][turn] = rows.absent
    return by_party


def _run(
    shares: Mapping[str, SplitShare],
    rows: Mapping[str, Mapping[str, dict[int, Tensor]]],
    runtime: Any,
    ledger: Ledger,
    task: str,
) -> dict[str, Any]:
    """Run every party: in this process with its modules, or in other processes from folders."""
    runtime = choose_runtime("splitnn", runtime, all_stay=True)
    if isinstance(runtime, InProcess):
        program: Any = protocol.party if task == "seat" else protocol.predict
        programs: dict[str, Any] = {}
        for name, share in shares.items():
            inputs = share.inputs()
            for key, value in rows.get(name, {}).items():
                setattr(inputs, key, value)
            programs[name] = functools.partial(program, terms=share.terms, mine=inputs)
        return runtime.run_sync(programs, ledger=ledger)
    with _write_shares(shares, rows) as (folder, specs):
        elsewhere: Any = parts.train_from_folder if task == "seat" else parts.predict_from_folder
        programs_elsewhere = {
            name: functools.partial(elsewhere, folder=str(folder / str(k)), makers=specs[name])
            for k, name in enumerate(shares)
        }
        return dict(runtime.run_sync(programs_elsewhere, ledger=ledger))


@contextmanager
def _write_shares(
    shares: Mapping[str, SplitShare], rows: Mapping[str, Any]
) -> Iterator[tuple[Path, dict[str, dict[str, str]]]]:
    with tempfile.TemporaryDirectory(prefix="tacit-split-") as place:
        yield (
            Path(place),
            {
                name: parts.write_inputs(share, rows.get(name, {}), Path(place) / str(k))
                for k, (name, share) in enumerate(shares.items())
            },
        )


def _history(all_rows: list[list[dict[str, Any]]], weights: list[int]) -> list[dict[str, Any]]:
    """Return one row per epoch; metrics of several label holders are averaged by held-out rows."""
    if len(all_rows) == 1:
        return all_rows[0]
    history = []
    for each in zip(*all_rows):
        keys = [k for k in each[0] if all(k in row for row in each)]
        total = sum(weights) or 1
        mean = {
            k: sum(row[k] * w for row, w in zip(each, weights)) / total
            for k in keys
            if k not in ("epoch", "seconds")
        }
        history.append({"epoch": each[0]["epoch"], **mean, "seconds": max(row["seconds"] for row in each)})
    return history


def encode_rows(share: SplitShare, rows: Any, verb: str = "predict") -> Tensor:
    """Encode new rows of a party as in training: a table, a data frame, or numbers that are encoded already.

    Missing cells and categories that were not seen in training are handled as the part's recipe says.
    """
    if isinstance(rows, Dataset):
        rows = Columns.of(rows)
    frame = rows.frame if isinstance(rows, Columns) else rows if _is_frame(rows) else None
    if frame is None:
        return _to_encoded(share, rows.x if isinstance(rows, Columns) else rows, verb)
    if share.recipe is None:
        raise BadData(
            f"{verb}: the part of {share.party!r} was trained on numbers without a table, so it cannot "
            "encode a table. Give its rows as numbers, as in training."
        )
    try:
        return share.recipe.transform(frame)
    except BadData as error:
        raise BadData(f"{verb}: the rows of {share.party!r}: {error}") from None


def _is_frame(rows: Any) -> bool:
    return type(rows).__module__.partition(".")[0] == "pandas" and rows.ndim == 2


def _to_encoded(share: SplitShare, rows: Any, verb: str) -> Tensor:
    """Return rows that are numbers, if they fit the part's columns."""
    expects = f"{len(share.columns)} columns" if share.columns else "as many columns as in training"
    values = rows if isinstance(rows, Tensor) else np.array(rows)
    if not isinstance(values, Tensor) and values.dtype.kind not in "biuf":
        raise BadData(
            f"{verb}: the rows of {share.party!r} contain non-numeric values. Give a data frame or a table "
            f"(data.from_csv(…, id=…)), or encoded numbers of shape (rows, {expects})."
        )
    x = torch.as_tensor(values)
    x = x.float() if x.dtype in (torch.float64, torch.float16, torch.uint8, torch.bool) else x
    if x.dim() < 2 or (share.columns and x.shape[1] != len(share.columns)):
        raise BadData(
            f"{verb}: the rows of {share.party!r} have shape {tuple(x.shape)}; expected (rows, {expects})."
        )
    return x


def predict(
    shares: Mapping[str, SplitShare],
    rows: Mapping[str, Any],
    runtime: SyncRuntime | str | None = None,
    ledger: Ledger | None = None,
) -> tuple[Tensor, Any]:
    """Return (class probabilities or numbers, their ids or None)."""
    terms = next(iter(shares.values())).terms
    route, book = route_of(terms, rows, "predict"), Ledger() if ledger is None else ledger
    ids: Any = None
    if all(isinstance(rows[name], Columns | Dataset) for name in route.sources):
        names = [n for n in route.sources if n == route.stops[-1]]
        names += [n for n in route.sources if n not in names]  # a left join keeps the first table's rows
        tables = {n: Columns.of(rows[n]) if isinstance(rows[n], Dataset) else rows[n] for n in names}
        tables, _, _ = align_tables(tables, runtime, book, terms.join)
        ids = next(iter(tables.values())).ids
        x = {name: encode_rows(shares[name], tables[name]) for name in route.sources}
    else:
        x = {name: encode_rows(shares[name], rows[name]) for name in route.sources}
    counts = {len(v) for v in x.values()}
    if len(counts) != 1 or not min(counts):
        raise BadData(
            f"predict: {', '.join(f'{len(v)} rows of {name!r}' for name, v in x.items())}; all parties "
            "must have the same number of rows, and at least one."
        )
    prediction_terms = replace(terms, routes=(route,), rows=(0,), tests=(counts.pop(),))
    predictors = {
        name: replace(shares[name], terms=prediction_terms, fingerprint=b"") for name in route.parties
    }
    inputs = {name: {"test_x": {0: v}} for name, v in x.items()}
    modules = [part for share in predictors.values() for part in share.modules()]
    with one_thread_if(is_small(modules, min(prediction_terms.tests[0], CHUNK))):
        results = _run(predictors, inputs, runtime, book, "predict")
    return shares[route.stops[-1]].to_predictions(results[route.stops[-1]]), ids


def route_of(terms: SplitTerms, rows: Mapping[str, Any], verb: str) -> Route:
    """Return the route of these rows; in a relay, that of their client."""
    for route in terms.routes:
        if all(name in rows for name in route.sources):
            return route
    named = [", ".join(map(repr, route.sources)) for route in terms.routes]
    raise bad(verb, "rows", sorted(rows), f"rows of every party with columns: {' or '.join(named[:8])}")
