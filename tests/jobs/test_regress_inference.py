"""`tacit.regress` with standard errors equals the pooled fits of statsmodels, to 3e-5 standard errors in
coefficients (gaussian: over √(1 − R²)) and 3e-5 in standard errors, where errors are typically 1e-6:
nine fits of seven real data sets, columns at two or three parties.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
from lifelines import CoxPHFitter
from lifelines.datasets import load_lung, load_rossi

import tacit
from tacit.errors import BadData, BadParameter, BadRun, QueryRefused


def split(frame: pd.DataFrame, parties: int) -> dict[str, pd.DataFrame]:
    """Columns in turn at each party, so that correlated ones are at different parties."""
    return {f"p{k}": frame.iloc[:, k::parties] for k in range(parties)}


def load(name: str) -> pd.DataFrame:
    return getattr(sm.datasets, name).load_pandas().data


def spector():
    """30 rows are too few for 4 coefficients, so each row is there twice."""
    return pd.concat([load("spector")] * 2, ignore_index=True)


CASES = {
    "macrodata": (lambda: load("macrodata").drop(columns=["year", "quarter"]), "realgdp", "gaussian", 3),
    "fair": (lambda: load("fair").iloc[::4].drop(columns="rate_marriage"), "affairs", "gaussian", 2),
    "spector": (spector, "GRADE", "binomial", 2),
    "anes96": (
        lambda: load("anes96")[["logpopul", "selfLR", "age", "educ", "income", "vote"]],
        "vote",
        "binomial",
        2,
    ),
    "randhie": (lambda: load("randhie").iloc[:800], "mdvis", "poisson", 2),
}


SLOW = ("fair", "spector")  # repeats of families that another data set covers


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_the_summary_equals_statsmodels(name):
    make, label, family, parties = CASES[name]
    data = make()
    y, x = data[label].to_numpy(dtype=float), data.drop(columns=label).astype(float)
    if name == "macrodata":  # gdp is consumption, investment and government: collinear but for rounding
        x = x[["infl", "unemp", "tbilrate", "pop"]]
    run = tacit.regress(split(x, parties), {"p0": y}, family=family, steps=3 if family == "gaussian" else 7)
    pooled = {
        "gaussian": lambda: sm.OLS(y, sm.add_constant(x)).fit(),
        "binomial": lambda: sm.Logit(y, sm.add_constant(x)).fit(disp=0, tol=1e-12),
        "poisson": lambda: sm.Poisson(y, sm.add_constant(x)).fit(disp=0, tol=1e-12),
    }[family]()
    check(run.summary(), pooled, scale=(1 - pooled.rsquared) ** -0.5 if family == "gaussian" else 1.0)
    assert run.summary().attrs["statistic"] == (
        f"t with {len(y) - x.shape[1] - 1} degrees of freedom" if family == "gaussian" else "z"
    )
    assert np.allclose(
        run.predict(split(x, parties)), pooled.predict(sm.add_constant(x)), rtol=1e-4, atol=1e-6
    )
    if family == "gaussian":
        assert run.metrics["r2"] == pytest.approx(pooled.rsquared, abs=1e-6)
        assert run.metrics["sigma"] == pytest.approx(pooled.mse_resid**0.5, rel=1e-5)
        assert run.metrics["deviance"] == pytest.approx(pooled.ssr, rel=2e-5)
        for name, value in (("loglik", pooled.llf), ("aic", pooled.aic), ("bic", pooled.bic)):
            assert run.metrics[name] == pytest.approx(value, abs=1e-5 * run.rows)
    else:
        check_likelihood(run, pooled)


def check_likelihood(run, pooled):
    """Likelihoods to 1e-6 per row (measured: 5e-8 at most), and what follows from them."""
    near = 1e-6 * run.rows
    expected = {"loglik": pooled.llf, "loglik_null": pooled.llnull, "aic": pooled.aic, "bic": pooled.bic}
    expected |= {"lr": pooled.llr, "pseudo_r2": pooled.prsquared, "lr_p": pooled.llr_pvalue}
    for name, value in expected.items():
        assert run.metrics[name] == pytest.approx(value, abs=4 * near, rel=1e-2 if name == "lr_p" else 0)
    assert run.metrics["lr_p"] == pytest.approx(pooled.llr_pvalue, rel=1e-2)


def check(table, pooled, terms=None, scale=1.0):
    terms = terms if terms is not None else ["const" if t == "Intercept" else t for t in table.index]
    names = pooled.model.exog_names
    at = [names.index(t) for t in terms]
    coef, se, p, z = (np.asarray(v)[at] for v in (pooled.params, pooled.bse, pooled.pvalues, pooled.tvalues))
    assert np.abs((table["coef"] - coef) / se).max() < 3e-5 * scale
    assert np.abs(table["se"] / se - 1).max() < 3e-5
    assert np.abs(table["z"] - z).max() < 3e-5 * scale * max(1, np.abs(z).max())
    assert np.allclose(table["p"], p, rtol=3e-4 * scale, atol=1e-12)
    interval = np.asarray(pooled.conf_int())[at]
    assert np.abs((table[["low", "high"]].to_numpy() - interval) / se[:, None]).max() < 1e-4 * scale


@pytest.mark.parametrize(("ties", "parties"), [("efron", 2), ("breslow", 2)])
def test_cox_equals_statsmodels_with_ties(ties, parties):
    """rossi: 114 arrests in 49 different weeks of 432 people."""
    data = load_rossi()
    x = data.drop(columns=["week", "arrest"]).astype(float)
    run = tacit.regress(
        split(x, parties), {"p1": data[["week", "arrest"]].to_numpy()}, family="cox", ties=ties, steps=5
    )
    pooled = sm.PHReg(data["week"], x, status=data["arrest"], ties=ties).fit(disp=0)
    check(run.summary(), pooled)
    assert run.metrics["loglik"] == pytest.approx(pooled.llf, abs=1e-6 * len(x))
    assert run.metrics["loglik_null"] == pytest.approx(pooled.model.loglike(np.zeros(x.shape[1])), abs=1e-9)
    assert run.metrics["aic"] == pytest.approx(2 * x.shape[1] - 2 * pooled.llf, abs=2e-6 * len(x))
    assert "deviance" not in run.metrics
    ratio = run.predict(split(x, parties)).numpy()
    assert np.allclose(
        np.log(ratio) - np.log(ratio)[0], x @ pooled.params - (x @ pooled.params)[0], atol=1e-5
    )


def test_multinomial_equals_statsmodels_over_a_holder_without_columns():
    data = load("anes96")
    x = data[["logpopul", "selfLR", "age", "educ"]].astype(float)
    y = np.digitize(data["PID"], [2, 5])
    run = tacit.regress(split(x, 2), {"registry": y}, family="multinomial", steps=6)
    pooled = sm.MNLogit(y, sm.add_constant(x)).fit(disp=0, tol=1e-12)
    check_likelihood(run, pooled)
    table = run.summary()
    assert list(table.index[:2]) == ["1: Intercept", "2: Intercept"]
    for k in (1, 2):
        for term in ("const", *x.columns):
            row = table.loc[f"{k}: {'Intercept' if term == 'const' else term}"]
            coef, se = np.asarray(pooled.params.loc[term])[k - 1], np.asarray(pooled.bse.loc[term])[k - 1]
            assert abs(row["coef"] - coef) < 3e-5 * se
            assert row["se"] == pytest.approx(se, rel=3e-5)
    assert (
        np.abs(run.predict(split(x, 2)).numpy() - np.asarray(pooled.predict(sm.add_constant(x)))).max() < 1e-5
    )


def visits(n=300):
    """RAND's health insurance experiment with made-up exposures and weights."""
    rng = np.random.default_rng(0)
    data = load("randhie").iloc[:n].reset_index(drop=True)
    frame = data[["lncoins", "idp", "physlm", "disea", "mdvis"]].astype(float)
    return frame.assign(years=np.log(rng.uniform(0.5, 4, n)), weight=rng.uniform(0.3, 3, n))


