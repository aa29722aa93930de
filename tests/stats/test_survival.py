"""Survival curves, log-rank tests and Cox models equal lifelines and statsmodels on the pooled rows."""

from __future__ import annotations

import lifelines
import numpy as np
import pandas as pd
import pytest
from lifelines.statistics import multivariate_logrank_test, proportional_hazard_test
from lifelines.utils import concordance_index
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import survdiff

import tacit
from tacit.errors import BadData, BadParameter, QueryRefused
from tacit.stats.hazards import CoxProgram
from tests.stats.references import ll_data, pool, quiet, sm_data, split

EXACT = {"fit_options": {"precision": 1e-13, "r_precision": 1e-15}}


def lung():
    """By institution: ragged, with parties of 2 rows and parties without events."""
    frame = ll_data("lung").rename(columns=lambda c: c.replace(".", "_")).dropna(subset=["inst"])
    return {f"inst{int(k)}": rows.reset_index(drop=True) for k, rows in frame.groupby("inst")}


def survival_cases():
    waltons, gbsg2, aids = ll_data("waltons"), ll_data("gbsg2"), ll_data("multicenter_aids_cohort_study")
    return {
        "lung by institution": (lung(), "time", "status", "sex"),
        "waltons": (split(waltons), "T", "E", "group"),
        "gbsg2": (split(gbsg2, 6), "time", "cens", "horTh"),
        "leukemia": (split(ll_data("leukemia")), "t", "status", "Rx"),
        "dd": (split(ll_data("dd").dropna(subset=["regime", "duration"]), 5), "duration", "observed", "regime"),
        "kidney_transplant": (split(ll_data("kidney_transplant")), "time", "death", "black_male"),
        "heart (statsmodels)": (split(sm_data("heart").assign(old=lambda d: d["age"] > 45), 2), "survival", "censors", "old"),
        "psychiatric_patients": (split(ll_data("psychiatric_patients"), 2), "T", "C", "sex"),
        "aids, late entry": (split(aids), "T", "D", None),
    }  # fmt: skip


CURVES = (
    "lung by institution", "waltons", "gbsg2", "leukemia", "dd", "kidney_transplant", "heart (statsmodels)",
    "psychiatric_patients",
)  # fmt: skip


