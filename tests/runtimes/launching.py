"""Start the ranks of a job as torchrun does: real processes, which meet at a store of the test's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from tests import warm


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return what torchrun sets for a rank; the store has a port that the kernel chose."""
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",  # the name of a container need not resolve
        "OMP_NUM_THREADS": "1",
    }


class Ranks:
    """The processes of `size` ranks that run one Python program."""

    def __init__(
        self, argv: Sequence[str], size: int, cwd: Path, more: Mapping[int, Mapping[str, str]] | None = None
    ):
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300)
        )
        self.processes = [
            warm.Popen(
                [sys.executable, *argv],
                cwd=cwd,
                env={**environment(q, size, self.store.port), **(more or {}).get(q, {})},
                stdin=warm.DEVNULL,
                stdout=warm.PIPE,
                stderr=warm.PIPE,
                text=True,
            )
            for q in range(size)
        ]

    def wait(self) -> list[tuple[int, str, str]]:
        """Return (exit code, stdout, stderr) of each rank."""
        ends = [p.communicate(timeout=300) for p in self.processes]
        return [(p.wait(), out, err) for p, (out, err) in zip(self.processes, ends)]


def run_ranks(
    argv: Sequence[str], size: int, cwd: Path, more: Mapping[int, Mapping[str, str]] | None = None
) -> list[tuple[int, str, str]]:
    return Ranks(argv, size, cwd, more).wait()
