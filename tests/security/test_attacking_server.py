"""A malicious server against real clients over a real hub. Each test is an attack of the red-team review (with the
number of the finding); "without" runs the same attack with one protection removed, and there it succeeds, which
shows what the protection is for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.errors import BadJob
from tacit.jobs.train import deployed
from tacit.jobs.train import member as members
from tacit.jobs.train.contract import Contract
from tacit.jobs.train.hidden_sums import HiddenCounts
from tacit.jobs.train.messages import blank_counts
from tacit.jobs.train.record import Record, RecordedSum
from tacit.protocols import buffered, joining, rounds, secagg
from tacit.protocols.consent import RoundSpent
from tests.runtimes.net import Net
from tests.security.lying_server import (
    CLIENTS,
    JOB,
    LOCAL_NOISE,
    SECAGG,
    SIZES,
    Attacker,
    play,
    refusals,
    update_of,
    write_files,
)

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


# --- 1, 8, 14: the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"pace": {"name": "FedBuff", "buffer": 1}},
        {"train__batch_size": 1, "train__local_steps": 1},
        {"train__rounds": 1000},
        {"train__seed": 7},
        {"train__evaluate_every": 0},
        {"guard": []},
        {"parties": ["a", "b"]},
        {"train__local_epochs": 50},
        {"data__held_fraction": 0.9},
        {"losses": True},
        {"algorithm__lr": 1e9},
        {"federation": "other"},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_1_and_8_any_other_contract_than_the_agreed_one_is_refused_before_a_row_is_read(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(members, "read_rows", lambda *given: read.append("rows"))
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, **changes)))

    _, ended = play(attack, tmp_path, GUARDED, through=True)
    assert read == []
    assert answers["a"] == joining.Unfit(
        "it has not agreed to this job"
    )  # a fixed text: no path, no column, no value
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
    assert "the server requests them in the clear" in refusals(ended)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train__min_rows": 1}, "min_rows = 1; without an agreed job at least 10"),
        (
            {"train__batch_size": 1, "train__local_steps": 1},
            "a batch size of 1; without an agreed job at least 8",
        ),
        ({"train__rounds": 5000}, "has 5000 rounds"),
        (
            {"model": {"name": "mlp", "hidden": [30000, 30000]}},
            "parameters; without an agreed job at most 50,000,000",
        ),
        ({"parties": ["a", "evil"]}, "names another parties than this party's kit"),
        (
            {"pace": {"name": "FedBuff", "buffer": 2, "staleness": {"name": "Polynomial", "a": 0.5}}},
            "cannot be combined with FedBuff",
        ),
        ({"train__surprise": 1}, "cannot be used|not in canonical form"),
    ],
)
def test_8_and_14_without_an_agreed_job_default_limits_apply(
    changes: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(members, "read_rows", lambda *given: read.append("rows"))
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, **changes)))

    _, ended = play(attack, tmp_path, GUARDED, agreed=None, through=True)
    assert read == []
    assert re.search(words, refusals(ended)[0]), refusals(ended)
    assert answers["a"].reason in ("it has not agreed to this job", "it declined; its own log says why")


def test_14_a_refusal_tells_the_server_nothing_local(tmp_path: Path) -> None:
    """Columns that the file does not have, a label it does not have: without an agreed job the server hears
    the same fixed text.
    """
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        tables = json.loads(server.contract.text)
        tables["data"]["numbers"] = ["age", "weight"]
        answers.update(await server.offer(["a"], Contract(tables).text))

    _, ended = play(attack, tmp_path, JOB, agreed=None, through=True)
    assert "weight" in refusals(ended)[0]
    assert answers["a"].reason == "it declined; its own log says why"


def test_hidden_sums_stay_hidden_for_a_party_that_gave_no_job(tmp_path: Path) -> None:
    async def accept(server: Attacker) -> Any:
        answers = await server.offer(["a"])
        return answers["a"]

    first, _ = play(accept, tmp_path / "one", GUARDED, agreed=None, state=tmp_path)
    assert isinstance(first, joining.Ready)
    second, ended = play(accept, tmp_path / "two", JOB, agreed=None, state=tmp_path, through=True)
    assert second is None or isinstance(second, joining.Unfit)
    assert (
        "asks for single updates in the clear, and this party has taken part in hidden sums before"
        in refusals(ended)[0]
    )
    (shown,) = (tmp_path / "state-a").glob("contract-*.json")
    assert (
        json.loads(shown.read_text())["guard"][-1]["name"] == "SecAgg"
    )  # what was accepted is there for its owner


# --- 2, 3: everything that is sent down is bound ------------------------------------------------------------


@WITHOUT
def test_3_parties_that_are_sent_different_models_give_no_sum(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pasquini et al. 2022: a model with dead units for all but the victim. What a hidden sum is bound to
    includes the model.
    """
    if not protected:
        monkeypatch.setattr(rounds, "digest_of_request", lambda message, digests=None: b"")

    async def attack(server: Attacker) -> tuple[torch.Tensor, torch.Tensor]:
        await server.offer()
        honest = server.down(0)
        total = await server.ask_sum(
            0, CLIENTS, lambda name: honest if name == "d" else server.down(0, w=honest["w"] * 0 + 0.5)
        )
        return total, update_of("d", tmp_path, server, 0, honest)

    gained, ended = play(attack, tmp_path, GUARDED)
    if protected:
        assert gained is None
        assert any("did not sign" in text for text in refusals(ended))
    else:
        assert isinstance(gained[0], torch.Tensor)  # a sum over different models was opened


