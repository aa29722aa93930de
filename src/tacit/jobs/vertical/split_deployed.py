"""A split network whose parties are organisations: one job file that all have, each with its own table;
training, and prediction with the saved parts.

    [split]                                       [parties.bank]            [parties.shop]
    labels = "bank"                               file = "bank.csv"         file = "shop.csv"
    epochs = 20                                   id = "id"                 id = "customer"
    top = [16]                                    label = "default"         bottom = [16]
                                                  bottom = [16]
A party without a table holds a stretch of the network between: `middle = [32]`. Numbers in brackets are
widths of layers, each with ReLU behind it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ...config import toml
from ...data.identifiers import normal
from ...data.tables import from_csv
from ...data.vertical import Columns, drop_repeated_ids, split_rows
from ...errors import BadData, BadJob, BadKit, BadParameter, BadRun, MissingFiles
from ...files import check_new, write_atomic
from ...parameters import bad, check, from_table, nearest
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols import splitnn
from ...protocols.psi_policy import PsiPolicy
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_terms import Asked, Route, SplitTerms
from ..kit_run import run_with_kit
from ..programs import to_the_end
from . import split_parts as parts
from .psi import align_rows
from .query_log import read_policy
from .split import folder_of, told
from .split_parts import SplitShare, StopPart, may_write

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

SPLIT: dict[str, Any] = {
    "labels": None,
    "merge": "concat",
    "top": [],
    "epochs": 10,
    "batch_size": 64,
    "lr": 0.1,
    "optimizer": "sgd",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "regression": False,
    "test_fraction": 0.2,
    "slices": 1,
    "every": 1,
    "seed": 0,
    "nopeek": 0.0,
    "guards": [],
    "protect": None,
}
PARTY: dict[str, Any] = {
    "file": str,
    "id": str,
    "label": str,
    "bottom": list[int],
    "middle": list[int],
    "drop": list[str],
    "categories": list[str],
    "duplicates": str,
}


def tables_of(
    path: str | Path, verb: str, usual: Mapping[str, Any], takes: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """([verb] with what it leaves out, [parties.…]) of a job file; what is in neither is refused, and what is
    of another type than an entry `takes`.
    """
    file = Path(path)
    try:
        raw = toml.read(file)
    except FileNotFoundError:
        raise MissingFiles(f"there is no job file {file}. Check the path.") from None
    except OSError as error:
        raise BadJob(f"{file} cannot be read: {error.strerror}. Give a job file (TOML).") from None
    for key in raw:
        if key not in (verb, "parties"):
            raise BadJob(
                f"{file}: there is no table [{key}] in a job for `tacit {verb}`. "
                f"{nearest(key, [verb, 'parties'])}"
            )
    given, who = (toml.table(str(file), key, raw.get(key, {})) for key in (verb, "parties"))
    for key in given:
        if key not in usual:
            raise BadJob(f"{file}, {verb}: there is no {key!r}. {nearest(key, list(usual))}")
    for name, entry in who.items():
        for key, value in toml.table(str(file), f"parties.{name}", entry).items():
            if key not in takes:
                raise BadJob(f"{file}, parties.{name}: there is no {key!r}. {nearest(key, list(takes))}")
            if key in ("bottom", "middle"):
                _widths(f"{file}, parties.{name}", key, value, least=1)
            toml.held(f"{file}, parties.{name}", key, value, takes[key])
    return {**usual, **given}, {name: dict(entry) for name, entry in who.items()}


def _widths(where: str, key: str, value: Any, least: int = 0) -> None:
    if (
        not isinstance(value, list)
        or len(value) < least
        or not all(isinstance(w, int) and not isinstance(w, bool) and w >= 1 for w in value)
    ):
        raise BadJob(f"{where}: {key} is {value!r}; it must be a list of widths, like [16].")


def check_guards(where: str, settings: Mapping[str, Any]) -> None:
    """What a table says of guards at a cut."""
    if not isinstance(settings["guards"], list):
        raise BadJob(str(bad(where, "guards", settings["guards"], "a list of tables with a `name` each")))
    for i, table in enumerate(settings["guards"]):
        from_table(table, ACTIVATIONS, f"{where}, guards[{i}]")
    if settings["protect"] is not None:
        from_table(settings["protect"], GRADIENTS, f"{where}, protect")


def read(path: str | Path) -> dict[str, Any]:
    """A job file, checked: {"split": every setting, "parties": {name: …}}."""
    file = Path(path)
    settings, who = tables_of(path, "split", SPLIT, PARTY)
    if len(who) < 2:
        raise BadJob(f"{file}: name at least two parties, as [parties.bank] and [parties.shop].")
    for name, table in who.items():
        if ("middle" in table) == ("id" in table):
            raise BadJob(
                f"{file}, parties.{name}: give id (and file, bottom) for a party with a table, or middle "
                "for one without."
            )
    holders = [name for name, table in who.items() if "label" in table]
    if len(holders) != 1 or settings["labels"] not in (None, holders[0]):
        raise BadJob(
            f"{file}: the label is at {holders or 'nobody'}; exactly one party has one, and split.labels, "
            "if given, names it."
        )
    settings["labels"] = holders[0]
    _check(f"{file}, split", settings, [table["bottom"][-1] for table in who.values() if "bottom" in table])
    return {"split": settings, "parties": who}


def _check(where: str, split: Mapping[str, Any], cuts: list[int]) -> None:
    """[split], held to what each setting may be, before anybody reads a table; `cuts` are how wide the
    bottoms end.
    """
    if not cuts:
        raise BadJob(
            f"{where}: no party has a bottom, so nobody's columns enter the network. Give bottom = [16] to "
            "those with columns."
        )
    if split["merge"] not in parts.MERGES or (split["merge"] != "concat" and len(set(cuts)) > 1):
        raise BadJob(
            f"{where}: merge is {split['merge']!r}, and the bottoms end {cuts} wide. It must be one of "
            f"{', '.join(parts.MERGES)}; the last two need "
            "equal widths."
        )
    _widths(where, "top", split["top"])
    toml.held(where, "regression", split["regression"], bool)
    check_guards(where, split)
    try:
        check(
            SplitTerms(
                (), (), (), **{k: split[k] for k in ("epochs", "batch_size", "slices", "seed", "every")}
            ),
            where,
        )
        parts.optimizer_of(split["optimizer"], split["lr"], split["momentum"], split["weight_decay"], where)
        parts.check_nopeek(split["nopeek"], split["slices"], where)
        split_rows(0, split["test_fraction"], split["seed"], where)
    except BadParameter as error:
        raise BadJob(str(error)) from None


def agreed(job: Mapping[str, Any]) -> str:
    """What all parties' job files must have alike: everything but where each keeps its file."""
    plain = {
        **job,
        "parties": {
            n: {k: v for k, v in t.items() if k not in ("file", "drop", "categories", "duplicates")}
            for n, t in job["parties"].items()
        },
    }
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _route(job: Mapping[str, Any]) -> Route:
    sources = tuple(n for n, t in job["parties"].items() if "bottom" in t)
    return Route(sources, (*[n for n, t in job["parties"].items() if "middle" in t], job["split"]["labels"]))


