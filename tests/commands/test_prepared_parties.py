"""Federated preparation between real parties, as users start them: kits, hub, server and three clients."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit import data
from tacit.data.pipeline import PipelinePreparation
from tacit.jobs.train.networked import FAREWELL
from tacit.jobs.train.party_rows import read_party_table
from tacit.protocols.sum_program import ideal
from tests.cli.shell import Role, provision, said

NAMES = ("a", "b", "c")
JOB = """
[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age", "dose"]
categories = { ward = ["1", "2", "other"] }
missing = ["dose"]
[model]
name = "logistic"
[algorithm]
name = "FedAvg"
lr = 0.2
[train]
rounds = 3
"""


def write_wards(folder: Path, names: tuple[str, ...] = NAMES, rows: int = 120) -> None:
    """Clinics whose patients differ in age, with heavy tails and missing cells in the dose."""
    for k, name in enumerate(names):
        rng = np.random.default_rng(k)
        age, dose = rng.normal(40 + 10 * k, 10, rows), np.exp(rng.normal(3, 2, rows))
        dose[::7] = np.nan
        ward = rng.choice(["1", "2", "3"], rows, p=[0.5, 0.48, 0.02])
        sick = np.where(age + rng.normal(0, 5, rows) > 50, "yes", "no")
        pd.DataFrame({"age": age, "dose": dose, "ward": ward, "sick": sick}).to_csv(
            folder / f"{name}.csv", index=False
        )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    provision(*NAMES)
    (tmp_path / "job.toml").write_text(JOB)
    write_wards(tmp_path)
    return tmp_path


def expected(place: Path, names: tuple[str, ...] = NAMES) -> Any:
    """The ideal function, on the training rows of all parties."""
    layout = tomllib.loads((place / "job.toml").read_text())["data"]
    tables = {name: read_party_table(name, place / f"{name}.csv", layout, 0) for name in names}
    program = PipelinePreparation(tables[names[0]].agreed.pipeline)
    return ideal(program, {name: table.training_rows for name, table in tables.items()})


def start(place: Path, name: str, dies_at: str | None = None) -> Role:
    words = ("party", "--kit", f"kits/{name}", "--data", f"{name}.csv", "job.toml")
    return Role(place, name, *words, dies_at=dies_at)


def test_three_parties_fit_the_pipeline_of_pooled_rows_and_each_keeps_the_model(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [start(place, name) for name in NAMES]
        assert [role.wait() for role in (server, *clients)] == [0] * 4, server.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    fitted = expected(place)
    assert fitted.recipe.limits  # the dose has heavy tails
    whole = tacit.load(place / "run")
    assert whole.pipeline == fitted  # to the bit
    patient = pd.DataFrame({"age": [71.0], "dose": [None], "ward": ["9"]})
    for name, client in zip(NAMES, clients):
        own = tacit.load(place / "kits" / name / "state" / "model")
        assert own.pipeline == fitted
        assert all(
            torch.equal(a, b)
            for a, b in zip(own.model.state_dict().values(), whole.model.state_dict().values())
        )
        pd.testing.assert_frame_equal(own.predict(patient), whole.predict(patient))
        log = client.log.read_text()
        assert "preparing the table with the others: 5 of 5" in log
        assert "all parties together: " in log
        assert f"the model is in kits/{name}/state/model" in log
    code, text = said(capsys, "predict", f"kits/{NAMES[0]}/state/model", "a.csv", "--out", "scored.csv")
    assert code == 0, text
    assert "p(yes)" in pd.read_csv(place / "scored.csv").columns
    seen = json.loads((place / "run" / "ledger.json").read_text())["seen"]
    from_a = {line["kind"] for line in seen if line["party"] == "server" and line["sender"] == "a"}
    assert "MaskedVector" in from_a  # the sums are hidden, although the training has no guard
    assert "Upload" in from_a


def test_a_killed_client_and_a_killed_server_resume_a_preparation(place: Path) -> None:
    """The client dies after its first step, the server after it; nothing is answered twice, and the result is
    the same.
    """
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        a = start(place, "a", dies_at="preparing the table with the others: 1 of 5")
        b, c = start(place, "b"), start(place, "c")
        a.wait_for_death()
        b.wait_for("1 of 5")  # without a, there is no second step
        os.kill(server.process.pid, signal.SIGKILL)
        server.wait()
        a = start(place, "a")
        again = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--resume", "run")
        assert [role.wait() for role in (again, a, b, c)] == [0] * 4, again.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    assert tacit.load(place / "run").pipeline == expected(place)
    for name in NAMES:
        (answers,) = (place / "kits" / name / "state").glob("sums-*.jsonl")
        steps = [json.loads(line)["step"] for line in answers.read_text().splitlines() if '"answer"' in line]
        assert steps == [0, 1, 2, 3, 4]


def test_a_server_killed_after_its_last_round_gives_each_restarted_party_the_model(place: Path) -> None:
    """The whole run is set back to its last saved round, as a server killed then leaves it, and every party is
    started again: the server asks for no round, and sends the model once all have joined.
    """
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    words = ("party", "--kit", "kits/server", "job.toml")
    models = [place / "kits" / name / "state" / "model" for name in NAMES]
    try:
        server = Role(place, "server", *words, "--out", "run")
        clients = [start(place, name) for name in NAMES]
        assert [role.wait() for role in (server, *clients)] == [0] * 4, server.log.read_text()
        whole = tacit.load(place / "run")
        events = (place / "run" / "events.jsonl").read_text().splitlines()
        state = place / "run" / "state" / "state.json"
        saved = json.loads(state.read_text())
        last = max(i for i, line in enumerate(events) if '"kind": "round"' in line)
        state.write_text(json.dumps(saved | {"events": last + 1}))
        (place / "run" / "state" / FAREWELL).unlink()
        for model in models:
            shutil.rmtree(model)
        server = Role(place, "server", *words, "--resume", "run")
        clients = [start(place, name) for name in NAMES]
        assert [role.wait() for role in (server, *clients)] == [0] * 4, server.log.read_text()
        assert (place / "run" / "state" / FAREWELL).exists()
        # set back further, to before the end was written: parties that read Stop are not awaited
        state.write_text(json.dumps(json.loads(state.read_text()) | {"events": last + 1}))
        assert Role(place, "server", *words, "--resume", "run").wait() == 0
    finally:
        hub.process.terminate()
        hub.wait()
    for folder in (place / "run", *models):
        again = tacit.load(folder)
        assert again.pipeline == whole.pipeline
        for k, v in whole.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[k], v)


def test_with_two_parties_the_job_must_allow_the_sums(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a sum of two, each learns the other's part. By default each has statistics of its own."""
    provision("a", "b")
    code, text = said(capsys, "plan", "job.toml", "--kit", "kits/a")
    assert code == 0, text
    assert "Each of the two parties encodes its rows by statistics of its own" in text
    (place / "job.toml").write_text(JOB.replace("[model]", 'fit = "federated"\n[model]'))
    code, text = said(capsys, "plan", "job.toml", "--kit", "kits/a")
    assert "each of them can compute the other's counts, means, deviations and quantiles" in text
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [start(place, name) for name in ("a", "b")]
        assert [role.wait() for role in (server, *clients)] == [0] * 3, server.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    assert tacit.load(place / "run").pipeline == expected(place, ("a", "b"))
    for file in (place / "run" / "ledger.json", place / "kits" / "a" / "state" / "ledger.json"):
        (stamp,) = json.loads(file.read_text())["stamps"]
        assert "each of them can compute the other's counts" in stamp


BALANCED = (
    JOB.split("[algorithm]")[0] + '[train]\nclass_weight = "balanced"\n'
)  # neither an algorithm nor rounds: those of tables


def together(place: Path, fitted: Any) -> data.Federation:
    """The rows of all parties as a simulation has them, held out and encoded alike."""
    layout = tomllib.loads((place / "job.toml").read_text())["data"]
    parts = [read_party_table(name, place / f"{name}.csv", layout, 0).encode(fitted) for name in NAMES]
    sizes = [len(part.rows.y) for part in parts]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    train, held = (
        data.Holdings.from_lists([getattr(part, kind).index + at for part, at in zip(parts, starts)])
        for kind in ("train", "held")
    )
    rows = data.Rows(torch.cat([p.rows.x for p in parts]), torch.cat([p.rows.y for p in parts]))
    return replace(parts[0], rows=rows, train=train, held=held, parties=NAMES)


def test_the_penalties_of_unequal_parties_average_to_that_of_the_simulation(place: Path) -> None:
    """λ_k = 10/(K·n_k) at each party, which does not know n, and 10/n in a simulation."""
    for name, rows in zip(NAMES, (40, 90, 230)):
        write_wards(place, (name,), rows)
    job = JOB.replace('name = "FedAvg"\nlr = 0.2', 'name = "FedLBFGS"').replace("rounds = 3", "rounds = 15")
    (place / "job.toml").write_text(job)
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [start(place, name) for name in NAMES]
        assert [role.wait() for role in (server, *clients)] == [0] * 4, server.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    run = tacit.load(place / "run")
    fed = together(place, run.pipeline)
    assert len(set(fed.train.sizes.tolist())) == 3
    options: dict[str, Any] = {"model": "logistic", "algorithm": "FedLBFGS", "rounds": 15}
    same, weaker = tacit.train(fed, **options), tacit.train(fed, **options, l2=0.001)
    assert same.config["train"]["l2"] == 10 / int(fed.train.sizes.sum())
    own, *others = (
        torch.cat([p.detach().flatten() for p in each.model.parameters()]) for each in (run, same, weaker)
    )
    distances = [float((other - own).abs().max()) for other in others]
    assert distances[0] < 5e-4 < 0.05 < distances[1]


def test_balanced_weights_and_defaults_are_those_of_the_simulation(place: Path) -> None:
    """Without [algorithm] server and parties derive the same contract, and weights from summed label counts."""
    (place / "job.toml").write_text(BALANCED)
    hub = Role(place, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(place, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [start(place, name) for name in NAMES]
        assert [role.wait() for role in (server, *clients)] == [0] * 4, server.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()
    run = tacit.load(place / "run")
    fed = together(place, replace(run.pipeline, label_counts=()))
    counts = torch.bincount(fed.rows.y[fed.train.index]).tolist()
    assert list(run.pipeline.label_counts) == counts
    assert len(set(counts)) > 1  # otherwise the weights would be 1
    options: dict[str, Any] = {"model": "logistic", "class_weight": "balanced"}
    for runtime in ("cohort", "processes"):
        alike = tacit.train(fed, **options, runtime=runtime)
        assert alike.pipeline == run.pipeline
        for a, b in zip(alike.model.state_dict().values(), run.model.state_dict().values()):
            # the stack sums in another order: 4e-5 after 30 rounds of L-BFGS in float32
            assert torch.allclose(a, b, atol=5e-4 if runtime == "cohort" else 1e-6)
    plain = tacit.train(fed, model="logistic").model.state_dict()
    assert not all(
        torch.allclose(a, b, atol=1e-2) for a, b in zip(plain.values(), run.model.state_dict().values())
    )
    job = tomllib.loads((place / "run" / "job.toml").read_text())
    assert (job["algorithm"]["name"], job["train"]["rounds"]) == ("FedLBFGSCV", 30)
    assert job["train"]["class_weight"] == "balanced"
    for file, who in ((place / "run", "server"), *((place / "kits" / n / "state", n) for n in NAMES)):
        seen = json.loads((file / "ledger.json").read_text())["seen"]
        (line,) = [line for line in seen if line["kind"] == "LabelCounts"]
        assert line["party"] == who
        assert line["how"] == "executed"
