"""Real parties whose rows belong to people, with noisy statistics and small sites, as users start them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.accounting.account_file import AccountFile
from tacit.data.pipeline import PipelinePreparation
from tacit.jobs.train.party_rows import read_party_table
from tacit.protocols.sum_program import ideal
from tests.cli.shell import Role, provision, said

JOB = """
[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age"]
categories = { ward = ["1", "2", "other"] }
group = "patient"
[model]
name = "logistic"
[algorithm]
name = "FedAvg"
lr = 0.2
[train]
rounds = 2
metric = "auc"
"""
NOISY = (
    JOB.replace("[model]", "fit_epsilon = 1.0\nbounds = { age = [0, 120] }\n[model]")
    + '[private]\nepsilon = 4.0\ndelta = 1e-3\naccountant = "rdp"\n'
)
SMALL = JOB.replace("[model]", 'min_rows = 30\nsmall = "drop"\n[model]')


def write_wards(folder: Path, sizes: dict[str, int]) -> None:
    """Clinics whose patients have three visits each."""
    for k, (name, people) in enumerate(sizes.items()):
        rng = np.random.default_rng(k)
        age = np.repeat(rng.normal(40 + 5 * k, 10, people), 3)
        pd.DataFrame(
            {
                "patient": np.repeat([f"{name}{i}" for i in range(people)], 3),
                "age": age.round(),
                "ward": rng.choice(["1", "2"], 3 * people),
                "sick": np.where(age + rng.normal(0, 5, 3 * people) > 45, "yes", "no"),
            }
        ).to_csv(folder / f"{name}.csv", index=False)


def run(place: Path, *names: str) -> tuple[Role, list[Role]]:
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [
            Role(place, n, "party", "--kit", f"kits/{n}", "--data", f"{n}.csv", "job.toml") for n in names
        ]
        codes = [role.wait() for role in (server, *clients)]
        assert codes == [0] * len(codes), server.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    return server, clients


def ledger(folder: Path) -> Any:
    return json.loads((folder / "ledger.json").read_text())


def test_noise_covers_people_in_statistics_and_training_and_each_party_pays_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    provision("a", "b")
    (tmp_path / "job.toml").write_text(NOISY)
    write_wards(tmp_path, {"a": 60, "b": 50})
    code, text = said(capsys, "plan", "job.toml")
    assert code == 0, text
    assert "1 sum over the training rows of all parties" in text
    assert "with noise of every party: ε = 1 at δ = 1e-06 for each person" in text
    assert "ε = 4 at δ = 0.001 (budget 4) for each person of any party, present or not" in text
    _, clients = run(tmp_path, "a", "b")
    for name, client in zip("ab", clients):
        state = tmp_path / "kits" / name / "state"
        spent = {line["unit"]: line["epsilon"] for line in ledger(state)["spent"]}
        assert set(spent) == {
            f"person of {name}, present or not",
            "one person, with all their rows at a party",
        }
        assert spent["one person, with all their rows at a party"] == 1.0
        account = AccountFile(state / "spent.jsonl")
        account.refresh()
        keys = [line.key for line in account.lines]
        assert sum(str(key).endswith(" preparation") for key in keys) == 1
        log = client.log.read_text()
        assert "ε = 1 at δ = 1e-06 for each person" in log  # of the contract
        assert "for each person with all their training rows there" in log
        assert tacit.load(state / "model").pipeline == tacit.load(tmp_path / "run").pipeline
    units = [line["unit"] for line in ledger(tmp_path / "run")["spent"]]
    assert sorted(units) == [
        "one person, with all their rows at a party",
        *(f"person of {name}, present or not" for name in "ab"),
    ]
    assert ledger(tmp_path / "run")["stamps"] == []
    recipe = tacit.load(tmp_path / "run").pipeline.recipe
    assert recipe.limits == {"age": (0.0, 120.0)}


def test_a_small_site_contributes_nothing_and_gets_the_model_that_the_others_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("a", "b", "c", "d")
    provision(*names)
    (tmp_path / "job.toml").write_text(SMALL)
    write_wards(tmp_path, {"a": 40, "b": 30, "c": 30, "d": 9})
    code, text = said(capsys, "plan", "job.toml", "--parties", "4")
    assert code == 0, text
    assert "the server sees: which parties have fewer than 30 rows (min_rows), and not how many" in text
    _, text = said(capsys, "party", "--kit", "kits/d", "--data", "d.csv", "--check", "job.toml")
    assert "✓ d.csv has fewer than 30 rows (min_rows): this party will contribute none" in text
    server, clients = run(tmp_path, *names)
    assert "'d' has fewer than 30 rows (min_rows): it takes part in no round" in server.log.read_text()
    log = clients[3].log.read_text()
    assert "party 'd' has fewer rows than the 30 that the parties agreed on" in log
    assert "d answered 0 of 2 rounds and 0 evaluations; it has fewer rows than agreed" in log
    layout = tomllib.loads(SMALL)["data"]
    tables = {n: read_party_table(n, tmp_path / f"{n}.csv", layout, 0) for n in names}
    others = {n: table.training_rows for n, table in tables.items() if n != "d"}
    expected = ideal(PipelinePreparation(tables["a"].agreed.pipeline), others)
    for folder in (tmp_path / "run", *(tmp_path / "kits" / n / "state" / "model" for n in names)):
        assert tacit.load(folder).pipeline == expected  # to the bit: d's rows are in no sum
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["sampled"] for e in events if e["kind"] == "round" and e["round"]] == [3, 3]
    seen = [line for line in ledger(tmp_path / "run")["seen"] if line["sender"] == "d"]
    assert not {"Upload", "Tested"} & {line["kind"] for line in seen}
    assert "all parties together: AUC " in clients[0].log.read_text()  # the metric that the job asks for


def test_too_few_parties_are_left_without_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    provision("a", "b", "c")
    (tmp_path / "job.toml").write_text(SMALL)
    write_wards(tmp_path, {"a": 40, "b": 30, "c": 9})
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(tmp_path, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [
            Role(tmp_path, n, "party", "--kit", f"kits/{n}", "--data", f"{n}.csv", "job.toml") for n in "abc"
        ]
        assert [role.wait() for role in (server, *clients)] == [2] * 4, server.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    why = "2 of 3 parties are left, of 3 that are needed: a sum over two would show each of them"
    assert all(why in role.log.read_text() for role in (server, *clients))
    assert not list((tmp_path / "kits" / "a" / "state").glob("sums-*/*"))  # nothing was summed
