"""Admission: an absent party costs one deadline, and all parties are told when the server gives up.

On the virtual clock of one process, so that seconds are counted and not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tacit.errors import ProtocolError
from tacit.parties.party import Party
from tacit.protocols import joining, rounds
from tacit.protocols.joining import Admission, GaveUp, Ready, Work
from tacit.runtimes.inprocess import InProcess

from ..awaited import awaited

NAMES = ["a", "b", "c"]
DEADLINE = 10.0


class Run:
    """Five rounds with a deadline, which continue with two answers. `began` is the time of each round."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.merged: list[list[str]] = []

    async def server(self, me: Party) -> None:
        admission = Admission(
            me, NAMES, "1", lambda name: Work("contract", "run"), lambda name, ready: None, lambda text: None
        )

        def choose(r: int) -> list[str]:
            self.began.append(me.clock.now())
            return NAMES

        def merge(r: int, uploads: Any) -> None:
            self.merged.append(sorted(uploads))

        attending = asyncio.ensure_future(admission.run())
        try:
            await rounds.server(
                me,
                NAMES,
                range(5),
                choose,
                lambda r: {"w": torch.zeros(1)},
                awaited(merge),
                awaited(lambda r: None),
                awaited(lambda r, answers: None),
                within=DEADLINE,
                at_least=2,
                admission=admission,
            )
        finally:
            attending.cancel()

    def client(self, takes: Callable[[int], float] = lambda r: 0.0, joins_at: float = 0.0) -> Any:
        async def program(me: Party) -> None:
            await me.clock.until(joins_at)
            door = me.scope(joining.SCOPE)
            attending = asyncio.ensure_future(
                joining.attend(me, "server", "1", lambda work: Ready(1, 0, [1], 0, 1, ""))
            )
            try:
                await rounds.client(
                    me,
                    lambda r, vectors: (1.0, vectors),
                    lambda r, vectors: {},
                    done=lambda: door.send("server", joining.Free()),
                    takes=lambda r: me.clock.sleep(takes(r)),
                )
            finally:
                attending.cancel()

        return program

    def play(self, **clients: Any) -> None:
        InProcess().run_sync({"server": self.server, **{n: self.client() for n in NAMES}, **clients})


async def _absent(me: Party) -> None:
    """Never connects; the run is over for it when the server says so."""
    await me.recv("server", rounds.Stop)


def test_a_party_that_never_comes_costs_one_deadline() -> None:
    run = Run()
    run.play(c=_absent)
    assert run.began == [0.0, *[DEADLINE] * 4]
    assert run.merged == [["a", "b"]] * 5


def test_a_party_that_hangs_costs_one_deadline_and_is_asked_again_once_it_answers() -> None:
    """It takes two deadlines for its first round, and has answered when the third deadline would end."""
    run = Run()
    run.play(c=run.client(takes=lambda r: 25.0 if r == 0 else 0.0), a=run.client(takes=lambda r: 8.0))
    assert run.began == [0.0, 10.0, 18.0, 26.0, 34.0]
    assert run.merged == [["a", "b"], ["a", "b"], ["a", "b"], NAMES, NAMES]


def test_a_party_that_comes_late_is_awaited_from_then_on() -> None:
    run = Run()
    run.play(c=run.client(joins_at=15.0), a=run.client(takes=lambda r: 8.0))
    assert run.merged == [["a", "b"], NAMES, NAMES, NAMES, NAMES]


def test_a_client_is_told_that_the_server_gave_up_and_shows_one_line() -> None:
    """The reason is another party's text: control characters and pages of it do not reach the terminal."""

    async def server(me: Party) -> None:
        await me.scope(joining.SCOPE).recv("a", joining.Join)
        await me.scope(joining.SCOPE).send("a", GaveUp("b left.\n\x1b[2J" + "x" * 5000))

    async def client(me: Party) -> str:
        with pytest.raises(ProtocolError) as error:
            await joining.attend(me, "server", "1", lambda work: Ready(1, 0, [1], 0, 1, ""))
        return str(error.value)

    text = InProcess().run_sync({"server": server, "a": client})["a"]
    assert text.startswith("the server 'server' ended the run early: b left. [2Jxxx")
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) < 1300
    assert "start this party again" in text
