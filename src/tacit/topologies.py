"""What stands in the place of one server and everybody around it."""

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
    """No server: nodes mix models with their neighbours. See protocols/gossip.py for the papers."""

    graph: Any = None
    mode: str = choice(
        "average",
        ("average", "push_sum", "push"),
        doc="average: Θ ← WΘ; push_sum: on directed links; push: gossip learning",
    )
    period: int = whole(1, least=1, doc="rounds of local work for each exchange: W = I in between")
    wait: float = real(1.0, above=0, doc="Δ, seconds between a node's messages (push)")
    churn: float = real(0.0, least=0, below=1, doc="the share of periods in which a node is away (push)")
    secure: bool = flag(
        False,
        doc="neighbours' models are added up under masks: a node learns their weighted sum only (average)",
    )

    def fits(self, parties: int) -> None:
        self.graph.check(parties)

    def check(self) -> None:
        if not isinstance(self.graph, Graph):
            raise bad("gossip", "graph", self.graph, "a graph such as graphs.ring(16)")
        one_way = any(g.directed and g.weights is None for g in (self.graph.turns or (self.graph,)))
        if one_way and self.mode == "average":
            raise BadParameter(
                f"gossip: the links of {self.graph.name} go one way, and averaging needs weights that also "
                "sum to 1 over what a node hears. "
                "Use mode='push_sum'."
            )
        if self.mode != "push" and self.churn:
            raise bad(
                "gossip",
                "churn",
                self.churn,
                f"0 with mode={self.mode!r}, in which everybody waits for its neighbours",
                "Use mode='push'.",
            )
        if self.mode == "push" and (self.period != 1 or self.graph.turns):
            raise BadParameter(
                "gossip: with mode='push' a node sends to one neighbour at a time: leave out period, and "
                "give one graph for all the time."
            )
        if self.secure:
            if self.mode != "average":
                raise bad(
                    "gossip",
                    "secure",
                    True,
                    f"False with mode={self.mode!r}",
                    "Hidden sums go with mode='average'.",
                )
            for g in self.graph.turns or (self.graph,):
                lonely = next((k for k in range(g.nodes) if len(heard(g, k)) < 2), None)
                if lonely is not None:
                    raise BadParameter(
                        f"gossip: node {lonely} of {g.name} hears from {len(heard(g, lonely))} other, and a "
                        "sum of one is no secret. Give every "
                        "node two neighbours or more."
                    )


@dataclass(frozen=True)
class Hierarchy:
    """Clients → edges → … → server. `edges` is how many there are, or for several levels how many on each,
    from the clients up; parties are dealt to edges, and edges to the level above, in their order. `period` is
    after how many rounds (above: exchanges of the level below) a level is asked, one number for all or one
    each.
    """

    edges: Any = 2
    period: Any = 1

    @property
    def levels(self) -> tuple[int, ...]:
        return (self.edges,) if isinstance(self.edges, int) else tuple(self.edges)

    @property
    def periods(self) -> tuple[int, ...]:
        """In rounds: after how many of them each level exchanges."""
        each = (self.period,) * len(self.levels) if isinstance(self.period, int) else tuple(self.period)
        return tuple(int(np.prod(each[: i + 1])) for i in range(len(each)))

    def groups(self, parties: int) -> list[list[list[int]]]:
        """For each level from the bottom, which places of the level below belong to each of its nodes; the
        last is the server.
        """
        below, out = parties, []
        for n in (*self.levels, 1):
            out.append([part.tolist() for part in np.array_split(np.arange(below), n)])
            below = n
        return out

    def fits(self, parties: int) -> None:
        if self.levels[0] > parties:
            raise bad(
                "Hierarchy",
                "edges",
                self.edges,
                f"at most {parties} for {parties} parties: an edge needs a client",
            )

    def check(self) -> None:
        def whole_numbers(value: Any) -> bool:
            listed = [value] if not isinstance(value, list | tuple) else value
            return bool(listed) and all(
                isinstance(v, int) and not isinstance(v, bool) and v >= 1 for v in listed
            )

        if not whole_numbers(self.edges) or any(a < b for a, b in pairwise(self.levels)):
            raise bad(
                "Hierarchy",
                "edges",
                self.edges,
                "a whole number of at least 1, or a list of them that does not grow: [8, 2] is 8 edges "
                "below 2 regions",
            )
        if not whole_numbers(self.period) or (
            not isinstance(self.period, int) and len(self.period) != len(self.levels)
        ):
            raise bad(
                "Hierarchy",
                "period",
                self.period,
                f"a whole number of at least 1, or a list of {len(self.levels)}, one for each level",
            )


def made(given: Any, parties: int) -> Any:
    """A topology, or the table of one, checked against the number of parties."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        said = dict(given)
        name = said.pop("name", None)
        if name not in list(ALL):  # a list: what cannot be hashed is told, too
            raise bad("train", "topology", name, "one of " + ", ".join(ALL), nearest(str(name), list(ALL)))
        if "graph" in said:
            said["graph"] = graphs.from_table(said["graph"], parties)
        known = [f.name for f in fields(ALL[name])]
        for key in said:
            if key not in known:
                raise bad(name, key, said[key], "left out", f"Known: {', '.join(known)}.")
        given = ALL[name](**said)
    if type(given) not in ALL.values():
        raise bad(
            "train",
            "topology",
            given,
            "tacit.Hierarchy(…), or None; training without a server is tacit.gossip",
        )
    check(given)
    given.fits(parties)
    return given


def to_table(topology: Any) -> dict[str, Any]:
    values = {f.name: getattr(topology, f.name) for f in fields(topology)}
    return {
        "name": type(topology).__name__,
        **{
            k: graphs.to_table(v) if isinstance(v, Graph) else list(v) if isinstance(v, tuple) else v
            for k, v in values.items()
            if v is not None
        },
    }


def heard(graph: Graph, k: int) -> list[int]:
    """Whom node k hears from."""
    row = graph.matrix()[k]
    return [int(j) for j in row.nonzero()[0] if j != k]


ALL = {"Gossip": Gossip, "Hierarchy": Hierarchy}
