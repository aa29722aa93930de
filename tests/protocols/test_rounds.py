"""Synchronous rounds: one program per party, over messages, equal to what the protocol is meant to
compute.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import PartyFailed, SumAborted
from tacit.parties.codec import decode, encode
from tacit.parties.ledger import Ledger
from tacit.protocols import rounds, summing
from tacit.protocols.rounds import Down, Stop, Upload, client, ideal, server
from tacit.runtimes.inprocess import InProcess

from ..awaited import awaited


class Study:
    """A server that averages, clients that pull towards their own number; both write down what they were
    asked.
    """

    def __init__(self, names: list[str], chosen: list[list[str]], tests: list[bool]):
        self.names, self.chosen, self.tests = names, chosen, tests
        self.w, self.log, self.answers = torch.zeros(2), [], []  # type: ignore[var-annotated]

    def down(self, r: int) -> dict[str, torch.Tensor]:
        return {"w": self.w}

    def local(self, name: str) -> Any:
        def compute(r: int, vectors: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
            k = self.names.index(name) + 1
            return float(k), {"w": vectors["w"] + k * (r + 1)}

        return compute

    def merge(self, r: int, ups: dict[str, tuple[float, dict[str, torch.Tensor]]]) -> None:
        self.w = sum(weight * v["w"] for weight, v in ups.values()) / sum(
            weight for weight, _ in ups.values()
        )
        self.log.append((r, sorted(ups), self.w.tolist()))

    def test(self, r: int) -> dict[str, torch.Tensor] | None:
        return {"w": self.w} if r >= 0 and self.tests[r] else None

    def tested(self, r: int, answers: dict[str, dict[str, torch.Tensor]]) -> None:
        self.answers.append((r, {name: v["seen"].tolist() for name, v in answers.items()}))

    def programs(self) -> dict[str, Any]:
        numbers = range(len(self.chosen))
        clients = {
            n: (lambda me, n=n: client(me, self.local(n), lambda r, v: {"seen": v["w"]})) for n in self.names
        }

        def boss(me):
            return server(
                me,
                self.names,
                numbers,
                lambda r: self.chosen[r],
                self.down,
                awaited(self.merge),
                awaited(self.test),
                awaited(self.tested),
            )

        return {"server": boss, **clients}


NAMES = ["a", "b", "c", "d"]
ROUND = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)


@settings(max_examples=20, deadline=None)
@given(chosen=st.lists(ROUND, max_size=4), tests=st.lists(st.booleans(), min_size=4, max_size=4))
def test_the_programs_compute_the_ideal(chosen: list[list[str]], tests: list[bool]) -> None:
    real, meant = Study(NAMES, chosen, tests), Study(NAMES, chosen, tests)
    ledger = Ledger()
    InProcess().run_sync(real.programs(), ledger=ledger)
    ideal(
        range(len(chosen)), lambda r: chosen[r], meant.down, {n: meant.local(n) for n in NAMES}, meant.merge
    )
    assert real.log == meant.log
    assert [r for r, _ in real.answers] == [r for r in range(len(chosen)) if tests[r]]
    for r, answers in real.answers:
        assert answers == dict.fromkeys(NAMES, real.log[r][2])  # everyone tests, chosen or not
    counts = {(s.party, s.sender, s.kind): s.count for s in ledger.seen}
    for name in NAMES:
        part = sum(name in c for c in chosen)
        assert counts.get(("server", name, "Upload"), 0) == counts.get((name, "server", "Down"), 0) == part
        assert (
            counts.get(("server", name, "Tested"), 0)
            == counts.get((name, "server", "Test"), 0)
            == len(real.answers)
        )
        assert counts[name, "server", "Stop"] == 1
    assert all(line.how == "executed" for line in ledger.seen)


def test_the_server_sees_updates_and_counts_and_clients_the_model_only() -> None:
    study, ledger = Study(NAMES, [NAMES], [True]), Ledger()
    InProcess().run_sync(study.programs(), ledger=ledger)
    assert {s.kind for s in ledger.seen if s.party == "server"} == {"Upload", "Tested"}
    assert {s.kind for s in ledger.seen if s.party != "server"} == {"Down", "Test", "Stop"}
    assert {s.sender for s in ledger.seen if s.party != "server"} == {"server"}


def test_a_client_that_fails_ends_the_run_and_is_named() -> None:
    study = Study(NAMES, [NAMES], [False])
    programs = study.programs()

    def broken(r: int, vectors: dict[str, torch.Tensor]) -> Any:
        raise ZeroDivisionError("no rows")

    programs["c"] = lambda me: client(me, broken, lambda r, v: v)
    with pytest.raises(PartyFailed, match=r"party 'c' failed: ZeroDivisionError: no rows"):
        InProcess().run_sync(programs)


@pytest.mark.parametrize(
    "message",
    [
        Down(3, {"w": torch.ones(4), "round": torch.tensor(2.0)}),
        Upload(2.5, {"delta": torch.ones(2, 3)}),
        rounds.Test(1, {}),
        rounds.Tested({"rows": torch.tensor(3.0), "confusion": torch.zeros(0, 0)}),
        Stop(),
    ],
    ids=lambda m: m.kind,
)
def test_every_message_survives_the_wire(message: Any) -> None:
    assert decode(encode(message)) == message


def test_the_model_before_training_is_tested_by_messages_too() -> None:
    study, ledger = Study(NAMES, [["a"]], [False]), Ledger()
    before = study.w.clone()
    study.test = lambda r: {"w": study.w} if r == -1 else None  # type: ignore[method-assign]
    InProcess().run_sync(study.programs(), ledger=ledger)
    assert study.answers == [(-1, dict.fromkeys(NAMES, before.tolist()))]
    assert sum(s.count for s in ledger.seen if s.kind == "Tested") == len(NAMES)


class Hidden:
    """A sum in which the clients say "here" and the server counts them. `fails[i]`: whether the i-th try is
    aborted.
    """

    enough = 2

    def __init__(self, tries: int = 3, fails: tuple[bool, ...] = ()):
        self.tries, self.fails, self.asked = tries, fails, 0

    async def server(self, me: Any, r: int, names: Any, within: float | None, sent: bytes) -> Any:
        came = await me.gather(names, Upload)
        self.asked += 1
        if self.asked <= len(self.fails) and self.fails[self.asked - 1]:
            await me.send(names, summing.RoundOver(True, "too few"))
            raise SumAborted("too few stayed.")
        await me.send(names, summing.RoundOver(False, ""))
        return torch.stack([m.vectors["w"] for m in came.values()]).sum(0), list(came), {}

    async def client(self, me: Any, r: int, vectors: Any, boss: str, sent: bytes, commitment: Any) -> None:
        await me.send(boss, Upload(1.0, vectors))
        with suppress(summing.LeftOut):
            await summing.receive(me, boss)


def hidden_run(sums: Hidden, asked: list[int]) -> tuple[list[Any], list[str]]:
    """Two rounds of two clients: the merged updates, and the notes about aborted tries."""
    merged: list[Any] = []
    told: list[str] = []

    def local(r: int, vectors: Any) -> Any:
        asked.append(r)
        return 1.0, {"w": torch.ones(1)}

    programs = {n: (lambda me: client(me, local, lambda r, v: v, hidden=lambda: sums)) for n in "ab"}

    def boss(me):
        return server(
            me,
            ["a", "b"],
            range(2),
            lambda r: ["a", "b"],
            lambda r: {},
            awaited(lambda r, s: merged.append((r, s.total.tolist()))),
            awaited(lambda r: None),
            awaited(lambda r, a: None),
            hidden=sums,
            aborted=lambda r, why: told.append(f"{r} {why}"),
        )

    InProcess().run_sync({"server": boss, **programs})
    return merged, told


def test_a_sum_with_too_few_survivors_is_tried_again_and_noted() -> None:
    asked: list[int] = []
    merged, told = hidden_run(Hidden(fails=(True, False, True)), asked)
    assert merged == [(0, [2.0]), (1, [2.0])]
    assert told == ["0 too few stayed.", "1 too few stayed."]
    assert sorted(asked) == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_sum_that_is_aborted_too_often_ends_the_run() -> None:
    with pytest.raises(
        PartyFailed, match=r"party 'server' failed: SumAborted: too few stayed\. Round 1 was tried 2 times\."
    ):
        hidden_run(Hidden(tries=2, fails=(True, True)), [])


def test_a_client_leaves_an_orphaned_sum_when_the_restarted_server_asks_again() -> None:
    """The server died after its request. The restarted server does not know that sum, and requests the round in a new
    one.
    """
    sums = Hidden()

    async def twice(me: Any) -> Any:
        await me.send("a", Down(0, {rounds.SESSION: torch.zeros(8, dtype=torch.uint8)}))
        await me.clock.sleep(5.0)
        again = torch.ones(8, dtype=torch.uint8)
        message = Down(0, {rounds.SESSION: again})
        await me.send("a", message)
        with me.scope(rounds._tag(message)) as here:
            total, _, _ = await sums.server(here, 0, ["a"], None, b"")
        await me.send("a", Stop())
        return total.tolist()

    found = InProcess().run_sync(
        {
            "server": twice,
            "a": lambda me: client(
                me, lambda r, v: (1.0, {"w": torch.ones(1)}), lambda r, v: v, hidden=lambda: sums
            ),
        }
    )
    assert found["server"] == [1.0]
