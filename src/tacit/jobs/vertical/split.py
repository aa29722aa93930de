"""`tacit.splitnn`: one network over parties that hold different columns, or labels, or rows. It lays out who
holds what, aligns rows by private set intersection where they are not, hands each party its program, and puts
the run together.
"""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data.federation import Dataset
from ...data.vertical import Columns
from ...errors import BadData, MissingFiles
from ...parameters import bad, check
from ...parties.ledger import Ledger
from ...protocols import splitnn as protocol
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_terms import Route, SplitTerms
from ...runtimes.inprocess import InProcess
from ..programs import to_the_end
from . import split_parts as parts
from .split_layout import SplitRows, lay_out, network, together
from .split_parts import SplitShare

if TYPE_CHECKING:
    from .split_audit import Audit


@dataclass
class SplitResult:
    """A split network that has learned. `metrics` are of the held-out rows; `shares` hold each party's part,
    as only that party would have it.
    """

    metrics: dict[str, float]
    history: list[dict[str, Any]] = field(repr=False)
    ledger: Ledger
    config: dict[str, Any] = field(repr=False)
    shares: dict[str, SplitShare] = field(repr=False)
    notes: tuple[str, ...] = ()

    def predict(self, rows: Mapping[str, Any], runtime: Any = None, ledger: Ledger | None = None) -> Tensor:
        """Joint outputs for new rows of the same people in the same order, by party: tensors as the bottoms
        take them, or tables with ids (`data.from_csv(…, id=…)`), which are aligned and encoded as in
        training. Probabilities of classes, or numbers.
        """
        return predict(self.shares, rows, runtime, ledger)[0]

    def save(self, folder: str | Path) -> Path:
        """A folder for each party: its layers, settings and weights, nobody's rows. Give each party its
        own.
        """
        for k, share in enumerate(self.shares.values()):
            share.write(Path(folder) / folder_of(share.party, k))
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path, makers: Mapping[str, Any] | None = None) -> SplitResult:
        """All parts together again, for tests and for one machine that may hold them all."""
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
        """What crosses the cuts, by attacking it: leakage measures of `rows` in activations; with `y`, labels
        from gradients; with rows an attacker has of its `own`, rows rebuilt. All in one place: a study of
        one's own network.
        """
        from .split_audit import audit

        return audit(self, rows, y, own, sample, seed)

    def report(self, path: str | Path, audited: Audit | None = None) -> Path:
        """The run as one self-contained page: how it went, who saw what and, where it was audited, what that
        gives away.
        """
        from .split_audit import write

        return write(Path(path), self, audited)


