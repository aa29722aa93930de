"""Run the server of `tacit ui`."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadParameter, MissingExtra

if TYPE_CHECKING:
    import uvicorn

PORT = 8642


def need_ui() -> None:
    """Raise MissingExtra if starlette or uvicorn is not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtra("tacit ui", "ui", "starlette") from None


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens; without a port the usual one, or a free one if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (PORT, 0) if port is None else (port,):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, number))
            sock.listen(128)
        except OSError as error:
            sock.close()
            if port is None and number == PORT:
                continue
            why = error.strerror or error
            raise BadParameter(
                f"ui: cannot listen on {host}, port {number}: {why}. Give another --host or --port."
            ) from None
        return sock
    raise BadParameter(f"ui: no port of {host} is free. Give --port.")


def serve(
    runs: Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    kit: Path | None = None,
    control: bool = False,
    debug: bool = False,
    until: threading.Event | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the pages until interrupted; `or until `until` is set; `ready` is called with the address."""
    need_ui()
    import uvicorn

    from .app import Pages, address_of, create_app
    from .federation_page import Federation
    from .jobs import Jobs
    from .security import new_token

    sock = listen(host, port)
    number, token = int(sock.getsockname()[1]), new_token()
    shown = f"[{host}]" if ":" in host else host
    hosts = {f"{shown}:{number}", f"localhost:{number}", f"127.0.0.1:{number}"}

    async def run() -> None:
        federation = None if kit is None else Federation.load(kit, control)
        jobs = (
            Jobs(runs, kit) if control and (federation is None or federation.kit.role == "server") else None
        )
        pages = Pages(runs, federation, jobs)
        app = create_app(pages, token, hosts, debug)
        config = uvicorn.Config(
            app,
            log_level="info" if debug else "warning",
            access_log=False,  # its lines contain the token
            timeout_graceful_shutdown=1,
            server_header=False,
            date_header=False,
            h11_max_incomplete_event_size=1 << 16,
        )
        server = uvicorn.Server(config)

        async def announce() -> None:
            while not server.started:
                await asyncio.sleep(0.02)
            ready(address_of(host, number, token))

        announcing = asyncio.create_task(announce())
        watching = asyncio.create_task(_watch(server, pages.stopping, until))
        try:
            await server.serve(sockets=[sock])
        finally:
            announcing.cancel()
            watching.cancel()

    asyncio.run(run())


async def _watch(server: uvicorn.Server, stopping: asyncio.Event, until: threading.Event | None) -> None:
    """End the streams of open pages when the server is asked to stop: it would wait for them."""
    while not server.should_exit and not (until is not None and until.is_set()):
        await asyncio.sleep(0.1)
    stopping.set()
    server.should_exit = True
