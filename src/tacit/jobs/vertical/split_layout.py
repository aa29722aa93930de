"""Convert the arguments of `tacit.splitnn` to routes, rows and parts of the network."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data.federation import Dataset, Federation
from ...data.identifiers import normal
from ...data.recipe import Recipe
from ...data.vertical import Columns, Vertical, drop_repeated_ids, split_rows
from ...errors import BadData
from ...parameters import bad, nearest, refuse
from ...parties.ledger import Ledger
from ...protocols.splitnn_parts import width_of
from ...protocols.splitnn_terms import Route, fingerprint
from .psi import JOINS, align, check_join
from .split_parts import StopPart

CONFIGURATIONS = ("vanilla", "u", "vertical", "relay")
SERVER = "server"
WIDE = 10.0  # standard deviation of targets above which training may diverge


@dataclass
class SplitRows:
    """The rows by route and party; labels by route, and their holders."""

    x: list[dict[str, Tensor]]
    y: list[Tensor]
    test_x: list[dict[str, Tensor]]
    test_y: list[Tensor]
    label_at: list[str]
    classes: int | None
    labels: tuple[str, ...] = ()
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    recipes: dict[str, Recipe | None] = field(default_factory=dict)
    fingerprint: bytes = b""
    notes: list[str] = field(default_factory=list)
    absent: Tensor | None = None  # training rows that only the label holder has

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for x in self.x for name in x))


def arrange_rows(
    parties: Any,
    labels: Any,
    configuration: str,
    test: Any,
    fraction: float,
    seed: int,
    runtime: Any,
    ledger: Ledger,
    join: str = "inner",
) -> SplitRows:
    if configuration not in CONFIGURATIONS:
        raise bad(
            "splitnn",
            "configuration",
            configuration,
            f"one of {', '.join(map(repr, CONFIGURATIONS))}",
            nearest(str(configuration), list(CONFIGURATIONS)),
        )
    tables = isinstance(parties, Mapping) and all(isinstance(c, Columns | Dataset) for c in parties.values())
    if join not in JOINS or (join == "left" and not tables):
        raise bad(
            "splitnn", "join", join, "'inner', or 'left' with tables that have ids (data.from_csv(…, id=…))"
        )
    if configuration == "relay":
        return _rows_of_relay(parties, labels, fraction, seed)
    if isinstance(parties, Vertical):
        return _rows_from_tables(parties, labels)
    if (
        isinstance(parties, Mapping)
        and parties
        and all(isinstance(c, Columns | Dataset) for c in parties.values())
    ):
        columns = {name: Columns.of(c) if isinstance(c, Dataset) else c for name, c in parties.items()}
        with_label = [name for name, c in columns.items() if c.y is not None]
        holder = labels if labels is not None else with_label[0] if len(with_label) == 1 else None
        if not isinstance(holder, str) or holder not in with_label:
            hint = (
                f"Tables read with a label are those of {', '.join(map(repr, with_label))}."
                if with_label
                else "No table was read with one: label=…"
            )
            raise bad(
                "splitnn",
                "labels",
                labels,
                f"the party that holds them, one of {', '.join(map(repr, columns))}",
                hint,
            )
        if join == "left":
            columns = allow_left_join(columns, holder)
        aligned, notes, shared = align_tables(columns, runtime, ledger, join)
        whole = Vertical.of(aligned, holder, fraction, seed)
        rows = _rows_from_tables(whole, holder)
        rows.notes += notes
        if join == "left":
            rows.absent = whole.train >= shared
        return rows
    return _rows_from_tensors(parties, labels, test, fraction, seed)


def allow_left_join(columns: Mapping[str, Columns], holder: str) -> dict[str, Columns]:
    """Return the tables for a left join: the label holder first, the other with missing indicators."""
    check_join("splitnn", "join", "left", len(columns), True)
    if not columns[holder].x.shape[1]:
        raise bad(
            "splitnn",
            "join",
            "left",
            f"'inner' if {holder!r}, whose rows would be kept, has no columns of its own",
        )
    return {
        holder: columns[holder],
        **{name: c.allow_missing() for name, c in columns.items() if name != holder},
    }


def align_tables(
    columns: Mapping[str, Columns], runtime: Any, ledger: Ledger, join: str = "inner"
) -> tuple[dict[str, Columns], list[str], int]:
    """Align tables by shared ids with private set intersection, unless they are aligned already.

    Returns (tables, notes, number of shared ids). A left join keeps the first table's rows.
    """
    first = next(iter(columns.values()))
    if all(len(c) == len(first) and (c.ids == first.ids).all() for c in columns.values()):
        return dict(columns), [], len(first)
    single = {name: drop_repeated_ids(c, f"the table of {name!r}") for name, c in columns.items()}
    columns = {name: c for name, (c, _) in single.items()}
    shared = align({name: c.ids.tolist() for name, c in columns.items()}, how=join, runtime=runtime)
    ledger.merge(shared.ledger)
    selected = {name: c.take(shared.rows[name]) for name, c in columns.items()}
    ids = next(iter(selected.values())).ids  # one spelling of each id from here on
    aligned = {name: replace(c, ids=_spell(c.ids, ids)) for name, c in selected.items()}
    if not len(ids):
        raise BadData(
            "splitnn: the parties have no ids in common, so there is nothing to train on. Are the ids "
            "written in the same way?"
        )
    found_twice = [note for _, notes in single.values() for note in notes]
    kept = f"; {len(ids) - shared.size} more are kept by the left join" if join == "left" else ""
    return (
        aligned,
        [
            f"{shared.size} people are shared, of "
            f"{', '.join(f'{len(c)} at {name}' for name, c in columns.items())}{kept}.",
            *found_twice,
            *shared.notes,
        ],
        shared.size,
    )


def _spell(own: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return `ids`, with None where a party has no row of its own."""
    absent = [k for k, i in enumerate(own.tolist()) if i is None]
    if not absent:
        return ids
    spelled = ids.astype(object)
    spelled[absent] = None
    return spelled


