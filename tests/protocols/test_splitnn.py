"""A split network computes the same as one network, in every configuration; deviations from the job are refused."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

from tacit.errors import BadData, PartyFailed
from tacit.parties import Ledger
from tacit.parties.conformance import check_protocol
from tacit.protocols import splitnn
from tacit.protocols.splitnn import Route, SplitInputs, SplitTerms
from tacit.protocols.splitnn_parts import make_merge
from tacit.protocols.splitnn_terms import Segment
from tacit.runtimes import InProcess

WIDE = {"a": 6, "b": 3, "c": 4}


def sgd(lr=0.1, momentum=0.9):
    return functools.partial(torch.optim.SGD, lr=lr, momentum=momentum)


def adam():
    return functools.partial(torch.optim.Adam, lr=1e-2)


def targets(kind, rows, g):
    if kind == "mse":
        return torch.randn(rows, generator=g)
    return torch.randint(0, 2 if kind == "bce" else 3, (rows,), generator=g)


OUT = {"mse": 1, "bce": 1, "cross_entropy": 3}


def world(
    configuration,
    loss="cross_entropy",
    merge="concat",
    hops=0,
    clients="hand on",
    labels="server",
    seed=0,
    **told,
):
    """(terms, bottoms by source, stops by depth, rows by route, labels by route) of a small network."""
    g = torch.Generator().manual_seed(seed)
    rows = 53
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width = 5
        if configuration == "relay":
            names = ["a", "b", "c"]
            sizes = [31, 17, 23]
            bottom = nn.Sequential(nn.Linear(6, width), nn.Tanh())
            last = ("server",) if labels == "server" else ("server", "CLIENT")
            routes = tuple(Route((n,), tuple(n if s == "CLIENT" else s for s in last)) for n in names)
            stops = [
                Segment(
                    make_merge("concat", 1, width), nn.Linear(width, OUT[loss] if labels == "server" else 4)
                )
            ]
            if labels != "server":
                stops.append(
                    Segment(make_merge("concat", 1, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, OUT[loss])))
                )
            x = [{n: torch.randn(k, 6, generator=g)} for n, k in zip(names, sizes)]
            y = [targets(loss, k, g) for k in sizes]
            return (
                SplitTerms(
                    routes, tuple(sizes), (0, 0, 0), batch_size=8, loss=loss, clients=clients, seed=3, **told
                ),
                dict.fromkeys(names, bottom),
                stops,
                x,
                y,
            )
        names = {"vanilla": ["a"], "u": ["a"], "vertical": ["a", "b", "c"]}[configuration]
        bottoms = {n: nn.Sequential(nn.Linear(WIDE[n], width), nn.Tanh()) for n in names}
        middle = [f"m{i}" for i in range(hops)]
        stops_at = {
            "vanilla": (*middle, "labels"),
            "u": (*(middle or ["m0"]), "a"),
            "vertical": (*middle, "a"),
        }[configuration]
        after = width * len(names) if merge == "concat" else width
        stops, wide = [], after
        for depth in range(len(stops_at)):
            last = depth == len(stops_at) - 1
            join = make_merge(merge, len(names), width) if depth == 0 else make_merge("concat", 1, wide)
            body = nn.Linear(wide, OUT[loss]) if last else nn.Sequential(nn.Linear(wide, 7), nn.ReLU())
            stops.append(Segment(join, body))
            wide = 7
        x = [{n: torch.randn(rows, WIDE[n], generator=g) for n in names}]
        return (
            SplitTerms(
                (Route(tuple(names), stops_at),), (rows,), (0,), batch_size=8, loss=loss, seed=3, **told
            ),
            bottoms,
            stops,
            x,
            [targets(loss, rows, g)],
        )


def seats(made, optimizer, **more):
    """One `SplitInputs` a party, with copies of its parts."""
    terms, bottoms, stops, x, y = made
    mine = {}
    for turn, route in enumerate(terms.routes):
        for name in route.parties:
            seat = mine.setdefault(name, SplitInputs(optimizer, **more))
            if name in route.sources:
                seat.bottom = seat.bottom or copy.deepcopy(bottoms[name])
                seat.x[turn] = seat.test_x[turn] = x[turn][name]
            for depth, at in enumerate(route.stops):
                if at == name:
                    seat.stops.setdefault(depth, copy.deepcopy(stops[depth]))
            if route.stops[-1] == name:
                seat.y[turn] = seat.test_y[turn] = y[turn]
    return mine


def programs(made, optimizer, **more):
    terms = made[0]
    return {
        name: functools.partial(splitnn.party, terms=terms, mine=mine)
        for name, mine in seats(made, optimizer, **more).items()
    }


def whole(made, optimizer, peek=None):
    """What one network in one place has learned: by party, the weights that party would hold."""
    terms, bottoms, stops, x, y = copy.deepcopy(made)
    splitnn.ideal(terms, bottoms, stops, x, y, optimizer, peek)
    held = {}
    for route in terms.routes:
        for name in route.parties:
            mine = held.setdefault(name, {})
            if name in route.sources:
                mine |= {f"bottom.{k}": v for k, v in bottoms[name].state_dict().items()}
            for depth, at in enumerate(route.stops):
                if at == name:
                    mine |= {f"stop{depth}.{k}": v for k, v in stops[depth].state_dict().items()}
    return held


CASES = {
    "vanilla": {"configuration": "vanilla"},
    "vanilla, two hops": {"configuration": "vanilla", "hops": 2},
    "vanilla, regression": {"configuration": "vanilla", "loss": "mse"},
    "u": {"configuration": "u", "hops": 1},
    "u, two hops, binary": {"configuration": "u", "hops": 2, "loss": "bce"},
    "vertical, concat": {"configuration": "vertical"},
    "vertical, sum, binary": {"configuration": "vertical", "merge": "sum", "loss": "bce"},
    "vertical, gated, regression": {"configuration": "vertical", "merge": "gated", "loss": "mse"},
    "vertical, one hop": {"configuration": "vertical", "hops": 1},
    "relay, handed on": {"configuration": "relay"},
    "relay, averaged": {"configuration": "relay", "clients": "average"},
    "relay, labels at the clients": {"configuration": "relay", "labels": "clients"},
    "relay, labels at the clients, averaged": {
        "configuration": "relay",
        "labels": "clients",
        "clients": "average",
        "loss": "bce",
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_parts_learn_what_one_network_learns(case, optimizer):
    """Four epochs: every weight of every party equals that of the network in one place; nothing is even
    rounded otherwise.
    """
    made, how = world(**CASES[case], epochs=4), {"sgd": sgd(), "adam": adam()}[optimizer]
    got = InProcess().run_sync(programs(made, how))
    for name, state in whole(made, how).items():
        for key, value in state.items():
            assert torch.allclose(got[name]["state"][key], value, rtol=0, atol=1e-7), (name, key)
    start = seats(made, how)
    assert any(
        (got[n]["state"][k] - v).abs().max() > 1e-3
        for n, s in start.items()
        for k, v in s.parts.state_dict().items()
    ), "nothing was learned"


@pytest.mark.parametrize("case", ["vanilla", "u, two hops, binary", "vertical, concat", "relay, averaged"])
def test_slices_change_only_the_order_of_sums(case):
    made = world(**CASES[case], epochs=3, slices=3)
    got = InProcess().run_sync(programs(made, sgd()))
    for name, state in whole(made, sgd()).items():
        for key, value in state.items():
            assert torch.allclose(got[name]["state"][key], value, rtol=0, atol=2e-6), (name, key)


@pytest.mark.parametrize("case", ["vanilla", "u", "vertical, gated, regression", "relay, handed on"])
def test_the_protocol_keeps_its_promises(case):
    """Ideal, ledger, twice the same, and it dies as a whole (tacit.testing.check_protocol)."""
    made = world(**CASES[case], epochs=1)

    def equal(a, b):
        return all(torch.allclose(a["state"][k], v, atol=1e-6) for k, v in b["state"].items())

    check_protocol(
        lambda seed: programs(made, sgd()),
        lambda seed: {n: {"state": s} for n, s in whole(made, sgd()).items()},
        [0],
        equal=equal,
    )


def test_an_extra_loss_of_the_sources_is_learned_with_the_network():
    def peek(x, z):
        return 0.3 * (z**2).mean()

    made = world("vertical", epochs=3)
    got = InProcess().run_sync(programs(made, sgd(), peek=peek))
    plain = InProcess().run_sync(programs(made, sgd()))
    for name, state in whole(made, sgd(), peek).items():
        for key, value in state.items():
            assert torch.allclose(got[name]["state"][key], value, rtol=0, atol=1e-6), (name, key)
    assert not torch.allclose(
        got["b"]["state"]["bottom.0.weight"], plain["b"]["state"]["bottom.0.weight"], atol=1e-3
    )


def test_the_joint_outputs_are_those_of_the_whole_network_and_only_the_last_stop_has_them():
    made = world("vertical", epochs=0)
    terms, bottoms, stops, x, _ = made
    terms = SplitTerms(terms.routes, terms.rows, (53,), epochs=0)
    mine = seats(made, sgd())
    got = InProcess().run_sync(
        {name: functools.partial(splitnn.predict, terms=terms, mine=m) for name, m in mine.items()}
    )
    want = stops[0]([bottoms[n](x[0][n]) for n in terms.routes[0].sources])
    assert torch.equal(got["a"], want)
    assert got["b"] is None
    assert got["c"] is None


def test_the_ledger_states_who_sees_what():
    ledger = Ledger()
    InProcess().run_sync(programs(world("vanilla", epochs=1), sgd()), ledger=ledger)
    lines = {(line.party, line.sender, line.kind): line.reveals for line in ledger.seen}
    assert "columns can be rebuilt" in lines["labels", "a", "Activations"]
    assert "give labels away" in lines["a", "labels", "CutGradients"]
    assert ledger.stamps[0].startswith("SEMI-HONEST")
    assert not any(kind == "HandedOn" for _, _, kind in lines)


def test_in_a_relay_the_server_never_has_the_clients_part():
    for clients in ("hand on", "average"):
        ledger = Ledger()
        InProcess().run_sync(programs(world("relay", clients=clients, epochs=2), sgd()), ledger=ledger)
        assert {line.party for line in ledger.seen if line.kind == "HandedOn"} == {"a", "b", "c"}


def test_parties_with_different_settings_stop_before_the_first_batch():
    made, other = world("vanilla", epochs=1), world("vanilla", epochs=2)
    mine = seats(made, sgd())
    with pytest.raises(
        PartyFailed,
        match=r"have different settings: epochs \(.* there, .* here\)\. All parties must start the same "
        r"job\.",
    ):
        InProcess().run_sync(
            {
                "a": functools.partial(splitnn.party, terms=made[0], mine=mine["a"]),
                "labels": functools.partial(splitnn.party, terms=other[0], mine=mine["labels"]),
            }
        )


def test_rows_in_another_order_are_noticed_before_the_first_batch():
    made = world("vanilla", epochs=1)
    mine = seats(made, sgd())
    mine["a"].fingerprint, mine["labels"].fingerprint = (
        splitnn.fingerprint(["1", "2"], b"key"),
        splitnn.fingerprint(["2", "1"], b"key"),
    )
    with pytest.raises(PartyFailed, match=r"do not have the same ids in the same order\. Align them first"):
        InProcess().run_sync(
            {n: functools.partial(splitnn.party, terms=made[0], mine=m) for n, m in mine.items()}
        )


def test_a_network_that_diverges_says_so():
    with pytest.raises(PartyFailed, match=r"the network diverges\. Use a smaller learning rate") as failed:
        InProcess().run_sync(programs(world("vanilla", loss="mse", epochs=9), sgd(lr=1e6)))
    assert isinstance(failed.value.error, BadData)


def test_dropout_draws_the_same_twice_and_leaves_the_callers_random_numbers_alone():
    made = world("vanilla", epochs=2)
    made[1]["a"].append(nn.Dropout(0.5))
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two = (InProcess().run_sync(programs(made, sgd())) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one["a"]["state"]["bottom.0.weight"], two["a"]["state"]["bottom.0.weight"])
    assert not torch.equal(one["a"]["state"]["bottom.0.weight"], whole(made, sgd())["a"]["bottom.0.weight"])
