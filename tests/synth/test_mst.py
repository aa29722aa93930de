"""MST: what it promises is kept (budget, noise, sensitivity, domain), and what it releases is near the
data.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tacit.accounting import discrete
from tacit.errors import BadData, BadParameter
from tacit.parties.secret import NOT_PRIVATE, SeededSecret
from tacit.synth import categorical, continuous, integer, load, timestamp
from tacit.synth.constraints import Combinations
from tacit.synth.graphical import fit_model
from tacit.synth.marginals import FINE, Curator, Grid, Support
from tacit.synth.mst import MST, mst, spanning_tree, split_budget
from tacit.synth.private import unpack_model
from tacit.synth.table import Table

from .counted import ADULT_9, DOMAIN, adult, named, people, two_way_error


def test_what_the_tree_measures_is_near_and_a_dependence_is_found():
    frame = people()
    fitted = MST(epsilon=2.0, insecure_seed=0).fit(frame, DOMAIN)
    made = fitted.sample(4000, seed=1)
    assert list(made.columns) == list(frame.columns)
    means = made.groupby("job")["pay"].mean()
    assert means["judge"] - means["cook"] > 45
    assert abs(made["sex"].eq("F").mean() - frame["sex"].eq("F").mean()) < 0.05


def test_a_saved_model_samples_the_same_and_its_file_holds_no_row(tmp_path):
    fitted = MST(insecure_seed=0).fit(people(), DOMAIN)
    path = fitted.save(tmp_path / "mst.safetensors")
    again = load(path)
    pd.testing.assert_frame_equal(fitted.sample(50, seed=4), again.sample(50, seed=4))
    assert again.ledger == fitted.ledger


# the noise


def test_the_noise_added_is_the_noise_claimed():
    """Empty data, so that counts are pure noise: Σ x²/σ² over N cells is χ² with N degrees of freedom
    (nearly: σ² = 33.4 makes the discrete Gaussian's variance equal to σ² to 1e-100). Two-sided at 1e-6: the
    false-alarm probability under fresh randomness.
    """
    rho = 1 / (2 * 33.4)
    curator = Curator(np.empty((0, 2), np.int64), (60, 70), rho, SeededSecret("scale"))
    m = curator.measure((0, 1), rho)
    assert 33.4 <= m.variance < 33.44  # rounded up
    total = float((m.counts.astype(float) ** 2).sum() / m.variance)
    assert 5e-7 < stats.chi2.cdf(total, m.counts.size) < 1 - 5e-7
    assert float(curator.spent) <= rho


def test_noise_of_half_the_scale_would_be_noticed():
    curator = Curator(np.empty((0, 1), np.int64), (4000,), 1.0, SeededSecret("half"))
    m = curator.measure((0,), 0.01)
    assert stats.chi2.cdf(float((m.counts.astype(float) ** 2).sum() / (4 * m.variance)), m.counts.size) < 5e-7


def test_one_record_changes_every_marginal_by_one_and_every_score_by_its_weight_at_most():
    """Sensitivity by neighboring tables: each of 40 records removed in turn, all marginals up to three
    columns.
    """
    rng = np.random.default_rng(5)
    sizes = (3, 4, 2)
    codes = np.stack([rng.integers(0, s, 40) for s in sizes], axis=1)
    whole = Curator(codes, sizes, 1.0)
    estimate = {
        c: rng.gamma(1, 4, [sizes[i] for i in c])
        for r in (1, 2, 3)
        for c in itertools.combinations(range(3), r)
    }

    def score(curator, clique):
        return int(
            np.abs(curator._counts(clique) * FINE - np.rint(estimate[clique] * FINE).astype(np.int64)).sum()
        )

    for gone in range(40):
        less = Curator(np.delete(codes, gone, axis=0), sizes, 1.0)
        for clique in estimate:
            difference = whole._counts(clique) - less._counts(clique)
            assert (difference**2).sum() == 1
            assert abs(score(whole, clique) - score(less, clique)) <= FINE


def test_the_budget_is_kept_by_construction():
    curator = Curator(np.zeros((10, 2), np.int64), (2, 2), 0.1, SeededSecret(0))
    curator.measure((0,), 0.06)
    with pytest.raises(BadParameter, match=r"at most ρ = 0.1"):
        curator.measure((1,), 0.06)
    assert curator.spent <= Fraction(0.1)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_ledger_states_budget_unit_and_adversary(epsilon):
    fitted = MST(epsilon=epsilon, delta=1e-6, insecure_seed=0).fit(people(300), DOMAIN)
    (line,) = fitted.ledger.spent
    assert (line.epsilon, line.delta) == (epsilon, 1e-6)
    assert line.unit == "record (one row added or removed)"
    assert "estimated from noisy counts" in line.note
    spent = float(line.note.split("ρ = ")[1].split(" ")[0])
    assert 0.99 * discrete.rho_of(epsilon, 1e-6) < spent <= discrete.rho_of(epsilon, 1e-6) * 1.00001


def test_a_seeded_run_is_stamped_and_an_unseeded_one_differs_each_time():
    frame = people(500)
    seeded = [MST(insecure_seed=3).fit(frame, DOMAIN) for _ in range(2)]
    assert seeded[0].ledger.stamps == [NOT_PRIVATE]
    pd.testing.assert_frame_equal(seeded[0].sample(20), seeded[1].sample(20))
    free = [MST().fit(frame, DOMAIN) for _ in range(2)]
    assert free[0].ledger.stamps == []
    assert free[0].state.metadata["total"] != free[1].state.metadata["total"]


# the domain


def test_a_category_that_one_person_holds_is_not_emitted():
    """The trap: a synthesizer that reads its domain off the data emits 'astronaut'. Ours refuses to read it,
    and a declared domain hides it.
    """
    frame = people()
    frame.loc[17, "job"] = "astronaut"
    with pytest.raises(
        BadData,
        match=r"MST needs declared domains: .* Domains inferred from the data would reveal facts about "
        r"single "
        r"rows",
    ):
        MST().fit(frame)
    with pytest.raises(
        BadData,
        match=r"MST: 'age', .* of the table: kind or domain was inferred from the data, which would reveal "
        r"facts about single rows. Declare every column",
    ):
        MST().fit(frame, Table.infer(frame))
    for seed in range(5):
        made = MST(epsilon=20.0, insecure_seed=seed).fit(frame, DOMAIN).sample(4000)
        assert set(made["job"]) <= {"cook", "nurse", "judge"}


def test_the_largest_income_and_the_exact_number_of_rows_do_not_come_out():
    frame = people(1000)
    frame.loc[3, "pay"] = 1e9
    fitted = MST(insecure_seed=0).fit(frame, DOMAIN)
    assert fitted.sample(2000)["pay"].max() <= 100
    totals = [MST(insecure_seed=s).fit(frame, DOMAIN).state.metadata["total"] for s in range(4)]
    assert len(set(totals)) == 4
    assert all(abs(t - 1000) < 150 for t in totals)


def test_values_outside_the_domain_are_missing_or_leave_their_row_out_without_a_word():
    frame = people(1000)
    frame.loc[:299, "job"] = "astronaut"
    assert len(Grid(named(DOMAIN)).codes(frame)) == 700
    lenient = DOMAIN | {"job": categorical(["cook", "nurse", "judge"], missing=True)}
    assert len(Grid(named(lenient)).codes(frame)) == 1000
    made = MST(epsilon=5.0, insecure_seed=0).fit(frame, lenient).sample(1000)
    assert 0.2 < made["job"].isna().mean() < 0.4


@pytest.mark.parametrize(
    ("column", "declared", "cell"),
    [
        ("pay", continuous(0, 100), "Mrs Smith"),
        ("pay", continuous(0, 100), [1]),
        ("job", DOMAIN["job"], b"Mrs Smith"),
        ("job", DOMAIN["job"], [1]),
        ("pay", timestamp("2020-01-01", "2021-01-01"), "the 3rd of May"),
        ("pay", timestamp("2020-01-01", "2021-01-01"), (1,)),
    ],
    ids=str,
)
def test_a_cell_that_cannot_be_read_leaves_its_row_out_without_a_word(column, declared, cell):
    """An error would quote it, and whether one comes would be a fact about one row. The other rows are read
    as they are without it.
    """
    frame = people(100)
    if declared.kind == "datetime":
        frame["pay"] = ["03/04/2020", "2020-12-24T10:00"] * 50
    frame[column] = frame[column].astype(object)
    other = frame.copy()
    other.at[0, column] = cell  # the first: pandas would guess the format of all times from it
    grid = Grid(named(DOMAIN | {column: declared}))
    assert (grid.codes(other) == grid.codes(frame.iloc[1:])).all()
    assert np.array_equal(grid.values(other), grid.values(frame.iloc[1:]))


def test_an_infinite_number_and_a_time_that_never_comes_are_moved_to_the_bounds():
    frame = people(3).assign(pay=[np.inf, -np.inf, 10.0**30], age=["9999-12-31", "1500-01-01", "2020-06-01"])
    values = Grid(named(DOMAIN | {"age": timestamp("2020-01-01", "2021-01-01")})).values(frame)
    low, high = (timestamp(end, end).low for end in ("2020-01-01", "2021-01-01"))
    assert values[:, list(DOMAIN).index("pay")].tolist() == [100, 0, 100]
    assert values[:2, list(DOMAIN).index("age")].tolist() == [high, low]
    huge = people(2).assign(pay=pd.Series([10**400, "Mrs Smith"], dtype=object))
    assert Grid(named(DOMAIN)).values(huge)[:, list(DOMAIN).index("pay")].tolist() == [100]


def test_the_synthetic_table_does_not_reveal_that_one_row_has_a_missing_value():
    whole, gap = people(50), people(50)
    gap["age"] = gap["age"].astype(float).where(gap.index > 0)
    told = [MST().fit(f, Table.infer(f, **DOMAIN)).table for f in (whole, gap)]
    assert told[0] == told[1]
    assert told[1].columns[0].dtype == "int64"


def test_cells_and_back_stay_in_their_cell():
    """Every code survives a trip through numbers, for steps that do and do not divide the bins, and
    continuous columns.
    """
    columns = named(
        {
            "a": integer(0, 120),
            "b": integer(3, 9),
            "c": continuous(-1.5, 2.5),
            "d": categorical(["x", "y"], missing=True),
            "e": integer(0, 10, missing=True),
        }
    )
    grid = Grid(columns, 16)
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, s, 5000) for s in grid.sizes], axis=1)
    x = grid.to_numbers(codes, rng)
    frame = pd.DataFrame({c.name: c.to_series(x[:, j]) for j, c in enumerate(columns)})
    assert grid.sizes == (16, 7, 16, 3, 12)
    assert (grid.codes(frame) == codes).all()
    assert x[:, 0].min() == 0
    assert x[:, 0].max() == 120
    assert grid.labels(0, np.array([0, 15])) == ["0 … 7", "114 … 120"]
    assert grid.labels(3, np.array([0, 2])) == ["x", None]


def test_merging_rare_cells_and_spreading_them_again_keeps_every_cell_possible():
    curator = Curator(np.repeat(np.arange(6), [500, 400, 0, 1, 0, 300])[:, None], (6,), 1.0, SeededSecret(2))
    support = Support.from_measurements([curator.measure((0,), 0.02)])
    assert support.sizes == (4,)
    spread = support.expand(np.arange(4).repeat(400)[:, None], np.random.default_rng(0))[:, 0]
    assert set(spread) == set(range(6))
    assert (support.merge(spread[:, None])[:, 0] == np.arange(4).repeat(400)).all()


def test_the_tree_spans_and_prefers_the_pair_that_depends():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 4, 3000)
    codes = np.stack([a, rng.integers(0, 3, 3000), a], axis=1)
    curator = Curator(codes, (4, 3, 4), 1.0, SeededSecret(0))
    model = fit_model([curator.measure((j,), 0.1) for j in range(3)], (4, 3, 4))
    tree = spanning_tree(curator, model, 0.3, 0.3)
    assert tree[0] == (0, 2)
    assert len(tree) == 2


def test_a_pair_whose_noise_exceeds_its_dependence_is_not_measured():
    """12 cells with σ = √(2 / 0.002) = 32 have 300 rows of noise; an independent pair differs by about 150."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 4, 3000)
    codes = np.stack([a, rng.integers(0, 3, 3000), a], axis=1)
    curator = Curator(codes, (4, 3, 4), 10.0, SeededSecret(0))
    model = fit_model([curator.measure((j,), 0.1) for j in range(3)], (4, 3, 4))
    assert spanning_tree(curator, model, 0.3, 0.001) == [(0, 2)]


def test_without_a_pair_worth_its_noise_the_columns_receive_the_whole_budget():
    """A pair's 81 cells have 560 rows of noise; independent columns differ by about 320."""
    codes = np.random.default_rng(0).integers(0, 9, (2000, 4))
    curator = Curator(codes, (9,) * 4, 0.05, SeededSecret(1))
    model, _ = mst(curator, 20)
    assert all(len(clique) == 1 for clique in model.tree.cliques)
    assert 0.99 * 0.05 < curator.spent <= 0.05 * (1 + 1e-9)


def test_budgets_of_marginals_by_hand():
    """Parts ∝ c^(2/3): 8 cells receive 4 times as much as 1. No other division has less noise c / √part."""
    assert split_budget(10.0, [8, 1, 1]) == pytest.approx([20 / 3, 5 / 3, 5 / 3])
    least = sum(c / math.sqrt(part) for c, part in zip([8, 1, 1], split_budget(10.0, [8, 1, 1])))
    for parts in np.random.default_rng(0).dirichlet([1, 1, 1], 1000) * 10:
        assert sum(c / math.sqrt(part) for c, part in zip([8, 1, 1], parts)) >= least - 1e-9


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"epsilon": 0}, "MST: epsilon is 0; it must be a number above 0."),
        ({"delta": 0}, "MST: delta is 0; it must be a number above 0 and below 1."),
        (
            {"insecure_seed": -1},
            "MST: insecure_seed is -1; it must be a whole number of at least 0, or None.",
        ),
    ],
)
def test_bad_parameters_are_refused(arguments, says):
    with pytest.raises(BadParameter) as error:
        MST(**arguments).fit(people(50), DOMAIN)
    assert says in str(error.value)