def _layers(seed: int, name: str, start: int, widths: list[int], out: int | None) -> nn.Sequential:
    """A stretch of Linear and ReLU. Its first values follow from the seed and the party's name: nobody needs
    another's.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(
            int.from_bytes(hashlib.sha256(f"{seed}|{name}".encode()).digest()[:7], "little")
        )
        made: list[nn.Module] = []
        for width in widths:
            made += [nn.Linear(start, width), nn.ReLU()]
            start = width
        return nn.Sequential(*made, *([nn.Linear(start, out)] if out is not None else []))


async def same_job(me: Party, everybody: Iterable[str], mark: str) -> None:
    """All have the same job, or nothing else is said."""
    others = [n for n in everybody if n != me.name]
    for name in others:
        await me.send(name, Asked(-1, mark))
    for name, said in (await me.gather(others, Asked)).items():
        if said.job != mark:
            raise BadJob(
                f"{name!r} and {me.name!r} have different job files, or parts of different runs. All must "
                "have the same but for their own file."
            )


class Aligned(NamedTuple):
    """`table`: my rows of those all share (None: I have no table). `shared`: how many. `mark`: a fingerprint
    of their order, keyed.
    """

    table: Columns | None
    shared: int
    mark: bytes
    notes: list[str]


async def _people(
    me: Party,
    table: Columns | None,
    holders: tuple[str, ...],
    everybody: tuple[str, ...],
    mark: str,
    kit: str,
    duplicates: str,
) -> Aligned:
    """The people all share. A party without a table hears how many from the first who has one."""
    without = [n for n in everybody if n not in holders]
    await same_job(me, everybody, mark)
    if table is None:
        return Aligned(None, (await me.recv(holders[0], Asked)).rows, b"", [])
    order = b""
    notes: list[str] = []
    if len(holders) > 1:
        table, notes = drop_repeated_ids(table, f"the table of {me.name!r}", duplicates)
        found = await align_rows(me, table.ids.tolist(), parties=list(holders), policy=policy_in(kit))
        table, notes = table.take(found.rows), [*notes, *found.notes]
        order = splitnn.fingerprint([normal(str(i)) for i in table.ids], found.key)
    if not len(table):
        raise BadData(
            f"{me.name!r} shares nobody with {', '.join(n for n in holders if n != me.name)}. Are the ids "
            "written in the same way?"
        )
    if me.name == holders[0]:
        await me.send(without, Asked(len(table), mark))
    return Aligned(table, len(table), order, notes)


def table_of(file: str | Path, entry: Mapping[str, Any], regression: bool = False) -> Columns:
    """A party's own table, as its entry of the job says."""
    read: Any = from_csv
    made = read(
        file,
        entry.get("label"),
        id=entry["id"],
        drop=entry.get("drop", []),
        categories=entry.get("categories", []),
        **({"regression": regression, "test_fraction": 0} if "label" in entry else {}),
    )
    return made if isinstance(made, Columns) else Columns.of(made)


