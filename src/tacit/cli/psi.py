"""tacit psi: private set intersection of tables, between real parties or with two files here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BadParameter
from ..progress import Progress
from .verbs import FORCE, PATIENCE, READING, WAIT, Answer, answer, arg, reading_of


def add(verb: Callable[..., Any]) -> None:
    verb(
        "psi",
        _psi,
        "Find the records that your table and others' have in common, without showing the rest (private set "
        "intersection).",
        arg("--file", metavar="FILE.csv", help="your own table; it stays here (not with --prepared)"),
        arg("--id", metavar="COLUMN", help="the id column"),
        arg(
            "--out",
            metavar="FILE.csv",
            help="the file of shared rows, in an order common to all parties; the ledger is written next to "
            "it",
        ),
        FORCE,
        arg(
            "--scratch",
            metavar="DIR",
            help="with --kit: match on disk, in a private folder in this one that is removed at the end "
            "(default: tables above four million rows, or one million for size and sum, next to --out)",
        ),
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
        arg(
            "--prepare",
            metavar="DIR",
            help="without a kit: prepare --file, a large table, for many queries by others; writes a secret "
            "key.json and a table.psi for them",
        ),
        arg(
            "--prepared",
            metavar="DIR",
            help="with --kit and --with: answer one query by the other party with what --prepare wrote",
        ),
        arg(
            "--table",
            metavar="FILE.psi",
            help="with --kit and --with: ask the other party, whose table.psi this is, which of your ids it "
            "holds",
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
        *READING,
        WAIT,
        PATIENCE,
    )


def _psi(args: Any) -> Answer:
    if args.prepared is None and (args.file is None or args.id is None):
        raise BadParameter("psi: give --file and --id, your table and its id column.")
    if args.prepare is not None or args.prepared is not None or args.table is not None:
        return _psi_prepared(args)
    if (args.kit is None) == (args.tried is None):
        raise BadParameter(
            "psi: give either --kit to match with other parties, or --try with the other's file to run both "
            "parties here."
        )
    from ..jobs.vertical import psi_deployed
    from ..protocols.psi import LIMIT

    common = {
        "reveal": args.reveal or "both",
        "method": args.method,
        "values": args.values,
        "limit": LIMIT if args.limit is None else args.limit,
        "join": args.join,
        "out": args.out,
        "force": args.force,
        "policy": args.policy,
        "reading": reading_of(args),
    }
    if args.tried is not None:
        if args.scratch is not None:
            raise BadParameter("psi: --scratch is used with --kit only; with --try, ids are kept in memory.")
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
            scratch=args.scratch,
            **common,
        )
    return answer(value, _lines(value))


def _psi_prepared(args: Any) -> Answer:
    """The three commands with a prepared set."""
    from ..jobs.vertical import psi_prepared

    chosen = [k for k in ("prepare", "prepared", "table") if getattr(args, k) is not None]
    if len(chosen) > 1:
        raise BadParameter(f"psi: {' and '.join(f'--{k}' for k in chosen)} are separate commands. Give one.")
    unused = {
        "--try": args.tried,
        "--values": args.values,
        "--limit": args.limit,
        "--scratch": args.scratch,
        "--receiver": args.receiver,
        "--join": None if args.join == "inner" else args.join,
        "--method": None if args.method == "auto" else args.method,
        "--reveal": None if args.reveal in (None, "receiver") else args.reveal,
    }
    if wrong := [k for k, v in unused.items() if v is not None]:
        raise BadParameter(
            f"psi: {', '.join(wrong)} cannot be used with --{chosen[0]}: who has the table learns which of "
            "its own ids are in the prepared set."
        )
    if args.prepare is not None:
        if args.kit is not None or args.out is not None:
            raise BadParameter("psi: --prepare needs --file and --id only; it writes into its folder.")
        with Progress() as progress:
            progress.start("preparing")
            value = psi_prepared.prepare_file(
                args.file,
                args.id,
                args.prepare,
                lambda ids: progress.update(ids, f"{ids:,} ids"),
                reading_of(args),
            )
        return answer(
            value,
            [
                f"ids     {value['ids']}",
                f"table   {value['table']} (for who may ask)",
                f"secret  {value['folder']}/key.json (keep it here)",
            ],
        )
    if args.kit is None or len(args.others) != 1:
        raise BadParameter(f"psi: --{chosen[0]} needs --kit and --with, the one other party.")
    if args.prepared is not None and (args.file or args.id or args.out or reading_of(args)):
        raise BadParameter(
            "psi: --prepared needs no --file, --id or --out, and no option of a CSV file: the set is in its "
            "folder."
        )
    from .split import kit_of

    value = psi_prepared.match_prepared(
        kit_of(args.kit, "tacit psi --kit"),
        other=args.others[0],
        folder=args.prepared,
        file=args.file,
        id=args.id,
        table=args.table,
        out=args.out,
        force=args.force,
        policy=args.policy,
        wait=args.wait,
        patience=args.patience,
        reading=reading_of(args),
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