@pytest.mark.parametrize(
    ("family", "offset", "weights"),
    [
        ("poisson", "years", "weight"),
        pytest.param("binomial", "years", "weight", marks=pytest.mark.slow),
        ("gaussian", "years", "weight"),
    ],
)
def test_offsets_and_weights_of_the_label_holder_equal_statsmodels(family, offset, weights, tmp_path):
    data = visits()
    change = {"poisson": lambda y: y, "binomial": lambda y: (y > 1).astype(float), "gaussian": np.log1p}[
        family
    ]
    data["y"] = change(data["mdvis"])
    x = sm.add_constant(data[["lncoins", "idp", "physlm", "disea"]])
    tables = {"clinic": data[["lncoins", "idp", "y", "years", "weight"]], "lab": data[["physlm", "disea"]]}
    run = tacit.regress(
        tables,
        label="y",
        family=family,
        offset=offset,
        weights=weights,
        steps=7 if family == "poisson" else 5,
    )
    kind = {
        "poisson": sm.families.Poisson,
        "binomial": sm.families.Binomial,
        "gaussian": sm.families.Gaussian,
    }
    pooled = sm.GLM(data["y"], x, kind[family](), offset=data["years"], var_weights=data["weight"]).fit(
        tol=1e-12
    )
    table = run.summary().loc[["Intercept", *x.columns[1:]]]
    assert np.abs((table["coef"] - pooled.params.to_numpy()) / pooled.bse.to_numpy()).max() < 3e-5
    assert np.abs(table["se"] / pooled.bse.to_numpy() - 1).max() < 3e-5
    for name, value in (
        ("loglik", pooled.llf), ("deviance", pooled.deviance), ("null_deviance", pooled.null_deviance),
        ("aic", pooled.aic),
    ):  # fmt: skip
        assert run.metrics[name] == pytest.approx(value, abs=1e-5 * run.rows), name
    # the offset is a column of new rows as well, and travels with the saved model
    again = tacit.Regression.load(run.save(tmp_path / "fit.json"))
    expected = pooled.predict(x, offset=data["years"])
    assert np.allclose(again.predict(tables), expected, rtol=1e-4)
    with pytest.raises(BadData, match="no column 'years', the offset"):
        run.predict({**tables, "clinic": tables["clinic"].drop(columns="years")})


