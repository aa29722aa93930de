"""tacit stats as users type it: real parties through a hub, killed and restarted, and all files at hand."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pandas as pd
import pytest

import tacit
from tests.cli.shell import Role, answer, provision, refused, run
from tests.stats.tables import heart, pooled

CLIENTS = ("cleveland", "hungarian", "va")
JOB = """
[stats]
numbers = ["age", "chol"]
categories = { sex = [0, 1], disease = ["no", "yes"] }
by = "disease"
"""
PARTIES = "[parties]\n" + "".join(f'{n} = "{n}.csv"\n' for n in CLIENTS)
FREQUENT = '[stats]\ncolumn = "code"\nmin_count = 5\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in CLIENTS:
        frame = heart()[name][["age", "chol", "sex", "disease"]]
        frame.assign(code="a long common prefix " + frame["disease"]).to_csv(f"{name}.csv", index=False)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "here.toml").write_text(JOB + PARTIES)
    (tmp_path / "codes.toml").write_text(FREQUENT)
    return tmp_path


def expected() -> pd.DataFrame:
    frames = {n: heart()[n] for n in CLIENTS}
    return tacit.stats.describe(
        frames, ["age", "chol", "sex"], by="disease", categories={"sex": [0, 1], "disease": ["no", "yes"]}
    ).table1()


def start(
    place: Path, name: str, job: str, query: str = "describe", *more: str, dies_at: str | None = None
) -> Role:
    data = () if name == "server" else ("--data", f"{name}.csv")
    return Role(place, name, "stats", query, job, "--kit", f"kits/{name}", *data, *more, dies_at=dies_at)


def read(role: Role) -> dict:
    text = role.log.read_text()
    return json.loads(text[text.index("{\n") :])


def test_three_real_parties_compute_the_table_of_the_pooled_rows(place: Path) -> None:
    provision(*CLIENTS)
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        roles = [start(place, n, "job.toml", "describe", "--json") for n in ("server", *CLIENTS)]
        assert [role.wait() for role in roles] == [0] * 4, [role.log.read_text() for role in roles]
        table = pd.DataFrame(read(roles[0])["table_1"]).set_index("")
        assert table.to_dict() == expected().to_dict()
        ledger = read(roles[0])["ledger"]
        kinds = {line["kind"] for line in ledger["seen"] if line["party"] == "server"}
        assert "MaskedVector" in kinds
        assert read(roles[1])["answered"] == 4

        # the same query again is answered from what was kept; one patient less is refused
        again = [start(place, "server", "job.toml", "describe", "--json", "--state", "fresh")]
        again += [start(place, n, "job.toml", "describe", "--json") for n in CLIENTS]
        assert [role.wait() for role in again] == [0] * 4, [role.log.read_text() for role in again]
        assert read(again[0])["table_1"] == read(roles[0])["table_1"]
        lines = (place / "va.csv").read_text().splitlines()
        (place / "va.csv").write_text("\n".join(lines[:-1]) + "\n")
        (place / "job2.toml").write_text(JOB + '[data]\nedition = "2"\n')
        third = [start(place, n, "job2.toml") for n in ("server", *CLIENTS)]
        assert [role.wait() for role in third] == [2] * 4
        assert "differ from those of an earlier one by 1 people" in third[3].log.read_text()
        assert "1 people" not in third[0].log.read_text()
        assert "'va'" in third[0].log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()


def test_real_parties_fit_models_of_their_sites(place: Path) -> None:
    """Two models under one contract; every party knows its own place by its kit. A line of totals below the
    rows of each file is left out.
    """
    provision(*CLIENTS)
    totals = '[data]\ndrop_rows = { age = ["Total"] }\n'
    (place / "meta.toml").write_text(
        '[stats]\nformula = "sick ~ age"\nopen_sites = true\neffects = "fixed"\nlevels = {}\n' + totals
    )
    frames = {}
    for name in CLIENTS:
        frames[name] = heart()[name][["age"]].assign(sick=(heart()[name]["disease"] == "yes").astype(int))
        (place / f"{name}.csv").write_text(frames[name].to_csv(index=False) + f"Total,{len(frames[name])}\n")
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        roles = [start(place, n, "meta.toml", "meta", "--json") for n in ("server", *CLIENTS)]
        assert [role.wait() for role in roles] == [0] * 4, [role.log.read_text() for role in roles]
        (place / "site.toml").write_text('[stats]\nformula = "sick ~ age + C(site)"\n' + totals)
        fixed = [start(place, n, "site.toml", "glm", "--json") for n in ("server", *CLIENTS)]
        assert [role.wait() for role in fixed] == [0] * 4, [role.log.read_text() for role in fixed]
    finally:
        hub.process.terminate()
        hub.wait()
    twin = tacit.stats.meta(frames, "sick ~ age", open_sites=True, effects="fixed")
    found = read(roles[0])
    assert found == json.loads(json.dumps(twin.to_dict())) | {"ledger": found["ledger"]}
    twin, found = tacit.stats.glm(frames, "sick ~ age + C(site)"), read(fixed[0])
    assert found == json.loads(json.dumps(twin.to_dict())) | {"ledger": found["ledger"]}


def test_a_killed_party_and_a_killed_server_go_on_where_they_stopped(place: Path) -> None:
    provision(*CLIENTS)
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        deaths = {"va": "step 2 of", "server": "step 6 of"}
        roles = {
            n: start(place, n, "codes.toml", "heavy-hitters", dies_at=deaths.get(n))
            for n in ("server", *CLIENTS)
        }
        for name in deaths:
            roles[name].wait_for_death()
            roles[name] = start(place, name, "codes.toml", "heavy-hitters")
        assert [role.wait() for role in roles.values()] == [0] * 4, [
            r.log.read_text() for r in roles.values()
        ]
        counts = pooled({n: heart()[n] for n in CLIENTS})["disease"].value_counts()
        log = roles["server"].log.read_text()
        for value, count in counts.items():
            assert f"a long common prefix {value}" in log
            assert str(count) in log
    finally:
        hub.process.terminate()
        hub.wait()


def test_a_party_answers_only_the_job_file_its_owner_agreed_to(place: Path) -> None:
    provision(*CLIENTS)
    (place / "other.toml").write_text(JOB.replace('"chol"', '"chol", "trestbps"'))
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        roles = [start(place, "server", "other.toml")] + [start(place, n, "job.toml") for n in CLIENTS]
        assert [role.wait() for role in roles] == [2] * 4
        logs = [role.log.read_text() for role in roles[1:]]  # the first to refuse ends it for all
        assert any("not the agreed one" in log and "trestbps" in log for log in logs)
        assert not any("step 1 of" in log for log in logs)
        assert "it has not agreed to this query" in roles[0].log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()


def test_all_files_here(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = answer(capsys, "stats", "describe", "here.toml", "--out", "report.html")
    assert pd.DataFrame(value["table_1"]).set_index("").to_dict() == expected().to_dict()
    assert "age, mean (SD)" in (place / "report.html").read_text()
    code, out, _ = run(capsys, "stats", "describe", "here.toml")
    assert code == 0
    assert "age, mean (SD)" in out


@pytest.mark.parametrize(
    ("query", "lines", "proposed"),
    [
        ("describe", 'numbers = ["age"]\nby = "disease"', 'categories = { disease = ["a", "b"] }'),
        (
            "describe",
            'numbers = ["age"]\nby = "Aff\u00e4re 1"',
            'categories = { "Aff\u00e4re 1" = ["a", "b"] }',
        ),
        ("describe", "", 'categories = { sex = ["f", "m"] }'),
        ("describe", 'numbers = ["chol 1"]\nepsilon = 1.0', 'bounds = { "chol 1" = [0, 120] }'),
        ("glm", 'formula = "disease ~ age"\nepsilon = 1.0\nbounds = {}', "bounds = { age = [0, 120] }"),
        ("glm", 'formula = "age ~ many"', 'levels = { many = ["a", "b"] }'),
    ],
)
def test_what_an_error_proposes_can_be_pasted_into_the_job(
    place: Path, capsys: pytest.CaptureFixture[str], query: str, lines: str, proposed: str
) -> None:
    """Before: keys without quotes, which TOML refuses, and lines of Python."""
    for name in CLIENTS:
        frame = pd.read_csv(f"{name}.csv")
        frame.assign(many=[f"v{i}" for i in range(len(frame))]).to_csv(f"{name}.csv", index=False)
    (place / "q.toml").write_text(f"[stats]\n{lines}\n{PARTIES}")
    assert proposed in refused(capsys, "stats", query, "q.toml")
    assert tomllib.loads(proposed)


@pytest.mark.parametrize("ending", ["csv", "html", "tex"])
def test_out_is_checked_before_a_sum_is_opened(
    place: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    """Before: an internal error for a missing folder (.csv), or a new folder (.html); files were replaced."""
    ask = ("stats", "describe", "here.toml", "--out")
    err = refused(capsys, *ask, f"none/t.{ending}")
    assert f"none/t.{ending} cannot be written: none is not a writable directory" in err
    assert not (place / "none").exists()
    mine = place / f"t.{ending}"
    mine.write_text("mine")
    assert f"t.{ending} already exists. Choose another name, or pass --force" in refused(
        capsys, *ask, mine.name
    )
    assert mine.read_text() == "mine"
    assert run(capsys, *ask, mine.name, "--force")[0] == 0
    assert mine.read_text() != "mine"


def test_a_table_of_the_job_is_not_overwritten(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (place / "va.csv").read_bytes()
    err = refused(capsys, "stats", "describe", "here.toml", "--out", "va.csv", "--force")
    assert "va.csv is the input table, which is never overwritten" in err
    assert (place / "va.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("query", "job", "column"),
    [
        ("quantile", 'column = "age"\nq = [0.5, 0.9]', "value"),
        ("histogram", 'column = "age"\nbounds = [20, 80]\nbins = 6', "n"),
        (
            "crosstab",
            'rows = "sex"\ncolumns = "disease"\ncategories = { sex = [0, 1], disease = ["no", "yes"] }',
            "no",
        ),
        ("correlation", 'numbers = ["age", "chol"]', "chol"),
        (
            "mann-whitney",
            'column = "age"\nby = "disease"\ncategories = { disease = ["no", "yes"] }\nbounds = [0, 120]\nbins = 120',
            "n",
        ),
    ],
)
def test_every_query_has_its_python_twin(
    place: Path, capsys: pytest.CaptureFixture[str], query: str, job: str, column: str
) -> None:
    frames = {n: heart()[n] for n in CLIENTS}
    twins = {
        "quantile": lambda: tacit.stats.quantile(frames, "age", [0.5, 0.9]),
        "histogram": lambda: tacit.stats.histogram(frames, "age", (20, 80), 6),
        "crosstab": lambda: tacit.stats.crosstab(frames, "sex", "disease"),
        "correlation": lambda: tacit.stats.correlation(frames, ["age", "chol"]),
        "mann-whitney": lambda: tacit.stats.mann_whitney(frames, "age", "disease", (0, 120), 120),
    }
    (place / "q.toml").write_text(f"[stats]\n{job}\n{PARTIES}")
    value = answer(capsys, "stats", query, "q.toml")
    twin = twins[query]()
    assert value["rows_of_table"]
    assert value == json.loads(json.dumps(twin.to_dict())) | {"ledger": value["ledger"]}
    assert column in value["rows_of_table"][0]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("[stats]\nnumbers = 3\nbye = 1\n", "has no key 'bye'"),
        ('[stats]\nnumbers = ["age"]\nby = "disease"\n', "the levels of 'disease' are not declared"),
        ("[stats]\n", "nothing to describe"),
        ('[stats]\nnumbers = ["age"]\nepsilon = 1.0\n', "the range of 'age' too"),
        ('[stats]\nnumbers = ["age"]\n', "[parties] names 0 of them"),
    ],
)
def test_bad_job_files_are_refused(
    place: Path, capsys: pytest.CaptureFixture[str], job: str, message: str
) -> None:
    text = job if "age" in job and "epsilon" not in job and "by" not in job else job + PARTIES
    (place / "bad.toml").write_text(text)
    assert message in refused(capsys, "stats", "describe", "bad.toml")
