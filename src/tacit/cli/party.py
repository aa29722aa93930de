"""tacit party: take part in a federation, as its server or as a client. tacit simulate-parties: all of it on
this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadParameter
from .logs import LOG, MONITOR, log_event, start_logs
from .verbs import (
    CHANGES,
    DATA,
    PATIENCE,
    QUIET,
    READING,
    SET,
    STATE,
    Answer,
    answer,
    arg,
    one_of,
    reading_of,
)

if TYPE_CHECKING:
    from ..results import Result


def add(verb: Callable[..., Any]) -> None:
    verb(
        "party",
        _party,
        "Take part in a federation: coordinate a job (server), or train on your own file (client).",
        arg(
            "job",
            nargs="?",
            help="a job file (TOML): what the server runs; for a client, what it agreed to: any other job is "
            "refused "
            "before its data are read (without one, default limits apply)",
        ),
        arg("--kit", required=True, metavar="DIR", help="your start kit"),
        DATA,
        *READING,
        arg(
            "--script",
            metavar="FILE",
            help="client: your own training script, which asks for tasks with tacit.client (not with --data)",
        ),
        arg(
            "--script-arg",
            dest="script_args",
            action="append",
            metavar="TEXT",
            help="client: an argument of the script; may be given several times",
        ),
        STATE,
        arg("--device", metavar="NAME", help="client: where it trains: cpu, cuda or auto (default: cpu)"),
        arg(
            "--again",
            action="store_true",
            help="client: allow one more run of a job that this party has answered before (never of a hidden "
            "sum)",
        ),
        arg("--check", action="store_true", help="check whether everything is in place, and start nothing"),
        arg(
            "--deadline",
            type=float,
            metavar="SECONDS",
            help="server: how long a round waits for answers (default: forever)",
        ),
        arg(
            "--at-least",
            type=int,
            metavar="N",
            help="server: how many answers a round needs after the deadline (default: all)",
        ),
        arg(
            "--over-select",
            type=float,
            metavar="F",
            help="server: ask F times the parties of a round, and continue with the first ones that answer, "
            "as many as the round has (with --deadline)",
        ),
        arg(
            "--under",
            metavar="KIT",
            help="server: this is an edge; its kit in the federation above, whose server averages the edges",
        ),
        arg(
            "--edges",
            action="store_true",
            help="server: this is the server above edges, which are the clients of this kit",
        ),
        arg(
            "--period",
            type=int,
            metavar="N",
            help="with --under and --edges: rounds of the edges between two exchanges (default: 1)",
        ),
        arg(
            "--max-weight",
            type=float,
            metavar="ROWS",
            help="with --edges: the most rows (clients, under a hidden sum) behind an edge in a round; an "
            "edge that claims more is left out",
        ),
        CHANGES,
        one_of(
            arg(
                "--out",
                metavar="DIR",
                help="server: directory of the run (default: a new directory in runs/)",
            ),
            arg("--resume", metavar="DIR", help="server: resume a run that was stopped"),
        ),
        PATIENCE,
        MONITOR,
        LOG,
        QUIET,
    )
    verb(
        "simulate-parties",
        _simulate,
        "Run a job with a real process for each party and for the hub, all on this machine.",
        arg("job", help="a job file (TOML), as for `tacit run`"),
        arg("--out", metavar="DIR", help="directory of the run (default: a new directory in runs/)"),
        arg(
            "--deadline",
            type=float,
            metavar="SECONDS",
            help="how long a round waits for answers (default: forever)",
        ),
        arg(
            "--at-least",
            type=int,
            metavar="N",
            help="how many answers a round needs after the deadline (default: all)",
        ),
        SET,
        QUIET,
    )


def _party(args: Any) -> Answer:
    from ..runtimes.processes import need_net

    need_net("tacit party")
    from ..jobs.train import deployed
    from ..runtimes import kits
    from .progress import ClientWatch

    kit = kits.load(args.kit)
    if kit.role == "hub":
        raise BadParameter(
            f"party: {args.kit} is the hub's kit, which is no party. Run it with `tacit hub --kit "
            f"{args.kit}`."
        )
    if args.check:
        return _check(args, deployed.check_party(kit, args.job, args.data, reading_of(args)))
    start_logs(args.log)
    if kit.role == "client":
        if args.script is not None:
            return _run_script(args, kit)
        if args.data is None:
            raise BadParameter(
                f"party: {kit.name!r} is a client, so it takes --data. Give --data with your own file; with "
                "a job as well, the server's must be "
                "that job. Or give --script with your own training script."
            )
        for name in (
            "deadline",
            "at_least",
            "over_select",
            "out",
            "resume",
            "monitor",
            "under",
            "edges",
            "period",
            "max_weight",
        ):
            if getattr(args, name):
                raise BadParameter(
                    f"party: --{name.replace('_', '-')} is the server's, and {kit.name!r} is a client. "
                    "Leave it out."
                )
        with ClientWatch(args.quiet) as watch:
            value = deployed.take_part(
                kit,
                args.data,
                args.state,
                args.patience,
                args.job,
                args.device or "cpu",
                args.again,
                watch,
                reading=reading_of(args),
            )
        return _contribution(value)
    if any(v is not None for v in (args.data, args.script, args.state, args.device)) or (
        args.again or reading_of(args)
    ):
        raise BadParameter(
            f"party: {kit.name!r} is the server, which has no rows of its own. Leave out --data, "
            "--separator, --decimal, --encoding, --script, --state, --device and --again."
        )
    if args.job is None:
        raise BadParameter("party: the server needs a job. Give a job file (`tacit party --kit … job.toml`).")
    return _coordinate(args, kit, deployed)


def _run_script(args: Any, kit: Any) -> Answer:
    from ..jobs.train import deployed
    from ..jobs.train.client import Client, run_script
    from .progress import ClientWatch

    if args.data is not None or args.device is not None or reading_of(args):
        raise BadParameter(
            "party: a script reads its own rows. Leave out --data, --separator, --decimal, --encoding and "
            "--device."
        )
    if args.job is None:
        raise BadParameter("party: a script needs the job that you agreed to. Give its job file.")
    with ClientWatch(args.quiet) as watch:
        party = Client(
            kit.name,
            lambda exchange: deployed.take_part(
                kit, None, args.state, args.patience, args.job, "cpu", args.again, watch, exchange
            ),
        )
        value = run_script(args.script, args.script_args or [], party)
    return _contribution(value)


def _contribution(value: dict[str, Any]) -> Answer:
    from ..release.release import read_release
    from .progress import client_lines

    if value["model"] is not None:  # people at different parties compare it: each had it from the server
        value["model_sha256"] = read_release(value["model"])[1]
    return answer(value, client_lines(value))


def _coordinate(args: Any, kit: Any, deployed: Any) -> Answer:
    from ..jobs.approved import read_approved
    from ..jobs.train.serving import ServerFigures
    from ..runtimes.monitoring import Monitor
    from . import _out, check_resume
    from .progress import Watch

    if args.resume is not None:
        check_resume(args, "party", "run", "job.toml")
    tree = _tree(args)
    out = _out(args) if args.resume is None else Path(args.resume)
    rounds = deployed.read(args.job, args.changes, read_approved(kit.directory))[1].get("rounds", 0)
    with ExitStack() as stack:
        watch = stack.enter_context(Watch(args.quiet or args.log == "json", rounds=rounds))
        figures = ServerFigures()
        if args.monitor is not None:
            stack.enter_context(
                Monitor(args.monitor, figures.metrics, figures.why_not_ready, figures.is_alive)
            )

        def show(event: dict[str, Any]) -> None:
            watch(event)
            figures.watch(event)
            if args.log == "json":
                log_event(event)

        result = deployed.coordinate(
            kit,
            args.job,
            changes=args.changes,
            deadline=args.deadline,
            at_least=args.at_least,
            out=out,
            resume=args.resume is not None,
            watch=show,
            patience=args.patience,
            on_link=figures.use,
            tree=tree,
            over_select=1.0 if args.over_select is None else args.over_select,
        )
    return _answer(result, out)


def _tree(args: Any) -> Any:
    """Return what makes this server a part of a hierarchy, if it is one."""
    from ..jobs.train.tree import Edge, Top
    from ..parameters import check
    from ..runtimes import kits

    if args.under is not None and args.edges:
        raise BadParameter("party: --under is for an edge, --edges for the server above. Give one of them.")
    if args.max_weight is not None and not args.edges:
        raise BadParameter("party: --max-weight is for the server above edges. Give --edges, too.")
    if args.period is not None and args.under is None and not args.edges:
        raise BadParameter("party: --period is for servers of a hierarchy. Give --under KIT or --edges, too.")
    period = 1 if args.period is None else args.period
    if args.edges:
        if args.max_weight is None:
            raise BadParameter(
                "party: with --edges give --max-weight, the most rows (with a hidden sum: clients) that an "
                "edge can have in a round. It bounds how far an edge that lies can move the model."
            )
        if args.deadline is not None or args.at_least is not None:
            raise BadParameter(
                "party: an exchange waits for all edges. Leave out --deadline and --at-least; edges may have "
                "them for their own parties."
            )
        return check(Top(period, args.max_weight))
    if args.under is None:
        return None
    kit = kits.load(args.under)
    if kit.role != "client":
        raise BadParameter(
            f"party: {args.under} is the kit of a {kit.role}. An edge is a client of the federation above: "
            "give that kit."
        )
    return check(Edge(kit, period))


def _answer(result: Result, out: Path) -> Answer:
    from ..release.release import has_release, read_release
    from . import answer_run
    from .progress import result_line

    digest = read_release(out)[1] if has_release(out) else None
    dropped = {e["round"]: e["dropped"] for e in result.history if "dropped" in e}
    lines = [f"round {r} continued without {', '.join(who)}" for r, who in dropped.items()]
    notes = [e["text"] for e in result.events if e["kind"] == "note"]
    return answer_run(
        result,
        out,
        notes,
        [result_line(result.metrics, result.metric, result.events), *lines],
        dropped=dropped,
        model_sha256=digest,
    )


def _check(args: Any, checks: list[tuple[str, str]]) -> Answer:
    args.code = 2 if any(why for _, why in checks) else 0
    lines = [f"{'✗' if why else '✓'} {what}" + (f": {why}" if why else "") for what, why in checks]
    return {
        "ok": not args.code,
        "checks": [{"what": what, "wrong": why or None} for what, why in checks],
    }, lambda console: console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _simulate(args: Any) -> Answer:
    from ..runtimes.processes import need_net

    need_net("tacit simulate-parties")
    import tacit

    from ..config import job as config
    from ..config.toml import named
    from ..parameters import check
    from ..runtimes.processes import Processes
    from . import _out
    from .progress import Watch

    job = config.load(args.job, args.changes)
    options, out = job.train(), _out(args)
    (fed,) = job.federations()
    options |= {"runtime": check(Processes(deadline=args.deadline, at_least=args.at_least))}
    with Watch(args.quiet, rounds=options.get("rounds", 0)) as watch, named(job.file):
        result = tacit.train(fed, **options, out=out, watch=watch)
    return _answer(result, out)
