"""What a run over many devices needs, computed from a few measured points.

    python benchmarks/scale_model.py                                   the example of docs/explanation-scale.md
    python benchmarks/scale_model.py --devices 1e6 --a-round 1000 --parameters 1e5

The model is linear: a hub spends so much CPU time on each party that joins, on each message, on each megabyte and on
each second of a connection, and so much memory on each connection and on each megabyte that is on its way. Its
coefficients are fitted to the smallest and the largest measured point; the points between are predicted, and the
difference is printed. Points are measured by many_parties.py; they are CPU seconds and resident memory, which other
load changes less than seconds.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

MEASURED_ON = "two busy cores (load 18), 2026-11-19"
PARAMETERS = 62_006  # of the model in many_parties.py
MB = 4 * PARAMETERS / 1e6  # of one model
RELAYED = 2 * MB  # of a party's round: a model down, an update up
MESSAGE = 0.17e-3  # CPU seconds of the hub for one small message (hub.py: 0.33 ms for one there and one back)
DAY = 24 * 3600.0


@dataclass(frozen=True)
class Point:
    """One run of many_parties.py: CPU seconds of the hub to join and in a round, MB at its end."""

    parties: int
    join: float
    round: float  # the mean of its rounds
    memory: float


POINTS = (
    Point(100, 0.33, (0.17 + 0.14) / 2, 255),
    Point(300, 1.55, (0.58 + 0.46) / 2, 384),
    Point(1000, 4.09, (1.95 + 1.56) / 2, 866),
)


IDLE = ((1000, 306.0), (10_000, 1375.0))  # connected parties that send nothing, MB: many_parties.py --connect


HEARTBEATS = 9.8e-6  # cores of the hub for a connection: 19.5 CPU s for 10,000 in 200 s (--stay 200)


@dataclass(frozen=True)
class Hub:
    """The coefficients: seconds a party, seconds a MB that is relayed, MB of memory."""

    join: float
    per_mb: float
    base: float  # MB without parties
    per_party: float  # MB with a model on its way

    @classmethod
    def fit(cls, small: Point, large: Point) -> Hub:
        """Fit the lines through two points; join and round go through the origin at the larger one."""
        n = large.parties
        slope = (large.memory - small.memory) / (n - small.parties)
        per_mb = (large.round / n - 2 * MESSAGE) / RELAYED
        return cls(large.join / n, per_mb, large.memory - slope * n, slope)

    def seconds_to_join(self, parties: float) -> float:
        return self.join * parties

    def seconds_of_round(self, parties: float, mb: float = MB) -> float:
        return parties * 2 * (MESSAGE + self.per_mb * mb)

    def memory(self, parties: float, mb: float = MB) -> float:
        return self.base + self.per_party * parties * mb / MB


HUB = Hub.fit(POINTS[0], POINTS[-1])


def check() -> list[tuple[Point, float, float, float]]:
    """Return every point with what the model says of it: join, round, memory."""
    return [
        (p, HUB.seconds_to_join(p.parties), HUB.seconds_of_round(p.parties), HUB.memory(p.parties))
        for p in POINTS
    ]


@dataclass(frozen=True)
class Fleet:
    """Devices that come and go: each is eligible for some hours a day, joins then, and is asked by chance."""

    devices: float = 1e7
    a_round: float = 10_000
    rounds: float = 1000
    parameters: float = 1.4e6  # the next-word model of Hard et al. 2018
    over: float = 1.3  # devices asked for each that is needed (Bonawitz et al. 2019)
    eligible: float = 4.0  # hours a day: charging, idle, unmetered
    minutes: float = 3.0  # of a round: sending, training, late devices
    share: float = 0.5  # of a core that a hub may use on average
    hub_memory: float = 8000.0  # MB of a hub

    @property
    def mb(self) -> float:
        return 4 * self.parameters / 1e6

    @property
    def connected(self) -> float:
        """Devices that are there at a time, if the hours are spread over the day."""
        return self.devices * self.eligible / 24

    @property
    def asked(self) -> float:
        return self.a_round * self.over

    def needs(self) -> dict[str, float]:
        """Return what the run needs."""
        seconds = self.minutes * 60
        joins = self.devices / DAY * HUB.seconds_to_join(1)  # each connects once a day
        relays = HUB.seconds_of_round(self.asked, self.mb) / seconds
        beats = HEARTBEATS * self.connected
        (few, at_few), (many, at_many) = IDLE
        idle = (at_many - at_few) / (many - few)
        on_its_way = (HUB.per_party - idle) * self.mb / MB
        memory = idle * self.connected + on_its_way * self.asked
        hubs = math.ceil(max((joins + relays + beats) / self.share, memory / (self.hub_memory - HUB.base)))
        return {
            "connected devices": self.connected,
            "connections a second": self.devices / DAY,
            "devices asked a round": self.asked,
            "GB a round": self.asked * 2 * self.mb / 1e3,
            "TB of the run": self.rounds * self.asked * 2 * self.mb / 1e6,
            "CPU cores for joining": joins,
            "CPU cores for rounds": relays,
            "CPU cores for heartbeats": beats,
            "GB of memory": memory / 1e3,
            "hubs (and edges)": hubs,
            "devices at a hub": self.connected / hubs,
            "hours": self.rounds * self.minutes / 60,
            "rounds of one device": self.rounds * self.asked / self.devices,
        }


def table_of_points() -> str:
    lines = [
        "| parties | join, CPU s: measured | model | round, CPU s: measured | model | MB: measured | model |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for p, join, a_round, memory in check():
        lines.append(
            f"| {p.parties:,} | {p.join:.2f} | {join:.2f} | {p.round:.2f} | {a_round:.2f} | {p.memory:.0f} | {memory:.0f} |"
        )
    return "\n".join(lines)


def table_of_needs(fleet: Fleet) -> str:
    lines = ["| what | amount |", "|---|---|"]
    for name, value in fleet.needs().items():
        lines.append(
            f"| {name} | {value:,.{0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2}f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Fleet()
    for name, what in (
        ("devices", "of all"),
        ("a_round", "updates a round needs"),
        ("rounds", ""),
        ("parameters", "of the model, float32"),
        ("over", "devices asked for each that is needed"),
        ("eligible", "hours a day"),
        ("minutes", "of a round"),
    ):
        value = getattr(default, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=float, default=value, help=f"{what} (default: {value:g})"
        )
    fleet = Fleet(**vars(parser.parse_args()))
    print(f"measured on {MEASURED_ON}; the first and the last point are fitted\n")
    print(table_of_points())
    print(
        f"\n{fleet.devices:,.0f} devices, {fleet.rounds:,.0f} rounds of {fleet.a_round:,.0f}, {fleet.mb:g} MB a model\n"
    )
    print(table_of_needs(fleet))


if __name__ == "__main__":
    main()
