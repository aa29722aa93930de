"""A malicious server against DP-SGD at real parties: it wants more of a party's rows than their ε covers.

The adversary has the server's kit. Each party's account and noise are its own: nothing that the server says
changes how often its rows are used, and what it learns from a repeated question is what it knew.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.accounting.account_file import AccountFile
from tacit.accounting.mixture import mixed_epsilon
from tacit.jobs.train import client_work, deployed
from tacit.jobs.train import member as members
from tacit.jobs.train.client_work import ClientWork
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.party_rows import read_rows
from tacit.jobs.train.record import Record
from tacit.protocols import joining, rounds
from tests.clinics import write_files
from tests.runtimes.net import Net
from tests.security.lying_server import JOB, SECAGG, SIZES, Attacker, play, refusals

SCALED = JOB.replace(
    'numbers = ["age", "chol"]', 'numbers = ["age", "chol"]\nmean = [50, 200]\nstd = [10, 30]'
)
PRIVATE = SCALED + "[private]\nepsilon = 3.0\ndelta = 1e-3\npublic_size = 100\n"
NOISY_SIZE = PRIVATE.replace("public_size = 100\n", "")


def lines(folder: Path, name: str = "a") -> AccountFile:
    file = AccountFile(folder / f"state-{name}" / "spent.jsonl")
    file.refresh()
    return file


def spent(folder: Path, name: str = "a") -> float:
    """ε of all that the party's own file has, whatever the contract."""
    return mixed_epsilon([(line.release, line.times) for line in lines(folder, name).lines], 1e-3)


def ask(server: Attacker, r: int, w: torch.Tensor | None = None) -> Any:
    """Ask party a for its update of round r."""

    async def send() -> rounds.Upload:
        await server.me.send("a", rounds.Down(r, server.down(r, **({} if w is None else {"w": w}))))
        return await server.me.scope(f"round {r}").recv("a", rounds.Upload)

    return send()


def test_a_repeated_question_gets_the_same_bits_and_costs_nothing(tmp_path: Path) -> None:
    """Also when the party was restarted in between. The noise of one update averages out over many draws."""
    updates: list[torch.Tensor] = []

    async def attack(server: Attacker) -> None:
        await server.offer(["a"], run=f"run {len(updates)}")
        for _ in range(5):
            updates.append(torch.cat(list((await ask(server, 0)).vectors.values())))

    for _ in range(2):
        play(attack, tmp_path, PRIVATE)
    assert len(updates) == 10
    assert all(torch.equal(updates[0], other) for other in updates)
    assert sum(line.times for line in lines(tmp_path).lines) == 4  # one pass over 100 rows in batches of 32


