"""What `tacit.splitnn` is given, made into routes, rows and parts: who holds which columns and labels, and
which stretch of the network.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...data.federation import Dataset, Federation
from ...data.identifiers import normal
from ...data.tables import Recipe
from ...data.vertical import Columns, Vertical, drop_repeated_ids, split_rows
from ...errors import BadData, BadParameter
from ...parameters import bad, nearest
from ...parties.ledger import Ledger
from ...protocols.splitnn_parts import width_of
from ...protocols.splitnn_terms import Route, fingerprint
from .psi import align
from .split_parts import StopPart

CONFIGURATIONS = ("vanilla", "u", "vertical", "relay")
SERVER = "server"
WIDE = 10.0  # deviations of the numbers to predict from which steps of an ordinary size may run away


@dataclass
class SplitRows:
    """Everybody's rows, by route and party; labels by route, with whom they lie."""

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

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for x in self.x for name in x))


def lay_out(
    parties: Any,
    labels: Any,
    configuration: str,
    test: Any,
    fraction: float,
    seed: int,
    runtime: Any,
    ledger: Ledger,
) -> SplitRows:
    if configuration not in CONFIGURATIONS:
        raise bad(
            "splitnn",
            "configuration",
            configuration,
            f"one of {', '.join(map(repr, CONFIGURATIONS))}",
            nearest(str(configuration), list(CONFIGURATIONS)),
        )
    if configuration == "relay":
        return _relay(parties, labels, fraction, seed)
    if isinstance(parties, Vertical):
        return _tables(parties, labels)
    if (
        isinstance(parties, Mapping)
        and parties
        and all(isinstance(c, Columns | Dataset) for c in parties.values())
    ):
        columns = {who: Columns.of(c) if isinstance(c, Dataset) else c for who, c in parties.items()}
        with_label = [who for who, c in columns.items() if c.y is not None]
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
        aligned, notes = together(columns, runtime, ledger)
        rows = _tables(Vertical.of(aligned, holder, fraction, seed), holder)
        rows.notes += notes
        return rows
    return _tensors(parties, labels, test, fraction, seed)


def together(
    columns: Mapping[str, Columns], runtime: Any, ledger: Ledger
) -> tuple[dict[str, Columns], list[str]]:
    """Rows of the people all hold, in one order: found by private set intersection, unless ids are the same
    in the same order already.
    """
    first = next(iter(columns.values()))
    if all(len(c) == len(first) and (c.ids == first.ids).all() for c in columns.values()):
        return dict(columns), []
    single = {who: drop_repeated_ids(c, f"the table of {who!r}") for who, c in columns.items()}
    columns = {who: c for who, (c, _) in single.items()}
    shared = align({who: c.ids.tolist() for who, c in columns.items()}, runtime=runtime)
    ledger.merge(shared.ledger)
    found = {who: c.take(shared.rows[who]) for who, c in columns.items()}
    ids = next(iter(found.values())).ids  # written in one way from here on
    made = {
        who: Columns(c.name, ids, c.x, c.columns, c.recipe, c.y, c.classes, c.labels)
        for who, c in found.items()
    }
    if not len(ids):
        raise BadData(
            "splitnn: the parties share nobody, so there is nothing to learn. Are the ids written in the "
            "same way?"
        )
    found_twice = [note for _, notes in single.values() for note in notes]
    return made, [
        f"{len(ids)} people are shared, of {', '.join(f'{len(c)} at {who}' for who, c in columns.items())}.",
        *found_twice,
        *shared.notes,
    ]


def _tables(data: Vertical, labels: Any) -> SplitRows:
    if labels is not None and labels != data.label_at:
        raise bad("splitnn", "labels", labels, f"{data.label_at!r}, who holds them, or None")
    holders = {who: c for who, c in data.parties.items() if c.x.shape[1]}
    ready = {who: c.standardize(data.train) for who, c in holders.items()}
    mark = fingerprint(
        [normal(str(i)) for i in data.parties[data.label_at].ids], secrets.token_bytes(32)
    )  # a key that nobody is handed
    return SplitRows(
        [{who: x[data.train] for who, (x, _) in ready.items()}],
        [data.y[data.train]],
        [{who: x[data.test] for who, (x, _) in ready.items()}],
        [data.y[data.test]],
        [data.label_at],
        data.classes,
        data.parties[data.label_at].labels,
        {who: c.columns for who, c in holders.items()},
        {who: r for who, (_, r) in ready.items()},
        mark,
    )


