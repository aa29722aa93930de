"""tacit infer as users type it: trees and networks, two or three real processes, policies, bad files, and partners that
do not keep to what was agreed.
"""

from __future__ import annotations

import functools
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xgboost

import tacit
from tacit.errors import BadJob, PartyFailed, ProtocolError, QueryRefused
from tacit.jobs import infer_deployed
from tacit.mpc import inference
from tacit.runtimes import InProcess
from tests.cli.shell import finish, provision, said
from tests.security.test_regress_with_errors_attacks import Lying

from .test_split import start

JOB = """
[infer]
columns = ["age", "plan", "bill"]
{extra}
[parties.bank]
holds = "model"
file = "model.json"
[parties.clinic]
holds = "rows"
file = "new.csv"
id = "person"
"""
HELPED = JOB + "[parties.notary]\nhelper = true\n"
UNIT = 2.0**-15


def write_job(extra: str = "", helped: bool = True, **changes: str) -> None:
    text = (HELPED if helped else JOB).format(extra=extra)
    for old, new in changes.items():
        text = text.replace(old, new)
    Path("job.toml").write_text(text)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    n = 240
    frame = pd.DataFrame(
        {
            "person": [f"{k:04d}" for k in range(n)],
            "age": rng.integers(18, 90, n),
            "plan": rng.choice(["small", "large", "none"], n),
            "bill": rng.gamma(2, 20, n).round(2),
        }
    )
    frame.loc[::7, "bill"] = None
    z = (frame.age - 50) / 10 + (frame.plan == "large") + frame.bill.fillna(0) / 50 - 1
    frame["ill"] = np.where(z + rng.logistic(size=n) > 0, "yes", "no")
    train, new = frame.iloc[:200], frame.iloc[200:]
    train.to_csv("train.csv", index=False)
    new.drop(columns="ill").to_csv("new.csv", index=False)
    half = {"a": train.iloc[:100], "b": train.iloc[100:]}
    model = tacit.boost.train(
        half, label="ill", features=["age", "plan", "bill"], categories=["plan"], trees=4, depth=3, bins=16
    )
    model.save("model.json")
    pd.DataFrame({"p": model.predict(new)}).to_csv("expected.csv", index=False)
    write_job()
    return tmp_path


def check_scores(file: str = "scores.csv", first: str = "person") -> None:
    made = pd.read_csv(file, dtype={first: str})
    assert list(made.columns) == [first, "prediction", "p(no)", "p(yes)"]
    expected = pd.read_csv("expected.csv").p
    assert (made["p(yes)"] - expected).abs().max() < UNIT
    new = pd.read_csv("new.csv", dtype={"person": str})
    assert list(made[first]) == (list(new.person) if first == "person" else [str(k) for k in range(1, 41)])


