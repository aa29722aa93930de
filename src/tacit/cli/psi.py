"""tacit psi: private set intersection of tables, between real parties or with two files here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadParameter
from .verbs import FORCE, PATIENCE, WAIT, Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "psi",
        _psi,
        "Find the records that your table and others' have in common, without showing the rest (private set "
        "intersection).",
        arg("--file", required=True, metavar="FILE.csv", help="your own table; it stays here"),
        arg("--id", required=True, metavar="COLUMN", help="the id column"),
        arg(
            "--out",
            metavar="FILE.csv",
            help="the file of shared rows, in an order common to all parties; the ledger is written next to "
            "it",
        ),
        FORCE,
        arg(
            "--kit",
            metavar="DIR",
            help="your start kit: match with other parties, each of which runs the same command with its own "
            "kit and file",
        ),
        arg(
            "--with",
            nargs="+",
            default=[],
            metavar="PARTY",
            dest="others",
            help="the parties to match with (default: all clients of the federation)",
        ),
        arg(
            "--receiver",
            metavar="PARTY",
            help="the party that learns the result (default: the first by name)",
        ),
        arg(
            "--try",
            metavar="FILE.csv",
            dest="tried",
            help="without a kit: run both parties here, with this file as the other's",
        ),
        arg(
            "--reveal",
            default="both",
            metavar="WHAT",
            help="both: all parties learn which of their own ids are shared; receiver: only the receiver "
            "does; size: only their number; sum: their number, and the sum of the sender's --values over "
            "them (default: both)",
        ),
        arg(
            "--join",
            default="inner",
            metavar="HOW",
            help="inner: only shared rows; left, for two parties: the receiver keeps its other rows as well, "
            "after the shared ones, where the other party writes empty cells (default: inner)",
        ),
        arg("--values", metavar="COLUMN", help="with --reveal sum, at the sender: a column of whole numbers"),
        arg(
            "--limit",
            type=int,
            metavar="N",
            help="with --reveal sum: the largest value, the same at all parties (default: 4294967295)",
        ),
        arg(
            "--method",
            default="auto",
            metavar="NAME",
            help="auto, dh (Diffie-Hellman) or oprf (large sets), the same at all parties (default: auto)",
        ),
        arg(
            "--policy",
            metavar="FILE.toml",
            help="the queries you allow, in a [psi] table: reveal, min_ids, min_overlap, max_ids, "
            "queries_per_day (default: policy.toml in the kit; without one, counts and sums need 10 shared "
            "ids, and 10 queries a day are answered)",
        ),
        WAIT,
        PATIENCE,
    )


def _psi(args: Any) -> Answer:
    if (args.kit is None) == (args.tried is None):
        raise BadParameter(
            "psi: give either --kit to match with other parties, or --try with the other's file to run both "
            "parties here."
        )
    from ..jobs.vertical import psi_deployed
    from ..protocols.psi import LIMIT

    common = {
        "reveal": args.reveal,
        "method": args.method,
        "values": args.values,
        "limit": LIMIT if args.limit is None else args.limit,
        "join": args.join,
        "out": args.out,
        "force": args.force,
        "policy": args.policy,
    }
    if args.tried is not None:
        value = psi_deployed.match_here(args.file, args.tried, args.id, **common)
    else:
        from .split import kit_of

        value = psi_deployed.match_with(
            kit_of(args.kit, "tacit psi --kit"),
            args.file,
            args.id,
            others=args.others,
            receiver=args.receiver,
            wait=args.wait,
            patience=args.patience,
            **common,
        )
    return answer(value, _lines(value))


def _lines(value: dict[str, Any]) -> list[str]:
    mine, shared = value["sizes"][value["party"]], value["shared"]
    others = ", ".join(f"{name} {n}" for name, n in value["sizes"].items() if name != value["party"])
    lines = [f"note    {note}" for note in value["notes"]]
    lines.append(f"ids     {mine} here; {others}")
    lines.append("shared  " + ("known to the receiver only" if shared is None else str(shared)))
    if value["sum"] is not None:
        lines.append(f"sum     {value['sum']}")
    lines += [
        f"{word:7} {value[key]}"
        for word, key in (("rows", "out"), ("ledger", "ledger_file"), ("ledger", "ledger_of_party"))
        if key in value
    ]
    lines += [
        f"learned {line['party']}: {line['reveals']}"
        for line in value["ledger"]["seen"]
        if line["kind"] == "Conclusion"
    ]
    return lines