def test_the_offset_of_a_cox_model_equals_statsmodels():
    data = load_rossi()
    x, known = data[["age", "prio", "fin"]].astype(float), np.random.default_rng(1).normal(2, 1, len(data))
    y = data[["week", "arrest"]].to_numpy()
    run = tacit.regress(split(x, 2), {"p1": y}, family="cox", offset=known, steps=6)
    pooled = sm.PHReg(data["week"], x, status=data["arrest"], ties="efron", offset=known).fit(disp=0)
    check(run.summary(), pooled, list(run.summary().index))
    assert run.metrics["loglik"] == pytest.approx(pooled.llf, abs=1e-6 * len(x))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"family": "multinomial", "offset": "years"}, BadParameter, "offset is True; it must be left out"),
        ({"weights": "nothing"}, BadParameter, "columns of exactly one party"),
        ({"weights": "physlm"}, BadParameter, "columns of exactly one party"),
        ({"offset": 3}, BadParameter, "the name of a column of the label's table"),
        ({"weights": "heavy"}, BadData, "none more than 8 times their mean"),
        ({"weights": "negative"}, BadData, "weights must be above 0"),
        ({"offset": "text"}, BadData, r"column 'text' \(offset\) contains non-numeric values"),
        ({"weights": "weight", "l2": 0.1}, BadParameter, "label, offset and weights"),
    ],
)
def test_bad_offsets_and_weights(options, error, words):
    data = visits(200).assign(y=lambda f: f["mdvis"].clip(upper=2))
    data = data.assign(heavy=np.where(data.index == 0, 1e4, 1.0), negative=-1.0, text="a")
    used = ["lncoins", "idp", "y", *(c for c in options.values() if c in data.columns[4:])]
    tables = {"clinic": data[used], "lab": data[["physlm", "disea"]]}
    with pytest.raises(error, match=words):
        tacit.regress(tables, label="y", **{"family": "poisson", **options})


