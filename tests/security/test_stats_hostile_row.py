"""One row of a private query, whatever it holds, changes an answer by no more than the noise covers.

The attack: a person (or whoever writes one row) puts a text into a column of numbers. pandas then reads the
whole column as text, so that every row is read differently, or the party refuses: both tell of the row without
noise. Each query is asked with and without such a row, the noise set to 0: the difference of the sums must be
within the sensitivity for which the noise is made.
"""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest

from tacit.accounting import discrete
from tacit.errors import BadJob
from tacit.jobs.stats.contract import SumContract
from tacit.jobs.stats.deployed import run_here
from tacit.jobs.stats.policy import StatsPolicy, admit
from tacit.jobs.stats.queries import read_query, read_rows
from tacit.jobs.stats.words import HOMES
from tacit.stats import declared, noise_share
from tacit.stats.noisy import NoisyProgram
from tacit.stats.privacy import Private
from tacit.stats.private_sites import PrivateMetaProgram

NAMES = ("north", "south", "west")
ARMS = 'categories = { arm = ["a", "b"] }'
LIFE = 'time = "week"\nevent = "died"\ngrid = [10, 20, 30]'
QUERIES = {
    "describe": f'numbers = ["age"]\nby = "arm"\nbounds = {{ age = [20, 100] }}\n{ARMS}',
    "quantile": f'column = "age"\nq = [0.1, 0.9]\nby = "arm"\nbounds = [20, 100]\n{ARMS}',
    "histogram": 'column = "age"\nbounds = [20, 100]\nbins = 8',
    "crosstab": 'rows = "arm"\ncolumns = "sick"\ncategories = { arm = ["a", "b"], sick = [0, 1] }',
    "correlation": 'numbers = ["age", "x"]\nbounds = { age = [20, 100], x = [-4, 4] }',
    "ttest": f'column = "age"\nby = "arm"\nbounds = [20, 100]\n{ARMS}',
    "mann-whitney": f'column = "age"\nby = "arm"\nbounds = [20, 100]\nbins = 8\n{ARMS}',
    "heavy-hitters": 'column = "arm"\nlongest = 2',
    "glm": 'formula = "sick ~ x + C(arm)"\nbounds = { x = [-4, 4] }\nlevels = { arm = ["a", "b"] }',
    "mixed": 'formula = "sick ~ x + arm"\nbounds = { x = [-4, 4] }\nlevels = { arm = ["a", "b"] }',
    "meta": 'formula = "sick ~ x"\nbounds = { x = [-4, 4] }\nopen_sites = true',
    "km": f'{LIFE}\nby = "arm"\nlevels = {{ arm = ["a", "b"] }}',
    "nelson-aalen": LIFE,
    "aalen-johansen": 'time = "week"\nevent = "end"\ncause = 2\ncauses = [1, 2]\ngrid = [10, 20, 30]',
    "logrank": f'{LIFE}\nby = "arm"\nlevels = {{ arm = ["a", "b"] }}',
    "woe": 'label = "sick"\nlabels = [0, 1]\nfeatures = ["age", "arm"]\nbins = 4\nmin_rows = 5\n'
    f"bounds = {{ age = [20, 100] }}\n{ARMS}",
    "cox": f'{LIFE}\nformula = "x + arm"\nbounds = {{ x = [-4, 4] }}\nlevels = {{ arm = ["a", "b"] }}',
}
USED = {  # the columns of each query
    word: [c for c in ("arm", "x", "age", "sick", "week", "end", "died") if re.search(rf"\b{c}\b", text)]
    for word, text in QUERIES.items()
}
# what somebody may write into one cell of a file
CELLS = (
    *("n/a!", "NaN", "", "inf", "-inf", "1e308", "-1e308", "1e-320", "9" * 400, "007", "9007199254740993"),
    *("2021-03-05", "True", "1,5", "0x10", "1_000", "zz", "1.0", "-1", "\U0001f600", '"', "a\nb"),
)
# and into one cell of a table in memory
OBJECTS = (
    *("text", True, None, np.nan, np.inf, 1e308, 10**5000, pd.Timestamp("2021-03-05"), pd.NaT, pd.NA),
    *(date(2021, 3, 5), np.timedelta64(3, "D"), 2 + 3j, b"bytes", (1, 2), "\ud800", pd.Interval(0, 1)),
)


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


TABLES = {name: trial(60, k) for k, name in enumerate(NAMES)}
for frame in TABLES.values():
    frame.loc[3, "age"] = np.nan  # so that a table with a count of missing values has it in any case


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(discrete, "gaussian", lambda variance, n, *a, **k: np.zeros(n, np.int64))


def write_job(folder, word, more=""):
    for name, frame in TABLES.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    parties = "\n".join(f'{name} = "{name}.csv"' for name in NAMES)
    job = folder / "job.toml"
    job.write_text(f"[stats]\n{QUERIES[word]}\nepsilon = 4.0\n{more}\n[parties]\n{parties}\n")
    return job