def folder_of(party: str, k: int) -> str:
    """A party's name where it is a plain word, else its number."""
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
    epochs: int = 10,
    batch_size: int = 64,
    lr: float = 0.1,
    optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    loss: str | None = None,
    test: Any = None,
    test_fraction: float = 0.2,
    guard: Sequence[Any] = (),
    protect: Any = None,
    nopeek: float = 0.0,
    clients: str = "hand on",
    slices: int = 1,
    every: int = 1,
    seed: int = 0,
    runtime: Any = None,
    out: str | Path | None = None,
) -> SplitResult:
    """Train one network of which each party holds a part.

    `parties`: `dataset.vertical(…)`; or each party's own table (`data.from_csv(…, id=…)`), aligned by private
    set intersection; or rows by party ({"clinic": x}), in the same order everywhere; in a relay a federation,
    or each client's rows. `labels`: who holds them, or {"lab": y}. `bottoms`, `middles` and `top` are the
    parts (modules, or functions that make them; `tacit.cut` cuts a network); left out, small ones are made,
    `width` wide.

    `configuration`: "vanilla" (columns and labels at two parties), "u" (both at one, the middle elsewhere),
    "vertical" (several with columns), "relay" (clients take turns; `clients` "hand on" weights or "average"
    them). `merge`: "concat", "sum" or "gated". `guard` stands on activations, `protect` on gradients;
    `nopeek` is the weight of the distance correlation between columns and activations in the loss. `slices`
    cuts a batch so that parties work at once. With `out`, a folder that holds none yet, each party's part is
    saved there.
    """
    parts.check_unused(out)
    ledger = Ledger()
    settings = parts.optimizer_of(optimizer, lr, momentum, weight_decay)
    guards = guards_at_the_cut("splitnn", guard, protect)
    parts.check_nopeek(nopeek, slices)
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise bad("splitnn", "width", width, "a whole number of at least 1")
    rows = lay_out(parties, labels, configuration, test, test_fraction, seed, runtime, ledger)
    net = network(rows, configuration, bottoms, middles, top, merge, width, loss, seed)
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
        ),
        "splitnn",
    )
    shares: dict[str, SplitShare] = {}
    for route in terms.routes:
        for who in route.parties:
            if who in shares:
                continue
            mine: dict[int, parts.StopPart] = {
                d: copy.deepcopy(net.stops[d]) for d, name in enumerate(route.stops) if name == who
            }
            shares[who] = SplitShare(
                who,
                terms,
                net.bottoms.get(who),
                mine,
                {},
                optimizer,
                settings,
                guards if who in rows.sources else (),
                protect if any(r.stops[-1] == who for r in terms.routes) else None,
                nopeek if who in rows.sources else 0.0,
                rows.classes,
                rows.labels if who in rows.label_at else (),
                rows.columns.get(who, ()),
                rows.recipes.get(who),
                rows.fingerprint if who in (*rows.sources, *rows.label_at) else b"",
                "",
                net.makers.get(who, {}),
            )
    made = _run(shares, _rows_of(rows, terms), runtime, ledger, "seat")
    for who, share in shares.items():
        share.state = made[who]["state"]
    history = _history(
        [made[who]["history"] for who in dict.fromkeys(rows.label_at)],
        [
            sum(n for n, at in zip(terms.tests, rows.label_at) if at == who)
            for who in dict.fromkeys(rows.label_at)
        ],
    )
    metrics = {k: v for k, v in (history[-1] if history else {}).items() if k not in ("epoch", "seconds")}
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
    run = SplitResult(metrics, history, ledger, config, shares, tuple(rows.notes))
    if out is not None:
        run.save(out)
    return run


def guards_at_the_cut(owner: str, guard: Any, protect: Any) -> tuple[Any, ...]:
    """Guards on activations, checked; the one on gradients is checked, too."""
    made = tuple(guard) if isinstance(guard, Sequence) else (guard,)
    for g in made:
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
    return made


def _rows_of(rows: SplitRows, terms: SplitTerms) -> dict[str, dict[str, dict[int, Tensor]]]:
    """By party: {"x": {route: …}, "y": …, "test_x": …, "test_y": …}, each its own and no other's."""
    held: dict[str, dict[str, dict[int, Tensor]]] = {}
    for turn, route in enumerate(terms.routes):
        for who in route.sources:
            mine = held.setdefault(who, {k: {} for k in parts.KEYS})
            mine["x"][turn], mine["test_x"][turn] = rows.x[turn][who], rows.test_x[turn][who]
        mine = held.setdefault(route.stops[-1], {k: {} for k in parts.KEYS})
        mine["y"][turn], mine["test_y"][turn] = rows.y[turn], rows.test_y[turn]
    return held


def _run(
    shares: Mapping[str, SplitShare],
    rows: Mapping[str, Mapping[str, dict[int, Tensor]]],
    runtime: Any,
    ledger: Ledger,
    what: str,
) -> dict[str, Any]:
    """Every party's program, in this process with what is at hand, or in processes of their own with what is
    written for each.
    """
    runtime = to_the_end("splitnn", runtime)
    if isinstance(runtime, InProcess):
        program: Any = protocol.party if what == "seat" else protocol.predict
        programs: dict[str, Any] = {}
        for who, share in shares.items():
            mine = share.mine()
            for key, value in rows.get(who, {}).items():
                setattr(mine, key, value)
            programs[who] = functools.partial(program, terms=share.terms, mine=mine)
        return runtime.run_sync(programs, ledger=ledger)
    with _stage(shares, rows) as (folder, specs):
        elsewhere: Any = parts.seat if what == "seat" else parts.foretell
        made = {
            who: functools.partial(elsewhere, folder=str(folder / str(k)), made=specs[who])
            for k, who in enumerate(shares)
        }
        return dict(runtime.run_sync(made, ledger=ledger))


