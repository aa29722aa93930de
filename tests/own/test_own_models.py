"""A model that is code, between real parties: each runs only what its owner approved, by name and digest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tacit import own_code
from tacit.config import job as config
from tacit.errors import BadJob
from tacit.jobs.train import deployed
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.elsewhere import Deployed, Elsewhere
from tacit.jobs.train.plan import make_plan, make_task
from tacit.own_code import Approved
from tests.cli.shell import Role, provision, said
from tests.clinics import write_files
from tests.own.test_client_parties import JOB as LOOPS
from tests.security.lying_server import JOB, SIZES, Attacker, play, refusals

SOURCE = """
import torch
from torch import nn

open({trace!r}, "a").close()


class Clinic(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(2, 4).requires_grad_(False)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.frozen(x)))


def build():
    return Clinic()


def fails():
    raise ValueError("no weights")


def text():
    return "a text"


constant = 3
"""


def write_code(folder: Path) -> tuple[str, str]:
    """A module whose import leaves a trace; return its name and its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    module = f"clinic_{abs(hash(str(folder)))}"  # a process imports a name once
    (folder / f"{module}.py").write_text(SOURCE.format(trace=str(folder / "executed")))
    return module, own_code.find_digest(f"{module}:build", [folder])


def job_with(name: str, digest: str) -> str:
    return JOB.replace('name = "logistic"', f'name = "{name}"\ndigest = "{digest}"')


@pytest.mark.parametrize("state", ["approved", "refused", "changed"])
def test_real_parties_train_a_model_that_is_code_only_as_each_approved_it(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All approve it; or b approves another digest; or b's file changes after b approved it."""
    monkeypatch.chdir(tmp_path)
    provision("a", "b")
    write_files(tmp_path, {name: SIZES[name] for name in "ab"})
    text = SOURCE.format(trace="executed")
    kits = {name: tmp_path / "kits" / name for name in ("server", "a", "b")}
    for kit in kits.values():
        (kit / "code").mkdir()
        (kit / "code" / "own_clinic.py").write_text(text)
    digest = own_code.find_digest("own_clinic:build", [kits["a"] / "code"])
    (tmp_path / "job.toml").write_text(job_with("own_clinic:build", digest))
    _, refusal = said(capsys, "party", "--kit", "kits/a", "--data", "a.csv", "--check", "job.toml")
    assert "'own_clinic:build', which is not approved here, and nothing of it was run" in refusal
    assert not (tmp_path / "executed").exists()
    for name, kit in kits.items():
        other = "f" * 64 if (state, name) == ("refused", "b") else digest
        (kit / "policy.toml").write_text(f'[code]\n"own_clinic:build" = "{other}"\n')
    if state == "changed":
        (kits["b"] / "code" / "own_clinic.py").write_text(text + "\nopen('stolen', 'a').close()\n")
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    try:
        b = Role(tmp_path, "b", "party", "--kit", "kits/b", "--data", "b.csv", "job.toml")
        if state != "approved":
            assert b.wait() == 2
            why = {"refused": "another source of 'own_clinic:build'", "changed": "is not what"}[state]
            assert why in b.log.read_text()
            assert "nothing of it was run" in " ".join(b.log.read_text().split())
            assert not (tmp_path / "executed").exists()
            assert not (tmp_path / "stolen").exists()
            return
        server = Role(tmp_path, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        a = Role(tmp_path, "a", "party", "--kit", "kits/a", "--data", "a.csv", "job.toml")
        codes = [role.wait() for role in (server, a, b)]
    finally:
        hub.process.terminate()
        hub.wait()
    assert codes == [0, 0, 0], server.log.read_text() + a.log.read_text()
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert set(model) == {"frozen.weight", "frozen.bias", "head.weight", "head.bias"}
    assert all(torch.isfinite(value).all() for value in model.values())
    assert f'digest = "{digest}"' in (tmp_path / "run" / "job.toml").read_text()


# servers that lie ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["approved", "another function", "another digest", "os", "no digest"])
def test_a_server_that_names_a_model_which_a_party_did_not_approve_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, digest = write_code(tmp_path / "trap")
    monkeypatch.syspath_prepend(str(tmp_path / "trap"))
    approved = Approved({f"{module}:build": digest})
    make = deployed.agreement
    monkeypatch.setattr(deployed, "agreement", lambda kit, path: replace(make(kit, path), approved=approved))
    model = {
        "approved": {"name": f"{module}:build", "digest": digest},
        "another function": {"name": f"{module}:fails", "digest": digest},
        "another digest": {"name": f"{module}:build", "digest": "f" * 64},
        "os": {"name": "os:getcwd", "digest": digest},
        "no digest": {"name": f"{module}:build"},
    }[what]
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        tables = json.loads(server.contract.text)
        tables["model"] = model
        tables["train"] |= {"batch_size": 32, "l2": 0.0}  # as with any model that is not linear
        answers.update(await server.offer(["a"], Contract(tables).text))

    _, ended = play(attack, tmp_path / "net", JOB, agreed=None, through=what != "approved")
    assert (tmp_path / "trap" / "executed").exists() == (what == "approved")
    if what == "approved":
        assert type(answers["a"]).__name__ == "Ready"
        assert answers["a"].parameters == 10  # the frozen layer stays
        return
    assert type(answers["a"]).__name__ == "Unfit"
    expected = "the digest None" if what == "no digest" else "and nothing of it was run"
    assert expected in refusals(ended)[0]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("fails", "failed with ValueError: no weights"),
        ("text", "returned str; it must return an nn.Module"),
        ("constant", "is int; it must be a function"),
    ],
)
def test_approved_code_that_is_no_model_is_refused(function: str, words: str, tmp_path: Path) -> None:
    module, digest = write_code(tmp_path / "code")
    name = f"{module}:{function}"
    approved = Approved({name: digest}, (tmp_path / "code",))
    (tmp_path / "job.toml").write_text(job_with(name, digest))

    def build() -> None:
        deployed.read(tmp_path / "job.toml", approved=approved)[1]["model"].build((2,), 2)

    with pytest.raises(BadJob, match=words):
        build()


