from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import data
from tacit.data.conformance import check_federation, check_skew
from tacit.data.skews import top_up
from tacit.errors import BadData, BadJob, BadParameter
from tacit.parameters import from_table


def blobs(n: int = 600, classes: int = 10, features: int = 3) -> data.Dataset:
    rng = np.random.default_rng(0)
    return data.from_arrays(
        rng.standard_normal((n, features)), np.arange(n) % classes, classes=classes, test_fraction=0
    )


def counts(fed: data.Federation) -> np.ndarray:
    return np.array(fed.summary()["counts"])


@pytest.mark.parametrize(
    "skew",
    [
        *(cls("site") if cls is data.ByColumn else cls() for cls in data.SKEWS.values()),
        data.Dirichlet(0.05),
        data.Dirichlet(0.3, "capped"),
        data.Dirichlet(0.5, "party"),
        data.LabelsPerParty((2, 3, 5)),
        data.LabelsPerParty(6),
        data.CovariateShift(0.5, feature=2),
        data.FeatureNoise(1.0, "variance"),
        data.ConceptShift(4),
        data.ConceptDrift(3, 5),
    ],
    ids=str,
)
def test_every_skew_conforms(skew):
    check_skew(skew)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(20, 400),
    classes=st.integers(2, 8),
    parties=st.integers(1, 20),
    alpha=st.floats(0.01, 100),
    seed=st.integers(0, 2**31),
    held=st.floats(0, 0.95),
    kind=st.sampled_from(["class", "capped", "quantity", "iid", "shift"]),
)
def test_any_valid_request_assigns_every_row_once_and_respects_the_minimum(
    n, classes, parties, alpha, seed, held, kind
):
    skew = {"quantity": data.Quantity(alpha), "iid": data.IID(), "shift": data.CovariateShift(0.7)}.get(
        kind
    ) or data.Dirichlet(alpha, kind)
    least = max(1, n // parties // 2)
    fed = blobs(n, classes).split(parties, skew, seed=seed, held_fraction=held, min_size=least)
    check_federation(fed, n, min_size=least)


def test_a_smaller_alpha_skews_labels_and_sizes_more():
    def purity(skew: data.Skew) -> float:
        table = counts(blobs(2000).split(10, skew))
        return float((table.max(1) / table.sum(1)).mean())

    assert purity(data.IID()) < 0.2 < purity(data.Dirichlet(1)) < purity(data.Dirichlet(0.05))
    sizes = [blobs(2000).split(10, data.Quantity(alpha)).sizes.float().std() for alpha in (100, 1)]
    assert sizes[0] < sizes[1]


def test_the_capped_variant_gives_a_full_party_no_more():
    uncapped, capped = (
        blobs(5000).split(10, data.Dirichlet(0.3, v), min_size=1).sizes.max() for v in ("class", "capped")
    )
    assert capped < uncapped


def test_the_party_variant_takes_a_share_of_each_class_and_leaves_rows_unused():
    """3 parties of 10 classes with 500 rows each: each takes Σ_c q_c·500 = 500 rows, less what rounding and
    scarcity cost.
    """
    fed = blobs(5000).split(3, data.Dirichlet(0.5, "party"), seed=1)
    assert (fed.sizes <= 500).all()
    assert len(fed.rows.y) == int(fed.sizes.sum()) > 1200
    assert "not all rows are used" in fed.notes[0]


def test_labels_per_party_gives_each_party_n_labels_and_each_label_about_as_many_owners():
    table = counts(blobs(2000).split(15, data.LabelsPerParty(4), seed=3)) > 0
    assert (table.sum(1) == 4).all()
    assert (table.sum(0) == 6).all()  # 15 parties × 4 labels over 10 labels


def test_consecutive_labels_go_to_the_parties_in_order():
    table = counts(blobs().split(3, data.LabelsPerParty((2, 3, 5)))) > 0
    assert np.array_equal(table, np.repeat(np.eye(3, dtype=bool), [2, 3, 5], axis=1))


def test_feature_noise_grows_with_the_party_and_leaves_labels_and_test_alone():
    rng = np.random.default_rng(0)
    made = data.from_arrays(np.zeros((8000, 10)), rng.integers(0, 2, 8000), test_fraction=0.1)
    for of, power in (("deviation", 1), ("variance", 0.5)):
        fed = made.split(4, data.FeatureNoise(0.8, of))
        assert fed.test.x.abs().max() == 0
        for i in range(4):
            x = fed.rows.x[torch.cat([fed.train.of(i), fed.held.of(i)])]
            assert (
                abs(float(x.std()) / (0.8 * (i + 1) / 4) ** power - 1) < 0.04
            )  # 18,000 values: 7 standard errors


def test_covariate_shift_sorts_along_a_feature_and_strength_zero_is_chance():
    made = blobs(1000)
    fed = made.split(5, data.CovariateShift(1.0, feature=1))
    ends = [
        (fed.rows.x[fed.owner == k][:, 1].min(), fed.rows.x[fed.owner == k][:, 1].max()) for k in range(5)
    ]
    assert all(ends[k][1] <= ends[k + 1][0] for k in range(4))
    shift = [np.mean(made.split(5, data.CovariateShift(s)).summary()["shift"]) for s in (0.0, 0.5, 1.0)]
    assert shift[0] < shift[1] < shift[2]


def test_covariate_shift_finds_the_direction_of_greatest_variance():
    rng = np.random.default_rng(4)
    long = rng.standard_normal(500)
    x = np.stack([0.1 * rng.standard_normal(500), 5 * long, 0.1 * rng.standard_normal(500)], axis=1)
    fed = data.from_arrays(x, np.arange(500) % 2, test_fraction=0).split(2, data.CovariateShift(1.0))
    sides = [fed.rows.x[fed.owner == k][:, 1] for k in range(2)]
    assert sides[0].max() < sides[1].min() + 0.2


def test_concept_shift_renames_every_label_of_the_other_groups_only():
    made = blobs(600, 5)
    fed = made.split(6, data.ConceptShift(3))
    for group in range(3):
        mine = fed.owner % 3 == group
        before, after = made.rows.y[mine], fed.rows.y[mine]
        meanings = {(int(a), int(b)) for a, b in zip(before, after)}
        assert len(meanings) == 5  # one new name a label
        assert all((a == b) == (group == 0) for a, b in meanings)
    assert torch.equal(fed.rows.x, made.rows.x)


def test_concept_drift_changes_the_chosen_labels_periodically_and_the_test_set_with_them():
    made = data.from_arrays(
        np.random.default_rng(0).standard_normal((200, 2)), np.arange(200) % 5, test_fraction=0.2
    )
    fed = made.split(4, data.ConceptDrift(every=3, labels=2), seed=9)
    assert all(torch.equal(fed.at(r).y, made.rows.y) for r in (0, 1, 2, 3))
    changed = set(made.rows.y[fed.at(4).y != made.rows.y].tolist())
    assert len(changed) == 2
    assert torch.equal(fed.at(4).y, fed.at(6).y)
    assert not torch.equal(fed.at(7).y, fed.at(6).y)
    assert set(fed.test.y[fed.test_at(4).y != fed.test.y].tolist()) == changed
    assert torch.equal(data.IID().test_at(fed, 9).y, fed.test.y)


@pytest.mark.parametrize(
    ("skew", "words"),
    [
        (data.Dirichlet(0), "Dirichlet: alpha is 0; it must be a number above 0."),
        (data.Dirichlet(-1.0), "Dirichlet: alpha is -1.0; it must be a number above 0."),
        (
            data.Dirichlet(1, "rows"),
            "Dirichlet: variant is 'rows'; it must be one of 'class', 'capped', 'party'.",
        ),
        (data.Quantity(0), "Quantity: alpha is 0; it must be a number above 0."),
        (data.FeatureNoise(-0.1), "FeatureNoise: sigma is -0.1; it must be a number of at least 0."),
        (
            data.LabelsPerParty(11),
            "labels is 11; it must be a whole number from 1 to 10, the number of labels, or one count per "
            "party.",
        ),
        (
            data.LabelsPerParty(1),
            "LabelsPerParty: labels is 1; it must be at least 3 when 4 parties share 10 labels.",
        ),
        (
            data.LabelsPerParty((5, 5)),
            "it must be 4 whole numbers above 0, one a party, adding up to the 10 labels.",
        ),
        (
            data.LabelsPerParty((1, 2, 3, 5)),
            "it must be 4 whole numbers above 0, one a party, adding up to the 10 labels.",
        ),
        (
            data.CovariateShift(2.0),
            "CovariateShift: strength is 2.0; it must be a number of at least 0 and at most 1.",
        ),
        (
            data.CovariateShift(1.0, 3),
            "CovariateShift: feature is 3; it must be below 3, the number of features of arrays.",
        ),
        (data.ConceptShift(5), "ConceptShift: groups is 5; it must be at most 4, the number of parties."),
        (
            data.ConceptDrift(10, 11),
            "ConceptDrift: labels is 11; it must be at most 10, the number of labels.",
        ),
        (data.ConceptDrift(0), "ConceptDrift: every is 0; it must be a whole number of at least 1."),
    ],
    ids=str,
)
def test_a_bad_skew_is_refused_with_what_is_allowed(skew, words):
    with pytest.raises(BadParameter) as caught:
        blobs().split(4, skew)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "skew", [data.Dirichlet(1), data.LabelsPerParty(2), data.ConceptShift(), data.ConceptDrift()], ids=str
)
def test_label_skews_refuse_a_regression_and_name_what_works(skew):
    made = data.from_arrays(np.random.default_rng(0).standard_normal((50, 2)), np.linspace(0, 1, 50))
    with pytest.raises(
        BadData,
        match=r"needs class labels, and arrays has none: it is a regression. Use one of IID, Quantity",
    ):
        made.split(3, skew)
    check_federation(made.split(3, data.Quantity(1)), len(made))


