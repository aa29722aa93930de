"""Cox's model of weighted rows equals lifelines (weights_col); bad weights are named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadData, BadParameter

from .references import ll_data, pool, quiet, split

CASES = {
    "rossi": ("week", "arrest", ["fin", "age", "prio"]),
    "gbsg2": ("time", "cens", ["age", "tsize", "tgrade"]),
}


def weigh(name: str) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = ll_data(name)
    if name == "gbsg2":
        rows["tgrade"] = rows["tgrade"].map({"I": 1, "II": 2, "III": 3})
    return rows.assign(w=rng.uniform(0.3, 3, len(rows)), half=rng.choice(["u", "v"], len(rows)))


def fit_pooled(rows: pd.DataFrame, name: str, strata: str | None):
    from lifelines import CoxPHFitter

    time, event, columns = CASES[name]
    used = rows[[*columns, time, event, "w", *([strata] if strata else [])]]
    return quiet(CoxPHFitter().fit, used, time, event, weights_col="w", strata=strata)


@pytest.mark.parametrize("strata", [None, "half", "site"])
@pytest.mark.parametrize("name", list(CASES))
def test_weighted_rows_equal_lifelines(name, strata):
    """Ties, ragged parties, weights that are no whole numbers: to 1e-6."""
    fed, (time, event, columns) = split(weigh(name), 3), CASES[name]
    own = tacit.stats.cox(fed, " + ".join(columns), time=time, event=event, weights="w", strata=strata)
    peer = fit_pooled(pool(fed), name, strata)
    table = own.summary()
    np.testing.assert_allclose(table["coef"], peer.params_, atol=1e-6)
    np.testing.assert_allclose(table["se"], peer.standard_errors_, atol=1e-6)
    np.testing.assert_allclose(own.log_likelihood, peer.log_likelihood_, rtol=1e-9)
    np.testing.assert_allclose(
        own.likelihood_ratio, peer.log_likelihood_ratio_test().test_statistic, rtol=1e-6
    )
    if strata is None:
        curve = peer.baseline_cumulative_hazard_.iloc[:, 0]
        curve = curve[curve.diff().fillna(curve) > 0]
        np.testing.assert_allclose(own.baseline["cumulative_hazard"], curve, atol=1e-6)


def test_whole_weights_are_repeated_rows_with_breslows_ties_and_parties_agree():
    rows = ll_data("rossi").assign(w=lambda d: 1 + d["prio"] % 3)
    again = rows.loc[rows.index.repeat(rows["w"])].reset_index(drop=True)
    options = {"time": "week", "event": "arrest", "ties": "breslow"}
    weighted = tacit.stats.cox(split(rows, 3), "age + fin", weights="w", **options).summary()
    repeated = tacit.stats.cox(split(again, 3), "age + fin", **options).summary()
    np.testing.assert_allclose(weighted, repeated, atol=1e-8)
    sent = tacit.stats.cox(split(rows, 3), "age + fin", weights="w", runtime="inprocess", **options)
    pd.testing.assert_frame_equal(sent.summary(), weighted, check_exact=True)
    assert sent.ph_test.empty


@pytest.mark.parametrize(
    ("bad", "text"), [(0.0, "not above 0"), (np.inf, "not above 0"), ("x", "non-numeric")]
)
def test_bad_weights_are_named(bad, text):
    rows = ll_data("rossi").assign(w=1.0)
    rows["w"] = rows["w"].astype(object) if isinstance(bad, str) else rows["w"]
    rows.loc[3, "w"] = bad
    with pytest.raises(BadData, match=text):
        tacit.stats.cox(split(rows, 3), "age", time="week", event="arrest", weights="w")


def test_weights_are_one_column_and_not_for_private_models():
    fed = split(ll_data("rossi").assign(w=1.0), 3)
    with pytest.raises(BadParameter, match="the name of a column"):
        tacit.stats.cox(fed, "age", time="week", event="arrest", weights=[1.0])
    with pytest.raises(BadParameter, match="weights is 'w'; it must be None with epsilon"):
        tacit.stats.cox(
            fed, "age", time="week", event="arrest", weights="w", epsilon=1.0, grid=[20, 52],
            bounds={"age": (15, 50)},
        )  # fmt: skip


def test_one_heavy_row_is_refused():
    """A weight chosen so that one person has nearly all of a sum."""
    rows = ll_data("rossi").assign(w=1.0)
    rows.loc[0, "w"] = 1e9
    with pytest.raises(tacit.errors.QueryRefused, match="rest on 1 of"):
        tacit.stats.cox(split(rows, 3), "age", time="week", event="arrest", weights="w")
