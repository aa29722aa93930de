"""The diffusion model's steps against their definitions, and what it learns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.synth import TabDDPM, Table
from tacit.synth.conformance import example
from tacit.synth.diffusion import DiffusionColumns, DiffusionSchedule
from tacit.synth.encode import Layout


def test_the_schedule_goes_from_nearly_all_to_nearly_nothing():
    noise = DiffusionSchedule(50, [3], torch.device("cpu"))
    assert float(noise.total[0]) > 0.99
    assert float(noise.total[-1]) < 0.01
    assert (noise.total[1:] < noise.total[:-1]).all()
    assert torch.allclose(noise.total, torch.cumprod(noise.alpha, 0), atol=1e-5)
    assert float(noise.before[0]) == 1.0


def test_the_posterior_of_a_category_is_bayes_rule_on_the_forward_steps():
    """q(x_{t−1} = j | x_t, x_0) = q(x_t | j) q(j | x_0) / q(x_t | x_0), each written out for K = 3."""
    noise = DiffusionSchedule(10, [3], torch.device("cpu"))
    t, now, first = 4, 1, 2
    a, b, total = float(noise.alpha[t]), float(noise.before[t]), float(noise.total[t])
    by_hand = np.array([(a * (now == j) + (1 - a) / 3) * (b * (first == j) + (1 - b) / 3) for j in range(3)])
    assert by_hand.sum() == pytest.approx(total * (now == first) + (1 - total) / 3, rel=1e-5)
    hot = torch.eye(3)
    made = noise._posterior(hot[now][None], hot[first][None], torch.tensor([t]))
    assert made.numpy()[0] == pytest.approx(by_hand / by_hand.sum(), rel=1e-4)


def test_at_the_first_step_the_posterior_is_the_row_itself():
    noise = DiffusionSchedule(10, [3], torch.device("cpu"))
    hot = torch.eye(3)
    assert torch.allclose(
        noise._posterior(hot[[0, 1]], hot[[0, 2]], torch.zeros(2, dtype=torch.long)), hot[[0, 2]]
    )


def test_columns_come_back_with_their_spikes_and_their_missing_values():
    frame, table = example()
    x = table.to_numbers(frame)
    layout = Layout(table.resolve_constraints(x))
    v = layout.encode(x)
    columns = DiffusionColumns.from_data(layout, v)
    back = columns.decode(*columns.encode(v))
    names = [var.name for var in layout.variables]
    assert np.array_equal(np.isnan(back), np.isnan(v))
    income = names.index("income")
    assert np.array_equal(back[:, income] == 0, v[:, income] == 0)  # three in ten have none
    for i, var in enumerate(layout.variables):
        there = ~np.isnan(v[:, i])
        if var.levels:
            assert np.array_equal(back[:, i], v[:, i])
        else:  # numbers to within the knots: five rows apart
            assert np.corrcoef(back[there, i], v[there, i])[0, 1] > 0.99


def test_places_are_normal():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.lognormal(0, 1, 2000)})
    table = Table.infer(frame)
    layout = Layout(table)
    places, _ = DiffusionColumns.from_data(layout, table.to_numbers(frame)).encode(table.to_numbers(frame))
    assert abs(places.mean()) < 0.05
    assert abs(places.std() - 1) < 0.05


def test_it_learns_a_dependence_between_a_number_and_a_category():
    """a's lie around −3, b's around 3; the deviation of each is .5. Were nothing learned, 58% of the rows
    would be right by chance (.7² + .3²).
    """
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b"], 1000, p=[0.7, 0.3])
    frame = pd.DataFrame({"k": kind, "x": np.where(kind == "a", -3, 3) + 0.5 * rng.normal(size=1000)})
    made = TabDDPM(epochs=60, batch=100, width=64, steps=30, device="cpu").fit(frame).sample(1000, seed=0)
    assert abs((made["k"] == "a").mean() - 0.7) < 0.1
    assert ((made["x"] < 0) == (made["k"] == "a")).mean() > 0.8
    assert abs(made.loc[made["k"] == "a", "x"].median() + 3) < 0.3
