"""Random intercepts and meta-analysis with an ε: their limits without noise, coverage, sensitivity."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.accounting import discrete
from tacit.errors import BadParameter, ProtocolError
from tacit.protocols.sum_program import ideal
from tacit.stats import noise_share
from tacit.stats.meta_analysis import PARTY
from tacit.stats.private_sites import PrivateMetaProgram, PrivateMixedProgram

BETA = np.array([0.5, 0.4])
BOUNDS = {"x": (-3.0, 3.0), "t": (-8.0, 8.0), "c": (0.0, 12.0)}
LEVELS = {"g": ["a", "b"]}


def sites(rng, count: int = 8, rows: int = 400, spread: float = 0.6) -> dict[str, pd.DataFrame]:
    fed = {}
    for k in range(count):
        n = int(rng.integers(rows // 2, 2 * rows))
        frame = pd.DataFrame({"x": np.clip(rng.normal(size=n), -3, 3), "g": rng.choice(["a", "b"], n)})
        eta = -0.2 + 0.5 * frame["x"] + 0.4 * (frame["g"] == "b") + spread * rng.normal()
        frame["y"] = (rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int)
        frame["t"], frame["c"] = eta + rng.normal(size=n), rng.poisson(np.exp(eta / 2)).clip(0, 12)
        fed[f"s{k}"] = frame
    return fed


def private(word: str, fed, formula: str, family: str, epsilon: float, **options):
    outcome = formula.partition(" ")[0]
    bounds = {n: BOUNDS[n] for n in (outcome, "x") if n in BOUNDS}
    return getattr(tacit.stats, word)(
        fed, formula, family, epsilon=epsilon, bounds=bounds, levels=LEVELS, **options
    )


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(discrete, "gaussian", lambda variance, n, source=None: np.zeros(n, dtype=np.int64))


@pytest.fixture
def seeded(monkeypatch):
    """Rounded normal noise of the same variance from a seed."""
    rng = np.random.default_rng(11)
    monkeypatch.setattr(
        discrete,
        "gaussian",
        lambda variance, n: np.rint(rng.normal(0, np.sqrt(float(variance)), n)).astype(np.int64),
    )


@pytest.mark.parametrize(
    ("outcome", "family", "within"),
    [("t", "gaussian", 0.01), ("y", "binomial", 0.1), ("c", "poisson", 0.1)],
)
def test_without_noise_it_is_the_mixed_model(outcome, family, within, no_noise):
    """In units of its standard errors: the linear model to 1%, the normal approximation of others to 10%."""
    fed = sites(np.random.default_rng(1))
    exact = tacit.stats.mixed(fed, f"{outcome} ~ x + g", family)
    own = private("mixed", fed, f"{outcome} ~ x + g", family, 1e6)
    a, b = own.summary().loc[exact.summary().index], exact.summary()
    assert (np.abs(a["coef"] - b["coef"]) < within * b["se"]).all()
    assert a["se"].to_numpy() == pytest.approx(b["se"].to_numpy(), rel=0.02)
    assert own.extras["site variance"] == pytest.approx(exact.extras["site variance"], rel=0.05)


@pytest.mark.parametrize("effects", ["fixed", "random"])
def test_without_noise_it_is_the_meta_analysis(effects, no_noise):
    fed = sites(np.random.default_rng(1))
    exact = tacit.stats.meta(fed, "y ~ x + g", open_sites=True, effects=effects)
    own = private("meta", fed, "y ~ x + g", "binomial", 1e6, open_sites=True, effects=effects)
    table, other = own.summary().loc[exact.summary().index], exact.summary()
    assert table["coef"].to_numpy() == pytest.approx(other["coef"].to_numpy(), abs=2e-3)
    assert table["se"].to_numpy() == pytest.approx(other["se"].to_numpy(), rel=5e-3)


@pytest.mark.parametrize("word", ["mixed", "meta"])
def test_intervals_cover_the_true_coefficients_at_moderate_epsilon(word, seeded):
    """Seeded, 20 data sets × 2 slopes: 95% intervals cover at least 88%, and are not all noise."""
    rng, z, share = np.random.default_rng(2), [], []
    names = tuple(f"s{k}" for k in range(4))
    kind = PrivateMixedProgram if word == "mixed" else PrivateMetaProgram
    bounds = {"y": (0.0, 1.0), "x": BOUNDS["x"]}
    program = kind("y ~ x + g", "binomial", names, 3.0, 1e-6, bounds, LEVELS)
    rows = 800 if word == "mixed" else 4000  # a site alone needs more
    for _ in range(20):
        fed = {k: f.assign(**{PARTY: k}) for k, f in sites(rng, 4, rows).items()}
        found = ideal(program, fed)
        if word == "mixed":
            place = [found.names.index(n) for n in ("x", "g[T.b]")]
            beta, se = found.beta[place], np.sqrt(np.diag(found.covariance))[place]
            share.append(found.noise_share)
        else:
            place = [program.own.terms.index(n) for n in ("x", "g[T.b]")]
            weights = 1 / found.variances[:, place]
            beta = (weights * found.coefficients[:, place]).sum(0) / weights.sum(0)
            se = 1 / np.sqrt(weights.sum(0))
        z.append((beta - BETA) / se)
    scores = np.array(z)
    assert (np.abs(scores) < 1.96).mean() >= 0.88
    assert 0.6 < np.sqrt(np.mean(scores**2)) < 1.3
    if word == "mixed":
        assert 0.1 < np.median(share) < 0.9


def test_one_row_changes_a_sum_by_no_more_than_the_declared_sensitivity(no_noise):
    wild = pd.DataFrame({"x": [1e9, -1e9], "g": ["a", "b"], "y": [1, 0], "c": [1e9, 0], "t": [-1e9, 1e9]})
    for outcome, family in (("y", "binomial"), ("t", "gaussian"), ("c", "poisson")):
        bounds = {"x": BOUNDS["x"], outcome: {"y": (0.0, 1.0), **BOUNDS}[outcome]}
        program = PrivateMixedProgram(
            f"{outcome} ~ x * g", family, ("a", "b", "c"), 1.0, 1e-6, bounds, LEVELS
        )
        assert sum(b.share for s in range(program.max_steps) for b in program.blocks(s)) == pytest.approx(1)
        point = torch.tensor([9.0, -9, 300, 50, -70, 8], dtype=torch.float64)
        for k in range(2):
            table = wild.iloc[[k]].assign(**{PARTY: "b"})
            for step in range(program.max_steps):
                part = program.local(step, table, {"point": point}) / noise_share.SCALE
                for block in program.blocks(step):
                    own, part = np.split(part, [block.length])
                    limit = block.sensitivity + np.sqrt(block.length) / noise_share.SCALE
                    assert np.linalg.norm(own) <= limit
    with pytest.raises(ProtocolError, match="not those of the agreed model"):
        program.local(1, table, {"point": point[:3]})


@pytest.mark.parametrize("word", ["mixed", "meta"])
def test_real_sums_between_parties_have_the_noise_of_the_ledger(word, tmp_path):
    fed = sites(np.random.default_rng(1), 3)
    more = {"open_sites": True} if word == "meta" else {}
    found = private(word, fed, "y ~ x + g", "binomial", 5.0, runtime="inprocess", **more)
    assert [(s.epsilon, s.delta, s.unit) for s in found.ledger.spent] == [(5.0, 1e-6, "row")]
    assert {line.how for line in found.ledger.seen} == {"executed"}
    assert (found.summary()["se"] > 0).all()
    assert np.isfinite(found.predict(fed["s0"])).all()
    assert "noise of ε = 5" in found.report(tmp_path / "page.html").read_text()
    again = private(word, fed, "y ~ x + g", "binomial", 5.0, **more)
    assert (again.params != found.params).all()


@pytest.mark.parametrize(
    ("word", "options", "text"),
    [
        ("gee", {"epsilon": 1.0}, "one score per site"),
        ("gee", {"epsilon": 1.0}, "tacit.stats.mixed"),
        ("mixed", {"epsilon": 1.0, "bounds": {}}, "the range of 'g', 'x'"),
        ("mixed", {"formula": "y ~ 0 + x"}, "an intercept"),
        ("mixed", {"formula": "y ~ x + C(site)"}, "every site has an intercept already"),
        ("mixed", {"epsilon": -1}, "a number above 0"),
        ("meta", {"family": "gamma", "open_sites": True}, "with epsilon"),
        ("meta", {"link": "probit", "open_sites": True}, "None with epsilon"),
        ("meta", {}, "open_sites"),
    ],
)
def test_what_is_not_declared_or_has_no_sound_mechanism_is_refused(word, options, text):
    fed = sites(np.random.default_rng(1), 3, 40)
    given = {"formula": "y ~ x + g", "epsilon": 1.0, **options}
    if word != "gee" and "bounds" not in given:
        given |= {"bounds": {"x": BOUNDS["x"]}, "levels": LEVELS}
    with pytest.raises(BadParameter, match=text):
        getattr(tacit.stats, word)(fed, given.pop("formula"), **given)