def test_trees_of_tacit_here_for_the_rows_holder_or_the_model_holder(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = said(capsys, "infer", "job.toml", "--json")
    assert code == 0, out
    assert json.loads(out)["rows"] == 40
    check_scores()
    code, out = said(capsys, "infer", "job.toml")
    assert (code, "already exists" in out) == (2, True)
    for extra, helped in (('adversary = "active"', True), ("", False)):
        write_job(extra, helped)
        assert said(capsys, "infer", "job.toml", "--force")[0] == 0
        check_scores()
    write_job('reveal = "argmax"')
    assert said(capsys, "infer", "job.toml", "--out", "classes.csv")[0] == 0
    classes = pd.read_csv("classes.csv")
    assert list(classes.columns) == ["person", "prediction"]
    assert (classes.prediction == pd.read_csv("scores.csv").prediction).all()
    write_job('receiver = "model"')
    code, out = said(capsys, "infer", "job.toml", "--out", "mine.csv")
    assert (code, "does not show scores to the holder of a model that it cannot see" in out) == (2, True)
    assert not Path("mine.csv").exists()


def test_models_of_xgboost(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, new = pd.read_csv("train.csv"), pd.read_csv("new.csv")
    columns = ["age", "bill"]
    job = HELPED.format(extra="").replace('["age", "plan", "bill"]', '["bill", "age"]')
    Path("job.toml").write_text(job)  # in another order than the model's
    for objective, y in (
        ("binary:logistic", (train.ill == "yes").astype(int)),
        ("multi:softprob", train.age // 30),
        ("reg:squarederror", train.age * 2.5),
    ):
        kind = xgboost.XGBRegressor if objective.startswith("reg") else xgboost.XGBClassifier
        model = kind(n_estimators=3, max_depth=3, objective=objective).fit(
            train[columns], pd.factorize(y, sort=True)[0] if objective.startswith("multi") else y
        )
        model.get_booster().save_model("model.json")
        code, out = said(capsys, "infer", "job.toml", "--force")
        assert code == 0, out
        made = pd.read_csv("scores.csv")
        if objective.startswith("reg"):
            assert np.abs(made.score - model.predict(new[columns])).max() < 1e-3
        else:
            p = model.predict_proba(new[columns])
            assert np.abs(made[[f"p({k})" for k in range(p.shape[1])]].to_numpy() - p).max() < UNIT


def test_a_network_of_a_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.toml").write_text(
        '[data]\nname = "csv"\npath = "train.csv"\nlabel = "ill"\ndrop = ["person"]\nparties = 2\n'
        '[model]\nname = "mlp"\nhidden = [6]\n[train]\nrounds = 2\n'
    )
    code, out = said(capsys, "run", "train.toml", "--out", "run")
    assert code == 0, out
    assert said(capsys, "predict", "run", "new.csv", "--out", "plain.csv", "--keep", "person")[0] == 0
    write_job(**{"model.json": "run"})
    code, out = said(capsys, "infer", "job.toml", "--out", "shares.csv")
    assert code == 0, out
    plain, made = (pd.read_csv(f, dtype={"person": str}) for f in ("plain.csv", "shares.csv"))
    assert (made.person == plain.person).all()
    assert (made.prediction == plain.prediction).all()
    assert (made["p(yes)"] - plain["p(yes)"]).abs().max() < 1e-3


def run_parties(names: tuple[str, ...], *more: str) -> list[Any]:
    return [start("infer", "job.toml", "--kit", f"kits/{n}", *more) for n in names]


def test_three_processes_and_a_policy_of_rows_per_day(place: Path) -> None:
    """The second run is refused by the model's holder, all end, and nobody gets scores."""
    names = ("bank", "clinic", "notary")
    provision(*names)
    Path("kits/bank/policy.toml").write_text("[infer]\nrows_per_day = 60\n")
    hub = start("hub", "--kit", "kits/hub")
    try:
        bank, clinic, _ = map(finish, run_parties(names, "--json", "--out", "scores.csv"))
        again = run_parties(names, "--out", "again.csv")
        texts = [p.communicate(timeout=300)[1] for p in again]
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    check_scores()
    assert "out" not in bank
    assert clinic["rows"] == bank["rows"] == 40
    assert "SEMI-HONEST" in json.dumps(clinic["ledger"])
    assert {line["kind"] for line in bank["ledger"]["seen"]} >= {"Batches", "MaskedFactors"}
    assert all(p.returncode != 0 for p in again)
    assert "had 40 rows scored within 24 hours and has 40 more" in texts[0]
    assert "its owner's policy, budget or agreement does not allow it" in texts[1]
    assert not Path("again.csv").exists()


def test_two_processes_without_a_helper_and_scores_for_the_model_holder(place: Path) -> None:
    names = ("bank", "clinic")
    write_job('receiver = "model"', helped=False)
    provision(*names)
    Path("kits/clinic/policy.toml").write_text("[infer]\nscores_to_model = true\n")
    hub = start("hub", "--kit", "kits/hub")
    try:
        bank, clinic = map(finish, run_parties(names, "--json", "--out", "scores.csv"))
        Path("other.toml").write_text(Path("job.toml").read_text().replace("[infer]", "[infer]\nbatch = 8"))
        others = [
            start("infer", "job.toml", "--kit", "kits/bank", "--out", "x.csv"),
            start("infer", "other.toml", "--kit", "kits/clinic"),
        ]
        texts = [p.communicate(timeout=300)[1] for p in others]
    finally:
        hub.send_signal(signal.SIGINT)
        hub.communicate(timeout=300)
    assert "out" in bank
    assert "out" not in clinic
    check_scores(first="row")
    assert all(p.returncode == 2 for p in others)
    assert any("different job files" in text for text in texts)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('holds = "model"', 'holds = "rows"', "there are 0 parties with a model, 2 with rows and 1 helpers"),
        ('holds = "model"\n', "", "give holds = 'model' or 'rows', or helper = true"),
        ("[infer]", '[infer]\nreveal = "weights"', "reveal is 'weights'; it must be"),
        ("[infer]", "[infer]\nbatches = 3", "it has no key 'batches'"),
        ('["age", "plan", "bill"]', "[]", "columns is []; it must be a list of different names"),
        ('["age", "plan", "bill"]', '["age", "plan"]', "'bill' is in one of them only"),
        ('"model.json"', '"absent.json"', "there is no model"),
        ('"model.json"', '"new.csv"', "is no model that can be read"),
        ('"model.json"', '"."', "is not the directory of a run"),
        ('"new.csv"', '"absent.csv"', "absent.csv"),
        ('id = "person"', 'id = "persn"', "has no column 'persn'. Did you mean 'person'?"),
        ("helper = true", 'helper = true\nid = "x"', "id is for the party with holds = 'rows'"),
    ],
)
def test_bad_jobs_and_files_write_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, text: str
) -> None:
    job = HELPED.format(extra="")
    assert old in job
    Path("job.toml").write_text(job.replace(old, new))
    code, out = said(capsys, "infer", "job.toml")
    assert (code, text in out) == (2, True), out
    assert not Path("scores.csv").exists()


