"""`tacit.stats.glm` equals statsmodels on the pooled rows, and refuses what has no answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy.optimize import minimize

import tacit
from tacit.errors import BadData, BadParameter
from tacit.protocols.sum_steps import ideal
from tacit.stats import level_sketch
from tacit.stats.privacy import AboutRows
from tacit.stats.regression import GlmProgram
from tests.stats.references import heart_disease, pool, quiet, sm_data, split

F = sm.families
CLOSE = {"rtol": 1e-6, "atol": 1e-8}


def reference(formula, frame, family, **options):
    fit = {"tol": 1e-13, "maxiter": 300, **options.pop("fit", {})}
    return quiet(lambda: smf.glm(formula, frame, family=family, **options).fit(**fit))


def assert_same(mine, theirs):
    """Coefficients, errors, tests, intervals and goodness of fit are equal to 1e-6."""
    index = [str(name).replace(".0]", "]") for name in theirs.params.index]  # 2.0 and 2 are one level here
    table = mine.summary().loc[index]
    np.testing.assert_allclose(table["coef"], theirs.params, **CLOSE)
    np.testing.assert_allclose(table["se"], theirs.bse, **CLOSE)
    np.testing.assert_allclose(table["z"], theirs.tvalues, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(table["p"], theirs.pvalues, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(table[["low", "high"]], theirs.conf_int(), **CLOSE)
    for own, other in (
        (mine.aic, theirs.aic),
        (mine.deviance, theirs.deviance),
        (mine.null_deviance, theirs.null_deviance),
        (mine.log_likelihood, theirs.llf),
        (mine.loglik_null, theirs.llnull),
        (mine.pearson, theirs.pearson_chi2),
        (mine.scale, theirs.scale),
        (mine.df_resid, theirs.df_resid),
    ):
        np.testing.assert_allclose(own, other, rtol=1e-6)


def star98():
    d = sm_data("star98")
    total = d["NABOVE"] + d["NBELOW"]
    return d.assign(share=d["NABOVE"] / total, total=total)


def fair():
    d = sm_data("fair").sample(frac=1, random_state=0).reset_index(drop=True)
    return d.assign(
        any=(d["affairs"] > 0).astype(int), job=np.array(list("abcdefg"))[d["occupation"].astype(int)]
    )


CASES = {
    "randhie": (lambda: sm_data("randhie"), "mdvis ~ lncoins + idp + lpi + physlm + disea + hlthg", F.Poisson(), {}),
    "spector": (lambda: sm_data("spector"), "GRADE ~ GPA + TUCE + PSI", F.Binomial(), {}),
    "spector, probit": (
        lambda: sm_data("spector"),
        "GRADE ~ GPA + TUCE + PSI",
        F.Binomial(F.links.Probit()),
        {"link": "probit"},
    ),
    "star98, weighted shares": (star98, "share ~ LOWINC + PERASIAN + PTRATIO + I(AVSALK ** 2)", F.Binomial(), {"weights": "total"}),
    "scotland": (lambda: sm_data("scotland"), "YES ~ COUTAX + UNEMPF + MOR + GDP", F.Gamma(), {}),
    "scotland, log": (lambda: sm_data("scotland"), "YES ~ COUTAX + UNEMPF + MOR + GDP", F.Gamma(F.links.Log()), {"link": "log"}),
    "anes96": (lambda: sm_data("anes96"), "vote ~ age + educ + income + logpopul", F.Binomial(), {}),
    "fair, levels and interactions": (fair, "any ~ age + C(religious) + job + age:yrs_married", F.Binomial(), {}),
    "longley, nearly collinear": (lambda: sm_data("longley"), "TOTEMP ~ GNPDEFL + GNP + UNEMP + ARMED + POP + YEAR", F.Gaussian(), {"min_count": 1}),
    "cpunish": (lambda: sm_data("cpunish"), "EXECUTIONS ~ np.log(INCOME) + PERBLACK + SOUTH", F.Poisson(), {}),
    "committee": (lambda: sm_data("committee"), "BILLS104 ~ SIZE + SUBS + PRESTIGE", F.NegativeBinomial(alpha=0.5), {"alpha": 0.5, "min_count": 1}),
    "grunfeld, weights": (lambda: sm_data("grunfeld"), "invest ~ value + capital + firm", F.Gaussian(), {"weights": "year"}),
    "ccard, no intercept": (lambda: sm_data("ccard"), "AVGEXP ~ 0 + AGE + INCOME + OWNRENT", F.Gaussian(), {}),
}  # fmt: skip
NAMES = {
    "Poisson": "poisson", "Binomial": "binomial", "Gamma": "gamma", "Gaussian": "gaussian",
    "NegativeBinomial": "negative_binomial",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_equals_statsmodels_on_the_pooled_rows_in_at_most_ten_rounds(case):
    load, formula, family, options = CASES[case]
    frame = load()
    mine = tacit.stats.glm(split(frame, 4), formula, NAMES[type(family).__name__], **options)
    weights = {"var_weights": frame[options["weights"]]} if "weights" in options else {}
    assert_same(mine, reference(formula, frame, family, **weights))
    assert mine.rounds <= 10 + (mine.family == "gamma")


def test_equals_statsmodels_across_four_hospitals_with_missing_values():
    fed = heart_disease()
    formula = "disease ~ age + sex + C(cp) + trestbps + exang + C(site)"
    mine = tacit.stats.glm(fed, formula)
    whole = pool(fed)
    assert_same(mine, reference(formula, whole, F.Binomial()))
    used = whole[["age", "sex", "cp", "trestbps", "exang"]]
    assert (mine.n, mine.dropped) == (int(used.notna().all(axis=1).sum()), int(used.isna().any(axis=1).sum()))
    with pytest.raises(BadData, match="missing='drop'"):
        tacit.stats.glm(fed, formula, missing="error")


def test_offsets_exposures_and_frequency_weights_equal_statsmodels():
    rng = np.random.default_rng(1)
    d = sm_data("randhie").iloc[:600].assign(years=rng.uniform(0.5, 3, 600), known=rng.normal(0, 0.3, 600))
    d["copies"] = rng.integers(1, 4, 600)
    formula = "mdvis ~ lncoins + idp + physlm"
    mine = tacit.stats.glm(
        split(d),
        formula,
        "poisson",
        exposure="years",
        offset="known",
        weights="copies",
        weight_kind="frequency",
    )
    theirs = reference(
        formula, d, F.Poisson(), exposure=d["years"], offset=d["known"], freq_weights=d["copies"]
    )
    assert_same(mine, theirs)
    repeated = d.loc[np.repeat(d.index, d["copies"])].reset_index(drop=True)
    copies = tacit.stats.glm(split(repeated), formula, "poisson", exposure="years", offset="known")
    np.testing.assert_allclose(copies.summary(), mine.summary(), rtol=1e-8, atol=1e-12)


def test_the_dispersion_of_a_negative_binomial_is_estimated_as_statsmodels_does():
    d = sm_data("randhie").iloc[:3000]
    formula = "mdvis ~ lncoins + idp + physlm"
    mine = tacit.stats.glm(split(d), formula, "negative_binomial")
    theirs = quiet(lambda: smf.negativebinomial(formula, d).fit(disp=0, maxiter=500, gtol=1e-9))
    np.testing.assert_allclose(mine.params[theirs.params.index[:-1]], theirs.params.iloc[:-1], rtol=1e-6)
    np.testing.assert_allclose(
        mine.summary()["se"][theirs.params.index[:-1]], theirs.bse.iloc[:-1], rtol=1e-6
    )
    np.testing.assert_allclose(
        [mine.alpha, mine.alpha_se], [theirs.params["alpha"], theirs.bse["alpha"]], rtol=1e-6
    )
    np.testing.assert_allclose([mine.log_likelihood, mine.aic], [theirs.llf, theirs.aic], rtol=1e-8)
    assert mine.rounds <= 10


def test_robust_errors_equal_statsmodels():
    fed = split(fair().iloc[:800], 5)
    whole, formula = pool(fed), "any ~ age + religious + yrs_married"
    for robust, fit in (
        ("HC0", {"cov_type": "HC0"}),
        ("site", {"cov_type": "cluster", "cov_kwds": {"groups": pd.factorize(whole["site"])[0]}}),
    ):
        assert_same(
            tacit.stats.glm(fed, formula, robust=robust), reference(formula, whole, F.Binomial(), fit=fit)
        )
    mine = tacit.stats.glm(fed, "affairs ~ age + religious", "gaussian", robust="HC1")
    ols = smf.ols("affairs ~ age + religious", whole).fit(cov_type="HC1")
    np.testing.assert_allclose(mine.summary()["se"], ols.bse, rtol=1e-8)
    # HC1 = n / (n − p) HC0 in every family (MacKinnon and White 1985); statsmodels leaves it at HC0 but for OLS
    mine = tacit.stats.glm(fed, formula, robust="HC1").summary()["se"]
    theirs = reference(formula, whole, F.Binomial(), fit={"cov_type": "HC1"}).bse
    zero = reference(formula, whole, F.Binomial(), fit={"cov_type": "HC0"}).bse
    np.testing.assert_array_equal(theirs, zero)
    np.testing.assert_allclose(mine, zero * np.sqrt(800 / 796), rtol=1e-6)


def test_penalties_reach_the_minimum_of_the_stated_objective():
    d = sm_data("spector")
    mine = tacit.stats.glm(split(d, 2), "GRADE ~ GPA + TUCE + PSI", l1=0.02, l2=0.03)
    x = np.column_stack([np.ones(len(d)), d[["GPA", "TUCE", "PSI"]]])
    beta = mine.params[["Intercept", "GPA", "TUCE", "PSI"]].to_numpy()

    def objective(b):
        eta = x @ b
        loss = float(np.mean(np.logaddexp(0, eta) - d["GRADE"] * eta))
        return loss + 0.015 * float(b[1:] @ b[1:]) + 0.02 * float(np.abs(b[1:]).sum())

    options = {"xatol": 1e-9, "fatol": 1e-15, "maxiter": 4000}
    best = minimize(objective, beta + 0.01, method="Nelder-Mead", options=options)
    assert objective(beta) <= best.fun + 1e-12
    assert mine.summary()["se"].isna().all()  # a lasso has none
    strong = tacit.stats.glm(split(d, 2), "GRADE ~ GPA + TUCE + PSI", l1=5.0)
    assert (strong.params.drop("Intercept") == 0).all()


def separated():
    d = sm_data("spector").assign(sep=lambda t: t["GRADE"] * 2.0 + np.arange(len(t)) % 2)
    return d, split(d, 3)


def test_separation_is_an_error_that_names_the_column():
    _, fed = separated()
    with pytest.raises(BadData, match=r"separated by 'sep'.*firth=True"):
        tacit.stats.glm(fed, "GRADE ~ GPA + sep")


def test_firth_reaches_the_maximum_of_the_penalized_likelihood():
    d, fed = separated()
    mine = tacit.stats.glm(fed, "GRADE ~ GPA + sep", firth=True)
    x = np.column_stack([np.ones(len(d)), d["GPA"], d["sep"]])

    def objective(b):
        eta = x @ b
        mu = 1 / (1 + np.exp(-eta))
        information = (x * (mu * (1 - mu))[:, None]).T @ x
        return float(
            (np.logaddexp(0, eta) - d["GRADE"] * eta).sum() - 0.5 * np.linalg.slogdet(information)[1]
        )

    beta = mine.params[["Intercept", "GPA", "sep"]].to_numpy()
    best = minimize(objective, beta * 0.9, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(beta, best.x, rtol=1e-5)


def test_collinear_and_constant_columns_are_named():
    d = sm_data("longley").assign(twice=lambda t: 2 * t["GNP"] + 5, same=1.0)
    with pytest.raises(BadData, match=r"'GNP', 'twice' are collinear"):
        tacit.stats.glm(split(d), "TOTEMP ~ GNP + UNEMP + twice", "gaussian")
    with pytest.raises(BadData, match=r"'Intercept', 'same' are collinear"):
        tacit.stats.glm(split(d), "TOTEMP ~ GNP + same", "gaussian")
    ridge = tacit.stats.glm(split(d), "TOTEMP ~ GNP + UNEMP + twice", "gaussian", l2=0.1)
    assert np.isfinite(ridge.beta).all()


def test_a_model_with_as_many_coefficients_as_rows_is_refused():
    d = sm_data("longley").iloc[:7]
    with pytest.raises(BadData, match="7 complete rows at all parties together, and 7 coefficients"):
        tacit.stats.glm(split(d, 2), "TOTEMP ~ GNPDEFL + GNP + UNEMP + ARMED + POP + YEAR", "gaussian")


def test_levels_that_one_party_lacks_are_agreed_on():
    d = fair().iloc[:900]
    fed = {
        name: part for name, part in zip("abc", (d[d["job"] <= "c"], d[d["job"] == "d"], d[d["job"] > "d"]))
    }
    mine = tacit.stats.glm(fed, "any ~ age + job")
    assert_same(mine, reference("any ~ age + job", d, F.Binomial()))
    order = sorted(d["job"].unique(), reverse=True)
    declared = tacit.stats.glm(fed, "any ~ age + job", levels={"job": order})
    assert f"job[T.{order[0]}]" not in declared.params.index
    np.testing.assert_allclose(declared.log_likelihood, mine.log_likelihood, rtol=1e-10)
    with pytest.raises(BadData, match="not among the agreed"):
        tacit.stats.glm(fed, "any ~ age + job", levels={"job": order[:-1]})


def test_a_column_of_numbers_here_and_text_there_is_an_error():
    d = fair().iloc[:90]
    fed = {"a": d.iloc[:40], "b": d.iloc[40:].assign(age="old")}
    with pytest.raises(BadData, match="'age': numbers at some parties, text at others"):
        tacit.stats.glm(fed, "any ~ age")


@pytest.mark.parametrize(
    "formula",
    [
        "any ~ {__import__('os').getpid()}",
        "any ~ I(age.__class__)",
        "any ~ np.load('x')",
        "any ~ {[c for c in (1,)][0] * age}",
        "any ~ I(age if 1 else 2)",
        "any ~ eval('age')",
        "any ~ I('`' + eval('age') + '`')",
        "any ~ C(`a' + eval('age') + 'b`)",
    ],
)
def test_a_formula_runs_no_code_but_arithmetic(formula):
    with pytest.raises(BadParameter, match=r"formula .*(allowed|Allowed|cannot be read|not present)"):
        tacit.stats.glm({"a": fair().iloc[:50]}, formula)


def test_a_dotted_name_is_a_column_and_never_an_attribute():
    with pytest.raises(BadData, match=r"no column 'age\.__class__'"):
        tacit.stats.glm({"a": fair().iloc[:50]}, "any ~ age.__class__")


def test_transforms_that_depend_on_a_partys_rows_are_refused():
    for text in ("center(age)", "bs(age, df=4)", "scale(age)"):
        with pytest.raises(BadParameter, match="would differ between parties"):
            tacit.stats.glm({"a": fair().iloc[:50]}, f"any ~ {text}")


def test_predictions_equal_statsmodels_and_are_missing_where_a_value_is():
    d = fair().iloc[:700]
    mine = tacit.stats.glm(split(d), "any ~ age + job")
    new = d.iloc[:5].drop(columns="any").assign(age=[20.0, 30.0, np.nan, 50.0, 60.0])
    theirs = reference("any ~ age + job", d, F.Binomial()).predict(new)
    np.testing.assert_allclose(mine.predict(new), theirs.reindex(new.index), rtol=1e-6)
    with pytest.raises(BadData, match="not among the agreed"):
        mine.predict(new.assign(job="zzz"))


def test_the_report_has_the_table_and_a_forest_plot(tmp_path):
    mine = tacit.stats.glm(split(fair().iloc[:500]), "any ~ age + religious")
    page = mine.report(tmp_path / "glm.html").read_text()
    assert "odds ratio" in page
    assert "<svg" in page
    assert "religious" in page
    text = str(mine)
    assert "std err" in text
    assert "No. Observations:   500" in text
    np.testing.assert_allclose(mine.ratios["odds ratio"], np.exp(mine.params.drop("Intercept")))


def test_bad_options_say_what_is_allowed():
    fed = split(fair().iloc[:60])
    for options, text in (
        ({"family": "cauchy"}, "'gaussian', 'binomial'"),
        ({"link": "log"}, "'logit', 'probit'"),
        ({"robust": "HC9"}, "'HC0', 'HC1' or 'site'"),
        ({"l2": -1}, "at least 0"),
        ({"family": "poisson", "firth": True}, "only with family='binomial'"),
        ({"alpha": 1.0}, "negative_binomial"),
        ({"max_rounds": 1}, "from 3 to 200"),
    ):
        with pytest.raises(BadParameter, match=text):
            tacit.stats.glm(fed, "any ~ age", **options)
    with pytest.raises(BadData, match="no column 'aeg'"):
        tacit.stats.glm(fed, "any ~ aeg")
    with pytest.raises(BadData, match="outcomes of a party do not fit"):
        tacit.stats.glm(fed, "affairs ~ age")


def test_messages_give_the_bits_of_the_simulation():
    fed = split(fair().iloc[:200], 3)
    runs = [
        tacit.stats.glm(fed, "any ~ age + job + C(site)", runtime=r, l2=0.01, min_count=2, min_level_rows=1)
        for r in ("cohort", "inprocess")
    ]
    assert runs[0].summary().equals(runs[1].summary())
    assert "C(site)" in " ".join(runs[1].ledger.stamps)


def test_a_coordinator_cannot_ask_for_phases_that_are_not_in_the_model():
    """A lying coordinator asks a party for sums of squared scores although no robust errors were agreed."""
    import torch

    from tacit.stats.design import Agreement
    from tacit.stats.newton import Scaling
    from tacit.stats.regression import FINISH, write_scaling

    program = GlmProgram("any ~ age")
    down = {
        "levels": Agreement({}).to_tensor(),
        "phase": torch.tensor(FINISH),
        "rows": torch.tensor(1000),
        "point": torch.zeros(2, dtype=torch.float64),
        "null": torch.zeros(1, dtype=torch.float64),
        "scale": torch.tensor(1.0),
        **write_scaling(Scaling(np.zeros(2), np.ones(2), 0)),
    }
    with pytest.raises(BadData, match="not part of the agreed model"):
        program.local(3, fair().iloc[:20], down)


def test_lengths_are_as_declared():
    """A party knows beforehand how many numbers it contributes."""
    frame = fair().iloc[:900]
    for program in (
        GlmProgram("any ~ age + job", robust="HC0"),
        GlmProgram("any ~ age", firth=True, max_rounds=25),
        GlmProgram("affairs ~ age", "gamma", "log"),
        GlmProgram("affairs ~ age", "negative_binomial"),
    ):
        table = frame.assign(affairs=np.ceil(frame["affairs"]) + 1)
        steps = program.coordinate()
        down, step = next(steps), 0
        while True:
            part = program.local(step, table, down)
            assert len(part) == program.length(step, down)
            assert np.abs(part).max() <= program.bound
            try:
                down = steps.send(part)
            except StopIteration:
                break
            step += 1
    assert ideal(GlmProgram("any ~ age"), {"a": frame}).rows == 900


def test_the_sketch_of_levels_is_inverted():
    rng = np.random.default_rng(0)
    every = [(int(c), f"level {k} æ") for k, c in enumerate(rng.integers(0, 9, 100))]
    parts = [[every[k] for k in rng.choice(100, size=60)] for _ in range(20)]
    total = np.sum([level_sketch.encode(p) for p in parts], axis=0)
    assert level_sketch.decode(total) == sorted({item for p in parts for item in p})
    with pytest.raises(BadData, match="too many to discover"):
        level_sketch.encode([(0, str(k)) for k in range(129)])
    with pytest.raises(BadData, match="too many to discover"):
        level_sketch.decode(
            np.sum(
                [level_sketch.encode([(0, str(k)) for k in range(a, a + 100)]) for a in range(0, 1000, 100)],
                axis=0,
            )
        )


def test_a_party_counts_the_complete_cases_of_a_model_as_a_row_set():
    """A column that one row lacks would open the difference of two fits: the party's guard sees the rows."""
    frame = fair().iloc[:60].assign(flag=1.0).reset_index(drop=True)
    frame.loc[7, "flag"] = np.nan
    sets = GlmProgram("any ~ age + flag").row_sets(frame)
    assert isinstance(GlmProgram("any ~ age"), AboutRows)
    assert np.flatnonzero(~sets["all rows"]).tolist() == [7]


def test_columns_whose_names_are_not_python_names_are_quoted():
    """`lung` has ph.ecog and wt.loss: the coefficients are those of the same table with other names."""
    d = fair().iloc[:600]
    plain = tacit.stats.glm(split(d), "any ~ age + C(job)").summary()
    odd = d.rename(columns={"age": "age.at entry", "job": "j b"})
    for formula in ("any ~ `age.at entry` + C(`j b`)", "any ~ Q('age.at entry') + C(`j b`)"):
        quoted = tacit.stats.glm(split(odd), formula).summary()
        np.testing.assert_allclose(quoted, plain)
