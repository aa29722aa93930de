"""Who talks to whom, where there is no server; and how much of each neighbour's model a node takes.

    graphs.ring(16), graphs.torus(4, 4), graphs.grid(4, 4), graphs.star(16), graphs.complete(16),
    graphs.erdos_renyi(16, p=0.3),
    graphs.exponential(16), graphs.from_edges(3, [(0, 1), (1, 2)]), graphs.from_weights(W)         one graph for every round
    graphs.one_peer_exponential(16), graphs.alternating(graphs.ring(4), graphs.star(4))            another one every round
    graphs.directed_ring(16), graphs.from_edges(3, …, directed=True)                               one-way links, for push-sum

On undirected links W has the Metropolis–Hastings weights 1/(1 + max(d_i, d_j)), symmetric and doubly
stochastic whatever the graph. Its spectral gap
1 − |λ₂| says how fast gossip agrees: the distance to the mean shrinks by at least |λ₂| in every exchange.
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

MOST = 20_000  # nodes: W is kept whole while its gap is found
CLOSE = 1e-9


@dataclass(frozen=True)
class Graph:
    """One graph, or a few that take turns. `edges` are pairs of nodes counted from 0; `weights` is W where it
    was given.
    """

    name: str
    nodes: int
    edges: tuple[tuple[int, int], ...] = ()
    directed: bool = False
    weights: tuple[tuple[float, ...], ...] | None = None
    turns: tuple[Graph, ...] = ()
    made: tuple[Any, ...] = ()  # (the function that made it, its arguments): what a job file keeps

    def __hash__(
        self,
        # found once: what is known of a graph is looked up by it, and a thousand nodes have ten thousand
        # edges
    ) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = hash((self.name, self.nodes, self.edges, self.directed, self.weights, self.turns))
            object.__setattr__(self, "_hash", known)
        return int(known)

    def at(self, t: int) -> Graph:
        """The graph of exchange t."""
        return self.turns[t % len(self.turns)] if self.turns else self

    def neighbours(self, k: int) -> list[int]:
        """Whom node k sends to."""
        return _neighbours(self)[k]

    def matrix(self) -> np.ndarray:
        """W: row i is what node i makes of its own and its neighbours' models. Directed: column j is how node
        j deals its own out.
        """
        return _matrix(self)

    def gap(self) -> float:
        """1 − |λ₂|: 1 agrees at once, 0 never. Of graphs that take turns, that of one whole turn, per exchange."""
        return _gap(self)

    def check(self, nodes: int) -> Graph:
        if self.nodes != nodes:
            raise BadParameter(
                f"gossip: {self.name} has {self.nodes} nodes, and there are {nodes} parties. Make a graph "
                f"of {nodes} nodes."
            )
        return self


def _recorded(make: Callable[..., Graph]) -> Callable[..., Graph]:
    """A graph knows the call that made it."""

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Graph:
        graph = make(*args, **kwargs)
        bound = inspect.signature(make).bind(*args, **kwargs)
        bound.apply_defaults()
        given = {k: v for k, v in bound.arguments.items() if k not in ("edges", "weights")}
        if "edges" in bound.arguments:
            given["edges"] = graph.edges
        if "weights" in bound.arguments:
            given["weights"] = graph.weights
        return replace(graph, made=(make.__name__, tuple(given.items())))

    return made


@_recorded
def ring(nodes: int) -> Graph:
    n = _count("ring", nodes, 2)
    return _made("ring", n, ((k, (k + 1) % n) for k in range(n)))


@_recorded
def directed_ring(nodes: int) -> Graph:
    n = _count("directed_ring", nodes, 2)
    return _made("directed ring", n, ((k, (k + 1) % n) for k in range(n)), directed=True)


@_recorded
def complete(nodes: int) -> Graph:
    n = _count("complete", nodes, 2)
    return _made("complete", n, ((i, j) for i in range(n) for j in range(i)))


@_recorded
def star(nodes: int) -> Graph:
    n = _count("star", nodes, 2)
    return _made("star", n, ((0, k) for k in range(1, n)))


@_recorded
def grid(rows: int, columns: int) -> Graph:
    r, c = _count("grid", rows, 1), _count("grid", columns, 1)
    return _made(
        f"{r}×{c} grid",
        r * c,
        [
            *((i * c + j, i * c + j + 1) for i in range(r) for j in range(c - 1)),
            *((i * c + j, (i + 1) * c + j) for i in range(r - 1) for j in range(c)),
        ],
    )


@_recorded
def torus(rows: int, columns: int) -> Graph:
    r, c = _count("torus", rows, 2), _count("torus", columns, 2)
    return _made(
        f"{r}×{c} torus",
        r * c,
        [
            *((i * c + j, i * c + (j + 1) % c) for i in range(r) for j in range(c)),
            *((i * c + j, (i + 1) % r * c + j) for i in range(r) for j in range(c)),
        ],
    )


@_recorded
def exponential(nodes: int) -> Graph:
    """Node k talks to k ± 1, 2, 4, 8, …: few links, and a gap that shrinks with log n only."""
    n = _count("exponential", nodes, 2)
    return _made(
        "exponential", n, ((k, (k + 2**j) % n) for k in range(n) for j in range(max(1, (n - 1).bit_length())))
    )


@_recorded
def one_peer_exponential(nodes: int) -> Graph:
    """In exchange t node k sends to k + 2^(t mod log n) alone and hears from one node. With n a power of two,
    log n exchanges average exactly. B. Ying et al.: "Exponential Graph is Provably Efficient for
    Decentralized Deep Training", NeurIPS 2021.
    """
    n = _count("one_peer_exponential", nodes, 2)
    hops = [2**j for j in range(max(1, (n - 1).bit_length()))]
    return Graph("one-peer exponential", n, turns=tuple(_one_peer(n, hop) for hop in hops))


def _one_peer(n: int, hop: int) -> Graph:
    w = np.zeros((n, n))
    for k in range(n):
        w[k, k] += 0.5
        w[(k + hop) % n, k] += 0.5
    return Graph(
        f"to the node {hop} on",
        n,
        tuple((k, (k + hop) % n) for k in range(n)),
        True,
        tuple(map(tuple, w.tolist())),
    )


@_recorded
def erdos_renyi(nodes: int, p: float = 0.3, seed: int = 0) -> Graph:
    """Every pair is linked with probability p. A graph that falls apart is drawn again; if it does so a
    hundred times, p is too small.
    """
    n = _count("erdos_renyi", nodes, 2)
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p <= 1:
        raise bad("erdos_renyi", "p", p, "a number above 0 and at most 1")
    rng = np.random.default_rng(seed)
    for _ in range(100):
        link = np.triu(rng.random((n, n)) < p, 1)
        made = _made(f"Erdős–Rényi, p={p:g}", n, zip(*(x.tolist() for x in link.nonzero())))
        if connected(made):
            return made
    raise bad(
        "erdos_renyi",
        "p",
        p,
        f"large enough that {n} nodes hang together",
        f"Try {min(1.0, 2 * np.log(n) / n):.2f}.",
    )


@_recorded
def from_edges(nodes: int, edges: Iterable[Sequence[int]], directed: bool = False) -> Graph:
    n, listed = _count("from_edges", nodes, 2), [tuple(e) for e in edges]
    for e in listed:
        if (
            len(e) != 2
            or not all(isinstance(k, int) and not isinstance(k, bool) and 0 <= k < n for k in e)
            or e[0] == e[1]
        ):
            raise bad("from_edges", "edges", e, f"pairs of two different nodes between 0 and {n - 1}")
    made = _made("given", n, listed, directed=bool(directed))
    if not connected(made):
        raise BadParameter(
            "from_edges: the graph falls apart, so its nodes can never agree. Link every node to every "
            "other by some path" + (", along the arrows." if directed else ".")
        )
    return made


@_recorded
def from_weights(weights: Any) -> Graph:
    """A symmetric doubly stochastic W of one's own."""
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
            f"from_weights: W is {wrong}; it must be symmetric with rows of weights that sum to 1, or nodes "
            "would drift from the mean. "
            "graphs.from_edges makes such a W for any graph."
        )
    i, j = np.triu(w > 0, 1).nonzero()
    made = Graph("given", len(w), tuple(zip(i.tolist(), j.tolist())), False, tuple(map(tuple, w.tolist())))
    if not connected(made):
        raise BadParameter(
            "from_weights: the graph falls apart, so its nodes can never agree. Give weight to links "
            "between its parts."
        )
    return made


def alternating(*graphs: Graph) -> Graph:
    """Time-varying W: these take turns, whatever each of them links. Between them they must link everyone."""
    if (
        len(graphs) < 2
        or not all(isinstance(g, Graph) and not g.turns for g in graphs)
        or len({g.nodes for g in graphs}) > 1
    ):
        raise bad(
            "alternating",
            "graphs",
            [g.name if isinstance(g, Graph) else g for g in graphs],
            "two or more graphs of as many nodes each",
        )
    if len({g.directed for g in graphs}) > 1:
        raise bad("alternating", "graphs", [g.name for g in graphs], "all directed or all undirected")
    union = _made("", graphs[0].nodes, (e for g in graphs for e in g.edges), graphs[0].directed)
    if not connected(union):
        raise BadParameter(
            "alternating: even together these graphs fall apart, so their nodes can never agree. Add one "
            "that links the parts."
        )
    return Graph(
        " then ".join(g.name for g in graphs),
        graphs[0].nodes,
        turns=tuple(graphs),
        made=("alternating", tuple(g.made for g in graphs)),
    )


def to_table(graph: Graph) -> dict[str, Any]:
    """As a job file has it."""
    return _table(graph.made)


def _table(made: tuple[Any, ...]) -> dict[str, Any]:
    name, given = made
    if name == "alternating":
        return {"name": name, "graphs": [_table(m) for m in given]}
    return {"name": name, **{k: [list(row) for row in v] if isinstance(v, tuple) else v for k, v in given}}