def _rows_from_tables(data: Vertical, labels: Any) -> SplitRows:
    if labels is not None and labels != data.label_at:
        raise bad("splitnn", "labels", labels, f"{data.label_at!r}, who holds them, or None")
    holders = {name: c for name, c in data.parties.items() if c.x.shape[1]}
    scaled = {name: c.standardize(data.train, data.classes is None) for name, c in holders.items()}
    order_fingerprint = fingerprint(
        [normal(str(i)) for i in data.parties[data.label_at].ids], secrets.token_bytes(32)
    )  # a random key that is not stored
    return SplitRows(
        [{name: x[data.train] for name, (x, _) in scaled.items()}],
        [data.y[data.train]],
        [{name: x[data.test] for name, (x, _) in scaled.items()}],
        [data.y[data.test]],
        [data.label_at],
        data.classes,
        data.parties[data.label_at].labels,
        {name: c.columns for name, c in holders.items()},
        {name: r for name, (_, r) in scaled.items()},
        order_fingerprint,
    )


def _targets(y: Any) -> tuple[Tensor, int | None]:
    """Return (labels as tensor, number of classes or None for a regression)."""
    values = y if isinstance(y, Tensor) else np.asarray(y)
    if not isinstance(values, Tensor) and values.dtype.kind not in "biuf":
        raise BadData(
            f"splitnn: the labels contain text, e.g. {str(values.flat[0])!r}. Number them from 0, or read a "
            "table with data.from_csv(…, label=…)."
        )
    labels = torch.as_tensor(values)
    if labels.is_floating_point() and not torch.isfinite(labels).all():
        raise BadData("splitnn: a label is NaN or infinite. Fill it, or drop its row.")
    if labels.dim() != 1:
        raise BadData(f"splitnn: labels of shape {tuple(labels.shape)}; give one label per row.")
    if labels.is_floating_point() and (labels != labels.round()).any():
        return labels.float(), None
    labels = labels.long()
    if len(labels) and int(labels.min()) < 0:
        raise BadData("splitnn: a class is negative; number classes from 0, or give floats for a regression.")
    return labels, int(labels.max()) + 1 if len(labels) else 2