def add_first(text, row):
    """Return a CSV file with one more row, before all others."""
    head, rest = text.split("\n", 1)
    line = pd.DataFrame([row]).to_csv(index=False, header=False)
    return f"{head}\n{line}{rest}"


def asked(program, tables):
    """What the coordinator sends down in each step, of tables without the row."""
    steps, sent = program.coordinate(), []
    down = next(steps)
    for step in range(program.max_steps):
        sent.append(down)
        try:
            down = steps.send(np.sum([program.local(step, t, down) for t in tables.values()], axis=0))
        except StopIteration:
            break
    return sent


def sensitivities(program, step, down):
    """(how many numbers, what one row may change in them together), in the units of the sum."""
    if isinstance(program, NoisyProgram):
        return [(n, s) for _, n, s in program.blocks]
    if hasattr(program, "searched"):
        blocks = program.blocks(step, program._read(step, down))
    elif hasattr(program, "block"):
        one = program.block
        blocks = [one(program.length(step, down)) if callable(one) else one]
    else:
        blocks = program.blocks(step) if callable(program.blocks) else program.blocks
    return [(b.length, b.sensitivity * noise_share.SCALE + math.sqrt(b.length)) for b in blocks]


def check_close(program, step, down, without, with_row):
    """The answers differ by at most the sensitivity in every block."""
    change = program.local(step, with_row, down) - program.local(step, without, down)
    start = 0
    for length, most in sensitivities(program, step, down):
        part = change[start : start + length].astype(float)
        assert np.linalg.norm(part) <= most * (1 + 1e-9)
        start += length
    assert start == len(change)


def prepared(query, program, path, name="north"):
    return query.verb.prepare(read_rows(path, query.data, program), name)


def open_query(word, tmp_path):
    query = read_query(word, write_job(tmp_path, word))
    program = query.verb.program(query.options, list(NAMES))
    tables = {name: prepared(query, program, tmp_path / f"{name}.csv", name) for name in NAMES}
    core = program.own if isinstance(program, PrivateMetaProgram) else program
    return query, program, core, tables, asked(core, tables)


def test_every_word_has_a_private_query_or_refuses_one():
    assert set(QUERIES) == set(HOMES) - {"gee"}  # gee refuses an ε (test_all_queries.py)
    assert len(QUERIES) == 17


@pytest.mark.parametrize("word", QUERIES)
def test_a_cell_of_a_file_changes_an_answer_by_no_more_than_its_noise_covers(word, tmp_path, no_noise):
    query, _, program, tables, downs = open_query(word, tmp_path)
    text = (tmp_path / "north.csv").read_text()
    row = TABLES["north"].iloc[7].to_dict()
    for column in USED[word]:
        for cell in CELLS:
            (tmp_path / "hostile.csv").write_text(add_first(text, row | {column: cell}))
            hostile = prepared(query, program, tmp_path / "hostile.csv")
            assert len(hostile) == 61
            for step in {0, len(downs) - 1}:
                check_close(program, step, downs[step], tables["north"], hostile)


@pytest.mark.parametrize("word", QUERIES)
def test_a_cell_of_a_table_changes_an_answer_by_no_more_than_its_noise_covers(word, tmp_path, no_noise):
    query, _, program, _, downs = open_query(word, tmp_path)
    clean = TABLES["north"]
    row = clean.iloc[7].to_dict()
    without = query.verb.prepare(clean, "north")
    for column in USED[word]:
        for value in OBJECTS:
            first = pd.DataFrame([row])
            first[column] = pd.Series([value], dtype=object)
            hostile = query.verb.prepare(pd.concat([first, clean], ignore_index=True), "north")
            for step in {0, len(downs) - 1}:
                check_close(program, step, downs[step], without, hostile)


@pytest.mark.parametrize("word", QUERIES)
def test_the_form_of_a_result_does_not_tell_of_the_row(word, tmp_path, no_noise):
    job = write_job(tmp_path, word)
    clean = run_here(word, job)
    for cell in ("n/a!", "2021-03-05", "zz", ""):
        row = TABLES["north"].iloc[7].to_dict() | dict.fromkeys(USED[word], cell)
        (tmp_path / "north.csv").write_text(add_first(TABLES["north"].to_csv(index=False), row))
        found = run_here(word, job)
        assert form_of(found) == form_of(clean)


def form_of(result):
    """The keys of a result and its sentences, without the figures in them."""
    value = json.loads(json.dumps(result.to_dict(), default=str))
    value.pop("ledger")

    def strip(v):
        if isinstance(v, dict):
            return {re.sub(r"\d+", "#", k): strip(x) for k, x in v.items()}
        if isinstance(v, list):
            return [strip(x) for x in v]
        return re.sub(r"[-+]?\d[\d.,e+-]*", "#", v) if isinstance(v, str) else type(v) in (int, float)

    stamps = [re.sub(r"\d+", "#", text) for text in result.ledger.stamps]
    return strip(value), stamps, [replace(s, epsilon=0) for s in result.ledger.spent]


