"""Split learning: one network whose parts are held by different parties; columns and labels stay local.

O. Gupta, R. Raskar: Distributed learning of deep neural network over multiple agents, J. Netw. Comput.
Appl. 116, 2018 (Algorithms 1 and 2); P. Vepakomma, O. Gupta, T. Swedish, R. Raskar: Split learning for
health, 2018 (the U-shape, vertically split data, more than one hop).

    sources (columns)                 stop 0 … stop n−1                  stop n (labels)
      |--- Activations(z_k) ----------->|  merge, its part                    |
      |                                 |--- Activations ------------------->|  loss
      |                                 |<-- CutGradients(∂L/∂z) ------------|  updates its part
      |<-- CutGradients(∂L/∂z_k) -------|  updates its part                  |
      |  updates its part

    vanilla    one source; the labels are at the last stop
    u          the source is also the last stop: labels stay with the columns, the middle is elsewhere
    vertical   several sources, one of which may hold the labels; their activations are merged at stop 0
    relay      one route per client, in turn; clients share one part, which is sent to the next client
               (HandedOn) or averaged after every epoch

The order of rows, batches and turns follows from shared settings. Before the first batch all parties compare
them (`Agreed`), together with a fingerprint of their ids under a key that only holders of the ids have. The
next stop learns the activations of every row; a receiver of gradients can infer labels from them. Columns,
labels and weights are not sent (in a relay, clients exchange their part). Activations and gradients are not
encrypted: guards at the cut (splitnn_guards.py) limit what they reveal, and attacks (audit/) measure it.
Parties follow the protocol (semi-honest).

In a left join the label holder also has rows of people that the other party does not hold. They are at the
end of the order, the other party sends the same activations for each (those of missing values), and the label
holder sends back zeros: the other party learns neither their ids nor anything about their labels.

With `patience`, the label holder says after every epoch whether the loss on its validation rows (a part of
the training rows) was the lowest so far, and whether training ends (`EpochEnd`); all parties keep the weights
of the best epoch.

The result equals that of one network in one place (`ideal`): the same operations in the same order.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import BadData, ProtocolError
from ..parameters import bad
from ..parties.party import Party
from .splitnn_terms import (
    LESS,
    Agreed,
    EpochEnd,
    HandedOn,
    Route,
    SplitInputs,
    SplitTerms,
    compute_loss,
    fingerprint,
)
from .splitnn_worker import SplitWorker

__all__ = ["Route", "SplitInputs", "SplitTerms", "agree", "fingerprint", "ideal", "party", "predict"]


async def party(me: Party, terms: SplitTerms, mine: SplitInputs) -> dict[str, Any]:
    """Run any party; return {"history", "state": its weights, "metrics", "best_epoch"}.

    The history has one row per epoch at parties with labels. With patience, the weights and metrics are those
    of the best epoch.
    """
    worker = SplitWorker(me, terms, mine)
    await agree(me, terms, mine)
    clients = [route.sources[0] for route in terms.routes] if len(terms.routes) > 1 else []
    history: list[dict[str, Any]] = []
    metrics: dict[str, float] = {}
    watch = EarlyStop(worker) if terms.patience else None
    for epoch in range(terms.epochs):
        start, loss_sum, row_count = time.perf_counter(), 0.0, 0
        for turn, route in enumerate(terms.routes):
            if me.name in route.parties:
                for number, rows in enumerate(
                    terms.batches(epoch, turn), epoch * -(-terms.rows[turn] // terms.batch_size)
                ):
                    loss_sum += await worker.train_batch(turn, number, rows) * len(rows)
                    row_count += len(rows)
            if me.name in clients and terms.clients == "hand on":
                await _hand_on(worker, clients, turn)
        if me.name in clients and terms.clients == "average":
            await _average(worker, clients)
        has_labels = any(route.stops[-1] == me.name for route in terms.routes)
        loss = loss_sum / max(row_count, 1)
        if has_labels and not np.isfinite(loss):
            raise BadData(
                f"the loss is {loss} in epoch {epoch + 1}: the network diverges. Use a smaller "
                "learning rate, or scale the columns."
            )
        ends = watch is not None and await watch.after(epoch, loss)
        seconds = time.perf_counter() - start
        metrics = {}
        if (terms.every and (epoch + 1) % terms.every == 0) or epoch + 1 == terms.epochs or ends:
            metrics = await _test(worker)
        if has_labels:
            validation = (
                {} if watch is None or watch.loss is None else {"validation_loss": watch.loss * mine.unit}
            )
            losses = {"train_loss": loss * mine.unit, **validation}
            row = {"epoch": epoch + 1, **losses, **metrics, "seconds": seconds}
            history.append(row)
            if mine.watch is not None:
                mine.watch(row)
        if ends:
            break
    best = len(history)
    if watch is not None and watch.restore():
        best = watch.best_epoch
        metrics = await _test(worker)
    return {
        "history": history,
        "state": {k: v.detach().clone() for k, v in worker.parts.state_dict().items()},
        "metrics": metrics,
        "best_epoch": best,
    }


class EarlyStop:
    """Stops training when the loss on validation rows has not fallen for `patience` epochs.

    The label holder has the loss and tells the others after every epoch; each party keeps its weights of the
    best epoch. A label holder that lies can end the training, or keep the weights of another epoch.
    """

    def __init__(self, worker: SplitWorker):
        self.worker, self.terms = worker, worker.terms
        self.rows = self.terms.validation()
        self.loss: float | None = None  # of the last epoch, if this party has it and there are rows
        self.lowest, self.best_epoch, self.stale = math.inf, 0, 0
        self.state: dict[str, Tensor] = {}

    async def after(self, epoch: int, train_loss: float) -> bool:
        """Decide, or hear, whether training ends after this epoch."""
        worker, route = self.worker, self.terms.routes[0]
        if len(self.rows):
            x = worker.mine.x.get(0)
            out = await worker.forward_rows(0, len(self.rows), None if x is None else x[self.rows])
            if out is not None:
                self.loss = float(compute_loss(self.terms.loss, out, worker.mine.y[0][self.rows]))
        holder, me = route.stops[-1], worker.me
        if me.name == holder:
            loss = train_loss if self.loss is None else self.loss
            is_best = loss < self.lowest - LESS * abs(self.lowest) if self.best_epoch else True
            self.stale = 0 if is_best else self.stale + 1
            self.lowest = loss if is_best else self.lowest
            verdict = EpochEnd(epoch, is_best, self.stale >= self.terms.patience)
            await me.send([name for name in route.parties if name != holder], verdict)
        else:
            verdict = await me.recv(holder, EpochEnd, within=worker.mine.within)
            if verdict.epoch != epoch:
                raise ProtocolError(
                    f"{holder!r} ended epoch {verdict.epoch + 1}; {me.name!r} is in epoch {epoch + 1}."
                )
        if verdict.is_best:
            self.best_epoch = epoch + 1
            self.state = {k: v.detach().clone() for k, v in worker.parts.state_dict().items()}
        return verdict.ends

    def restore(self) -> bool:
        """Load the weights of the best epoch; return whether there is one."""
        if self.best_epoch:
            self.worker.parts.load_state_dict(self.state)
        return bool(self.best_epoch)


async def agree(me: Party, terms: SplitTerms, mine: SplitInputs) -> None:
    """Check that all parties have the same settings, and rows in the same order."""
    others = [name for name in dict.fromkeys(n for r in terms.routes for n in r.parties) if name != me.name]
    if not any(me.name in r.parties for r in terms.routes):
        raise bad("splitnn", "the route", terms.routes, f"one that includes {me.name!r}")
    with_rows = {name for r in terms.routes for name in (*r.sources, r.stops[-1])}
    for name in others:
        await me.send(name, Agreed(terms.text(), mine.fingerprint if name in with_rows else b""))
    for name, message in (await me.gather(others, Agreed, within=mine.within)).items():
        if message.terms != terms.text():
            try:
                theirs, ours = json.loads(message.terms), json.loads(terms.text())
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
        if message.ids and mine.fingerprint and message.ids != mine.fingerprint:
            raise ProtocolError(
                f"the rows of {name!r} and {me.name!r} do not have the same ids in the same order. Align "
                "them first (tacit.align)."
            )


async def _test(worker: SplitWorker) -> dict[str, float]:
    outs, ys = [], []
    for turn, route in enumerate(worker.terms.routes):
        if worker.terms.tests[turn] and worker.me.name in route.parties:
            out = await worker.forward_rows(turn, worker.terms.tests[turn], worker.mine.test_x.get(turn))
            if out is not None:
                outs.append(out)
                ys.append(worker.mine.test_y[turn])
    return (
        worker.mine.measure(torch.cat(outs), torch.cat(ys))
        if outs and worker.mine.measure is not None
        else {}
    )


async def _hand_on(worker: SplitWorker, clients: Sequence[str], turn: int) -> None:
    """Send the client's part to the next client; after the last turn, to all of them."""
    me, sender = worker.me, clients[turn]
    receivers = clients[turn + 1 : turn + 2] or clients[:-1]
    if me.name == sender:
        await me.send(receivers, HandedOn(worker.export_state(memory=True)))
    elif me.name in receivers:
        worker.load_state(
            (await me.recv(sender, HandedOn, within=worker.mine.within)).vectors, sender, memory=True
        )


