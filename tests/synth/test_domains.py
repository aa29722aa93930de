"""Bounds and categories under differential privacy: what is asked of the rows, what it costs, what is refused."""

from __future__ import annotations

import gzip
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.accounting import stability_threshold
from tacit.errors import BadData, BadParameter
from tacit.parties.secret import SeededSecret
from tacit.synth import (
    DPARGN,
    MST,
    Domains,
    Range,
    Statistics,
    Table,
    boolean,
    categorical,
    continuous,
    identifier,
    integer,
    load,
    ordinal,
    timestamp,
)
from tacit.synth.domains import NoisyAnswers, estimate_domains
from tests.cli.shell import refused, run
from tests.synth.counted import ROOT
from tests.synth.test_neighbors import REVEALING, with_row

ROWS = 4000
ADULT = [
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation", "relationship"),
    *("race", "sex", "gain", "loss", "hours", "country", "income"),
]
ORDERS = [1 + 2 ** (k / 16) for k in range(-32, 160)]  # finer than dp-accounting's own
OPEN = {
    "x": integer(),
    "income": continuous(low=0),
    "sex": categorical(),
    "smoker": boolean(missing=True),
    "day": timestamp(days=True),
    "person": identifier(),
}


def many(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "x": rng.integers(17, 91, ROWS),
            "income": rng.lognormal(10, 0.7, ROWS),
            "sex": rng.choice(["F", "M", "D"], ROWS, p=[0.5, 0.45, 0.05]),
            "smoker": rng.choice([True, False], ROWS),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), unit="D"),
            "person": np.arange(ROWS),
        }
    )


class Recorded(NoisyAnswers):
    """Keeps the exact questions; answers without noise, so that later questions are the same."""

    def __init__(self) -> None:
        super().__init__(SeededSecret(0), math.inf)
        self.counts: list[np.ndarray] = []
        self.scores: list[tuple[np.ndarray, int]] = []

    def count(self, exact: np.ndarray, rho: float) -> tuple[np.ndarray, Fraction]:
        self.counts.append(exact)
        return exact, Fraction(25)

    def choose(self, scores: list[int], sensitivity: int, rho: float) -> int:
        self.scores.append((np.array(scores), sensitivity))
        return 0


def questions(monkeypatch: pytest.MonkeyPatch, frame: pd.DataFrame) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr("tacit.synth.domains.NoisyAnswers", lambda secret, rho: recorded)
    estimate_domains(frame, Table.declare(OPEN), 1.0, 1e-6, SeededSecret(0))
    return recorded


@pytest.mark.parametrize(("column", "value"), REVEALING)
def test_one_row_changes_one_count_by_one_and_a_score_by_at_most_its_sensitivity(monkeypatch, column, value):
    """The premise of the proof, on the rows that reveal most: each histogram differs by at most 1 in L1."""
    frame = many()
    before, after = (questions(monkeypatch, f) for f in (frame, with_row(frame, column, value)))
    assert len(before.counts) == len(after.counts) == 5  # sex is asked twice: its values, and the rest
    for a, b in zip(before.counts, after.counts):
        # a new category is one more count, of one
        assert abs(int(b.sum()) - int(a.sum())) <= 1
        if len(a) == len(b):
            assert np.abs(b - a).sum() <= 1
        else:
            assert len(b) == len(a) + 1
            assert sorted([*a, 1]) == sorted(b)
    for (a, sensitivity), (b, same) in zip(before.scores, after.scores):
        assert sensitivity == same
        assert np.abs(a - b).max() <= sensitivity


@pytest.mark.parametrize(("column", "value"), REVEALING)
def test_no_estimate_shows_what_one_row_alone_has(column, value):
    """With replayed noise, so that it cannot fail by chance."""
    for seed in range(5):
        table = Domains(epsilon=1, delta=1e-6, insecure_seed=seed).estimate(
            with_row(many(), column, value), OPEN
        )
        x, income, sex, smoker, day, person = table.table.columns
        assert (x.kind, x.step, x.missing, x.dtype) == ("integer", 1.0, False, "int64")
        assert 16 <= x.low <= 25
        assert 80 <= x.high <= 128
        assert income.low == 0
        assert income.high <= 2**18
        assert not income.missing
        assert set(sex.values) == {"F", "M", "D"}
        assert (sex.missing, sex.other) == (False, "")
        assert smoker == boolean(missing=True).__class__(**{**OPEN["smoker"].__dict__, "name": "smoker"})
        assert pd.Timestamp("2020-01-01").timestamp() <= day.low < day.high
        assert day.high <= pd.Timestamp("2023-01-01").timestamp()
        assert not day.missing
        assert person.kind == "id"


