"""Cox's model with an ε: its limit without noise, coverage of its intervals, sensitivity, declared bounds."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.accounting import discrete
from tacit.errors import BadParameter, BudgetSpent, ProtocolError
from tacit.jobs.stats.answers import AnswerFile
from tacit.jobs.stats.contract import SumContract
from tacit.jobs.stats.policy import StatsPolicy, admit
from tacit.protocols.sum_program import ideal
from tacit.stats import noise_share
from tacit.stats.private_hazards import STEPS, PrivateCoxProgram

from .references import ll_data, quiet, split

TABLES = {
    "rossi": ("week", "arrest", {"fin": (0, 1), "age": (15, 50), "prio": (0, 20)}),
    "lung": ("time", "status", {"age": (30, 90), "sex": (1, 2), "ph.ecog": (0, 4)}),
    "gbsg2": ("time", "cens", {"age": (20, 85), "tsize": (0, 130), "pnodes": (0, 60)}),
}


def load(name: str) -> tuple[pd.DataFrame, list[float], str]:
    """Rows without missing values, a grid of 16 intervals with equally many events, and the formula."""
    time, event, bounds = TABLES[name]
    rows = ll_data(name).dropna(subset=list(bounds))
    edges = np.quantile(rows.loc[rows[event] == 1, time], np.arange(1, 16) / 16)
    grid = [*np.unique(np.ceil(edges)).tolist(), float(rows[time].max())]
    return rows, list(dict.fromkeys(grid)), " + ".join(c if c.isidentifier() else f"`{c}`" for c in bounds)


def split_time(rows: pd.DataFrame, name: str, grid: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Fit a Poisson model of person-time, one row per person and interval, with statsmodels."""
    import statsmodels.api as sm

    time, event, bounds = TABLES[name]
    x, y, offset = [], [], []
    for k, (start, end) in enumerate(zip([0.0, *grid], grid)):
        here = rows[rows[time] > start]
        interval = np.zeros((len(here), len(grid)))
        interval[:, k] = 1
        x.append(np.hstack([interval, here[list(bounds)].to_numpy(float)]))
        y.append(((here[event] == 1) & (here[time] <= end)).to_numpy(float))
        offset.append(np.log(np.minimum(here[time], end) - start))
    model = sm.GLM(
        np.concatenate(y), np.vstack(x), family=sm.families.Poisson(), offset=np.concatenate(offset)
    )
    found = quiet(model.fit, tol=1e-14, maxiter=100)
    return found.params[len(grid) :], found.bse[len(grid) :]


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(discrete, "gaussian", lambda variance, n, source=None: np.zeros(n, dtype=np.int64))


@pytest.fixture
def seeded(monkeypatch):
    """Rounded normal noise of the same variance from a seed: drawing the discrete one takes most of a fit."""
    rng = np.random.default_rng(11)
    monkeypatch.setattr(
        discrete,
        "gaussian",
        lambda variance, n: np.rint(rng.normal(0, np.sqrt(float(variance)), n)).astype(np.int64),
    )


def fit(name: str, epsilon: float, **options):
    rows, grid, formula = load(name)
    time, event, bounds = TABLES[name]
    return tacit.stats.cox(
        split(rows, 3), formula, time=time, event=event, grid=grid, epsilon=epsilon, bounds=bounds, **options
    )