def _targets(y: Any) -> tuple[Tensor, int | None]:
    """(labels as a network takes them, how many classes; None for numbers)."""
    given = y if isinstance(y, Tensor) else np.asarray(y)
    if not isinstance(given, Tensor) and given.dtype.kind not in "biuf":
        raise BadData(
            f"splitnn: the labels hold text, e.g. {str(given.flat[0])!r}. Number them from 0, or read a "
            "table with data.from_csv(…, label=…)."
        )
    made = torch.as_tensor(given)
    if made.is_floating_point() and not torch.isfinite(made).all():
        raise BadData("splitnn: a label is missing or endless. Fill it, or leave its row out.")
    if made.dim() != 1:
        raise BadData(f"splitnn: labels of shape {tuple(made.shape)}; give one a row.")
    if made.is_floating_point() and (made != made.round()).any():
        return made.float(), None
    made = made.long()
    if len(made) and int(made.min()) < 0:
        raise BadData("splitnn: a class is below 0; number them from 0, or give fractions for a regression.")
    return made, int(made.max()) + 1 if len(made) else 2


def _matrix(who: str, x: Any) -> Tensor:
    given = x if isinstance(x, Tensor) else np.asarray(x)
    if not isinstance(given, Tensor) and given.dtype.kind not in "biuf":
        raise BadData(
            f"splitnn: the rows of {who!r} hold text, or what else is no number. Read the table with "
            "data.from_csv or data.from_frame(…, id=…)."
        )
    made = torch.as_tensor(given)
    made = made.float() if made.dtype in (torch.float64, torch.float16, torch.uint8, torch.bool) else made
    if made.dim() < 2 or not len(made):
        raise BadData(
            f"splitnn: the rows of {who!r} have shape {tuple(made.shape)}; give (rows, columns, …) with at "
            "least one row."
        )
    if made.is_floating_point() and not torch.isfinite(made).all():
        raise BadData(
            f"splitnn: the rows of {who!r} hold a number that is missing or endless. Fill it, or read the "
            "table with data.from_csv(…, id=…)."
        )
    return made


def _tensors(parties: Any, labels: Any, test: Any, fraction: float, seed: int) -> SplitRows:
    if not isinstance(parties, Mapping) or not parties or not all(isinstance(k, str) and k for k in parties):
        raise bad(
            "splitnn",
            "parties",
            type(parties).__name__,
            'rows by party, like {"clinic": x}, a Vertical (dataset.vertical), or tables with ids',
        )
    if frames := [
        who
        for who, v in parties.items()
        if labels is None and hasattr(v, "columns") and not isinstance(v, Columns | Dataset)
    ]:
        raise bad(
            "splitnn",
            "parties",
            f"a {type(parties[frames[0]]).__name__} of {frames[0]!r}",
            "tables read with data.from_frame(frame, id=…, label=…)",
            "Who does not hold the label leaves label out.",
        )
    if not isinstance(labels, Mapping) or len(labels) != 1:
        raise bad(
            "splitnn",
            "labels",
            type(labels).__name__,
            'the labels of the rows and who holds them, like {"lab": y}',
        )
    ((holder, y),) = labels.items()
    x = {who: _matrix(who, v) for who, v in parties.items()}
    target, classes = _targets(y)
    for who, v in x.items():
        if len(v) != len(target):
            raise BadData(
                f"splitnn: {who!r} has {len(v)} rows and {holder!r} {len(target)} labels. They must be of "
                "the same people in the same order."
            )
    if test is not None:
        xt, yt = {who: _matrix(who, v) for who, v in test[0].items()}, _targets(test[1])[0]
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


def _relay(parties: Any, labels: Any, fraction: float, seed: int) -> SplitRows:
    made = SplitRows([], [], [], [], [], None)
    if isinstance(parties, Federation):
        made.classes, made.labels = parties.classes, parties.labels
        for k, name in enumerate(parties.parties):
            train, held = parties.train.of(k), parties.held.of(k)
            made.x.append({name: parties.rows.x[train]})
            made.y.append(parties.rows.y[train])
            made.test_x.append({name: parties.rows.x[held]})
            made.test_y.append(parties.rows.y[held])
            made.label_at.append(SERVER if labels == SERVER else name)
        return made
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
    for who, v in parties.items():
        x, (y, classes) = _matrix(who, v), _targets(by_client[who])
        if len(x) != len(y):
            raise BadData(f"splitnn: {who!r} has {len(x)} rows and {len(y)} labels.")
        kinds.add(classes)
        train, held = split_rows(len(y), fraction, seed)
        made.x.append({who: x[train]})
        made.test_x.append({who: x[held]})
        made.y.append(y[train])
        made.test_y.append(y[held])
        made.label_at.append(server or who)
    if None in kinds:
        made.y, made.test_y = [y.float() for y in made.y], [y.float() for y in made.test_y]
    else:
        made.classes = max(k for k in kinds if k is not None)
    return made


# --- the network --------------------------------------------------------------------------------------------


@dataclass
class SplitNetwork:
    bottoms: dict[str, nn.Module]
    stops: list[StopPart]
    routes: tuple[Route, ...]
    loss: str
    makers: dict[str, dict[str, Callable[[], nn.Module]]] = field(default_factory=dict)