def test_a_category_of_one_row_is_listed_with_probability_at_most_delta():
    """P(1 + Z ≥ threshold), summed exactly over the discrete Gaussian, for several variances and δ."""
    for variance in (0.5, 3.0, 40.0, 900.0):
        z = np.arange(-2000, 2001)
        weight = np.exp(-(z**2) / (2 * variance))
        for delta in (1e-3, 1e-6, 1e-9):
            m = stability_threshold(variance, delta)
            tail = weight[z >= m].sum() / weight.sum()
            assert tail <= delta
            assert weight[z >= m - 2].sum() / weight.sum() > delta / 30  # and not far above what is needed


def test_the_accountant_of_google_finds_no_more_than_the_stated_epsilon():
    import dp_accounting
    from dp_accounting import rdp

    frame, table = many(), Table.declare(OPEN)
    for epsilon, delta in ((0.3, 1e-6), (1.0, 1e-9), (3.0, 1e-5)):
        estimate = estimate_domains(frame, table, epsilon, delta, SeededSecret(1))
        account = rdp.RdpAccountant(ORDERS)
        account.compose(dp_accounting.ZCDpEvent(float(estimate.rho)))
        assert estimate.delta == delta / 2
        found = account.get_epsilon(delta - estimate.delta)
        assert 0.97 * epsilon <= found <= epsilon * (1 + 1e-4)


@pytest.mark.parametrize("names", [list(OPEN), ["sex", "smoker"]])
def test_domains_and_marginals_together_cost_the_stated_epsilon(monkeypatch, names):
    """Every release of the fit, in one accountant: the ρ of the domains and that of the curator.

    The curator's has the ρ of the columns' cells in it; both subtract δ of their thresholds.
    """
    import dp_accounting
    from dp_accounting import rdp

    from tacit.synth import private

    spent = []
    monkeypatch.setattr(
        private,
        "marginal_spend",
        lambda mechanism, epsilon, delta, curator, listed, was=private.marginal_spend: (
            spent.extend([float(curator.spent), listed]) or was(mechanism, epsilon, delta, curator, listed)
        ),
    )
    monkeypatch.setattr(
        private,
        "estimate_domains",
        lambda *args, was=estimate_domains: (
            spent.append(float((estimate := was(*args)).rho)) or spent.append(estimate.delta) or estimate
        ),
    )
    fitted = MST(epsilon=1.0, delta=1e-6, domain_epsilon=0.5, insecure_seed=2).fit(
        many(), {name: OPEN[name] for name in names}
    )
    domains, thresholds, marginals, listed = spent
    assert (listed > 0) == ("x" in names)  # only numbers have values to list
    account = rdp.RdpAccountant(ORDERS)
    account.compose(dp_accounting.ZCDpEvent(domains + marginals))
    assert 0.97 <= account.get_epsilon(1e-6 - thresholds - listed) <= 1 + 1e-4
    (line,) = fitted.ledger.spent
    assert (line.epsilon, line.delta) == (pytest.approx(1.0), 1e-6)
    assert ("after domains of x, income, sex, day" in line.mechanism) == ("x" in names)
    assert "ε = 0.5, δ = 5e-07" in line.note
    assert "Domains are the declared ones" not in line.note


def test_a_network_subtracts_the_epsilon_of_its_domains():
    fitted = DPARGN(epsilon=2.0, delta=1e-6, domain_epsilon=0.5, epochs=1, batch=4096).fit(
        many()[["x", "sex"]], OPEN_TWO
    )
    (line,) = fitted.ledger.spent
    assert line.epsilon <= 2.0
    assert line.epsilon > 1.9
    assert line.delta == 1e-6
    assert set(fitted.sample(300).sex) <= {"F", "M", "D"}


OPEN_TWO = {"x": integer(), "sex": categorical()}


def test_a_table_that_was_estimated_carries_its_cost_into_every_ledger(tmp_path):
    estimated = Domains(epsilon=0.4, delta=1e-6).estimate(many()[["x", "sex"]], OPEN_TWO)
    assert estimated.table.undeclared == []
    assert list(estimated.summary().index) == ["x", "sex"]
    fitted = MST(epsilon=1, delta=1e-6).fit(many()[["x", "sex"]], estimated.table)
    assert [s.epsilon for s in fitted.ledger.spent] == [0.4, 1.0]
    again = load(fitted.save(tmp_path / "mst.tacit"))
    assert [s.epsilon for s in again.ledger.spent] == [0.4, 1.0]
    assert again.table.spent == estimated.table.spent
    released = Statistics([("sex",)], epsilon=1).release(many()[["x", "sex"]], estimated.table)
    assert [s.epsilon for s in released.ledger.spent] == [0.4, 1.0]
    assert estimated.ledger.stamps == []
    assert Domains(insecure_seed=1).estimate(many()[["x", "sex"]], OPEN_TWO).ledger.stamps