async def attend(me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "") -> dict[str, Any]:
    """A party's program: read its table, align, train, save its part. Gives what it may tell: {"history",
    "rows", "folder", "notes"}.
    """
    split, mine = job["split"], job["parties"][me.name]
    route = _route(job)
    holders = tuple(n for n, t in job["parties"].items() if "id" in t)
    table = table_of(file, mine, split["regression"]) if "id" in mine else None
    table, count, mark, notes = await _people(
        me, table, holders, tuple(job["parties"]), agreed(job), kit, mine.get("duplicates", "refuse")
    )
    train, test = split_rows(count, split["test_fraction"], split["seed"])
    loss = "mse" if split["regression"] else "cross_entropy"
    terms = check(
        SplitTerms(
            (route,),
            (len(train),),
            (len(test),),
            split["epochs"],
            split["batch_size"],
            split["slices"],
            split["seed"],
            loss,
            every=split["every"],
        )
    )
    share = _share(me.name, job, terms, route, table)
    share.fingerprint = mark
    if table is not None:
        x, share.recipe = table.standardize(train)
        share.columns, share.id = table.columns, mine["id"]
    seat = share.mine()
    if me.name in route.sources:
        seat.x[0], seat.test_x[0] = x[train], x[test]
    if me.name == route.stops[-1]:
        assert table is not None
        assert table.y is not None
        seat.y[0], seat.test_y[0] = table.y[train], table.y[test]
    made = await splitnn.party(me, terms, seat)
    share.state = made["state"]
    folder = share.write(Path(out))
    write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    return {"history": made["history"], "rows": count, "folder": str(folder), "notes": notes}


def _share(
    name: str, job: Mapping[str, Any], terms: SplitTerms, route: Route, table: Columns | None
) -> SplitShare:
    split, who = job["split"], job["parties"]
    settings = parts.optimizer_of(split["optimizer"], split["lr"], split["momentum"], split["weight_decay"])
    cuts = [who[s]["bottom"][-1] for s in route.sources]
    wide = sum(cuts) if split["merge"] == "concat" else cuts[0]
    bottom = None
    if name in route.sources:
        assert table is not None
        if not table.x.shape[1]:
            raise BadData(f"{name!r} is to bring columns, and its table has none beside the id.")
        bottom = _layers(split["seed"], f"bottom {name}", table.x.shape[1], who[name]["bottom"], None)
    stops: dict[int, StopPart] = {}
    for depth, at in enumerate(route.stops):
        last = depth == len(route.stops) - 1
        widths = split["top"] if last else who[at]["middle"]
        if at == name:
            outputs = (1 if table is None or table.classes is None else table.classes) if last else None
            join = (split["merge"], len(route.sources), cuts[0]) if depth == 0 else ("concat", 1, 0)
            stops[depth] = StopPart(_layers(split["seed"], f"stop {depth}", wide, widths, outputs), *join)
        wide = widths[-1] if widths else wide
    guards = (
        tuple(from_table(g, ACTIVATIONS, "split.guards") for g in split["guards"])
        if name in route.sources
        else ()
    )
    holder = name == route.stops[-1]
    return SplitShare(
        name,
        terms,
        bottom,
        stops,
        {},
        split["optimizer"],
        settings,
        guards,
        from_table(split["protect"], GRADIENTS, "split.protect")
        if holder and split["protect"] is not None
        else None,
        float(split["nopeek"]) if name in route.sources else 0.0,
        None if table is None else table.classes,
        table.labels if holder and table is not None else (),
    )