def test_before_one_text_changed_how_all_rows_are_read():
    """Why: pandas' types of the same file, with and without a row."""
    text = TABLES["north"].to_csv(index=False)
    hostile = add_first(text, TABLES["north"].iloc[7].to_dict() | {"age": "n/a!"})
    plain, changed = (pd.read_csv(io.StringIO(t))["age"] for t in (text, hostile))
    assert plain.dtype == float
    assert changed.dtype != float
    # an object column: for pandas, 1 and True are one value, and the first decides for all
    column = pd.Series([True, 1, 1, 0], dtype=object)
    assert list(column.unique()) == [True, 0]
    assert declared.level_codes(column, ["0", "1"]).tolist() == [2, 1, 1, 0]


@pytest.mark.parametrize(
    "word", ["glm", "mixed", "meta", "km", "nelson-aalen", "aalen-johansen", "logrank", "cox"]
)
def test_a_private_query_cannot_ask_for_an_error_where_a_value_is_missing(word, tmp_path):
    with pytest.raises(BadJob, match="'drop' with epsilon: an error would tell"):
        run_here(word, write_job(tmp_path, word, 'missing = "error"'))


@pytest.mark.parametrize("word", QUERIES)
def test_a_table_without_rows_is_answered_like_one_with_a_row(word, tmp_path, no_noise):
    """A party admits the query, and its answer has noise like any other."""
    query, program, core, _, downs = open_query(word, tmp_path)
    (tmp_path / "empty.csv").write_text(TABLES["north"].iloc[:0].to_csv(index=False))
    table = read_rows(tmp_path / "empty.csv", query.data, program)
    answers = _Answers()
    assert isinstance(program, Private)
    job = SumContract.of(program, list(NAMES))
    admit(StatsPolicy(min_parties=2), job, program, table, answers, tmp_path / "state")
    assert answers.charged
    empty = query.verb.prepare(table, "north")
    (tmp_path / "one.csv").write_text(TABLES["north"].iloc[:1].to_csv(index=False))
    for step, down in enumerate(downs):
        check_close(core, step, down, empty, prepared(query, program, tmp_path / "one.csv"))


class _Answers:
    charged = False

    def bind_table(self, digest):
        assert len(digest) == 64

    def record_charge(self):
        self.charged = True


@pytest.mark.parametrize("word", ["mixed", "meta"])
def test_a_site_without_rows_has_noise_like_one_with_a_row(word, tmp_path):
    """Before, its part of the sums was exactly 0."""
    query, program, _, _, downs = open_query(word, tmp_path)
    (tmp_path / "empty.csv").write_text(TABLES["north"].iloc[:0].to_csv(index=False))
    table = prepared(query, program, tmp_path / "empty.csv")
    assert np.count_nonzero(program.local(0, table, downs[0])) >= 3


def test_decimal_commas_are_read_cell_by_cell(tmp_path):
    (tmp_path / "a.csv").write_text('id;age;arm\n1;"50,5";a\n2;1.500;a\n3;x;b\n4;7;1,5\n')
    query = read_query(
        "histogram", write_job(tmp_path, "histogram", '[data]\ndecimal = ","\nseparator = ";"')
    )
    program = query.verb.program(query.options, list(NAMES))
    table = read_rows(tmp_path / "a.csv", query.data, program)
    np.testing.assert_array_equal(declared.to_numbers(table["age"]), [50.5, np.nan, np.nan, 7.0])
    assert declared.level_codes(table["arm"], ["a", "1.5"]).tolist() == [0, 0, 2, 1]


def test_cells_are_read_as_declared():
    cells = [12, 12.0, "12", " 1.2e1 ", True, "true", "x", None, np.inf, "1_0", "0x1", 10**400]
    numbers = declared.to_numbers(pd.Series(cells, dtype=object))
    np.testing.assert_array_equal(numbers, [12, 12, 12, 12, 1, 1, *[np.nan] * 6])
    levels = declared.level_codes(
        pd.Series([1, 1.0, "1", "1.0", "01", True, "NA", None], dtype=object), [0, 1]
    )
    assert levels.tolist() == [1, 1, 1, 1, 2, 2, 3, 3]
    truth = declared.level_codes(pd.Series([True, "false", "1"]), [0, 1], truth_is_number=True)
    assert truth.tolist() == [1, 0, 1]
    assert declared.level_codes(pd.Series(["NA", "x"]), ["NA"]).tolist() == [0, 1]
    for kind in ("Int64", "Float64", "boolean"):
        column = pd.Series([1, None, 0], dtype=kind)
        np.testing.assert_array_equal(declared.to_numbers(column), [1, np.nan, 0])
        assert declared.level_codes(column, [0, 1], truth_is_number=True).tolist() == [1, 3, 0]
