"""tacit.pate as a whole: teachers that never meet, labels that cost what the ledger says, a student that
anybody may have.
"""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch

import tacit
from tacit import data
from tacit.errors import BadData, BadParameter, BadRun
from tacit.jobs.pate import teachers
from tacit.jobs.pate.pate import SmallDelta
from tacit.private import ConfidentGNMax, GNMax, Lessons, LNMax, Student

QUICK = {
    "lessons": Lessons(epochs=20, lr=0.01),
    "student": Student(steps=20),
    "model": tacit.models.MLP(hidden=(16,)),
    "public": 0.7,
}


@pytest.fixture(scope="module")
def digits():
    return data.digits()


@pytest.fixture(scope="module")
def first(digits):
    return tacit.pate(digits, teachers=12, queries=40, aggregator=GNMax(3.0), **QUICK)


def test_it_gives_student_labels_answered_fraction_and_epsilon(first, digits):
    assert first.answered == 1.0
    assert len(first.labels) == len(first.questions) == len(set(first.questions.tolist())) == 40
    assert first.epsilon == pytest.approx(GNMax(3.0).epsilon(40, 40, 1e-5))
    assert first.metrics["label_accuracy"] > 0.5
    assert first.student(digits.test.x[:3]).shape == (3, 10)
    (line,) = first.ledger.spent
    assert (line.epsilon, line.delta, line.unit) == (
        first.epsilon,
        1e-5,
        "row of a teacher's data, or all of its rows, exchanged for others",
    )
    assert "discrete Gaussian" in line.mechanism
    assert "data-independent" in line.note


def test_teachers_share_no_row_and_use_all_of_them(digits):
    fed = digits.split(12, seed=0, held_fraction=0.0)
    assert sorted(fed.train.index.tolist()) == list(range(len(digits)))


def test_many_teachers_are_trained_as_one_stack_and_each_as_if_it_were_alone(digits):
    fed = digits.split(12, seed=0, held_fraction=0.0)
    all_of_them = teachers.train(fed, QUICK["model"], QUICK["lessons"], 0, "cpu")
    assert all_of_them.engine == "stack"
    mine = fed.train.of(7)
    alone = teachers.train(
        teachers.single_party(fed.rows.x[mine], fed.rows.y[mine], fed.parties[7], 10),
        QUICK["model"],
        QUICK["lessons"],
        0,
        "cpu",
        fed.parties,
    )
    assert torch.allclose(alone.w[0], all_of_them.w[7], atol=1e-5)
    assert not torch.allclose(all_of_them.w[6], all_of_them.w[7], atol=1e-2)


def test_confidential_values_are_kept_separate_and_marked(first, tmp_path):
    assert first.confidential["epsilon"] <= first.epsilon
    assert "do not publish" in first.confidential["note"]
    assert "confidential" not in repr(first)
    assert not {"confidential", "counts", "consensus"} & set(
        json.dumps(first.to_dict()).replace('"', " ").split()
    )
    page = first.report(tmp_path / "report.html").read_text()
    assert "Privacy budget spent" in page
    assert "Accuracy vs. ε" in page
    assert f"{first.confidential['epsilon']:.6g}" not in page


def test_more_questions_to_the_same_teachers_add_up_and_a_spent_budget_is_refused(first, digits):
    again = tacit.pate(
        digits, teachers=first.teachers, queries=10, aggregator=GNMax(3.0), before=[first], **QUICK
    )
    assert again.epsilon == pytest.approx(GNMax(3.0).epsilon(50, 50, 1e-5))
    assert again.teachers is first.teachers
    assert not set(again.questions) & set(first.questions), "nothing is paid for twice"
    assert [h["epsilon"] for h in again.history] == [first.epsilon, again.epsilon]
    with pytest.raises(
        BadParameter,
        match="queries is 240; it must be at most 211, the public rows that earlier runs did not ask about",
    ):
        tacit.pate(
            digits, teachers=first.teachers, queries=240, aggregator=GNMax(3.0), before=[first], **QUICK
        )
    spent = (
        r"pate: the budget ε = 10 is spent: earlier runs cost ε = 18\.7\d at δ = 1e-05, and one more "
        r"answer makes it 1\d\.\d+"
    )
    with pytest.raises(BadParameter, match=spent):
        tacit.pate(
            digits,
            teachers=first.teachers,
            queries=10,
            aggregator=GNMax(3.0),
            before=[first],
            epsilon=10.0,
            **QUICK,
        )