async def foresee(
    me: Party, folder: str, file: str, out: str, kit: str = "", duplicates: str = "refuse"
) -> dict[str, Any]:
    """A party's program of a joint prediction with saved parts: its own part, its own new rows. The holder of
    the top writes the answer to `out`.
    """
    share = parts.read(folder)
    route = share.terms.routes[0]
    if share.party != me.name:
        raise BadKit(
            f"{folder} holds the part of {share.party!r}, and this is {me.name!r}. Give each party its own."
        )
    mark = hashlib.sha256(json.dumps([share.terms.text()]).encode()).hexdigest()
    table = None
    if me.name in route.sources:
        if not file:
            raise BadData(f"{me.name!r} has columns in this network; give the file with its rows.")
        read: Any = from_csv
        table = read(file, id=share.id, fit=share.recipe)
    table, count, order, notes = await _people(me, table, route.sources, route.parties, mark, kit, duplicates)
    share = replace(share, terms=replace(share.terms, rows=(0,), tests=(count,)), fingerprint=order)
    seat = share.mine()
    if table is not None:
        assert share.recipe is not None
        seat.test_x[0] = share.recipe.standardize(table.x)
    made = await splitnn.predict(me, share.terms, seat)
    if made is None:
        return {"rows": count, "notes": notes}
    answer(Path(out), told(share.terms.loss, made), None if table is None else table.ids, share)
    return {"rows": count, "out": out, "notes": notes}


def answer(out: Path, values: torch.Tensor, ids: np.ndarray | None, share: SplitShare) -> None:
    """A row a person: the likeliest class and the chance of each, or the number."""
    import pandas

    frame = pandas.DataFrame({share.id or "row": ids if ids is not None else np.arange(len(values))})
    if share.terms.loss == "mse":
        frame["prediction"] = values.numpy()
    else:
        chances = values if values.dim() == 2 else torch.stack([1 - values, values], 1)
        names = list(share.labels) or [str(k) for k in range(chances.shape[1])]
        frame["prediction"] = [names[k] for k in chances.argmax(1).tolist()]
        for k, name in enumerate(names):
            frame[f"chance of {name}"] = chances[:, k].numpy()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, frame.to_csv(index=False))


# --- started by an operator ---------------------------------------------------------------------------------


def here(
    path: str | Path, out: str | Path, runtime: Any = None, ledger: Ledger | None = None
) -> dict[str, Any]:
    """All parties of a job on this machine, each with the file the job names: to try it out."""
    job = read(path)
    made = everybody("split", path, job, attend, out, runtime, ledger)
    holder = made[job["split"]["labels"]]
    return {
        "history": holder["history"],
        "rows": holder["rows"],
        "folder": str(out),
        "notes": [n for one in made.values() for n in one["notes"]],
    }


def vacant(folder: Path) -> Path:
    """A party's folder, if no part lies there: what was learnt is never written over. Said before anybody
    reads or learns, too.
    """
    may_write(folder)
    if any(
        (folder / name).exists() for name in ("part.safetensors", "part.json", "ledger.json", "answers.csv")
    ):
        raise BadRun(
            f"{folder} already holds a party's part, which is never written over. Give another --out."
        )
    return folder


