"""The weighted mean, as a rule of the simulation and at a server of real parties."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tacit.aggregate import ALL, Mean
from tacit.aggregate.mean import combine

numbers = st.floats(-100, 100, width=32)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.float32, (n, 3), elements=numbers),
            hnp.arrays(np.float32, n, elements=st.floats(0.125, 1000, width=32)),
        )
    )
)
def test_the_mean_is_numpys_weighted_average(drawn):
    vectors, weights = drawn
    ours = combine(
        [(float(w), {"w": torch.from_numpy(v), "tau": torch.tensor(v[0])}) for w, v in zip(weights, vectors)],
        Mean(),
    )
    wanted = np.average(vectors.astype(np.float64), axis=0, weights=weights.astype(np.float64))
    np.testing.assert_allclose(ours["w"].numpy(), wanted, atol=1e-3)
    np.testing.assert_allclose(float(ours["tau"]), wanted[0], atol=1e-3)


def test_runs_of_a_stack_are_summed_apart_and_a_diverged_one_is_alone():
    """Clients 0 and 2 are of run 0, client 1 of run 1; client 3 has no weight in either, and its NaN no effect."""
    weights = torch.tensor([[1.0, 0.0, 3.0, 0.0], [0.0, 2.0, 0.0, 0.0]])
    vectors = torch.tensor([[4.0, 0.0], [5.0, torch.nan], [0.0, 8.0], [torch.nan, torch.nan]])
    mean = Mean().result(Mean().add({}, weights, {"w": vectors}))["w"]
    assert mean[0].tolist() == [1.0, 6.0]
    assert not torch.isfinite(mean[1]).all()
    both = torch.tensor([[1.0, 1.0], [0.0, 2.0]])  # a client of two runs
    assert Mean().result(Mean().add({}, both, {"w": vectors[:3:2]}))["w"].tolist() == [[2.0, 4.0], [0.0, 8.0]]


def test_by_hand():
    """1 row says (0, 8), 3 rows say (4, 0): (12/4, 8/4)."""
    up = combine([(1.0, {"w": torch.tensor([0.0, 8.0])}), (3.0, {"w": torch.tensor([4.0, 0.0])})], Mean())
    assert up["w"].tolist() == [3.0, 2.0]


def test_the_clients_of_two_runs_in_one_stack_do_not_mix():
    weights = torch.tensor([[1.0, 0, 3.0], [0, 5.0, 0]])
    vectors = {"w": torch.tensor([[0.0], [7.0], [4.0]])}
    assert Mean().result(Mean().add({}, weights, vectors))["w"].tolist() == [[3.0], [7.0]]


def test_memory_does_not_grow_with_the_cohort():
    """Two running sums, whatever comes: what 100,000 clients leave behind is as large as what one leaves."""
    rule, total = Mean(), Mean().start()
    for _ in range(50):
        total = rule.add(total, torch.ones(1, 20), {"w": torch.ones(20, 3)})
    assert {k: tuple(v.shape) for k, v in total.items()} == {"": (1,), "w": (1, 3)}
    assert rule.result(total)["w"].tolist() == [[1.0, 1.0, 1.0]]


def test_the_room_lists_its_members_under_their_names():
    assert all(kind.__name__ == name for name, kind in ALL.items())
    assert ALL["Mean"].sees_each is False  # works under secure aggregation