def test_bad_tables_are_refused():
    frame = people(50)
    with pytest.raises(BadData, match=r"the table has no column 'jobs'. Did you mean 'job'?"):
        MST().fit(frame, {"jobs": categorical(["cook"])})
    with pytest.raises(BadData, match=r"the column 'age' is declared with strings .* but contains numbers"):
        MST().fit(frame, DOMAIN | {"age": categorical(["young", "old"])})
    with pytest.raises(BadData, match=r"MST: expected a pandas DataFrame, got NoneType"):
        MST().fit(None, DOMAIN)
    with pytest.raises(BadData, match=r"MST: only identifiers are declared, so there is nothing to learn"):
        MST().fit(frame, {})
    with pytest.raises(
        BadParameter, match=r"it must be a Table, or a dictionary of declared columns. Write \{'age'"
    ):
        MST().fit(frame, {"sex": ["F", "M"]})
    table = Table(named(DOMAIN), (Combinations("sex", "job"),))
    with pytest.raises(
        BadParameter,
        match=r"is not supported under differential privacy. Combine the columns into one",
    ):
        MST().fit(frame, table)


def test_a_table_of_one_column_and_one_without_rows_are_released_all_the_same():
    """An empty table must look like any other: whether somebody is in it is what is protected."""
    one = MST(insecure_seed=0).fit(people(200)[["sex"]], {"sex": DOMAIN["sex"]}).sample(10)
    assert list(one.columns) == ["sex"]
    assert len(MST(insecure_seed=0).fit(people(200).iloc[:0], DOMAIN).sample(10)) == 10


# the published benchmark table


def test_adult_at_epsilon_one_has_a_two_way_error_below_5_percent_and_invents_nothing():
    """smartnoise's MST: .125. Unmeasured pairs must match the model's, to what 48,842 rows and merged cells
    allow.
    """
    frame, domain = adult()
    fitted = MST(epsilon=1.0, delta=1e-9, insecure_seed=0).fit(frame, domain)
    made = fitted.sample(len(frame), seed=0)
    sizes = [len(c.values) for c in domain.values()]
    assert two_way_error(frame.to_numpy(), made.astype(int).to_numpy(), sizes) < 0.05
    model, support = unpack_model(fitted.state)
    merged = support.merge(made.astype(int).to_numpy())
    for a, b in itertools.combinations(range(9), 2):
        sizes = [model.sizes[a], model.sizes[b]]
        seen = np.bincount(merged[:, a] * sizes[1] + merged[:, b], minlength=math.prod(sizes)).reshape(
            sizes
        ) / len(merged)
        assert 0.5 * np.abs(seen - model.marginal((a, b))).sum() < 0.03, (ADULT_9[a], ADULT_9[b])
