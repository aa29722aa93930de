"""LSTM and GRU, as one node for each layer and direction."""

from __future__ import annotations

from typing import Any

from ..export import Builder, Constant, Refused, Value
from .registry import handles
from .views import narrow, transpose


@handles("lstm", "gru")
def recurrent(
    b: Builder,
    x: Value,
    start: Any,
    weights: list[Any],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    assert b.node is not None
    kind = b.node.target.overloadpacket.__name__  # type: ignore[union-attr]
    given = start if isinstance(start, list | tuple) else [start]
    if any(isinstance(s, Value) or bool((s.tensor != 0).any()) for s in given):
        raise Refused("its first state must be zeros: do not pass one")
    x = b.number(x)
    x = x if batch_first else transpose(b, x, 0, 1)
    rows, steps = x.size[0], x.size[1]
    each, ways = (4 if has_biases else 2), (2 if bidirectional else 1)
    if len(weights) != layers * ways * each:
        raise Refused("projections (proj_size) are not supported")
    finals: list[list[Value]] = [[], []]
    for number in range(layers):
        outs = []
        for way in range(ways):
            own = weights[(number * ways + way) * each :][:each]
            y = _recurrent_layer(b, x, own, kind, bool(way))
            size = own[1].tensor.shape[1]
            last = 0 if way else steps - 1
            for place, begin in enumerate((0, size) if kind == "lstm" else (0,)):
                state = narrow(b, y, 2, begin, begin + size)
                finals[place].append(narrow(b, state, 1, last, last + 1))
                if not place:
                    outs.append(state)
        wide = sum(o.size[-1] for o in outs)
        x = outs[0] if ways == 1 else b.emit("cat", outs, [rows, steps, wide], dim=2)
    out = x if batch_first else transpose(b, x, 0, 1)
    ends = []
    for states in finals[: 2 if kind == "lstm" else 1]:
        joined = states[0]
        if len(states) > 1:
            joined = b.emit("cat", states, [rows, len(states), states[0].size[-1]], dim=1)
        ends.append(transpose(b, joined, 0, 1))
    return (out, *ends)


def _recurrent_layer(b: Builder, x: Value, own: list[Constant], kind: str, reverse: bool) -> Value:
    wide, deep = own[0], own[1]
    gates, size = wide.tensor.shape[0], deep.tensor.shape[1]
    biases: list[Constant | None] = [None, None]
    if len(own) == 4:
        first, second = own[2], own[3]
        both = b.derived(first, first.tensor + second.tensor)  # an LSTM adds both to the same sum
        biases = [both, None] if kind == "lstm" else [first, second]
    layers = [
        b.weighted("linear", w, bias, list(w.tensor.T.shape), transform=lambda t: t.T, key="recurrent")
        for w, bias in ((wide, biases[0]), (deep, biases[1]))
    ]
    count = 2 * size if kind == "lstm" else size
    assert gates == (4 if kind == "lstm" else 3) * size
    return b.emit(kind, [x], [x.size[0], x.size[1], count], layers=layers, reverse=reverse)
