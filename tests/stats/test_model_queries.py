"""`tacit stats glm|km|logrank|cox` on files equal the Python functions."""

from __future__ import annotations

import pandas as pd
import pytest

import tacit
from tacit.errors import BadJob, TacitError
from tacit.jobs.stats.deployed import run_here
from tests.cli.shell import answer
from tests.stats.references import ll_data, split

QUERIES = {
    "glm": 'formula = "arrest ~ age + C(mar)"\nlevels = { mar = [0, 1] }\n',
    "km": 'time = "week"\nevent = "arrest"\nby = "fin"\ngrid = [10, 20, 30, 40, 52]\n',
    "logrank": 'time = "week"\nevent = "arrest"\nby = "fin"\nstrata = "site"\n',
    "cox": 'formula = "age + prio"\ntime = "week"\nevent = "arrest"\n',
}


@pytest.fixture
def fed(tmp_path, monkeypatch) -> dict[str, pd.DataFrame]:
    monkeypatch.chdir(tmp_path)
    frames = split(ll_data("rossi"), 3)
    for name, frame in frames.items():
        frame.to_csv(f"{name}.csv", index=False)
    lines = "".join(f'{name} = "{name}.csv"\n' for name in frames)
    for word, options in QUERIES.items():
        (tmp_path / f"{word}.toml").write_text(f"[stats]\n{options}[parties]\n{lines}")
    return frames


def test_job_files_give_the_results_of_the_functions(fed):
    glm = tacit.stats.glm(fed, "arrest ~ age + C(mar)")
    assert run_here("glm", "glm.toml").summary().equals(glm.summary())
    km = tacit.stats.kaplan_meier(fed, time="week", event="arrest", by="fin", grid=[10, 20, 30, 40, 52])
    assert run_here("km", "km.toml").table.equals(km.table)
    test = tacit.stats.logrank(fed, time="week", event="arrest", by="fin", strata="site")
    assert run_here("logrank", "logrank.toml").statistic == test.statistic
    cox = tacit.stats.cox(fed, "age + prio", time="week", event="arrest")
    assert run_here("cox", "cox.toml").summary().equals(cox.summary())


def test_the_site_is_the_partys_name_in_job_files_too(fed):
    glm = tacit.stats.glm(fed, "arrest ~ age + C(site)")
    changes = ['stats.formula="arrest ~ age + C(site)"', "stats.levels={}"]
    assert run_here("glm", "glm.toml", changes=changes).summary().equals(glm.summary())
    km = tacit.stats.kaplan_meier(fed, time="week", event="arrest", by="site", grid=[10, 20, 30, 40, 52])
    assert run_here("km", "km.toml", changes=['stats.by="site"']).table.equals(km.table)
    cox = tacit.stats.cox(fed, "age + C(mar)", time="week", event="arrest", strata=["site", "fin"])
    changes = ['stats.formula="age + C(mar)"', 'stats.strata=["site", "fin"]']
    assert run_here("cox", "cox.toml", changes=changes).summary().equals(cox.summary())
    noisy = ['stats.by="site"', "stats.epsilon=5.0"]
    assert set(run_here("km", "km.toml", changes=noisy).table["group"]) == set(fed)


def test_the_command_answers_in_json_and_writes_a_report(fed, tmp_path, capsys):
    found = answer(capsys, "stats", "cox", "cox.toml", "--out", "cox.html")
    terms = [row["term"] for row in found["coefficients"]]
    assert sorted(terms) == ["age", "prio"]
    assert "hazard ratio" in (tmp_path / "cox.html").read_text()


def test_bad_job_files_say_what_is_missing(fed, tmp_path):
    for word, changes, text in (
        ("glm", ["stats.family=cauchy"], "family"),
        ("glm", ["stats.formla=x"], "no key 'formla'"),
        ("cox", ['stats.time=""'], "time must be given"),
        ("km", ["stats.epsilon=1.0"], "the levels of 'fin'"),
        ("logrank", ["stats.weighting=none"], "weighting"),
    ):
        with pytest.raises(TacitError, match=text):
            run_here(word, f"{word}.toml", changes=changes)
    (tmp_path / "empty.toml").write_text("[stats]\n")
    with pytest.raises(BadJob):
        run_here("glm", "empty.toml")


def test_a_private_query_charges_its_epsilon(fed):
    result = run_here("km", "km.toml", changes=["stats.epsilon=1.0", "stats.levels={fin=[0, 1]}"])
    assert [s.epsilon for s in result.ledger.spent] == [1.0]