def test_without_the_stored_answer_every_question_would_be_another_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: the account then ends it, after as many draws as there are rounds."""
    monkeypatch.setattr(client_work.RowPrivacy, "stored", lambda self, r, content: None)
    updates: list[torch.Tensor] = []

    async def attack(server: Attacker) -> None:
        await server.offer(["a"])
        while True:
            updates.append(torch.cat(list((await ask(server, 0)).vectors.values())))

    _, ended = play(attack, tmp_path, PRIVATE)
    assert len(updates) == 3
    assert not torch.equal(updates[0], updates[1])
    assert "which its account does not cover: 12 of 12 agreed releases were made" in refusals(ended)[0]


@pytest.mark.parametrize("job", [PRIVATE, NOISY_SIZE], ids=["declared size", "noisy size"])
def test_the_account_stays_within_epsilon_whatever_the_server_asks(job: str, tmp_path: Path) -> None:
    """All rounds, then one more, then another model in a round it has answered."""
    answered: list[int] = []

    async def attack(server: Attacker) -> None:
        await server.offer(["a"])
        for r in (0, 1, 2, 3):
            await ask(server, r)
            answered.append(r)

    async def other_model(server: Attacker) -> None:
        await server.offer(["a"])
        await ask(server, 2, torch.full_like(server.task.initial()["w"], 0.5))
        answered.append(-1)

    texts = [t for attempt in (attack, other_model) for t in refusals(play(attempt, tmp_path, job)[1])]
    assert answered == [0, 1, 2]
    assert "a update of round 4, which is not part of the contract (3 rounds" in texts[0]
    assert "the server sends a different model 2 than before under the same contract" in texts[1]
    assert 2.9 < spent(tmp_path) <= 3.0 * (1 + 1e-6)


def test_an_owner_who_allows_one_more_run_does_not_get_the_budget_back(tmp_path: Path) -> None:
    """--again forgets which models were seen. What was released stays released."""
    write_files(tmp_path, SIZES)
    (tmp_path / "job.toml").write_text(PRIVATE)
    texts: list[str] = []

    async def run() -> None:
        async with Net.of("server", "a", "b", "c", "d") as net, asyncio.timeout(300):
            ours = deployed.agreement(net.kits["a"], tmp_path / "job.toml")

            async def rounds_of(me: Any, again: bool) -> None:
                server = Attacker(me, net.kits["server"], tmp_path / "job.toml")
                await server.offer(["a"])
                for r in range(3):
                    w = torch.full_like(server.task.initial()["w"], float(again))
                    await ask(server, r, w)
                await me.send("a", rounds.Stop())

            for again in (False, True):
                server = asyncio.create_task(
                    net.party("server", lambda me, again=again: rounds_of(me, again))
                )
                try:
                    await net.party(
                        "a",
                        lambda me, again=again: members.member(
                            me,
                            {"table": str(tmp_path / "a.csv")},
                            str(tmp_path / "state-a"),
                            agreement=ours,
                            again=again,
                        ),
                    )
                except Exception as error:
                    texts.append(str(error))
                finally:
                    server.cancel()
                    await asyncio.gather(server, return_exceptions=True)

    asyncio.run(run())
    assert len(texts) == 1
    assert "12 of 12 agreed releases were made" in texts[0]
    assert spent(tmp_path) <= 3.0 * (1 + 1e-6)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"private": None}, "private (agreed: {"),
        ({"private__epsilon": 300.0}, "private.epsilon (agreed: 3.0, offered: 300.0)"),
        ({"private__clip": 1000.0}, "private.clip (agreed: 1.0, offered: 1000.0)"),
        ({"private__public_size": 10}, "private.public_size (agreed: 100, offered: 10)"),
        ({"private__noise_multiplier": 0.01}, "private.noise_multiplier (agreed: null, offered: 0.01)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_contract_with_less_noise_is_refused(change: dict[str, Any], what: str, tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        tables = json.loads(server.contract.text)
        for path, value in change.items():
            *outer, last = path.split("__")
            here = tables
            for key in outer:
                here = here[key]
            here[last] = value
        await server.offer(["a"], Contract(tables).text)
        await asyncio.Event().wait()  # until the party has raised

    _, ended = play(attack, tmp_path, PRIVATE)
    assert what in str(ended["a"])


def test_the_server_learns_no_number_of_rows(tmp_path: Path) -> None:
    """Neither when a party joins, nor from the weight of its update."""

    async def attack(server: Attacker) -> Any:
        ready = await server.offer()
        return ready, await ask(server, 0)

    (ready, upload), _ = play(attack, tmp_path, NOISY_SIZE)
    assert {(answer.rows, answer.held) for answer in ready.values()} == {(joining.WITHHELD,) * 2}
    assert upload.weight == 1.0


def test_a_row_moves_no_other_between_training_and_held_out_rows(tmp_path: Path) -> None:
    """ε is for one row more or less, wherever it is in the file: no other may change sides with it."""
    write_files(tmp_path, {"a": 200})
    layout = deployed.read(_write(tmp_path / "job.toml", PRIVATE))[0]
    whole = read_rows("a", tmp_path / "a.csv", layout, 0, True)
    text = (tmp_path / "a.csv").read_text().splitlines()
    for gone in (0, 77, 199):  # the header is line 0
        _write(tmp_path / "less.csv", "\n".join(text[: gone + 1] + text[gone + 2 :]) + "\n")
        less = read_rows("a", tmp_path / "less.csv", layout, 0, True)
        kept = [k for k in whole.held.index.tolist() if k != gone]
        assert [k - (k > gone) for k in kept] == less.held.index.tolist()
        assert torch.equal(whole.rows.x[kept], less.rows.x[less.held.index])
    assert 50 < len(whole.held.index) < 110  # 0.4 of 200
    other = read_rows("a", tmp_path / "a.csv", layout, 1, True)
    assert other.held.index.tolist() != whole.held.index.tolist()


def test_the_noisy_number_of_rows_is_drawn_once_and_charged(tmp_path: Path) -> None:
    write_files(tmp_path, SIZES)
    _write(tmp_path / "job.toml", NOISY_SIZE)
    sizes = []

    async def contract() -> str:
        async with Net.of("server", "a", "b", "c", "d") as net:
            return deployed.agreement(net.kits["a"], tmp_path / "job.toml").agreed.text  # type: ignore[union-attr]

    text = asyncio.run(contract())
    for _ in range(3):  # the party is restarted
        work = ClientWork("a", {"table": str(tmp_path / "a.csv")}, tmp_path / "state-a", "")
        work.prepare(joining.Work(text, "run"))
        assert work.rows is not None
        sizes.append(work.rows.size)
    assert len(set(sizes)) == 1
    assert len(lines(tmp_path).lines) == 1
    assert Record(tmp_path / "state-a", "a", Contract.read(text).digest).count == sizes[0]


def test_under_secure_aggregation_a_round_is_charged_once(tmp_path: Path) -> None:
    job = PRIVATE + SECAGG.replace("max_rows = 64\n", "")

    async def attack(server: Attacker) -> Any:
        await server.offer()
        names = ["a", "b", "c", "d"]
        total = await server.ask_sum(0, names, lambda name: server.down(0))
        return total

    gained, ended = play(attack, tmp_path, job)
    assert gained is not None, ended
    assert sum(line.times for line in lines(tmp_path).lines) == 4


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (JOB + "[private]\nepsilon = 3.0\npublic_size = 100\n", "Declare mean and std in [data]"),
        (SCALED + "[private]\nnoise_multiplier = 1.0\n", "Give epsilon, or public_size"),
        (SCALED + "[private]\nnoise_multiplier = 0.0\n", "nothing is guaranteed to the parties"),
        (SCALED + "[private]\nepsilon = 3.0\nsampling = 'shuffle'\n", "sampling='poisson'"),
        (PRIVATE + '[pace]\nname = "FedBuff"\n', "it would not be known beforehand"),
    ],
)
def test_a_job_whose_epsilon_would_not_hold_is_refused(job: str, why: str, tmp_path: Path) -> None:
    file = _write(tmp_path / "job.toml", job)

    async def agree() -> None:
        async with Net.of("server", "a") as net:
            deployed.agreement(net.kits["a"], file)

    with pytest.raises(ValueError, match=re.escape(why)):
        asyncio.run(agree())


def _write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file
