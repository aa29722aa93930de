"""SPU's PSI, one process per role over its own sockets, with CSV files as it requires. Prints one line of JSON.

    python spu_psi.py PROTOCOL N            PROTOCOL is RR22, KKRT or ECDH

SPU does not report how many bytes it sent: they are those on the loopback interface, headers included, in a
separate network namespace if the system allows it (`unshare -n`, as root); otherwise null, because they would
include other programs' bytes.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


def carried() -> int:
    line = next(
        line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")
    )
    return int(line.split(":")[1].split()[0])


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def role(protocol: str, rank: int, folder: str, ports: list[str]) -> None:
    import spu.libspu as libspu
    import spu.psi as psi

    desc = libspu.link.Desc()
    for k, port in enumerate(ports):
        desc.add_party(f"p{k}", f"127.0.0.1:{port}")
    link = libspu.link.create_brpc(desc, rank)
    kind = psi.parse_protocol(f"PROTOCOL_{protocol}")
    settings = psi.PsiProtocolConfig(
        protocol=kind,
        receiver_rank=0,
        broadcast_result=False,
        ecdh_params=psi.EcdhParams(curve=psi.EllipticCurveType.CURVE_25519),
    )
    config = psi.PsiExecuteConfig(
        protocol_conf=settings,
        input_params=psi.InputParams(path=f"{folder}/{rank}.csv", selected_keys=["id"], keys_unique=True),
        output_params=psi.OutputParams(path=f"{folder}/out{rank}.csv", disable_alignment=True),
    )
    begun, before = cpu(), carried()
    report = psi.psi_execute(config, link)
    print(
        "done",
        json.dumps({"cpu": cpu() - begun, "bytes": carried() - before, "shared": report.intersection_count}),
    )


def main() -> None:
    if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip") and "alone" not in sys.argv:
        os.execvp(
            "unshare",
            [
                "unshare",
                "-n",
                "sh",
                "-c",
                'ip link set lo up && exec "$@"',
                "sh",
                sys.executable,
                *sys.argv,
                "alone",
            ],
        )
    protocol, n = sys.argv[1], int(sys.argv[2])
    sockets = [socket.socket() for _ in range(2)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [str(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    with tempfile.TemporaryDirectory() as folder:
        for rank, start in enumerate((0, n // 2)):
            Path(folder, f"{rank}.csv").write_text(
                "id\n" + "\n".join(f"id{i}" for i in range(start, start + n)) + "\n"
            )
        roles = [
            subprocess.Popen(
                [sys.executable, __file__, "role", protocol, str(rank), folder, *ports],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=folder,
                env={**os.environ},
            )
            for rank in range(2)
        ]
        told = [
            json.loads(next(line for line in r.communicate()[0].splitlines() if line.startswith("done "))[5:])
            for r in roles
        ]
    carried_by_both = max(t["bytes"] for t in told) if "alone" in sys.argv else None
    print(
        json.dumps(
            {"cpu": told[0]["cpu"] + told[1]["cpu"], "bytes": carried_by_both, "shared": told[0]["shared"]}
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "role":
        role(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5:])
    else:
        main()
