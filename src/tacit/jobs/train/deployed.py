"""A run whose parties are organizations: what the server's operator and each party's operator start, and what
they can check beforehand.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ... import __version__, models, own_code
from ...config import job as config
from ...config import toml
from ...config.train import SIMULATED, algorithm_from_table
from ...config.train import TABLES as OPTION_TABLES
from ...errors import BadJob, BadKit, NoHub, TacitError
from ...files import write_atomic
from ...own_code import Approved
from ...parameter_shapes import NAME as SHAPES
from ...parameter_shapes import ParameterShapes
from ...parameters import check, from_table
from ...parties.ledger import Ledger
from ...results import Result
from ...runs import Event
from ...runtimes.kits import Kit
from ...runtimes.link import Link
from ...runtimes.preflight import check_admission, reach
from ..approved import read_approved
from ..devices import device_for
from ..eligibility import read_eligibility
from ..ledger_file import record_command
from ..lifetime import read_lifetime
from ..owner import Owner
from .contract import Agreement, Contract, loss_from_code, metrics_from_code, model_from_code
from .elsewhere import Deployed, Elsewhere
from .member import member
from .own_loop import Exchange
from .party_rows import PartyTable, read_layout, read_party_table
from .plan import make_plan, make_task
from .train import train
from .tree import Edge, Top


def read(
    path: str | Path, changes: list[str] | None = None, approved: Approved | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a job of real parties: the layout of their files, and the options of `train`.

    Code that it names is imported if the owner of this kit approved it.
    """
    file = Path(path)
    tables = toml.load(file, changes or [], ("data", *OPTION_TABLES, "train"))
    code: dict[str, Any] = {}
    if isinstance(named := tables.get("algorithm"), dict) and own_code.is_code(named.get("name")):
        where = f"{file}, algorithm"
        try:
            own = (approved or Approved()).load(named["name"], named.get("digest"))
        except TacitError as error:
            raise BadJob(f"{where}: {error}") from None
        code["algorithm"] = algorithm_from_table(tables.pop("algorithm"), own, where)
    if isinstance(named := tables.get("model"), dict) and own_code.is_code(named.get("name")):
        with _in_file(file):
            code["model"] = model_from_code(tables.pop("model"), approved, "model")
    if isinstance(train_table := tables.get("train"), dict):
        loss = train_table.get("loss")
        if own_code.is_code(loss):
            raise BadJob(
                f'{file}, train, loss: code needs its digest: loss = {{ name = "{loss}", digest = "…" }}, as '
                "`tacit code` prints them."
            )
        if isinstance(loss, dict):
            tables["train"] = {k: v for k, v in train_table.items() if k != "loss"}
            with _in_file(file):
                code["loss"] = loss_from_code(loss, approved, "train, loss")
    if "metrics" in tables:
        with _in_file(file):
            code["metrics"] = metrics_from_code(tables.pop("metrics"), approved, "metrics")
    settings = toml.table(str(file), "train", tables.get("train", {}))
    for name in SIMULATED:
        if name in tables or name in settings:
            place = f"{file}: [{name}]" if name in tables else f"{file}, train: {name!r}"
            raise BadJob(f"{place} is for simulations. Leave it out here.")
    layout = toml.table(str(file), "data", tables.get("data", {}))
    has_scripts = tables.get("client") is not None
    if isinstance(named := tables.get("model"), dict) and has_scripts and named.get("name") == SHAPES:
        code["model"] = from_table(tables.pop("model"), {SHAPES: ParameterShapes}, f"{file}, model")
    if has_scripts:
        read_outline(layout, str(file))
    else:
        try:
            read_layout(layout)
        except BadJob as error:
            raise BadJob(f"{file}, {error}") from None
    options, comparison = config.read_options(tables, file)
    if has_scripts and (options["client"].path or options["client"].arguments):
        raise BadJob(
            f"{file}, client: between real parties each has its own script. Leave path and arguments out, "
            "and start it with `tacit party --script`."
        )
    for name in comparison:
        raise BadJob(f"{file}, train: {name!r} is for `tacit compare`. Leave it out here.")
    if isinstance(options["model"], models.Pretrained):
        raise BadJob(f"{file}, model: weights are for simulations. Leave them out here.")
    return layout, options | code


@contextlib.contextmanager
def _in_file(file: Path) -> Iterator[None]:
    try:
        yield
    except TacitError as error:
        raise BadJob(f"{file}, {error}") from None


