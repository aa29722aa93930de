"""A user's own algorithm runs wherever tacit's own run; between real parties only where each owner approved it."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit import data, own_code, testing
from tacit.errors import BadJob, BadParameter
from tacit.jobs.approved import read_approved
from tacit.jobs.train import deployed
from tacit.jobs.train.contract import Contract, NotAgreed
from tacit.own_code import Approved
from tests.cli.shell import Role, answer, provision, said
from tests.clinics import write_files
from tests.own.fedexp import FedExP
from tests.security.lying_server import JOB, SIZES, Attacker, play, refusals

NAME = "tests.own.fedexp:FedExP"
FED = data.gaussian_blobs(rows=120, seed=0).split(3, seed=0)
OPTIONS: dict[str, Any] = {"model": "logistic", "rounds": 2, "evaluate_every": 0}


def weights(run: Any) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in run.model.parameters()])


def test_it_conforms() -> None:
    testing.check_algorithm(FedExP(lr=0.2))


@pytest.mark.parametrize("more", [{}, {"topology": tacit.Hierarchy(edges=2)}], ids=["server", "hierarchy"])
def test_processes_import_an_own_algorithm_and_give_the_model_of_the_simulation(more: dict[str, Any]) -> None:
    here, there = (
        tacit.train(FED, algorithm=FedExP(lr=0.2), runtime=runtime, **OPTIONS, **more)
        for runtime in ("cohort", "processes")
    )
    assert torch.allclose(weights(here), weights(there), atol=1e-5)
    assert there.config["algorithm"]["name"] == NAME
    assert there.config["algorithm"]["digest"] == own_code.find_digest(NAME)


def test_an_algorithm_that_no_process_can_import_is_refused_with_what_to_do() -> None:
    class Inner(FedExP):
        pass

    with pytest.raises(
        BadParameter, match=r"the algorithm of a client is .*Inner.*Define it at the top level"
    ):
        tacit.train(FED, algorithm=Inner(), runtime="processes", **OPTIONS)


def test_a_job_file_of_a_simulation_names_no_code(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(
        '[data]\nname = "digits"\nparties = 3\n[algorithm]\nname = "os:system"\n'
    )
    from tacit.config import job

    with pytest.raises(BadJob, match="only between real parties, who approve it"):
        job.load(tmp_path / "job.toml")


# the digest -------------------------------------------------------------------------------------------------


def write_package(folder: Path, text: str = "") -> str:
    """A package whose import leaves a trace; return its name."""
    package = folder / "approvable"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(folder / 'executed')!r}, 'a').close()\n")
    (package / "algorithm.py").write_text(
        "from tests.own.fedexp import FedExP\nclass Mine(FedExP):\n    pass\n" + text
    )
    return "approvable.algorithm:Mine"


def test_the_digest_is_of_the_whole_package_and_nothing_is_imported_for_it(tmp_path: Path) -> None:
    name = write_package(tmp_path)
    before = own_code.find_digest(name, [tmp_path])
    assert not (tmp_path / "executed").exists()
    (tmp_path / "approvable" / "__pycache__").mkdir()
    (tmp_path / "approvable" / "__pycache__" / "x.pyc").write_bytes(b"cache")
    (tmp_path / "approvable" / "README.md").write_text("not code")
    assert own_code.find_digest(name, [tmp_path]) == before
    (tmp_path / "approvable" / "more.py").write_text("")
    assert own_code.find_digest(name, [tmp_path]) != before


@pytest.mark.parametrize(
    ("name", "approves", "words"),
    [
        ("os:system", True, "'os:system', which is not approved here"),
        ("approvable.algorithm:Other", True, "Other', which is not approved here"),
        (
            "approvable.algorithm:Mine",
            False,
            "another source of 'approvable.algorithm:Mine' than is approved",
        ),
        (["approvable"], True, "the job names the code"),
    ],
    ids=["another module", "another class", "another digest", "no name"],
)
def test_only_what_is_approved_is_imported(name: Any, approves: bool, words: str, tmp_path: Path) -> None:
    ours = write_package(tmp_path)
    digest = own_code.find_digest(ours, [tmp_path])
    approved = Approved({ours: digest}, (tmp_path,))
    with pytest.raises(BadJob, match=words):
        approved.load(name, digest if approves else "0" * 64)
    assert not (tmp_path / "executed").exists()


def test_a_source_that_changed_since_it_was_approved_is_not_imported(tmp_path: Path) -> None:
    ours = write_package(tmp_path)
    approved = Approved({ours: own_code.find_digest(ours, [tmp_path])}, (tmp_path,))
    (tmp_path / "approvable" / "algorithm.py").write_text("class Mine: pass\n")
    with pytest.raises(BadJob, match=r"is not what policy\.toml approves, and nothing of it was run"):
        approved.load(ours, approved.digests[ours])
    assert not (tmp_path / "executed").exists()


# nothing but the approved source is executed ----------------------------------------------------------------


def approve(folder: Path, package: str, files: dict[str, str]) -> Approved:
    """Write a package, and approve its class `Mine`."""
    for place, text in files.items():
        (folder / package / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / package / place).write_text(text)
    name = f"{package}.algorithm:Mine"
    return Approved({name: own_code.find_digest(name, [folder])}, (folder,))


def load(approved: Approved) -> Any:
    ((name, digest),) = approved.digests.items()
    return approved.load(name, digest)


@pytest.mark.parametrize("mode", list(py_compile.PycInvalidationMode), ids=lambda mode: mode.name)
def test_a_compiled_file_next_to_the_approved_source_is_not_executed(
    mode: py_compile.PycInvalidationMode, tmp_path: Path
) -> None:
    """Its author sends a package with __pycache__: the source is harmless, the compiled file is of another one
    and says that it need not be compared, or has the time and size of the source.
    """
    package = f"compiled_{mode.name.lower()}"
    approved = approve(tmp_path, package, {"__init__.py": "", "algorithm.py": "class Mine: kind = 'read'\n"})
    source = tmp_path / package / "algorithm.py"
    text, times = source.read_text(), (source.stat().st_atime_ns, source.stat().st_mtime_ns)
    source.write_text(text.replace("read", "evil"))
    os.utime(source, ns=times)
    cached = py_compile.compile(str(source), invalidation_mode=mode, doraise=True)
    source.write_text(text)
    os.utime(source, ns=times)
    assert cached is not None
    assert b"evil" in Path(cached).read_bytes()
    assert load(approved).kind == "read"


def test_what_is_executed_is_what_was_digested_even_if_files_change_meanwhile(tmp_path: Path) -> None:
    """The first module that is imported replaces the others, and one is imported later, by a function."""
    change = "import pathlib\nfor f in ('algorithm', 'later', 'new'):\n"
    change += (
        "    pathlib.Path(__file__).with_name(f + '.py').write_text('class Mine: kind = 0\\nkind = 0')\n"
    )
    more = "    @staticmethod\n    def find():\n        from .later import kind\n        return kind\n"
    more += "    @staticmethod\n    def find_new():\n        from . import new\n"
    files = {
        "__init__.py": change,
        "algorithm.py": f"class Mine:\n    kind = 1\n{more}",
        "later.py": "kind = 2\n",
    }
    found = load(approve(tmp_path, "changing", files))
    assert "kind = 0" in (tmp_path / "changing" / "later.py").read_text()
    assert (found.kind, found.find()) == (1, 2)
    with pytest.raises(ImportError):
        found.find_new()


@pytest.mark.parametrize(
    "imports",
    ["import beside_it", "from . import linked", "from .__pycache__ import hidden"],
    ids=["beside", "linked", "cached"],
)
def test_approved_code_imports_no_file_that_the_digest_does_not_cover(imports: str, tmp_path: Path) -> None:
    package = f"importing_{imports.rpartition(' ')[2]}"
    trap = f"open({str(tmp_path / 'executed')!r}, 'a').close()\n"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "__init__.py").write_text(trap)
    (tmp_path / "beside_it.py").write_text(trap)
    (tmp_path / package / "__pycache__").mkdir(parents=True)
    (tmp_path / package / "__pycache__" / "hidden.py").write_text(trap)
    (tmp_path / package / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    files = {"__init__.py": "", "algorithm.py": f"{imports}\nclass Mine: pass\n"}
    with pytest.raises(
        BadJob, match=r"cannot be imported: .* Its digest covers the files of its own package"
    ):
        load(approve(tmp_path, package, files))
    assert not (tmp_path / "executed").exists()


def test_approved_packages_may_lie_in_folders_without_code_and_have_them(tmp_path: Path) -> None:
    files = {"algorithm.py": "from .parts.one import x\nclass Mine: kind = x\n", "parts/one.py": "x = 3\n"}
    for place, text in {"__init__.py": "", **files}.items():
        (tmp_path / "owners" / "pack" / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "owners" / "pack" / place).write_text(text)
    name = "owners.pack.algorithm:Mine"
    approved = Approved({name: own_code.find_digest(name, [tmp_path])}, (tmp_path,))
    assert load(approved).kind == 3
    assert load(approved) is load(approved)
    (tmp_path / "owners" / "pack" / "parts" / "one.py").write_text("x = 4\n")
    again = Approved({name: own_code.find_digest(name, [tmp_path])}, (tmp_path,))
    with pytest.raises(
        BadJob, match=r"another version of 'owners\.pack' was imported by this process before"
    ):
        load(again)


# a lying server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["another module", "another digest", "approved"])
def test_a_server_that_names_code_which_a_party_did_not_approve_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client approves FedExP by name and digest, and agreed to no particular job. The server offers a
    contract with the approved code (it is accepted), with that of another module, or another source of it."""
    ours = write_package(tmp_path / "trap")
    digest = own_code.find_digest(NAME)
    approved = Approved({NAME: digest})
    make = deployed.agreement
    monkeypatch.setattr(deployed, "agreement", lambda kit, path: replace(make(kit, path), approved=approved))
    monkeypatch.syspath_prepend(str(tmp_path / "trap"))
    entries = {
        "another module": {"name": ours, "digest": own_code.find_digest(ours)},
        "another digest": {"name": NAME, "digest": "f" * 64},
        "approved": {"name": NAME, "digest": digest},
    }[what]
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        tables = json.loads(server.contract.text)
        tables["train"]["batch_size"] = 32
        tables["algorithm"] = {
            "lr": 0.1,
            "epsilon": 1e-3,
            "solver": {"name": "SGD", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
            **entries,
        }
        answers.update(await server.offer(["a"], Contract(tables).text))

    _, ended = play(attack, tmp_path / "net", JOB, agreed=None, through=what != "approved")
    assert not (tmp_path / "trap" / "executed").exists()
    if what == "approved":
        assert type(answers["a"]).__name__ == "Ready"
        return
    assert type(answers["a"]).__name__ == "Unfit"
    assert "and nothing of it was run" in refusals(ended)[0]


def test_a_contract_alone_imports_nothing(tmp_path: Path) -> None:
    """Without a policy no code is approved, whatever a contract says."""
    write_files(tmp_path, SIZES)
    p = deployed.make_plan(FED, algorithm=FedExP(), **OPTIONS)
    contract = Contract.of(p, None, "server", [2])
    assert contract.tables["algorithm"]["name"] == NAME
    with pytest.raises(NotAgreed, match="which is not approved here"):
        contract.plan()
    (tmp_path / "policy.toml").write_text('[code]\n"os:system" = "yes"\n')
    with pytest.raises(BadParameter, match=r'write "package\.module:name" = "the digest'):
        read_approved(tmp_path)


# between real parties ---------------------------------------------------------------------------------------


def test_real_parties_train_with_an_own_algorithm_that_each_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("a", "b")
    provision(*names)
    write_files(tmp_path, {name: SIZES[name] for name in names})
    source = Path(__file__).with_name("fedexp.py")
    kits = [tmp_path / "kits" / name for name in ("server", *names)]
    for kit in kits:
        (kit / "code").mkdir()
        shutil.copy(source, kit / "code" / "own_fedexp.py")
    capsys.readouterr()
    digest = answer(capsys, "code", "own_fedexp:FedExP", "--kit", str(kits[0]))["digest"]
    job = JOB.replace('name = "FedAvg"', f'name = "own_fedexp:FedExP"\ndigest = "{digest}"')
    (tmp_path / "job.toml").write_text(job)
    _, text = said(capsys, "party", "--kit", "kits/a", "--data", "a.csv", "--check", "job.toml")
    assert "which is not approved here" in text
    for kit in kits:
        (kit / "policy.toml").write_text(f'[code]\n"own_fedexp:FedExP" = "{digest}"\n')
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(tmp_path, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        clients = [
            Role(tmp_path, n, "party", "--kit", f"kits/{n}", "--data", f"{n}.csv", "job.toml") for n in names
        ]
        codes = [role.wait() for role in (server, *clients)]
    finally:
        hub.process.terminate()
        hub.wait()
    assert codes == [0, 0, 0], server.log.read_text()
    run = tacit.load(tmp_path / "run")
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    assert 'name = "own_fedexp:FedExP"' in (tmp_path / "run" / "job.toml").read_text()
