from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import BadData, BadParameter
from tacit.parties.secret import NOT_PRIVATE
from tacit.synth import Statistics, integer

from .counted import DOMAIN, people

WORKLOAD = [("sex",), ("job", "sex"), ("age", "job")]


def test_stated_intervals_hold_the_truth_as_often_as_they_say():
    """2 + 6 + 96 cells in 20 releases, 2,080 intervals of 95%: the share that holds has a standard error of
    .5%; at least 92.5% has a false-alarm probability below 1e-6, and rounding only widens them.
    """
    frame = people(2000)
    hits = []
    for seed in range(20):
        released = Statistics(WORKLOAD, epsilon=1.0, insecure_seed=seed).release(frame, DOMAIN)
        for columns in WORKLOAD:
            answers = released.table(*columns)
            if columns == ("age", "job"):
                true = [
                    ((frame["job"] == j) & frame["age"].between(*map(int, a.split(" … ")))).sum()
                    if " … " in a
                    else ((frame["job"] == j) & (frame["age"] == int(a))).sum()
                    for a, j in zip(answers["age"], answers["job"])
                ]
            else:
                true = (
                    frame.groupby(list(columns))
                    .size()
                    .reindex(
                        answers[list(columns)].itertuples(index=False, name=None)
                        if len(columns) > 1
                        else answers[columns[0]]
                    )
                    .to_numpy()
                )
            hits += list((answers["low"] <= true) & (true <= answers["high"]))
    assert len(hits) == 20 * (2 + 6 + 96)
    assert np.mean(hits) > 0.925


def test_the_budget_is_split_by_the_root_of_the_cells():
    """ρ_r ∝ √n_r, so variances are as 1/√n_r: 2 cells against 96 cells, √48 apart."""
    table = Statistics([("sex",), ("age", "job")], insecure_seed=0).release(people(100), DOMAIN).errors()
    assert (table["standard error"][0] / table["standard error"][1]) ** 2 == pytest.approx(
        np.sqrt(48), rel=0.02
    )
    assert list(table["cells"]) == [2, 96]


def test_consistent_answers_agree_with_each_other_and_are_never_negative():
    released = Statistics(WORKLOAD, insecure_seed=1, consistent=True).release(people(2000), DOMAIN)
    sex = released.table("sex").set_index("sex")["consistent"]
    both = released.table("sex", "job").groupby("sex")["consistent"].sum()
    assert np.allclose(sex.sort_index(), both.sort_index())
    assert (released.table("age", "job")["consistent"] >= 0).all()
    noisy = released.table("sex", "job").groupby("sex")["count"].sum()
    assert not np.allclose(noisy, released.table("sex").set_index("sex")["count"])


def test_it_is_in_the_ledger_and_a_seed_is_stamped():
    ledger = Statistics(WORKLOAD, epsilon=0.5, insecure_seed=0).release(people(100), DOMAIN).ledger
    assert [s.epsilon for s in ledger.spent] == [0.5]
    assert ledger.stamps == [NOT_PRIVATE]
    assert Statistics(WORKLOAD).release(people(100), DOMAIN).ledger.stamps == []


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        ([], "it must be a list of different sets of columns"),
        ([("sex",), ("sex",)], "it must be a list of different sets of columns"),
        (5, "workload is 5; it must be a list of lists of columns"),
        (["sex"], "One column is written as ('sex',)."),
        ([("jobs",)], "there is no declared column 'jobs'. Did you mean 'job'?"),
    ],
)
def test_bad_workloads_are_refused(workload, says):
    with pytest.raises(BadParameter) as error:
        Statistics(workload).release(people(50), DOMAIN)
    assert says in str(error.value)


def test_what_was_not_released_is_not_there_and_what_is_too_large_is_not_made():
    released = Statistics([("sex",)], insecure_seed=0).release(people(50), DOMAIN)
    with pytest.raises(BadParameter, match=r"the marginal of job was not released. ReleasedStatistics: sex."):
        released.table("job")
    wide = DOMAIN | {"age": integer(0, 10**6)}
    with pytest.raises(
        BadParameter,
        match=r"the marginal of age, sex, job, pay has 6,291,456 cells, more than 5,000,000; nearly all of "
        r"it would be noise",
    ):
        Statistics([("age", "pay", "job", "sex")], bins=1024, insecure_seed=0).release(people(50), wide)
    with pytest.raises(BadData, match=r"Statistics needs declared domains"):
        Statistics([("sex",)]).release(people(50))