def test_2_a_weight_is_a_share_of_an_agreed_number_and_of_nothing_a_server_sends(tmp_path: Path) -> None:
    """The demonstrated attack sent a huge "heaviest" to all but the victim, in the round or in one before
    it.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        huge = {"guard.heaviest": torch.tensor(1e30, dtype=torch.float64)}
        return await server.ask_sum(0, CLIENTS, lambda name: server.down(0, **({} if name == "d" else huge)))

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert "the server's state 'heaviest' is unexpected" in refusals(ended)[0]
    with pytest.raises(
        BadJob, match=r"its weight is a share of a number that all parties agree on\. Give SecAgg max_rows"
    ):
        play(attack, tmp_path, GUARDED.replace("max_rows = 64", ""))


def test_2_guard_state_of_a_round_that_was_abandoned_is_not_kept(tmp_path: Path) -> None:
    """An adaptive norm is the guard's one state that servers send (not against an active one): every round
    says it anew.
    """
    job = GUARDED.replace("norm = 20.0", "norm = 20.0\nquantile = 0.5").replace('adversary = "active"', "")

    async def attack(server: Attacker) -> Any:
        await server.offer()
        clip = lambda value: {"guard.clip": torch.tensor(value, dtype=torch.float64)}  # noqa: E731
        for name in CLIENTS:
            tiny = server.down(0, **clip(20.0 if name == "d" else 1e-12))
            await server.me.send(
                name, rounds.Down(0, tiny | {rounds.SESSION: torch.zeros(8, dtype=torch.uint8)})
            )
        with server.me.scope(
            rounds._tag(rounds.Down(0, {rounds.SESSION: torch.zeros(8, dtype=torch.uint8)}))
        ) as here:
            await here.gather(CLIENTS, secagg.AdvertisedKeys)
        return await server.ask_sum(1, CLIENTS, lambda name: server.down(1))  # says nothing of the norm

    gained, ended = play(attack, tmp_path, job)
    assert gained is None
    assert "the server's state 'clip' is unexpected, missing" in refusals(ended)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            '[algorithm]\nname = "Scaffold"',
            "clients of Scaffold keep state from round to round, and an active server could prepare it",
        ),
        ('[algorithm]\nname = "IFCA"', "a cluster with one party shows its update"),
        ("quantile", "Clip depends on what a server sent before, which an active server chooses"),
    ],
)
def test_2_what_an_active_server_could_prepare_is_not_promised(
    changes: str, words: str, tmp_path: Path
) -> None:
    """The sum of such a job hides single updates from a curious server only, or from none; it is refused
    where it is planned, by every party.
    """
    job = (
        GUARDED.replace("norm = 20.0", "norm = 20.0\nquantile = 0.5")
        if changes == "quantile"
        else GUARDED.replace('[algorithm]\nname = "FedAvg"', changes)
    )

    async def attack(server: Attacker) -> None:
        raise AssertionError("no party starts with this job")

    with pytest.raises(BadJob, match=words):
        play(attack, tmp_path, job)


@pytest.mark.parametrize(
    "state",
    [
        {"guard.clip": torch.tensor(1e9, dtype=torch.float64)},
        {"surprise": torch.zeros(1)},
        {"round": torch.tensor(7.0)},
    ],
    ids=["unknown", "unread", "round"],
)
def test_2_guard_state_that_the_guard_does_not_have_is_refused(
    state: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        return await server.ask_sum(0, CLIENTS, lambda name: server.down(0, **state))

    gained, ended = play(attack, tmp_path, GUARDED)
    assert gained is None
    assert any(
        words in refusals(ended)[0]
        for words in ("Nothing was sent", "nothing in this job reads", "number of another round")
    )


# --- 4, 5: one sum a round ----------------------------------------------------------------------------------


@WITHOUT
def test_4_the_same_round_with_other_participants_gives_no_second_sum(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_5_a_try_that_was_abandoned_at_unmasking_leaves_no_second_sum(
    protected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody's masked vector and the shares of some arrived; the server says "aborted", asks again without
    one party, and opens the first try later.
    """
    if not protected:
        monkeypatch.setattr(Record, "spent", lambda self, kind, r: False)
        monkeypatch.setattr(RecordedSum, "upload", lambda self, participants: True)

    async def attack(server: Attacker) -> Any:
        await server.offer()
        asked = secagg.SumSteps.ask

        async def hold_back(self: Any, names: Any, kind: Any, step: str, *more: Any, **options: Any) -> Any:
            got = await asked(self, names, kind, step, *more, **options)
            if step == "unmasking":
                raise await self.abort(names, "a pretext")  # with all shares in hand
            return got

        monkeypatch.setattr(secagg.SumSteps, "ask", hold_back)
        with pytest.raises(secagg.ProtocolError, match="a pretext"):
            await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        monkeypatch.setattr(secagg.SumSteps, "ask", asked)
        try:
            return await server.ask_sum(0, CLIENTS[:3], lambda name: server.down(0))
        except secagg.ProtocolError as error:
            return error

    gained, _ = play(attack, tmp_path, GUARDED)
    assert isinstance(gained, rounds.SumAborted) if protected else isinstance(gained, torch.Tensor)


