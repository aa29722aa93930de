"""Every word of `tacit stats` gives, from a job file, what its function gives in Python."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadJob, BadParameter
from tacit.jobs.stats.deployed import run_here
from tacit.jobs.stats.words import HOMES


def trial(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return pd.DataFrame(
        {
            "arm": rng.choice(["a", "b"], n),
            "x": x.round(3),
            "age": (60 + 9 * rng.standard_normal(n)).round(),
            "sick": (rng.random(n) < 1 / (1 + np.exp(0.3 * seed - x))).astype(int),
            "week": rng.integers(1, 30, n).astype(float),
            "end": rng.choice([0, 1, 2], n),
            "died": rng.integers(0, 2, n),
        }
    )


FED = {name: trial(n, k) for k, (name, n) in enumerate({"north": 90, "south": 70, "west": 120}.items())}
ARMS = 'categories = { arm = ["a", "b"] }'
LIFE = 'time = "week"\nevent = "died"'
CASES = {
    "describe": (f'numbers = ["age"]\nby = "arm"\n{ARMS}', lambda s: s.describe(FED, ["age"], by="arm")),
    "quantile": (
        f'column = "age"\nq = [0.1, 0.9]\nby = "arm"\n{ARMS}',
        lambda s: s.quantile(FED, "age", [0.1, 0.9], by="arm"),
    ),
    "histogram": ('column = "age"\nbounds = [20, 100]', lambda s: s.histogram(FED, "age", (20, 100))),
    "crosstab": (
        'rows = "arm"\ncolumns = "sick"\ncategories = { arm = ["a", "b"], sick = [0, 1] }',
        lambda s: s.crosstab(FED, "arm", "sick"),
    ),
    "correlation": ('numbers = ["age", "x"]', lambda s: s.correlation(FED, ["age", "x"])),
    "ttest": (f'column = "age"\nby = "arm"\n{ARMS}', lambda s: s.ttest(FED, "age", "arm")),
    "mann-whitney": (
        f'column = "age"\nby = "arm"\nbounds = [0, 120]\nbins = 120\n{ARMS}',
        lambda s: s.mann_whitney(FED, "age", "arm", (0, 120), 120),
    ),
    "heavy-hitters": ('column = "arm"', lambda s: s.heavy_hitters(FED, "arm")),
    "glm": ('formula = "sick ~ x + arm"', lambda s: s.glm(FED, "sick ~ x + arm")),
    "gee": ('formula = "sick ~ x + arm"', lambda s: s.gee(FED, "sick ~ x + arm")),
    "mixed": ('formula = "sick ~ x"', lambda s: s.mixed(FED, "sick ~ x")),
    "meta": (
        'formula = "sick ~ x"\nopen_sites = true\neffects = "fixed"',
        lambda s: s.meta(FED, "sick ~ x", open_sites=True, effects="fixed"),
    ),
    "km": (f'{LIFE}\nby = "arm"', lambda s: s.kaplan_meier(FED, time="week", event="died", by="arm")),
    "nelson-aalen": (
        f"{LIFE}\nsmooth = false",
        lambda s: s.nelson_aalen(FED, time="week", event="died", smooth=False),
    ),
    "aalen-johansen": (
        'time = "week"\nevent = "end"\ncause = 2\ncauses = [1, 2]',
        lambda s: s.aalen_johansen(FED, time="week", event="end", cause=2, causes=[1, 2]),
    ),
    "logrank": (f'{LIFE}\nby = "arm"', lambda s: s.logrank(FED, time="week", event="died", by="arm")),
    "woe": (
        'label = "sick"\nfeatures = ["age", "arm"]\ncategories = { arm = ["a", "b"] }\nbins = 4',
        lambda s: tacit.boost.woe(FED, label="sick", features=["age", "arm"], bins=4),
    ),
    "cox": (f'formula = "x + arm"\n{LIFE}', lambda s: s.cox(FED, "x + arm", time="week", event="died")),
}


def write(folder, text):
    for name, frame in FED.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    parties = "\n".join(f'{name} = "{name}.csv"' for name in FED)
    job = folder / "job.toml"
    job.write_text(f"[stats]\n{text}\n[parties]\n{parties}\n")
    return job


def test_every_word_is_here():
    assert set(CASES) == set(HOMES)


@pytest.mark.parametrize("word", CASES)
def test_a_job_file_gives_what_the_function_gives(word, tmp_path):
    text, call = CASES[word]
    found, expected = run_here(word, write(tmp_path, text)), call(tacit.stats)
    a, b = (
        r.summary() if hasattr(r, "summary") else r.table() if callable(r.table) else r.table
        for r in (found, expected)
    )
    pd.testing.assert_frame_equal(a, b)
    page = found.report(tmp_path / "report.html")
    assert "<html" in page.read_text()
    assert json.loads(json.dumps(found.to_dict(), default=str))["ledger"]


@pytest.mark.parametrize("word", ["gee", "mixed", "meta"])
def test_models_of_sites_are_one_program_of_sums_between_parties(word):
    """One contract for both of its models; a party builds the second from what it is sent."""
    call = {"gee": {}, "mixed": {}, "meta": {"open_sites": True}}[word]
    found, simulated = (
        getattr(tacit.stats, word)(FED, "sick ~ x", runtime=runtime, **call)
        for runtime in ("inprocess", "cohort")
    )
    pd.testing.assert_frame_equal(found.summary(), simulated.summary(), check_exact=True)
    assert {line.how for line in found.ledger.seen} == {"executed"}


NOISY = {
    "heavy-hitters": 'column = "arm"\nlongest = 2',
    "histogram": 'column = "age"\nbounds = [20, 100]',
    "correlation": 'numbers = ["age", "x"]\nbounds = { age = [20, 100], x = [-4, 4] }',
    "ttest": f'column = "age"\nby = "arm"\nbounds = [20, 100]\n{ARMS}',
    "mann-whitney": f'column = "age"\nby = "arm"\nbounds = [20, 100]\nbins = 8\n{ARMS}',
    "nelson-aalen": f"{LIFE}\ngrid = [10, 20, 30]",
    "aalen-johansen": 'time = "week"\nevent = "end"\ncause = 2\ncauses = [1, 2]\ngrid = [10, 20, 30]',
    "logrank": f'{LIFE}\nby = "arm"\nlevels = {{ arm = ["a", "b"] }}\ngrid = [10, 20, 30]',
    "mixed": 'formula = "sick ~ x"\nbounds = { x = [-4, 4] }',
    "meta": 'formula = "sick ~ x"\nbounds = { x = [-4, 4] }\nopen_sites = true',
    "cox": f'{LIFE}\nformula = "x + age"\nbounds = {{ x = [-4, 4], age = [20, 100] }}\ngrid = [10, 20, 30]',
}


@pytest.mark.parametrize("word", NOISY)
def test_a_job_file_may_have_an_epsilon(word, tmp_path):
    found = run_here(word, write(tmp_path, f"{NOISY[word]}\nepsilon = 5.0"))
    assert found.ledger.spent[0].epsilon == 5.0
    assert any("noise" in note for note in found.notes)


@pytest.mark.parametrize(
    ("word", "text", "match"),
    [
        ("meta", 'formula = "sick ~ x"', "open_sites is False"),
        ("gee", 'formula = "sick ~ x"\nepsilon = 1.0', "epsilon is 1.0; it must be None: its robust errors"),
        ("gee", "", "formula must be given"),
        ("mixed", 'formula = "sick ~ x"\nfamily = "gamma"', "family is 'gamma'"),
        ("ttest", 'column = "age"\nby = "arm"', "the levels of 'arm' are not declared"),
        ("woe", 'label = "sick"', "features must be given"),
        ("woe", 'features = ["x"]', "label is ''; it must be the name of the column with the outcome"),
        ("aalen-johansen", LIFE, "cause and causes must be given"),
        ("ttest", f'column = "age"\nby = "arm"\nepsilon = 1.0\n{ARMS}', "the range of 'age' too"),
    ],
)
def test_what_a_job_file_lacks_is_one_error(word, text, match, tmp_path):
    with pytest.raises((BadJob, BadParameter), match=match):
        run_here(word, write(tmp_path, text))
