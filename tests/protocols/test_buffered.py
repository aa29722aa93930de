"""Asynchronous training, one program per party: equal to its ideal; what is late, wrong or given up does no
harm.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import pace
from tacit.errors import PartyFailed
from tacit.pace import Arrival
from tacit.parties.codec import decode, encode
from tacit.parties.party import Party
from tacit.protocols import rounds
from tacit.protocols.buffered import Answer, Order, client, ideal, server
from tacit.runtimes.inprocess import InProcess

from ..awaited import awaited

NAMES = ("a", "b", "c")
State = dict[str, torch.Tensor]


class Study:
    """A server that adds up, clients that answer with where they began and who they are; both write down what
    happened and when.
    """

    def __init__(self, one: Any, seconds: dict[str, float], at_once: int = 3, last: int = 5):
        self.desk, self.pace, self.seconds, self.last = one.scheduler(NAMES, at_once, 0), one, seconds, last
        self.w, self.now = torch.zeros(1), 0.0
        self.log: list[Any] = []
        self.tests: list[Any] = []
        self.dropped: list[Any] = []

    def answer(self, name: str, number: int, version: int, down: State) -> tuple[float, State]:
        return 1.0 + NAMES.index(name), {"delta": down["w"] * 0.5 + NAMES.index(name) + 1 + number}

    def down(self, order: Any) -> State:
        return {"w": self.w.clone()}

    def came(self, order: Any, weight: float, vectors: State) -> None:
        self.desk.add(Arrival(order, weight, vectors))

    def merge(self) -> bool:
        batch = self.desk.take_batch({"delta": self.w})
        if batch is None:
            return False
        self.w = self.w + sum(
            weight * move["delta"]
            for weight, move in self.pace.updates(batch, self.desk.version, {"delta": self.w})
        )
        self.log.append(
            (self.desk.version, [a.order for a in self.desk.participants(batch)], self.w.tolist())
        )
        self.desk.advance()
        return True

    def by_messages(
        self, wrong: Any = lambda name, message: None, clients: Any = None, **options: Any
    ) -> None:
        def program(name: str) -> Any:
            def start(me: Party) -> Any:
                async def work(number: int, version: int, down: State) -> tuple[float, State]:
                    await me.clock.sleep(self.seconds[name])
                    return self.answer(name, number, version, down)

                return client(me, work, lambda v, down: {"seen": down["w"]})

            return start

        def boss(me: Party) -> Any:
            return server(
                me,
                NAMES,
                self.desk,
                self.last,
                self.down,
                self.came,
                awaited(self.merge),
                lambda v: {"w": self.w} if v % 2 else None,
                awaited(lambda v, answers: self.tests.append((v, me.clock.now(), sorted(answers)))),
                wrong=wrong,
                dropped=lambda v, who: self.dropped.append((v, dict(who))),
                **options,
            )

        InProcess().run_sync({"server": boss, **{name: program(name) for name in NAMES}, **(clients or {})})

    def by_itself(self) -> None:
        sent: dict[int, State] = {}

        def seconds(orders: Any) -> list[float]:
            for order in orders:
                sent[order.serial] = self.down(order)
            return [self.seconds[o.name] for o in orders]

        for _ in ideal(
            self.desk,
            self.last,
            seconds,
            lambda o: self.answer(o.name, o.number, o.version, sent[o.serial]),
            self.came,
            self.merge,
        ):
            pass


PACES = st.one_of(
    st.builds(pace.FedBuff, st.integers(1, 5)),
    st.builds(pace.FedAsync),
    st.builds(
        pace.SAFA, st.sampled_from([0.3, 0.6, 1.0]), st.integers(1, 3), st.sampled_from([None, 1.0, 2.5])
    ),
)
TIMES = st.fixed_dictionaries(
    dict.fromkeys(NAMES, st.sampled_from([0.5, 1.0, 1.5, 4.0, 9.0]))
)  # few, so that some come in one instant


@settings(max_examples=60, deadline=None)
@given(one=PACES, seconds=TIMES, at_once=st.integers(1, 3))
def test_the_programs_compute_the_ideal(one: Any, seconds: dict[str, float], at_once: int) -> None:
    """The same versions, of the same pieces of work, begun at the same moments."""
    there, here = Study(one, seconds, at_once), Study(one, seconds, at_once)
    there.by_messages()
    here.by_itself()
    assert there.log == here.log
    assert [v for v, *_ in there.log] == list(range(5))
    assert there.dropped == []


def test_everyone_tests_at_work_or_not() -> None:
    study = Study(pace.FedBuff(1), {"a": 1.0, "b": 100.0, "c": 100.0}, last=4)
    study.by_messages()
    assert [(v, who) for v, _, who in study.tests] == [(-1, list(NAMES)), (1, list(NAMES)), (3, list(NAMES))]
    assert [now for _, now, _ in study.tests] == [0.0, 2.0, 4.0]  # nobody waits for b and c


def test_an_order_that_is_not_answered_in_time_is_abandoned_and_its_party_named() -> None:
    study = Study(pace.FedBuff(2), {"a": 1.0, "b": 1.0, "c": 50.0}, last=6)
    study.by_messages(within=3.0)
    assert study.dropped[0] == (2, {"c": "no answer within 3 s"})
    assert {o.name for _, orders, _ in study.log for o in orders} == {"a", "b"}


def test_a_party_that_lags_too_far_drops_its_work_and_restarts() -> None:
    """c takes 3.5 s and rounds take 1 s: with lag 1 it is set back at 2 s and every 2 s after, and never
    answers; with lag 5 it does.
    """
    for lag, heard in ((1, False), (5, True)):
        study = Study(pace.SAFA(fraction=0.6, lag=lag, deadline=1.0), {"a": 0.9, "b": 0.9, "c": 3.5}, last=8)
        study.by_messages()
        assert any(o.name == "c" for _, orders, _ in study.log for o in orders) is heard


def test_an_unusable_answer_ends_a_run_without_a_deadline() -> None:
    study = Study(pace.FedBuff(2), dict.fromkeys(NAMES, 1.0))
    with pytest.raises(PartyFailed, match="party 'server' has no valid answer of 'b': it is odd"):
        study.by_messages(
            wrong=lambda name, message: "it is odd" if name == "b" and isinstance(message, Answer) else None
        )


def test_bytes_that_are_not_an_answer_are_distinguished_from_answers() -> None:
    async def liar(me: Party) -> None:
        test = await me.recv("server", rounds.Test)
        await me.scope("test -1").send("server", rounds.Tested({"seen": test.vectors["w"]}))
        order = await me.recv("server", Order)
        await me.scope("work").send("server", order)  # an Order where an Answer belongs
        await asyncio.Event().wait()

    study = Study(pace.FedBuff(3), dict.fromkeys(NAMES, 1.0))
    with pytest.raises(
        PartyFailed,
        match=r"party 'server' has no valid answer of 'b': .* expected Answer from 'b' in scope "
        r"'work', got 'Order'",
    ):
        study.by_messages(clients={"b": liar}, at_least=None)


class Open:
    """A fake in which all parties are always connected."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    async def wait_for_free(self, names: Any, need: int, within: float | None) -> list[str]:
        return list(names)

    def available(self, busy: bool) -> list[str]:
        return list(NAMES)

    def add_request(self, names: Any, message: Any, busy: bool) -> None: ...
    def complete_request(self, names: Any, kind: Any, answered: bool = True) -> None: ...
    def miss(self, names: Any) -> None: ...

    async def refuse(self, name: str, reason: str) -> None:
        self.refused[name] = reason


