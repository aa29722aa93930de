"""A hub and parties' links in one event loop, over real sockets: for the tests of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tacit.parties import Message
from tacit.runtimes.hub import Hub
from tacit.runtimes.kits import Kit, temporary
from tacit.runtimes.link import Link
from tests.ports import free_port


class NetBall(Message, reveals="where the ball is"):
    x: int


class NetSecret(Message, reveals="everything"):
    text: str
    blob: bytes = b""


DEADLINE = 300.0  # seconds after which a test that hangs has failed; no result depends on it
# long enough for a loaded machine; a message is kept for a party that connects late
OPTIONS = {"seed": 0, "linger": 3.0, "patience": DEADLINE, "start_wait": DEADLINE}


class Net:
    """`async with Net.of("a", "b") as net: await net.run(a=program, b=program)`."""

    def __init__(self, hub: Hub, kits: dict[str, Kit]):
        self.hub, self.kits = hub, kits
        self.links: dict[str, Link] = {}

    @classmethod
    @asynccontextmanager
    async def of(
        cls, *names: str, tap: Callable[[str, str, bytes], list[bytes]] | None = None
    ) -> AsyncIterator[Net]:
        mine, kits = temporary("test", names)
        hub = Hub(
            replace(mine, listen=f"127.0.0.1:{free_port()}"), tap
        )  # a restarted one listens there again
        port = await hub.start()
        net = cls(hub, {name: kit.at(f"127.0.0.1:{port}") for name, kit in kits.items()})
        try:
            yield net
        finally:
            await net.hub.stop()

    async def restart(self, down: float = 0.0) -> None:
        """The hub stops at once, as if killed, and another replaces it."""
        kit, port, tap = self.hub.kit, self.hub.port, self.hub.tap
        await self.hub.stop()
        await asyncio.sleep(down)
        self.hub = Hub(replace(kit, listen=f"127.0.0.1:{port}"), tap)
        await self.hub.start()

    async def party(self, name: str, program: Any, **options: Any) -> Any:
        async with Link(self.kits[name], **{**OPTIONS, **options}) as link:
            self.links[name] = link
            return await link.run(program)

    async def run(self, **programs: Any) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
            tasks = {name: group.create_task(self.party(name, program)) for name, program in programs.items()}
        return {name: task.result() for name, task in tasks.items()}

    def noticed(self) -> list[str]:
        return [text for link in self.links.values() for text in link.notes]


async def throw(me: Any, to: str, count: int = 20, size: int = 0) -> list[int]:
    got = []
    for i in range(count):
        await me.send(to, NetSecret(str(i), bytes(size)))
        got.append((await me.recv(to, NetBall)).x)
    return got


async def catch(me: Any, sender: str, count: int = 20) -> None:
    for _ in range(count):
        await me.send(sender, NetBall(int((await me.recv(sender, NetSecret)).text)))


async def exchange(
    me: Any, other: str, n: int, sizes: list[int], heard: list[int] | None = None
) -> list[int]:
    """Send n messages of these sizes while receiving n; return their numbers, which `heard` gets one by one."""
    heard = [] if heard is None else heard

    async def hear() -> None:
        for _ in range(n):
            heard.append(int((await me.recv(other, NetSecret)).text))

    async def tell() -> None:
        for i in range(n):
            await me.send(other, NetSecret(str(i), bytes(sizes[i % len(sizes)])))

    await asyncio.gather(hear(), tell())
    return heard