def _matrix(name: str, x: Any) -> Tensor:
    values = x if isinstance(x, Tensor) else np.asarray(x)
    if not isinstance(values, Tensor) and values.dtype.kind not in "biuf":
        raise BadData(
            f"splitnn: the rows of {name!r} contain non-numeric values. Read the table with "
            "data.from_csv or data.from_frame(…, id=…)."
        )
    matrix = torch.as_tensor(values)
    matrix = (
        matrix.float() if matrix.dtype in (torch.float64, torch.float16, torch.uint8, torch.bool) else matrix
    )
    if matrix.dim() < 2 or not len(matrix):
        raise BadData(
            f"splitnn: the rows of {name!r} have shape {tuple(matrix.shape)}; give (rows, columns, …) with "
            "at least one row."
        )
    if matrix.is_floating_point() and not torch.isfinite(matrix).all():
        raise BadData(
            f"splitnn: the rows of {name!r} contain NaN or infinite values. Fill them, or read the table "
            "with data.from_csv(…, id=…)."
        )
    return matrix


def _rows_from_tensors(parties: Any, labels: Any, test: Any, fraction: float, seed: int) -> SplitRows:
    if not isinstance(parties, Mapping) or not parties or not all(isinstance(k, str) and k for k in parties):
        raise bad(
            "splitnn",
            "parties",
            type(parties).__name__,
            'rows by party, like {"clinic": x}, a Vertical (dataset.vertical), or tables with ids',
        )
    if frames := [
        name
        for name, v in parties.items()
        if labels is None and hasattr(v, "columns") and not isinstance(v, Columns | Dataset)
    ]:
        raise bad(
            "splitnn",
            "parties",
            f"a {type(parties[frames[0]]).__name__} of {frames[0]!r}",
            "tables read with data.from_frame(frame, id=…, label=…)",
            "Leave out label for parties that do not hold it.",
        )
    if not isinstance(labels, Mapping) or len(labels) != 1:
        raise bad(
            "splitnn",
            "labels",
            type(labels).__name__,
            'the labels and their holder, like {"lab": y}',
        )
    ((holder, y),) = labels.items()
    x = {name: _matrix(name, v) for name, v in parties.items()}
    target, classes = _targets(y)
    for name, v in x.items():
        if len(v) != len(target):
            raise BadData(
                f"splitnn: {name!r} has {len(v)} rows and {holder!r} {len(target)} labels. They must "
                "belong to the same ids in the same order."
            )
    if test is not None:
        xt, yt = {name: _matrix(name, v) for name, v in test[0].items()}, _targets(test[1])[0]
        if set(xt) != set(x) or any(len(v) != len(yt) for v in xt.values()):
            raise BadData(
                f"splitnn: test rows are of {', '.join(map(repr, xt))}; give ({{party: rows}}, labels) of "
                "the same parties, as many rows each."
            )
        return SplitRows([x], [target], [xt], [yt.to(target.dtype)], [holder], classes)
    train, held = split_rows(len(target), fraction, seed)
    return SplitRows(
        [{w: v[train] for w, v in x.items()}],
        [target[train]],
        [{w: v[held] for w, v in x.items()}],
        [target[held]],
        [holder],
        classes,
    )


def _rows_of_relay(parties: Any, labels: Any, fraction: float, seed: int) -> SplitRows:
    rows = SplitRows([], [], [], [], [], None)
    if isinstance(parties, Federation):
        rows.classes, rows.labels = parties.classes, parties.labels
        for k, name in enumerate(parties.parties):
            train, held = parties.train.of(k), parties.held.of(k)
            rows.x.append({name: parties.rows.matrix("split")[train]})
            rows.y.append(parties.rows.y[train])
            rows.test_x.append({name: parties.rows.matrix("split")[held]})
            rows.test_y.append(parties.rows.y[held])
            rows.label_at.append(SERVER if labels == SERVER else name)
        return rows
    if not isinstance(parties, Mapping) or len(parties) < 2:
        raise bad(
            "splitnn",
            "parties",
            type(parties).__name__,
            "in a relay at least two clients with rows of their own, or a federation (dataset.split)",
        )
    inside = labels if isinstance(labels, Mapping) else {}
    server = next((k for k, v in inside.items() if isinstance(v, Mapping)), None)
    by_client = inside[server] if server is not None else inside
    if set(by_client) != set(parties):
        raise bad(
            "splitnn",
            "labels",
            sorted(map(str, by_client)),
            "labels of every client's rows: {client: y}, or {server: {client: y}} where the server has them",
        )
    kinds = set()
    for name, v in parties.items():
        x, (y, classes) = _matrix(name, v), _targets(by_client[name])
        if len(x) != len(y):
            raise BadData(f"splitnn: {name!r} has {len(x)} rows and {len(y)} labels.")
        kinds.add(classes)
        train, held = split_rows(len(y), fraction, seed)
        rows.x.append({name: x[train]})
        rows.test_x.append({name: x[held]})
        rows.y.append(y[train])
        rows.test_y.append(y[held])
        rows.label_at.append(server or name)
    if None in kinds:
        rows.y, rows.test_y = [y.float() for y in rows.y], [y.float() for y in rows.test_y]
    else:
        rows.classes = max(k for k in kinds if k is not None)
    return rows


