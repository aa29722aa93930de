"""tacit pate: a job file in, a student out; what it prints, writes and refuses."""

from __future__ import annotations

import json

import pytest

from tacit import cli
from tacit.config import pate as command
from tacit.errors import BadJob
from tacit.private import GNMax, Lessons, Student

JOB = """
[data]
name = "digits"
[model]
name = "mlp"
hidden = [16]
[aggregator]
name = "GNMax"
sigma = 3.0
[lessons]
epochs = 10
[student]
steps = 10
[pate]
teachers = 8
queries = 30
public = 0.7
"""


@pytest.fixture
def job(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    return file


def test_a_job_becomes_a_student_and_its_own_job_file_makes_another(job, tmp_path, capsys):
    assert cli.main(["pate", str(job), "--out", str(tmp_path / "run"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["epsilon"] == pytest.approx(GNMax(3.0).epsilon(30, 30, 1e-5))
    assert said["asked"] == 30
    assert "confidential" not in said
    assert (tmp_path / "run" / "report.html").exists()
    assert (
        cli.main(
            [
                "pate",
                str(tmp_path / "run" / "job.toml"),
                "--out",
                str(tmp_path / "again"),
                "--set",
                "pate.queries=5",
                "--confidential",
            ]
        )
        == 0
    )
    words = capsys.readouterr().out
    assert "answers  5 of 5 queries" in words
    assert "do not publish it" in words


def test_a_job_file_says_what_the_arguments_say(job):
    dataset, told = command.load(job, ["data.parties=4", "pate.runtime=inprocess"])
    assert len(dataset) == 4
    assert told["runtime"] == "inprocess"
    assert (told["aggregator"], told["lessons"], told["student"]) == (
        GNMax(3.0),
        Lessons(epochs=10),
        Student(steps=10),
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("pate.querys=3", "pate: it has no key 'querys'. Did you mean 'queries'"),
        ("pate.queries=many", "pate: queries is 'many'; it must be a whole number"),
        ("aggregator.sigma=-1", "GNMax: sigma is -1; it must be a number above 0"),
        ("aggregator.name=Median", "'Median' is not known here"),
        ("lessons.epoch=3", "lessons: it has no key 'epoch'. Did you mean 'epochs'"),
        ("pate.runtime=mars", "runtime is 'mars'; it must be one of 'inprocess', 'processes'"),
        ("train.rounds=3", "'train' is not known here"),
    ],
)
def test_bad_job_file_entries_are_refused_with_their_position(job, change, words):
    with pytest.raises(BadJob, match=words):
        command.load(job, [change])


def test_what_is_wrong_ends_with_code_2_and_one_sentence(job, tmp_path, capsys):
    assert cli.main(["pate", str(job), "--out", str(tmp_path / "x"), "--set", "pate.teachers=900"]) == 2
    assert "900 teachers for 1,438 rows" in capsys.readouterr().err
    assert cli.main(["pate", str(tmp_path / "no.toml")]) == 2
    assert "there is no job file" in capsys.readouterr().err
