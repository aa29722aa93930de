"""A loss and metrics that are code, between real parties: each runs only what its owner approved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit import data, own_code
from tacit.config import job as config
from tacit.errors import BadJob
from tacit.jobs.train import deployed
from tacit.jobs.train.contract import Contract
from tacit.own_code import Approved
from tests.cli.shell import Role, answer, provision, said
from tests.clinics import write_files
from tests.security.lying_server import JOB, SECAGG, SIZES, Attacker, play, refusals

SOURCE = """
import torchmetrics
from torch.nn import functional as F

open({trace!r}, "a").close()


def opposite(out, y):
    return F.cross_entropy(out, 1 - y, reduction="none")


def hit(out, y):
    return (out.argmax(1) == y).float().mean()


def undefined(out, y):
    return float("nan")


f1 = torchmetrics.F1Score("multiclass", num_classes=2, average="macro")
every = torchmetrics.AUROC("binary")
constant = 3
"""
METRICS = ("hit", "f1")
FED = data.gaussian_blobs(rows=40, seed=0).split(2, seed=0)


def write_code(folder: Path, module: str = "") -> tuple[str, str]:
    """Write a module whose import leaves a trace; return its name and its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    module = module or f"losses_{abs(hash(str(folder)))}"  # a process imports a name once
    (folder / f"{module}.py").write_text(SOURCE.format(trace=str(folder / "executed")))
    return module, own_code.find_digest(f"{module}:hit", [folder])


def job_with(module: str, digest: str, loss: str = "opposite", metrics: tuple[str, ...] = METRICS) -> str:
    code = f'\nloss = {{ name = "{module}:{loss}", digest = "{digest}" }}\n[metrics]\n'
    named = [f'own_{m} = {{ name = "{module}:{m}", digest = "{digest}" }}\n' for m in metrics]
    return JOB.rstrip() + code + "".join(named)


def test_real_parties_minimize_a_loss_and_measure_metrics_that_are_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loss prefers the other class, so a model that minimizes it is worse than a coin.

    Updates and counts are summed under masks; tests/own/test_metrics.py has the same sums in the clear.
    """
    monkeypatch.chdir(tmp_path)
    provision("a", "b", "c")
    write_files(tmp_path, {name: SIZES[name] for name in "abc"})
    kits = {name: tmp_path / "kits" / name for name in ("server", "a", "b", "c")}
    for kit in kits.values():
        (kit / "code").mkdir()
        (kit / "code" / "own_losses.py").write_text(SOURCE.format(trace="executed"))
    capsys.readouterr()
    digest = answer(capsys, "code", "own_losses:hit", "--kit", "kits/a")["digest"]
    (tmp_path / "job.toml").write_text(job_with("own_losses", digest) + SECAGG)
    _, refusal = said(capsys, "party", "--kit", "kits/a", "--data", "a.csv", "--check", "job.toml")
    assert "'own_losses:opposite', which is not approved here, and nothing of it was run" in refusal
    approved = "".join(f'"own_losses:{name}" = "{digest}"\n' for name in ("opposite", *METRICS))
    for kit in kits.values():
        (kit / "policy.toml").write_text(f"[code]\n{approved}")
    assert not (tmp_path / "executed").exists()
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(tmp_path, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [
            Role(tmp_path, n, "party", "--kit", f"kits/{n}", "--data", f"{n}.csv", "job.toml") for n in "abc"
        ]
        codes = [role.wait() for role in (server, *clients)]
    finally:
        hub.process.terminate()
        hub.wait()
    assert codes == [0, 0, 0, 0], server.log.read_text() + clients[0].log.read_text()
    run = tacit.load(tmp_path / "run")
    assert run.metrics["accuracy"] < 0.5
    assert run.metrics["own_hit"] == pytest.approx(run.metrics["accuracy"], abs=1e-6)
    assert run.metrics["own_f1"] == pytest.approx(run.metrics["f1"], abs=1e-6)
    assert run.config["train"]["loss"] == {"name": "own_losses:opposite", "digest": digest}
    assert run.config["metrics"]["own_f1"] == {"name": "own_losses:f1", "digest": digest}
    assert any("sums of the job's own metrics (own_hit, own_f1)" in s.reveals for s in run.ledger.seen)
    accepted = json.loads(next(tmp_path.glob("kits/a/state/contract-*.json")).read_text())
    assert accepted["metrics"]["own_hit"]["digest"] == digest


# servers that lie ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("approved loss", ""),
        ("another function", "and nothing of it was run"),
        ("another digest", "and nothing of it was run"),
        ("os", "and nothing of it was run"),
        ("no digest", "code takes a name and a digest"),
        ("an object", "is a BinaryAUROC|must be a function of outputs"),
        ("metrics", "asks for metrics that are code"),
        ("metrics by name", "code takes a name and a digest"),
    ],
)
def test_a_server_cannot_have_code_run_that_a_party_did_not_approve_for_it(
    what: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client approves the loss and a metric, and agreed to no particular job."""
    module, digest = write_code(tmp_path / "trap")
    monkeypatch.syspath_prepend(str(tmp_path / "trap"))
    approved = Approved({f"{module}:{name}": digest for name in ("opposite", "hit", "constant")})
    make = deployed.agreement
    monkeypatch.setattr(deployed, "agreement", lambda kit, path: replace(make(kit, path), approved=approved))
    loss: Any = {
        "another function": {"name": f"{module}:hit_", "digest": digest},
        "another digest": {"name": f"{module}:opposite", "digest": "f" * 64},
        "os": {"name": "os:getcwd", "digest": digest},
        "no digest": {"name": f"{module}:opposite"},
        "an object": {"name": f"{module}:constant", "digest": digest},
    }.get(what, {"name": f"{module}:opposite", "digest": digest})
    metrics = {
        "metrics": {"own": {"name": f"{module}:hit", "digest": digest}},
        "metrics by name": {"own": "os:getcwd"},
    }.get(what)
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        tables = json.loads(server.contract.text)
        tables["train"] |= {"batch_size": 32, "loss": loss}
        tables["metrics"] = metrics
        answers.update(await server.offer(["a"], Contract(tables).text))

    _, ended = play(attack, tmp_path / "net", JOB, agreed=None, through=bool(words))
    if what == "approved loss":
        assert type(answers["a"]).__name__ == "Ready"
        return
    assert type(answers["a"]).__name__ == "Unfit"
    assert any(part in refusals(ended)[0] for part in words.split("|")), refusals(ended)[0]
    if "nothing of it" in words:
        assert not (tmp_path / "trap" / "executed").exists()


