"""Health, readiness and figures of a hub and of a server; logs as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

from tacit.cli.logs import FIELDS, JsonFormatter, log_event
from tacit.errors import BadParameter
from tacit.jobs.train.serving import ServerFigures
from tacit.runtimes import hub as hubs
from tacit.runtimes import monitoring
from tacit.runtimes.kits import temporary
from tacit.runtimes.link import Link
from tacit.runtimes.monitoring import Metric, Monitor, split_monitor_address, to_text

from .net import DEADLINE, Net, catch, throw

LINE = re.compile(r"[a-z_]+ (NaN|[+-]Inf|-?\d+(\.\d+)?(e[+-]?\d+)?)")  # without labels, of which we have none


def ask(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def figures(text: str) -> dict[str, float]:
    """Read Prometheus' text format strictly: HELP, TYPE and one sample for each figure."""
    lines, found = text.splitlines(), {}
    assert text.endswith("\n")
    assert len(lines) % 3 == 0
    for told, kind, sample in zip(lines[::3], lines[1::3], lines[2::3]):
        name, value = sample.split(" ")
        assert LINE.fullmatch(sample), sample
        assert told.startswith(f"# HELP {name} ")
        assert kind in (f"# TYPE {name} counter", f"# TYPE {name} gauge")
        assert kind.endswith("counter") == name.endswith("_total")
        found[name] = float(value)
    return found


def test_the_text_format_escapes_and_writes_numbers_as_prometheus_reads_them() -> None:
    text = to_text(
        [
            Metric("a_total", "counter", "two\nlines, one \\", 3.0),
            Metric("b", "gauge", "b", float("nan")),
            Metric("c", "gauge", "c", float("inf")),
            Metric("d", "gauge", "d", 0.25),
        ]
    )
    assert text.splitlines()[0] == "# HELP a_total two\\nlines, one \\\\"
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "a_total 3",
        "b NaN",
        "c +Inf",
        "d 0.25",
    ]