def read_outline(layout: dict[str, Any], where: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of a row and the number of classes, as [data] of a job for scripts gives them."""
    unknown = set(layout) - {"features", "classes"}
    features, classes = layout.get("features", [1]), layout.get("classes", 0)
    if (
        unknown
        or not isinstance(features, list)
        or not all(type(n) is int and n > 0 for n in features)
        or not features
        or type(classes) is not int
        or classes < 0
    ):
        raise BadJob(
            f"{where}, data: with [client] parties' rows are known to their scripts only. [data] may have "
            "features, the shape of a row such as [64], and classes; only tacit's own models need them."
        )
    return tuple(features), classes


def federation(
    kit: Kit, layout: dict[str, Any], options: Mapping[str, Any] = MappingProxyType({})
) -> Elsewhere:
    if options.get("client") is not None:
        shape, classes = read_outline(layout, "job")
        return Elsewhere.of(
            kit.federation, clients_of(kit), shape, tuple(map(str, range(classes))) or None, ()
        )
    recipe, _, labels, *_ = read_layout(layout)
    return Elsewhere.of(
        kit.federation,
        clients_of(kit),
        (len(recipe.columns),),
        None if labels is None else tuple(labels),
        recipe.columns,
    )


def clients_of(kit: Kit) -> tuple[str, ...]:
    return tuple(p for p in kit.parties if p != kit.server)


def coordinate(
    kit: Kit,
    job: str | Path,
    *,
    changes: list[str] | None = None,
    deadline: float | None = None,
    at_least: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    watch: Callable[[Event], None] | None = None,
    patience: float = 300.0,
    on_link: Callable[[Link], None] | None = None,
    tree: Edge | Top | None = None,
    over_select: float = 1.0,
) -> Result:
    """Run the server's part of a run across organizations; clients are started by their owners.

    `on_link` is called with the connection to the hub, for those who watch it. `tree` makes this server an
    edge below another one, or the one above edges (tree.py).
    """
    if kit.role != "server":
        raise BadKit(
            f"this is the kit of {kit.name!r} (a {kit.role}); a job is run with the server's kit. A client "
            "gives --data."
        )
    layout, options = read(job, changes, read_approved(kit.directory))
    table = layout_of(layout, options)
    runtime = check(Deployed(kit, table, deadline, at_least, patience, over_select, tree, on_link))
    seen = Ledger()
    with toml.named(job), record_command(kit.directory, seen, "party", kit.name):
        result = train(
            federation(kit, layout, options),
            **options,
            runtime=runtime,
            out=out,
            resume=resume,
            data_job=layout,
            watch=watch,
        )
        seen.merge(result.ledger)
    return result


def agreement(kit: Kit, path: str | Path | None) -> Agreement:
    """What a party holds a server's contract against: that of its job file; without one, the default
    limits.
    """
    approved = read_approved(kit.directory)
    ours = Agreement(
        kit.federation,
        kit.server,
        clients_of(kit),
        above=kit.above,
        lifetime=read_lifetime(kit.directory),
        approved=approved,
        read_template=lambda file: _agreed_contract(kit, file, approved).tables,
    )
    if path is None:
        return ours
    return replace(ours, agreed=_agreed_contract(kit, path, approved), source=str(path))


def _agreed_contract(kit: Kit, path: str | Path, approved: Approved) -> Contract:
    """The contract of a job file, as the server of this federation would offer it."""
    layout, options = read(path, approved=approved)
    fed, table = federation(kit, layout, options), layout_of(layout, options)
    with toml.named(path):
        p = make_plan(fed, **options, runtime=Deployed(kit, table))
    return Contract.of(p, table, kit.server, list(fed.rows.x.shape[1:]), kit.above)


def layout_of(layout: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layout of the parties' tables; empty where scripts of their own read the rows."""
    return {} if options.get("client") is not None else layout


def take_part(
    kit: Kit,
    data: str | Path | None,
    state: str | Path | None = None,
    patience: float = 300.0,
    agreed: str | Path | None = None,
    device: str = "cpu",
    again: bool = False,
    watch: Callable[[dict[str, Any]], None] = lambda event: None,
    loop: Exchange | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a client's part until the server ends the run; return what it contributed and saw.

    `agreed` is a job file: a server with another contract is refused before this party's data are read.
    Without one, default limits apply. `device` is where this party trains. `again` allows one more run of a
    job in the clear that this party has answered before. `watch` is called with what happens: {"kind":
    "waiting", "accepted", "prepared" or "answered", "sent", "received", …}. `loop` leads to a training loop
    of this party's own, which reads its rows itself: `data` is then None. `reading`: separator, decimal and
    encoding of `data`, where they are not those of the job.
    """
    if kit.role != "client":
        raise BadKit(f"this is the kit of {kit.name!r} (a {kit.role}); --data is given with a client's kit.")
    device, ours = device_for("party", device), agreement(kit, agreed)
    folder = Path(state) if state is not None else (kit.directory or Path(".")) / "state"
    owner = Owner.of(kit)
    read_eligibility(kit.directory)  # a mistake in it is reported before the party connects

    seen = Ledger()

    async def connected() -> tuple[Link, dict[str, Any]]:
        async with Link(kit, patience=patience, version=__version__, needs=(kit.server,)) as link:

            def show(event: dict[str, Any]) -> None:
                received = sum(line.bytes for line in link.mailbox.ledger.seen)
                watch({**event, "sent": link.sent_bytes, "received": received})

            show({"kind": "waiting", "server": kit.server})
            try:
                contributed = await link.run(
                    lambda me: member(
                        me,
                        data={} if data is None else {"table": str(data), **(reading or {})},
                        state=str(folder),
                        boss=kit.server,
                        agreement=ours,
                        device=device,
                        again=again,
                        watch=show,
                        loop=loop,
                        owner=owner,
                    )
                )
            finally:
                seen.merge(link.mailbox.ledger)
            return link, contributed

    with record_command(kit.directory, seen, "party", kit.name):
        link, contributed = asyncio.run(connected())
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "ledger.json", json.dumps(seen.to_dict(), indent=1))
    return {
        "party": kit.name,
        "state": str(folder),
        **contributed,
        "sent": link.sent_bytes,
        "received": sum(line.bytes for line in seen.seen),
        "connections": link.connections,
        "noticed": link.notes,
        "ledger": seen.to_dict(),
    }


def check_party(
    kit: Kit,
    job: str | Path | None,
    data: str | Path | None,
    reading: Mapping[str, Any] | None = None,
) -> list[tuple[str, str]]:
    """Check everything that can be known before a run; return (what was checked, "" or the problem)."""
    if kit.role == "hub":
        raise BadKit("this is the hub's kit, which is no party. Run it with `tacit hub`.")
    checks = [("kit", "")]
    fatal, why = reach(kit)
    checks.append((f"hub at {kit.address}", why))
    if not why:
        why, present = check_admission(kit)
        checks.append((f"certificate of {kit.name}", why))
        other = present.get(kit.server, "")
        if kit.server in present and kit.name != kit.server:
            checks.append(
                (
                    f"server {kit.server}, which is connected",
                    ""
                    if other == __version__
                    else f"it runs tacit {other or 'of an unknown version'}, and this machine "
                    f"{__version__}. Install the same version at all parties.",
                )
            )
    if job is not None:

        def look() -> PartyTable | None:
            layout, options = read(job, approved=read_approved(kit.directory))
            through = Deployed(kit, layout_of(layout, options))
            plan = make_plan(federation(kit, layout, options), **options, runtime=through)
            make_task(plan)
            if data is None:
                return None
            is_private = plan.private is not None
            table = read_party_table(kit.name, data, layout, plan.seed, is_private, plan.subgroups, reading)
            table.encode()
            return table

        try:
            table = look()
            checks.append((f"job {job}" + (f" with {data}" if data is not None else ""), ""))
            if table is not None and table.is_small:
                few = f"{data} has fewer than {table.agreed.min_rows} rows (min_rows)"
                checks.append((f"{few}: this party will contribute none (small = 'drop')", ""))
            agreed = agreement(kit, job).agreed
            assert agreed is not None
            checks.append((f"{agreed.describe()} (the same number at every party with this job file)", ""))
        except TacitError as error:
            checks.append((f"job {job}" + (f" with {data}" if data is not None else ""), str(error)))
    elif data is not None:
        checks.append((f"data {data}", "" if Path(data).is_file() else f"there is no file {data}."))
    if fatal:
        raise NoHub(why)
    return checks
