"""Attacks on a party's privacy account: forgetting, repricing, refunding or racing releases (issue 19, findings 10
and 11); exact row counts with an ε for a row's presence (finding 12); and an ε of a vote that is known only
afterwards (finding 21).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import re
import sys

import numpy as np
import pytest
import torch

import tacit
from tacit import algorithms
from tacit.accounting import Account, Release
from tacit.errors import BadRun, BudgetSpent
from tacit.jobs import train_private
from tacit.jobs.pate import teachers
from tacit.jobs.train import local_dp
from tacit.parties.party import Party
from tacit.private import DPSGD, ConfidentGNMax, Lessons, Student, size
from tests import warm

LOUD, QUIET = Release(0.5, 1.0), Release(50.0, 1.0)  # ε of one step at δ = 1e-5: 9.7 and 0.05


def account(path, release=QUIET, **more):
    return Account(release, 1e-5, file=path / "spent.jsonl", **more)


def test_steps_taken_with_little_noise_are_not_repriced_at_later_settings(tmp_path):
    """Finding 10: ε 34.4 was reported as 0.0154 after one more step with more noise."""
    first = account(tmp_path, LOUD)
    for step in range(1, 6):
        first.spend(step)
    later = account(tmp_path, QUIET, budget=8.0, rounds=10)
    assert later.epsilon() == pytest.approx(first.epsilon(), rel=1e-9)
    assert not later.may_spend()
    with pytest.raises(BudgetSpent, match="the budget is 8"):
        later.spend(6)
    again = account(tmp_path, QUIET)
    again.spend(6)
    assert again.epsilon() > first.epsilon()


def test_a_training_run_resumed_with_other_settings_keeps_what_it_spent(tmp_path):
    """The same attack through DPSGD.attach(file=…)."""

    def session(multiplier):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return DPSGD(noise_multiplier=multiplier, delta=1e-4).attach(
            model, optimizer, 1000, batch_size=100, file=tmp_path / "spent.jsonl"
        )

    first = session(0.5)
    for _ in range(5):
        first.draw()
    second = session(40.0)
    second.draw()
    assert second.epsilon >= first.epsilon > 3
    assert second.ledger.spent[0].epsilon == second.epsilon


# a mixture of releases --------------------------------------------------------------------------------------


def spent_on(tmp_path, *releases):
    for release, steps in releases:
        each = account(tmp_path, release)
        for step in range(steps):
            each.spend(step + 1)
    return account(tmp_path, releases[-1][0])


def test_gaussians_of_different_noise_compose_exactly(tmp_path):
    """Three steps at z = 2 and five at z = 4 are one Gaussian of 1/√(3/4 + 5/16)."""
    from tacit.accounting import gaussian_epsilon

    mixed = spent_on(tmp_path, (Release(2.0), 3), (Release(4.0), 5))
    assert mixed.epsilon() == pytest.approx(gaussian_epsilon((3 / 4 + 5 / 16) ** -0.5, 1e-5), rel=1e-9)


def test_sampled_steps_of_different_noise_compose_as_dp_accounting_composes_them(tmp_path):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    mixed = spent_on(
        tmp_path, (Release(1.0, 0.1, "poisson"), 10), (Release(3.0, 0.5, "poisson"), 20), (Release(5.0), 1)
    )
    theirs = PLDAccountant()
    theirs.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)
    theirs.compose(PoissonSampledDpEvent(0.5, GaussianDpEvent(3.0)), 20)
    theirs.compose(GaussianDpEvent(5.0), 1)
    assert mixed.epsilon() == pytest.approx(theirs.get_epsilon(1e-5), rel=5e-3)


KINDS = {
    "pld": Release(2.0),
    "sampled": Release(1.0, 0.2, "poisson"),
    "rdp": Release(2.0, 0.2, "poisson", "rdp"),
    "zcdp": Release(2.0, accountant="zcdp"),
    "skellam": Release(2.0, accountant="skellam", distance=50.0, dimension=1000),
    "fixed": Release(2.0, 0.2, "fixed", "rdp"),
}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(KINDS, 2)))
def test_any_two_kinds_together_cost_more_than_each_and_no_more_than_basic_composition_says(one, other):
    """Lower: what one of them costs alone. Upper, for kinds that need no conversion between neighbors: ε and
    δ add up.
    """
    from tacit.accounting.mixture import mixed_epsilon

    a, b = KINDS[one], KINDS[other]
    cost = mixed_epsilon([(a, 4), (b, 6)], 1e-5)
    assert cost == mixed_epsilon([(b, 6), (a, 4)], 1e-5)
    assert cost > max(a.epsilon(4, 1e-5), b.epsilon(6, 1e-5)) * 0.999
    assert mixed_epsilon([(a, 4), (b, 7)], 1e-5) > cost
    if "fixed" not in (one, other):
        assert cost < a.epsilon(4, 5e-6) + b.epsilon(6, 5e-6)


def test_a_restart_in_the_middle_of_a_pass_is_charged_as_a_pass(tmp_path):
    """A row is in one batch of every pass: three sessions of five steps, of ten a pass, may have used it
    three times, not ⌈15/10⌉ = 2 times.
    """
    from tacit.accounting import gaussian_epsilon
    from tacit.accounting.training import Training

    shuffle = Training(4.0, 1.0, sampling="shuffle", accountant="gaussian", per_epoch=10)
    last = spent_on(tmp_path, (shuffle, 5), (shuffle, 5), (shuffle, 5))
    assert last.epsilon() == pytest.approx(gaussian_epsilon(4.0 / (2 * 3**0.5), 1e-5), rel=1e-9)


# limit, key, lifetime ---------------------------------------------------------------------------------------


def test_a_limit_holds_without_a_budget_and_across_restarts(tmp_path):
    """Finding 11: Noise(multiplier=…) has no ε to enforce, and a restarted party started a new account."""
    for _ in range(3):
        held = account(tmp_path, limit=3)
        assert held.allowed == 3
        assert held.may_spend()
        held.spend(1)
    assert not account(tmp_path, limit=3).may_spend()
    with pytest.raises(BudgetSpent, match="3 of 3 agreed releases were made"):
        account(tmp_path, limit=3).spend(1)


def test_lines_of_another_key_do_not_count_against_budget_and_limit_but_against_the_lifetime(tmp_path):
    first = account(tmp_path, LOUD, key="heart", limit=2)
    first.spend(1)
    first.spend(2)
    second = account(tmp_path, QUIET, key="lung", limit=1, budget=1.0, rounds=5)
    assert second.spent == 0
    assert second.epsilon() == 0
    second.spend(1)
    assert second.epsilon() == pytest.approx(QUIET.epsilon(1, 1e-5), rel=1e-9)
    assert second.lifetime(1e-5) == first.lifetime(1e-5) > first.epsilon()
    assert not first.may_spend()
    assert not second.may_spend()
    assert [json.loads(line)["key"] for line in (tmp_path / "spent.jsonl").read_text().splitlines()] == [
        "heart",
        "heart",
        "lung",
    ]


def test_another_process_that_spends_from_the_file_is_seen_before_the_next_release(tmp_path):
    a, b = account(tmp_path, limit=2), account(tmp_path, limit=2)
    a.spend(1)
    b.spend(1)
    assert not a.may_spend()
    with pytest.raises(BudgetSpent):
        a.spend(2)
    loud, other = (
        account(tmp_path, LOUD, key="b", budget=15.0, rounds=9),
        account(tmp_path, LOUD, key="b", budget=15.0, rounds=9),
    )
    assert loud.allowed == other.allowed
    while other.may_spend():
        other.spend(1)
    assert not loud.may_spend()


# files that were damaged ------------------------------------------------------------------------------------


def test_a_line_cut_short_is_charged_at_the_dearest_price_in_the_file_to_every_key(tmp_path):
    account(tmp_path, LOUD, key="a").spend(1)
    account(tmp_path, QUIET, key="b").spend(1)
    with open(tmp_path / "spent.jsonl", "ab") as out:
        out.write(b'{"round": 3, "begun": 3, "key": "b", "se')
    b = account(tmp_path, QUIET, key="b")
    assert b.spent == 2
    assert b.epsilon() > LOUD.epsilon(1, 1e-5)
    b.spend(2)
    assert b.spent == 3
    assert account(tmp_path, QUIET, key="b").epsilon() == b.epsilon()
    assert account(tmp_path, LOUD, key="a").spent == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s[1:],
        lambda s: [s[0], s[2]],
        lambda s: [s[1], s[0], s[2]],
        lambda s: [s[0], s[0], s[1], s[2]],
        lambda s: [s[0].replace('"multiplier": 0.5', '"multiplier": NaN'), *s[1:]],
        lambda s: [s[0].replace('"multiplier"', '"noise"'), *s[1:]],
        lambda s: [s[0].replace('"release"', '"gift"'), *s[1:]],
        lambda s: ["12", *s[1:]],
        lambda s: [s[0].replace('"rate": 1.0', '"rate": true'), *s[1:]],
    ],
    ids=[
        "first removed",
        "one removed",
        "reordered",
        "repeated",
        "nan",
        "field missing",
        "kind",
        "number",
        "type",
    ],
)
def test_a_file_that_was_edited_is_refused(tmp_path, change):
    spent_on(tmp_path, (LOUD, 3))
    file = tmp_path / "spent.jsonl"
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")
    with pytest.raises(BadRun, match="It records the privacy that was spent"):
        account(tmp_path)


def test_a_file_that_disappears_or_shrinks_while_it_is_used_is_no_refund(tmp_path):
    file = tmp_path / "spent.jsonl"
    held = spent_on(tmp_path, (LOUD, 3))
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    for call in (held.may_spend, lambda: held.spend(4)):
        with pytest.raises(BadRun, match="It records the privacy that was spent"):
            call()
    file.unlink()
    for call in (held.may_spend, lambda: held.spend(4)):
        with pytest.raises(BadRun, match="It records the privacy that was spent"):
            call()
    assert not file.exists()


def line_of_an_earlier_version(begun, **changes):
    return json.dumps(
        {
            "round": begun,
            "begun": begun,
            "multiplier": 0.5,
            "rate": 1.0,
            "sampling": "everyone",
            "accountant": "pld",
            "delta": 1e-5,
        }
        | changes
    )


def test_files_of_an_earlier_version_are_read_and_those_that_do_not_say_enough_are_refused(tmp_path):
    file = tmp_path / "spent.jsonl"
    file.write_text("".join(line_of_an_earlier_version(i) + "\n" for i in (1, 2)))
    held = account(tmp_path)
    assert held.epsilon() == pytest.approx(LOUD.epsilon(2, 1e-5), rel=1e-9)
    held.spend(3)
    assert account(tmp_path).spent == 3
    file.write_text(
        line_of_an_earlier_version(1, sampling="shuffle", accountant="gaussian", multiplier=4.0) + "\n"
    )
    assert account(tmp_path).epsilon() == pytest.approx(
        Release(2.0).epsilon(1, 1e-5), rel=1e-9
    )  # an exchange: 4 over a distance of 2
    file.write_text(line_of_an_earlier_version(1, accountant="skellam") + "\n")
    with pytest.raises(BadRun, match="did not record the cost of Skellam noise"):
        account(tmp_path)


# kill -9 and races ------------------------------------------------------------------------------------------

SPENDER = """
import sys
from pathlib import Path
from tacit.accounting import Account, Release
from tacit.errors import BudgetSpent
held = Account(Release(2.0), 1e-5, file=Path(sys.argv[1]), limit=int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
for step in range(10**6):
    try:
        held.spend(step + 1)
    except BudgetSpent:
        break
    print("released", flush=True)  # the release itself: it comes after the line is on the disk
"""


def spender(file, limit):
    process = warm.Popen(
        [sys.executable, "-c", SPENDER, str(file), str(limit)],
        stdin=warm.PIPE,
        stdout=warm.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_kill_nine_at_any_moment_never_refunds(tmp_path):
    """Whatever was released before the kill is in the file, and the file stays usable; a release that did not
    happen may be charged.
    """
    file, chance, released = tmp_path / "spent.jsonl", random.Random(0), 0
    for _ in range(3):
        with spender(file, 10**6) as process:
            process.stdin.write("go\n")
            process.stdin.flush()
            for _ in range(chance.randrange(1, 40)):
                assert process.stdout.readline() == "released\n"
                released += 1
            process.kill()  # SIGKILL, wherever it is: computing, writing, waiting for the disk or printing
            released += process.stdout.read().count("released\n")
        held = Account(Release(2.0), 1e-5, file=file)
        assert held.spent >= released
        with open(
            file, "ab"
        ) as out:  # what a power failure may leave of a line from whose `spend` nobody returned
            out.write(b'{"round": 1, "begun"'[: chance.randrange(1, 20)])
        assert Account(Release(2.0), 1e-5, file=file).spent == held.spent + 1


def test_two_processes_that_spend_from_one_file_never_exceed_the_limit(tmp_path):
    file = tmp_path / "spent.jsonl"
    with spender(file, 60) as one, spender(file, 60) as other:
        for process in (one, other):
            process.stdin.write("go\n")
            process.stdin.flush()
        released = sum(process.communicate()[0].count("released\n") for process in (one, other))
    assert released == 60
    assert [json.loads(line)["begun"] for line in file.read_text().splitlines()] == list(range(1, 61))
    assert (one.returncode, other.returncode) == (0, 0)


def test_the_line_is_on_the_disk_before_spend_returns(tmp_path, monkeypatch):
    """Every write is followed by an fsync of the file, the first also by one of the directory."""
    calls, write, fsync = [], os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda fd, data: calls.append("write") or write(fd, data))
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: calls.append("directory" if os.path.isdir(f"/proc/self/fd/{fd}") else "file") or fsync(fd),
    )
    held = account(tmp_path)
    held.spend(1)
    held.spend(2)
    assert calls == ["write", "file", "directory", "write", "file"]


def test_a_full_disk_is_an_error_and_not_a_free_release(tmp_path, monkeypatch):
    held = account(tmp_path, limit=2)
    held.spend(1)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:30]))
    with pytest.raises(BadRun, match="the disk is full"):
        held.spend(2)
    monkeypatch.undo()
    assert not account(tmp_path, limit=2).may_spend()


# row counts beside an ε for a row's presence (finding 12) ---------------------------------------------------


def visible(page):
    """The text of a page, without tags, styles and scripts."""
    return re.sub(r"<[^>]*>", " ", re.sub(r"<(style|script).*?</\1>", " ", page, flags=re.S))


def written(run):
    return {
        str(f.relative_to(run.directory)): visible(f.read_text()) if f.suffix == ".html" else f.read_text()
        for f in run.directory.rglob("*")
        if f.is_file() and f.suffix != ".safetensors"
    }


def test_train_private_writes_neither_the_number_of_rows_nor_the_labels_counts(tmp_path):
    """journal, job, ledger, state, report and the printed summary: all that a run leaves."""
    digits = tacit.data.digits()
    n, labels = len(digits.rows.y), torch.bincount(digits.rows.y).tolist()
    run = tacit.train_private(
        digits,
        model="logistic",
        epsilon=3.0,
        epochs=1,
        evaluate_every=0,
        insecure_seed=2,
        out=tmp_path / "run",
    )
    run.report()
    for name, text in {**written(run), "printed": f"{run} {run.ledger} {run.events}"}.items():
        assert not re.search(rf"\b{n // 1000},?{n % 1000}\b", text), name
        assert str(labels) not in text, name
        assert "Data distribution" not in text, name


Rows, Holdings = tacit.data.federation.Rows, tacit.data.federation.Holdings


def untested():
    """Digits without test rows: no metrics, so nothing that is computed from the noised model is in the
    journal.
    """
    digits = tacit.data.digits()
    return dataclasses.replace(digits, test=Rows(digits.test.x[:0], digits.test.y[:0]))


def comparable(text):
    """Without what differs between any two runs, and without the digest of the noised model."""
    return re.sub(r'"(time|session|seconds|sha256)": ("[^"]*"|[-+.e\d]+)', r'"\1": 0', text)


@pytest.mark.parametrize("declared", [1500, None])
def test_train_private_on_neighbors_writes_the_same_but_for_the_model(tmp_path, monkeypatch, declared):
    """One row fewer, the same noise: any difference would reveal the exact number. Without a declared size the noisy count
    is released, and nothing else.
    """
    if declared is None:
        monkeypatch.setattr(train_private, "noisy_count", lambda rows, release, source: 1444)
    digits = untested()
    fewer = dataclasses.replace(digits, rows=Rows(digits.rows.x[1:], digits.rows.y[1:]))
    runs = [
        tacit.train_private(
            d,
            model="logistic",
            epsilon=3.0,
            epochs=2,
            public_size=declared,
            insecure_seed=1,
            out=tmp_path / name,
        )
        for name, d in (("whole", digits), ("less", fewer))
    ]
    a, b = ({k: comparable(v) for k, v in written(run).items()} for run in runs)
    expected = {"job.toml", "events.jsonl", "ledger.json", "spent.jsonl", "state/state.json", "pipeline.json"}
    assert set(a) == expected
    assert a == b
    assert str(runs[0].ledger) == str(runs[1].ledger)


def sent(fed, monkeypatch, **more):
    """Everything parties send in an in-process run, but for the numbers of the vectors, and what the run
    leaves.
    """
    messages, send = [], Party.send

    async def spy(self, to, message):
        if self.name != "server":
            held = {k: v for k, v in vars(message).items() if k != "vectors"}
            messages.append(
                (
                    self.name,
                    type(message).__name__,
                    repr(held),
                    {k: tuple(v.shape) for k, v in getattr(message, "vectors", {}).items()},
                )
            )
        await send(self, to, message)

    with monkeypatch.context() as patch:
        patch.setattr(Party, "send", spy)
        run = tacit.train(fed, model="logistic", rounds=2, batch_size=60, insecure_seed=3, **more)
    return sorted(messages, key=repr), run


@pytest.mark.parametrize(
    "algorithm",
    [algorithms.FedAvg(lr=0.3), algorithms.FedNova(lr=0.3), algorithms.FedSGD(lr=0.3)],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("declared", [450, None])
def test_parties_with_private_steps_send_no_number_that_tells_their_rows(
    tmp_path, monkeypatch, declared, algorithm
):
    """Every message to the server on neighboring data sets, and every file of the run: equal but for the
    noised vectors. The exact n was sent as weight.
    """
    if declared is None:
        monkeypatch.setattr(local_dp, "noisy_count", lambda rows, release, source: 460)
    fed = untested().split(3, seed=0, held_fraction=0.0)
    first = int(fed.train.of(0)[0])  # leaves, and the rows behind it move up
    keep = torch.arange(len(fed.rows.y)) != first
    train = Holdings.from_lists(
        [(torch.cumsum(keep, 0) - 1)[held[keep[held]]] for held in map(fed.train.of, range(3))]
    )
    fewer = dataclasses.replace(fed, rows=Rows(fed.rows.x[keep], fed.rows.y[keep]), train=train)
    private = DPSGD(noise_multiplier=1.0, delta=1e-4, public_size=declared)
    (a, one), (b, other) = (
        sent(f, monkeypatch, private=private, runtime="inprocess", algorithm=algorithm, out=tmp_path / str(i))
        for i, f in enumerate((fed, fewer))
    )
    assert any(kind == "Upload" for _, kind, _, _ in a)
    assert {json.dumps(said) for _, kind, said, _ in a if kind == "Upload"} == {json.dumps("{'weight': 1.0}")}
    assert a == b
    files, others = ({k: comparable(v) for k, v in written(run).items()} for run in (one, other))
    assert files == others
    assert str(one.ledger) == str(other.ledger)


def test_the_noisy_count_is_drawn_from_the_law_that_the_account_charges():
    """σ = 20 rows, 1,000 draws: mean and variance within 7 standard errors. False alarm: below 1e-9."""
    release = size.count_release(DPSGD(noise_multiplier=1.0))
    assert release == Release(20.0)
    drawn = [size.noisy_count(1000, release, os.urandom) for _ in range(1000)]
    mean = sum(drawn) / len(drawn)
    variance = sum((d - mean) ** 2 for d in drawn) / len(drawn)
    assert abs(mean - 1000) < 7 * 20 / 1000**0.5
    assert abs(variance - 400) < 7 * 400 * (2 / 1000) ** 0.5


def test_the_noisy_count_is_part_of_the_budget(tmp_path):
    digits = tacit.data.digits()
    run = tacit.train_private(
        digits, model="logistic", epsilon=1.0, epochs=2, evaluate_every=0, out=tmp_path / "run"
    )
    lines = [json.loads(line) for line in (tmp_path / "run" / "spent.jsonl").read_text().splitlines()]
    count, *steps = [(line["kind"], line["multiplier"]) for line in lines]
    assert count == ("release", size.count_release(DPSGD(epsilon=1.0)).multiplier)
    assert {kind for kind, _ in steps} == {"training"}
    held = Account(Release(1.0), 1e-5, file=tmp_path / "run" / "spent.jsonl")
    assert held.epsilon() == pytest.approx(run.ledger.spent[0].epsilon)
    assert 0.98 < run.ledger.spent[0].epsilon <= 1.0
    assert run.metrics["epsilon"] == run.ledger.spent[0].epsilon


# PATE: an ε that is known only afterwards is no guarantee (finding 21) --------------------------------------

QUICK = {"lessons": Lessons(epochs=1), "student": Student(steps=1), "model": "logistic", "public": 0.7}


def taught(monkeypatch, agree, **more):
    """A run whose twelve teachers all agree, or split their votes evenly between two classes."""
    votes = np.zeros(10, np.int64)
    votes[:2] = (12, 0) if agree else (6, 6)
    with monkeypatch.context() as patch:
        patch.setattr(teachers.Ensemble, "counts", lambda self, rows: np.tile(votes, (len(rows), 1)))
        return tacit.pate(
            tacit.data.digits(),
            teachers=12,
            aggregator=ConfidentGNMax(8.0, 3.0, 3.0),
            **{"queries": 100, **QUICK, **more},
        )


@pytest.mark.parametrize("budget", [None, 30.0])
def test_the_epsilon_of_a_vote_does_not_depend_on_the_votes(monkeypatch, budget):
    """ConfidentGNMax answers the more questions the more teachers agree, so ε of the answers given told how
    much they agree, and was a bound for nobody.

    A check passes with probability .91 or .25: the shares of answers lie on either side of .6, but for a
    probability below 1e-11.
    """
    runs = [taught(monkeypatch, agree, epsilon=budget) for agree in (True, False)]
    assert runs[0].answered > 0.6 > runs[1].answered
    assert (
        runs[0].epsilon
        == runs[1].epsilon
        == (budget or ConfidentGNMax(8.0, 3.0, 3.0).epsilon(100, 100, 1e-5))
    )
    for run in runs:
        assert run.used <= run.epsilon == run.ledger.spent[0].epsilon == run.to_dict()["epsilon"]
        assert (
            f"The given answers cost ε = {run.used:.4g}, which depends on the votes and is no guarantee."
            in run.ledger.spent[0].note
        )


def test_later_runs_add_what_earlier_ones_could_have_cost(monkeypatch):
    """Without a budget for both, all answered; with one, the questions of both stop before it."""
    ask = ConfidentGNMax(8.0, 3.0, 3.0)
    first = taught(monkeypatch, False)
    more = {"teachers": first.teachers, "queries": 10, "before": [first]}
    monkeypatch.setattr(
        teachers.Ensemble,
        "counts",
        lambda self, rows: np.tile(np.eye(10, dtype=np.int64)[0] * 12, (len(rows), 1)),
    )
    second = tacit.pate(tacit.data.digits(), aggregator=ask, **QUICK, **more)
    assert second.epsilon == pytest.approx(ask.epsilon(110, 110, 1e-5))
    assert second.used == pytest.approx(
        ask.epsilon(110, int((first.labels >= 0).sum() + (second.labels >= 0).sum()), 1e-5)
    )
    third = tacit.pate(tacit.data.digits(), aggregator=ask, epsilon=first.used + 2.0, **QUICK, **more)
    assert third.used <= third.epsilon == first.used + 2.0
