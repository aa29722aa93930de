"""Training scripts of real parties: kits, contracts and secure sums as for all parties, and servers that lie."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tacit.errors import TacitError
from tacit.jobs.train import deployed
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.member import member
from tacit.jobs.train.own_loop import Exchange
from tacit.protocols import rounds
from tests.cli.shell import Role, provision, said
from tests.clinics import write_files
from tests.own.scripts import party_loop
from tests.runtimes.net import Net
from tests.security.lying_server import SECAGG, SIZES, Attacker

SCRIPT = str(Path(__file__).with_name("scripts") / "party_loop.py")
JOB = """
[model]
name = "shapes"
shapes = { w = [2], b = [1] }
[algorithm]
name = "FedAvg"
[train]
rounds = 3
[client]
max_rows = 64
"""
NAMES = ("a", "b", "c")


def by_hand(folder: Path) -> dict[str, np.ndarray]:
    """Three rounds of federated averaging."""
    arrays = {"w": np.zeros(2), "b": np.zeros(1)}
    tables = [party_loop.rows_of(str(folder / f"{name}.csv")) for name in NAMES]
    for _ in range(3):
        sent = [(len(y), party_loop.fit(arrays, x, y)) for x, y in tables]
        arrays = {k: sum(n * s[k] for n, s in sent) / sum(n for n, _ in sent) for k in arrays}
    return arrays


def test_real_parties_train_with_scripts_of_their_own_under_secagg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two are started by `tacit party --script`, the third names its kit and its job itself."""
    monkeypatch.chdir(tmp_path)
    provision(*NAMES)
    write_files(tmp_path, {name: SIZES[name] for name in NAMES})
    (tmp_path / "job.toml").write_text(JOB + SECAGG)
    _, text = said(capsys, "party", "--kit", "kits/a", "--check", "job.toml")
    assert "model shapes, 3 rounds" in text
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(tmp_path, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        first = ["--script", SCRIPT, "--script-arg"]
        clients = [
            Role(tmp_path, n, "party", "--kit", f"kits/{n}", *first, f"{n}.csv", "job.toml") for n in "ab"
        ]
        with monkeypatch.context() as patched:
            patched.setattr("sys.argv", [SCRIPT, "c.csv", "kits/c", "job.toml"])
            import runpy

            runpy.run_path(SCRIPT, run_name="__main__")
        codes = [role.wait() for role in (server, *clients)]
    finally:
        hub.process.terminate()
        hub.wait()
    assert codes == [0, 0, 0], server.log.read_text() + clients[0].log.read_text()
    trained = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in by_hand(tmp_path).items():
        assert np.allclose(trained[name].numpy(), value, atol=1e-4)
    for name in NAMES:  # every party has the model, under the contract that it accepted
        assert (tmp_path / "kits" / name / "state" / "model" / "model.safetensors").exists()
    kinds = {seen["kind"] for seen in json.loads((tmp_path / "run" / "ledger.json").read_text())["seen"]}
    assert "Upload" not in kinds


def test_the_server_is_told_at_once_when_a_loop_fails_and_no_value_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    provision("a", "b")
    write_files(tmp_path, {name: SIZES[name] for name in "ab"})
    (tmp_path / "job.toml").write_text(JOB)
    hub = Role(tmp_path, "hub", "hub", "--kit", "kits/hub")
    try:
        server = Role(tmp_path, "server", "party", "--kit", "kits/server", "job.toml", "--out", "run")
        first = ["job.toml", "--script", SCRIPT, "--script-arg"]
        clients = [
            Role(tmp_path, "a", "party", "--kit", "kits/a", *first, "a.csv"),
            Role(tmp_path, "b", "party", "--kit", "kits/b", *first, "b.csv", "--script-arg", "fail"),
        ]
        codes = [role.wait() for role in (server, *clients)]
    finally:
        hub.process.terminate()
        hub.wait()
    assert all(codes)
    assert "'b': its own training loop ended with an error (ZeroDivisionError)" in server.log.read_text()
    assert "patient 17" not in server.log.read_text()
    assert "patient 17" in clients[1].log.read_text()


def test_data_and_scripts_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    provision("a", "b")
    (tmp_path / "job.toml").write_text(JOB)
    for words, text in (
        (["--script", SCRIPT, "--data", "a.csv", "job.toml"], "a script reads its own rows"),
        (["--script", SCRIPT], "a script needs the job that you agreed to"),
        (["--script", "none.py", "job.toml"], "there is no script none.py"),
    ):
        assert text in said(capsys, "party", "--kit", "kits/a", *words)[1]
    for wrong, text in (
        (JOB.replace("max_rows = 64", 'path = "x.py"'), "each has its own script"),
        (JOB.replace("[model]", "[data]\nlabel = 1\n[model]"), "known to their scripts only"),
        (JOB.replace("[client]\nmax_rows = 64\n", ""), "label is ''"),
    ):
        (tmp_path / "job.toml").write_text(wrong)
        assert text in said(capsys, "party", "--kit", "kits/a", "--check", "job.toml")[1]


# servers that lie ---------------------------------------------------------------------------------------------


def play(attack: Callable[[Attacker], Awaitable[Any]], folder: Path, job: str = JOB) -> tuple[Any, str, int]:
    """(what the attacker gained, how the party ended, how many tasks its loop was given)."""
    (folder / "job.toml").write_text(job)
    exchange, tasks = Exchange("a"), []

    def loop() -> None:
        while True:
            try:
                task = exchange.next()
            except TacitError:
                return
            if task is None:
                return
            tasks.append(task)
            exchange.send({k: v + 1 for k, v in task.weights.items()}, 5, None)

    async def run() -> tuple[Any, str]:
        async with Net.of("server", "a", "b") as net, asyncio.timeout(300):
            ours = deployed.agreement(net.kits["a"], folder / "job.toml")
            party = asyncio.create_task(
                net.party(
                    "a", lambda me: member(me, {}, str(folder / "state"), agreement=ours, loop=exchange)
                )
            )
            attacking = asyncio.create_task(
                net.party("server", lambda me: attack(Attacker(me, net.kits["server"], folder / "job.toml")))
            )
            await asyncio.wait([party, attacking], return_when=asyncio.FIRST_EXCEPTION)
            for task in (party, attacking):
                task.cancel()
            ended, gained = await asyncio.gather(party, attacking, return_exceptions=True)
            return gained, str(ended)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        gained, ended = asyncio.run(run())
    finally:
        exchange.close(None)
        thread.join(300)
    return gained, ended, len(tasks)


@pytest.mark.parametrize(
    "change",
    [
        ("train", "rounds", 1000),
        ("client", "max_rows", 10**6),
        ("client", "metrics", ["income"]),
        ("model", "shapes", [["w", [3]], ["b", [1]]]),
    ],
    ids=lambda c: c[1],
)
def test_a_contract_that_was_not_agreed_to_gives_the_loop_no_task(
    change: tuple[str, str, Any], tmp_path: Path
) -> None:
    async def attack(server: Attacker) -> Any:
        tables = json.loads(server.contract.text)
        tables[change[0]][change[1]] = change[2]
        answers = await server.offer(["a"], Contract(tables).text)
        return type(answers["a"]).__name__

    _, ended, tasks = play(attack, tmp_path)
    assert tasks == 0
    assert f"{change[0]}.{change[1]}" in ended
    assert "Nothing was read or sent" in ended


async def ask(server: Attacker, r: int, **more: Any) -> torch.Tensor:
    """Ask for round r as an honest server would, with `more`; return the update."""
    await server.me.send("a", rounds.Down(r, server.down(r, **more)))
    answer: Any = await server.me.scope(f"round {r}").recv("a", rounds.Upload)
    return answer.vectors["delta"]


@pytest.mark.parametrize(
    ("r", "more", "words"),
    [
        (1, {"w": torch.zeros(7)}, r"a model of shape \(7,\)"),
        (1, {"w": torch.zeros(3, dtype=torch.float64)}, "torch.float64"),
        (3, {}, "which is not part of the contract (3 rounds"),
        (10**6, {}, "which is not part of the contract (3 rounds"),
        (1, {"extra": torch.zeros(2)}, "which nothing in this job reads"),
    ],
    ids=["shape", "type", "one round more", "many more", "another vector"],
)
def test_a_task_that_the_contract_does_not_have_never_reaches_the_loop(
    r: int, more: dict[str, Any], words: str, tmp_path: Path
) -> None:
    async def attack(server: Attacker) -> None:
        await server.offer(["a"])
        assert (await ask(server, 0)).tolist() == [1, 1, 1]
        await ask(server, r, **more)

    _, ended, tasks = play(attack, tmp_path)
    assert tasks == 1
    assert words.replace("\\", "") in ended


def test_a_server_cannot_have_two_answers_to_one_round_on_different_models(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> None:
        await server.offer(["a"])
        await ask(server, 0)
        await ask(server, 0, w=torch.full((3,), 5.0))

    _, ended, tasks = play(attack, tmp_path)
    assert tasks == 1
    assert "a different model 0 than before" in ended


def test_no_evaluation_is_answered_for_a_loop(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> None:
        await server.offer(["a"])
        await server.me.send("a", rounds.Test(0, server.task.initial()))
        await server.me.scope("test 0").recv("a", rounds.Tested)

    _, ended, tasks = play(attack, tmp_path)
    assert tasks == 0
    assert "asks 'a' for a test of round 1, which is not part of the contract" in ended