# --- the network --------------------------------------------------------------------------------------------


@dataclass
class SplitNetwork:
    bottoms: dict[str, nn.Module]
    stops: list[StopPart]
    routes: tuple[Route, ...]
    loss: str
    makers: dict[str, dict[str, Callable[[], nn.Module]]] = field(default_factory=dict)


def build_network(
    rows: SplitRows,
    configuration: str,
    bottoms: Any,
    middles: Any,
    top: Any,
    merge: str,
    width: int,
    loss: str | None,
    seed: int,
) -> SplitNetwork:
    """Build the parts, given or default, and the routes; refuse parts that do not fit together."""
    if rows.classes is None and (spread := float(torch.cat(rows.y).std(correction=0))) > WIDE:
        rows.notes.append(
            f"The targets have a standard deviation of {spread:.3g} and are not standardized: if the loss "
            "grows, divide them by about that, or use a smaller lr."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _build_network(rows, configuration, bottoms, middles, top, merge, width, loss)


def _build_network(
    rows: SplitRows,
    configuration: str,
    bottoms: Any,
    middles: Any,
    top: Any,
    merge: str,
    width: int,
    loss: str | None,
) -> SplitNetwork:
    makers: dict[str, dict[str, Callable[[], nn.Module]]] = {}

    def module(value: Any, what: str, name: str, where: str) -> nn.Module:
        if not isinstance(value, nn.Module) and callable(value):
            makers.setdefault(name, {})[where] = value
            value = value()
        if not isinstance(value, nn.Module):
            raise bad(
                "splitnn", what, type(value).__name__, "a torch.nn.Module, or a function that builds one"
            )
        return copy.deepcopy(value)

    sources = rows.sources
    holder = rows.label_at[0]
    relay = configuration == "relay"
    middle: dict[str, Any] = dict(middles) if isinstance(middles, Mapping) else {}
    if middles is not None and not isinstance(middles, Mapping):
        raise bad(
            "splitnn",
            "middles",
            type(middles).__name__,
            'parts by party, in the order of the route, like {"server": module}',
        )
    inner = configuration == "u" or (
        relay and holder != SERVER and holder in sources
    )  # labels and columns are at the same party
    if inner and not middle:
        middle = {SERVER: None}
    _check_shape(configuration, sources, holder, middle)

    parts = dict(bottoms) if isinstance(bottoms, Mapping) else dict.fromkeys(sources, bottoms)
    unknown = sorted(set(parts) - set(sources))
    if unknown:
        raise bad(
            "splitnn",
            "bottoms",
            unknown[0],
            f"a part for each party that has columns: {', '.join(map(repr, sources))}",
        )
    bottom_parts: dict[str, nn.Module] = {}
    for name in sources:
        shape = next(x[name].shape[1:] for x in rows.x if name in x)
        if relay and bottom_parts:
            bottom_parts[name] = copy.deepcopy(next(iter(bottom_parts.values())))  # clients share one part
            makers |= (
                {name: {"bottom": makers[sources[0]]["bottom"]}}
                if "bottom" in makers.get(sources[0], {})
                else {}
            )
            continue
        part = parts.get(name)
        bottom_parts[name] = (
            nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.ReLU())
            if part is None
            else module(part, f"the bottom of {name!r}", name, "bottom")
        )
    outs = {
        name: width_of(
            bottom_parts[name],
            next(x[name].shape[1:] for x in rows.x if name in x),
            f"the bottom of {name!r}",
            next(x[name].dtype for x in rows.x if name in x),
        )
        for name in sources
    }
    first = outs[sources[0]]
    holders = 1 if relay else len(sources)
    refuse(
        (
            holders > 1 and merge != "concat" and len(set(outs.values())) > 1,
            f"splitnn: merge={merge!r} needs cuts of equal width, and these are {outs}. Make them equal, "
            "or use merge='concat'.",
        ),
        (
            holders > 1 and (any(len(o) != 1 for o in outs.values()) if merge != "sum" else False),
            f"splitnn: merge={merge!r} needs flat cuts, and these have shapes {outs}. End each bottom with "
            "nn.Flatten().",
        ),
    )
    wide: tuple[int, ...] = (
        (sum(o[0] for o in outs.values()),) if holders > 1 and merge == "concat" else first
    )
    stops: list[StopPart] = []

    def add(body: nn.Module, what: str) -> tuple[int, ...]:
        stops.append(StopPart(body, merge, holders, first[0]) if not stops else StopPart(body))
        return width_of(body, wide, what)

    for depth, (name, part) in enumerate(middle.items()):
        body = (
            nn.Sequential(nn.Linear(int(np.prod(wide)), width), nn.ReLU())
            if part is None
            else module(part, f"the middle of {name!r}", name, f"stop{depth}")
        )
        wide = add(body, f"the middle of {name!r}")
    outputs = rows.classes or 1
    if loss == "bce":
        outputs = 1
    last = len(middle)
    if top is None:
        flat = int(np.prod(wide))
        body = (
            nn.Sequential(nn.Flatten(), nn.Linear(flat, outputs))
            if stops
            else nn.Sequential(nn.Flatten(), nn.Linear(flat, width), nn.ReLU(), nn.Linear(width, outputs))
        )
    else:
        body = module(top, "top", holder, f"stop{last}")
        if relay and holder in sources and callable(top) and not isinstance(top, nn.Module):
            for name in sources:
                makers.setdefault(name, {})[f"stop{last}"] = top
    wide = add(body, "top")
    if rows.classes is not None and isinstance(end := [*body.modules()][-1], nn.Softmax | nn.Sigmoid):
        raise bad(
            "splitnn",
            "the last layer of top",
            type(end).__name__,
            "a layer that returns logits: the loss applies the activation itself",
        )
    routes = tuple(Route(tuple(x), (*middle, at)) for x, at in zip(rows.x, rows.label_at))
    return SplitNetwork(bottom_parts, stops, routes, _loss(loss, rows.classes, wide), makers)


