"""`tacit split`: split learning between organizations with one job file.

    [split]                                       [parties.bank]            [parties.shop]
    labels = "bank"                               file = "bank.csv"         file = "shop.csv"
    epochs = 20                                   id = "id"                 id = "customer"
    top = [16]                                    label = "default"         bottom = [16]
                                                  bottom = [16]
Each party has its own table. A party without a table holds a middle part of the network: `middle = [32]`.
Numbers in brackets are widths of layers, each followed by ReLU.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ...config.vertical import SplitParty, SplitSettings, read_parties
from ...data.identifiers import normal
from ...data.table_files import READING, check_reading, read_header, reading_in
from ...data.vertical import Columns, drop_repeated_ids, split_rows
from ...errors import BadData, BadJob, BadKit, BadRun
from ...files import write_atomic
from ...parameters import check, from_table
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols import splitnn
from ...protocols.psi_policy import PsiPolicy
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_terms import Asked, Route, SplitTerms
from ...runtimes.choose import choose_runtime
from ..kit_run import first_of_each, run_with_kit, telling
from ..owner import Request, read_owner_policy
from ..threads import SMALL, one_thread_if
from . import split_parts as parts
from .party_tables import table_of
from .psi import align_rows
from .query_log import read_policy
from .split import describe_convergence, final_metrics, folder_of
from .split_parts import SplitShare, StopPart, check_writable

if TYPE_CHECKING:
    from ...runtimes.kits import Kit


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"split": all settings, "parties": {name: …}}."""
    file = Path(path)
    settings, parties = read_parties(path, "split", SplitSettings, SplitParty)
    if len(parties) < 2:
        raise BadJob(f"{file}: name at least two parties, as [parties.bank] and [parties.shop].")
    for name, table in parties.items():
        if ("middle" in table) == ("id" in table):
            raise BadJob(
                f"{file}, parties.{name}: give id (and file, bottom) for a party with a table, or middle "
                "for one without."
            )
    holders = [name for name, table in parties.items() if "label" in table]
    if len(holders) != 1 or settings["labels"] not in ("", holders[0]):
        raise BadJob(
            f"{file}: the parties with a label are {holders or 'none'}; exactly one is needed, and "
            "split.labels, if given, must name it."
        )
    settings["labels"] = holders[0]
    cuts = [table["bottom"][-1] for table in parties.values() if "bottom" in table]
    if not cuts:
        raise BadJob(
            f"{file}, split: no party has a bottom, so no columns enter the network. Give bottom = [16] to "
            "parties with columns."
        )
    if settings["merge"] != "concat" and len(set(cuts)) > 1:
        raise BadJob(
            f"{file}, split: merge is {settings['merge']!r}, and the bottoms have output widths {cuts}. It "
            f"must be one of {', '.join(parts.MERGES)}; the last two need equal widths."
        )
    if settings["join"] == "left" and (len(parties) != 2 or "bottom" not in parties[holders[0]]):
        raise BadJob(
            f"{file}, split: join = 'left' needs exactly two parties, both with a table, and a bottom at "
            f"{holders[0]!r}, whose rows are kept."
        )
    return {"split": settings, "parties": parties}


# what each party decides about its own table
LOCAL = (
    "file",
    *READING,
    "drop",
    "duplicates",
    "categories",
    "missing",
    "missing_codes",
    "dates",
    "scaling",
    "winsorize",
    "impute",
    "unseen",
)


def job_digest(job: Mapping[str, Any]) -> str:
    """Return a digest of what must be equal in all parties' job files: everything but local file options."""
    return hashlib.sha256(job_text(job).encode()).hexdigest()


def job_text(job: Mapping[str, Any]) -> str:
    plain = {
        **job,
        "parties": {n: {k: v for k, v in t.items() if k not in LOCAL} for n, t in job["parties"].items()},
    }
    return json.dumps(plain, sort_keys=True)


