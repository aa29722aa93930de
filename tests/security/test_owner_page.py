"""What the page of `tacit ui` lets an owner approve: what the owner can read there, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tacit.errors import TacitError
from tacit.jobs.owner import Owner, Request
from tacit.jobs.train import deployed
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.contract_request import request_of
from tacit.jobs.train.elsewhere import Deployed
from tacit.jobs.train.plan import make_plan
from tacit.ui.federation_page import MOST_TEXT, Federation


def ask(kit: Path, letters: int) -> tuple[Federation, Owner, str]:
    """A job whose column names push its guard out of the text that a page shows."""
    (kit / "policy.toml").write_text("[jobs]\napproval = true\n")
    owner = Owner(kit, "a")
    tables = {"data": {"inputs": ["x" * letters]}, "guard": "no-guard-at-all"}
    request = Request("party", ("s",), ("a", "b"), json.dumps(tables, sort_keys=True), "a job")
    assert not owner.ask(request)
    return Federation(SimpleNamespace(directory=kit, name="a", role="client"), True), owner, request.digest  # type: ignore[arg-type]


def test_a_job_that_the_page_does_not_show_in_full_is_not_approved_there(tmp_path: Path) -> None:
    page, owner, job = ask(tmp_path, MOST_TEXT)
    body = page._requests("/t", owner).body
    assert "no-guard-at-all" not in body  # as a server would like it
    assert "all of job" not in body
    assert "so it is not approved here. Read all of it with `tacit party requests" in body
    assert 'value="approved"' not in body
    with pytest.raises(TacitError, match="this page shows the first 20,000, so it is not approved here"):
        page.decide(job, "approved", "Ada", "")
    assert owner.decisions() == {}
    assert 'value="denied"' in body
    page.decide(job, "denied", "Ada", "")  # nothing needs to be read for that
    assert owner.decisions() == {job: "denied"}


def test_a_job_that_the_page_shows_in_full_is_approved_there(tmp_path: Path) -> None:
    page, owner, job = ask(tmp_path, 100)
    body = page._requests("/t", owner).body
    assert "no-guard-at-all" in body
    assert f"all of job {job[:12]}" in body
    assert 'value="approved"' in body
    page.decide(job, "approved", "Ada", "")
    assert owner.decisions() == {job: "approved"}


def test_a_column_cannot_look_like_another_part_of_what_the_owner_decides_by(tmp_path: Path) -> None:
    """The page shows columns and ε in large letters, and the rest in small ones."""
    job = tmp_path / "job.toml"
    job.write_text(
        '[data]\nnumbers = ["age; ε at most 0.1; FedAvg", "blood pressure (mm)", "größe"]\nlabel = "sick"\n'
        'labels = ["0", "1"]\nfit = "none"\n[model]\nname = "logistic"\n[train]\nrounds = 3\n',
        encoding="utf-8",
    )
    layout, told = deployed.read(job)
    kit = SimpleNamespace(federation="f", parties=("a", "b", "s"), server="s")
    fed = deployed.federation(kit, layout, told)  # type: ignore[arg-type]
    layout = deployed.layout_of(layout, told)
    contract = Contract.of(make_plan(fed, **told, runtime=Deployed(None, layout)), layout, "s", [3])
    request = request_of(contract, Contract.read(contract.text).plan(), None)
    assert request.columns == ("age; ε at most 0.1; FedAvg", "blood pressure (mm)", "größe", "sick")
    assert request.about.split("; ")[:2] == [
        r"train on columns 'age\x3b \u03b5 at most 0.1\x3b FedAvg', blood pressure (mm), größe, sick",
        "no ε that this party accounts for",
    ]