@pytest.mark.parametrize("skew", [data.FeatureNoise(0.1), data.CovariateShift()], ids=str)
def test_feature_skews_refuse_tokens(skew):
    made = data.from_arrays(np.ones((20, 4), dtype=int), np.arange(20) % 2, tokens=True)
    with pytest.raises(BadData, match="needs features that are numbers; the rows of arrays are tokens"):
        made.split(2, skew)


def test_a_skew_that_cannot_give_the_minimum_says_who_falls_short():
    made = data.from_arrays(np.zeros((100, 1)), np.r_[np.zeros(98), np.ones(2)].astype(int), test_fraction=0)
    with pytest.raises(
        BadData,
        match=r"LabelsPerParty\(labels=\(1, 1\)\) gives party 'p1' 2 rows of arrays; each needs at least 10",
    ):
        made.split(2, data.LabelsPerParty((1, 1)))


def test_a_skew_from_a_job_file_is_checked_there():
    assert repr(from_table({"name": "dirichlet", "alpha": 0.3}, data.SKEWS, "skew")) == "Dirichlet(alpha=0.3)"
    assert from_table({"name": "LabelsPerParty", "labels": [2, 3, 5]}, data.SKEWS, "skew").labels == (2, 3, 5)
    with pytest.raises(BadJob, match=r"Dirichlet has no parameter 'alfa'. Did you mean 'alpha'\?"):
        from_table({"name": "Dirichlet", "alfa": 0.3}, data.SKEWS, "skew")


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 30), min_size=2, max_size=12), seed=st.integers(0, 1000))
def test_topping_up_moves_as_few_rows_as_it_can(sizes, seed):
    least = sum(sizes) // len(sizes)
    ends = np.cumsum(sizes)
    before = [np.arange(end - size, end) for size, end in zip(sizes, ends)]
    after = top_up(before, least, np.random.default_rng(seed)) if min(sizes) < least else before
    assert sorted(np.concatenate(after).tolist()) == list(range(sum(sizes)))
    assert min(map(len, after)) >= least
    moved = sum(len(set(a.tolist()) - set(b.tolist())) for a, b in zip(after, before))
    short = sum(max(least - s, 0) for s in sizes)
    assert short <= moved <= short + len(sizes)


def test_topping_up_is_noted():
    fed = blobs(1000).split(50, data.Dirichlet(0.02), min_size=10)
    assert fed.notes == (
        "Dirichlet(alpha=0.02): no draw gave all 50 parties 10 rows; the smallest parties got rows of the "
        "largest.",
    )
    assert int(fed.sizes.min()) == 10


@pytest.mark.parametrize("skew", [data.IID(), data.Dirichlet(0.5)], ids=str)
def test_a_hundred_thousand_parties_of_twenty_rows_are_partitioned_in_seconds(skew):
    made = data.gaussian_blobs(2_000_000, 10, 2, test_fraction=0)
    began = time.process_time()
    fed = made.split(100_000, skew)
    assert time.process_time() - began < 6  # about 1 s on a quiet core; room for a loaded machine
    assert len(fed) == 100_000
    assert int(fed.sizes.sum()) == 2_000_000
    assert fed.parties[7] == "p000007"