def test_a_budget_ends_the_questions_before_it_is_exceeded(digits, first):
    run = tacit.pate(digits, teachers=first.teachers, queries=40, aggregator=GNMax(3.0), epsilon=5.0, **QUICK)
    assert run.epsilon <= 5.0 < GNMax(3.0).epsilon(len(run.labels) + 1, len(run.labels) + 1, 1e-5)
    assert "the budget ε = 5 allows" in run.notes[-1]
    careful = ConfidentGNMax(6.0, 9.0, 3.0)
    run = tacit.pate(digits, teachers=first.teachers, queries=40, aggregator=careful, epsilon=5.0, **QUICK)
    n, answered = len(run.labels), int((run.labels >= 0).sum())
    assert run.used == pytest.approx(careful.epsilon(n, answered, 1e-5))
    assert run.used <= run.epsilon == 5.0, "the budget is what is guaranteed, whatever the votes"
    assert n == 40 or careful.epsilon(n + 1, answered + 1, 1e-5) > 5.0


def test_the_published_epsilon_is_the_smaller_of_the_two_publishable_ones(digits, first):
    run = tacit.pate(
        digits, teachers=first.teachers, queries=40, aggregator=GNMax(3.0), publish=True, **QUICK
    )
    plain = GNMax(3.0).epsilon(40, 40, 1e-5)
    assert run.epsilon < 2 * plain, "at most the data-independent one and what publishing costs"
    assert ("smooth-sensitivity" in run.ledger.spent[0].note) or run.epsilon > plain, (
        "the attempt costs, also where it gains nothing"
    )
    with pytest.raises(
        BadParameter, match="publish is True; it must be False if `before` lists earlier runs"
    ):
        tacit.pate(
            digits,
            teachers=first.teachers,
            queries=4,
            aggregator=GNMax(3.0),
            publish=True,
            before=[first],
            **QUICK,
        )
    with pytest.raises(BadParameter, match="publish is True; it must be False with a budget"):
        tacit.pate(
            digits,
            teachers=first.teachers,
            queries=4,
            aggregator=GNMax(3.0),
            publish=True,
            epsilon=9.0,
            **QUICK,
        )


def test_a_directory_holds_what_may_be_published_and_is_never_written_over(digits, first, tmp_path):
    run = tacit.pate(
        digits, teachers=first.teachers, queries=20, aggregator=GNMax(3.0), out=tmp_path / "run", **QUICK
    )
    assert sorted(p.name for p in run.directory.iterdir()) == [
        "job.toml",
        "labels.csv",
        "ledger.json",
        "report.html",
        "result.json",
        "student.safetensors",
    ]
    rows = np.loadtxt(run.directory / "labels.csv", delimiter=",", skiprows=1, dtype=int)
    assert (rows[:, 1] == run.labels).all()
    assert tacit.Ledger.from_dict(json.loads((run.directory / "ledger.json").read_text())) == run.ledger
    with pytest.raises(BadRun, match=r"already contains a run\. Choose another directory"):
        tacit.pate(digits, teachers=12, queries=20, out=tmp_path / "run", **QUICK)


def test_votes_of_real_parties_are_those_of_the_simulation(digits):
    """Each party trains alone and only sums of votes are sent; with almost no noise the labels are those of the
    simulation.
    """
    fed = digits.split(5, seed=0)
    told = {"queries": 15, "aggregator": GNMax(0.01), **QUICK}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apart = tacit.pate(fed, runtime=tacit.InProcess(), **told)
    together = tacit.pate(fed, **told)
    assert (apart.labels == together.labels).all()
    assert (apart.confidential["counts"] == together.confidential["counts"]).all()
    assert {s.kind for s in apart.ledger.seen if s.party == "server"} == {
        "AdvertisedKeys",
        "SealedShares",
        "MaskedVector",
        "RevealedShares",
    }
    assert "but not the server, which sees the counts" in apart.ledger.spent[0].adversary


def test_teachers_in_processes_add_the_noise_themselves_and_no_party_can_compute_more_than_the_guarantee(
    digits,
):
    fed = digits.split(3, seed=0)
    run = tacit.pate(
        fed, queries=10, aggregator=GNMax(4.0), runtime=tacit.Processes(), noise="teachers", **QUICK
    )
    assert "epsilon" not in run.confidential, "without the counts there is no data-dependent ε"
    assert "counts" not in run.confidential
    assert run.epsilon == pytest.approx(GNMax(4.0).epsilon(10, 10, 1e-5), rel=0.02)
    assert "including the server" in run.ledger.spent[0].adversary
    assert {s.how for s in run.ledger.seen} == {"executed"}


