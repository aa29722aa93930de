"""tacit.synthesize: several holders, one synthetic table; the same numbers in one process, over processes,
masked or not.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.errors import BadData, BadParameter, ProtocolError
from tacit.jobs.synthesize import _Computation, _job
from tacit.runtimes import Processes
from tacit.synth import (
    ARGN,
    CTGAN,
    GAN,
    WGAN,
    Cart,
    Combinations,
    GaussianCopula,
    Table,
    categorical,
    continuous,
    integer,
)
from tacit.synth.conformance import _check_columns, _check_constraints, example
from tacit.synth.encode import Layout
from tacit.synth.federated import Histograms
from tacit.synth.pooled_argn import PooledARGN, split_holder_rows

SMALL = dict(epochs=2, width=16, noise=8, device="cpu")
NETWORK = dict(epochs=2, width=16, embedding=4, device="cpu")


def clinics(rows: int = 900) -> tuple[dict[str, pd.DataFrame], Table]:
    frame, table = example(rows)
    return {
        "bonn": frame.iloc[: rows // 2],
        "kiel": frame.iloc[rows // 2 : rows // 2 + 100],
        "ulm": frame.iloc[rows // 2 + 100 :],
    }, table


def same(a, b) -> bool:
    one, two = a.state.tensors, b.state.tensors
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize(
    "generator",
    [GaussianCopula(bins=16), ARGN(**NETWORK), GAN(**SMALL), WGAN(**SMALL), CTGAN(**SMALL)],
    ids=lambda g: type(g).__name__,
)
def test_masked_sums_give_what_sums_in_the_clear_give(generator):
    parts, table = clinics()
    made = tacit.synthesize(parts, table, generator)
    assert same(made, tacit.synthesize(parts, table, generator, hide=False))
    rows = made.sample(200, seed=1)
    _check_columns("synthesize", rows, parts["bonn"], made.table)
    _check_constraints("synthesize", rows, made.table)
    assert (made.sample(20, conditions={"sex": "F"})["sex"] == "F").all()


@pytest.mark.parametrize(
    "generator", [GaussianCopula(bins=16), ARGN(**NETWORK), GAN(**SMALL)], ids=lambda g: type(g).__name__
)
def test_parties_in_processes_of_their_own_give_what_one_process_gives(generator):
    parts, table = clinics(300)
    far, near = (
        tacit.synthesize(parts, table, generator, runtime=Processes()),
        tacit.synthesize(parts, table, generator),
    )
    assert same(far, near)
    assert {(s.party, s.sender, s.kind, s.count) for s in far.ledger.seen} == {
        (s.party, s.sender, s.kind, s.count) for s in near.ledger.seen
    }


def test_a_copula_does_not_see_who_held_which_rows():
    """Counts add up: three holders, one holder, and two that share the rows another way give the same
    tensors.
    """
    parts, table = clinics()
    everything = pd.concat(parts.values(), ignore_index=True)
    made = tacit.synthesize(parts, table, GaussianCopula(bins=16))
    assert same(made, tacit.synthesize({"one": everything}, table, GaussianCopula(bins=16), hide=False))
    assert same(
        made,
        tacit.synthesize(
            {"odd": everything.iloc[1::2], "even": everything.iloc[::2]}, table, GaussianCopula(bins=16)
        ),
    )


def test_a_copula_of_three_holders_is_near_the_copula_of_all_rows():
    """Cells differ, since those of one table follow its own quantiles; the correlations and the columns'
    means are the same within the cells' width.
    """
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 3000)
    frame = pd.DataFrame(
        {
            "x": x[:, 0].clip(-6, 6),
            "y": x[:, 1].clip(-6, 6),
            "k": np.where(x[:, 0] + rng.normal(size=3000) > 0, "a", "b"),
        }
    )
    table = Table.infer(frame, x=continuous(-6, 6), y=continuous(-6, 6), k=categorical(["a", "b"]))
    made = tacit.synthesize({"p": frame[:700], "q": frame[700:]}, table, GaussianCopula(bins=64))
    whole = GaussianCopula(bins=64).fit(frame, table)
    one, two = ((f := m.state.tensors["factor"]) @ f.T for m in (made, whole))
    assert (
        float((one.abs() - two.abs()).abs().max()) < 0.02
    )  # the order of two categories, and so a sign, is free
    drawn = made.sample(3000, seed=0)
    assert abs(drawn["x"].corr(drawn["y"]) - 0.6) < 0.05  # a correlation of 3,000 rows strays by .012
    assert abs((drawn["k"] == "a").mean() - (frame["k"] == "a").mean()) < 0.01


@pytest.mark.parametrize(("kind", "alike", "right"), [(GAN, 0, 0.7), (CTGAN, 100, 0.85)])
def test_networks_that_meet_learn_what_no_holder_has_alone(kind, alike, right):
    """a's are around −3, b's around 3, and each party has 400 − `alike` of one and `alike` of the other. The joint
    generator produces both correctly; one that learned nothing would be right in half of the rows (1,000 rows:
    .5 ± .05, three standard deviations).
    """
    rng = np.random.default_rng(0)
    a = pd.DataFrame({"k": ["a"] * 400, "x": rng.normal(-3, 0.5, 400)})
    b = pd.DataFrame({"k": ["b"] * 400, "x": rng.normal(3, 0.5, 400)})
    holders = {"l": pd.concat([a[alike:], b[:alike]]), "r": pd.concat([a[:alike], b[alike:]])}
    table = {"k": categorical(["a", "b"]), "x": continuous(-8, 8)}
    made = tacit.synthesize(
        holders, table, kind(epochs=60, batch=100, width=32, noise=8, lr=2e-3, device="cpu"), hide=False
    )
    drawn = made.sample(1000, seed=0)
    assert 0.3 < (drawn["k"] == "a").mean() < 0.7
    assert ((drawn["x"] < 0) == (drawn["k"] == "a")).mean() > right


def split_by_group(alike: int = 150) -> dict[str, pd.DataFrame]:
    """a's are around −3, b's around 3; each party has more of one of them."""
    rng = np.random.default_rng(0)
    a = pd.DataFrame({"k": ["a"] * 400, "x": rng.normal(-3, 0.5, 400)})
    b = pd.DataFrame({"k": ["b"] * 400, "x": rng.normal(3, 0.5, 400)})
    return {"l": pd.concat([a[alike:], b[:alike]]), "r": pd.concat([a[:alike], b[alike:]])}


def test_an_autoregressive_network_learns_the_rows_of_all_and_stops_by_itself():
    """Half of the rows would be right by chance: 1,000 rows, .5 ± .016. What is conditioned on comes first."""
    table = {"k": categorical(["a", "b"]), "x": continuous(-8, 8)}
    made = tacit.synthesize(split_by_group(), table, ARGN(device="cpu"), hide=False)
    assert 10 < len(made.history) < 102  # one sum of counts, at most 100 epochs, and one to judge the last
    drawn = made.sample(1000, seed=0)
    assert abs((drawn["k"] == "a").mean() - 0.5) < 0.1
    assert ((drawn["x"] < 0) == (drawn["k"] == "a")).mean() > 0.97
    assert (made.sample(100, conditions={"x": (1.0, 5.0)}, seed=1)["k"] == "b").mean() > 0.9
    filled = made.impute(pd.DataFrame({"k": [None, None], "x": [-3.0, 3.0]}), seed=0)
    assert list(filled["k"]) == ["a", "b"]
    kinds = {s.kind: s.reveals for s in made.ledger.seen if s.party == "coordinator"}
    assert "how likely held-out rows are" in kinds["Weights"]


def test_the_best_common_weights_are_kept():
    """The coordinator judges each state by the sum of held-out losses that comes with the next one."""
    histograms = Histograms(Layout(Table.declare({"k": categorical(["a", "b"])})))
    pooled = PooledARGN(ARGN(**NETWORK, patience=1), histograms, np.array([600, 400]))
    first = pooled.weights()

    def add(weight: float, loss: float) -> None:
        entries = np.append(np.full(pooled.size, weight) + 64.0, loss)
        pooled.merge(np.rint(entries * 2**24).astype(np.int64))

    add(0.25, 3.0)  # judges the first weights: 3
    add(0.5, 2.0)  # judges those of .25: better
    assert pooled.weights()[0] == 0.5
    add(0.75, 2.5)  # judges those of .5: worse, so that training goes back to .25
    assert pooled.weights()[0] == 0.25
    assert pooled.weights()[-1] == 1
    add(0.9, 2.0)
    add(0.9, 2.0)
    assert pooled.is_done
    assert all((t == 0.25).all() for name, t in pooled.tensors().items() if name.startswith("network"))
    assert not torch.equal(first[:-1], pooled.weights()[:-1])


def test_with_few_rows_a_network_waits_twice_as_long():
    histograms = Histograms(Layout(Table.declare({"k": categorical(["a", "b"])})))
    for counts, rounds in (([500, 499], 3), ([500, 500], 2)):
        pooled = PooledARGN(ARGN(**NETWORK, patience=1), histograms, np.array(counts))
        falls = []
        for _ in range(3):  # the first loss is the best so far; two more are no better
            pooled.merge(np.rint(np.append(np.full(pooled.size, 64.0), 1.0) * 2**24).astype(np.int64))
            falls.append(int(pooled.weights()[-1]))
        assert falls.index(1) + 1 == rounds


def test_held_out_rows_are_in_no_count_and_only_judge():
    """An untrained network that knows their frequencies looks better than any trained one, so that few rows
    teach nothing; and a sum of all rows beside one of training rows would show the held-out ones.
    """
    table = Table.declare({"k": categorical(["a", "b"]), "x": continuous(0, 1)})
    names = ["p", "q"]
    v = np.column_stack([np.arange(40) % 2, np.linspace(0, 1, 40)])
    used, held_out = split_holder_rows(ARGN(**NETWORK), len(v))
    assert sorted([*used, *held_out]) == list(range(40))
    assert len(held_out) == 4
    other = v.copy()
    other[held_out] = [1, 0.5]
    sums = []
    for rows in (v, other):
        work = _Computation(**_job(table, ARGN(**NETWORK), 1, True, names))
        counts = work.local(0, rows, 0)
        work.merge(0, 2 * counts)
        sums.append((counts, work.local(1, rows, 0)))
    (counts, first), (again, second) = sums
    assert (counts == again).all()
    assert counts.sum() == 2 * len(used)  # two columns
    assert (first[:-1] == second[:-1]).all()  # the weights
    assert first[-1] != second[-1]  # how likely the held-out rows are


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s[:-1],
        lambda s: torch.cat([s, s]),
        lambda s: torch.where(torch.arange(len(s)) == 3, torch.nan, s),
        lambda s: torch.cat([s[:-1], torch.tensor([-1.0])]),
        lambda s: torch.cat([s[:-1], torch.tensor([0.5])]),
        lambda s: torch.cat([s[:-1], torch.tensor([3.0])]),
        lambda s: None,
    ],
)
def test_a_holder_refuses_a_state_that_is_not_one(change):
    """A lying coordinator could otherwise raise the learning rate, or stop a holder with an unclear error."""
    histograms = Histograms(Layout(Table.declare({"k": categorical(["a", "b"])})))
    pooled = PooledARGN(ARGN(**NETWORK), histograms, np.array([30, 20]))
    with pytest.raises(ProtocolError, match="Nothing was sent"):
        pooled.contribute(np.zeros((50, 1)), change(pooled.weights()), 1, 0)
    assert len(pooled.contribute(np.zeros((50, 1)), pooled.weights(), 1, 0)[0]) == pooled.length


def test_a_holder_with_one_row_or_none_takes_part():
    """It returns the common weights times its share of the rows."""
    histograms = Histograms(Layout(Table.declare({"k": categorical(["a", "b"])})))
    pooled = PooledARGN(ARGN(**NETWORK), histograms, np.array([30, 20]))
    state = pooled.weights()
    for rows in (0, 1):
        got = pooled.contribute(np.zeros((rows, 1)), state, 1, 0)[0]
        expected = np.rint((state[:-1].double().numpy() + 64) * 2**24 * rows / 50).astype(np.int64)
        assert (got[:-1] == expected).all()
        assert got[-1] == 0


def test_the_ledger_says_what_the_coordinator_learns_and_that_it_sees_no_holders_numbers():
    parts, table = clinics(300)
    made = tacit.synthesize(parts, table, GaussianCopula(bins=8))
    kinds = {s.kind for s in made.ledger.seen if s.party == "coordinator"}
    assert "Upload" not in kinds
    assert {"MaskedVector", "Counts", "TwoWayCounts"} <= kinds
    assert made.ledger.stamps[0].startswith("NOT DIFFERENTIALLY PRIVATE")
    told = {s.party: s.reveals for s in made.ledger.seen if s.kind == "Counts" and s.sender == "coordinator"}
    assert set(told) == set(
        parts
    )  # the totals are sent back: two holders have each other's counts, three those of the others together
    assert all(
        ("and so of the other one" if len(parts) == 2 else "and so of the others together") in text
        for text in told.values()
    )
    clear = tacit.synthesize(parts, table, GaussianCopula(bins=8), hide=False)
    assert "Upload" in {s.kind for s in clear.ledger.seen if s.party == "coordinator"}


def test_a_generator_of_several_holders_is_saved_and_draws_as_it_did(tmp_path):
    parts, table = clinics(300)
    made = tacit.synthesize(parts, table, CTGAN(**SMALL))
    again = tacit.synth.load(made.save(tmp_path / "g"))
    pd.testing.assert_frame_equal(again.sample(50, seed=2), made.sample(50, seed=2))


def test_the_stand_in_has_its_declared_counts():
    """Including nulls and spikes: counting the stand-in again gives the same counts."""
    frame, table = example()
    x = table.to_numbers(frame)
    layout = Layout(table.resolve_constraints(x))
    h = Histograms(layout)
    counts = h.count(layout.encode(x))
    assert (h.count(h.stand_in_rows(counts)) == counts).all()
    assert counts.sum() == len(frame) * len(layout.variables)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"generator": Cart()},
            "synthesize: generator is 'Cart'; it must be one of GaussianCopula, GAN, WGAN, CTGAN, ARGN. "
            "Other "
            "generators need all rows in one place",
        ),
        ({"generator": GAN(checkpoints=2)}, "checkpoints is 2; it must be 1"),
        ({"holders": {}}, "at least two holders if sums are hidden"),
        ({"holders": [1]}, "holders is 'list'; it must be a dictionary"),
        ({"holders": {"coordinator": None, "b": None}}, r"each holder's name \(not 'coordinator'\)"),
        ({"table": None}, "table is 'NoneType'; it must be a Table, or a dictionary of declared columns"),
        ({"local_epochs": 0}, "local_epochs is 0; it must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_is_refused(change, words):
    frame = pd.DataFrame({"a": [1, 2, 3]})
    ask = {
        "holders": {"p": frame, "q": frame},
        "table": {"a": integer(0, 9)},
        "generator": GaussianCopula(),
        **change,
    }
    with pytest.raises(BadParameter, match=words):
        tacit.synthesize(**ask)


def test_rows_and_domains_that_do_not_fit_are_refused_and_the_holder_is_named():
    good, bad = pd.DataFrame({"a": [1, 2, 3]}), pd.DataFrame({"a": [1, 20]})
    with pytest.raises(BadData, match=r"the rows of 'q': the column 'a': 20 in row 2 .* is outside \[0, 9\]"):
        tacit.synthesize({"p": good, "q": bad}, {"a": integer(0, 9)})
    with pytest.raises(BadData, match="the domain of 'a' is not declared, and no holder sees all rows"):
        tacit.synthesize({"p": good, "q": good}, Table.infer(good))
    table = Table.infer(
        good.assign(b="x"), a=integer(0, 9), b=categorical(["x"]), constraints=[Combinations("a", "b")]
    )
    with pytest.raises(BadData, match=r"would be inferred from the rows\. Give `allowed`"):
        tacit.synthesize({"p": good.assign(b="x"), "q": good.assign(b="x")}, table)
