"""The private networks: what they spend, what they may look at, and that DPGAN learns when the budget lets
it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.errors import BadData, BadParameter
from tacit.parties.secret import Secret
from tacit.synth import DPCTGAN, DPGAN, PATEGAN, Table, categorical, integer
from tacit.synth.dpgan import COUNTING, SURE, overestimate_count

TABLE = {"kind": categorical(["a", "b", "c"]), "age": integer(0, 99)}


def people(rows: int = 2000) -> pd.DataFrame:
    """a's are young, b's are old, c's are not there."""
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b"], rows, p=[0.7, 0.3])
    return pd.DataFrame(
        {"kind": kind, "age": np.where(kind == "a", rng.integers(10, 30, rows), rng.integers(60, 90, rows))}
    )


SHORT = {
    "DPGAN": DPGAN(epochs=1),
    "DPCTGAN": DPCTGAN(epochs=1),
    "PATEGAN": PATEGAN(rounds=2, queries=20, steps=2),
}


@pytest.mark.parametrize("name", SHORT)
def test_the_ledger_has_the_requested_budget_and_the_unit(name):
    generator = SHORT[name]
    made = generator.fit(people(300), TABLE)
    (spent,) = made.ledger.spent
    assert spent.epsilon <= generator.epsilon + 1e-9
    assert spent.epsilon > 0.9 * generator.epsilon
    assert spent.delta == generator.delta
    assert spent.unit == "record (one row added or removed)"
    assert made.ledger.stamps == []
    replayed = dataclasses.replace(generator, insecure_seed=3).fit(people(300), TABLE)
    assert replayed.ledger.stamps[0].startswith("NOT PRIVATE")


@pytest.mark.parametrize("name", SHORT)
def test_a_seed_repeats_a_run_and_its_absence_does_not(name):
    generator = dataclasses.replace(SHORT[name], insecure_seed=1)
    one, two = (generator.fit(people(300), TABLE).state.tensors for _ in range(2))
    assert all(torch.equal(one[k], two[k]) for k in one)
    free = dataclasses.replace(generator, insecure_seed=None)
    one, two = (free.fit(people(300), TABLE).state.tensors for _ in range(2))
    assert not all(torch.equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize("name", SHORT)
def test_domains_are_declared_and_what_is_outside_says_nothing(name):
    generator = SHORT[name]
    with pytest.raises(BadData, match=f"{name} needs declared domains"):
        generator.fit(people(50))
    with pytest.raises(BadData, match="'kind' of the table: kind or domain was inferred"):
        generator.fit(people(50), Table.infer(people(50), age=integer(0, 99)))
    with pytest.raises(BadParameter, match=rf"{name}\.learn: numbers without declared domains"):
        generator.learn(np.zeros((2, 2)), None, None, None)
    stranger = pd.concat([people(50), pd.DataFrame({"kind": ["only one person's"], "age": [300]})])
    drawn = generator.fit(stranger, TABLE).sample(500)
    assert set(drawn["kind"]) <= {"a", "b", "c"}
    assert drawn["age"].max() <= 99


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_of_no_rows_is_fitted_too_since_a_refusal_would_tell(name, rows):
    assert len(SHORT[name].fit(people(rows), TABLE).sample(20)) == 20


def test_a_private_gan_learns_marginals_and_their_dependence_at_a_large_epsilon():
    """c never occurs and a's are young: at ε = 50 the noise is small. What no learning gives: a third each,
    and half of the a's below 50.
    """
    made = (
        DPGAN(epsilon=50.0, epochs=40, batch=200, lr=2e-3, bins=10, insecure_seed=0)
        .fit(people(), TABLE)
        .sample(3000, seed=0)
    )
    assert abs((made["kind"] == "a").mean() - 0.7) < 0.2
    assert (made["kind"] == "c").mean() < 0.1
    assert (made.loc[made["kind"] == "a", "age"] < 50).mean() > 0.8
    assert (made.loc[made["kind"] == "b", "age"] > 50).mean() > 0.8


def test_the_number_of_rows_is_never_below_the_truth_and_has_the_noise_it_is_paid_for():
    """300 draws: below n with probability 300 · 10⁻¹² in all; the spread of a discrete Laplace of scale 20 is
    28. Its estimate from 300 draws has a standard error of 1.8, and is between 14 and 56; the mean is within
    seven standard errors: false alarms below 1e-9.
    """
    drawn = np.array([overestimate_count(5000, 0.05, Secret()) for _ in range(300)])
    assert drawn.min() >= 5000
    assert 14 < drawn.std() < 56
    assert abs(drawn.mean() - (5000 + np.ceil(20 * np.log(1 / SURE)))) < 11.5  # seven standard errors
    assert COUNTING < 0.1
