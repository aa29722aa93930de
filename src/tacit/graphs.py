"""Communication graphs of training without a server, and their mixing matrices W.

    the same graph in every round
        ring(16), torus(4, 4), grid(4, 4), star(16), complete(16), erdos_renyi(16, p=0.3), exponential(16),
        from_edges(3, [(0, 1), (1, 2)]), from_weights(W)
    another graph in every round
        one_peer_exponential(16), alternating(ring(4), star(4))
    directed graphs, for push-sum
        directed_ring(16), from_edges(3, …, directed=True)

For undirected graphs W has the Metropolis–Hastings weights 1/(1 + max(d_i, d_j)), which are symmetric and
doubly stochastic for every graph. The spectral gap 1 − |λ₂| is the rate of consensus: in every exchange the
distance to the mean decreases by the factor |λ₂| or more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any

import numpy as np

from .errors import BadParameter
from .parameters import bad, nearest

MOST = 20_000  # nodes: W is a dense matrix while its gap is computed
CLOSE = 1e-9


@dataclass(frozen=True)
class Graph:
    """One graph, or several that alternate. `edges` are pairs of nodes, counted from 0."""

    name: str
    nodes: int
    edges: tuple[tuple[int, int], ...] = ()
    directed: bool = False
    weights: tuple[tuple[float, ...], ...] | None = None  # W, if it was given
    turns: tuple[Graph, ...] = ()
    call: tuple[Any, ...] = ()  # (constructor, arguments), for job files

    def __hash__(self) -> int:
        # cached: results are cached by graph, and a thousand nodes have ten thousand edges
        if "_hash" not in self.__dict__:
            fields = (self.name, self.nodes, self.edges, self.directed, self.weights, self.turns)
            object.__setattr__(self, "_hash", hash(fields))
        return int(self.__dict__["_hash"])

    def at(self, t: int) -> Graph:
        """The graph of exchange t."""
        return self.turns[t % len(self.turns)] if self.turns else self

    @lru_cache(maxsize=64)  # noqa: B019  # a graph is immutable
    def neighbors(self) -> list[list[int]]:
        """For each node, the nodes it sends to."""
        out: list[set[int]] = [set() for _ in range(self.nodes)]
        for i, j in self.edges:
            out[i].add(j)
            if not self.directed:
                out[j].add(i)
        return [sorted(s) for s in out]

    @lru_cache(maxsize=64)  # noqa: B019
    def matrix(self) -> np.ndarray:
        """W: row i has the weights with which node i averages its own and its neighbors' models.

        For a directed graph, column j has the shares of node j's model that the nodes receive.
        """
        if self.weights is not None:
            return np.array(self.weights)
        w = np.zeros((self.nodes, self.nodes))
        if self.directed:  # a node divides its model equally among itself and its neighbors: columns sum to 1
            for j, receivers in enumerate(self.neighbors()):
                w[[j, *receivers], j] = 1 / (1 + len(receivers))
            return w
        degree = [len(some) for some in self.neighbors()]
        for i, j in self.edges:
            w[i, j] = w[j, i] = 1 / (1 + max(degree[i], degree[j]))
        np.fill_diagonal(w, 1 - w.sum(1))
        return w

    @lru_cache(maxsize=64)  # noqa: B019
    def gap(self) -> float:
        """1 − |λ₂|: 1 is consensus in one exchange, 0 never. For alternating graphs, the mean over a
        cycle.
        """
        w = np.eye(self.nodes)
        for g in self.turns or (self,):
            w = g.matrix() @ w
        if self.directed or any(g.directed and g.weights is None for g in self.turns):
            # the limit of a column-stochastic W is not uniform: take its second eigenvalue
            second = np.sort(np.abs(np.linalg.eigvals(w)))[-2]
        elif self.turns:
            second = np.abs(np.linalg.svd(w - 1 / self.nodes, compute_uv=False)[0])
        else:
            second = np.abs(np.linalg.eigvalsh(w - 1 / self.nodes)).max()
        return float(1 - min(1.0, second) ** (1 / max(1, len(self.turns))))

    def check(self, nodes: int) -> Graph:
        if self.nodes != nodes:
            raise BadParameter(
                f"gossip: {self.name} has {self.nodes} nodes, and there are {nodes} parties. Use a graph "
                f"of {nodes} nodes."
            )
        return self


def _constructor(make: Callable[..., Graph]) -> Callable[..., Graph]:
    """Check the numbers of nodes of a constructor's call, and store the call in the graph it returns."""

    @wraps(make)
    def construct(*args: Any, **kwargs: Any) -> Graph:
        bound = inspect.signature(make).bind(*args, **kwargs)
        bound.apply_defaults()
        for name in ("nodes", "rows", "columns"):
            if name in bound.arguments:
                least = 1 if make.__name__ == "grid" else 2
                bound.arguments[name] = _count(make.__name__, bound.arguments[name], least)
        graph = make(*bound.args, **bound.kwargs)
        values = {"edges": graph.edges, "weights": graph.weights}
        arguments = {k: values.get(k, v) for k, v in bound.arguments.items()}
        return replace(graph, call=(make.__name__, tuple(arguments.items())))

    return construct