def names_of(file: str | Path, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of a party's file, read as its entry in the job file says."""
    return read_header(file, entry.get("separator"), entry.get("encoding")).names


def read_as(
    job: dict[str, Any], reading: Mapping[str, Any] | None, party: str | None = None
) -> dict[str, Any]:
    """Return a job in which a party's file, or that of each, is read by other options than the job's."""
    parties = {
        name: {**entry, **(reading or {})} if party in (None, name) else entry
        for name, entry in job["parties"].items()
    }
    for name, entry in parties.items():
        check_reading(f"parties.{name}", **reading_in(entry))  # what the job gives may not fit the rest
    return {**job, "parties": parties}


def request_of_job(
    verb: str, kit: Kit, job: Mapping[str, Any], read_job: Callable[[str | Path], dict[str, Any]], file: Any
) -> Request:
    """What the owner of a kit decides about: a job file that all parties have, and its own table."""
    entry = job["parties"][kit.name]
    columns: tuple[str, ...] | None = None
    if file and Path(file).is_file() and read_owner_policy(kit.directory).columns:
        dropped = {*entry.get("drop", ()), entry.get("id")}
        columns = tuple(c for c in names_of(file, entry) if c not in dropped)
        if verb == "link":  # it reads the fields alone
            columns = tuple(entry.get("columns", {}).get(name, name) for name in job[verb]["fields"])
    others = tuple(name for name in job["parties"] if name != kit.name)
    return Request(
        verb,
        others,
        (kit.name, *others),
        job_text(job),
        f"{verb} with {', '.join(others)}",
        columns,
        read_template=lambda template: json.loads(job_text(read_job(template))),
    )


def _route(job: Mapping[str, Any]) -> Route:
    sources = tuple(n for n, t in job["parties"].items() if "bottom" in t)
    return Route(sources, (*[n for n, t in job["parties"].items() if "middle" in t], job["split"]["labels"]))


def _layers(seed: int, name: str, start: int, widths: list[int], out: int | None) -> nn.Sequential:
    """Build Linear and ReLU layers; their initial weights follow from the seed and the name."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(
            int.from_bytes(hashlib.sha256(f"{seed}|{name}".encode()).digest()[:7], "little")
        )
        layers: list[nn.Module] = []
        for width in widths:
            layers += [nn.Linear(start, width), nn.ReLU()]
            start = width
        return nn.Sequential(*layers, *([nn.Linear(start, out)] if out is not None else []))


async def check_same_job(
    me: Party, run_everyone: Iterable[str], digest: str, wait: float | None = None
) -> None:
    """Check that all parties have the same job, before anything else is sent.

    `wait`: seconds to wait for the others to start.
    """
    others = [n for n in run_everyone if n != me.name]
    for name in others:
        await me.send(name, Asked(-1, digest))
    async for name, message in first_of_each(me, others, Asked, wait):
        if message.job != digest:
            raise BadJob(
                f"{name!r} and {me.name!r} have different job files, or parts of different runs. All job "
                "files must be equal, except for local file options."
            )


class Aligned(NamedTuple):
    """`table`: my rows (None without a table). `rows`: their number. `mark`: keyed fingerprint.

    `shared`: how many of the rows all parties hold; in a left join the others are at the end.
    """

    table: Columns | None
    rows: int
    mark: bytes
    notes: list[str]
    shared: int


async def align_parties(
    me: Party,
    table: Columns | None,
    holders: tuple[str, ...],
    run_everyone: tuple[str, ...],
    digest: str,
    kit: str,
    duplicates: str,
    wait: float | None,
    join: str,
) -> Aligned:
    """Align the parties; a party without a table learns the number of rows from the first holder.

    A left join keeps the rows of the first holder.
    """
    without = [n for n in run_everyone if n not in holders]
    await check_same_job(me, run_everyone, digest, wait)
    if table is None:
        rows = (await me.recv(holders[0], Asked)).rows
        return Aligned(None, rows, b"", [], rows)
    order, shared = b"", len(table)
    notes: list[str] = []
    if len(holders) > 1:
        table, notes = drop_repeated_ids(table, f"the table of {me.name!r}", duplicates)
        alignment = await align_rows(
            me, table.ids.tolist(), parties=list(holders), policy=policy_in(kit), how=join
        )
        shared = alignment.shared
        table, notes = table.take(alignment.rows), [*notes, *alignment.notes]
        order = splitnn.fingerprint([normal(str(i)) for i in table.ids[:shared]], alignment.key)
        if join == "left":
            notes.append(
                f"{shared} of {len(table)} people of {holders[0]!r} are shared; the others are kept, with "
                "missing values for the other party's columns."
            )
    if not len(table):
        raise BadData(
            f"{me.name!r} has no ids in common with {', '.join(n for n in holders if n != me.name)}. Are "
            "the ids written in the same way?"
        )
    if me.name == holders[0]:
        await me.send(without, Asked(len(table), digest))
    return Aligned(table, len(table), order, notes, shared)


async def run_party(
    me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "", wait: float | None = None
) -> dict[str, Any]:
    """Run a party: read its table, align, train, save; return {"history", "rows", "folder", "notes"}."""
    split, entry = job["split"], job["parties"][me.name]
    route = _route(job)
    holders = tuple(n for n, t in job["parties"].items() if "id" in t)
    table = table_of(file, entry, split["regression"]) if "id" in entry else None
    if split["join"] == "left":
        holders = (split["labels"], *(n for n in holders if n != split["labels"]))
        table = table.allow_missing() if table is not None and me.name != holders[0] else table
    table, count, mark, notes, shared = await align_parties(
        me,
        table,
        holders,
        tuple(job["parties"]),
        job_digest(job),
        kit,
        entry.get("duplicates", "refuse"),
        wait,
        split["join"],
    )
    if not shared:
        raise BadData(
            f"{me.name!r} has no ids in common with {', '.join(n for n in holders if n != me.name)}. Are "
            "the ids written in the same way?"
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
            patience=split["patience"],
            join=split["join"],
        )
    )
    share = _share(me.name, job, terms, route, table)
    share.fingerprint = mark
    if table is not None:
        x, share.recipe = table.standardize(train)
        share.columns, share.id = table.columns, entry["id"]
    if me.name == route.stops[-1] and table is not None and table.y is not None:
        share.fit_target(table.y[train])
    inputs = share.inputs()
    if me.name in route.sources:
        inputs.x[0], inputs.test_x[0] = x[train], x[test]
    if me.name == route.stops[-1]:
        assert table is not None
        assert table.y is not None
        inputs.y[0], inputs.test_y[0] = share.to_target(table.y[train]), share.to_target(table.y[test])
        if split["join"] == "left":
            inputs.absent[0] = train >= shared
    result = await splitnn.party(me, terms, inputs)
    share.state = result["state"]
    folder = share.write(Path(out))
    write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    notes += describe_convergence(result["history"], terms) if result["history"] else []
    metrics = final_metrics(result["history"], result)
    return {
        "history": result["history"],
        "metrics": metrics,
        "rows": count,
        "shared": shared,
        "folder": str(folder),
        "notes": notes,
    }


def _share(
    name: str, job: Mapping[str, Any], terms: SplitTerms, route: Route, table: Columns | None
) -> SplitShare:
    split, parties = job["split"], job["parties"]
    settings = SplitSettings(**split).optimizer_settings()
    cuts = [parties[s]["bottom"][-1] for s in route.sources]
    wide = sum(cuts) if split["merge"] == "concat" else cuts[0]
    bottom = None
    if name in route.sources:
        assert table is not None
        if not table.x.shape[1]:
            raise BadData(f"{name!r} has a bottom, but its table has no columns besides the id.")
        bottom = _layers(split["seed"], f"bottom {name}", table.x.shape[1], parties[name]["bottom"], None)
    stops: dict[int, StopPart] = {}
    for depth, at in enumerate(route.stops):
        last = depth == len(route.stops) - 1
        widths = split["top"] if last else parties[at]["middle"]
        if at == name:
            outputs = (1 if table is None or table.classes is None else table.classes) if last else None
            run_with_party_kit = (
                (split["merge"], len(route.sources), cuts[0]) if depth == 0 else ("concat", 1, 0)
            )
            stops[depth] = StopPart(
                _layers(split["seed"], f"stop {depth}", wide, widths, outputs), *run_with_party_kit
            )
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


# --- started by an operator ---------------------------------------------------------------------------------


def run_here(
    path: str | Path,
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all parties of a job on this machine, each with its file in the job: for a test."""
    job = read_as(read(path), reading)
    results = run_everyone("split", path, job, run_party, out, runtime, ledger)
    holder = results[job["split"]["labels"]]
    return {
        "history": holder["history"],
        "metrics": holder["metrics"],
        "rows": holder["rows"],
        "shared": holder["shared"],
        "folder": str(out),
        "notes": list(dict.fromkeys(n for one in results.values() for n in one["notes"])),
    }


def _is_small(job: Mapping[str, Any]) -> bool:
    """Return whether a batch of the job's network takes one core a few milliseconds, by its widths."""
    settings = job.get("split") or job.get("ftl")
    if settings is None:  # no network: many small products on shares
        return True
    widths = [settings.get("width", 1), *settings.get("top", [])]
    widths += [w for t in job["parties"].values() for w in (*t.get("bottom", []), *t.get("middle", []))]
    return int(max(widths) ** 2 * settings["batch_size"]) <= SMALL


def check_vacant(folder: Path) -> Path:
    """Return a party's folder if it contains no part yet; parts are never overwritten."""
    check_writable(folder)
    if any(
        (folder / name).exists() for name in ("part.safetensors", "part.json", "ledger.json", "answers.csv")
    ):
        raise BadRun(
            f"{folder} already contains a party's part, which is never overwritten. Use another --out."
        )
    return folder


def run_everyone(
    verb: str,
    path: str | Path,
    job: Mapping[str, Any],
    program: Any,
    out: str | Path,
    runtime: Any,
    ledger: Ledger | None,
    check_folder: Callable[[Path], Path] = check_vacant,
) -> dict[str, Any]:
    """Run `program(me, job, file, out)` for every party of a job on this machine."""
    programs = {}
    for k, (name, entry) in enumerate(job["parties"].items()):
        if "id" in entry and "file" not in entry:
            raise BadJob(
                f"{path}, parties.{name}: file is missing; to run all parties here, the job must name every "
                "table."
            )
        folder = check_folder(Path(out) / folder_of(name, k))
        programs[name] = functools.partial(
            program, job=job, file=str(Path(path).parent / entry.get("file", "")), out=str(folder)
        )
    with one_thread_if(_is_small(job)):
        return dict(choose_runtime(verb, runtime, all_stay=True).run_sync(programs, ledger=ledger))


def take_part(
    kit: Kit,
    path: str | Path,
    file: str | Path | None,
    out: str | Path | None,
    patience: float = 300.0,
    wait: float | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one party of a job over the federation's hub."""
    return run_with_party_kit("split", kit, path, read, run_party, file, out, patience, wait, reading=reading)


def run_with_party_kit(
    verb: str,
    kit: Kit,
    path: str | Path,
    read_job: Callable[[str | Path], dict[str, Any]],
    program: Any,
    file: str | Path | None,
    out: str | Path | None,
    patience: float,
    wait: float | None,
    check_folder: Callable[[Path, Mapping[str, Any]], Path] | None = None,
    reading: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run `program(me, job, file, out, kit, wait)` as the kit's party; its ledger is added to the kit's.

    If this party cannot start, the others are told. `check_folder(folder, job)`: of a program that can be
    resumed; `reading` says how this party's file is read; `options` are given to the program.
    """
    with telling(kit):
        job = read_as(read_job(path), reading, kit.name)
        if kit.name not in job["parties"]:
            raise BadKit(
                f"this is the kit of {kit.name!r}, which is not a party of {path}. Its parties are "
                f"{', '.join(job['parties'])}."
            )
        entry = job["parties"][kit.name]
        where = file if file is not None else Path(path).parent / entry["file"] if "file" in entry else ""
        if "id" in entry and not where:
            raise BadJob(f"{path}, parties.{kit.name}: file is missing; give it with --file.")
        place = Path(out) if out is not None else (kit.directory or Path(".")) / "part"
        folder = check_vacant(place) if check_folder is None else check_folder(place, job)
    program = functools.partial(
        program, job=job, file=str(where), out=str(folder), kit=str(kit.directory or ""), wait=wait, **options
    )
    with one_thread_if(_is_small(job)):
        result, ledger = run_with_kit(
            verb,
            kit,
            program,
            patience,
            job["parties"],
            may_restart=check_folder is not None,
            request=request_of_job(verb, kit, job, read_job, where),
        )
    return {"party": kit.name, **result, "ledger": ledger.to_dict()}


def policy_in(kit: str) -> PsiPolicy:
    """Return the policy of the party with this kit; without a kit, the default policy."""
    return read_policy(None, Path(kit) if kit else None)
