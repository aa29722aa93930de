"""Run a program of sums over parties' tables, on any runtime.

`program` is a `SumProgram` (protocols/sum_program.py): a frozen dataclass whose fields are plain values
(numbers, texts, None, lists and dicts of these), so that another process can build the same program from
them.

    runtime="cohort"      simulation: the sums are computed in one place, and the ledger says "ideal"
    runtime="inprocess"   one program per party in this process; every sum is a real secure aggregation
    runtime="processes"   one process per party, or tacit.Processes(…)
"""

from __future__ import annotations

from typing import Any, TypeVar

import pandas as pd

from ...parameters import bad
from ...parties.ledger import Ledger
from ...protocols import sum_program
from ...protocols.sum_program import SumProgram
from ...stats.tables import check_frames

R = TypeVar("R")
SERVER = "server"


def run_sums(
    program: SumProgram[pd.DataFrame, R],
    fed: Any,
    *,
    runtime: Any = "cohort",
    guard: Any = None,
    owner: str = "stats",
) -> tuple[R, Ledger]:
    """Return what the program's coordinator returns, and who saw what.

    `guard`: `tacit.guard.SecAgg(…)` (default). `owner` is the function named in error messages.
    """
    frames, ledger = check_frames(fed, owner), Ledger()
    if runtime == "cohort":
        value = sum_program.ideal(program, frames)
        ledger.record(
            SERVER,
            f"each of {len(frames)} parties",
            "sums",
            "the sums over all parties, and nothing of one party",
            how="ideal",
        )
        return value, ledger
    raise bad(owner, "runtime", runtime, "'cohort'")
