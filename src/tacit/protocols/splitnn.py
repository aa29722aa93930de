"""Split networks: one network, of which each party holds a part, trained on columns and labels that stay
where they are.

O. Gupta, R. Raskar: Distributed learning of deep neural network over multiple agents, J. Netw. Comput.
Appl. 116, 2018 (Algorithms 1 and 2); P. Vepakomma, O. Gupta, T. Swedish, R. Raskar: Split learning for
health, 2018 (the U-shape, vertically split data, more than one hop).

    sources (columns)                 stop 0 … stop n−1                  stop n (labels)
      |--- Activations(z_k) ----------->|  merge, its part                    |
      |                                 |--- Activations ------------------->|  loss
      |                                 |<-- CutGradients(∂L/∂z) ------------|  its part learns
      |<-- CutGradients(∂L/∂z_k) -------|  its part learns                   |
      |  its part learns

    vanilla    one source; the labels are at the last stop
    u          the source is the last stop, too: labels stay with the columns, the middle of the network is elsewhere
    vertical   several sources, of which the holder of the labels may be one; what they send is merged at stop 0
    relay      one route a client, taken in turn; clients share one part: |--- HandedOn(weights) --->| to the next, or averaged after every epoch

Order of rows, batches and turns follow from settings all have; before the first batch everyone says them
(`Agreed`), and the fingerprint of its ids, under a key that only those who hold the ids have. The next
stop learns what a part lets through of the columns of every row; whoever gets gradients learns what they
say of labels. Nobody's columns, labels or weights are sent (in a relay, clients hand each other their own
part). No cryptography hides activations or gradients: guards at the cut (splitnn_guards.py) and attacks
(audit/) say how much that matters. Parties follow the protocol (semi-honest).

It computes exactly what one network in one place would (`ideal`): the same products in the same order, cut
apart.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BadData, ProtocolError
from ..parameters import bad
from ..parties.party import Party
from .splitnn_terms import Agreed, HandedOn, Route, SplitInputs, SplitTerms, fingerprint, losses
from .splitnn_worker import SplitWorker

__all__ = ["Route", "SplitInputs", "SplitTerms", "agree", "fingerprint", "ideal", "party", "predict"]


async def party(me: Party, terms: SplitTerms, mine: SplitInputs) -> dict[str, Any]:
    """The program of any party: {"history": a row an epoch, where it has labels; "state": its weights}."""
    seat = SplitWorker(me, terms, mine)
    await agree(me, terms, mine)
    clients = [route.sources[0] for route in terms.routes] if len(terms.routes) > 1 else []
    history = []
    for epoch in range(terms.epochs):
        began, summed, seen = time.perf_counter(), 0.0, 0
        for turn, route in enumerate(terms.routes):
            if me.name in route.parties:
                for number, rows in enumerate(
                    terms.batches(epoch, turn), epoch * -(-terms.rows[turn] // terms.batch_size)
                ):
                    summed += await seat.learn(turn, number, rows) * len(rows)
                    seen += len(rows)
            if me.name in clients and terms.clients == "hand on":
                await _hand_on(seat, clients, turn)
        if me.name in clients and terms.clients == "average":
            await _average(seat, clients)
        took = time.perf_counter() - began
        found = {}
        if (terms.every and (epoch + 1) % terms.every == 0) or epoch + 1 == terms.epochs:
            found = await _test(seat)
        if any(route.stops[-1] == me.name for route in terms.routes):
            loss = summed / max(seen, 1)
            if not np.isfinite(loss):
                raise BadData(
                    f"the loss is {loss} in epoch {epoch + 1}: the network diverges. Take a smaller "
                    "learning rate, or scale the columns."
                )
            history.append({"epoch": epoch + 1, "train_loss": loss, **found, "seconds": took})
            if mine.watch is not None:
                mine.watch(history[-1])
    return {"history": history, "state": {k: v.detach().clone() for k, v in seat.parts.state_dict().items()}}


async def agree(me: Party, terms: SplitTerms, mine: SplitInputs) -> None:
    """Everyone I shall talk with has the same settings, and rows in the same order."""
    others = [name for name in dict.fromkeys(n for r in terms.routes for n in r.parties) if name != me.name]
    if not any(me.name in r.parties for r in terms.routes):
        raise bad("splitnn", "the route", terms.routes, f"one that goes over {me.name!r}")
    with_rows = {name for r in terms.routes for name in (*r.sources, r.stops[-1])}
    for name in others:
        await me.send(name, Agreed(terms.text(), mine.fingerprint if name in with_rows else b""))
    for name, said in (await me.gather(others, Agreed, within=mine.within)).items():
        if said.terms != terms.text():
            try:
                theirs, ours = json.loads(said.terms), json.loads(terms.text())
                which = ", ".join(
                    f"{k} ({theirs.get(k)!r:.60} there, {v!r:.60} here)"
                    for k, v in ours.items()
                    if theirs.get(k) != v
                )
            except (ValueError, AttributeError):
                which = "all of them"
            raise ProtocolError(
                f"{name!r} and {me.name!r} have different settings: {which}. All parties must start the "
                "same job."
            )
        if said.ids and mine.fingerprint and said.ids != mine.fingerprint:
            raise ProtocolError(
                f"the rows of {name!r} and {me.name!r} are not of the same people in the same order. Align "
                "them first (tacit.psi)."
            )


async def _test(seat: SplitWorker) -> dict[str, float]:
    outs, ys = [], []
    for turn, route in enumerate(seat.terms.routes):
        if seat.terms.tests[turn] and seat.me.name in route.parties:
            out = await seat.outputs(turn, seat.terms.tests[turn], seat.mine.test_x.get(turn))
            if out is not None:
                outs.append(out)
                ys.append(seat.mine.test_y[turn])
    return seat.mine.measure(torch.cat(outs), torch.cat(ys)) if outs and seat.mine.measure is not None else {}


async def _hand_on(seat: SplitWorker, clients: Sequence[str], turn: int) -> None:
    """After a turn its client hands on to the next; after the last turn, to all: they test together, and the
    first begins the next epoch.
    """
    me, giver = seat.me, clients[turn]
    takers = clients[turn + 1 : turn + 2] or clients[:-1]
    if me.name == giver:
        await me.send(takers, HandedOn(seat.carried(memory=True)))
    elif me.name in takers:
        seat.take((await me.recv(giver, HandedOn, within=seat.mine.within)).vectors, giver, memory=True)


async def _average(seat: SplitWorker, clients: Sequence[str]) -> None:
    """The first client averages, weighted by rows; each optimiser keeps what it remembers. The server, which
    sees activations, is not shown the part that made them.
    """
    me, first = seat.me, clients[0]
    if me.name != first:
        await me.send(first, HandedOn(seat.carried(memory=False)))
        seat.take((await me.recv(first, HandedOn, within=seat.mine.within)).vectors, first, memory=False)
        return
    came = {
        first: seat.carried(memory=False),
        **{
            name: m.vectors
            for name, m in (await me.gather(clients[1:], HandedOn, within=seat.mine.within)).items()
        },
    }
    made = mean_of([came[name] for name in clients], seat.terms.rows)
    seat.take(made, first, memory=False)
    await me.send(clients[1:], HandedOn(made))


def mean_of(states: Sequence[Mapping[str, Tensor]], weights: Sequence[int]) -> dict[str, Tensor]:
    """The mean of floating-point entries, weighted; whole numbers are the first's."""
    if any(
        s.keys() != states[0].keys() or any(s[k].shape != v.shape for k, v in states[0].items())
        for s in states
    ):
        raise ProtocolError(
            "the clients' parts do not fit each other. All clients of a relay need the same part."
        )
    total = sum(weights)
    return {
        k: sum(
            (s[k].double() * (w / total) for s, w in zip(states, weights)),
            torch.zeros(v.shape, dtype=torch.float64),
        ).to(v.dtype)
        if v.is_floating_point()
        else v.clone()
        for k, v in states[0].items()
    }


