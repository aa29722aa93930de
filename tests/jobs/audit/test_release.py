"""An audit before release: what is attacked, what is judged, and the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.datasets import load_digits

import tacit
from tacit import algorithms, audit, data, guard, models
from tacit.config.audit import AuditTerms, parse_limits
from tacit.config.job import load
from tacit.errors import BadJob, BadParameter, BadRun, ReleaseRefused
from tacit.jobs.audit.uploads import takes_gradient_steps
from tacit.release.audited import check_released
from tests.cli.shell import answer, said

HIDDEN = [guard.Clip(1.0), guard.Quantize(16), guard.SecAgg()]
OPTIONS = {"model": models.MLP(hidden=(32,)), "algorithm": algorithms.FedAvg(lr=0.1), "rounds": 3}


@pytest.fixture(scope="module")
def fed():
    return data.digits().split(10, seed=0)


@pytest.fixture(scope="module")
def passed(fed):
    return audit.release(tacit.train(fed, **OPTIONS, guard=HIDDEN), budget=1.0)


def attacks_of(found):
    return [f.attack for f in found.findings]


def test_a_run_whose_updates_are_hidden_passes(passed):
    assert passed.passed, str(passed)
    assert passed.untested == []
    assert "it is no proof" in passed.headline()
    server = [f for f in passed.findings if f.adversary == "the server" and "rounds" not in f.attack]
    assert server
    assert all("the mean of 10 parties' updates" in f.could for f in server)
    assert all(f.verdict == "within the limit" for f in server)


def test_updates_of_single_rows_are_rebuilt_and_the_release_is_refused():
    """Every party has one row, whose update is in the clear."""
    rows = load_digits()
    fed = data.from_arrays(
        (rows.data[:60] / 16).astype("float32"), rows.target[:60], test_fraction=0.5
    ).split(30, held_fraction=0.0)
    found = audit.release(tacit.train(fed, **OPTIONS), budget=1.0)
    assert not found.passed
    assert found.exceeded[0].attack == "reading of rows from the first layer"
    assert found.exceeded[0].value == 1.0
    assert "Secure aggregation" in found.headline()
    # membership, too: how many shadow models the budget suffices for depends on the machine
    none = {"rebuilt": None, "membership": None, "members": None}
    assert audit.release(tacit.train(fed, **OPTIONS), budget=1.0, limits=none).passed


def test_an_overfitted_model_is_refused_and_its_limit_can_be_raised():
    """Random labels are memorized. The false-alarm probability of "refused" is 0.001 by design, and here far
    below: the attack separates 144 members from 144 others.
    """
    digits, rng = load_digits(), np.random.default_rng(0)
    fed = data.from_arrays(
        (digits.data / 16).astype("float32"), rng.integers(0, 10, len(digits.target))
    ).split(2, held_fraction=0.9)
    run = tacit.train(
        fed,
        model=models.MLP(hidden=(64,)),
        algorithm=algorithms.FedAvg(lr=0.5),
        rounds=8,
        local_epochs=10,
        batch_size=16,
        guard=HIDDEN,
    )
    found = audit.release(run, budget=0.5)
    assert {f.attack for f in found.exceeded} >= {"membership by loss"}
    assert "membership by lira" in attacks_of(found)
    assert "Differential privacy" in found.exceeded[0].stops
    assert audit.release(run, budget=0.5, limits={"membership": None, "members": None}).passed


def test_a_small_budget_leaves_shadow_models_out_and_says_so(passed):
    lira = next(f for f in passed.findings if f.attack == "membership by lira")
    if lira.value is None:
        assert "the budget does not suffice for 4 shadow models" in lira.did
        assert lira.verdict == "not run"
    else:
        assert lira.details["shadows"] >= 4


def test_a_limit_that_no_attack_tested_refuses(fed):
    """Clients of Adam are not inverted, so that nothing says how much the server can rebuild."""
    run = tacit.train(fed, **OPTIONS | {"algorithm": algorithms.FedAvg(lr=0.01, solver=algorithms.Adam())})
    found = audit.release(run, budget=0.5)
    assert found.untested == ["rebuilt"]
    assert not found.passed
    assert "no attack tested the limit 'rebuilt': invert: clients of FedAvg do not send" in found.headline()
    assert "rebuilt=none" in found.headline()
    assert audit.release(run, budget=0.5, limits={"rebuilt": None}).passed


def test_the_page_has_a_section_for_each_adversary(passed, tmp_path):
    page = passed.report(tmp_path / "audit.html").read_text(encoding="utf-8")
    for words in (
        "Anyone who has the model",
        "The server",
        "Could: ",
        "What stops it: ",
        "claims no ε",
        "PASSED",
    ):
        assert words in page
    assert "true-positive rate" in page
    json.dumps(passed.to_dict())


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"speed": 1}, "one of labels, linked, members, membership, rebuilt"),
        ({"membership": 0.2}, "membership"),
        (["membership=often"], "a number, or none"),
    ],
)
def test_bad_limits_are_refused(limits, words):
    with pytest.raises(BadParameter, match=words):
        parse_limits(limits)


def test_limits_are_read_as_texts_and_mappings():
    assert parse_limits(["rebuilt=none", "members=0.2"]) == audit.AuditLimits(rebuilt=None, members=0.2)
    assert parse_limits({"membership": 0.7}) == audit.AuditLimits(membership=0.7)
    with pytest.raises(BadParameter, match="a number of seconds above 0"):
        audit.release("nowhere", budget=0)


def test_the_command_audits_a_run_directory(tmp_path, capsys):
    job = tmp_path / "job.toml"
    job.write_text(
        '[data]\nname = "digits"\nparties = 10\n[model]\nname = "mlp"\nhidden = [32]\n[algorithm]\n'
        'name = "FedAvg"\nlr = 0.1\n[train]\nrounds = 2\n'
    )
    out = tmp_path / "run"
    answer(capsys, "run", str(job), "--out", str(out), "--quiet")
    value = answer(capsys, "audit", str(out), "--budget", "1s", "--limit", "rebuilt=none")
    assert value["passed"] is True
    assert (out / "audit.html").exists()
    assert json.loads((out / "audit.json").read_text())["limits"]["rebuilt"] is None
    code, words = said(capsys, "audit", str(out), "--budget", "1s", "--limit", "rebuilt=0")
    assert (code, "REFUSED" in words) == (2, True)
    code, words = said(capsys, "audit", str(out), "--budget", "soon")
    assert (code, "90s, 5m or 1h" in words) == (2, True)


JOB = """
release = "audited"
[data]
name = "digits"
parties = 10
[model]
name = "mlp"
hidden = [32]
[algorithm]
name = "FedAvg"
lr = 0.1
[train]
rounds = 1
"""


def write_job(path, release):
    path.write_text(JOB.replace('release = "audited"\n', release))
    return str(path)


def test_an_audited_release_is_refused_and_its_model_is_not_exported(tmp_path, capsys):
    """A limit of 0 is exceeded by the malicious server, which rebuilds some rows of the smallest party."""
    table = 'release = {name = "audited", budget = "1s", rebuilt = 0.0}\n'
    job, out = write_job(tmp_path / "job.toml", table), tmp_path / "run"
    code, words = said(capsys, "run", job, "--out", str(out), "--quiet")
    assert (code, "REFUSED" in words) == (2, True)
    assert json.loads((out / "audit.json").read_text())["passed"] is False
    code, words = said(capsys, "export", str(out), "--out", str(tmp_path / "m.pt2"))
    assert (code, "is not released: malicious model (imprint) exceeded" in words) == (2, True)
    with pytest.raises(ReleaseRefused, match="exceeded the limit"):
        tacit.load(out).export(tmp_path / "m.pt2")
    assert not (tmp_path / "m.pt2").exists()
    code, words = said(capsys, "audit", str(out), "--limit", "rebuilt=none")
    assert (code, "declares its limits" in words) == (2, True)


def test_an_audited_release_that_passes_is_exported(tmp_path, capsys):
    table = 'release = {name = "audited", budget = "1s", rebuilt = "none"}\n'
    job, out = write_job(tmp_path / "job.toml", table), tmp_path / "run"
    value = answer(capsys, "run", job, "--out", str(out), "--quiet")
    assert value["released"] is True
    (out / "audit.json").unlink()
    with pytest.raises(ReleaseRefused, match="demands an audit, which has not been made"):
        check_released(out)
    assert answer(capsys, "audit", str(out), "--quiet")["limits"]["rebuilt"] is None
    check_released(out)
    (out / "audit.json").write_text("[]")
    with pytest.raises(BadRun, match="cannot be read"):
        check_released(out)


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ('release = "soon"\n', 'expected "audited"'),
        ('release = {name = "audited", speed = 1}\n', "one of labels, linked, members, membership, rebuilt"),
        ('release = {name = "audited", budget = "soon"}\n', "90s, 5m or 1h"),
    ],
)
def test_a_bad_release_is_an_error_of_the_job(tmp_path, release, words):
    with pytest.raises(BadJob, match=words):
        load(write_job(tmp_path / "job.toml", release))


def test_release_is_the_job_of_one_run(tmp_path):
    job = load(write_job(tmp_path / "job.toml", 'release = "audited"\n'))
    assert job.release == AuditTerms(audit.AuditLimits(), 120.0)
    with pytest.raises(BadJob, match="`release` is for `tacit run`"):
        job.compare()


@pytest.fixture(scope="module")
def table_run():
    """A federation from a table, with the algorithm that tables get by default: no SGD steps."""
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 80, 600), "ward": rng.choice(["a", "b", "c"], 600)})
    frame["ill"] = np.where(
        frame["age"] + 20 * (frame["ward"] == "a") + rng.normal(0, 15, 600) > 60, "y", "n"
    )
    fed = data.from_frame(frame, label="ill").split(3, held_fraction=0.2, seed=0)
    return tacit.train(fed, algorithm=algorithms.FedLBFGSCV(), rounds=3)


def test_a_run_between_real_parties_has_no_rows_to_attack(tmp_path, capsys):
    """It was told to use `tacit party`, which does not audit."""
    fed = 'name = "gaussian_blobs"\nrows = 60\nparties = 2\n'
    job = '[model]\nname = "logistic"\n[train]\nrounds = 1\n'
    (tmp_path / "job.toml").write_text(f"[data]\n{fed}{job}")
    assert said(capsys, "run", str(tmp_path / "job.toml"), "--out", str(tmp_path / "run"), "--quiet")[0] == 0
    (tmp_path / "run" / "job.toml").write_text(f'[data]\nlabel = "sick"\nnumbers = ["age"]\n{job}')
    code, text = said(capsys, "audit", str(tmp_path / "run"), "--quiet")
    assert code == 2
    assert "is a run between real parties, whose rows are not here" in text


def test_an_attack_that_does_not_apply_is_said_and_does_not_refuse(table_run):
    assert not takes_gradient_steps(table_run.origin)
    found = audit.release(table_run, budget=4.0)
    (missing,) = [f for f in found.findings if f.adversary == "the server" and "rounds" not in f.attack]
    assert missing.verdict == "does not apply"
    assert "rebuilt" not in found.untested
    assert found.passed, str(found)
    assert "Not tried: rebuilding of rows from updates" in found.headline()
    assert "is not known" in found.headline()
    done = [f.attack for f in found.findings if f.value is not None]
    assert {"model extraction", "attribute inference: age", "model inversion"} <= set(done)


def test_train_audits_its_result_and_the_report_says_so(fed, tmp_path):
    terms = {"name": "audited", "budget": 1, "rebuilt": 0.5}
    run = tacit.train(fed, **OPTIONS, guard=HIDDEN, out=tmp_path / "run", release=terms)
    assert run.audited.passed
    check_released(tmp_path / "run")
    text = run.report().read_text(encoding="utf-8")
    assert "Attacks before release" in text
    assert "attacks within their limits; no proof" in text
    assert "What stops it" in text


def test_a_model_that_train_refused_is_not_exported(tmp_path):
    rows = load_digits()
    fed = data.from_arrays(rows.data[:40] / 16, rows.target[:40], test_fraction=0.5).split(
        20, held_fraction=0
    )
    run = tacit.train(
        fed,
        model=models.MLP(hidden=(32,)),
        algorithm=algorithms.FedAvg(lr=0.1),
        rounds=1,
        batch_size=None,
        release={"name": "audited", "budget": 1, "membership": "none", "members": "none"},
    )
    assert not run.audited.passed
    with pytest.raises(ReleaseRefused, match="exceeded the limit"):
        run.export(tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
    assert "refused" in run.report(tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_verdict_is_about_one_model(fed, tmp_path):
    """A model that is trained further, or exchanged, after its audit is not released by it."""
    run = tacit.train(
        fed, **OPTIONS, guard=HIDDEN, out=tmp_path / "run", release={"name": "audited", "budget": 1}
    )
    assert run.audited.passed
    file = tmp_path / "run" / "model.safetensors"
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(ReleaseRefused, match="its model changed after the audit"):
        check_released(tmp_path / "run")