@_constructor
def ring(nodes: int) -> Graph:
    return _graph("ring", nodes, ((k, (k + 1) % nodes) for k in range(nodes)))


@_constructor
def directed_ring(nodes: int) -> Graph:
    return _graph("directed ring", nodes, ((k, (k + 1) % nodes) for k in range(nodes)), directed=True)


@_constructor
def complete(nodes: int) -> Graph:
    return _graph("complete", nodes, ((i, j) for i in range(nodes) for j in range(i)))


@_constructor
def star(nodes: int) -> Graph:
    return _graph("star", nodes, ((0, k) for k in range(1, nodes)))


@_constructor
def grid(rows: int, columns: int) -> Graph:
    r, c = rows, columns
    return _graph(
        f"{r}×{c} grid",
        r * c,
        [
            *((i * c + j, i * c + j + 1) for i in range(r) for j in range(c - 1)),
            *((i * c + j, (i + 1) * c + j) for i in range(r - 1) for j in range(c)),
        ],
    )


@_constructor
def torus(rows: int, columns: int) -> Graph:
    r, c = rows, columns
    return _graph(
        f"{r}×{c} torus",
        r * c,
        [
            *((i * c + j, i * c + (j + 1) % c) for i in range(r) for j in range(c)),
            *((i * c + j, (i + 1) % r * c + j) for i in range(r) for j in range(c)),
        ],
    )


@_constructor
def exponential(nodes: int) -> Graph:
    """Node k is linked to k ± 1, 2, 4, 8, …: few links, and a gap that decreases only as 1/log n."""
    return _graph(
        "exponential",
        nodes,
        ((k, (k + 2**j) % nodes) for k in range(nodes) for j in range(max(1, (nodes - 1).bit_length()))),
    )


@_constructor
def one_peer_exponential(nodes: int) -> Graph:
    """In exchange t, node k sends only to k + 2^(t mod log n) and receives from one node.

    If n is a power of two, log n exchanges give the exact average. B. Ying et al.: "Exponential Graph is
    Provably Efficient for Decentralized Deep Training", NeurIPS 2021.
    """
    hops = [2**j for j in range(max(1, (nodes - 1).bit_length()))]
    return Graph("one-peer exponential", nodes, turns=tuple(_one_peer(nodes, hop) for hop in hops))


def _one_peer(n: int, hop: int) -> Graph:
    edges = tuple((k, (k + hop) % n) for k in range(n))
    w = np.eye(n) / 2
    w[[j for _, j in edges], [k for k, _ in edges]] += 0.5
    return Graph(f"to the node {hop} on", n, edges, True, tuple(map(tuple, w.tolist())))


@_constructor
def erdos_renyi(nodes: int, p: float = 0.3, seed: int = 0) -> Graph:
    """Every pair is linked with probability p; up to 100 graphs are drawn until one is connected."""
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p <= 1:
        raise bad("erdos_renyi", "p", p, "a number above 0 and at most 1")
    rng = np.random.default_rng(seed)
    for _ in range(100):
        link = np.triu(rng.random((nodes, nodes)) < p, 1)
        graph = _graph(f"Erdős–Rényi, p={p:g}", nodes, zip(*(x.tolist() for x in link.nonzero())))
        if connected(graph):
            return graph
    raise bad(
        "erdos_renyi",
        "p",
        p,
        f"large enough that {nodes} nodes are connected",
        f"Try {min(1.0, 2 * np.log(nodes) / nodes):.2f}.",
    )


@_constructor
def from_edges(nodes: int, edges: Iterable[Sequence[int]], directed: bool = False) -> Graph:
    listed = [tuple(e) for e in edges]
    for e in listed:
        if (
            len(e) != 2
            or not all(isinstance(k, int) and not isinstance(k, bool) and 0 <= k < nodes for k in e)
            or e[0] == e[1]
        ):
            raise bad("from_edges", "edges", e, f"pairs of two different nodes between 0 and {nodes - 1}")
    graph = _graph("given", nodes, listed, directed=bool(directed))
    if not connected(graph):
        raise BadParameter(
            "from_edges: the graph is not connected, so its nodes cannot reach consensus. Add edges until "
            "there "
            "is a path between every two nodes" + (", along the edges' directions." if directed else ".")
        )
    return graph