@pytest.mark.parametrize("case", CURVES)
def test_curves_and_log_rank_equal_lifelines(case):
    fed, time, event, by = survival_cases()[case]
    whole = pool(fed)
    mine = tacit.stats.kaplan_meier(fed, time=time, event=event, by=by, min_count=1)
    hazard = tacit.stats.nelson_aalen(fed, time=time, event=event, by=by, min_count=1)
    for group, rows in whole.groupby(by):
        table = mine.table[mine.table["group"] == group]
        km = quiet(lifelines.KaplanMeierFitter().fit, rows[time], rows[event])
        at = km.survival_function_.loc[table["time"]]
        np.testing.assert_allclose(table["survival"], at.iloc[:, 0], atol=1e-10)
        np.testing.assert_allclose(
            table[["low", "high"]], km.confidence_interval_.loc[table["time"]], atol=1e-8
        )
        np.testing.assert_array_equal(table["at_risk"], km.event_table.loc[table["time"], "at_risk"])
        assert mine.medians[str(group)] == km.median_survival_time_
        table = hazard.table[hazard.table["group"] == group]
        na = quiet(lifelines.NelsonAalenFitter().fit, rows[time], rows[event])
        np.testing.assert_allclose(
            table["hazard"], na.cumulative_hazard_.loc[table["time"]].iloc[:, 0], atol=1e-9
        )
        np.testing.assert_allclose(
            table[["low", "high"]], na.confidence_interval_.loc[table["time"]], atol=1e-8
        )
    for weighting in ("logrank", "wilcoxon"):
        own = tacit.stats.logrank(fed, time=time, event=event, by=by, weighting=weighting)
        known = None if weighting == "logrank" else weighting
        other = quiet(multivariate_logrank_test, whole[time], whole[by], whole[event], weightings=known)
        np.testing.assert_allclose(
            [own.statistic, own.p], [other.test_statistic, other.p_value], rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("case", ["gbsg2", "leukemia", "dd"])
@pytest.mark.parametrize("verb", ["kaplan_meier", "nelson_aalen"])
def test_small_counts_of_a_curve_are_joined_and_the_estimates_stay(case, verb):
    """No row is about fewer than 5 people or 1 to 4 events, and nobody is lost between rows."""
    fed, time, event, by = survival_cases()[case]
    call = getattr(tacit.stats, verb)
    mine = call(fed, time=time, event=event, by=by)
    full = call(fed, time=time, event=event, by=by, min_count=1)
    assert len(mine.table) < len(full.table)
    for group in mine.groups:
        rows, every = (r.table[r.table["group"] == group] for r in (mine, full))
        assert ((rows["events"] == 0) | (rows["events"] >= 5)).all()
        assert (rows["at_risk"] >= 5).all()
        left = -np.diff(rows["at_risk"], append=0)
        assert (left >= 5).all()
        assert rows["at_risk"].iloc[0] == every["at_risk"].iloc[0]
        assert rows["events"].sum() == every["events"].sum()
        assert rows["time"].iloc[-1] == every["time"].iloc[-1]
        same = every.set_index("time").loc[rows["time"], [full.kind, "se", "low", "high"]]
        np.testing.assert_array_equal(rows[[full.kind, "se", "low", "high"]], same)
    assert "no count of events is 1 to 4" in mine.notes[-1]
    shown, true = mine.at_risk_table, full.at_risk_table
    assert list(shown.columns) == list(true.columns)
    seen = [(a, b) for a, b in zip(shown.to_numpy().ravel(), true.to_numpy().ravel()) if a != "–"]
    assert len(seen) >= len(mine.groups)  # at least the beginning of each group
    assert all(a == b and (a == 0 or a >= 5) for a, b in seen)


def test_a_group_with_few_events_is_not_shown():
    weeks = np.arange(1.0, 41.0)
    frame = pd.DataFrame({"t": np.tile(weeks, 2), "g": np.repeat(["a", "b"], 40)})
    frame["e"] = np.where(frame["g"] == "a", frame["t"] % 2, frame["t"] == 7).astype(int)
    mine = tacit.stats.kaplan_meier(split(frame), time="t", event="e", by="g")
    assert mine.groups == ["a"]
    assert list(mine.medians) == ["a"]
    assert mine.notes[-1] == "Not shown, because of counts below 5: b."
    only = split(frame[frame["g"] == "b"])
    with pytest.raises(QueryRefused, match="no group has 5 events"):
        tacit.stats.kaplan_meier(only, time="t", event="e")
    incidence = tacit.stats.aalen_johansen(split(frame), time="t", event="e", cause=1, causes=[1]).table
    assert (incidence["events"] >= 5).all()
    with pytest.raises(BadParameter, match="min_count"):
        tacit.stats.kaplan_meier(only, time="t", event="e", min_count=0)


def _rounding(found):
    return [note for note in found.notes if "survival is overestimated" in note]


def test_a_note_says_how_much_too_high_a_curve_of_a_coarse_grid_is():
    """The size is that of the life table, computed here by hand; whole weeks on a grid of weeks have no note."""
    years = quiet(lifelines.datasets.load_larynx)  # to a tenth of a year
    options = {"time": "time", "event": "death"}
    (note,) = _rounding(tacit.stats.kaplan_meier(split(years, 3), **options))
    cell = np.ceil(years["time"] - 1e-9)
    curve, life, apart = 1.0, 1.0, 0.0
    for point in sorted(cell.unique())[:-1]:
        n, d = (cell >= point).sum(), ((cell == point) & (years["death"] == 1)).sum()
        c = ((cell == point) & (years["death"] == 0)).sum()
        if n >= 20:
            curve, life = curve * (1 - d / n), life * (1 - d / (n - c / 2))
        apart = max(apart, curve - life)
    assert f"by some {apart:.2f} where it is worst" in note
    assert not _rounding(tacit.stats.kaplan_meier(split(years, 3), **options, grid=0.1))
    weeks = {"time": "week", "event": "arrest"}
    assert not _rounding(tacit.stats.kaplan_meier(split(quiet(lifelines.datasets.load_rossi), 3), **weeks))


def test_a_private_curve_of_few_points_has_the_note_too():
    """With ε = 50 the noise of a count is far below the 2,000 people."""
    rng = np.random.default_rng(0)
    event, censored = rng.exponential(20, 2000), rng.exponential(40, 2000)
    frame = pd.DataFrame({"t": np.minimum(event, censored), "e": (event <= censored).astype(int)})
    options = {"time": "t", "event": "e", "epsilon": 50.0}
    assert _rounding(tacit.stats.kaplan_meier(split(frame, 3), **options, grid=[5, 10, 20, 40, 60]))
    assert not _rounding(tacit.stats.kaplan_meier(split(frame, 3), **options, grid=list(range(1, 61))))


def test_late_entry_equals_lifelines():
    fed, time, event, _ = survival_cases()["aids, late entry"]
    whole = pool(fed)
    mine = tacit.stats.kaplan_meier(fed, time=time, event=event, entry="W", grid=0.0001, min_count=1).table
    km = quiet(lifelines.KaplanMeierFitter().fit, whole[time], whole[event], entry=whole["W"])
    last = mine[mine["events"] > 0]
    np.testing.assert_allclose(
        last["survival"], km.survival_function_.loc[last["time"].round(4)].iloc[:, 0], atol=1e-9
    )


def test_the_stratified_log_rank_test_equals_statsmodels_and_opens_no_grid_by_site():
    fed = lung()
    whole = pool(fed)
    mine = tacit.stats.logrank(fed, time="time", event="status", by="sex", strata="site")
    theirs = survdiff(whole["time"], whole["status"], whole["sex"], strata=whole["site"])
    np.testing.assert_allclose([mine.statistic, mine.p], theirs, rtol=1e-8)
    assert "grid" not in " ".join(mine.ledger.stamps)
    rows = whole.dropna(subset=["ph_ecog"])
    mine = tacit.stats.logrank(fed, time="time", event="status", by="sex", strata="ph_ecog", min_level_rows=1)
    theirs = survdiff(rows["time"], rows["status"], rows["sex"], strata=rows["ph_ecog"])
    np.testing.assert_allclose([mine.statistic, mine.p], theirs, rtol=1e-8)
    assert "on the grid: multiples of 1 up to 1022" in mine.ledger.stamps[0]


def test_competing_risks_equal_lifelines():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"t": rng.permutation(120) + 1, "e": rng.choice([0, 1, 2], 120)})
    mine = tacit.stats.aalen_johansen(
        split(frame), time="t", event="e", cause=1, causes=[1, 2], min_count=1
    ).table
    aj = quiet(lifelines.AalenJohansenFitter().fit, frame["t"], frame["e"], 1)
    np.testing.assert_allclose(
        mine["incidence"], aj.cumulative_density_.loc[mine["time"]].iloc[:, 0], atol=1e-9
    )
    np.testing.assert_allclose(mine["se"] ** 2, aj.variance_.loc[mine["time"]], atol=1e-12)
    known = mine[mine["incidence"] > 0]
    bounds = aj.confidence_interval_.loc[known["time"]]
    np.testing.assert_allclose(np.sort(known[["low", "high"]]), np.sort(bounds), atol=1e-8)


