"""GEE, random intercepts and meta-analysis equal statsmodels; the meta-analysis must be asked for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy.optimize import minimize
from statsmodels.stats.meta_analysis import combine_effects

import tacit
from tacit.errors import BadData, BadParameter
from tests.stats.references import pool, quiet


def sites(count: int = 6, spread: float = 0.9) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(3)
    fed = {}
    for k in range(count):
        n = int(rng.integers(25, 80))
        frame = pd.DataFrame({"x": rng.normal(size=n), "g": rng.choice(["a", "b"], n)})
        eta = -0.2 + 0.5 * frame["x"] + 0.4 * (frame["g"] == "b") + spread * rng.normal()
        frame["y"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
        frame["t"], frame["c"] = eta + rng.normal(size=n), rng.poisson(np.exp(eta / 2))
        fed[f"s{k}"] = frame
    return fed


@pytest.mark.parametrize(("outcome", "family"), [("y", "binomial"), ("t", "gaussian"), ("c", "poisson")])
def test_gee_equals_statsmodels(outcome, family):
    fed, formula = sites(), f"{outcome} ~ x + g"
    mine = tacit.stats.gee(fed, formula, family)
    kinds = {
        "binomial": sm.families.Binomial,
        "gaussian": sm.families.Gaussian,
        "poisson": sm.families.Poisson,
    }
    model = smf.gee(
        formula, "site", pool(fed), family=kinds[family](), cov_struct=sm.cov_struct.Exchangeable()
    )
    theirs = quiet(model.fit, ctol=1e-12, maxiter=300)
    np.testing.assert_allclose(mine.params[theirs.params.index], theirs.params, rtol=1e-6)
    np.testing.assert_allclose(mine.summary()["se"][theirs.params.index], theirs.bse, rtol=1e-6)
    np.testing.assert_allclose(mine.extras["correlation"], theirs.cov_struct.dep_params, rtol=1e-6)
    assert "clustered by site" in mine.covariance


def test_a_linear_mixed_model_equals_statsmodels():
    fed, formula = sites(), "t ~ x + g"
    mine = tacit.stats.mixed(fed, formula, "gaussian")
    theirs = quiet(smf.mixedlm(formula, pool(fed), groups="site").fit, reml=False, method="bfgs", gtol=1e-9)
    np.testing.assert_allclose(mine.params[theirs.fe_params.index], theirs.fe_params, rtol=1e-6)
    np.testing.assert_allclose(mine.summary()["se"][theirs.fe_params.index], theirs.bse_fe, rtol=1e-5)
    np.testing.assert_allclose(mine.extras["site variance"], float(theirs.cov_re.iloc[0, 0]), rtol=1e-5)
    np.testing.assert_allclose([mine.scale, mine.log_likelihood], [theirs.scale, theirs.llf], rtol=1e-6)


def test_a_logistic_mixed_model_is_at_the_maximum_of_laplaces_likelihood():
    fed = sites(4)
    mine = tacit.stats.mixed(fed, "y ~ x")

    def negative(theta):
        total = 0.0
        for frame in fed.values():
            y, eta0, u = frame["y"].to_numpy(), theta[0] + theta[1] * frame["x"].to_numpy(), 0.0
            for _ in range(40):
                mu = 1 / (1 + np.exp(-eta0 - theta[2] * u))
                u += (theta[2] * (y - mu).sum() - u) / (theta[2] ** 2 * (mu * (1 - mu)).sum() + 1)
            eta = eta0 + theta[2] * u
            mu = 1 / (1 + np.exp(-eta))
            total += float((y * eta - np.logaddexp(0, eta)).sum() - u * u / 2)
            total -= 0.5 * float(np.log(theta[2] ** 2 * (mu * (1 - mu)).sum() + 1))
        return -total

    found = np.array([*mine.params[["Intercept", "x"]], np.sqrt(mine.extras["site variance"])])
    best = minimize(negative, found + 0.05, method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose(found, best.x, atol=1e-5)
    np.testing.assert_allclose(mine.log_likelihood, -best.fun, rtol=1e-9)


@pytest.mark.parametrize("effects", ["fixed", "random"])
def test_a_meta_analysis_equals_statsmodels_and_says_what_it_opened(effects):
    fed = sites()
    with pytest.raises(BadParameter, match=r"open_sites.*opens every site's own"):
        tacit.stats.meta(fed, "y ~ x", effects=effects)
    mine = tacit.stats.meta(fed, "y ~ x", effects=effects, open_sites=True)
    fits = [quiet(smf.logit("y ~ x", frame).fit, disp=0, tol=1e-12) for frame in fed.values()]
    theirs = combine_effects(
        np.array([f.params["Intercept"] for f in fits]),
        np.array([f.bse["Intercept"] ** 2 for f in fits]),
        method_re="dl",
    )
    row = theirs.summary_frame().loc[f"{effects} effect"]
    own = mine.summary().loc["Intercept"]
    np.testing.assert_allclose(
        own[["coef", "se"]].astype(float), row[["eff", "sd_eff"]].astype(float), rtol=1e-6
    )
    np.testing.assert_allclose(mine.extras["heterogeneity"].loc["Intercept", "tau2"], theirs.tau2, rtol=1e-6)
    assert "each site alone" in " ".join(mine.ledger.stamps)


def test_sites_too_small_for_a_model_are_left_out_of_a_meta_analysis_only():
    fed = {**sites(3), "tiny": sites(1)["s0"].head(2)}
    mine = tacit.stats.meta(fed, "y ~ x", open_sites=True)
    assert mine.notes == ("Sites without an estimate of their own: tiny.",)
    assert tacit.stats.glm(fed, "y ~ x").n == sum(map(len, fed.values()))


def test_sums_of_products_of_two_sites_scores_are_not_opened():
    for call in (tacit.stats.gee, lambda f, m: tacit.stats.glm(f, m, robust="site")):
        with pytest.raises(BadData, match="each site's own"):
            call(sites(2), "y ~ x")


def test_messages_give_the_bits_of_the_simulation():
    fed = sites(3)
    runs = [tacit.stats.gee(fed, "t ~ x", "gaussian", runtime=r).summary() for r in ("cohort", "inprocess")]
    assert runs[0].equals(runs[1])


def test_a_negative_correlation_stops_at_its_bound_and_is_said():
    """Rows of a site that are less alike than those of different sites: statsmodels goes on below 0."""
    rng = np.random.default_rng(0)
    fed = {}
    for k in range(4):
        y = np.tile([0.0, 1.0], 30)  # every site has exactly half: sites differ less than by chance
        fed[f"s{k}"] = pd.DataFrame({"x": rng.normal(size=60), "y": y})
    found = tacit.stats.gee(fed, "y ~ x")
    assert found.extras["correlation"] == -0.5 / 240
    assert "negative" in found.notes[-1]
    assert np.isfinite(found.summary().to_numpy()).all()


def test_gee_with_few_large_sites_takes_many_rounds_and_equals_statsmodels():
    """Fair's survey by religiosity: four sites of 1,500 rows, where the correlation moves slowly (98 rounds)."""
    data = quiet(lambda: sm.datasets.fair.load_pandas().data)
    data = data.assign(any=(data["affairs"] > 0).astype(int)).drop(data.index[::53]).reset_index(drop=True)
    fed = {f"r{int(k)}": part.reset_index(drop=True) for k, part in data.groupby("religious")}
    mine = tacit.stats.gee(fed, "any ~ age + rate_marriage")
    model = smf.gee(
        "any ~ age + rate_marriage",
        "religious",
        data,
        family=sm.families.Binomial(),
        cov_struct=sm.cov_struct.Exchangeable(),
    )
    theirs = quiet(model.fit, maxiter=300, ctol=1e-10)
    table = mine.summary()
    np.testing.assert_allclose(table["coef"], theirs.params, atol=1e-6)
    np.testing.assert_allclose(table["se"], theirs.bse, atol=1e-6)
    assert mine.rounds > 40
