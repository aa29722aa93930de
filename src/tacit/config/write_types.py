"""Write types.py, the types of all declared options, for type checkers: python -m
tacit.config.write_types.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .compare import CompareConfig
from .gossip import GOSSIP, SHARED
from .private import PRIVATE_OPTIONS
from .signature import takes_of
from .train import OPTIONS

HEAD = '''"""Types of the options, for type checkers. Written by tacit.config.write_types: do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import nn

from ..aggregate.rule import Rule
from ..algorithms.types import Algorithm, Solver
from ..audit.poisoning import Attack
from ..guard import Stage
from ..pace import SAFA, FedAsync, FedBuff
from ..private.dpsgd import DPSGD
from ..runtimes.processes import Processes
from ..script import Script
from ..selection.rule import SelectionRule as Selection
from ..speeds import Constant, Exponential, Given, Lognormal
from ..topologies import Gossip, Hierarchy

Model = str | nn.Module | Callable[[], nn.Module] | Any  # Any: a dataclass with `build`, as tacit.models has
Pace = FedBuff | FedAsync | SAFA
Speed = Constant | Lognormal | Exponential | Given
Topology = Hierarchy | Gossip | Mapping[str, Any]
Runtime = Processes | Any  # Any: real parties, which `tacit party` sets
'''


def types_text() -> str:
    """Return the text of types.py."""
    text = HEAD
    for name, options in (
        ("TrainOptions", OPTIONS),
        ("CompareOptions", CompareConfig.options() | CompareConfig.shared()),
        ("GossipOptions", GOSSIP | SHARED),
        ("PrivateOptions", PRIVATE_OPTIONS),
    ):
        text += f"\n\nclass {name}(TypedDict, total=False):\n"
        text += "".join(f"    {key}: {takes_of(f)}\n" for key, f in options.items())
    return text


def write(path: Any = None) -> None:
    """Write types.py next to this file."""
    Path(path or Path(__file__).with_name("types.py")).write_text(types_text(), encoding="utf-8")


if __name__ == "__main__":
    write()
