"""The section about attacks: from a file that anybody may have written."""

from __future__ import annotations

import json

import pytest

import tacit
from tacit import algorithms, data, models
from tacit.errors import BadRun
from tacit.report.page import render
from tacit.report.records import read


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    fed = data.gaussian_blobs(rows=60, seed=0).split(2, seed=0)
    tacit.train(fed, model=models.Logistic(), algorithm=algorithms.FedAvg(lr=0.1), rounds=1, out=folder)
    return folder


def page(run, audit):
    (run / "audit.json").write_text(audit if isinstance(audit, str) else json.dumps(audit), encoding="utf-8")
    return render(*read(run))


def test_markup_in_a_record_is_text(run):
    """Whoever writes audit.json can neither run a script nor forge a figure."""
    evil = "<script>alert(1)</script>"
    finding = dict.fromkeys(("adversary", "attack", "could", "did", "stops", "verdict"), evil)
    text = page(run, {"passed": True, "headline": evil, "findings": [finding | {"value": evil, "limit": []}]})
    assert evil not in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.mark.parametrize("audit", ["{", "[]", '{"findings": 1}', '{"findings": [1]}', "[" * 100_000])
def test_a_damaged_record_names_its_file(run, audit):
    with pytest.raises(BadRun, match=r"audit\.json"):
        page(run, audit)


def test_a_verdict_that_is_not_true_is_a_refusal(run):
    """Only `true` passes; a text or a number is not an approval."""
    for passed in ("yes", 1, None):
        text = page(run, {"passed": passed, "findings": []})
        assert "refused" in text
        assert "REFUSED" in text


def test_the_table_of_attacks_has_the_value_of_each_limit(run):
    """The name of the limit once stood in the record in place of its value, and the page had a dash."""
    fed = data.gaussian_blobs(rows=60, seed=0).split(2, seed=0)
    done = tacit.train(fed, model=models.Logistic(), algorithm=algorithms.FedAvg(lr=0.1), rounds=1)
    found = tacit.audit.release(done, budget=1, limits={"membership": 0.77, "rebuilt": None})
    record = found.to_dict()
    named = {f["attack"]: (f["limit"], f["limit_name"]) for f in record["findings"]}
    assert named["membership by loss"] == (0.77, "membership")
    assert "<td>0.77</td>" in page(run, record).replace(' class="number"', "")


def test_a_run_without_an_audit_has_no_section(run):
    (run / "audit.json").unlink(missing_ok=True)
    assert "Attacks before release" not in render(*read(run))