@_constructor
def from_weights(weights: Any) -> Graph:
    """A graph with your own symmetric, doubly stochastic W."""
    w = np.asarray(weights, dtype=np.float64)
    if w.ndim != 2 or w.shape[0] != w.shape[1] or len(w) < 2:
        raise bad(
            "from_weights", "weights", f"of shape {w.shape}", "a square matrix with a row for each node"
        )
    wrong = (
        "not finite"
        if not np.isfinite(w).all()
        else "negative somewhere"
        if (w < -CLOSE).any()
        else "not symmetric"
        if np.abs(w - w.T).max() > 1e-6
        else f"such that row {int(np.abs(w.sum(1) - 1).argmax())} sums to "
        f"{w.sum(1)[int(np.abs(w.sum(1) - 1).argmax())]:g}"
        if np.abs(w.sum(1) - 1).max() > 1e-6
        else ""
    )
    if wrong:
        raise BadParameter(
            f"from_weights: W is {wrong}; it must be symmetric with non-negative rows that sum to 1, so that "
            "the mean is preserved. graphs.from_edges computes such a W for any graph."
        )
    i, j = np.triu(w > 0, 1).nonzero()
    graph = Graph("given", len(w), tuple(zip(i.tolist(), j.tolist())), False, tuple(map(tuple, w.tolist())))
    if not connected(graph):
        raise BadParameter(
            "from_weights: the graph is not connected, so its nodes cannot reach consensus. Add weights "
            "between its components."
        )
    return graph


def alternating(*graphs: Graph) -> Graph:
    """Time-varying W: the graphs alternate. Their union must be connected."""
    if (
        len(graphs) < 2
        or not all(isinstance(g, Graph) and not g.turns for g in graphs)
        or len({g.nodes for g in graphs}) > 1
    ):
        raise bad(
            "alternating",
            "graphs",
            [g.name if isinstance(g, Graph) else g for g in graphs],
            "two or more graphs with the same number of nodes",
        )
    if len({g.directed for g in graphs}) > 1:
        raise bad("alternating", "graphs", [g.name for g in graphs], "all directed or all undirected")
    union = _graph("", graphs[0].nodes, (e for g in graphs for e in g.edges), graphs[0].directed)
    if not connected(union):
        raise BadParameter(
            "alternating: the union of the graphs is not connected, so their nodes cannot reach consensus. "
            "Add a graph that connects the components."
        )
    return Graph(
        " then ".join(g.name for g in graphs),
        graphs[0].nodes,
        turns=tuple(graphs),
        call=("alternating", ()),
    )


def to_table(graph: Graph) -> dict[str, Any]:
    """The graph as a table of a job file."""
    name, arguments = graph.call
    if name == "alternating":
        return {"name": name, "graphs": [to_table(g) for g in graph.turns]}
    lists = {k: [list(row) for row in v] if isinstance(v, tuple) else v for k, v in arguments}
    return {"name": name, **lists}


def from_table(table: Any, nodes: int) -> Graph:
    """The graph of a name or a table; without `nodes` it has as many nodes as there are parties."""
    values = {"name": table} if isinstance(table, str) else dict(table) if isinstance(table, Mapping) else {}
    name = values.pop("name", None)
    if name == "alternating":
        return alternating(*(from_table(t, nodes) for t in values.get("graphs", ())))
    if name not in ALL:
        raise bad(
            "gossip",
            "graph",
            name,
            "one of " + ", ".join((*ALL, "alternating")),
            nearest(str(name), list(ALL)),
        )
    takes = inspect.signature(ALL[name]).parameters
    for key in values:
        if key not in takes:
            raise bad(name, key, values[key], "left out", f"Known: {', '.join(takes)}.")
    if "nodes" in takes:
        values.setdefault("nodes", nodes)
    missing = [k for k, q in takes.items() if q.default is inspect.Parameter.empty and k not in values]
    if missing:
        raise BadParameter(f"{name}: {missing[0]} is missing. Add it to the table of the graph.")
    return ALL[name](**values)


def connected(graph: Graph) -> bool:
    """Whether there is a path from every node to every other."""
    if not graph.directed:
        return _reaches_all(graph)
    return _reaches_all(graph) and _reaches_all(replace(graph, edges=tuple((j, i) for i, j in graph.edges)))


def _reaches_all(graph: Graph) -> bool:
    """Whether there is a path from node 0 to every other."""
    seen, todo = {0}, [0]
    while todo:
        new = {k for k in graph.neighbors()[todo.pop()] if k not in seen}
        seen |= new
        todo += new
    return len(seen) == graph.nodes


def _count(owner: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= MOST:
        raise bad(owner, "nodes", value, f"a whole number of at least {least} and at most {MOST}")
    return int(value)


def _graph(name: str, nodes: int, edges: Iterable[Sequence[int]], directed: bool = False) -> Graph:
    ordered = {(i, j) if directed or i < j else (j, i) for i, j in edges if i != j}
    return Graph(name, nodes, tuple(sorted(ordered)), directed)


ALL = {
    make.__name__: make
    for make in (
        ring,
        torus,
        grid,
        star,
        complete,
        erdos_renyi,
        exponential,
        one_peer_exponential,
        directed_ring,
        from_edges,
        from_weights,
    )
}