async def predict(me: Party, terms: SplitTerms, mine: SplitInputs) -> Tensor | None:
    """Every party's program of a joint prediction on `tests` rows (`test_x`): the last stop gets the outputs,
    the others None.
    """
    seat = SplitWorker(me, terms, mine)
    await agree(me, terms, mine)
    return await seat.outputs(0, terms.tests[0], mine.test_x.get(0))


def ideal(
    terms: SplitTerms,
    bottoms: Mapping[str, nn.Module],
    stops: Sequence[nn.Module],
    x: Sequence[Mapping[str, Tensor]],
    y: Sequence[Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    peek: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """What the programs compute, in place: one network, one loss, one backward pass a batch.
    `x[route][source]` and `y[route]` are its rows.

    In a relay the clients' parts are those of the first client (handed on) or a copy for each (averaged);
    stops that a client holds are its, too.
    """
    relay = len(terms.routes) > 1
    depths = [d for d, name in enumerate(terms.routes[0].stops) if relay and name in terms.routes[0].sources]
    shared = [s for d, s in enumerate(stops) if d not in depths]
    one = next(iter(bottoms.values()))
    sets: list[tuple[dict[str, nn.Module], dict[int, nn.Module]]] = [
        ({route.sources[0]: one} if relay else dict(bottoms), {d: stops[d] for d in depths})
        for route in terms.routes
    ]
    if relay and terms.clients == "average":
        sets = [
            copy.deepcopy(s) for s in sets
        ]  # one by one: within a copy of all, what was shared stays shared

    def params(*modules: nn.Module) -> list[nn.Parameter]:
        return list(dict.fromkeys(p for m in modules for p in m.parameters()))

    mine = [params(*below.values(), *held.values()) for below, held in sets]
    own = [optimizer(m) if m else None for m in (mine if terms.clients == "average" else mine[:1])]
    rest = optimizer(params(*shared)) if params(*shared) else None
    for epoch in range(terms.epochs):
        for turn, route in enumerate(terms.routes):
            (below, held), opt = sets[turn], own[turn if terms.clients == "average" else 0]
            for rows in terms.batches(epoch, turn):
                leaving = [(x[turn][s][rows], below[s](x[turn][s][rows])) for s in route.sources]
                out: Any = [z for _, z in leaving]
                for depth, stop in enumerate(stops):
                    out = held.get(depth, stop)(out if depth == 0 else [out])
                loss = losses(terms.loss, out, y[turn][rows])
                if peek is not None:
                    loss = loss + sum(peek(a, z) for a, z in leaving)
                loss.backward()
                for o in (opt, rest):
                    if o is not None:
                        o.step()
                        o.zero_grad(set_to_none=True)
        if relay and terms.clients == "average":
            modules = [nn.ModuleList([*below.values(), *held.values()]) for below, held in sets]
            made = mean_of([m.state_dict() for m in modules], terms.rows)
            for m in modules:
                m.load_state_dict(made)
    if relay and terms.clients == "average":  # what they all have in the end
        one.load_state_dict(next(iter(sets[0][0].values())).state_dict())
        for d in depths:
            stops[d].load_state_dict(sets[0][1][d].state_dict())
