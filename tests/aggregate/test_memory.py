"""Rules hold as much memory as they say: updates beyond their room wait in files, and what is looked at does
not pile up.
"""

from __future__ import annotations

import sys

import pytest

from tests import warm

LOOK = """
import sys, threading, time, torch
from pathlib import Path
from tacit import aggregate
from tacit.aggregate import stack
torch.set_num_threads(1)
stack.MEMORY_LIMIT, stack.BLOCK = 1 << 22, 1 << 20
def anonymous():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon")) / 1024
rule = aggregate.ALL[sys.argv[1]]()
total = rule.start()
g = torch.Generator().manual_seed(0)
for _ in range(20):
    total = rule.add(total, torch.ones(1, 10), {"delta": torch.randn(10, 1000, generator=g).repeat(1, 250)})
before = most = anonymous()
on = True
def watch():
    global most
    while on:
        most = max(most, anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
rule.result(total)
on = False
thread.join()
print(most - before)
"""


@pytest.mark.parametrize("rule", ["ClippedMean", "MultiKrum"])
def test_200_mb_of_updates_take_less_than_100_mb(rule):
    """Two threads with a block of 4 MB, and one of 8 where squares are summed; 15 to 29 MB when this was written,
    and all 200 and more before blocks kept their place.
    """
    took = warm.run([sys.executable, "-c", LOOK, rule], timeout=300)
    assert took.returncode == 0, took.stderr
    assert float(took.stdout) < 100, took.stdout
