"""Ports for servers that a test starts later, or starts again, on the same address."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from pathlib import Path

# Below the ports that systems hand out by themselves (Linux: from 32768 on): between the moment a port is chosen
# and the moment its server listens, a connection of another process would get it, or a client that dials it in
# vain would be connected with itself.
FIRST, AFTER = 10_000, 30_000
CLAIMS = Path(tempfile.gettempdir()) / f"tacit-test-ports-{os.getuid()}"
_candidates = itertools.count(os.getpid() * 31)


def free_port() -> int:
    """Return a port on which nobody listens, and which no other test is given until this process ends."""
    CLAIMS.mkdir(exist_ok=True)
    for number in itertools.islice(_candidates, AFTER - FIRST):
        port = FIRST + number % (AFTER - FIRST)
        claim = os.open(CLAIMS / str(port), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system unlocks it when this process ends
            with socket.socket() as trial:
                trial.bind(("", port))
        except OSError:  # another test has it, or another program
            os.close(claim)
            continue
        return port
    raise RuntimeError(f"no port from {FIRST} to {AFTER - 1} is free")
