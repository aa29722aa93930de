"""Endpoints for those who operate a hub or a server: is it alive, is it ready, its figures for Prometheus.

    GET /healthz    200 while the process works; 503 if its event loop has stopped for ALIVE seconds
    GET /readyz     200 if it can do its work; 503 with the reason if not
    GET /metrics    figures in Prometheus' text format 0.0.4

They contain sums over all parties, never a party's name, and no figure of a model. They are served without
encryption and without a password, on this machine only unless another address is given.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple

from ..errors import BadParameter

ALIVE = 30.0  # seconds: a busy loop may be late by one, a stopped one does not come back
PATIENCE = 5.0  # seconds for one request
LOCAL = "127.0.0.1"


class Metric(NamedTuple):
    """One figure. The name of a counter ends with `_total`, as is the custom."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    value: float


class Pulse:
    """When the event loop was last seen to work."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def beat(self) -> None:
        self.last = time.monotonic()

    @property
    def is_alive(self) -> bool:
        return time.monotonic() - self.last < ALIVE


def to_text(metrics: Iterable[Metric]) -> str:
    """Return figures in Prometheus' text format."""
    lines: list[str] = []
    for metric in metrics:
        text = metric.text.replace("\\", "\\\\").replace("\n", "\\n")
        lines += [
            f"# HELP {metric.name} {text}",
            f"# TYPE {metric.name} {metric.kind}",
            f"{metric.name} {_number(metric.value)}",
        ]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def split_monitor_address(address: str) -> tuple[str, int]:
    """Return host and port of "PORT" (this machine only), "HOST:PORT" or "[IPV6]:PORT"."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or LOCAL
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in host and "[" not in address):
        raise BadParameter(
            f"--monitor is {address!r}; it must be a port (this machine only) or an address and a port, like "
            "9464, 127.0.0.1:9464 or 0.0.0.0:9464."
        )
    return host, int(port)


class Monitor:
    """Answers /healthz, /readyz and /metrics, in a thread of its own: `with Monitor(…) as monitor:`.

    `metrics()` returns the figures; `why_not_ready()` returns "" if the process is ready; `is_alive()`
    returns whether it works at all. They are called in that thread, and only read.
    """

    def __init__(
        self,
        address: str,
        metrics: Callable[[], Iterable[Metric]],
        why_not_ready: Callable[[], str],
        is_alive: Callable[[], bool],
    ):
        self.place = split_monitor_address(address)
        self.metrics, self.why_not_ready, self.is_alive = metrics, why_not_ready, is_alive
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    def answer(self, path: str) -> tuple[int, str]:
        """Return the status and the text of an answer."""
        if path == "/healthz":
            return (200, "ok\n") if self.is_alive() else (503, "the event loop does not run\n")
        if path == "/readyz":
            why = self.why_not_ready() if self.is_alive() else "the event loop does not run"
            return (503, f"{why}\n") if why else (200, "ready\n")
        if path == "/metrics":
            return 200, to_text(self.metrics())
        return 404, "not found: /healthz, /readyz and /metrics are here\n"

    def __enter__(self) -> Monitor:
        monitor = self

        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE  # a connection that sends nothing is closed
            server_version, sys_version = "tacit", ""

            def do_GET(self) -> None:
                status, text = monitor.answer(self.path.partition("?")[0])
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: a line for every probe would hide the others."""

        class Server(ThreadingHTTPServer):
            daemon_threads, block_on_close = True, False
            address_family = _family(monitor.place[0])

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Nothing: whoever asked has closed the connection."""

        try:
            self._server = Server(self.place, Handler)
        except OSError as error:
            raise BadParameter(
                f"--monitor: cannot listen on {self.place[0]}, port {self.place[1]}: "
                f"{error.strerror or error}. Give another port."
            ) from None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="monitor", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _family(host: str) -> Any:
    import socket

    return socket.AF_INET6 if ":" in host else socket.AF_INET
