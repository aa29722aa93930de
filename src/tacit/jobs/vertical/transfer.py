"""`tacit.ftl`: federated transfer learning between two parties with few shared ids.

Shared ids are found by private set intersection.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ...config.vertical import SECURE
from ...data.federation import Dataset
from ...data.identifiers import normal
from ...data.recipe import Recipe
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
from ...protocols.splitnn_terms import Route, SplitInputs, compute_loss, fingerprint
from ...runtimes.choose import SyncRuntime, choose_runtime
from .psi import align
from .split import PartsResult, check_cut_guards, encode_rows, predict
from .split_parts import SplitShare, StopPart, check_unused, measure_outputs

HELPER = "helper"


class ClassNames(Message, reveals="what the source calls its classes"):
    names: list[str]


@dataclass
class TransferResult(PartsResult):
    """The result of `tacit.ftl`.

    `shares`: each party's predictor, which works without the other party; `tacit predict` reads the target's.
    `metrics` are of the target's rows that are not shared, if its table has labels.
    """

    title = "Transfer between two feature spaces"
    facts = (*PartsResult.facts, "shared")

    shared: int = 0

    def predict(self, rows: Any) -> Tensor:
        """Predict with the target's model alone: the probability of the second class.

        `rows`: a table with its columns, or a tensor as its encoder accepts it.
        """
        name = self.config["names"][1]
        return predict({name: self.shares[name]}, {name: rows})[0]


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
    runtime: SyncRuntime | str | None = None,
    out: str | Path | None = None,
) -> TransferResult:
    """Train a model for the target's columns from the source's labels, with few shared ids.

    `source` and `target` are tables with ids (`data.from_csv(…, id=…)`, or `data.split_for_transfer` for a
    study); the source's has labels; labels of the target are used only for metrics. `encoders` by name are
    nn.Sequentials of known layers with `width` outputs; by default one layer with tanh each.

    `secure`: "cut" sends representations and gradients of the shared rows, as a split network does, protected
    by `guard` and `protect`; "shared" sends neither: each party trains its encoder alone, and the target's
    last layer is computed on secret shares, with a helper. `runtime` as in `tacit.psi`.
    """
    check_unused(out)
    _check_names(names)
    through = choose_runtime("ftl", runtime, all_stay=True)
    if secure not in SECURE:
        raise bad("ftl", "secure", secure, "'cut' or 'shared'")
    guards = check_cut_guards("ftl", guard, protect)
    if secure == "shared" and (guards or protect is not None):
        raise bad(
            "ftl",
            "guard",
            [type(g).__name__ for g in (*guards, protect) if g is not None],
            "left out with secure='shared': nothing crosses a cut",
        )
    tables = {names[0]: _table(source, "source"), names[1]: _table(target, "target")}
    labels = check_source_labels(tables[names[0]])
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
    intersection = align({name: t.ids.tolist() for name, t in tables.items()}, runtime=runtime)
    ledger.merge(intersection.ledger)
    check_shared(intersection.size, names)
    terms = replace(terms, rows=(intersection.size,))
    at = {name: torch.as_tensor(np.asarray(intersection.rows[name]), dtype=torch.int64) for name in names}
    key = secrets.token_bytes(32)
    inputs = {
        name: prepare_inputs(terms, name, t, at[name], encoders, guards, protect, key)
        for name, t in tables.items()
    }
    results = through.run_sync(make_programs(terms, inputs, secure), ledger=ledger)
    shares = {
        name: build_predictor(terms, name, tables[name], inputs[name], results[name], labels)
        for name in names
    }
    notes = (
        f"{intersection.size} people are shared, of {len(tables[names[0]])} at {names[0]} and "
        f"{len(tables[names[1]])} at {names[1]}.",
        *(note for _, check_shared in single.values() for note in check_shared),
        *intersection.notes,
    )
    run = TransferResult(
        measure_unshared(terms, shares[names[1]], tables[names[1]], at[names[1]], labels),
        results[names[0]]["history"],
        ledger,
        {
            "names": list(names),
            "secure": secure,
            "guards": [str(g) for g in guards],
            "protect": str(protect),
            **{k: v for k, v in asdict(terms).items() if k != "routes"},
        },
        shares,
        notes,
        intersection.size,
    )
    if out is not None:
        run._write(Path(out))
    return run


# --- inputs of each party -----------------------------------------------------------------------------------


def _check_names(names: Any) -> None:
    if len(names) != 2 or len({*names, HELPER}) != 3 or not all(isinstance(n, str) and n for n in names):
        raise bad(
            "ftl", "names", names, f"two different words, of the source and of the target, and not {HELPER!r}"
        )


def _table(table: Any, what: str) -> Columns:
    if isinstance(table, Dataset):
        return Columns.of(table)
    if not isinstance(table, Columns):
        raise bad(
            "ftl",
            what,
            type(table).__name__,
            "a table with ids: data.from_csv(…, id=…), or one of data.split_for_transfer(…)",
        )
    return table


def check_source_labels(table: Columns) -> tuple[str, ...]:
    """Return the names of the source's two classes."""
    if table.y is None:
        raise BadData(f"{table.name}: the source's table was read without labels. Read it with label=….")
    if table.classes != 2:
        what = "numbers" if table.classes is None else f"of {table.classes} classes"
        raise BadData(
            f"{table.name}: the source's labels are {what}; transfer needs two classes. Merge them into two."
        )
    return table.labels


def check_shared(size: int, names: Sequence[str]) -> None:
    if not size:
        raise BadData(
            f"{names[0]!r} and {names[1]!r} have no ids in common, so nothing can be transferred. Are the "
            "ids written in the same way? 007 is not 7."
        )


def weight_seed(seed: int, name: str) -> int:
    """Return the seed of a party's initial weights."""
    return int.from_bytes(hashlib.sha256(f"{seed}|{name}".encode()).digest()[:7], "little")


def prepare_inputs(
    terms: TransferTerms,
    name: str,
    table: Columns,
    at: Tensor,
    encoders: Mapping[str, nn.Module] | None = None,
    guards: Sequence[Any] = (),
    protect: Any = None,
    key: bytes = b"",
) -> dict[str, Any]:
    """Return the inputs of one party's program, as plain values for another process.

    `key`: of the fingerprint of the shared ids, the same at both parties.
    """
    x, recipe = table.standardize(torch.arange(len(table)))
    x = x.reshape(len(x), -1).float()
    if not x.shape[1]:
        raise BadData(f"{name!r} has no columns besides the id.")
    if not torch.isfinite(x).all():
        raise BadData(
            f"the rows of {name!r} contain NaN or infinite values. Fill them, or read the table with "
            "data.from_csv(…, id=…)."
        )
    unknown = sorted(set(encoders or {}) - {terms.source, terms.target})
    if unknown:
        raise bad("ftl", "encoders", unknown[0], f"parts by party: {terms.source!r}, {terms.target!r}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(weight_seed(terms.seed, name))
        encoder = (encoders or {}).get(name) or nn.Sequential(nn.Linear(x.shape[1], terms.width), nn.Tanh())
        decoder = nn.Linear(terms.width, x.shape[1])
    layers = describe(encoder)
    wide = width_of(encoder, (x.shape[1],), f"the encoder of {name!r}")
    if wide != (terms.width,):
        raise bad(
            "ftl",
            f"the encoder of {name!r}",
            f"{wide} wide",
            f"one with {terms.width} outputs per row, or pass width={wide[0] if wide else 1}",
        )
    first = name == terms.source
    return {
        "terms": asdict(terms),
        "x": x,
        "shared": at,
        "layers": layers,
        "encoder": {k: v.detach().clone() for k, v in encoder.state_dict().items()},
        "fingerprint": fingerprint([normal(str(i)) for i in table.ids[at.numpy()]], key),
        "recipe": None if recipe is None else recipe.to_dict(),
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


def make_programs(
    terms: TransferTerms, inputs: Mapping[str, Mapping[str, Any]], secure: str
) -> dict[str, Any]:
    run = functools.partial(run_party_on_shares, helper=HELPER) if secure == "shared" else run_party
    programs: dict[str, Any] = {name: functools.partial(run, inputs=dict(g)) for name, g in inputs.items()}
    if secure == "shared":
        programs[HELPER] = functools.partial(
            hidden.helper, names=(terms.source, terms.target), rows=terms.rows[0], width=terms.width
        )
    return programs


def _terms(plain: Mapping[str, Any]) -> TransferTerms:
    return TransferTerms(
        **{
            **plain,
            "routes": tuple(Route(tuple(r["sources"]), tuple(r["stops"])) for r in plain["routes"]),
            "rows": tuple(plain["rows"]),
            "tests": tuple(plain["tests"]),
        }
    )


def _split_inputs(terms: TransferTerms, inputs: Mapping[str, Any]) -> SplitInputs:
    encoder = build(inputs["layers"])
    encoder.load_state_dict(inputs["encoder"])
    split_inputs = SplitInputs(terms.adam, encoder, x={0: inputs["x"]}, fingerprint=inputs["fingerprint"])
    if "y" in inputs:
        split_inputs.y[0], split_inputs.stops[0] = inputs["y"], protocol.Offset()
        split_inputs.protect = (
            None if inputs["protect"] is None else from_table(inputs["protect"], GRADIENTS, "protect")
        )
    else:
        decoder = nn.Linear(terms.width, inputs["x"].shape[1])
        decoder.load_state_dict(inputs["decoder"])
        split_inputs.stops[0] = decoder
        split_inputs.guards = tuple(from_table(g, ACTIVATIONS, "guard") for g in inputs["guards"])
    return split_inputs


async def run_party(me: Party, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a party with secure="cut", from plain values."""
    terms = _terms(inputs["terms"])
    if me.name == terms.source:
        return await protocol.source(
            me, terms, _split_inputs(terms, inputs), inputs["shared"], inputs["labels"]
        )
    return {"history": [], **await protocol.target(me, terms, _split_inputs(terms, inputs), inputs["shared"])}


async def run_party_on_shares(me: Party, inputs: Mapping[str, Any], helper: str) -> dict[str, Any]:
    """Run a party with secure="shared": it trains its encoder alone; the joint product is secret-shared."""
    terms, at = _terms(inputs["terms"]), inputs["shared"]
    split_inputs = _split_inputs(terms, inputs)
    encoder, x, names = split_inputs.bottom, split_inputs.x[0], (terms.source, terms.target)
    assert encoder is not None
    if me.name == terms.source:
        y = split_inputs.y[0]
        protocol.check_labels(y[at], inputs["labels"])
        hidden.check_margin(len(at), terms.width, terms.gamma)
    await agree(me, terms, split_inputs)
    if me.name == terms.source:
        c, offset = protocol.codes(y), split_inputs.stops[0]
        history = protocol.train_alone(
            lambda: protocol.own_loss(terms, encoder(x), offset, c, y),
            terms.adam(split_inputs.parts.parameters()),
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
    decoder = split_inputs.stops[0]
    protocol.train_alone(
        lambda: mse_loss(decoder(encoder(x)), x),
        terms.adam(split_inputs.parts.parameters()),
        terms.first_epochs,
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


def build_predictor(
    terms: TransferTerms,
    name: str,
    table: Columns,
    inputs: Mapping[str, Any],
    result: Mapping[str, Any],
    labels: tuple[str, ...],
) -> SplitShare:
    """Return a party's predictor: a split network of one party, with the translator as last layer."""
    encoder = build(inputs["layers"])
    encoder.load_state_dict(result["state"])
    head = nn.Linear(terms.width, 1)
    head.load_state_dict({"weight": result["translator"], "bias": result["offset"]})
    recipe = None if inputs["recipe"] is None else Recipe.from_dict(inputs["recipe"])
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
        recipe=recipe,
    )


def measure_unshared(
    terms: TransferTerms, share: SplitShare, table: Columns, at: Tensor, labels: tuple[str, ...]
) -> dict[str, float]:
    """Return metrics of the target's rows that are not shared, if it has labels."""
    if table.y is None:
        return {}
    rest = torch.ones(len(table), dtype=torch.bool)
    rest[at] = False
    if not rest.any():
        return {}
    return measure_outputs(terms.loss, 2, outputs(share, table)[rest], same_classes(table, labels)[rest])


def outputs(share: SplitShare, table: Columns) -> Tensor:
    """Return a party's scores for all rows of its table."""
    inputs = share.inputs()
    x = encode_rows(share, table).reshape(len(table), -1).float()
    assert inputs.bottom is not None
    with torch.no_grad():
        return inputs.stops[0]([inputs.bottom(x)])


def same_classes(table: Columns, labels: tuple[str, ...]) -> Tensor:
    """Return the target's labels with the source's numbering."""
    assert table.y is not None
    if not labels or not table.labels or table.labels == labels:
        return table.y
    unknown = [name for name in table.labels if name not in labels]
    if unknown:
        raise BadData(
            f"the target's table has the label {unknown[0]!r}, which the source does not have: "
            f"{', '.join(map(repr, labels))}."
        )
    return torch.tensor([labels.index(name) for name in table.labels])[table.y]


def train_target_alone(
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
    """Train the target alone on the labels of the shared rows: a baseline for studies.

    The same encoder and autoencoder, and a last layer trained on these labels. It needs both tables in one
    place.
    """
    tables = {"source": _table(source, "source"), "target": _table(target, "target")}
    labels = check_source_labels(tables["source"])
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
    intersection = align({name: t.ids.tolist() for name, t in tables.items()})
    at = {
        name: torch.as_tensor(np.asarray(rows), dtype=torch.int64) for name, rows in intersection.rows.items()
    }
    inputs = prepare_inputs(terms, "target", tables["target"], at["target"])
    split_inputs, source_labels = _split_inputs(terms, inputs), tables["source"].y
    encoder, decoder, x = split_inputs.bottom, split_inputs.stops[0], split_inputs.x[0]
    assert encoder is not None
    assert source_labels is not None
    y = source_labels[at["source"]]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(weight_seed(seed, "head"))
        head = nn.Linear(width, 1)
    optimizer = terms.adam([*split_inputs.parts.parameters(), *head.parameters()])
    protocol.train_alone(lambda: mse_loss(decoder(encoder(x)), x), optimizer, first_epochs)
    protocol.train_alone(
        lambda: (
            compute_loss(terms.loss, head(encoder(x[at["target"]])), y)
            + rebuild * mse_loss(decoder(encoder(x)), x)
        ),
        optimizer,
        epochs,
    )
    result = {
        "state": protocol.state_of(encoder),
        "translator": head.weight.detach(),
        "offset": head.bias.detach(),
    }
    return measure_unshared(
        terms,
        build_predictor(terms, "target", tables["target"], inputs, result, labels),
        tables["target"],
        at["target"],
        labels,
    )