@pytest.mark.parametrize(
    "fit",
    [
        MST(epsilon=1).fit,
        DPARGN(epsilon=1).fit,
        Statistics([("x",)], epsilon=1).release,
    ],
)
def test_an_open_column_without_epsilon_is_refused(fit):
    with pytest.raises(
        BadData, match=r"'x' of the table: bounds or categories are not declared.*domain_epsilon"
    ):
        fit(many(), {"x": integer(), "sex": categorical(["F", "M", "D"])})


def test_epsilon_does_not_pay_for_a_column_that_was_inferred():
    """Its kind and its domain were read off the rows before any noise."""
    frame = many()[["x", "sex"]]
    for table in (
        Table.infer(frame, sex=categorical(["F", "M"])),
        Table.infer(frame, sex=categorical(["F", "M"]), x=integer()),
        Table.infer(
            frame.assign(x=np.nan), sex=categorical(["F", "M"])
        ),  # no domain, but its kind was inferred
    ):
        for fit in (MST(epsilon=1, domain_epsilon=0.5).fit, Domains(epsilon=1).estimate):
            with pytest.raises(BadData, match=r"'x' of the table: kind or domain was inferred"):
                fit(frame, table)


def test_what_cannot_be_estimated_is_refused_and_the_message_says_what_was_spent():
    frame = many()
    with pytest.raises(BadData, match=r"order of the column 'sex' cannot be estimated"):
        Domains(epsilon=1).estimate(frame, {"sex": ordinal()})
    with pytest.raises(
        BadData, match=r"the noise hides the domain of 'sex' \(about \d+ rows are needed\).*is spent"
    ):
        Domains(epsilon=0.001).estimate(frame, {"sex": categorical(), "x": integer(0, 120)})
    with pytest.raises(BadData, match="the noise hides the domain of 'x'"):
        Domains(epsilon=0.001).estimate(frame, {"x": integer()})
    with pytest.raises(BadParameter, match=r"domain_epsilon.*below epsilon=1"):
        MST(epsilon=1, domain_epsilon=1.0).fit(frame, OPEN)


def test_one_persons_entry_does_not_change_the_type_of_other_peoples_values():
    """A word among numbers turns a column of a file into text; the estimate and the fit stay the same."""
    numbers = pd.DataFrame({"grade": np.random.default_rng(0).integers(1, 5, ROWS)})
    text = pd.DataFrame({"grade": [*map(str, numbers.grade), "x"]})
    floats = pd.DataFrame({"grade": [*numbers.grade.astype(float), np.nan]})
    for rows in (numbers, text, floats):
        (grade,) = Domains(epsilon=1, insecure_seed=3).estimate(rows, {"grade": categorical()}).table.columns
        assert grade.values == (1, 2, 3, 4)
        assert all(isinstance(v, int) for v in grade.values)
        fitted = MST(epsilon=1, insecure_seed=3).fit(rows, {"grade": categorical([1, 2, 3, 4])})
        counts = fitted.sample(4000).grade.value_counts()
        assert np.abs(counts - numbers.grade.value_counts()).max() < 100
    for yes, no in (("True", "False"), ("1", "0"), (1, 0), (True, False), (1.0, 0.0)):
        flags = pd.DataFrame({"flag": [yes] * 500 + [no] * 500 + ["x"]})
        for declared in (
            boolean(),
            categorical([0, 1]),
            categorical(["0", "1"]),
            categorical(["False", "True"]),
        ):
            fitted = MST(epsilon=1, insecure_seed=3).fit(flags, {"flag": declared})
            shares = fitted.sample(1000).flag.map(str).isin(["True", "1"])
            assert 400 < shares.sum() < 600


def test_a_declared_format_of_dates_is_read_and_written():
    """Days up to the 12th were read as months."""
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(ROWS) % 31, unit="D")
    frame = pd.DataFrame({"day": days.strftime("%d.%m.%Y")})
    for day in (
        timestamp("2020-01-01", "2020-12-31", days=True, format="%d.%m.%Y"),
        timestamp(days=True, format="%d.%m.%Y"),
    ):
        made = MST(epsilon=5, domain_epsilon=2, insecure_seed=1).fit(frame, {"day": day}).sample(1000).day
        assert (pd.to_datetime(made, format="%d.%m.%Y") < "2020-02-15").mean() > 0.95


