"""Audits of what is not a run: synthetic tables, boosted trees, split networks; and of files."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import audit, boost, synth
from tacit.config.audit import AuditLimits
from tacit.errors import BadData, BadParameter, BadRun
from tacit.jobs.audit.findings import Finding, ReleaseAudit
from tacit.parties.ledger import Ledger
from tests.cli.shell import answer, run


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 80, 400), "pulse": rng.normal(70, 10, 400).round(1)})
    frame["ill"] = np.where(rng.random(400) < 0.5, "y", "n")  # no column tells it: trees must memorize
    return frame


def test_copied_rows_are_refused_and_a_generator_passes(people):
    train, unseen = people[:200].reset_index(drop=True), people[200:].reset_index(drop=True)
    copied = audit.release(train, original=train, holdout=unseen, budget=2)
    assert not copied.passed
    generator = synth.Independent().fit(train)
    made = generator.sample(200, seed=1)
    safe = audit.release(made, original=train, holdout=unseen, generator=generator, budget=30)
    assert safe.passed, str(safe)
    assert any("shadow fits" in f.attack and f.value is not None for f in safe.findings)


def test_a_synthetic_table_without_its_generator_says_what_was_not_tried(people):
    train, unseen = people[:200].reset_index(drop=True), people[200:].reset_index(drop=True)
    made = synth.Independent().fit(train).sample(200, seed=1)
    found = audit.release(made, original=train, holdout=unseen, budget=2)
    assert "Not tried: membership by shadow fits" in found.headline()


def test_trees_that_memorize_are_refused_and_shallow_ones_pass(people):
    """Labels at random: whatever deep trees know of them is about members."""
    train, unseen = people[:200].reset_index(drop=True), people[200:].reset_index(drop=True)
    parties = {"a": train[:100], "b": train[100:]}
    deep = boost.train(parties, label="ill", trees=30, depth=6, learning_rate=0.5)
    refused = audit.release(deep, original=train, holdout=unseen)
    assert not refused.passed
    assert refused.findings[0].value > 0.7
    shallow = boost.train(parties, label="ill", trees=1, depth=1)
    assert audit.release(shallow, original=train, holdout=unseen).passed


def test_trees_of_several_parties_are_as_safe_as_those_of_pooled_rows(people, tmp_path, capsys):
    """The joint trees are those of pooled rows, so the same attack gets the same AUC; from files, too."""
    terms = {"label": "ill", "trees": 20, "depth": 4, "learning_rate": 0.5, "min_rows": 5, "bins": 32}
    whole = people.assign(id=[f"P{k:03d}" for k in range(400)])
    clinic, lab = whole[["id", "age", "ill"]], whole[["id", "pulse"]].sample(frac=1, random_state=0)
    joint = boost.train({"clinic": clinic[:200], "lab": lab[lab.id < "P200"]}, on="id", **terms)
    original, holdout = {"clinic": clinic[:200], "lab": lab}, {"clinic": clinic[200:], "lab": lab}
    found = audit.release(joint, original=original, holdout=holdout)
    pooled = boost.train({"all": people[:200]}, **terms)
    alike = audit.release(pooled, original=people[:200], holdout=people[200:].reset_index(drop=True))
    assert found.findings[0].value == pytest.approx(alike.findings[0].value, abs=1e-9)
    assert found.findings[0].value > 0.65
    assert not found.passed
    assert found.findings[0].adversary == "whoever gets the scores"
    joint.save(tmp_path / "parts")
    files = []
    for option, tables in (("--original", original), ("--holdout", holdout)):
        for name, table in tables.items():
            table.to_csv(tmp_path / f"{name}{option}.csv", index=False)
            files += [option, f"{name}={tmp_path / f'{name}{option}.csv'}"]
    code, out, _ = run(capsys, "audit", str(tmp_path / "parts"), *files, "--json", "--quiet")
    assert code == 2
    assert json.loads(out)["findings"][0]["value"] == pytest.approx(alike.findings[0].value, abs=1e-9)
    with pytest.raises(BadParameter, match="the rows of all of them"):
        audit.release(joint, original=clinic, holdout=clinic)
    with pytest.raises(BadData, match="no table of 'lab'"):
        audit.release(joint, original=original, holdout={"clinic": clinic})
    with pytest.raises(BadData, match="no table of 'clinic' with 'id' and 'ill'"):
        audit.release(joint, original=original, holdout={**holdout, "clinic": clinic[["id", "age"]]})
    with pytest.raises(BadData, match="no person in common"):
        audit.release(joint, original=original, holdout={"clinic": clinic[:50], "lab": lab[lab.id > "P200"]})
    with pytest.raises(BadParameter, match="is one table, not one for each party"):
        audit.release(pooled, original=original, holdout=holdout)
    code, _, err = run(capsys, "audit", str(tmp_path / "parts"), *files[:2], "--original", "lab.csv")
    assert (code, "is not a file of one more party" in err) == (2, True)


def test_a_split_network_is_audited_and_read_from_its_folder(tmp_path):
    """The label holder's network gives labels away by the norm of gradients; noise at the cut is not there."""
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    y = (x[:, 0] > 1.2).long()  # rare: the norm of a gradient tells it
    run = tacit.splitnn(
        {"clinic": x}, {"lab": y}, configuration="vanilla", epochs=3, width=8, lr=0.2, patience=0
    )
    rows, label = {"clinic": x[:100]}, y[:100]
    strict = audit.release(run, rows=rows, y=label, own={"clinic": x[100:]}, limits={"labels": 0.5})
    assert not strict.passed
    assert {f.attack for f in strict.findings} >= {"labels from gradients", "rebuilding of rows of clinic"}
    run.save(tmp_path / "parts")
    again = audit.release(tmp_path / "parts", rows=rows, y=label, limits={"labels": 0.5})
    assert again.findings[0].value == pytest.approx(strict.findings[0].value)
    with pytest.raises(BadParameter, match="attacked with rows of all parties"):
        audit.release(run)
    half = audit.release(run, rows=rows, y=label, limits={"labels": 1.0, "rebuilt": 1.0})
    assert half.untested == ["rebuilt"]  # without rows of the attacker's own nothing was rebuilt
    assert not half.passed
    assert "own={party: rows}" in half.headline()
    neither = audit.release(run, rows=rows, limits={"labels": 1.0, "rebuilt": 1.0})
    assert neither.untested == ["labels", "rebuilt"]
    assert "y= was not given" in neither.headline()


