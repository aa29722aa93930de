"""A lying server against real clients over a real hub. Each test is an attack of the red-team review (the number is the finding's); "without" runs the same
attack with one protection removed, and there it succeeds: that is what the protection is for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.jobs import member as members
from tacit.jobs.contract import Contract
from tacit.jobs.record import Record, RecordedSum
from tacit.protocols import buffered, joining, rounds, secagg
from tacit.protocols.consent import RoundSpent
from tests.security.lying_server import CLIENTS, JOB, LOCAL_NOISE, SECAGG, SIZES, Attacker, play, refusals, update_of

GUARDED = JOB + SECAGG
WITHOUT = pytest.mark.parametrize("protected", [False, True], ids=["without", "with"])


def offered(attacker: Attacker, **changes: Any) -> str:
    """The agreed contract with entries changed: {"train.batch_size": 1}."""
    tables = json.loads(attacker.contract.text)
    for path, value in changes.items():
        *outer, last = path.split("__")
        here = tables
        for key in outer:
            here = here[key]
        here[last] = value
    return Contract(tables).text


# --- 1, 8, 14: the contract ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [
    {"pace": {"name": "FedBuff", "buffer": 1}}, {"train__batch_size": 1, "train__local_steps": 1}, {"train__rounds": 1000}, {"train__seed": 7},
    {"train__evaluate_every": 0}, {"guard": []}, {"parties": ["a", "b"]}, {"train__local_epochs": 50}, {"data__held_fraction": 0.9},
    {"select": {"name": "PowerOfChoice", "candidates": 4}}, {"algorithm__lr": 1e9}, {"federation": "other"}],
    ids=lambda changes: ", ".join(changes))
def test_1_and_8_any_other_contract_than_the_agreed_one_is_refused_before_a_row_is_read(changes: dict[str, Any], tmp_path: Path,
                                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(members, "own", lambda *given: read.append("rows"))
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, **changes)))

    _, ended = play(attack, tmp_path, GUARDED, through=True)
    assert read == []
    assert answers["a"] == joining.Unfit("it has not agreed to this job")  # a fixed text: no path, no column, no value
    assert "to which this party agreed, in" in refusals(ended)[0]  # the owner is told what differs


def test_1_a_party_that_hides_its_updates_answers_no_order_of_an_asynchronous_run(tmp_path: Path) -> None:
    """The agreed contract is accepted, and the server speaks the protocol of another pace."""
    async def attack(server: Attacker) -> Any:
        await server.offer()
        await server.me.send("a", buffered.Order(0, 0, server.down(0)))
        return await server.me.scope(buffered.SCOPE).recv("a", buffered.Answer)

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert "got 'Order'" in refusals(ended)[0]


def test_1_a_party_that_hides_its_updates_is_not_asked_for_them_in_the_clear(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        await server.me.send("a", rounds.Down(0, server.down(0)))
        return await server.me.scope("round 0").recv("a", rounds.Upload)

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert "the server asks for it in the clear" in refusals(ended)[0]


@pytest.mark.parametrize(("changes", "words"), [
    ({"train__min_rows": 1}, "min_rows = 1; without an agreed job at least 10"),
    ({"train__batch_size": 1, "train__local_steps": 1}, "batches of 1 rows; without an agreed job at least 8"), ({"train__rounds": 5000}, "has 5000 rounds"),
    ({"model": {"name": "mlp", "hidden": [30000, 30000]}}, "parameters; without an agreed job at most 50,000,000"),
    ({"parties": ["a", "evil"]}, "names another parties than this party's kit"),
    ({"pace": {"name": "FedBuff", "buffer": 2, "staleness": {"name": "Polynomial", "a": 0.5}}}, "does not go with FedBuff"),
    ({"train__surprise": 1}, "cannot be used|not in canonical form")])
def test_8_and_14_without_an_agreed_job_default_limits_apply(changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(members, "own", lambda *given: read.append("rows"))
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, **changes)))

    _, ended = play(attack, tmp_path, GUARDED, agreed=None, through=True)
    import re

    assert read == []
    assert re.search(words, refusals(ended)[0]), refusals(ended)
    assert answers["a"].reason in ("it has not agreed to this job", "it cannot take part. Its own log says why")


def test_14_a_refusal_tells_the_server_nothing_local(tmp_path: Path) -> None:
    """Columns that the file does not have, a label it does not have: without an agreed job the server hears the same fixed text."""
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        tables = json.loads(server.contract.text)
        tables["data"]["numbers"] = ["age", "weight"]
        answers.update(await server.offer(["a"], Contract(tables).text))

    _, ended = play(attack, tmp_path, JOB, agreed=None, through=True)
    assert "weight" in refusals(ended)[0]
    assert answers["a"].reason == "it cannot take part. Its own log says why"


def test_hidden_sums_stay_hidden_for_a_party_that_gave_no_job(tmp_path: Path) -> None:
    async def accept(server: Attacker) -> Any:
        answers = await server.offer(["a"])
        return answers["a"]

    first, _ = play(accept, tmp_path / "one", GUARDED, agreed=None, state=tmp_path)
    assert isinstance(first, joining.Ready)
    second, ended = play(accept, tmp_path / "two", JOB, agreed=None, state=tmp_path, through=True)
    assert second is None or isinstance(second, joining.Unfit)
    assert "asks for single updates in the clear, and this party has taken part in hidden sums before" in refusals(ended)[0]
    (shown,) = (tmp_path / "state-a").glob("contract-*.json")
    assert json.loads(shown.read_text())["guard"][-1]["name"] == "SecAgg"  # what was accepted is there for its owner


# --- 2, 3: everything that is sent down is bound -------------------------------------------------------------------------------------------


@WITHOUT
@pytest.mark.parametrize("lie", ["heaviest", "model"])
def test_2_and_3_parties_that_are_sent_different_things_give_no_sum(lie: str, protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2: a huge "heaviest" for all but the victim rounds their updates to zero. 3: a model on which the others' updates vanish (saturated logits)."""
    if not protected:
        monkeypatch.setattr(rounds, "_sent", lambda message: b"")

    async def attack(server: Attacker) -> tuple[torch.Tensor, torch.Tensor]:
        await server.offer()
        honest = server.down(0)
        other = server.down(0, **({"guard.heaviest": torch.tensor(1e30, dtype=torch.float64)} if lie == "heaviest" else {"w": honest["w"] * 0 + 0.5}))
        total = await server.ask_sum(0, CLIENTS, lambda name: honest if name == "d" else other)
        mine = update_of("d", tmp_path, server, 0, honest)
        return total, mine

    gained, ended = play(attack, tmp_path, GUARDED)
    if protected:
        assert gained is None
        assert any("did not sign" in text for text in refusals(ended))
    else:
        total, mine = gained
        if lie == "heaviest":
            assert torch.equal(total, mine)  # the "sum" is the victim's update


