"""Every party of a deployed federation ends with the model and the pipeline, and scores by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.shell import Role, answer, provision

JOB = """
[data]
label = "sick"
labels = ["no", "yes"]
numbers = ["age", "chol"]
missing = ["chol"]
[data.categories]
ward = ["north", "south", "other"]
sex = ["f", "m"]
[model]
name = "logistic"
[train]
rounds = 3
threshold = 0.7
"""
CLIENTS = ("a", "b", "c")


def test_the_server_and_every_client_score_new_rows_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between four processes; the scores of each folder are the same to the last digit."""
    monkeypatch.chdir(tmp_path)
    provision(*CLIENTS)
    (tmp_path / "job.toml").write_text(JOB)
    rng = np.random.default_rng(0)

    def table(n: int) -> pd.DataFrame:
        age = rng.normal(50, 10, n)
        chol = np.where(rng.random(n) < 0.1, np.nan, rng.normal(200, 30, n))
        frame = pd.DataFrame({"age": age, "chol": chol, "ward": rng.choice(["north", "south"], n)})
        frame["sex"] = rng.choice(["f", "m"], n)  # listed after ward: not in alphabetical order
        return frame.assign(sick=np.where(age > 50, "yes", "no"))

    for k, name in enumerate(CLIENTS):
        table(110 + 20 * k).to_csv(f"{name}.csv", index=False)
    new = table(40).drop(columns="sick").assign(ward=["a ward nobody had", *["south"] * 39])
    new.to_csv("new.csv", index=False)

    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(tmp_path, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [
            Role(tmp_path, c, "party", "--kit", f"kits/{c}", "--data", f"{c}.csv", "job.toml")
            for c in CLIENTS
        ]
        assert [role.wait() for role in (server, *clients)] == [0, 0, 0, 0], server.log.read_text()
    finally:
        hub.process.terminate()
        hub.wait()

    capsys.readouterr()
    scores = {}
    for folder in ("run", *(f"kits/{c}/state/model" for c in CLIENTS)):
        out = f"{folder.replace('/', '-')}.csv"
        assert answer(capsys, "predict", folder, "new.csv", "--out", out)["rows"] == 40
        scores[folder] = Path(out).read_text()
    assert len(set(scores.values())) == 1, scores
    scored = pd.read_csv("run.csv")
    assert (scored["prediction"] == np.where(scored["p(yes)"] >= 0.7, "yes", "no")).all()
    assert scored["p(yes)"].std() > 0.05