def test_sums_of_metrics_that_are_not_numbers_leave_the_counts_alone(tmp_path: Path) -> None:
    """A metric may be NaN for a party, or a party may send what it likes: only that metric is NaN."""
    import torchmetrics

    from tacit.engine.own_metrics import OwnMetrics

    own = OwnMetrics(
        {"a": lambda out, y: out.mean(), "f1": torchmetrics.F1Score("multiclass", num_classes=2)}
    )
    blank = own.begin().sums()
    assert own.from_sums(torch.full_like(blank, float("nan")))["f1"] != 1.0
    half = blank.clone()
    half[:2] = torch.tensor([float("inf"), 4.0])
    assert own.from_sums(half)["a"] == float("inf")
    assert own.from_sums(blank) == {"f1": 0.0}


# job files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("opposite", ("constant",)), r"metrics.own_constant: .* is 3; it must be a function"),
        (("constant", ()), r"train, loss: .*:constant is a int; it must be a function of outputs"),
        (("opposite", ("every",)), r"metrics: 'own_every' has states that are not sums"),
    ],
)
def test_approved_code_that_is_no_loss_or_metric_is_refused(
    change: tuple[str, tuple[str, ...]], words: str, tmp_path: Path
) -> None:
    module, digest = write_code(tmp_path / "code")
    names = ("opposite", "constant", "every")
    approved = Approved({f"{module}:{name}": digest for name in names}, (tmp_path / "code",))
    loss, metrics = change
    text = job_with(module, digest, loss, metrics)
    (tmp_path / "job.toml").write_text(text if metrics else text.replace("[metrics]\n", ""))

    from tacit.errors import BadParameter
    from tacit.jobs.train.elsewhere import Deployed, Elsewhere
    from tacit.jobs.train.plan import make_plan

    def read() -> None:
        layout, options = deployed.read(tmp_path / "job.toml", approved=approved)
        fed = Elsewhere.of("f", ("a", "b"), (2,), ("no", "yes"), ("age", "chol"))
        make_plan(fed, **options, runtime=Deployed(None, layout))

    with pytest.raises((BadJob, BadParameter), match=words):
        read()


def test_a_loss_by_its_name_alone_is_refused_with_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB.rstrip() + '\nloss = "own:loss"\n')
    with pytest.raises(BadJob, match=r'code needs its digest: loss = \{ name = "own:loss", digest'):
        deployed.read(tmp_path / "job.toml")


def test_job_files_of_simulations_name_no_loss_and_no_metrics_that_are_code(tmp_path: Path) -> None:
    start = '[data]\nname = "digits"\nparties = 3\n'
    (tmp_path / "job.toml").write_text(start + '[metrics]\nhit = { name = "os:getcwd", digest = "f" }\n')
    with pytest.raises(BadJob, match="only between real parties, who approve"):
        config.load(tmp_path / "job.toml")
    with pytest.raises(BadJob, match="only between real parties, who approve"):
        tacit.train(FED, loss="os:getcwd", rounds=1)
