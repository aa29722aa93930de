"""Parties that leave in the middle: what a closed laptop looks like to the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tacit.parties.party import Party, Program, Transport


class Left(Exception):
    pass


@dataclass(frozen=True)
class _Leaving:
    inner: Transport
    words: list[int]

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        if self.words[0] <= 0:
            raise Left
        self.words[0] -= 1
        await self.inner.deliver(sender, to, scope, frame)


def leaving(programs: Mapping[str, Program], after: Mapping[str, int]) -> dict[str, Program]:
    """The same programs, with each party in `after` dropping out after it has sent that many messages."""

    def one(name: str, program: Program) -> Program:
        async def alive(me: Party) -> Any:
            try:
                return await program(replace(me, transport=_Leaving(me.transport, [after[name]])))
            except Left:
                return None

        return alive if name in after else program

    return {name: one(name, program) for name, program in programs.items()}