def _check_shape(configuration: str, sources: Sequence[str], holder: str, middle: Mapping[str, Any]) -> None:
    refuse(
        (
            configuration in ("vanilla", "u") and len(sources) != 1,
            bad(
                "splitnn",
                "parties",
                list(sources),
                f"one party with columns where configuration is {configuration!r}",
                "Use configuration='vertical'.",
            ),
        ),
        (
            configuration == "vanilla" and holder in sources,
            bad(
                "splitnn",
                "labels",
                holder,
                "another party than the one with the columns",
                "If one party has both, configuration='u' keeps them there and places the middle elsewhere.",
            ),
        ),
        (
            configuration == "u" and holder not in sources,
            bad(
                "splitnn",
                "labels",
                holder,
                f"{sources[0]!r}: in the U-shape labels stay with the columns",
                "Or use configuration='vanilla'.",
            ),
        ),
    )
    for name in middle:
        if name in sources or name == holder:
            raise bad("splitnn", "middles", name, "a party that holds neither columns nor labels")


def _loss(loss: str | None, classes: int | None, out: tuple[int, ...]) -> str:
    width = int(np.prod(out))
    if loss is None:
        loss = "mse" if classes is None else "bce" if width == 1 else "cross_entropy"
    if (loss == "mse") != (classes is None):
        raise bad("splitnn", "loss", loss, "'mse' for numbers, 'cross_entropy' or 'bce' for classes")
    if loss in ("mse", "bce") and width != 1:
        raise bad("splitnn", "the width of top", width, f"1 output with loss={loss!r}")
    if loss == "bce" and classes != 2:
        raise bad("splitnn", "loss", loss, f"'cross_entropy' for {classes} classes")
    if loss == "cross_entropy" and width < (classes or 0):
        raise bad("splitnn", "the width of top", width, f"at least {classes} outputs, one per class")
    return loss