def test_a_job_file_of_a_simulation_names_no_model_that_is_code(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[data]\nname = "digits"\nparties = 3\n[model]\nname = "os:getcwd"\n')
    with pytest.raises(BadJob, match="only between real parties, who approve it"):
        config.load(tmp_path / "job.toml")


def test_code_takes_no_other_parameters(tmp_path: Path) -> None:
    module, digest = write_code(tmp_path / "code")
    text = job_with(f"{module}:build", digest).replace("[algorithm]", "hidden = 3\n[algorithm]")
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(BadJob, match="code takes a name and a digest, and no 'hidden'"):
        deployed.read(tmp_path / "job.toml", approved=Approved({f"{module}:build": digest}))


def test_a_script_and_a_model_as_code_go_together(tmp_path: Path) -> None:
    """The contract of parties with loops of their own may name code; the agreed weights are its trainable ones."""
    module, digest = write_code(tmp_path / "code")
    approved = Approved({f"{module}:build": digest}, (tmp_path / "code",))
    shapes = 'name = "shapes"\nshapes = { w = [2], b = [1] }'
    (tmp_path / "job.toml").write_text(LOOPS.replace(shapes, f'name = "{module}:build"\ndigest = "{digest}"'))
    layout, options = deployed.read(tmp_path / "job.toml", approved=approved)
    fed = Elsewhere.of("f", ("a", "b"), (1,), None, ())
    p = make_plan(fed, **options, runtime=Deployed(None, {}))
    contract = Contract.of(p, {}, "server", [1])
    assert contract.tables["model"] == {"name": f"{module}:build", "digest": digest}
    assert make_task(contract.plan(approved=approved)).dim == 10
    assert layout == {}
