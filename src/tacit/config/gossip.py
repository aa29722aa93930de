"""The options of training without a server: what gossip adds to a training run, and what it shares with
it.
"""

from __future__ import annotations

import dataclasses

from ..topologies import Gossip
from .train import OPTIONS

# options that need a server, or that are part of the topology itself
SERVER_ONLY = (
    "per_round",
    "guard",
    "sampling",
    "insecure_seed",
    "pace",
    "speed",
    "aggregate",
    "adversaries",
    "topology",
    "private",
    "select",
    "landscape",
    "patience",
    "stop_by",
)
GOSSIP = {f.name: f for f in dataclasses.fields(Gossip) if f.name != "graph"}
SHARED = {name: f for name, f in OPTIONS.items() if name not in SERVER_ONLY}