@pytest.mark.parametrize("name", list(TABLES))
def test_without_noise_it_is_the_model_of_person_time_and_near_cox(name, no_noise):
    """Poisson regression of split person-time (statsmodels) to 1e-5; Cox (lifelines) within 0.15 errors."""
    from lifelines import CoxPHFitter

    rows, grid, _ = load(name)
    time, event, bounds = TABLES[name]
    own = fit(name, 1e6, max_hazard=50).summary()
    coef, se = split_time(rows, name, grid)
    assert own["coef"].to_numpy() == pytest.approx(coef, abs=1e-5)
    # errors at ε = 1e6 include noise that was not added here: less than 1%
    assert own["se"].to_numpy() == pytest.approx(se, rel=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = CoxPHFitter().fit(rows[[*bounds, time, event]], time, event)
    assert (np.abs(own["coef"].to_numpy() - peer.params_) < 0.15 * peer.standard_errors_).all()
    assert own["se"].to_numpy() == pytest.approx(peer.standard_errors_.to_numpy(), rel=0.03)


@pytest.mark.parametrize("name", list(TABLES))
def test_it_converges_to_the_exact_fit_as_epsilon_grows(name, seeded):
    """At ε = 1e6 within 0.25 standard errors of Cox's model, which the grid alone nearly explains."""
    rows, _, formula = load(name)
    time, event, _ = TABLES[name]
    exact = tacit.stats.cox(split(rows, 3), formula, time=time, event=event, min_count=1).summary()
    private = fit(name, 1e6, max_hazard=50).summary()
    assert (np.abs(private["coef"] - exact["coef"]) < 0.25 * exact["se"]).all()


def draw_rows(rng, n: int = 3000) -> pd.DataFrame:
    """People of rossi, with times of a Cox model."""
    base = ll_data("rossi")
    rows = base.iloc[rng.integers(0, len(base), n)].reset_index(drop=True)
    x = rows[["fin", "age", "prio"]].to_numpy(float)
    died = rng.exponential(np.exp(-(x - x.mean(axis=0)) @ BETA))
    left = rng.uniform(0, 2.5, n)
    return rows.assign(t=np.minimum(died, left), e=(died <= left).astype(int))


BETA = np.array([-0.35, -0.067, 0.097])
GRID = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_intervals_cover_the_true_coefficients_at_moderate_epsilon(epsilon, seeded):
    """Seeded, 50 data sets × 3 coefficients: 95% intervals cover at least 90%.

    At ε = 4 about half of a variance is noise, and the errors are not much too large either: the deviation
    of z is 1. At ε = 0.5 noise hides the information, and the intervals say so.
    """
    rng, z, share = np.random.default_rng(3), [], []
    bounds = {"fin": (0.0, 1.0), "age": (15.0, 50.0), "prio": (0.0, 20.0)}
    program = PrivateCoxProgram("fin + age + prio", "t", "e", GRID, 1, epsilon, 1e-6, bounds, {})
    for _ in range(50):
        rows = draw_rows(rng)
        found = ideal(program, {"all": rows})
        z.append((found.beta - BETA) / np.sqrt(np.diag(found.covariance)))
        share.append(found.noise_share)
    scores = np.array(z)
    assert (np.abs(scores) < 1.96).mean() >= 0.9
    if epsilon == 4.0:
        assert 0.3 < np.median(share) < 0.8
        assert 0.75 < np.sqrt(np.mean(scores**2)) < 1.2
    else:
        assert np.median(share) > 0.9


def test_one_person_changes_a_sum_by_no_more_than_the_declared_sensitivity(no_noise):
    """Wild rows, and coefficients that a lying coordinator may choose: the norms hold for all of them."""
    bounds = {"age": (15.0, 50.0), "prio": (0.0, 20.0)}
    program = PrivateCoxProgram(
        "age * prio + sex", "t", "e", (1.0, 2.0, 4.0), 3, 1.0, 1e-6, bounds, {"sex": ["F", "M"]}, ("sex",)
    )
    p, g = len(program.bounded.terms), program.groups
    rng = np.random.default_rng(0)
    points = [rng.normal(0, scale, g + p) for scale in (0.1, 1.0, 10.0, 1e5, 1e200)]
    for age, prio, t, e in [(1e9, -1e9, 1e9, 1), (37, 3, 0.0, 1), (-1e9, 1e9, 3.9, 1), (20, 20, 4.0, 0)]:
        table = pd.DataFrame({"age": [age], "prio": [prio], "sex": ["M"], "t": [t], "e": [e]})
        for step in range(STEPS):
            for point in points:
                down = {"alpha": torch.from_numpy(point[:g]), "beta": torch.from_numpy(point[g:])}
                part = program.local(step, table, down) / noise_share.SCALE
                for block in program.blocks(step):
                    own, part = np.split(part, [block.length])
                    limit = block.sensitivity + np.sqrt(block.length) / noise_share.SCALE
                    assert np.linalg.norm(own) <= limit
    bad = {"alpha": torch.full((g,), torch.nan, dtype=torch.float64), "beta": torch.zeros(p)}
    with pytest.raises(ProtocolError, match="not those of the agreed model"):
        program.local(1, table, bad)
    with pytest.raises(ProtocolError, match="not those of the agreed model"):
        program.local(1, table, {"alpha": torch.zeros(g + 1), "beta": torch.zeros(p)})


def test_steps_share_the_budget_and_a_party_charges_it_once(tmp_path):
    program = PrivateCoxProgram("age", "t", "e", (1.0, 2.0), 3, 2.0, 1e-6, {"age": (0.0, 9.0)}, {})
    total = sum(block.share for step in range(STEPS) for block in program.blocks(step))
    assert total == pytest.approx(1.0)
    table = pd.DataFrame({"age": np.arange(20.0), "t": 1.0, "e": 1})

    def ask(edition: str) -> None:
        contract = SumContract.of(program, ["a", "b", "c"], data={"edition": edition})
        answers = AnswerFile(tmp_path, "a", contract.digest)
        admit(StatsPolicy(epsilon=2.5), contract, program, table, answers, tmp_path)

    ask("1")
    ask("1")  # the same query: its answers are the same numbers
    with pytest.raises(BudgetSpent, match=r"allows ε = 2\.5"):
        ask("2")


def test_strata_have_baselines_of_their_own(no_noise):
    """Without noise, by stratum: as if each had intervals of its own in the Poisson model."""
    rows = ll_data("rossi").assign(race=lambda d: d["race"].map({0: "other", 1: "black"}))
    grid = [10.0, 20.0, 30.0, 40.0, 52.0]
    options = {"time": "week", "event": "arrest", "grid": grid, "epsilon": 1e6, "max_hazard": 50}
    options |= {"bounds": {"fin": (0, 1), "age": (15, 50)}}
    found = tacit.stats.cox(
        split(rows, 3), "fin + age", strata="race", levels={"race": ["black", "other"]}, **options
    )
    assert found.baseline["stratum"].unique().tolist() == ["black", "other"]
    exact = tacit.stats.cox(
        split(rows, 3), "fin + age", strata="race", time="week", event="arrest", min_count=1
    ).summary()
    assert (np.abs(found.summary()["coef"] - exact["coef"]) < 0.1 * exact["se"]).all()
    by_site = tacit.stats.cox(split(rows, 3), "fin + age", strata="site", **options)
    assert by_site.baseline["stratum"].unique().tolist() == ["p0", "p1", "p2"]


def test_the_result_has_survival_report_and_ledger(tmp_path, no_noise):
    found = fit("rossi", 8.0, max_hazard=50, runtime="inprocess")
    rows, grid, _ = load("rossi")
    curves = found.predict_survival(rows.head(3), [0, grid[0] / 2, 52])
    assert (curves.iloc[0] == 1).all()
    assert ((curves.iloc[-1] > 0.3) & (curves.iloc[-1] < 1)).all()
    # constant hazards: half of the first interval has half of its cumulative hazard
    middle = np.log(curves.iloc[1].to_numpy()) / found.predict(rows.head(3)).to_numpy()
    assert middle == pytest.approx(-found.baseline["cumulative_hazard"][0] / 2)
    assert [(s.epsilon, s.unit) for s in found.ledger.spent] == [(8.0, "row")]
    assert not {"log_likelihood", "concordance", "dropped"} & set(found.to_dict())
    assert "piece" not in str(found)
    page = found.report(tmp_path / "cox.html").read_text()
    assert "Baseline survival" in page
    assert "include the noise of ε = 8" in page


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"grid": 4.0}, "the times themselves"),
        ({"bounds": {}}, "the range of 'age'"),
        ({"bounds": {"age": (50, 15)}}, "low < high"),
        ({"bounds": {"age": ("young", "old")}}, "low < high"),
        ({"bounds": [15, 50]}, "a dictionary like"),
        ({"formula": "age + C(race)"}, "the levels of 'race'"),
        ({"strata": "race"}, "the levels of 'race'"),
        ({"entry": "prio"}, "None with epsilon"),
        ({"ties": "breslow"}, "'efron' with epsilon"),
        ({"max_hazard": 0}, "expected events"),
        ({"delta": 0.0}, "a probability"),
        ({"epsilon": True}, "a number above 0"),
        ({"grid": list(range(1, 2000))}, "at most 1000"),
    ],
)
def test_what_is_not_declared_is_refused(options, text):
    given = {
        "formula": "age", "time": "week", "event": "arrest", "grid": [10, 20, 52], "epsilon": 1.0,
        "bounds": {"age": (15, 50)}, **options,
    }  # fmt: skip
    with pytest.raises(BadParameter, match=text):
        tacit.stats.cox(split(ll_data("rossi"), 3), given.pop("formula"), **given)
