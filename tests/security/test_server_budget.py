"""A malicious server that wants more noisy answers, losses or counts than the contract allows.

Each test is an attack of the red-team review (with the number of the finding). "without" runs the same attack with one
protection removed, and there it succeeds.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.jobs.train import client_work, deployed
from tacit.jobs.train import member as members
from tacit.jobs.train.counts import blank_tally
from tacit.jobs.train.hidden_sums import HiddenCounts
from tacit.protocols import joining, rounds, secagg
from tests.clinics import write_files
from tests.runtimes.net import Net
from tests.security.lying_server import (
    CLIENTS,
    GUARDED,
    JOB,
    LOCAL_NOISE,
    SIZES,
    Attacker,
    play,
    refusals,
)


@pytest.mark.parametrize("noise", ["epsilon = 3.0", "multiplier = 1.0"])
def test_6_and_11_no_more_noisy_answers_than_agreed_whatever_the_run_is_called(
    noise: str, tmp_path: Path
) -> None:
    answered: list[int] = []

    def attack(run: str) -> Any:
        async def ask(server: Attacker) -> None:
            await server.offer(["a"], run=run)
            for _ in range(10):
                await server.me.send("a", rounds.Down(0, server.down(0)))
                await server.me.scope("round 0").recv("a", rounds.Upload)
                answered.append(1)

        return ask

    texts = []
    for k in range(3):  # the party is restarted, and told another name of the run
        gained, ended = play(attack(f"run {k}"), tmp_path / str(k), JOB + LOCAL_NOISE + noise, state=tmp_path)
        assert gained is None
        texts += refusals(ended)
    assert sum(answered) == 3  # as many as there are rounds, in all
    assert all("of the 3 times it agreed to" in text for text in texts)


def test_6_a_hidden_round_is_charged_once_and_answered_in_one_sum(tmp_path: Path) -> None:
    job = GUARDED.replace(
        '[[guard]]\nname = "Quantize"',
        '[[guard]]\nname = "Noise"\nplacement = "distributed"\nepsilon = 8.0\n[[guard]]\nname = "Quantize"',
    )

    async def attack(server: Attacker) -> int:
        await server.offer()
        opened = 0
        for _ in range(5):
            try:
                await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
                opened += 1
            except secagg.ProtocolError:
                continue
        return opened

    opened, _ = play(attack, tmp_path, job)
    assert opened == 1
    for name in CLIENTS:
        assert len((tmp_path / f"state-{name}" / "spent.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "ask", ["loss", "test twice", "test out of turn", "test beyond", "test in the clear"]
)
def test_7_losses_and_tests_are_answered_only_as_the_contract_says(ask: str, tmp_path: Path) -> None:
    """Finite differences of a loss give a gradient: so a loss is said only where the contract selects by it,
    and counts once for each tested model.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        model = server.task.initial()
        if ask == "loss":
            await server.me.send("a", rounds.Look(0, 0, model))
            return await server.me.scope("look 0 0").recv("a", rounds.Loss)
        turns = {
            "test twice": (-1, -1),
            "test out of turn": (0,),
            "test beyond": (3,),
            "test in the clear": (-1,),
        }[ask]
        for k, r in enumerate(turns):
            await server.me.send("a", rounds.Test(r, {"w": model["w"] + 1e-3 * k}))
            gained = await server.me.scope(f"test {r}").recv("a", rounds.Tested)
        return gained

    job = (
        GUARDED if ask == "test in the clear" else JOB.replace("rounds = 3", "rounds = 3\nevaluate_every = 3")
    )
    gained, ended = play(attack, tmp_path, job)
    assert gained is None
    words = {"test twice": "a different model 0 than before", "test in the clear": "in the clear"}.get(
        ask, "which is not part of the contract"
    )
    assert words in refusals(ended)[0]


def test_13_and_15_nobody_is_told_anothers_rows_and_no_figure_is_one_partys(tmp_path: Path) -> None:
    """An honest run over the hub. What a weight is a share of is in the contract; evaluation is a sum,
    too.
    """
    write_files(tmp_path, SIZES)
    (tmp_path / "job.toml").write_text(GUARDED)
    seen: list[set[str]] = []
    admit = client_work.ClientWork.admit

    def look(self: Any, kind: str, r: int, sent: Any) -> bool:
        seen.append(set(sent.vectors))
        return admit(self, kind, r, sent)

    async def run() -> Any:
        async with Net.of("server", *CLIENTS) as net, asyncio.timeout(300):
            clients = [
                asyncio.create_task(
                    net.party(
                        n,
                        lambda me, n=n: members.member(  # type: ignore[misc]
                            me,
                            {"table": str(tmp_path / f"{n}.csv")},
                            str(tmp_path / n),
                            agreement=deployed.agreement(net.kits[n], tmp_path / "job.toml"),
                        ),
                    )
                )
                for n in CLIENTS
            ]
            result = await asyncio.to_thread(
                deployed.coordinate, net.kits["server"], tmp_path / "job.toml", out=tmp_path / "run"
            )
            await asyncio.gather(*clients)
            return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_work.ClientWork, "admit", look)
        result = asyncio.run(run())
    assert set().union(*seen) == {
        "w",
        "round",
        rounds.SESSION,
    }  # no number that tells of another party's rows
    assert all("parties" not in event for event in result.history)
    assert {s.kind for s in result.ledger.seen if s.party == "server"} & {"Tested", "Upload", "Loss"} == set()
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"accuracy"' in events
    assert not any(
        f'"{name}"' in line for line in events.splitlines() if '"kind": "round"' in line for name in CLIENTS
    )


class FewerTerms(secagg.SecAggTerms):
    """A server that is content with fewer parties than the contract says."""

    @property
    def enough(self) -> int:
        return 2


def test_15_counts_are_summed_over_everyone_or_not_at_all(tmp_path: Path) -> None:
    """Counts hardly change with the model: of two sums on nearly the same model, over all parties and all but
    one, the difference is one party's.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        assert server.guard is not None
        counts = HiddenCounts(server.guard, len(CLIENTS), blank_tally(server.plan), server.contract.digest)
        model = server.task.initial()["w"]

        async def ask(r: int, w: torch.Tensor, names: tuple[str, ...]) -> torch.Tensor:
            message = rounds.Test(r, {"w": w, rounds.SESSION: torch.full((8,), 3 + r, dtype=torch.uint8)})
            terms = FewerTerms(
                **{
                    f.name: getattr(counts.terms(rounds.digest_of_request(message)), f.name)
                    for f in dataclasses.fields(secagg.SecAggTerms)
                }
            )
            await server.me.send(names, message)
            with server.me.scope(rounds._tag(message)) as here:
                return (await secagg.server(here, names, terms)).total

        everyone = await ask(-1, model, CLIENTS)
        return everyone - await ask(0, model + 1e-6, CLIENTS[:3])

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert any("received the keys of 3 parties, itself included; 4" in text for text in refusals(ended))


def test_a_party_whose_budget_is_spent_says_that_it_cannot_go_on(tmp_path: Path) -> None:
    """In a fixed sentence: nobody waits for it, and its reason stays its own."""

    async def attack(server: Attacker) -> Any:
        await server.offer(["a"])
        for _ in range(4):
            await server.me.send("a", rounds.Down(0, server.down(0)))
        while not isinstance(
            said := (await server.door.first(joining.Join, joining.Ready, joining.Free, joining.Unfit))[1],
            joining.Unfit,
        ):
            continue
        return said

    gained, _ = play(attack, tmp_path, JOB + LOCAL_NOISE + "multiplier = 1.0", through=True)
    assert gained.reason == "it declined; its own log says why"
