"""tacit link, as a user types it: two organizations and a helper here, and each with its own kit over a hub."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.shell import finish, provision, said

from ..linkage.people import FIELDS, make_tables
from .test_split import start

JOB = """
[link]
threshold = 0.9
[link.fields]
given = "name"
surname = "name"
street = "text"
postcode = "code"
born = "date"
[parties.clinic]
file = "clinic.csv"
[parties.registry]
file = "registry.csv"
columns = {surname = "last_name"}
[parties.notary]
helper = true
"""
NAMES = ("clinic", "registry", "notary")


@pytest.fixture
def truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    monkeypatch.chdir(tmp_path)
    left, right, pairs = make_tables(60, 30)
    left.assign(code="007", note="NA").to_csv("clinic.csv", index=False)
    right.rename(columns={"surname": "last_name"}).to_csv("registry.csv", index=False, sep=";")
    Path("job.toml").write_text(JOB)
    return pairs


def check_rows(clinic: str, registry: str, truth: dict[int, int]) -> None:
    """Row k of both files is one person, with all columns as they were written."""
    left = pd.read_csv(f"{clinic}/linked.csv", dtype=str, keep_default_na=False)
    right = pd.read_csv(f"{registry}/linked.csv", dtype=str, keep_default_na=False, sep=";")
    i, j = (json.loads(Path(f"{place}/part.json").read_text())["rows"] for place in (clinic, registry))
    assert len(left) == len(right) == len(i) == len(j)
    assert sum(truth.get(a) == b for a, b in zip(i, j)) >= 0.95 * len(i) >= 0.8 * len(truth)
    whole = pd.read_csv("clinic.csv", dtype=str, keep_default_na=False)
    assert left.equals(whole.iloc[i].reset_index(drop=True))
    assert list(left.columns) == [*FIELDS, "code", "note"]
    assert "last_name" in right.columns


def test_all_parties_here(truth: dict[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, "link", "job.toml", "--out", "linked", "--json")
    assert code == 0, out
    value = json.loads(out)
    assert value["sizes"] == [90, 90]
    assert value["people"] == len(pd.read_csv("linked/clinic/linked.csv"))
    check_rows("linked/clinic", "linked/registry", truth)
    code, out = said(capsys, "link", "job.toml", "--out", "linked")
    assert (code, "which is never overwritten" in out) == (2, True)
    code, out = said(capsys, "link", "job.toml", "--out", "again")
    assert code == 0
    assert f"people  {value['people']} in both tables" in out


def test_each_with_its_kit_over_a_hub_then_refused_by_a_policy(truth: dict[int, int]) -> None:
    provision(*NAMES)
    hub = start("hub", "--kit", "kits/hub")
    try:
        values = [
            finish(p) for p in [start("link", "job.toml", "--kit", f"kits/{n}", "--json") for n in NAMES]
        ]
        Path("kits/registry/policy.toml").write_text("[link]\nqueries_per_day = 1\n")
        again = [start("link", "job.toml", "--kit", f"kits/{n}", "--out", f"second-{n}") for n in NAMES]
        texts = [p.communicate(timeout=300)[1] for p in again]
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    check_rows("kits/clinic/part", "kits/registry/part", truth)
    assert values[0]["people"] == values[1]["people"]
    assert values[2]["people"] == 0
    assert not Path("kits/notary/part/linked.csv").exists()
    stamps = values[0]["ledger"]["stamps"]
    assert any(s.startswith("SEMI-HONEST: records without a match") for s in stamps)
    assert {line["kind"] for line in values[2]["ledger"]["seen"]} == {"Asked", "LinkSettings"}
    assert all(p.returncode != 0 for p in again)
    assert any("'clinic' has made 1 queries within 24 hours; 1 are allowed" in t for t in texts)
    assert not any(Path(f"second-{n}/part.json").exists() for n in NAMES)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ('fields = ["given", "born"]', "the job compares 'surname', and the policy of this party allows"),
        (
            "min_threshold = 0.95",
            "links records from a probability of 0.9 on, and the policy of this party requires",
        ),
        ("max_block = 16", "compares blocks of up to 32 rows, and the policy of this party allows 16"),
        ("max_blocks = 16", "max_blocks"),
    ],
)
def test_the_owner_refuses_before_anything_is_sent(truth: dict[int, int], policy: str, text: str) -> None:
    from tacit.errors import TacitError
    from tacit.jobs.vertical import link_deployed
    from tacit.jobs.vertical.link_program import check_policy

    Path("kit").mkdir()
    Path("kit/policy.toml").write_text(f"[link]\n{policy}\n")
    job = link_deployed.read("job.toml")
    with pytest.raises(TacitError) as error:
        check_policy(link_deployed.read_policy("kit"), link_deployed._plan(job), {})
    assert text in str(error.value)


def test_the_owner_decides_about_the_fields_and_no_other_column(truth: dict[int, int]) -> None:
    from tacit.jobs.vertical import link_deployed
    from tacit.jobs.vertical.split_deployed import request_of_job
    from tacit.runtimes.kits import load

    provision(*NAMES)
    Path("kits/registry/policy.toml").write_text('[jobs]\ncolumns = ["given"]\n')
    job = link_deployed.read("job.toml")
    request = request_of_job("link", load(Path("kits/registry")), job, link_deployed.read, "registry.csv")
    assert request.columns == ("given", "last_name", "street", "postcode", "born")


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (JOB.replace('born = "date"', 'born = "day"'), "the kind of 'born' is 'day'"),
        (JOB.replace("threshold = 0.9", "threshold = 1.5"), "threshold is 1.5"),
        (
            JOB.replace("helper = true", 'file = "clinic.csv"'),
            "3 parties with tables and 0 with helper = true",
        ),
        (
            JOB.replace('surname = "last_name"', 'surnam = "last_name"'),
            "columns names 'surnam', which is no field",
        ),
        (JOB.replace('{surname = "last_name"}', "{}"), "registry.csv has no column 'surname'"),
        (JOB.replace('file = "clinic.csv"\n', ""), "parties.clinic: file is missing"),
        (JOB.replace("[link]\n", "[link]\nblock = []\n"), "block"),
        (JOB.split("[link.fields]")[0] + "[parties" + JOB.split("[parties", 1)[1], "fields is"),
    ],
)
def test_bad_jobs_write_no_rows(truth, capsys: pytest.CaptureFixture[str], job: str, text: str) -> None:
    Path("job.toml").write_text(job)
    code, out = said(capsys, "link", "job.toml", "--out", "linked")
    assert code == 2, out
    assert text in out
    assert not list(Path().glob("linked/*/linked.csv"))