def test_what_tested_nothing_does_not_pass():
    """NaN is below every limit, and an audit without attacks exceeds none."""
    limits = AuditLimits(membership=0.6)
    empty = ReleaseAudit([], 1.0, limits, Ledger())
    assert not empty.passed
    assert empty.headline() == "REFUSED: no attack was run, so nothing is known."
    found = Finding(
        "a reader", "membership", "", "AUC nan", "", math.nan, 0.6, details={"limit_name": "membership"}
    )
    broken = ReleaseAudit([found], 1.0, limits, Ledger())
    assert (broken.untested, broken.passed, found.verdict) == (["membership"], False, "not run")
    found.value = 0.55
    assert ReleaseAudit([found], 1.0, limits, Ledger()).passed


def test_a_synthetic_table_without_an_attack_on_members_does_not_pass(people, monkeypatch):
    train, unseen = people[:200].reset_index(drop=True), people[200:].reset_index(drop=True)
    made = synth.Independent().fit(train).sample(200, seed=1)
    scores = synth.evaluate(train, made, unseen)
    scores.scores[:] = [replace(s, value=math.nan) if "members" in s.name else s for s in scores.scores]
    monkeypatch.setattr(synth, "evaluate", lambda *args, **more: scores)
    found = audit.release(made, original=train, holdout=unseen, budget=2)
    assert found.untested == ["membership"]
    assert not found.passed


def test_the_command_audits_files(people, tmp_path, capsys):
    people.to_csv(tmp_path / "before.csv", index=False)
    people.assign(age=people["age"] // 20 * 20).drop(columns="pulse").to_csv(
        tmp_path / "after.csv", index=False
    )
    people.assign(age=people["age"] // 20 * 20).to_csv(tmp_path / "rounded.csv", index=False)
    got = answer(
        capsys,
        *("audit", str(tmp_path / "after.csv"), "--original", str(tmp_path / "rounded.csv")),
        *("--quasi", "age", "--json", "--quiet"),
    )
    assert got["passed"]
    assert (tmp_path / "after.csv.audit.html").is_file()
    assert not (tmp_path / "audit.json").exists()


def test_what_does_not_belong_together_is_refused(people, tmp_path):
    with pytest.raises(BadParameter, match="label= does not belong to: anonymized table"):
        audit.release(people, original=people, quasi=["age"], label="ill")
    with pytest.raises(BadParameter, match="Give original= and holdout="):
        audit.release(people, holdout=people)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadRun, match="is not a result"):
        audit.release(tmp_path / "notes.txt")


def test_few_others_do_not_test_the_limit_of_members_and_it_is_said(people):
    train = people[:200].reset_index(drop=True)
    trees = boost.train({"a": train[:100], "b": train[100:]}, label="ill", trees=2, depth=1)
    for rows, said in ((99, True), (100, False)):
        found = audit.release(trees, original=train, holdout=people[200 : 200 + rows], budget=2)
        assert ("the limit members was not tested" in found.findings[0].did) == said
