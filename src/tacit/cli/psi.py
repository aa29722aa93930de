"""tacit psi: which rows of my table do the others hold, too? Between real parties, or tried out with two
files at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadParameter
from ..files import check_free


def add(verb: Callable[..., Any]) -> None:
    made = verb(
        "psi",
        _psi,
        "Find the people whom your table shares with others', without showing the rest (private set "
        "intersection).",
    )
    made.add_argument("--file", required=True, metavar="FILE.csv", help="your own table; it stays here")
    made.add_argument("--id", required=True, metavar="COLUMN", help="the column that says who a row is about")
    made.add_argument(
        "--out",
        metavar="FILE.csv",
        help="where the shared rows go, in the order that everybody's have; the ledger goes beside it",
    )
    made.add_argument("--force", action="store_true", help="write over files that are there")
    made.add_argument(
        "--kit",
        metavar="DIR",
        help="your start kit: match with other parties, each of whom runs the same command with its own kit "
        "and file",
    )
    made.add_argument(
        "--with",
        nargs="+",
        default=[],
        metavar="PARTY",
        dest="others",
        help="whom to match with (default: all clients of the federation)",
    )
    made.add_argument(
        "--receiver", metavar="PARTY", help="who leads and learns the result (default: the first by name)"
    )
    made.add_argument(
        "--try",
        metavar="FILE.csv",
        dest="tried",
        help="without a kit: play both sides here, this file being the other's",
    )
    made.add_argument(
        "--reveal",
        default="both",
        metavar="WHAT",
        help="both: everyone learns which of its own ids all share; receiver: only the receiver "
        "does; size: only how many; sum: how many, and the sum of the sender's --values over them (default: "
        "both)",
    )
    made.add_argument(
        "--values", metavar="COLUMN", help="with --reveal sum, at the sender: a column of whole numbers"
    )
    made.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="with --reveal sum: the largest value there may be; all must say the same (default: 4294967295)",
    )
    made.add_argument(
        "--method",
        default="auto",
        metavar="NAME",
        help="auto, dh (Diffie-Hellman) or oprf (large sets); all must say the same (default: auto)",
    )
    made.add_argument(
        "--policy",
        metavar="FILE.toml",
        help="what you let a receiver ask, in a [psi] table: reveal, min_ids, min_overlap, max_ids, "
        "queries_per_day (default: policy.toml in the kit; without one, counts and sums need 10 shared ids, "
        "and 10 queries a day are answered)",
    )
    made.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="how long to wait for the others to begin (default: for ever)",
    )
    made.add_argument(
        "--patience",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long to keep trying when the hub cannot be reached, or another party has gone (default: "
        "300)",
    )


def _psi(args: Any) -> tuple[Any, Callable[[Any], None]]:
    if (args.kit is None) == (args.tried is None):
        raise BadParameter(
            "psi: give --kit to match with other parties, or --try with the other's file to play both sides "
            "here; one of the two."
        )
    if args.out is not None:
        for made in (args.out, f"{args.out}.ledger.json"):
            check_free(made, args.force, [args.file, *([] if args.tried is None else [args.tried])])
    from ..jobs.vertical import psi_deployed
    from ..protocols.psi import LIMIT

    common = {
        "reveal": args.reveal,
        "method": args.method,
        "values": args.values,
        "limit": LIMIT if args.limit is None else args.limit,
        "out": args.out,
        "policy": args.policy,
    }
    if args.tried is not None:
        value = psi_deployed.match_here(args.file, args.tried, args.id, **common)
    else:
        from ..runtimes.processes import need_net

        need_net("tacit psi --kit")
        from ..runtimes import kits
        from .party import logs

        logs()
        value = psi_deployed.match_with(
            kits.load(args.kit),
            args.file,
            args.id,
            others=args.others,
            receiver=args.receiver,
            wait=args.wait,
            patience=args.patience,
            **common,
        )
    return value, lambda console: console.print(
        "\n".join(_lines(value)), highlight=False, markup=False, soft_wrap=True
    )


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