@pytest.mark.parametrize(
    ("given", "place"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:9464", ("::1", 9464))],
)
def test_a_port_alone_is_of_this_machine_only(given: str, place: tuple[str, int]) -> None:
    assert split_monitor_address(given) == place


@pytest.mark.parametrize("given", ["", "here", "host:", "1:2:3", "70000", "-1"])
def test_an_address_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(BadParameter, match="it must be a port"):
        split_monitor_address(given)


def test_a_taken_port_is_one_clear_error() -> None:
    with (
        Monitor("0", list, str, lambda: True) as first,
        pytest.raises(BadParameter, match="Give another port"),
        Monitor(str(first.port), list, str, lambda: True),
    ):
        pass


def test_a_hub_tells_its_connections_and_bytes_and_no_names() -> None:
    async def play() -> tuple[tuple[int, str], str, str]:
        async with Net.of("clinic-a", "clinic-b") as net:
            hub = net.hub
            with Monitor("0", hub.metrics, hub.why_not_ready, lambda: hub.pulse.is_alive) as monitor:
                await net.run(
                    **{
                        "clinic-a": lambda me: throw(me, "clinic-b", 5),
                        "clinic-b": lambda me: catch(me, "clinic-a", 5),
                    }
                )
                ready = await asyncio.to_thread(ask, monitor.port, "/readyz")
                during = await asyncio.to_thread(ask, monitor.port, "/metrics")
                assert (await asyncio.to_thread(ask, monitor.port, "/healthz")) == (200, "ok\n")
                assert (await asyncio.to_thread(ask, monitor.port, "/metrics/names"))[0] == 404
                await hub.stop()
                after = await asyncio.to_thread(ask, monitor.port, "/readyz")
                assert after == (503, "the hub does not accept connections\n")
                return ready, during[1], str(hub.relayed_bytes)

    ready, text, relayed = asyncio.run(play())
    assert ready == (200, "ready\n")
    found = figures(text)
    assert found["tacit_hub_connections_total"] == 2
    assert found["tacit_hub_bytes_total"] == float(relayed) > 0
    assert found["tacit_hub_envelopes_total"] >= 2 * 5 + 3  # five there, five back, a handshake
    assert found["tacit_hub_queued_bytes"] == 0
    assert "clinic" not in text


def test_a_stopped_event_loop_is_neither_healthy_nor_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = monitoring.Pulse()
    monkeypatch.setattr(monitoring, "ALIVE", -1.0)  # no beat is young enough
    with Monitor("0", list, str, lambda: pulse.is_alive) as monitor:
        assert ask(monitor.port, "/healthz") == (503, "the event loop does not run\n")
        assert ask(monitor.port, "/readyz") == (503, "the event loop does not run\n")


def test_a_hub_serves_its_operator_while_it_runs() -> None:
    async def play() -> dict[str, float]:
        mine, kits = temporary("test", ("a",))
        started = asyncio.Event()
        ports: list[int] = []
        monitors: list[int] = []

        def ready(port: int) -> None:
            ports.append(port)
            started.set()

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if record.msg == "monitoring at port %d":
                    monitors.append(record.args[0])  # type: ignore[index, arg-type]

        handler = Handler()
        hubs.log.addHandler(handler)
        hubs.log.setLevel(logging.INFO)
        task = asyncio.create_task(hubs.serve(replace(mine, listen="127.0.0.1:0"), ready, monitor="0"))
        try:
            await started.wait()
            async with Link(kits["a"].at(f"127.0.0.1:{ports[0]}")) as link:
                await link.connected.wait()
                return figures((await asyncio.to_thread(ask, monitors[0], "/metrics"))[1])
        finally:
            hubs.log.removeHandler(handler)
            hubs.log.setLevel(logging.NOTSET)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    assert asyncio.run(play())["tacit_hub_connections"] == 1


def test_a_server_counts_rounds_bytes_and_epsilon_and_shows_no_metric() -> None:
    server = ServerFigures()
    assert server.why_not_ready() == "the run has not started yet"
    assert server.is_alive()
    server.watch({"kind": "start", "rounds": 7})
    server.watch({"kind": "round", "round": 1, "sampled": 3, "bytes_up": 100, "bytes_down": 50, "auc": 0.9})
    server.watch(
        {"kind": "round", "round": 2, "sampled": 2, "bytes_up": 70, "bytes_down": 50, "epsilon": 0.5}
        | {"dropped": {"clinic-a": "no answer within 5 s"}, "parties": {"accuracy": [0.1]}}
    )
    text = to_text(server.metrics())
    assert figures(text) == {
        "tacit_server_connected": 0,
        "tacit_server_connections_total": 0,
        "tacit_server_rounds_total": 2,
        "tacit_server_rounds_planned": 7,
        "tacit_server_participants": 2,
        "tacit_server_dropped_total": 1,
        "tacit_server_update_bytes_total": 170,
        "tacit_server_model_bytes_total": 100,
        "tacit_server_epsilon_spent": 0.5,
    }
    assert "clinic" not in text
    assert "auc" not in text


def test_a_server_is_ready_while_it_is_connected() -> None:
    async def play() -> list[str]:
        server, said = ServerFigures(), []
        async with Net.of("a") as net, Link(net.kits["a"]) as link:
            server.use(link)
            said.append(server.why_not_ready())
            await link.connected.wait()
            said.append(server.why_not_ready())
        return said

    assert asyncio.run(play()) == ["not connected to the hub", ""]


def read_log(*events: dict[str, Any]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    log, handler = logging.getLogger("tacit.server"), Handler()
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        for event in events:
            log_event(event)
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    return lines


def test_a_logged_round_has_its_costs_and_no_metric() -> None:
    (line,) = read_log(
        {"kind": "round", "round": 3, "sampled": 2, "bytes_up": 8, "bytes_down": 4, "seconds": 0.5}
        | {"accuracy": 0.75, "loss": "nan", "confusion": [[1]], "dropped": {"clinic-a": "…"}, "epsilon": 1.5}
    )
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "tacit.server",
        "text": "round 3",
        "event": "round",
        "round": 3,
        "sampled": 2,
        "bytes_up": 8,
        "bytes_down": 4,
        "seconds": 0.5,
        "epsilon": 1.5,
        "dropped": 1,
    }


def test_a_logged_error_has_its_kind_and_not_its_text() -> None:
    try:
        raise ValueError("row 17 is 'Alice'")
    except ValueError as error:
        record = logging.LogRecord(
            "tacit", logging.ERROR, "", 0, "it failed\nhere", (), (type(error), error, None)
        )
    record.__dict__[FIELDS] = {"event": "failed"}
    text = JsonFormatter().format(record)
    assert "Alice" not in text
    assert "\n" not in text
    assert json.loads(text)["error"] == "ValueError"
