"""tacit provision: an authority, certificates, and a start kit for each party."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add(verb: Callable[..., Any]) -> None:
    made = verb(
        "provision",
        _provision,
        "Make the certificates of a federation and a start kit for each of its parties.",
    )
    made.add_argument(
        "federation", metavar="federation.toml", help='name = "…", hub = "host:port", clients = ["…"]'
    )
    made.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default="kits",
        help="where the kits are (default: kits); what is there stays",
    )
    made.add_argument(
        "--revoke",
        metavar="NAME",
        action="append",
        default=[],
        help="shut a party out: its certificate no longer counts",
    )


def _provision(args: Any) -> tuple[Any, Callable[[Any], None]]:
    from ..runtimes.processes import need_net

    need_net("tacit provision")
    from ..runtimes.provision import provision, read_federation_file

    value = provision(read_federation_file(args.federation), args.output, tuple(args.revoke))
    lines = [
        f"federation  {value['federation']}",
        *(f"made        {args.output}/{n}" for n in value["made"]),
        *(f"kept        {args.output}/{n}" for n in value["kept"]),
        *(f"revoked     {n}" for n in value["revoked"]),
    ]
    if value["made"]:
        lines += [
            "",
            f"Hand each folder to its party, over a way you trust. {args.output}/authority is yours alone: "
            "with it anyone can make certificates.",
        ]
    if args.revoke:
        lines += [
            "",
            f"Copy {args.output}/hub/revoked.crl into the hub's kit; the hub takes it over within seconds.",
        ]
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )
