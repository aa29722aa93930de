"""A server above edges: what the protocol computes, and what an edge or a server that lies can do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tacit.protocols import tree
from tacit.protocols.hierarchy import ideal
from tacit.protocols.tree import EdgeDone, EdgeHere, EdgeModel, EdgeTurn, Uplink
from tests.runtimes.net import Net

SHAPES = {"w": ((3,), torch.float32)}
MOST = 100.0
Vectors = dict[str, torch.Tensor]


def vector(*values: float) -> Vectors:
    return {"w": torch.tensor(values, dtype=torch.float32)}


class Above:
    """The server's program, and what it was told."""

    def __init__(
        self, edges: tuple[str, ...] = ("e", "f"), exchanges: range = range(2), mean: Vectors | None = None
    ):
        self.edges, self.exchanges, self.before = edges, exchanges, mean or {}
        self.weights: list[dict[str, float]] = []
        self.means: list[Vectors] = []
        self.wrong: list[dict[str, str]] = []

    async def __call__(self, me: Any) -> None:
        async def merged(
            t: int, weights: Mapping[str, float], mean: Vectors, wrong: Mapping[str, str]
        ) -> None:
            self.weights.append(dict(weights))
            self.means.append(mean)
            self.wrong.append(dict(wrong))

        await tree.server(me, self.edges, "job", self.exchanges, self.before, SHAPES, MOST, merged)


def honest(models: list[tuple[float, Vectors]], got: list[Vectors]) -> Any:
    """The program of an edge that reaches these models."""

    async def edge(me: Any) -> None:
        up = Uplink(me, "server", "job", SHAPES)
        await up.start()
        for t, (weight, vectors) in enumerate(models):
            got.append(await up.exchange(t, weight, vectors))
        await up.finish()

    return edge


E = [(10.0, vector(1, 2, 3)), (30.0, vector(0, 1, 0))]
F = [(30.0, vector(5, 6, 7)), (10.0, vector(4, 1, 8))]


def run(server: Any, **edges: Any) -> None:
    async def all_of_it() -> None:
        async with Net.of("server", *edges) as net:
            await net.run(server=server, **edges)

    asyncio.run(all_of_it())


def failure(server: Any, **edges: Any) -> str:
    """The text of the first error, of whoever fails."""
    with pytest.raises(ExceptionGroup) as caught:
        run(server, **edges)
    return str(caught.value.exceptions[0])


def test_edges_get_the_ideal_function_of_their_models() -> None:
    """Over a real hub; by hand: (10·1 + 30·5) / 40 = 4, and so on."""
    server, got_e, got_f = Above(), list[Vectors](), list[Vectors]()
    run(server, e=honest(E, got_e), f=honest(F, got_f))
    assert [m["w"].tolist() for m in server.means] == [[4, 5, 6], [1, 1, 2]]
    for t in range(2):
        mean = ideal({"e": E[t], "f": F[t]})[1]["w"]
        assert torch.equal(got_e[t]["w"], mean)
        assert torch.equal(got_f[t]["w"], mean)
    assert server.weights == [{"e": 10, "f": 30}, {"e": 30, "f": 10}]


@pytest.mark.parametrize(
    ("weight", "vectors", "why"),
    [
        (1e30, vector(9, 9, 9), r"claims the weight 1e\+30; it may claim at most 100"),
        (-1.0, vector(9, 9, 9), "claims the weight -1"),
        (float("inf"), vector(9, 9, 9), "claims the weight inf"),
        (float("nan"), vector(9, 9, 9), "claims the weight nan"),
        (10.0, vector(9, float("nan"), 9), "'w' contains NaN or infinity"),
        (10.0, vector(9, 9), "has the shape"),
        (10.0, {"w": torch.zeros(3, dtype=torch.float64)}, "torch.float64; it must be"),
        (10.0, {"w": torch.zeros(3), "x": torch.zeros(1)}, "an unexpected vector 'x'"),
        (10.0, {}, "has no vector 'w'"),
    ],
)
def test_an_edge_that_lies_about_its_weight_or_sends_no_model_is_left_out(
    weight: float, vectors: Vectors, why: str
) -> None:
    """The exchange continues with the others; the liar gets their mean, and is in the next exchange."""
    server, got = Above(), list[Vectors]()
    run(server, e=honest([(weight, vectors), E[1]], got), f=honest(F, []))
    assert list(server.weights[0]) == ["f"]
    assert torch.equal(server.means[0]["w"], F[0][1]["w"])
    assert re.search(why, server.wrong[0]["e"])
    assert server.means[1]["w"].tolist() == [1, 1, 2]


def test_an_edge_that_lies_within_its_weight_moves_the_mean_by_its_share_and_no_more() -> None:
    server = Above(exchanges=range(1))
    run(server, e=honest([(MOST, vector(1000, 0, 0))], []), f=honest([(300.0 / 3, vector(0, 0, 0))], []))
    assert server.means[0]["w"][0] == pytest.approx(1000 * MOST / (MOST + 100))


def test_a_model_that_is_sent_twice_or_for_another_exchange_counts_once() -> None:
    """An edge repeats its model, sends others for the same exchange, and answers a later one beforehand."""
    server = Above()

    async def liar(me: Any) -> None:
        await me.send("server", EdgeHere("job"))
        await me.recv("server", EdgeTurn)
        for number, value in ((0, 1.0), (0, 50.0), (7, 50.0), (-1, 50.0)):
            await me.send("server", EdgeModel(number, 10.0, vector(value, 0, 0)))
        while (turn := await me.recv("server", EdgeTurn)).number < 1:
            pass
        await me.send("server", EdgeModel(1, 10.0, vector(2, 0, 0)))
        while turn.number < 2:
            turn = await me.recv("server", EdgeTurn)
        await me.send("server", EdgeDone())

    run(server, e=liar, f=honest([(10.0, vector(3, 0, 0)), (10.0, vector(4, 0, 0))], []))
    assert [m["w"][0].item() for m in server.means] == [2.0, 3.0]


def test_another_job_is_refused_by_the_server_and_by_the_edge() -> None:
    async def other(me: Any) -> None:
        await me.send("server", EdgeHere("another"))
        await me.recv("server", EdgeTurn)
        await me.recv("server", EdgeDone)  # nothing more comes

    assert "edge 'e' runs another job than this server" in failure(Above(("e",)), e=other)

    async def other_server(me: Any) -> None:
        await me.recv("e", EdgeHere)
        await me.send("e", EdgeTurn("another", 0, {}))
        await me.recv("e", EdgeDone)

    assert "the server 'server' runs another job than this edge" in failure(other_server, e=honest(E, []))


@pytest.mark.parametrize(
    ("number", "vectors", "text"),
    [
        (1, vector(0, float("inf"), 0), "cannot be used: its vector 'w' contains NaN or infinity"),
        (1, vector(0, 0), "cannot be used: its vector 'w' has the shape"),
        (5, vector(0, 0, 0), "is at exchange 5, and this edge at 0"),
    ],
)
def test_an_edge_refuses_what_a_lying_server_sends_for_a_mean(
    number: int, vectors: Vectors, text: str
) -> None:
    async def liar(me: Any) -> None:
        await me.recv("e", EdgeHere)
        await me.send("e", EdgeTurn("job", 0, {}))
        await me.recv("e", EdgeModel)
        await me.send("e", EdgeTurn("job", number, vectors))
        await me.recv("e", EdgeDone)

    got: list[Vectors] = []
    assert text in failure(liar, e=honest(E, got))
    assert not got


def test_if_no_edge_sends_a_model_the_run_ends_with_the_reasons() -> None:
    bad = [(1e9, vector(1, 1, 1))]
    text = failure(Above(), e=honest(bad, []), f=honest(bad, []))
    assert "exchange 1 has no valid model of an edge: 'e': it claims the weight 1e+09" in text


def test_a_restarted_server_asks_again_and_a_restarted_edge_gets_the_mean_it_missed() -> None:
    """The first server ends before it merges; edge e begins again at an exchange that was merged before."""
    server = Above(exchanges=range(1, 2), mean=vector(7, 7, 7))
    got: list[Vectors] = []

    async def behind(me: Any) -> None:
        """Was killed when the mean of exchange 0 had come, and before it was on its disk."""
        up = Uplink(me, "server", "job", SHAPES)
        await up.start()
        got.append(await up.exchange(0, 10.0, vector(0, 0, 0)))
        got.append(await up.exchange(1, 10.0, vector(1, 1, 1)))
        await up.finish()

    async def waiting(me: Any) -> None:
        """Sent its model to a server that was killed, and hears the same turn again."""
        up = Uplink(me, "server", "job", SHAPES)
        up.turn = EdgeTurn("job", 1, vector(7, 7, 7))
        got.append(await up.exchange(1, 30.0, vector(5, 5, 5)))
        await up.finish()

    run(server, e=behind, f=waiting)
    assert sorted(g["w"][0].item() for g in got) == [4.0, 4.0, 7.0]


def test_an_edge_that_says_again_and_again_that_it_started_is_not_sent_the_model_without_end() -> None:
    turns = 0

    async def liar(me: Any) -> None:
        nonlocal turns
        for _ in range(tree.MOST_STARTS + 50):
            await me.send("server", EdgeHere("job"))
        while True:
            await me.recv("server", EdgeTurn)
            turns += 1

    text = failure(Above(("e",)), e=liar)
    assert f"edge 'e' said {tree.MOST_STARTS + 1} times in one exchange that it was started" in text
    assert turns <= tree.MOST_STARTS + 1
