"""Topologies other than one server: gossip without a server, and a hierarchy of servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from . import graphs
from .errors import BadParameter
from .graphs import Graph
from .parameters import bad, check, choice, flag, nearest, real, whole


@dataclass(frozen=True)
class Gossip:
    """Training without a server: nodes average models with their neighbors (papers: protocols/gossip.py)."""

    graph: Any = None
    mode: str = choice(
        "average",
        ("average", "push_sum", "push"),
        doc="average: Θ ← WΘ; push_sum: for directed graphs; push: gossip learning",
    )
    period: int = whole(1, least=1, doc="local rounds for each exchange: W = I in between")
    wait: float = real(1.0, above=0, doc="Δ, seconds between a node's messages (push)")
    churn: float = real(0.0, least=0, below=1, doc="the share of periods in which a node is offline (push)")
    secure: bool = flag(
        False,
        doc="mask the neighbors' models: a node learns only their weighted sum (average)",
    )

    def check_parties(self, parties: int) -> None:
        self.graph.check(parties)

    def check(self) -> None:
        if not isinstance(self.graph, Graph):
            raise bad("gossip", "graph", self.graph, "a graph such as graphs.ring(16)")
        one_way = any(g.directed and g.weights is None for g in (self.graph.turns or (self.graph,)))
        if one_way and self.mode == "average":
            raise BadParameter(
                f"gossip: {self.graph.name} is directed, and averaging needs weights that sum to 1 over "
                "what a node receives. Use mode='push_sum'."
            )
        if self.mode != "push" and self.churn:
            raise bad(
                "gossip",
                "churn",
                self.churn,
                f"0 with mode={self.mode!r}, in which every node waits for its neighbors",
                "Use mode='push'.",
            )
        if self.mode == "push" and (self.period != 1 or self.graph.turns):
            raise BadParameter(
                "gossip: with mode='push' a node sends to one neighbor at a time. Leave out period, and "
                "use one graph that does not change."
            )
        if self.secure and self.mode != "average":
            raise bad(
                "gossip",
                "secure",
                True,
                f"False with mode={self.mode!r}",
                "Hidden sums need mode='average'.",
            )
        for g in (self.graph.turns or (self.graph,)) if self.secure else ():
            for k in range(g.nodes):
                if len(senders(g, k)) < 2:
                    raise BadParameter(
                        f"gossip: node {k} of {g.name} receives from {len(senders(g, k))} other node, and "
                        "the sum of one model hides nothing. Every node needs at least two neighbors."
                    )


@dataclass(frozen=True)
class Hierarchy:
    """Clients → edges → … → server.

    `edges` is the number of edge servers, or a list with the number on each level, from the clients up.
    Parties are assigned to edges, and edges to the level above, in order. `period` is the number of rounds
    (above the first level: of exchanges of the level below) between two exchanges, one number for all
    levels or one for each.
    """

    edges: Any = 2
    period: Any = 1

    @property
    def levels(self) -> tuple[int, ...]:
        return (self.edges,) if isinstance(self.edges, int) else tuple(self.edges)

    @property
    def periods(self) -> tuple[int, ...]:
        """The number of rounds between two exchanges of each level."""
        each = (self.period,) * len(self.levels) if isinstance(self.period, int) else tuple(self.period)
        return tuple(int(np.prod(each[: i + 1])) for i in range(len(each)))

    @property
    def names(self) -> list[list[str]]:
        """The names of the nodes between clients and server, for each level from the bottom."""
        return [
            [f"edge-{k}" if i == 0 else f"level-{i + 1}-{k}" for k in range(n)]
            for i, n in enumerate(self.levels)
        ]

    def groups(self, parties: int) -> list[list[list[int]]]:
        """For each level, from the bottom to the server, the children of each node."""
        below, out = parties, []
        for n in (*self.levels, 1):
            out.append([part.tolist() for part in np.array_split(np.arange(below), n)])
            below = n
        return out

    def check_parties(self, parties: int) -> None:
        if self.levels[0] > parties:
            raise bad(
                "Hierarchy",
                "edges",
                self.edges,
                f"at most {parties} for {parties} parties: every edge needs a client",
            )

    def check(self) -> None:
        if not _are_counts(self.edges) or any(a < b for a, b in pairwise(self.levels)):
            raise bad(
                "Hierarchy",
                "edges",
                self.edges,
                "a whole number of at least 1, or a non-increasing list: [8, 2] is 8 edges below 2 regions",
            )
        if not _are_counts(self.period) or (
            not isinstance(self.period, int) and len(self.period) != len(self.levels)
        ):
            raise bad(
                "Hierarchy",
                "period",
                self.period,
                f"a whole number of at least 1, or a list of {len(self.levels)}, one for each level",
            )


def _are_counts(value: Any) -> bool:
    """Whether a value is a whole number of at least 1, or a list of such numbers."""
    listed = value if isinstance(value, list | tuple) else [value]
    return bool(listed) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 1 for v in listed)


def parse(topology: Any, parties: int) -> Gossip | Hierarchy | None:
    """A topology, or the table of one, checked against the number of parties."""
    if topology is None:
        return None
    if isinstance(topology, Mapping):
        values = dict(topology)
        name = values.pop("name", None)
        if name not in list(ALL):  # a list: the name may not be hashable
            raise bad("train", "topology", name, "one of " + ", ".join(ALL), nearest(str(name), list(ALL)))
        if "graph" in values:
            values["graph"] = graphs.from_table(values["graph"], parties)
        known = [f.name for f in fields(ALL[name])]
        for key in values:
            if key not in known:
                raise bad(name, key, values[key], "left out", f"Known: {', '.join(known)}.")
        topology = ALL[name](**values)
    if type(topology) not in ALL.values():
        raise bad(
            "train",
            "topology",
            topology,
            "tacit.Hierarchy(…), or None; training without a server is tacit.gossip",
        )
    checked: Gossip | Hierarchy = check(topology)
    checked.check_parties(parties)
    return checked


def to_table(topology: Gossip | Hierarchy) -> dict[str, Any]:
    values = {f.name: getattr(topology, f.name) for f in fields(topology)}
    return {
        "name": type(topology).__name__,
        **{
            k: graphs.to_table(v) if isinstance(v, Graph) else list(v) if isinstance(v, tuple) else v
            for k, v in values.items()
            if v is not None
        },
    }


def senders(graph: Graph, k: int) -> list[int]:
    """The nodes from which node k receives."""
    return [int(j) for j in graph.matrix()[k].nonzero()[0] if j != k]


ALL: dict[str, Any] = {"Gossip": Gossip, "Hierarchy": Hierarchy}