def test_4_a_round_that_was_broken_off_before_shares_is_repeated_with_the_same_participants_only(
    tmp_path: Path,
) -> None:
    """What an honest server needs that was killed in a round; and what a lying one does not get: the same
    with one party less.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        assert server.hidden is not None
        session = torch.zeros(8, dtype=torch.uint8)
        message = rounds.Down(0, server.down(0) | {rounds.SESSION: session})
        await server.me.send(CLIENTS, message)
        with server.me.scope(rounds._tag(message)) as here:  # up to the masked vectors, and no further
            keys = await here.gather(CLIENTS, secagg.AdvertisedKeys)
            await here.send(
                CLIENTS, secagg.RoundKeys({v: (m.channel, m.mask, m.signature) for v, m in keys.items()})
            )
            shares = await here.gather(CLIENTS, secagg.SealedShares)
            for name in CLIENTS:
                await here.send(
                    name, secagg.ForwardedShares({v: m.sealed[name] for v, m in shares.items() if v != name})
                )
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
    # another federation's authority made the kits, so its name and parties are the same, and so is the
    # contract
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
    assert "a different model 0 than before" in refusals(ended)[0]


@pytest.mark.parametrize("batch", ['"none"', "32"])  # no party has more than 24 rows to train on
def test_5_with_whole_batches_a_model_is_answered_once(batch: str, tmp_path: Path) -> None:
    """The next round on the same model would give the same update: its sum over fewer parties could be
    subtracted.
    """

    async def attack(server: Attacker) -> Any:
        await server.offer()
        await server.ask_sum(0, CLIENTS, lambda name: server.down(0))
        try:
            return await server.ask_sum(1, CLIENTS[:3], lambda name: server.down(1))
        except secagg.ProtocolError as error:
            return error

    gained, _ = play(attack, tmp_path, GUARDED.replace("rounds = 3", f"rounds = 3\nbatch_size = {batch}"))
    assert isinstance(gained, rounds.SumAborted)
    assert gained.spent


# --- 6, 11: the budget is the party's -----------------------------------------------------------------------


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


# --- 7: oracles ---------------------------------------------------------------------------------------------


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


# --- 13, 15: what else was seen -----------------------------------------------------------------------------


def test_13_and_15_nobody_is_told_anothers_rows_and_no_figure_is_one_partys(tmp_path: Path) -> None:
    """An honest run over the hub. What a weight is a share of is in the contract; evaluation is a sum,
    too.
    """
    write_files(tmp_path)
    (tmp_path / "job.toml").write_text(GUARDED)
    seen: list[set[str]] = []
    admit = members.ClientWork.admit

    def look(self: Any, kind: str, r: int, sent: Any) -> bool:
        seen.append(set(sent.vectors))
        return admit(self, kind, r, sent)

    async def run() -> Any:
        async with Net.of("server", *CLIENTS) as net, asyncio.timeout(120):
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
        patch.setattr(members.ClientWork, "admit", look)
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
        counts = HiddenCounts(
            server.guard, len(CLIENTS), blank_counts(server.task, 2), server.contract.digest
        )
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


# --- what else a review found -------------------------------------------------------------------------------


def test_one_client_that_sends_bad_shares_ends_the_sum_and_not_the_other_clients(tmp_path: Path) -> None:
    async def attack(server: Attacker) -> Any:
        await server.offer()
        message = rounds.Down(0, server.down(0) | {rounds.SESSION: torch.zeros(8, dtype=torch.uint8)})
        await server.me.send(CLIENTS, message)
        with server.me.scope(rounds._tag(message)) as here:
            keys = await here.gather(CLIENTS, secagg.AdvertisedKeys)
            await here.send(
                CLIENTS, secagg.RoundKeys({v: (m.channel, m.mask, m.signature) for v, m in keys.items()})
            )
            shares = await here.gather(CLIENTS, secagg.SealedShares)
            for name in CLIENTS:  # those of "c" are zeros, as a malicious "c" would send them
                boxes = {
                    v: bytes(len(m.sealed[name])) if v == "c" else m.sealed[name]
                    for v, m in shares.items()
                    if v != name
                }
                await here.send(name, secagg.ForwardedShares(boxes))
            spent = await here.gather([n for n in CLIENTS if n != "c"], RoundSpent)
        return len(spent), await server.ask_sum(1, CLIENTS, lambda name: server.down(1))

    gained, _ = play(attack, tmp_path, GUARDED)
    assert gained[0] == 3
    assert isinstance(gained[1], torch.Tensor)  # they are there in the next round


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__held_fraction": 0.99}, "would train on 1 rows; without an agreed job at least 8"),
        ({"train__local_epochs": 1000}, "has 1000 local epochs"),
        (
            {"classes": 20000, "data__labels": [f"l{k}" for k in range(20000)]},
            "has 20000 classes; without an agreed job at most 1000",
        ),
    ],
)
def test_without_an_agreed_job_few_rows_and_large_jobs_are_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    answers: dict[str, Any] = {}

    async def attack(server: Attacker) -> None:
        answers.update(await server.offer(["a"], offered(server, **changes)))

    _, ended = play(attack, tmp_path, JOB, agreed=None, through=True)
    assert words in refusals(ended)[0]
    assert isinstance(answers["a"], joining.Unfit)


def test_without_an_agreed_job_a_server_does_not_get_new_contracts_without_end(tmp_path: Path) -> None:
    """Every seed is another contract, with another record and another account."""

    def attack(seed: int) -> Any:
        async def offer(server: Attacker) -> Any:
            return (await server.offer(["a"], offered(server, train__seed=seed)))["a"]

        return offer

    answers = [
        play(attack(seed), tmp_path / str(seed), JOB, agreed=None, state=tmp_path, through=seed == 3)[0]
        for seed in range(4)
    ]
    assert [type(answer) for answer in answers] == [joining.Ready] * 3 + [joining.Unfit]


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


def test_a_party_answers_a_job_on_one_file(tmp_path: Path) -> None:
    """Two updates on the same model, from files that differ by some rows, would show those rows."""

    async def attack(server: Attacker) -> Any:
        answers = await server.offer(["a"])
        if isinstance(answers["a"], joining.Unfit):
            return answers["a"].reason
        await server.me.send("a", rounds.Down(0, server.down(0)))
        return await server.me.scope("round 0").recv("a", rounds.Upload)

    assert isinstance(play(attack, tmp_path / "one", JOB, state=tmp_path)[0], rounds.Upload)
    assert isinstance(
        play(attack, tmp_path / "two", JOB, state=tmp_path)[0], rounds.Upload
    )  # the same file, the same model: the same answer
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "a", 39)
        gained, ended = play(attack, tmp_path / "three", JOB, state=tmp_path, through=True)
    assert gained == "it declined; its own log says why"
    assert "is not the file that 'a' answered this job with before" in refusals(ended)[0]