@pytest.mark.parametrize("state", [{"guard.clip": torch.tensor(1e9, dtype=torch.float64)}, {"guard.heaviest": torch.tensor(float("nan"), dtype=torch.float64)},
                                   {"guard.heaviest": torch.tensor(-1.0, dtype=torch.float64)}, {"guard.heaviest": torch.zeros(3, dtype=torch.float64)},
                                   {"surprise": torch.zeros(1)}], ids=["unknown", "nan", "negative", "shape", "unread"])
def test_2_guard_state_that_the_guard_does_not_have_is_refused(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        return await server.ask_sum(0, CLIENTS, lambda name: server.down(0, **state))

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert "Nothing was sent" in refusals(ended)[0] or "nothing in this job reads" in refusals(ended)[0]


# --- 4, 5: one sum a round -------------------------------------------------------------------------------------------------------------------


@WITHOUT
def test_4_the_same_round_with_other_participants_gives_no_second_sum(protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not protected:
        monkeypatch.setattr(Record, "spent", lambda self, kind, r: False)
        monkeypatch.setattr(RecordedSum, "upload", lambda self, participants: True)

    async def attack(server: Attacker) -> Any:
        await server.offer()
        first = await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        try:
            second = await server.ask_sum(0, CLIENTS[:3], lambda name: server.down(0))
        except secagg.ProtocolError as error:
            return error
        return first - second, update_of("d", tmp_path, server, 0, server.down(0))

    gained, _ = play(attack, tmp_path, GUARDED)
    if protected:
        assert isinstance(gained, rounds.SumAborted)
        assert gained.spent
        assert "already took part in a sum of this round" in str(gained)
    else:
        difference, mine = gained
        assert torch.equal(difference, mine)


@WITHOUT
def test_5_a_try_that_was_abandoned_at_unmasking_leaves_no_second_sum(protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody's masked vector and the shares of some arrived; the server says "aborted", asks again without one party, and opens the first try later."""
    if not protected:
        monkeypatch.setattr(Record, "spent", lambda self, kind, r: False)
        monkeypatch.setattr(RecordedSum, "upload", lambda self, participants: True)

    async def attack(server: Attacker) -> Any:
        await server.offer()
        asked = secagg.Steps.ask

        async def hold_back(self: Any, names: Any, kind: Any, step: str, *more: Any, **options: Any) -> Any:
            got = await asked(self, names, kind, step, *more, **options)
            if step == "unmasking":
                raise await self.abort(names, "a pretext")  # with all shares in hand
            return got

        monkeypatch.setattr(secagg.Steps, "ask", hold_back)
        with pytest.raises(secagg.ProtocolError, match="a pretext"):
            await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        monkeypatch.setattr(secagg.Steps, "ask", asked)
        try:
            return await server.ask_sum(0, CLIENTS[:3], lambda name: server.down(0))
        except secagg.ProtocolError as error:
            return error

    gained, _ = play(attack, tmp_path, GUARDED)
    assert isinstance(gained, rounds.SumAborted) if protected else isinstance(gained, torch.Tensor)


def test_4_a_round_that_was_broken_off_before_shares_is_repeated_with_the_same_participants_only(tmp_path: Path) -> None:
    """What an honest server needs that was killed in a round; and what a lying one does not get: the same with one party less."""
    async def attack(server: Attacker) -> Any:
        await server.offer()
        assert server.hidden is not None
        session = torch.zeros(8, dtype=torch.uint8)
        message = rounds.Down(0, server.down(0) | {rounds.SESSION: session})
        await server.me.send(CLIENTS, message)
        with server.me.scope(rounds._tag(message)) as here:  # up to the masked vectors, and no further
            keys = await here.gather(CLIENTS, secagg.AdvertisedKeys)
            await here.send(CLIENTS, secagg.RoundKeys({v: (m.channel, m.mask, m.signature) for v, m in keys.items()}))
            shares = await here.gather(CLIENTS, secagg.SealedShares)
            for name in CLIENTS:
                await here.send(name, secagg.ForwardedShares({v: m.sealed[name] for v, m in shares.items() if v != name}))
            await here.gather(CLIENTS, secagg.MaskedVector)
        fewer: Any = None
        try:
            fewer = await server.ask_sum(0, CLIENTS[:3], lambda name: server.down(0))
        except secagg.ProtocolError as error:
            fewer = error
        again = await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        return fewer, again

    (fewer, again), _ = play(attack, tmp_path, GUARDED)
    assert isinstance(fewer, rounds.SumAborted)
    assert isinstance(again, torch.Tensor)


def test_4_a_restarted_party_still_knows_what_it_answered(tmp_path: Path) -> None:
    async def once(server: Attacker) -> Any:
        await server.offer()
        return await server.ask_sum(0, CLIENTS, lambda name: server.down(0))

    first, _ = play(once, tmp_path / "one", GUARDED, state=tmp_path)
    assert isinstance(first, torch.Tensor)

    async def again(server: Attacker) -> Any:  # other processes of the parties, another name of the run
        await server.offer(run="another")
        with pytest.raises(rounds.SumAborted) as error:
            await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        return error.value.spent

    second, _ = play(again, tmp_path / "two", GUARDED, state=tmp_path)
    # another federation's authority made the kits, so its name and parties are the same, and so is the contract
    assert second is True


def test_4_one_model_a_round_in_the_clear_too(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        for k in range(2):
            await server.me.send("a", rounds.Down(0, server.down(0, w=server.down(0)["w"] + 0.1 * k)))
            gained = await server.me.scope("round 0").recv("a", rounds.Upload)
        return gained

    gained, ended = play(attack, tmp_path, JOB)
    assert gained is None
    assert "the server sends another model 0 than before" in refusals(ended)[0]


def test_5_with_whole_batches_a_model_is_answered_once(tmp_path: Path) -> None:
    """The next round on the same model would give the same update: its sum over fewer parties could be subtracted."""
    async def attack(server: Attacker) -> Any:
        await server.offer()
        await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        return await server.ask_sum(1, CLIENTS[:3], lambda name: server.down(1))

    gained, ended = play(attack, tmp_path, GUARDED.replace("rounds = 3", 'rounds = 3\nbatch_size = "none"'))
    assert gained is None
    assert "with whole batches it would be the same update" in refusals(ended)[0]


# --- 6, 11: the budget is the party's --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["epsilon = 3.0", "multiplier = 1.0"])
def test_6_and_11_no_more_noisy_answers_than_agreed_whatever_the_run_is_called(noise: str, tmp_path: Path) -> None:
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
    job = GUARDED.replace('[[guard]]\nname = "Quantize"', '[[guard]]\nname = "Noise"\nplacement = "distributed"\nepsilon = 8.0\n[[guard]]\nname = "Quantize"')

    async def attack(server: Attacker) -> int:
        await server.offer()
        opened = 0
        for _ in range(5):
            try:
                await server.ask_sum(0, CLIENTS, lambda name: {k: v for k, v in server.down(0).items() if k != "guard.heaviest"})
                opened += 1
            except secagg.ProtocolError:
                continue
        return opened

    opened, _ = play(attack, tmp_path, job)
    assert opened == 1
    for name in CLIENTS:
        assert len((tmp_path / f"state-{name}" / "spent.jsonl").read_text().splitlines()) == 1


# --- 7: oracles ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["loss", "test twice", "test out of turn", "test beyond", "test in the clear"])
def test_7_losses_and_tests_are_answered_only_as_the_contract_says(ask: str, tmp_path: Path) -> None:
    """Finite differences of a loss give a gradient: so a loss is said only where the contract selects by it, and counts once for each tested model."""
    async def attack(server: Attacker) -> Any:
        await server.offer()
        model = server.task.initial()
        if ask == "loss":
            await server.me.send("a", rounds.Look(0, 0, model))
            return await server.me.scope("look 0 0").recv("a", rounds.Loss)
        turns = {"test twice": (-1, -1), "test out of turn": (0,), "test beyond": (3,), "test in the clear": (-1,)}[ask]
        for k, r in enumerate(turns):
            await server.me.send("a", rounds.Test(r, {"w": model["w"] + 1e-3 * k}))
            gained = await server.me.scope(f"test {r}").recv("a", rounds.Tested)
        return gained

    job = GUARDED if ask == "test in the clear" else JOB.replace("rounds = 3", "rounds = 3\nevaluate_every = 3")
    gained, ended = play(attack, tmp_path, job)
    assert gained is None
    words = {"test twice": "another model 0 than before", "test in the clear": "in the clear"}.get(ask, "which is not part of the contract")
    assert words in refusals(ended)[0]


# --- 13, 15: what else was seen --------------------------------------------------------------------------------------------------------------


def test_13_clients_learn_the_largest_partys_rows_to_a_power_of_two_and_the_ledger_says_so(tmp_path: Path) -> None:
    import asyncio as aio

    from tacit.jobs import deployed
    from tests.runtimes.net import Net

    folder, down = tmp_path, []
    admit = members.Work.admit

    def look(self: Any, kind: str, r: int, vectors: Any) -> bool:
        down.append(vectors.get("guard.heaviest"))
        return admit(self, kind, r, vectors)

    from tests.security.lying_server import write_files

    write_files(folder)
    (folder / "job.toml").write_text(GUARDED)

    async def run() -> Any:
        async with Net.of("server", *CLIENTS) as net, aio.timeout(120):
            clients = [aio.create_task(net.party(n, lambda me, n=n: members.member(
                me, {"table": str(folder / f"{n}.csv")}, str(folder / n), agreement=deployed.agreement(net.kits[n], folder / "job.toml")))) for n in CLIENTS]
            result = await aio.to_thread(deployed.coordinate, net.kits["server"], folder / "job.toml", out=folder / "run")
            await aio.gather(*clients)
            return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members.Work, "admit", look)
        result = aio.run(run())
    told = {float(v) for v in down if v is not None}
    most = max(int(n) - round(0.4 * n) for n in SIZES.values())
    assert told == {2.0 ** int(np.ceil(np.log2(most)))}
    assert most not in told
    line = next(s for s in result.ledger.seen if s.kind == "Down") if any(s.kind == "Down" for s in result.ledger.seen) else None
    reveals = rounds.Down.reveals if line is None else line.reveals
    assert "largest party's number of rows, rounded up to a power of two" in reveals

    # 15: evaluation is a sum, too; nothing of one party is in what the server wrote
    assert all("parties" not in event for event in result.history)
    seen = {s.kind for s in result.ledger.seen if s.party == "server"}
    assert "Tested" not in seen
    assert "Upload" not in seen
    events = (folder / "run" / "events.jsonl").read_text()
    assert '"accuracy"' in events
    held = {str(n): round(0.4 * n) for n in SIZES.values()}
    assert sum(held.values()) > 0


def test_15_counts_are_not_told_by_party_over_two_tests_of_one_model(tmp_path: Path) -> None:
    """Counts of one model over two sets of parties differ by one party's: the same model is counted in one sum."""
    async def attack(server: Attacker) -> Any:
        from tacit.jobs.hiding import HiddenCounts
        from tacit.jobs.messages import blank_counts

        await server.offer()
        assert server.guard is not None
        counts = HiddenCounts(server.guard, len(CLIENTS), blank_counts(server.task, 2), server.contract.digest)
        model, gained = server.task.initial(), []
        for r, names in ((-1, CLIENTS), (0, CLIENTS[:3]), (-1, CLIENTS[:3])):
            session = torch.full((8,), 3 + r + len(names), dtype=torch.uint8)
            message = rounds.Test(r, {**model, rounds.SESSION: session})
            await server.me.send(names, message)
            with server.me.scope(rounds._tag(message)) as here:
                try:
                    gained.append((await counts.server(here, r, names, None, rounds._sent(message)))[0])
                except secagg.ProtocolError as error:
                    gained.append(error)
        return gained

    gained, _ = play(attack, tmp_path, GUARDED)
    first, *others = gained
    assert isinstance(first, torch.Tensor)
    assert all(isinstance(other, rounds.SumAborted) for other in others)


def test_messages_of_a_spent_round_reveal_nothing_else() -> None:
    assert RoundSpent() == RoundSpent()
    assert asyncio.iscoroutinefunction(secagg.client)