def everybody(
    verb: str,
    path: str | Path,
    job: Mapping[str, Any],
    program: Any,
    out: str | Path,
    runtime: Any,
    ledger: Ledger | None,
) -> dict[str, Any]:
    """`program(me, job, file, out)` of every party of a job, on this machine."""
    programs = {}
    for k, (name, entry) in enumerate(job["parties"].items()):
        if "id" in entry and "file" not in entry:
            raise BadJob(
                f"{path}, parties.{name}: file is missing; to run everybody here, the job must say where "
                "each table lies."
            )
        folder = vacant(Path(out) / folder_of(name, k))
        programs[name] = functools.partial(
            program, job=job, file=str(Path(path).parent / entry.get("file", "")), out=str(folder)
        )
    return dict(to_the_end(verb, runtime).run_sync(programs, ledger=ledger))


def take_part(
    kit: Kit, path: str | Path, file: str | Path | None, out: str | Path | None, patience: float = 300.0
) -> dict[str, Any]:
    """One party's side of a job, over the federation's hub."""
    return join("split", kit, path, read(path), attend, file, out, patience)


def join(
    verb: str,
    kit: Kit,
    path: str | Path,
    job: Mapping[str, Any],
    program: Any,
    file: str | Path | None,
    out: str | Path | None,
    patience: float,
) -> dict[str, Any]:
    """The kit's party runs `program(me, job, file, out, kit)` with its own table; what it saw is added to the
    kit's ledger.
    """
    if kit.name not in job["parties"]:
        raise BadKit(
            f"this is the kit of {kit.name!r}, which {path} does not name. Its parties are "
            f"{', '.join(job['parties'])}."
        )
    entry = job["parties"][kit.name]
    where = file if file is not None else Path(path).parent / entry["file"] if "file" in entry else ""
    if "id" in entry and not where:
        raise BadJob(f"{path}, parties.{kit.name}: no file is named; give yours with --file.")
    folder = vacant(Path(out) if out is not None else (kit.directory or Path(".")) / "part")
    program = functools.partial(
        program, job=job, file=str(where), out=str(folder), kit=str(kit.directory or "")
    )
    made, ledger = run_with_kit(verb, kit, program, patience)
    return {"party": kit.name, **made, "ledger": ledger.to_dict()}


def predict_part(
    kit: Kit,
    folder: str | Path,
    file: str | Path | None,
    out: str | Path,
    patience: float = 300.0,
    force: bool = False,
    duplicates: str = "refuse",
) -> dict[str, Any]:
    """One party's side of a joint prediction, over the federation's hub."""
    if parts.read(folder).terms.routes[0].stops[-1] == kit.name:  # nobody else writes an answer
        may_write(check_new(out, force).parent)
    program = functools.partial(
        foresee,
        folder=str(folder),
        file=str(file or ""),
        out=str(out),
        kit=str(kit.directory or ""),
        duplicates=duplicates,
    )
    made, ledger = run_with_kit("predict", kit, program, patience)
    return {"party": kit.name, **made, "ledger": ledger.to_dict()}


def predict_here(
    folder: str | Path,
    files: Mapping[str, str],
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    force: bool = False,
    duplicates: str = "refuse",
) -> dict[str, Any]:
    """The same with all parts and files on this machine."""
    places = {p.parent for p in Path(folder).glob("*/part.json")}
    if not places:
        raise MissingFiles(
            f"there is no saved split network in {folder}. Give the folder that `tacit split --out` or "
            "`tacit ftl --out` wrote."
        )
    may_write(check_new(out, force).parent)
    shares = {parts.read(p).party: p for p in sorted(places)}
    for name in files:
        if name not in shares:
            raise BadData(f"there is no party {name!r} in {folder}. {nearest(name, list(shares))}")
    asked = [n for n, p in shares.items() if set(files) & set(parts.read(p).terms.routes[0].parties)] or list(
        shares
    )  # predictors may lie beside each other
    programs = {
        n: functools.partial(
            foresee, folder=str(shares[n]), file=files.get(n, ""), out=str(out), duplicates=duplicates
        )
        for n in asked
    }
    made = to_the_end("predict", runtime).run_sync(programs, ledger=ledger)
    return {
        "rows": next(iter(made.values()))["rows"],
        "out": str(out),
        "notes": [n for one in made.values() for n in one["notes"]],
    }


def policy_in(kit: str) -> PsiPolicy:
    """What the party with this kit lets others learn of its ids; the default policy without a kit."""
    return read_policy(None, Path(kit) if kit else None)