def from_table(table: Any, nodes: int) -> Graph:
    """The reverse; a name alone, or a table without `nodes`, is of as many nodes as there are parties."""
    said = {"name": table} if isinstance(table, str) else dict(table) if isinstance(table, Mapping) else {}
    name = said.pop("name", None)
    if name == "alternating":
        return alternating(*(from_table(t, nodes) for t in said.get("graphs", ())))
    if name not in ALL:
        raise bad(
            "gossip",
            "graph",
            name,
            "one of " + ", ".join((*ALL, "alternating")),
            nearest(str(name), list(ALL)),
        )
    takes = inspect.signature(ALL[name]).parameters
    for key in said:
        if key not in takes:
            raise bad(name, key, said[key], "left out", f"Known: {', '.join(takes)}.")
    if "nodes" in takes:
        said.setdefault("nodes", nodes)
    lacks = [k for k, q in takes.items() if q.default is inspect.Parameter.empty and k not in said]
    if lacks:
        raise BadParameter(f"{name}: {lacks[0]} is missing. Write it beside the name.")
    return ALL[name](**said)


def connected(graph: Graph) -> bool:
    """Whether a message from any node reaches any other."""
    return all(
        _reached(graph, back) == graph.nodes for back in ((False, True) if graph.directed else (False,))
    )


def _reached(graph: Graph, back: bool) -> int:
    out: list[list[int]] = [[] for _ in range(graph.nodes)]
    for i, j in graph.edges:
        out[j if back else i].append(i if back else j)
        if not graph.directed:
            out[j].append(i)
    seen, todo = {0}, [0]
    while todo:
        for k in out[todo.pop()]:
            if k not in seen:
                seen.add(k)
                todo.append(k)
    return len(seen)


def _count(owner: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= MOST:
        raise bad(owner, "nodes", value, f"a whole number of at least {least} and at most {MOST}")
    return int(value)


def _made(name: str, nodes: int, edges: Iterable[Sequence[int]], directed: bool = False) -> Graph:
    ordered = {(i, j) if directed or i < j else (j, i) for i, j in edges if i != j}
    return Graph(name, nodes, tuple(sorted(ordered)), directed)


@lru_cache(maxsize=64)
def _neighbours(graph: Graph) -> list[list[int]]:
    out: list[set[int]] = [set() for _ in range(graph.nodes)]
    for i, j in graph.edges:
        out[i].add(j)
        if not graph.directed:
            out[j].add(i)
    return [sorted(s) for s in out]


@lru_cache(maxsize=64)
def _matrix(graph: Graph) -> np.ndarray:
    if graph.weights is not None:
        return np.array(graph.weights)
    n = graph.nodes
    w = np.zeros((n, n))
    if graph.directed:  # node j deals itself out evenly to itself and to those it sends to: columns sum to 1
        for j in range(n):
            to = [j, *graph.neighbours(j)]
            w[to, j] = 1 / len(to)
        return w
    degree = np.array([len(graph.neighbours(k)) for k in range(n)])
    for i, j in graph.edges:
        w[i, j] = w[j, i] = 1 / (1 + max(degree[i], degree[j]))
    w[np.arange(n), np.arange(n)] = 1 - w.sum(1)
    return w


@lru_cache(maxsize=64)
def _gap(graph: Graph) -> float:
    w = np.eye(graph.nodes)
    for g in graph.turns or (graph,):
        w = g.matrix() @ w
    rest = (
        w - 1 / graph.nodes
        if not graph.directed and not any(g.directed and g.weights is None for g in graph.turns)
        else w
    )
    if rest is w:  # a column-stochastic W has its own limit, so its second eigenvalue is asked for itself
        second = np.sort(np.abs(np.linalg.eigvals(w)))[-2]
    elif graph.turns:
        second = np.abs(np.linalg.svd(rest, compute_uv=False)[0])
    else:
        second = np.abs(np.linalg.eigvalsh(rest)).max()
    return float(1 - min(1.0, second) ** (1 / max(1, len(graph.turns))))


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
