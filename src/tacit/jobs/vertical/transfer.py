"""`tacit.ftl`: what one party knows of its labelled rows, brought to another's columns through the few people
that both have. It finds these by private set intersection, hands each party its program, and puts the run
together.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ...data.federation import Dataset
from ...data.identifiers import normal
from ...data.tables import Recipe
from ...data.vertical import Columns, drop_repeated_ids
from ...errors import BadData
from ...mpc import transfer as hidden
from ...parameters import bad, check, from_table, to_table
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols import ftl as protocol
from ...protocols import splitnn_terms
from ...protocols.ftl import TransferTerms
from ...protocols.splitnn import agree
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_parts import build, describe, width_of
from ...protocols.splitnn_terms import Route, SplitInputs, fingerprint, losses
from ..programs import to_the_end
from .psi import align
from .split import folder_of, guards_at_the_cut, predict
from .split_parts import SplitShare, StopPart, check_unused, measured

HELPER = "helper"
SECURE = ("cut", "shared")


class ClassNames(Message, reveals="what the source calls its classes"):
    names: list[str]


@dataclass
class TransferResult:
    """`shares`: each party's own predictor, as only that party would have it; a network that needs nobody
    else. `metrics` are of the target's rows that are not shared, where its table has labels to measure by.
    """

    metrics: dict[str, float]
    history: list[dict[str, Any]] = field(repr=False)
    ledger: Ledger
    config: dict[str, Any] = field(repr=False)
    shares: dict[str, SplitShare] = field(repr=False)
    shared: int
    notes: tuple[str, ...] = ()

    def predict(self, rows: Any) -> Tensor:
        """The target alone, on new rows of its columns: a table, or numbers as its encoder takes them. The
        probability of the second class.
        """
        name = self.config["names"][1]
        return predict({name: self.shares[name]}, {name: rows})[0]

    def save(self, folder: str | Path) -> Path:
        """A folder for each party, as `tacit.splitnn` writes them: `tacit predict` reads the target's."""
        for k, share in enumerate(self.shares.values()):
            share.write(Path(folder) / folder_of(share.party, k))
        return Path(folder)

    def report(self, path: str | Path) -> Path:
        """The run as one self-contained page: how it went, and who saw what."""
        from .split_audit import page

        facts = [
            f"{self.shared} shared rows",
            f"secure: {self.config['secure']}",
            f"{len(self.history)} epochs",
        ]
        return page(
            Path(path), "Transfer between two feature spaces", facts, self, "of the target's other rows"
        )


def ftl(
    source: Any,
    target: Any,
    *,
    encoders: Mapping[str, nn.Module] | None = None,
    secure: str = "cut",
    width: int = 8,
    epochs: int = 60,
    first_epochs: int = 100,
    batch_size: int = 64,
    lr: float = 0.01,
    weight_decay: float = 0.03,
    gamma: float = 1.0,
    own: float = 1.0,
    rebuild: float = 1.0,
    guard: Sequence[Any] = (),
    protect: Any = None,
    names: tuple[str, str] = ("source", "target"),
    seed: int = 0,
    runtime: Any = None,
    out: str | Path | None = None,
) -> TransferResult:
    """A model for the target's columns from the source's labels, though their columns differ and they share
    only some people.

    `source` and `target` are tables with ids (`data.from_csv(…, id=…)`, or `data.split_for_transfer` for a study); the
    source's has labels, the target's labels are only measured by. `encoders` by name are nn.Sequentials of
    known layers that end `width` wide; left out, one layer with tanh each.

    `secure`: "cut" sends the shared rows' representations and gradients, as a split network does, behind
    `guard` and `protect`; "shared" sends neither: each learns its encoder alone, and the target's last layer
    is found on secret shares, with a helper.
    """
    check_unused(out)
    _named(names)
    through = to_the_end("ftl", runtime)
    if secure not in SECURE:
        raise bad("ftl", "secure", secure, "'cut' or 'shared'")
    guards = guards_at_the_cut("ftl", guard, protect)
    if secure == "shared" and (guards or protect is not None):
        raise bad(
            "ftl",
            "guard",
            [type(g).__name__ for g in (*guards, protect) if g is not None],
            "left out with secure='shared': nothing crosses a cut",
        )
    tables = {names[0]: _table(source, "source"), names[1]: _table(target, "target")}
    labels = labelled(tables[names[0]])
    terms = check(
        TransferTerms(
            (Route((names[1],), (names[0],)),),
            (0,),
            (0,),
            epochs,
            batch_size,
            1,
            seed,
            "bce",
            width=width,
            first_epochs=first_epochs,
            lr=lr,
            weight_decay=weight_decay,
            gamma=gamma,
            own=own,
            rebuild=rebuild,
        ),
        "ftl",
    )
    ledger = Ledger()
    single = {name: drop_repeated_ids(t, f"the table of {name!r}") for name, t in tables.items()}
    tables = {name: t for name, (t, _) in single.items()}
    found = align({name: t.ids.tolist() for name, t in tables.items()}, runtime=runtime)
    ledger.merge(found.ledger)
    some(found.size, names)
    terms = replace(terms, rows=(found.size,))
    at = {name: torch.as_tensor(np.asarray(found.rows[name]), dtype=torch.int64) for name in names}
    key = secrets.token_bytes(32)
    given = {
        name: prepared(terms, name, t, at[name], encoders, guards, protect, key) for name, t in tables.items()
    }
    made = through.run_sync(programs(terms, given, secure), ledger=ledger)
    shares = {name: finished(terms, name, tables[name], given[name], made[name], labels) for name in names}
    notes = (
        f"{found.size} people are shared, of {len(tables[names[0]])} at {names[0]} and "
        f"{len(tables[names[1]])} at {names[1]}.",
        *(note for _, some in single.values() for note in some),
        *found.notes,
    )
    run = TransferResult(
        measured_on_the_rest(terms, shares[names[1]], tables[names[1]], at[names[1]], labels),
        made[names[0]]["history"],
        ledger,
        {
            "names": list(names),
            "secure": secure,
            "guards": [str(g) for g in guards],
            "protect": str(protect),
            **{k: v for k, v in asdict(terms).items() if k != "routes"},
        },
        shares,
        found.size,
        notes,
    )
    if out is not None:
        run.save(out)
    return run