def lung():
    data = load_lung().reset_index(drop=True)
    data["patient"] = [f"P{k:03d}" for k in range(len(data))]
    data["sex"] = data["sex"].map({1: "male", 2: "female"})
    clinic = data[["patient", "time", "status", "age", "sex"]].sample(frac=0.95, random_state=1)
    lab = data[["patient", "ph.ecog", "ph.karno", "wt.loss"]].sample(frac=1, random_state=2)
    return clinic, lab


def test_tables_are_matched_and_rows_with_missing_values_left_out(tmp_path):
    clinic, lab = lung()
    run = tacit.regress({"clinic": clinic, "lab": lab}, on="patient", time="time", event="status", steps=5)
    both = clinic.merge(lab.dropna(), on="patient").assign(male=lambda f: (f["sex"] == "male").astype(float))
    x = both[["age", "male", "ph.ecog", "ph.karno", "wt.loss"]]
    pooled = sm.PHReg(both["time"], x, status=both["status"], ties="efron").fit(disp=0)
    check(run.summary(), pooled, ["age", "male", "ph.ecog", "ph.karno", "wt.loss"])
    assert list(run.summary().index) == ["age", "sex[T.male]", "ph.ecog", "ph.karno", "wt.loss"]
    assert f"{len(both)} people are shared" in " ".join(run.notes)
    assert "have missing values; they were left out" in " ".join(run.notes)
    kinds = {line.kind for line in run.ledger.seen}
    assert {"EstimateShare", "CheckShare", "PermutedOrder"} <= kinds
    file = run.save(tmp_path / "fit.json")
    again = tacit.Regression.load(file)
    assert again.summary().equals(run.summary())
    assert torch.equal(
        again.predict({"clinic": both, "lab": both}), run.predict({"clinic": both, "lab": both})
    )
    with pytest.raises(BadParameter, match="already exists"):
        run.save(file)
    file.write_text(file.read_text().replace("regressions", "recipes"))
    with pytest.raises(BadData, match=r"is no result of tacit\.regress with standard errors"):
        tacit.Regression.load(file)
    with pytest.raises(
        BadData, match=r"has the value 'other', which no row of the fit had\. Known: female, male"
    ):
        run.predict({"clinic": both.assign(sex="other"), "lab": both})


