"""Study files: how one becomes cells, and errors that are reported before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit import algorithms
from tacit.errors import BadJob
from tacit.jobs.study import file as study_file
from tacit.jobs.study.file import load

from .studies import small


def test_a_file_becomes_a_cell_for_each_row_column_seed_and_tuned_value(tmp_path: Path) -> None:
    s = load(small(tmp_path))
    assert (
        len(s.cells) == (3 * 2 + 2 * 2 + 1) * 2
    )  # three plain rows and two tuned values on two columns, one baseline on one, each from two seeds
    assert s.tables[0].rows == ("FedAvg", "FedProx 0.1", "FedProx 1", "SCAFFOLD", "central")
    assert (
        len(load(small(tmp_path), quick=True).cells) == 4 * 2 + 1
    )  # one seed, and the first tuned value alone
    assert (
        load("convergence", data_dir="elsewhere", device="cpu").digest == load("convergence").digest
    )  # where files lie does not decide figures
    assert load(small(tmp_path, rounds=5)).digest == load(small(tmp_path), rounds=5).digest != s.digest
    assert (load(small(tmp_path), rounds=5, seeds=1).changed, load(small(tmp_path), rounds=4).changed) == (
        "5 rounds, 1 seed",
        "",
    )
    assert load(small(tmp_path), rows=60).digest != s.digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("title =", "titel ="), r"a study has no key 'titel'\. Did you mean 'title'\?"),
        (
            ('figure = "best"', 'figure = "mode"'),
            "figure is 'mode'; it must be one of 'best', 'last', 'picked', 'rounds'",
        ),
        (
            ('figure = "best"', 'figure = "rounds"'),
            "target is None; it must be an accuracy above 0 and at most 1, since figure is 'rounds'",
        ),
        (("seeds = 2", "seeds = 0"), "seeds is 0; it must be a whole number of at least 1"),
        (('name = "gaussian_blobs"', 'name = "blobs"'), "'blobs' is not a data set"),
        (('name = "Scaffold"', 'name = "Scafold"'), "Did you mean 'Scaffold'"),
        (
            ('columns = ["IID"]', 'columns = ["IDD"]'),
            r"row 'central': there is no column 'IDD'\. Did you mean 'IID'\?",
        ),
        (
            ("[tables.published.FedAvg]", "[tables.published.FedAgv]"),
            r"published: there is no row 'FedAgv'\. Did you mean 'FedAvg'\?",
        ),
        (('label = "SCAFFOLD"', 'label = "FedAvg"'), "two rows have the same label"),
        (("FedProx {mu}", "FedProx {nu}"), "its label names 'nu', which is not in its grid. Known: mu"),
        (("[0.1, 1.0]", "0.1"), "grid is {'algorithm.mu': 0.1}; it must be a table of lists"),
        (("rounds = 4", "rounds = "), "small.toml is not TOML"),
        (("[[tables]]", "[[tabels]]"), "a study has no key 'tabels'"),
        (('title = "A small study"', "title = 3"), "title is 3; it must be text"),
        (
            ('figure = "best"', 'figure = "best"\ntarget = "x"'),
            "target is 'x'; it must be a number above 0 and at most 1",
        ),
        (
            ('"IID" = 0.5', '"IID" = "0.5"'),
            r"published, FedAvg: IID is '0\.5'; it must be an accuracy from 0 to 1",
        ),
        (
            ('"IID" = 0.5', '"IID" = 64.3'),
            r"IID is 64\.3; it must be an accuracy from 0 to 1\. Write 64\.3% as 0\.643",
        ),
        (
            ('"IID" = 0.5', '"IDI" = 0.5'),
            r"published, FedAvg: there is no column 'IDI'\. Did you mean 'IID'\?",
        ),
        (
            ("[quick.train]", "[quick]"),
            r"quick: \[quick\] has no table 'rounds'\. Known: data, model, train",
        ),
        (
            ("[quick.train]", "[quick.trian]"),
            r"quick: \[quick\] has no table 'trian'\. Did you mean 'train'\?",
        ),
        (
            ('label = "IID",', 'label = "IID", quick = { rounds = 1 },'),
            r"column 'IID', quick: \[quick\] has no table 'rounds'",
        ),
        (
            ('label = "IID",', 'label = "IID", quick = "yes",'),
            "column 'IID': quick is 'yes'; it must be a table",
        ),
        (('label = "SCAFFOLD"', 'label = ""'), "label is ''; it must be text, by which the table names it"),
        (
            ('label = "SCAFFOLD"', 'label = "SCAFFOLD"\ntrain = "fast"'),
            "row 'SCAFFOLD': train is 'fast'; it must be a table",
        ),
        (
            ('columns = ["IID"]', 'columns = "IID"'),
            "row 'central': columns is 'IID'; it must be a list of texts",
        ),
        (
            ("FedProx {mu}", "FedProx {mu.x}"),
            r"its label is not a pattern: .* Write \{mu\} in place of the value",
        ),
        (
            ("FedProx {mu}", "FedProx {mu:.2f}"),
            r"its label is not a pattern: .* Write \{mu\} in place of the value",
        ),
        (
            ("algorithm.lr", "aggregate.name"),
            "tune: a study cannot change 'aggregate.name'. Begin it with 'algorithm.', 'data.'",
        ),
        (
            ("algorithm.lr", "data.seed"),
            r"tune: 'data\.seed' cannot differ between rows\. Give the number of seeds as train\.seeds",
        ),
        (
            ("[0.01, 0.3]", "[0.3, 0.3]"),
            r"tune 'algorithm\.lr' is \[0\.3, 0\.3\]; it must be values that differ",
        ),
        (("parties = 4", "parties = 4\nrows = -5"), "rows is -5; it must be a whole number of at least 1"),
        (
            ("parties = 4", 'parties = 4\ntest_rows = "100"'),
            "test_rows is '100'; it must be a whole number of at least 1",
        ),
        (
            ("parties = 4", "parties = 4\nseed = 7"),
            r"data: a study has no seed of its own: each cell runs from the seeds 0, 1 and so on\. Leave it "
            r"out",
        ),
        (
            ("rounds = 4", 'rounds = 4\nruntime = "processes"'),
            "train: runtime and landscape are for `tacit run`; the runs of a study are simulated",
        ),
    ],
)
def test_a_broken_study_file_says_what_is_wrong(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    file = Path(small(tmp_path))
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(BadJob, match=words):
        load(str(file))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("name = 3", "name is 3; it must be text"),
        ("columns = 3", "columns is 3; it must be a list of tables"),
        ("rows = 3", "rows is 3; it must be a list of tables"),
        ('published = { a = 0.5 }\nrows = [{ label = "a" }]', "published: a is 0.5; it must be a table"),
        (
            'rows = [{ label = "a" }]\nclaim = { expect = "same" }',
            "claim: it is about what changes from row to row in the first column, which has 1",
        ),
        (
            'rows = [{ label = "a" }, { label = "b" }]\nclaim = { expect = "same", measure = "lst" }',
            "claim: measure is 'lst'; it must be one of 'best', 'last'",
        ),
        (
            'rows = [{ label = "a" }, { label = "b" }]\nclaim = { expect = "same", within = "x" }',
            "claim: within is 'x'; it must be a number of at least 0",
        ),
    ],
)
def test_a_broken_table_says_what_is_wrong(table: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(f'[data]\nname = "digits"\nparties = 2\n[[tables]]\n{table}\n')
    with pytest.raises(BadJob, match=words):
        load(str(file))


def test_quick_without_anything_quick_is_refused_and_what_is_left_out_is_as_in_a_job_file(
    tmp_path: Path,
) -> None:
    """It ran in full, and its output said that its figures came from a few rows and rounds."""
    file = tmp_path / "bare.toml"
    file.write_text(
        '[data]\nname = "digits"\nparties = 2\n[[tables]]\n[[tables.rows]]\nlabel = "FedProx '
        '{mu}"\nalgorithm = "FedProx"\n'
        'grid = { "algorithm.mu" = [0.1, 1.0] }\n'
    )
    with pytest.raises(
        BadJob,
        match=r"bare\.toml: there is no \[quick\.data\] or \[quick\.train\], so --quick would change nothing",
    ):
        load(str(file), quick=True)
    jobs = [c.job for c in load(str(file)).cells]
    assert [j.options["algorithm"] for j in jobs] == [
        algorithms.FedProx(mu=0.1),
        algorithms.FedProx(mu=1.0),
    ]  # a name alone may have values laid over it
    assert jobs[0].model is None  # it follows the data


@pytest.mark.parametrize("name", study_file.names())
def test_every_shipped_study_is_well_formed(name: str) -> None:
    s = load(name)
    assert len({c.id for c in s.cells}) == len(s.cells)
    assert s.notes, "differences are explained"
    assert s.source
    assert any(t.published or t.claim for t in s.tables)
    assert not any(
        getattr(c.job.model, "flip", False) for c in s.cells if c.job.data["name"] in ("mnist", "digits")
    ), "a digit turned around is no digit"
