"""tacit provision: create an authority, certificates, and a start kit for each party."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .verbs import Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "provision",
        _provision,
        "Create the certificates of a federation and a start kit for each of its parties.",
        arg("federation", metavar="federation.toml", help='name = "…", hub = "host:port", clients = ["…"]'),
        arg(
            "-o",
            "--output",
            metavar="DIR",
            default="kits",
            help="the folder of the kits (default: kits); existing kits are kept",
        ),
        arg(
            "--revoke",
            metavar="NAME",
            action="append",
            default=[],
            help="exclude a party by revoking its certificate",
        ),
    )


def _provision(args: Any) -> Answer:
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
    if value["shared"]:
        lines += [
            "",
            f"Send {args.output}/members.json, which has no secret, to the operator of the NATS server, for "
            "`tacit nats`.",
        ]
    elif value["nats"] and value["made"]:
        lines += ["", f"Run the NATS server in {args.output}/hub: nats-server -c nats.conf"]
    if args.revoke:
        if value["shared"]:
            text = "The operator's `tacit nats` excludes them. Copy"
        elif value["nats"]:
            text = (
                f"Copy {args.output}/hub/nats.conf to the NATS server and have it reload (nats-server "
                "--signal reload); copy"
            )
        else:
            text = (
                f"Copy {args.output}/hub/revoked.crl into the hub's kit; the hub applies it within seconds."
            )
        if value["nats"]:
            text += (
                " revoked.crl into the server's kit and restart the server: parties learn the list from it."
            )
        lines += ["", text]
    return answer(value, lines)