# --- what each brings ---------------------------------------------------------------------------------------


def _named(names: Any) -> None:
    if len(names) != 2 or len({*names, HELPER}) != 3 or not all(isinstance(n, str) and n for n in names):
        raise bad(
            "ftl", "names", names, f"two different words, of the source and of the target, and not {HELPER!r}"
        )


def _table(given: Any, what: str) -> Columns:
    if isinstance(given, Dataset):
        return Columns.of(given)
    if not isinstance(given, Columns):
        raise bad(
            "ftl",
            what,
            type(given).__name__,
            "a table with ids: data.from_csv(…, id=…), or one of data.split_for_transfer(…)",
        )
    return given


def labelled(table: Columns) -> tuple[str, ...]:
    """What the source's two classes are called."""
    if table.y is None:
        raise BadData(
            f"{table.name}: the source's table was read without labels, so it has nothing to teach. Read it "
            "with label=…."
        )
    if table.classes != 2:
        what = "numbers" if table.classes is None else f"of {table.classes} classes"
        raise BadData(
            f"{table.name}: the source's labels are {what}; transfer tells two classes apart. Make one "
            "class of what is sought, one of the rest."
        )
    return table.labels


def some(size: int, names: Sequence[str]) -> None:
    if not size:
        raise BadData(
            f"{names[0]!r} and {names[1]!r} share nobody, so nothing can be carried over. Are the ids "
            "written in the same way? 007 is not 7."
        )


def seeded(seed: int, name: str) -> int:
    """First weights follow from the seed and the party's name: nobody needs another's."""
    return int.from_bytes(hashlib.sha256(f"{seed}|{name}".encode()).digest()[:7], "little")


def prepared(
    terms: TransferTerms,
    name: str,
    table: Columns,
    at: Tensor,
    encoders: Mapping[str, nn.Module] | None = None,
    guards: Sequence[Any] = (),
    protect: Any = None,
    key: bytes = b"",
) -> dict[str, Any]:
    """What one party's program is given, as plain values: another process can have it. `key`: of the
    fingerprint of the shared ids; both have the same.
    """
    x, recipe = table.standardize(torch.arange(len(table)))
    x = x.reshape(len(x), -1).float()
    if not x.shape[1]:
        raise BadData(f"{name!r} has no columns beside the id.")
    if not torch.isfinite(x).all():
        raise BadData(
            f"the rows of {name!r} hold a number that is missing or endless. Fill it, or read the table "
            "with data.from_csv(…, id=…)."
        )
    strange = sorted(set(encoders or {}) - {terms.source, terms.target})
    if strange:
        raise bad("ftl", "encoders", strange[0], f"parts by party: {terms.source!r}, {terms.target!r}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeded(terms.seed, name))
        encoder = (encoders or {}).get(name) or nn.Sequential(nn.Linear(x.shape[1], terms.width), nn.Tanh())
        decoder = nn.Linear(terms.width, x.shape[1])
    layers = describe(encoder)
    wide = width_of(encoder, (x.shape[1],), f"the encoder of {name!r}")
    if wide != (terms.width,):
        raise bad(
            "ftl",
            f"the encoder of {name!r}",
            f"{wide} wide",
            f"one that makes {terms.width} numbers a row, or give width={wide[0] if wide else 1}",
        )
    first = name == terms.source
    return {
        "terms": asdict(terms),
        "x": x,
        "shared": at,
        "layers": layers,
        "encoder": {k: v.detach().clone() for k, v in encoder.state_dict().items()},
        "fingerprint": fingerprint([normal(str(i)) for i in table.ids[at.numpy()]], key),
        "recipe": None if recipe is None else asdict(recipe),
        **(
            {
                "y": table.y,
                "labels": list(table.labels),
                "protect": None if protect is None else to_table(protect),
            }
            if first
            else {
                "decoder": {k: v.detach().clone() for k, v in decoder.state_dict().items()},
                "guards": [to_table(g) for g in guards],
            }
        ),
    }


def programs(terms: TransferTerms, given: Mapping[str, Mapping[str, Any]], secure: str) -> dict[str, Any]:
    run = functools.partial(secret_seat, helper=HELPER) if secure == "shared" else seat
    made: dict[str, Any] = {name: functools.partial(run, given=dict(g)) for name, g in given.items()}
    if secure == "shared":
        made[HELPER] = functools.partial(
            hidden.helper, names=(terms.source, terms.target), rows=terms.rows[0], width=terms.width
        )
    return made


def _terms(plain: Mapping[str, Any]) -> TransferTerms:
    return TransferTerms(
        **{
            **plain,
            "routes": tuple(Route(tuple(r["sources"]), tuple(r["stops"])) for r in plain["routes"]),
            "rows": tuple(plain["rows"]),
            "tests": tuple(plain["tests"]),
        }
    )


def _mine(terms: TransferTerms, given: Mapping[str, Any]) -> SplitInputs:
    encoder = build(given["layers"])
    encoder.load_state_dict(given["encoder"])
    mine = SplitInputs(terms.adam, encoder, x={0: given["x"]}, fingerprint=given["fingerprint"])
    if "y" in given:
        mine.y[0], mine.stops[0] = given["y"], protocol.Offset()
        mine.protect = (
            None if given["protect"] is None else from_table(given["protect"], GRADIENTS, "protect")
        )
    else:
        decoder = nn.Linear(terms.width, given["x"].shape[1])
        decoder.load_state_dict(given["decoder"])
        mine.stops[0] = decoder
        mine.guards = tuple(from_table(g, ACTIVATIONS, "guard") for g in given["guards"])
    return mine


async def seat(me: Party, given: Mapping[str, Any]) -> dict[str, Any]:
    """A party's program over the cut, from plain values."""
    terms = _terms(given["terms"])
    if me.name == terms.source:
        return await protocol.source(me, terms, _mine(terms, given), given["shared"], given["labels"])
    return {"history": [], **await protocol.target(me, terms, _mine(terms, given), given["shared"])}


async def secret_seat(me: Party, given: Mapping[str, Any], helper: str) -> dict[str, Any]:
    """A party's program on shares: its encoder is learned alone, and the product that needs both is hidden
    from both.
    """
    terms, at = _terms(given["terms"]), given["shared"]
    mine = _mine(terms, given)
    encoder, x, names = mine.bottom, mine.x[0], (terms.source, terms.target)
    assert encoder is not None
    if me.name == terms.source:
        y = mine.y[0]
        protocol.enough(y[at], given["labels"])
        hidden.check_margin(len(at), terms.width, terms.gamma)
    await agree(me, terms, mine)
    if me.name == terms.source:
        c, offset = protocol.codes(y), mine.stops[0]
        history = protocol.alone(
            lambda: protocol.own_loss(terms, encoder(x), offset, c, y),
            terms.adam(mine.parts.parameters()),
            terms.first_epochs,
        )
        with torch.no_grad():
            u = encoder(x)
            phi, b = c.T @ u, offset(torch.zeros(1))
            scores = u[at] @ phi.T + b
        await hidden.source(me, names, helper, terms.width, y[at], scores, terms.gamma)
        return {
            "history": [{"epoch": k + 1, "train_loss": v} for k, v in enumerate(history)],
            "state": protocol.state_of(encoder),
            "translator": phi,
            "offset": b,
        }
    decoder = mine.stops[0]
    protocol.alone(
        lambda: mse_loss(decoder(encoder(x)), x), terms.adam(mine.parts.parameters()), terms.first_epochs
    )
    with torch.no_grad():
        h = encoder(x[at])
    w = (await hidden.target(me, names, helper, h, terms.weight_decay, terms.gamma)).float()
    return {
        "history": [],
        "state": protocol.state_of(encoder),
        "translator": w[:-1].T.contiguous(),
        "offset": w[-1].contiguous(),
    }


def finished(
    terms: TransferTerms,
    name: str,
    table: Columns,
    given: Mapping[str, Any],
    made: Mapping[str, Any],
    labels: tuple[str, ...],
) -> SplitShare:
    """A party's predictor: its encoder, and the translator as one more layer. It is a split network of one
    party, and is saved and asked as one.
    """
    encoder = build(given["layers"])
    encoder.load_state_dict(made["state"])
    head = nn.Linear(terms.width, 1)
    head.load_state_dict({"weight": made["translator"], "bias": made["offset"]})
    recipe = given["recipe"] and Recipe(
        **{
            **given["recipe"],
            "categories": {k: tuple(v) for k, v in given["recipe"]["categories"].items()},
            **{k: None if given["recipe"][k] is None else tuple(given["recipe"][k]) for k in ("mean", "std")},
            "numbers": tuple(given["recipe"]["numbers"]),
            "missing": tuple(given["recipe"]["missing"]),
        }
    )
    plain = splitnn_terms.SplitTerms(
        (Route((name,), (name,)),), (0,), (0,), 0, terms.batch_size, 1, terms.seed, terms.loss
    )
    return SplitShare(
        name,
        plain,
        encoder,
        {0: StopPart(nn.Sequential(head))},
        {},
        "adam",
        {"lr": terms.lr, "weight_decay": terms.weight_decay},
        classes=2,
        labels=labels,
        columns=table.columns,
        recipe=recipe or None,
    )


def measured_on_the_rest(
    terms: TransferTerms, share: SplitShare, table: Columns, at: Tensor, labels: tuple[str, ...]
) -> dict[str, float]:
    """How well the target does on its rows that are not shared, if it has labels to measure by."""
    if table.y is None:
        return {}
    rest = torch.ones(len(table), dtype=torch.bool)
    rest[at] = False
    if not rest.any():
        return {}
    return measured(terms.loss, 2, outputs(share, table)[rest], same_classes(table, labels)[rest])


def outputs(share: SplitShare, table: Columns) -> Tensor:
    """A party's scores of all rows of its table."""
    mine = share.mine()
    x = (
        (share.recipe.standardize(table.x) if share.recipe is not None else table.x)
        .reshape(len(table), -1)
        .float()
    )
    assert mine.bottom is not None
    with torch.no_grad():
        return mine.stops[0]([mine.bottom(x)])


def same_classes(table: Columns, labels: tuple[str, ...]) -> Tensor:
    """The target's labels by the source's numbers."""
    assert table.y is not None
    if not labels or not table.labels or table.labels == labels:
        return table.y
    strange = [name for name in table.labels if name not in labels]
    if strange:
        raise BadData(
            f"the target's table has the label {strange[0]!r}, which the source does not know: "
            f"{', '.join(map(repr, labels))}."
        )
    return torch.tensor([labels.index(name) for name in table.labels])[table.y]


def alone(
    source: Any,
    target: Any,
    *,
    width: int = 8,
    epochs: int = 60,
    first_epochs: int = 100,
    lr: float = 0.01,
    weight_decay: float = 0.03,
    rebuild: float = 1.0,
    seed: int = 0,
) -> dict[str, float]:
    """What the target would reach by itself, if it had the shared rows' labels: the same encoder, begun and
    kept rebuilding in the same way, and a last layer learned from these labels. A baseline for studies, in
    one place: it looks at both tables.
    """
    tables = {"source": _table(source, "source"), "target": _table(target, "target")}
    labels = labelled(tables["source"])
    terms = check(
        TransferTerms(
            (Route(("target",), ("source",)),),
            (0,),
            (0,),
            epochs,
            loss="bce",
            seed=seed,
            width=width,
            first_epochs=first_epochs,
            lr=lr,
            weight_decay=weight_decay,
            rebuild=rebuild,
        )
    )
    found = align({name: t.ids.tolist() for name, t in tables.items()})
    at = {name: torch.as_tensor(np.asarray(rows), dtype=torch.int64) for name, rows in found.rows.items()}
    given = prepared(terms, "target", tables["target"], at["target"])
    mine, taught = _mine(terms, given), tables["source"].y
    encoder, decoder, x = mine.bottom, mine.stops[0], mine.x[0]
    assert encoder is not None
    assert taught is not None
    y = taught[at["source"]]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeded(seed, "head"))
        head = nn.Linear(width, 1)
    optimizer = terms.adam([*mine.parts.parameters(), *head.parameters()])
    protocol.alone(lambda: mse_loss(decoder(encoder(x)), x), optimizer, first_epochs)
    protocol.alone(
        lambda: (
            losses(terms.loss, head(encoder(x[at["target"]])), y) + rebuild * mse_loss(decoder(encoder(x)), x)
        ),
        optimizer,
        epochs,
    )
    made = {
        "state": protocol.state_of(encoder),
        "translator": head.weight.detach(),
        "offset": head.bias.detach(),
    }
    return measured_on_the_rest(
        terms,
        finished(terms, "target", tables["target"], given, made, labels),
        tables["target"],
        at["target"],
        labels,
    )
