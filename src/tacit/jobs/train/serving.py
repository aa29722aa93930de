"""Figures of a running server, for those who operate it: connection, rounds, bytes, the ε that is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...runtimes.monitoring import Metric

if TYPE_CHECKING:
    from ...runtimes.link import Link


class ServerFigures:
    """Counts the events of a run (`watch`) and reads the state of its connection (`use`)."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.rounds = self.total_rounds = self.bytes_up = self.bytes_down = self.dropped = 0
        self.participants = 0
        self.epsilon: float | None = None

    def use(self, link: Link) -> None:
        """Read the state of this connection from now on."""
        self.link = link

    def watch(self, event: dict[str, Any]) -> None:
        """Count an event of the run."""
        if event["kind"] == "start":
            self.total_rounds = int(event["rounds"])
        elif event["kind"] == "round":
            self.rounds = int(event["round"])
            self.participants = int(event.get("sampled") or 0)
            self.bytes_up += int(event.get("bytes_up") or 0)
            self.bytes_down += int(event.get("bytes_down") or 0)
            self.dropped += len(event.get("dropped", ()))
            if isinstance(event.get("epsilon"), int | float):
                self.epsilon = float(event["epsilon"])

    def is_alive(self) -> bool:
        return self.link is None or self.link.pulse.is_alive

    def why_not_ready(self) -> str:
        """Return "" if the server is connected to its hub, else what is missing."""
        if self.link is None:
            return "the run has not started yet"
        return "" if self.link.connected.is_set() else "not connected to the hub"

    def metrics(self) -> list[Metric]:
        link = self.link
        found = [
            Metric(
                "tacit_server_connected",
                "gauge",
                "1 while the server is connected to its hub",
                float(link is not None and link.connected.is_set()),
            ),
            Metric(
                "tacit_server_connections_total",
                "counter",
                "connections to the hub since the start",
                link.connections if link is not None else 0,
            ),
            Metric("tacit_server_rounds_total", "counter", "rounds that are finished", self.rounds),
            Metric("tacit_server_rounds_planned", "gauge", "rounds of the job", self.total_rounds),
            Metric(
                "tacit_server_participants", "gauge", "parties in the last finished round", self.participants
            ),
            Metric(
                "tacit_server_dropped_total",
                "counter",
                "answers that finished rounds did not wait for, or refused",
                self.dropped,
            ),
            Metric("tacit_server_update_bytes_total", "counter", "bytes of updates received", self.bytes_up),
            Metric("tacit_server_model_bytes_total", "counter", "bytes of models sent", self.bytes_down),
        ]
        if self.epsilon is not None:
            found.append(
                Metric("tacit_server_epsilon_spent", "gauge", "the ε spent by this run so far", self.epsilon)
            )
        return found