@pytest.mark.parametrize(
    ("more", "words", "kind"),
    [
        (
            {"teachers": 500},
            r"pate: 500 teachers for 1,438 rows of digits leave 2 rows each; with 10 classes a teacher "
            r"needs at least 10",
            BadData,
        ),
        (
            {"teachers": None},
            "pate: teachers is None; it must be a whole number: the teachers among which the rows are "
            "divided",
            BadParameter,
        ),
        (
            {"queries": 0},
            r"pate: queries is 0; it must be a whole number of at least 1",
            BadParameter,
        ),
        ({"queries": 5000}, r"pate: queries is 5000; it must be a whole number from 1 to 251", BadParameter),
        (
            {"epsilon": 0.1},
            r"pate: the budget ε = 0.1 does not cover one answer of GNMax\(sigma=3.0\), which costs ε = "
            r"2.37",
            BadParameter,
        ),
        ({"delta": 0}, "pate: delta is 0; it must be a number above 0 and below 1", BadParameter),
        (
            {"aggregator": ConfidentGNMax()},
            "ConfidentGNMax: threshold is 200.0; it must be at most 12, the number of teachers",
            BadParameter,
        ),
        ({"aggregator": "gnmaxx"}, "pate: aggregator is 'gnmaxx'.*Did you mean 'GNMax'", BadParameter),
        (
            {"noise": "teachers"},
            "pate: noise is 'teachers'; it must be 'server' if all teachers are in one process",
            BadParameter,
        ),
        (
            {"public": 1.5},
            "pate: public is 1.5; it must be a share of the test set above 0 and below 1",
            BadParameter,
        ),
        (
            {"public": torch.zeros(5, 3)},
            r"pate: the public rows have shape \(5, 3\); each must have the shape of a private one, \(64,\)",
            BadData,
        ),
        ({"device": "tpu"}, "pate: device is 'tpu'; it must be 'cpu', 'cuda'", BadParameter),
    ],
)
def test_what_cannot_be_is_refused_before_a_teacher_is_trained(digits, monkeypatch, more, words, kind):
    monkeypatch.setattr("tacit.jobs.pate.pate.train", None)
    with pytest.raises(kind, match=words):
        tacit.pate(digits, **{"teachers": 12, "queries": 40, "aggregator": GNMax(3.0), **QUICK, **more})


def test_a_seed_does_not_make_the_noise_of_the_votes_replayable(digits, first):
    """Noise of deviation 1,000 votes: 40 labels are equal by chance with probability 10⁻⁴⁰."""
    one, two = (
        tacit.pate(digits, teachers=first.teachers, queries=40, aggregator=GNMax(1000.0), seed=3, **QUICK)
        for _ in range(2)
    )
    assert (one.questions == two.questions).all()
    assert (one.labels != two.labels).any()
    assert one.ledger.stamps == two.ledger.stamps == []


def test_replayable_secrets_of_parties_are_stamped(digits, tmp_path):
    fed = digits.split(3, seed=0)
    run = tacit.pate(
        fed,
        queries=5,
        aggregator=GNMax(4.0),
        runtime=tacit.InProcess(insecure_seed=1),
        noise="teachers",
        **QUICK,
    )
    assert run.ledger.stamps[0].startswith("NOT PRIVATE")
    assert "NOT PRIVATE" in run.report(tmp_path / "report.html").read_text()


def test_laplace_parts_cannot_be_added_up(digits):
    with pytest.raises(
        BadParameter,
        match=r"noise is 'teachers'; it must be 'server' with LNMax. A sum of Laplace noise is not Laplace "
        r"noise",
    ):
        tacit.pate(
            digits.split(3),
            queries=5,
            aggregator=LNMax(1.0),
            runtime=tacit.InProcess(),
            noise="teachers",
            **QUICK,
        )


def test_votes_are_on_classes(digits):
    numbers = data.from_arrays(
        np.random.default_rng(0).normal(size=(200, 3)), np.random.default_rng(0).normal(size=200)
    )
    with pytest.raises(BadData, match="is numeric, and teachers can only vote on classes"):
        tacit.pate(numbers, teachers=4, queries=5, **QUICK)


def test_no_answer_at_all_says_what_asking_cost(digits, first, tmp_path, monkeypatch):
    """Votes that are torn in halves, and a check that wants ten of twelve with next to no noise: the ledger
    is written all the same.
    """
    monkeypatch.setattr(teachers.Ensemble, "counts", lambda self, x: np.tile([6, 6, *[0] * 8], (len(x), 1)))
    with pytest.raises(BadData, match=r"none of the 40 queries was answered, and asking cost ε = "):
        tacit.pate(
            digits,
            teachers=first.teachers,
            queries=40,
            aggregator=ConfidentGNMax(10.0, 0.01, 0.01),
            out=tmp_path / "run",
            **QUICK,
        )
    assert json.loads((tmp_path / "run" / "ledger.json").read_text())["spent"]


def test_a_delta_as_large_as_one_in_all_rows_is_warned_of(digits, first):
    with pytest.warns(
        SmallDelta,
        match="δ = 0.01 is not below 1/1,438, one over the number of private rows: publishing one row would "
        "satisfy the definition",
    ):
        tacit.pate(digits, teachers=first.teachers, queries=5, aggregator=GNMax(3.0), delta=0.01, **QUICK)