async def _average(worker: SplitWorker, clients: Sequence[str]) -> None:
    """Average the clients' parts at the first client, weighted by rows; optimizer states stay local.

    The server, which sees activations, does not see the part that produced them.
    """
    me, first = worker.me, clients[0]
    if me.name != first:
        await me.send(first, HandedOn(worker.export_state(memory=False)))
        worker.load_state(
            (await me.recv(first, HandedOn, within=worker.mine.within)).vectors, first, memory=False
        )
        return
    states = {
        first: worker.export_state(memory=False),
        **{
            name: m.vectors
            for name, m in (await me.gather(clients[1:], HandedOn, within=worker.mine.within)).items()
        },
    }
    mean = average_states([states[name] for name in clients], worker.terms.rows)
    worker.load_state(mean, first, memory=False)
    await me.send(clients[1:], HandedOn(mean))


def average_states(states: Sequence[Mapping[str, Tensor]], weights: Sequence[int]) -> dict[str, Tensor]:
    """Return the weighted mean of floating-point entries; integers are taken from the first state."""
    if any(
        s.keys() != states[0].keys() or any(s[k].shape != v.shape for k, v in states[0].items())
        for s in states
    ):
        raise ProtocolError(
            "the clients' parts have different shapes. All clients of a relay need the same part."
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
    """Predict jointly on the `tests` rows (`test_x`): the last stop returns the outputs, others None."""
    worker = SplitWorker(me, terms, mine)
    await agree(me, terms, mine)
    return await worker.forward_rows(0, terms.tests[0], mine.test_x.get(0))


def ideal(
    terms: SplitTerms,
    bottoms: Mapping[str, nn.Module],
    stops: Sequence[nn.Module],
    x: Sequence[Mapping[str, Tensor]],
    y: Sequence[Tensor],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    peek: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Train the same network in one place: one loss and one backward pass per batch.

    `x[route][source]` and `y[route]` are the rows. In a relay the clients' part is the first client's (handed
    on) or a copy for each client (averaged), including stops that a client holds.
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
        ]  # one by one: a deepcopy of the whole list would keep shared modules shared

    def params(*modules: nn.Module) -> list[nn.Parameter]:
        return list(dict.fromkeys(p for m in modules for p in m.parameters()))

    client_params = [params(*below.values(), *client_stops.values()) for below, client_stops in sets]
    own = [
        optimizer(m) if m else None
        for m in (client_params if terms.clients == "average" else client_params[:1])
    ]
    rest = optimizer(params(*shared)) if params(*shared) else None
    for epoch in range(terms.epochs):
        for turn, route in enumerate(terms.routes):
            (below, client_stops), opt = sets[turn], own[turn if terms.clients == "average" else 0]
            for rows in terms.batches(epoch, turn):
                activations = [(x[turn][s][rows], below[s](x[turn][s][rows])) for s in route.sources]
                out: Any = [z for _, z in activations]
                for depth, stop in enumerate(stops):
                    out = client_stops.get(depth, stop)(out if depth == 0 else [out])
                loss = compute_loss(terms.loss, out, y[turn][rows])
                if peek is not None:
                    loss = loss + sum(peek(a, z) for a, z in activations)
                torch.autograd.backward(loss)
                for o in (opt, rest):
                    if o is not None:
                        o.step()
                        o.zero_grad(set_to_none=True)
        if relay and terms.clients == "average":
            modules = [
                nn.ModuleList([*below.values(), *client_stops.values()]) for below, client_stops in sets
            ]
            mean = average_states([m.state_dict() for m in modules], terms.rows)
            for m in modules:
                m.load_state_dict(mean)
    if relay and terms.clients == "average":  # the averaged part
        one.load_state_dict(next(iter(sets[0][0].values())).state_dict())
        for d in depths:
            stops[d].load_state_dict(sets[0][1][d].state_dict())
