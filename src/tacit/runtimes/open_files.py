"""How many files this process may have open: each connection of a hub is one.

Systems start processes with a low limit (often 1,024), for old programs that cannot have more, and let them
raise it to a higher one (`ulimit -Hn`).
"""

from __future__ import annotations

import errno
import os
import resource

RESERVE = 64  # files that are no connections of parties: libraries, logs, the monitor, handshakes


def raise_limit() -> int:
    """Raise this process' limit of open files as far as the system allows; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS says "unlimited", and accepts less
            return soft
    return read_limit()


def read_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 62


def count() -> int:
    """Return how many files this process has open."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder)) - 1  # the folder itself
        except OSError as error:
            if error.errno == errno.EMFILE:  # none is left to look with
                return read_limit()
    return 0


def room_for_connections(limit: int) -> int:
    """Return how many parties can be connected within a limit of open files."""
    return max(1, limit - max(RESERVE, limit // 20))