def noise(n=200, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = {"a": torch.randn(n, 2, generator=g).double(), "b": torch.randn(n, 2, generator=g).double()}
    return x, x["a"][:, 0] - x["b"][:, 1] + torch.randn(n, generator=g)


def test_collinear_columns_of_different_parties_are_an_error():
    x, y = noise()
    x["b"][:, 0] = x["a"][:, 0] + 1e-4 * x["b"][:, 0]
    with pytest.raises(BadData, match="columns of different parties are collinear"):
        tacit.regress(x, {"a": y + 0.5})


def test_nearly_collinear_columns_are_still_exact():
    """A variance inflation of 100 is within the range of the computation."""
    x, y = noise()
    x["b"][:, 0] = x["a"][:, 0] + 0.1 * x["b"][:, 0]
    run = tacit.regress(x, {"a": y})
    pooled = sm.OLS(y.numpy(), sm.add_constant(torch.cat([x["a"], x["b"]], 1).numpy())).fit()
    assert np.abs((run.summary()["coef"].to_numpy() - pooled.params) / pooled.bse).max() < 1e-4
    assert np.abs(run.summary()["se"].to_numpy() / pooled.bse - 1).max() < 1e-4


def test_separated_classes_are_reported():
    """Weights of rows vanish as the coefficients grow, until the Hessian has no inverse."""
    x, _ = noise()
    label = ((x["a"][:, 0] - x["b"][:, 1]) > 0).long()
    with pytest.raises(BadData, match="or the label is separated"):
        tacit.regress(x, {"a": label})
    run = tacit.regress(x, {"a": label}, steps=4)
    assert run.converged is False
    assert run.notes[-1].startswith("NOT CONVERGED")
    with pytest.raises(BadRun, match=r"there is no summary\. NOT CONVERGED"):
        run.summary()


def test_too_few_steps_are_not_convergence():
    data = load("anes96")
    x = data[["selfLR", "age", "educ"]].astype(float)
    run = tacit.regress(split(x, 2), {"p0": data["vote"].to_numpy()}, steps=2)
    assert run.converged is False
    assert run.table is None
    with pytest.raises(BadRun, match="NOT CONVERGED"):
        run.summary()
    assert run.to_dict()["table"] is None


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda x, y: ({**x, "b": torch.ones(200, 1)}, y),
            BadData,
            "'x0' of 'b' has the same value in every row",
        ),
        (
            lambda x, y: ({**x, "b": torch.cat([x["b"], x["b"].sum(1, keepdim=True)], 1)}, y),
            BadData,
            r"the columns 'x0', 'x1', 'x2' of 'b' are collinear",
        ),
        (lambda x, y: ({**x, "b": x["b"] + 1e6}, y), BadData, "more than 512 standard deviations from 0"),
        (
            lambda x, y: ({k: v[:40] for k, v in x.items()}, y[:40]),
            QueryRefused,
            "5 coefficients and 40 rows; at least 50",
        ),
        (lambda x, y: (x, (torch.arange(200) < 5).long()), QueryRefused, "a class has 5 rows; at least 10"),
        (lambda x, y: (x, torch.zeros(200) + 0.5), BadData, "the label has the same value in every row"),
        (
            lambda x, y: (x, torch.arange(200) % 5),
            BadParameter,
            "'multinomial' for classes, 'poisson' for counts",
        ),
        (lambda x, y: (x, y.where(y < 2, torch.nan)), BadData, "the label of 'a' contain NaN"),
        (
            lambda x, y: ({**x, "b": x["b"][:100]}, y),
            BadData,
            r"'b' have shape \(100, 2\), and there are 200",
        ),
    ],
)
def test_bad_data(change, error, words):
    x, y = change(*noise())
    with pytest.raises(error, match=words):
        tacit.regress(x, {"a": y})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"family": "probit"}, "family is 'probit'; it must be one of 'gaussian', 'binomial'"),
        ({"family": "cox"}, "needs a time and an event"),
        ({"family": "poisson"}, "needs counts: whole numbers from 0"),
        ({"solver": "irls", "l2": 0.1}, "l2 is 0.1; it must be left out with solver='irls'"),
        ({"solver": "lbfgs"}, "solver is 'lbfgs'"),
        ({"steps": 1}, "steps is 1; it must be"),
        ({"ties": "exact"}, "ties is 'exact'"),
    ],
)
def test_bad_options(options, words):
    x, y = noise()
    with pytest.raises((BadParameter, BadData), match=words):
        tacit.regress(x, {"a": y}, **options)


