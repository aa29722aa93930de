"""tacit nats: write the configuration of a NATS server that several federations share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .verbs import Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "nats",
        _nats,
        "Write the configuration of a NATS server that several federations share.",
        arg(
            "members",
            nargs="*",
            metavar="members.json",
            help="of a federation that is new or has changed, as `tacit provision` writes it",
        ),
        arg(
            "-o",
            "--output",
            metavar="DIR",
            default="nats",
            help="the folder of the server (default: nats); its certificate is kept",
        ),
        arg(
            "--host",
            metavar="NAMES",
            help="make the server's certificate, for these names or addresses (with commas)",
        ),
        arg(
            "--listen",
            metavar="ADDRESS:PORT",
            help="where to accept connections (default: 0.0.0.0:4222); overwrites nats.conf",
        ),
    )


def _nats(args: Any) -> Answer:
    from ..runtimes.processes import need_net

    need_net("tacit nats")
    from ..runtimes.nats_sharing import write_server

    hosts = tuple(host.strip() for host in (args.host or "").split(",") if host.strip())
    value = write_server(args.output, args.members, hosts, args.listen)
    lines = []
    if value["hosts"]:
        lines += [f"made        {args.output}/server/server.crt, for {', '.join(value['hosts'])}"]
    for each in value["federations"]:  # a name from outside may have line breaks and escape codes
        name = each["name"] if each["name"].isprintable() else ascii(each["name"])
        lines.append(f"federation  {name}, {each['parties']} parties")
    lines.append("")
    if value["federations"]:
        lines.append(
            f"Run the NATS server in {args.output}/server: nats-server -c nats.conf. If it runs already: "
            "nats-server --signal reload."
        )
    else:
        lines.append(
            f"Give {args.output}/authority/authority.crt to each federation, whose file names it: shared = "
            '"authority.crt". Then give this command the members.json of each.'
        )
    return answer(value, lines)
