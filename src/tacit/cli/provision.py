"""tacit provision: create an authority, certificates, and a start kit for each party."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def add(verb: Callable[..., Any]) -> None:
    parser = verb(
        "provision",
        _provision,
        "Create the certificates of a federation and a start kit for each of its parties.",
    )
    parser.add_argument(
        "federation", metavar="federation.toml", help='name = "…", hub = "host:port", clients = ["…"]'
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default="kits",
        help="the folder of the kits (default: kits); existing kits are kept",
    )
    parser.add_argument(
        "--revoke",
        metavar="NAME",
        action="append",
        default=[],
        help="exclude a party by revoking its certificate",
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
            f"Give each folder to its party over a channel you trust. Keep {args.output}/authority secret: "
            "its key can issue certificates.",
        ]
    if args.revoke:
        lines += [
            "",
            f"Copy {args.output}/hub/revoked.crl into the hub's kit; the hub applies it within seconds.",
        ]
    return value, lambda console: console.print(
        "\n".join(lines), highlight=False, markup=False, soft_wrap=True
    )