def test_rows_with_unlisted_values_are_kept_as_other():
    rng = np.random.default_rng(0)
    towns = [*["Bern"] * 2000, *["Thun"] * 1500, *(f"T{i}" for i in rng.integers(0, 300, 1500))]
    frame = pd.DataFrame({"town": rng.permutation(towns)})
    fitted = MST(epsilon=1, delta=1e-6, domain_epsilon=0.5, insecure_seed=1).fit(
        frame, {"town": categorical()}
    )
    assert fitted.table.columns[0].values == ("Bern", "Thun", "other")
    shares = fitted.sample(5000).town.value_counts(normalize=True)
    assert shares["other"] == pytest.approx(0.3, abs=0.03)
    # the same with a declared list
    declared = MST(epsilon=1, insecure_seed=1).fit(
        frame, {"town": categorical(["Bern", "rest"], other="rest")}
    )
    assert declared.sample(5000).town.value_counts(normalize=True)["rest"] == pytest.approx(0.6, abs=0.03)
    with pytest.raises(BadParameter, match="stands for all that are not listed"):
        categorical(["a"], other="b")


def test_a_range_of_one_side_is_kept_and_the_other_side_is_estimated():
    table = Table.declare({"x": integer()}, [Range("x", low=0)])
    (column,) = Domains(epsilon=1, insecure_seed=1).estimate(many()[["x"]], table).table.columns
    assert column.low == 0
    assert 80 <= column.high <= 128


def test_numbers_of_every_size_and_sign():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "tiny": rng.uniform(-1e-6, 1e-6, ROWS),
            "huge": rng.uniform(1e15, 2e15, ROWS),
            "zero": np.zeros(ROWS),
            "infinite": np.where(rng.random(ROWS) < 0.1, np.inf, 1.0),
            "around": rng.normal(0, 10, ROWS),
        }
    )
    estimated = Domains(epsilon=2, delta=1e-6, insecure_seed=5).estimate(
        frame, dict.fromkeys(frame, continuous())
    )
    ends = {c.name: c.ends for c in estimated.table.columns}
    assert -(2.0**-19) <= ends["tiny"][0] < -9e-7
    assert 9e-7 < ends["tiny"][1] <= 2.0**-19
    assert 5e14 < ends["huge"][0] < 1.1e15
    assert 1.9e15 < ends["huge"][1] <= 2.0**51
    assert ends["zero"] == (0.0, 0.0)
    assert ends["infinite"][1] > 2.0**62
    assert -64 <= ends["around"][0] < -20
    assert 20 < ends["around"][1] <= 64
    assert len(MST(epsilon=1).fit(frame, estimated.table).sample(50)) == 50


def test_domains_of_adult_from_kinds_alone():
    """32,561 real rows, fifteen columns of which only the kinds are declared."""
    with gzip.open(Path(ROOT) / "adult" / "adult.data.gz", "rt") as file:
        frame = pd.read_csv(file, names=ADULT, skipinitialspace=True, na_values="?")
    kinds = {n: integer() if frame[n].dtype.kind in "if" else categorical() for n in ADULT}
    estimated = Domains(epsilon=0.5, delta=1e-9, insecure_seed=0).estimate(frame, kinds)
    column = {c.name: c for c in estimated.table.columns}
    assert 16 <= column["age"].low <= 18
    assert 80 <= column["age"].high <= 128
    assert column["education_num"].low <= 4
    assert column["education_num"].high == 16  # a fifth of a percent below and 1.3% at the ends
    assert set(column["sex"].values) == {"Female", "Male"}
    assert set(column["income"].values) == {"<=50K", ">50K"}
    assert column["workclass"].missing
    assert "Never-worked" not in column["workclass"].values  # 7 people
    assert column["country"].other == "other"
    assert "United-States" in column["country"].values


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    many()[["x", "sex", "income"]].to_csv("table.csv", index=False)
    Path("kinds.toml").write_text(
        'x = "integer"\nsex = "categorical"\nincome = {kind = "continuous", low = 0, step = 0.01}\n'
    )
    return tmp_path


def test_the_command_line_estimates_open_columns_only_for_epsilon(folder, capsys):
    common = ["synth", "table.csv", "--model", "mst", "--columns", "kinds.toml", "--rows", "300"]
    words = refused(capsys, *common, "--out", "out.csv")
    assert "leaves bounds or categories of x, sex, income open" in words
    assert "--domain-epsilon 0.3" in words
    assert not Path("out.csv").exists()
    code, out, _ = run(
        capsys,
        *common,
        "--out",
        "out.csv",
        "--domain-epsilon",
        "0.5",
        "--set",
        "delta=1e-6",
        "--condition",
        "sex=F",
    )
    assert code == 0
    assert "privacy    ε = 1, δ = 1e-06, record (one row added or removed)" in out
    assert "domain     sex: D, F, M" in out
    rows = pd.read_csv("out.csv")
    assert len(rows) == 300
    assert set(rows.sex) == {"F"}
    assert rows.income.min() >= 0
    assert "for private models" in refused(
        capsys, "synth", "table.csv", "--out", "o.csv", "--domain-epsilon", "0.5"
    )
    assert "below epsilon=1" in refused(capsys, *common, "--out", "o.csv", "--domain-epsilon", "2")
