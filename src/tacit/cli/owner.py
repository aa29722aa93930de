"""tacit party requests, approve, deny, log: what was asked of a party, and what its owner decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import BadParameter
from .terminal import grid
from .verbs import Answer, answer, arg

if TYPE_CHECKING:
    from ..jobs.owner import Owner

OWN = arg("--kit", required=True, metavar="DIR", help="your start kit")
JOB = arg("job", metavar="NUMBER", help="the first digits of the job's number, at least 8")
BY = arg("--by", default="", metavar="NAME", help="who decides (default: the user of this machine)")
NOTE = arg("--note", default="", metavar="TEXT", help="why, for the log")


def add(verb: Callable[..., Any]) -> None:
    verb(
        "party requests",
        _requests,
        "List the jobs that were asked of your party, or show one in full.",
        arg("job", nargs="?", metavar="NUMBER", help="show this job in full, by its first digits"),
        OWN,
        arg("--waiting", action="store_true", help="only those that wait for a decision"),
    )
    for kind, text in (
        ("approve", "Allow your party to take part in one job, and in no other."),
        ("deny", "Refuse a job; of one that runs, training and sums (stats, boost) are answered no more."),
    ):
        verb(f"party {kind}", _approve if kind == "approve" else _deny, text, JOB, OWN, BY, NOTE)
    verb(
        "party log",
        _log,
        "Show the audit log of your party: every request, decision, answer and refusal.",
        OWN,
        arg("--verify", action="store_true", help="check the chain of hashes instead, and print its head"),
        arg(
            "--head",
            metavar="HASH",
            help="with --verify: a head that was printed earlier and must still be in the log",
        ),
        arg("--last", type=int, metavar="N", help="only the last N entries"),
    )


def _owner(args: Any) -> Owner:
    from ..runtimes.processes import need_net

    need_net("tacit party")
    from ..jobs.owner import Owner
    from ..runtimes import kits

    kit = kits.load(args.kit)
    if kit.role == "hub":
        raise BadParameter(f"party: {args.kit} is the hub's kit, which is no party.")
    owner = Owner.of(kit)
    assert owner is not None
    return owner


def _requests(args: Any) -> Answer:
    owner = _owner(args)
    if args.job is not None:
        return _show_request(owner, owner.find(args.job))
    found = [r for r in owner.requests() if not args.waiting or r["state"] == "waiting"]

    def show(console: Any) -> None:
        if not found:
            console.print("nothing was asked" if not args.waiting else "no request waits for a decision")
            return
        rows = [
            [r["job"][:12], r["state"], r["asked"][:19].replace("T", " "), r["by"], r["about"]] for r in found
        ]
        console.print(grid(["job", "state", "asked (UTC)", "by", "what"], rows))

    return {"party": owner.party, "requests": found}, show


def _show_request(owner: Owner, digest: str) -> Answer:
    text = owner.text_of(digest)
    if text is None:
        raise BadParameter(f"job {digest[:12]}: it was not asked, so there is nothing to show.")
    (entry,) = [r for r in owner.requests() if r["job"] == digest]
    job = json.loads(text)
    lines = [f"job      {digest}", f"state    {entry['state']}", f"asked    {entry['asked']}"]
    lines += [f"by       {entry['by']}", f"what     {entry['about']}", "", json.dumps(job, indent=2)]
    return {**entry, "content": job}, answer(None, lines)[1]


def _approve(args: Any) -> Answer:
    return _decide(args, "approved")


def _deny(args: Any) -> Answer:
    return _decide(args, "denied")


def _decide(args: Any, kind: str) -> Answer:
    owner = _owner(args)
    digest = owner.find(args.job)
    owner.text_of(digest)  # raises if what people looked at is not what they decide about
    entry = owner.decide(digest, kind, args.by, args.note)
    return entry, answer(None, [f"{kind} {digest} by {entry['by']}", f"log head {entry['hash']}"])[1]


def _log(args: Any) -> Answer:
    owner = _owner(args)
    if args.head is not None and not args.verify:
        raise BadParameter("party log: --head is for --verify. Add it.")
    if args.verify:
        found = owner.log.verify(args.head)
        args.code = 2 if found.problems else 0
        lines = [f"\N{BALLOT X} {p}" for p in found.problems]
        if not lines:
            lines = [f"\N{CHECK MARK} {len(found.entries)} entries, each bound to the one before"]
        if not found.problems:
            lines += [
                f"head {found.head}",
                "Keep this head outside this machine. Only with it (--head) does a removed end, or a "
                "rewritten log, show.",
            ]
        args.result_lines = lines[:-1] if not found.problems else lines
        value = {"ok": not found.problems, "entries": len(found.entries), "head": found.head}
        return value | {"problems": list(found.problems)}, answer(None, lines)[1]
    entries = owner.log.verify().entries  # shown also if the chain is broken: --verify says so
    if args.last is not None:
        entries = entries[-max(0, args.last) :] if args.last else ()

    def show(console: Any) -> None:
        rows = [
            [
                str(e["n"]),
                str(e["time"])[:19].replace("T", " "),
                str(e["kind"]),
                str(e.get("job", ""))[:12],
                str(next((e[k] for k in ("about", "what", "reason", "by") if e.get(k)), "")),
            ]
            for e in entries
        ]
        console.print(grid(["n", "time (UTC)", "kind", "job", ""], rows))

    return {"party": owner.party, "entries": list(entries)}, show