@contextmanager
def _stage(
    shares: Mapping[str, SplitShare], rows: Mapping[str, Any]
) -> Iterator[tuple[Path, dict[str, dict[str, str]]]]:
    with tempfile.TemporaryDirectory(prefix="tacit-split-") as place:
        yield (
            Path(place),
            {
                who: parts.deal(share, rows.get(who, {}), Path(place) / str(k))
                for k, (who, share) in enumerate(shares.items())
            },
        )


def _history(all_rows: list[list[dict[str, Any]]], weights: list[int]) -> list[dict[str, Any]]:
    """One row an epoch. Where several clients hold labels, each measures its own; theirs are averaged by
    held-out rows.
    """
    if len(all_rows) == 1:
        return all_rows[0]
    made = []
    for each in zip(*all_rows):
        keys = [k for k in each[0] if all(k in row for row in each)]
        total = sum(weights) or 1
        mean = {
            k: sum(row[k] * w for row, w in zip(each, weights)) / total
            for k in keys
            if k not in ("epoch", "seconds")
        }
        made.append({"epoch": each[0]["epoch"], **mean, "seconds": max(row["seconds"] for row in each)})
    return made


def encoded(share: SplitShare, table: Columns, raw: Any = None) -> Tensor:
    """New rows of a party's table, encoded as in training."""
    if share.recipe is None or share.recipe.mean is None:
        return table.x
    if table.columns != share.columns:
        absent = next((c for c in share.columns if c not in table.columns), None)
        raise BadData(
            f"the new rows of {share.party!r} have the columns {', '.join(table.columns[:8])}; the part was "
            f"trained on {', '.join(share.columns[:8])}"
            + (f", so {absent!r} is missing" if absent else "")
            + ". Read them with the recipe of the part: fit=share.recipe."
        )
    return share.recipe.standardize(table.x)


def predict(
    shares: Mapping[str, SplitShare],
    rows: Mapping[str, Any],
    runtime: Any = None,
    ledger: Ledger | None = None,
) -> tuple[Tensor, Any]:
    """(outputs, the ids they are of, or None): probabilities of classes, or numbers."""
    terms = next(iter(shares.values())).terms
    route, book = route_of(terms, rows, "predict"), Ledger() if ledger is None else ledger
    ids: Any = None
    if all(isinstance(rows[who], Columns | Dataset) for who in route.sources):
        tables = {
            who: Columns.of(r) if isinstance(r, Dataset) else r
            for who, r in rows.items()
            if who in route.sources
        }
        tables, _ = together(tables, runtime, book)
        ids = next(iter(tables.values())).ids
        x = {who: encoded(shares[who], t) for who, t in tables.items()}
    else:
        x = {who: torch.as_tensor(rows[who]) for who in route.sources}
    counts = {len(v) for v in x.values()}
    if len(counts) != 1 or not min(counts):
        raise BadData(
            f"predict: {', '.join(f'{len(v)} rows of {who!r}' for who, v in x.items())}; all must be of the "
            "same people, and at least one."
        )
    asked = replace(terms, routes=(route,), rows=(0,), tests=(counts.pop(),))
    made = {who: replace(shares[who], terms=asked, fingerprint=b"") for who in route.parties}
    got = _run(made, {who: {"test_x": {0: v}} for who, v in x.items()}, runtime, book, "predict")
    return told(terms.loss, got[route.stops[-1]]), ids


def route_of(terms: SplitTerms, rows: Mapping[str, Any], what: str) -> Route:
    """The way of these rows: the one there is, or, in a relay, that of the client they are of."""
    for route in terms.routes:
        if all(who in rows for who in route.sources):
            return route
    named = [", ".join(map(repr, route.sources)) for route in terms.routes]
    raise bad(what, "rows", sorted(rows), f"rows of every party with columns: {' or '.join(named[:8])}")


def told(loss: str, out: Tensor) -> Tensor:
    """Outputs as people read them: probabilities, or numbers."""
    return (
        out.reshape(len(out))
        if loss == "mse"
        else torch.sigmoid(out.reshape(len(out)))
        if loss == "bce"
        else torch.softmax(out, 1)
    )
