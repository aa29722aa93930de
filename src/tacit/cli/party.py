"""tacit party: take part in a federation, as its server or as a client. tacit simulate-parties: all of it on
this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import BadParameter, BadRun


def add(verb: Callable[..., Any]) -> None:
    made = verb(
        "party",
        _party,
        "Take part in a federation: coordinate a job (server), or train on your own file (client).",
    )
    made.add_argument(
        "job",
        nargs="?",
        help="a job file (TOML): what the server runs; for a client, what it agreed to: any other job is "
        "refused "
        "before its data are read (without one, default limits apply)",
    )
    made.add_argument("--kit", required=True, metavar="DIR", help="your start kit")
    made.add_argument("--data", metavar="FILE", help="client: your own .csv or .parquet file; it stays here")
    made.add_argument(
        "--state",
        metavar="DIR",
        help="client: where it remembers what it needs from round to round (default: state in the kit)",
    )
    made.add_argument(
        "--device", metavar="NAME", help="client: where it trains: cpu, cuda or auto (default: cpu)"
    )
    made.add_argument(
        "--again",
        action="store_true",
        help="client: allow one more run of a job that this party has answered before (never of a hidden "
        "sum)",
    )
    made.add_argument(
        "--check", action="store_true", help="look whether everything is in place, and start nothing"
    )
    made.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help="server: how long a round waits for answers (default: for everyone, for ever)",
    )
    made.add_argument(
        "--at-least",
        type=int,
        metavar="N",
        help="server: with how many answers a round goes on after the deadline (default: all)",
    )
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        dest="changes",
        help="server: change a value of the job file",
    )
    where = made.add_mutually_exclusive_group()
    where.add_argument(
        "--out", metavar="DIR", help="server: where the run is kept (default: a new directory in runs/)"
    )
    where.add_argument("--resume", metavar="DIR", help="server: go on with a run that was stopped")
    made.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to keep trying when the hub cannot be reached (default: 300)",
    )
    made.add_argument("--quiet", action="store_true", help="no progress and no summary")
    many = verb(
        "simulate-parties",
        _simulate,
        "Run a job with a real process for each party and for the hub, all on this machine.",
    )
    many.add_argument("job", help="a job file (TOML), as for `tacit run`")
    many.add_argument(
        "--out", metavar="DIR", help="where the run is kept (default: a new directory in runs/)"
    )
    many.add_argument(
        "--deadline",
        type=float,
        metavar="SECONDS",
        help="how long a round waits for answers (default: for everyone)",
    )
    many.add_argument(
        "--at-least",
        type=int,
        metavar="N",
        help="with how many answers a round goes on after the deadline (default: all)",
    )
    many.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        dest="changes",
        help="change a value of the job file",
    )
    many.add_argument("--quiet", action="store_true", help="no progress and no summary")


def logs() -> None:
    """What happens to connections, on stderr: an operator reads it when something is wrong."""
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")


def _party(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from ..runtimes.processes import need_net

    need_net("tacit party")
    from ..jobs.train import deployed
    from ..runtimes import kits

    kit = kits.load(args.kit)
    if args.check:
        return _check(args, deployed.check_party(kit, args.job, args.data))
    if kit.role == "hub":
        raise BadParameter(f"party: {args.kit} is the hub's kit. Run it with `tacit hub --kit {args.kit}`.")
    logs()
    if kit.role == "client":
        if args.data is None:
            raise BadParameter(
                f"party: {kit.name!r} is a client, so it takes --data. Give --data with your own file; with "
                "a job as well, the server's must be "
                "that job."
            )
        for name in ("deadline", "at_least", "out", "resume"):
            if getattr(args, name) is not None:
                raise BadParameter(
                    f"party: --{name.replace('_', '-')} is the server's, and {kit.name!r} is a client. "
                    "Leave it out."
                )
        value = deployed.take_part(
            kit, args.data, args.state, args.patience, args.job, args.device or "cpu", args.again
        )
        text = f"the run is over; what {kit.name} saw and remembers is in {value['state']}"
        return value, lambda console: console.print(text, highlight=False, markup=False, soft_wrap=True)
    if args.data is not None or args.state is not None or args.device is not None or args.again:
        raise BadParameter(
            f"party: {kit.name!r} is the server, which has no rows of its own. Leave out --data, --state, "
            "--device and --again."
        )
    if args.job is None:
        raise BadParameter("party: the server needs a job. Give a job file (`tacit party --kit … job.toml`).")
    return _coordinate(args, kit, deployed)


def _coordinate(args: Any, kit: Any, deployed: Any) -> tuple[Any, Callable[[Any], None]]:
    from . import _out
    from .progress import Watch, summary

    out = Path(args.resume) if args.resume is not None else _out(args)
    if args.resume is not None and not (out / "job.toml").exists():
        raise BadRun(f"{out} holds no run to resume: there is no job.toml in it. Start it with --out.")
    rounds = deployed.read(args.job, args.changes)[1].get("rounds", 0)
    with Watch(args.quiet, rounds=rounds) as watch:
        result = deployed.coordinate(
            kit,
            args.job,
            changes=args.changes,
            deadline=args.deadline,
            at_least=args.at_least,
            out=out,
            resume=args.resume is not None,
            watch=watch,
            patience=args.patience,
        )
    return _told(result, out, summary)


def _told(result: Any, out: Path, summary: Any) -> tuple[Any, Callable[[Any], None]]:
    report = result.report(out / "report.html")
    dropped = {e["round"]: e["dropped"] for e in result.history if "dropped" in e}
    value = {
        "run": str(out),
        "report": str(report),
        "metrics": result.metrics,
        "history": result.history,
        "dropped": dropped,
        "notes": [e["text"] for e in result.events if e["kind"] == "note"],
        "ledger": result.ledger.to_dict(),
        "job": result.config,
    }
    lines = [
        summary(result.metrics),
        *(f"round {r} went on without {', '.join(who)}" for r, who in dropped.items()),
        f"run     {out}",
        f"report  {report}",
    ]
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )


def _check(args: Any, found: list[tuple[str, str]]) -> tuple[Any, Callable[[Any], None]]:
    args.code = 2 if any(why for _, why in found) else 0
    lines = [f"{'✗' if why else '✓'} {what}" + (f": {why}" if why else "") for what, why in found]
    return {
        "ok": not args.code,
        "checks": [{"what": what, "wrong": why or None} for what, why in found],
    }, lambda console: console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _simulate(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from ..runtimes.processes import need_net

    need_net("tacit simulate-parties")
    import tacit

    from ..config import job as config
    from ..config.toml import named
    from ..parameters import check
    from ..runtimes.processes import Processes
    from . import _out
    from .progress import Watch, summary

    job = config.load(args.job, args.changes)
    told, out = job.train(), _out(args)
    (fed,) = job.federations()
    told |= {"runtime": check(Processes(deadline=args.deadline, at_least=args.at_least))}
    with Watch(args.quiet, rounds=told.get("rounds", 0)) as watch, named(job.file):
        result = tacit.train(fed, **told, out=out, watch=watch)
    return _told(result, out, summary)