def test_an_unusable_answer_is_refused_and_the_others_continue() -> None:
    admission, study = Open(), Study(pace.FedBuff(2), dict.fromkeys(NAMES, 1.0))
    study.by_messages(
        wrong=lambda name, message: "it is odd" if name == "b" and isinstance(message, Answer) else None,
        admission=admission,
        within=30.0,
    )
    assert admission.refused == {"b": "it is odd"}
    assert {o.name for _, orders, _ in study.log for o in orders} == {"a", "c"}


def test_a_model_that_no_party_evaluates_ends_the_run_with_the_reasons() -> None:
    async def silent(me: Party) -> None:
        await asyncio.Event().wait()

    study = Study(pace.FedBuff(2), dict.fromkeys(NAMES, 1.0))
    with pytest.raises(
        PartyFailed,
        match=r"has no valid Tested of version 0: 'a': no answer within 2 s; 'b': no answer within 2 "
        r"s; 'c'",
    ):
        study.by_messages(clients=dict.fromkeys(NAMES, silent), admission=Open(), within=2.0)


def test_a_failed_piece_of_work_is_its_partys_failure() -> None:
    async def broken(me: Party) -> None:
        async def work(number: int, version: int, down: State) -> tuple[float, State]:
            raise ValueError("no rows left")

        await client(me, work, lambda v, down: {"seen": down["w"]})

    with pytest.raises(PartyFailed, match="party 'b' failed: ValueError: no rows left"):
        Study(pace.FedBuff(2), dict.fromkeys(NAMES, 1.0)).by_messages(clients={"b": broken})


@settings(max_examples=30, deadline=None)
@given(
    number=st.integers(0, 2**31),
    version=st.integers(0, 2**31),
    weight=st.floats(0, 1e9),
    values=st.lists(st.floats(-1e9, 1e9, width=32), max_size=8),
)
def test_orders_and_answers_come_back_from_the_wire_as_they_were(
    number: int, version: int, weight: float, values: list[float]
) -> None:
    w = torch.tensor(values, dtype=torch.float32)
    order = decode(encode(Order(number, version, {"w": w})), (Order,))
    assert (order.number, order.version) == (number, version)
    assert torch.equal(order.vectors["w"], w)
    answer = decode(encode(Answer(number, weight, {"delta": w})), (Answer,))
    assert (answer.number, answer.weight) == (number, weight)
    assert torch.equal(answer.vectors["delta"], w)


def test_a_server_restarted_after_its_last_version_waits_for_no_party() -> None:
    """Its clients may have received Stop before it was killed, and have exited."""
    from types import SimpleNamespace

    from tacit.protocols import buffered

    async def server(me):
        await buffered.server(
            me,
            ["a"],
            SimpleNamespace(version=3, at_work={}),
            3,
            None,
            None,
            None,
            None,
            None,
            admission=SimpleNamespace(),
        )

    async def client(me):
        return type(await me.recv("server", buffered.Stop)).__name__

    assert InProcess().run_sync({"server": server, "a": client})["a"] == "Stop"