def test_bad_tables():
    clinic, lab = lung()
    for parties, options, words in (
        ({"clinic": clinic, "lab": lab}, {"on": "id", "label": "age"}, "has no column 'id'"),
        (
            {"clinic": clinic, "lab": lab},
            {"on": "patient", "label": "weight"},
            "columns of exactly one party; none",
        ),
        ({"clinic": clinic, "lab": lab}, {"label": "age"}, "on is None; it must be the id column"),
        ({"clinic": clinic, "lab": lab}, {"on": "patient", "time": "time"}, "which are given together"),
        (
            {"clinic": pd.concat([clinic, clinic.assign(age=1)]), "lab": lab},
            {"on": "patient", "label": "age"},
            "rows have the id of an earlier row and other values",
        ),
    ):
        with pytest.raises((BadData, BadParameter), match=words):
            tacit.regress(parties, **options)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_weights_of_a_cox_model_equal_lifelines(ties):
    """Efron's ties against weights_col; Breslow's against whole weights as repeated rows (statsmodels)."""
    data = load_rossi()
    x, y = data[["age", "prio", "fin"]].astype(float), data[["week", "arrest"]].to_numpy()
    w = np.random.default_rng(1).uniform(0.3, 3, len(x)) if ties == "efron" else 1.0 + np.arange(len(x)) % 3
    run = tacit.regress(split(x, 2), {"p1": y}, family="cox", weights=w, ties=ties, steps=6)
    table = run.summary().loc[list(x.columns)]
    if ties == "efron":
        frame = pd.DataFrame(x).assign(t=y[:, 0], e=y[:, 1], w=w)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pooled = CoxPHFitter().fit(frame, "t", "e", weights_col="w")
        expected, errors = pooled.params_.to_numpy(), pooled.standard_errors_.to_numpy()
        value, ratio = pooled.log_likelihood_, pooled.log_likelihood_ratio_test().test_statistic
    else:
        again = np.repeat(np.arange(len(x)), w.astype(int))
        model = sm.PHReg(y[again, 0], x.to_numpy()[again], status=y[again, 1], ties="breslow")
        pooled = model.fit(disp=0)
        expected, errors, value = pooled.params, pooled.bse, pooled.llf
        ratio = 2 * (value - model.loglike(np.zeros(3)))
    assert np.abs((table["coef"].to_numpy() - expected) / errors).max() < 3e-5
    assert np.abs(table["se"].to_numpy() / errors - 1).max() < 3e-5
    assert run.metrics["loglik"] == pytest.approx(value, abs=1e-6 * w.sum())
    assert run.metrics["lr"] == pytest.approx(
        ratio, abs=4e-6 * w.sum()
    )  # twice a difference of two such values


def test_the_weights_of_a_multinomial_model_equal_repeated_rows():
    data = visits(400)
    y = data["mdvis"].clip(upper=2).to_numpy().astype(int)
    w = 1.0 + np.arange(len(y)) % 3
    x = data[["lncoins", "idp", "physlm", "disea"]]
    run = tacit.regress(split(x, 2), {"p1": y}, family="multinomial", weights=w, steps=8)
    again = np.repeat(np.arange(len(y)), w.astype(int))
    pooled = sm.MNLogit(y[again], sm.add_constant(x).to_numpy()[again]).fit(disp=0)
    table = run.summary()
    for k in (1, 2):
        own = table.loc[[f"{k}: {name}" for name in ("Intercept", *x.columns)]]
        assert np.abs((own["coef"].to_numpy() - pooled.params[:, k - 1]) / pooled.bse[:, k - 1]).max() < 3e-5
        assert np.abs(own["se"].to_numpy() / pooled.bse[:, k - 1] - 1).max() < 3e-5
    assert run.metrics["loglik"] == pytest.approx(pooled.llf, abs=1e-6 * w.sum())
    assert run.metrics["loglik_null"] == pytest.approx(pooled.llnull, abs=1e-6 * w.sum())


def test_minimum_counts_are_of_effective_rows():
    """60 rows suffice for 5 coefficients (10 each); weights that are worth 45 of them do not."""
    data = visits(60)
    y, x = data["mdvis"].to_numpy(), data[["lncoins", "idp", "physlm", "disea"]]
    x = x + np.random.default_rng(0).normal(0, 0.1, x.shape)
    w = np.where(np.arange(60) < 5, 5.0, 1.0)
    worth = int(w.sum() ** 2 / (w**2).sum())
    assert worth < 50 <= 60
    tacit.regress(split(x, 2), {"p1": y}, family="gaussian", weights=np.ones(60))
    with pytest.raises(QueryRefused, match=rf"5 coefficients and {worth} effective rows \(by weight\)"):
        tacit.regress(split(x, 2), {"p1": y}, family="gaussian", weights=w)
    few = np.where((y > 1) & (np.cumsum(y > 1) > 2), 0.01, 1.0)
    with pytest.raises(QueryRefused, match=r"a class has \d+ effective rows"):
        tacit.regress(split(x, 2), {"p1": (y > 1).astype(float)}, family="binomial", weights=few)