def network(
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
    """The parts, given or usual ones, and the way over them; what does not fit together is refused here."""
    if rows.classes is None and (spread := float(torch.cat(rows.y).std(correction=0))) > WIDE:
        rows.notes.append(
            f"The numbers to predict spread by ±{spread:.3g} and are not standardised: if the loss grows, "
            "divide them by about that, or take "
            "a smaller lr."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _network(rows, configuration, bottoms, middles, top, merge, width, loss)


def _network(
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

    def module(value: Any, what: str, who: str, where: str) -> nn.Module:
        if not isinstance(value, nn.Module) and callable(value):
            makers.setdefault(who, {})[where] = value
            value = value()
        if not isinstance(value, nn.Module):
            raise bad(
                "splitnn", what, type(value).__name__, "a torch.nn.Module, or a function that makes one"
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
            'parts by party, in the order of the way, like {"server": module}',
        )
    inner = configuration == "u" or (
        relay and holder != SERVER and holder in sources
    )  # the labels lie where the columns do
    if inner and not middle:
        middle = {SERVER: None}
    _check_shape(configuration, sources, holder, middle)

    given = dict(bottoms) if isinstance(bottoms, Mapping) else dict.fromkeys(sources, bottoms)
    strange = sorted(set(given) - set(sources))
    if strange:
        raise bad(
            "splitnn",
            "bottoms",
            strange[0],
            f"a part for each party that has columns: {', '.join(map(repr, sources))}",
        )
    made: dict[str, nn.Module] = {}
    for who in sources:
        shape = next(x[who].shape[1:] for x in rows.x if who in x)
        if relay and made:
            made[who] = copy.deepcopy(next(iter(made.values())))  # clients share one part
            makers |= (
                {who: {"bottom": makers[sources[0]]["bottom"]}}
                if "bottom" in makers.get(sources[0], {})
                else {}
            )
            continue
        part = given.get(who)
        made[who] = (
            nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), width), nn.ReLU())
            if part is None
            else module(part, f"the bottom of {who!r}", who, "bottom")
        )
    outs = {
        who: width_of(
            made[who],
            next(x[who].shape[1:] for x in rows.x if who in x),
            f"the bottom of {who!r}",
            next(x[who].dtype for x in rows.x if who in x),
        )
        for who in sources
    }
    first = outs[sources[0]]
    holders = 1 if relay else len(sources)
    if holders > 1 and merge != "concat" and len(set(outs.values())) > 1:
        raise BadParameter(
            f"splitnn: merge={merge!r} needs equally wide cuts, and these are {outs}. Make them alike, or "
            "take merge='concat'."
        )
    if holders > 1 and (any(len(o) != 1 for o in outs.values()) if merge != "sum" else False):
        raise BadParameter(
            f"splitnn: merge={merge!r} takes flat cuts, and these have shapes {outs}. End each bottom with "
            "nn.Flatten()."
        )
    wide: tuple[int, ...] = (
        (sum(o[0] for o in outs.values()),) if holders > 1 and merge == "concat" else first
    )
    stops: list[StopPart] = []

    def add(body: nn.Module, what: str) -> tuple[int, ...]:
        stops.append(StopPart(body, merge, holders, first[0]) if not stops else StopPart(body))
        return width_of(body, wide, what)

    for depth, (who, part) in enumerate(middle.items()):
        body = (
            nn.Sequential(nn.Linear(int(np.prod(wide)), width), nn.ReLU())
            if part is None
            else module(part, f"the middle of {who!r}", who, f"stop{depth}")
        )
        wide = add(body, f"the middle of {who!r}")
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
            for who in sources:
                makers.setdefault(who, {})[f"stop{last}"] = top
    wide = add(body, "top")
    if rows.classes is not None and isinstance(end := [*body.modules()][-1], nn.Softmax | nn.Sigmoid):
        raise bad(
            "splitnn",
            "the last layer of top",
            type(end).__name__,
            "the one before it: the loss applies it itself, and it would be applied twice",
        )
    routes = tuple(Route(tuple(x), (*middle, at)) for x, at in zip(rows.x, rows.label_at))
    return SplitNetwork(made, stops, routes, _loss(loss, rows.classes, wide), makers)


def _check_shape(configuration: str, sources: Sequence[str], holder: str, middle: Mapping[str, Any]) -> None:
    if configuration in ("vanilla", "u") and len(sources) != 1:
        raise bad(
            "splitnn",
            "parties",
            list(sources),
            f"one party with columns where configuration is {configuration!r}",
            "Take configuration='vertical'.",
        )
    if configuration == "vanilla" and holder in sources:
        raise bad(
            "splitnn",
            "labels",
            holder,
            "another party than the one with the columns",
            "With both at one party, configuration='u' keeps them there and gives the middle to another.",
        )
    if configuration == "u" and holder not in sources:
        raise bad(
            "splitnn",
            "labels",
            holder,
            f"{sources[0]!r}: in the U-shape labels stay with the columns",
            "Or take configuration='vanilla'.",
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
        raise bad("splitnn", "the width of top", width, f"at least {classes} outputs, one a class")
    return loss