def test_bad_rows_and_options_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = pd.read_csv("new.csv", dtype=str)
    for frame, text in (
        (new.assign(age="old"), "age"),
        (new.iloc[:0], "no rows"),
        (new.drop(columns="bill"), "has no column 'bill'"),
    ):
        frame.to_csv("new.csv", index=False)
        code, out = said(capsys, "infer", "job.toml")
        assert (code, text in out) == (2, True), out
    for words, text in (
        (["--file", "new.csv"], "without a kit all parties run here"),
        (["--out", "scores.txt"], "scores.txt"),
        (["--kit", "nowhere"], "nowhere"),
    ):
        code, out = said(capsys, "infer", "job.toml", *words)
        assert (code, text in out) == (2, True), out
    write_job('adversary = "active"', helped=False)
    code, out = said(capsys, "infer", "job.toml")
    assert (code, "adversary = 'active' needs a party with helper = true" in out) == (2, True)
    assert not Path("scores.csv").exists()


def run_with_liar(liar: str, change: Any) -> BaseException:
    """The error of a run in which one party's messages are changed."""
    job = infer_deployed.read("job.toml")
    programs = {}
    for name, entry in job["parties"].items():
        honest = functools.partial(
            infer_deployed.run_party, job=job, file=entry.get("file", ""), out="scores.csv"
        )

        async def party(me: Any, honest: Any = honest, name: str = name) -> Any:
            return await honest(Lying(me, change) if name == liar else me)

        programs[name] = party
    with pytest.raises(PartyFailed) as caught:
        InProcess().run_sync(programs)
    assert not Path("scores.csv").exists()
    assert caught.value.__cause__ is not None
    return caught.value.__cause__


def replacing(kind: type[Any], **fields: Any) -> Any:
    def change(message: Any) -> Any:
        if not isinstance(message, kind):
            return message
        return kind(**{**{name: getattr(message, name) for name in message.forms}, **fields})

    return change


def test_a_partner_that_announces_something_else_than_agreed_gets_nothing(place: Path) -> None:
    """A holder of the model wants the scores, or the input of a column that was not agreed, or scores for classes."""
    to_itself = run_with_liar("bank", replacing(inference.Architecture, receiver=inference.OWNER))
    assert isinstance(to_itself, ProtocolError)
    assert "receives the result, which was not agreed" in str(to_itself)
    write_job('reveal = "argmax"')
    scores = run_with_liar("bank", replacing(inference.Architecture, reveal="logits"))
    assert "which is not what the job says" in str(scores)
    write_job()
    text = json.dumps(
        {
            "inputs": {"columns": [["person", 0, [], False]], "wide": False, "takes_missing": True},
            "labels": ["no", "yes"],
            "link": "sigmoid",
        }
    )
    other = run_with_liar("bank", replacing(infer_deployed.ModelDescription, text=text))
    assert isinstance(other, BadJob)
    assert "'age' is in one of them only" in str(other)
    wide = text.replace('"person", 0', f'"age", {10**12}')  # memory for as many numbers of each row
    shout = '{"inputs": {}, "labels": [], "link": "shout"}'
    for bad in ("", "[]", '{"release": {}}', shout, "[" * 5000, wide):
        refused = run_with_liar("bank", replacing(infer_deployed.ModelDescription, text=bad))
        assert isinstance(refused, ProtocolError)
        assert "sent no description of a model" in str(refused)
    many = run_with_liar("clinic", replacing(inference.Batches, shapes=[[10**9, 12]]))
    assert "announced batches that are not those of a table" in str(many)


def test_a_party_that_changes_a_share_is_caught_where_parties_may_deviate(place: Path) -> None:
    write_job('adversary = "active"')
    seen = []

    def change(message: Any) -> Any:
        if message.kind != "MaskedOpening" or seen:
            return message
        seen.append(1)
        fields = {name: getattr(message, name) for name in message.forms}
        first = next(k for k, v in fields.items() if isinstance(v, list) and isinstance(v[0], torch.Tensor))
        moved = [v.clone() for v in fields[first]]
        moved[0].view(-1)[0] += 1
        return type(message)(**{**fields, first: moved})

    caught = run_with_liar("bank", change)
    assert isinstance(caught, ProtocolError)
    assert seen


def test_rows_are_counted_before_they_are_scored(tmp_path: Path) -> None:
    from tacit.config.infer import InferPolicy

    policy, day = InferPolicy(max_rows=50, rows_per_day=100), 24 * 3600.0
    admit = infer_deployed.admit_rows
    for _ in range(2):
        admit(str(tmp_path), policy, "a", 50, lambda: 1e9)
    with pytest.raises(QueryRefused, match="had 100 rows scored within 24 hours"):
        admit(str(tmp_path), policy, "a", 1, lambda: 1e9)
    with pytest.raises(QueryRefused, match="allows 50 in a run"):
        admit(str(tmp_path), policy, "b", 51, lambda: 1e9)
    admit(str(tmp_path), policy, "b", 50, lambda: 1e9)
    admit(str(tmp_path), policy, "a", 50, lambda: 1e9 + day + 1)