def cox_cases():
    gbsg2 = ll_data("gbsg2")
    return {
        "rossi": (split(ll_data("rossi"), 4), "fin + age + race + wexp + mar + paro + prio", "week", "arrest", 1.0),
        "lung by institution": (lung(), "age + sex + C(ph_ecog)", "time", "status", 1.0),
        "gbsg2": (split(gbsg2, 6), "horTh + age + menostat + tsize + tgrade + pnodes", "time", "cens", 1.0),
        "larynx": (split(ll_data("larynx")), "age + Stage_II + Stage_III + Stage_IV", "time", "death", 0.1),
        "leukemia": (split(ll_data("leukemia"), 2), "sex + logWBC + Rx", "t", "status", 1.0),
        "kidney_transplant": (split(ll_data("kidney_transplant")), "age + black_male + white_male", "time", "death", 1.0),
        "heart (statsmodels)": (split(sm_data("heart"), 2), "age", "survival", "censors", 1.0),
        "dd": (split(ll_data("dd"), 7), "un_continent_name + regime", "duration", "observed", 1.0),
    }  # fmt: skip


@pytest.mark.parametrize("case", cox_cases())
def test_cox_equals_lifelines(case):
    fed, formula, time, event, grid = cox_cases()[case]
    used = [time, event, *(c for c in pool(fed).columns if c in formula)]
    whole = pool(fed).dropna(subset=used).reset_index(drop=True)
    # one patient of the lung data alone has ph_ecog = 3
    mine = tacit.stats.cox(fed, formula, time=time, event=event, grid=grid, min_count=1, min_level_rows=1)
    theirs = quiet(lifelines.CoxPHFitter().fit, whole, time, event, formula=formula, **EXACT)
    names = [str(n).replace(".0]", "]") for n in theirs.params_.index]
    table, other = mine.summary().loc[names], theirs.summary
    np.testing.assert_allclose(table["coef"], other["coef"], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(table["hr"], other["exp(coef)"], rtol=1e-6)
    np.testing.assert_allclose(table["se"], other["se(coef)"], rtol=1e-6)
    np.testing.assert_allclose(table["z"], other["z"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(table["p"], other["p"], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(
        table[["low", "high"]], other[["coef lower 95%", "coef upper 95%"]], rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(mine.log_likelihood, theirs.log_likelihood_, rtol=1e-9)
    ratio = quiet(theirs.log_likelihood_ratio_test)
    np.testing.assert_allclose(mine.likelihood_ratio, ratio.test_statistic, rtol=1e-6)
    at = theirs.baseline_cumulative_hazard_.iloc[:, 0]
    place = np.searchsorted(at.index, mine.baseline["time"] + 1e-7, side="right") - 1
    np.testing.assert_allclose(mine.baseline["cumulative_hazard"], at.iloc[place], rtol=1e-6)
    assert abs(mine.concordance - theirs.concordance_index_) <= mine.concordance_error + 1e-9
    other = quiet(proportional_hazard_test, theirs, whole, time_transform="km")
    np.testing.assert_allclose(
        mine.ph_test.loc[names, "statistic"], other.test_statistic, rtol=1e-5, atol=1e-6
    )


def test_breslow_ties_equal_statsmodels():
    frame, names = ll_data("rossi"), ["fin", "age", "prio"]
    mine = tacit.stats.cox(split(frame), "fin + age + prio", time="week", event="arrest", ties="breslow")
    theirs = quiet(lambda: PHReg(frame["week"], frame[names], frame["arrest"], ties="breslow").fit(tol=1e-13))
    np.testing.assert_allclose(mine.summary().loc[names, "coef"], theirs.params, rtol=1e-6)
    np.testing.assert_allclose(mine.summary().loc[names, "se"], theirs.bse, rtol=1e-6)


@pytest.mark.parametrize("strata", ["wexp", "site"])
def test_strata_equal_lifelines(strata):
    fed = split(ll_data("rossi"), 4)
    whole, formula = pool(fed), "fin + age + mar + prio"
    mine = tacit.stats.cox(fed, formula, time="week", event="arrest", strata=strata, ph_transform="identity")
    theirs = quiet(
        lifelines.CoxPHFitter().fit, whole, "week", "arrest", formula=formula, strata=[strata], **EXACT
    )
    table = mine.summary().loc[theirs.params_.index]
    np.testing.assert_allclose(table["coef"], theirs.params_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(table["se"], theirs.standard_errors_, rtol=1e-6)
    other = quiet(proportional_hazard_test, theirs, whole, time_transform="identity")
    np.testing.assert_allclose(mine.ph_test.loc[other.name, "statistic"], other.test_statistic, rtol=1e-5)
    opened = " ".join(mine.ledger.stamps)
    assert ("grid" in opened) == (strata == "wexp")
    if strata == "site":
        pairs = np.zeros(2)
        for frame in fed.values():
            weight = _comparable(frame)
            if weight:
                own = quiet(concordance_index, frame["week"], -mine.predict(frame), frame["arrest"])
                pairs += [own * weight, weight]
        # a pair whose scores differ in the last bit is tied in one and not in the other
        np.testing.assert_allclose(mine.concordance, pairs[0] / pairs[1], atol=2 / pairs[1])


def _comparable(frame):
    week, arrest = frame["week"].to_numpy(), frame["arrest"].to_numpy().astype(bool)
    later = week[None, :] > week[:, None]
    same = (week[None, :] == week[:, None]) & ~arrest[None, :]
    return float(((later | same) & arrest[:, None]).sum())


def test_start_and_stop_times_equal_lifelines():
    frame = ll_data("stanford_heart_transplants")
    frame = frame[frame["start"] < frame["stop"]]
    formula = "age + year + surgery + transplant"
    mine = tacit.stats.cox(split(frame, 4), formula, time="stop", event="event", entry="start", grid=0.5)
    fitter = lifelines.CoxTimeVaryingFitter()
    theirs = quiet(
        fitter.fit, frame, id_col="id", start_col="start", stop_col="stop", event_col="event", formula=formula
    )
    table = mine.summary().loc[theirs.params_.index]
    np.testing.assert_allclose(table["coef"], theirs.params_, rtol=1e-6)
    np.testing.assert_allclose(table["se"], theirs.standard_errors_, rtol=1e-6)


def test_a_coarser_grid_is_the_same_as_rounded_times():
    frame = ll_data("rossi")
    mine = tacit.stats.cox(split(frame), "fin + age", time="week", event="arrest", grid=4.0)
    rounded = frame.assign(week=np.ceil(frame["week"] / 4) * 4)
    theirs = quiet(lifelines.CoxPHFitter().fit, rounded, "week", "arrest", formula="fin + age", **EXACT)
    np.testing.assert_allclose(mine.params[theirs.params_.index], theirs.params_, rtol=1e-6)
    listed = tacit.stats.cox(
        split(frame), "fin + age", time="week", event="arrest", grid=list(range(4, 56, 4))
    )
    np.testing.assert_allclose(listed.beta, mine.beta, rtol=1e-12)
    with pytest.raises(BadData, match="after the last point of the grid"):
        tacit.stats.cox(split(frame), "fin + age", time="week", event="arrest", grid=[10, 20])


def test_merged_grid_points_keep_a_least_number_of_rows_between_sums():
    fed = split(ll_data("rossi"))
    fine = tacit.stats.cox(fed, "fin + age", time="week", event="arrest")
    merged = tacit.stats.cox(fed, "fin + age", time="week", event="arrest", min_exits=8)
    assert fine.found.smallest == 1
    assert "describes it" in fine.notes[0]
    assert merged.found.smallest >= 8
    assert merged.found.opened < fine.found.opened
    assert not merged.notes
    np.testing.assert_allclose(merged.beta, fine.beta, atol=0.05)


def test_predictions_equal_lifelines():
    frame = ll_data("rossi")
    mine = tacit.stats.cox(split(frame), "fin + age", time="week", event="arrest")
    theirs = quiet(lifelines.CoxPHFitter().fit, frame, "week", "arrest", formula="fin + age", **EXACT)
    np.testing.assert_allclose(mine.predict(frame), quiet(theirs.predict_partial_hazard, frame), rtol=1e-6)
    times = [10.0, 20.0, 52.0]
    other = quiet(theirs.predict_survival_function, frame.head(4), times=times)
    np.testing.assert_allclose(mine.predict_survival(frame.head(4), times), other, rtol=1e-6)


def test_separated_collinear_and_saturated_models_are_refused():
    frame = ll_data("rossi").assign(
        twice=lambda d: 2 * d["age"] + 1, sure=lambda d: d["arrest"].astype(float)
    )
    fed = split(frame)
    with pytest.raises(BadData, match="'age', 'twice' are collinear"):
        tacit.stats.cox(fed, "age + twice", time="week", event="arrest")
    with pytest.raises(BadData, match="separated from the others by 'sure'"):
        tacit.stats.cox(fed, "age + sure", time="week", event="arrest")
    few = {"a": frame[frame["arrest"] == 1].head(2), "b": frame[frame["arrest"] == 0].head(20)}
    with pytest.raises(BadData, match="2 events at all parties together, and 3 coefficients"):
        tacit.stats.cox(few, "age + prio + fin", time="week", event="arrest")
    with pytest.raises(BadData, match="no party has an event"):
        tacit.stats.cox({"a": frame[frame["arrest"] == 0]}, "age", time="week", event="arrest")


def test_bad_input_is_named():
    frame = ll_data("rossi")
    fed = split(frame)
    with pytest.raises(BadData, match="values other than 0"):
        tacit.stats.kaplan_meier({"a": frame.assign(arrest=frame["arrest"] + 1)}, time="week", event="arrest")
    with pytest.raises(BadData, match="negative or infinite times"):
        tacit.stats.kaplan_meier({"a": frame.assign(week=-1.0)}, time="week", event="arrest")
    with pytest.raises(BadData, match="Declare a coarser one"):
        tacit.stats.kaplan_meier(fed, time="week", event="arrest", grid=1e-5)
    for options, text in (
        ({"ties": "exact"}, "'efron', 'breslow'"),
        ({"grid": 0}, "above 0"),
        ({"min_exits": 0}, "at least 1"),
        ({"ph_transform": "sin"}, "'km', 'rank'"),
        ({"epsilon": 1.0}, "the times themselves, with epsilon"),
    ):
        with pytest.raises(BadParameter, match=text):
            tacit.stats.cox(fed, "age", time="week", event="arrest", **options)
    with pytest.raises(BadParameter, match="no left-hand side"):
        tacit.stats.cox(fed, "arrest ~ age", time="week", event="arrest")
    with pytest.raises(BadParameter, match="'logrank', 'wilcoxon'"):
        tacit.stats.logrank(fed, time="week", event="arrest", by="fin", weighting="x")


def test_messages_give_the_bits_of_the_simulation():
    fed = split(ll_data("rossi").assign(mar=lambda d: np.where(d["mar"] == 1, "yes", "no")), 3)
    for strata in (None, "site"):
        runs = [
            tacit.stats.cox(fed, "age + mar", time="week", event="arrest", strata=strata, runtime=r)
            for r in ("cohort", "inprocess")
        ]
        assert runs[0].summary().equals(runs[1].summary())
        assert runs[0].concordance == runs[1].concordance
    tables = [
        tacit.stats.kaplan_meier(fed, time="week", event="arrest", by="mar", runtime=r).table
        for r in ("cohort", "inprocess")
    ]
    assert tables[0].equals(tables[1])


def test_a_grid_without_a_partys_events_is_refused_by_the_party():
    """A lying coordinator leaves out grid points, so that a sum is over few people."""
    import torch

    from tacit.stats.design import Agreement
    from tacit.stats.hazards import RISK

    frame = ll_data("rossi")
    program = CoxProgram("age", "week", "arrest")
    down = {
        "levels": Agreement({}).to_tensor(),
        "phase": torch.tensor(RISK),
        "rows": torch.tensor(1000),
        "center": torch.zeros(1, dtype=torch.float64),
        "scaled": torch.ones(1, dtype=torch.float64),
        "cuts": torch.arange(64),
        "points": torch.tensor([51]),
        "starts": torch.tensor([0, 1]),
        "beta": torch.zeros(1, dtype=torch.float64),
    }
    with pytest.raises(BadData, match="do not include all events"):
        program.local(2, frame, down)


def test_the_reports_have_curves_and_at_risk_tables(tmp_path):
    fed = split(ll_data("rossi"))
    km = tacit.stats.kaplan_meier(fed, time="week", event="arrest", by="fin")
    page = km.report(tmp_path / "km.html").read_text()
    assert "<svg" in page
    assert "at risk table" in page
    assert km.plot().save(tmp_path / "km.svg").exists()
    assert int(km.at_risk_table.loc[0, "0"]) == int((pool(fed)["fin"] == 0).sum())
    np.testing.assert_allclose(
        km.at(10.5).loc[1, "survival"], km.table.query("group == 1 and time <= 10")["survival"].iloc[-1]
    )
    cox = tacit.stats.cox(fed, "fin + age", time="week", event="arrest")
    assert "hazard ratio" in cox.report(tmp_path / "cox.html").read_text()
    assert "Concordance" in str(cox)
