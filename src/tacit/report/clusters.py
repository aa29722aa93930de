"""Figures of clusters of parties: when each was split, and its members."""

from __future__ import annotations

from typing import Any, NamedTuple

from .markup import join, plain, tag
from .numbers import count, names, significant, truncate
from .records import RunRecord
from .svg import WIDTH, Figure, Table, heading

ROW = 26.0  # pixels per line of the tree
MOST = 40  # clusters drawn; more are in the table


class Cluster(NamedTuple):
    number: int
    born: int  # the round after which it existed
    parties: list[str]


class Split(NamedTuple):
    round: int
    cluster: int
    into: tuple[int, ...]
    alike: Any


def history(run: RunRecord) -> tuple[dict[int, Cluster], list[Split], int]:
    """Return all clusters, all splits and the last round, from the events of the rounds."""
    everyone = [plain(x) for x in run.federation.get("parties") or []]
    clusters, splits = {0: Cluster(0, 0, everyone)}, []
    for e in run.rounds:
        for s in e.get("splits") or []:
            into = tuple(int(n) for n in s["into"])
            splits.append(Split(int(e["round"]), int(s["cluster"]), into, s.get("alike")))
            clusters |= {
                n: Cluster(n, int(e["round"]), [plain(x) for x in who]) for n, who in zip(into, s["parties"])
            }
    return clusters, splits, max((int(e["round"]) for e in run.rounds), default=0)


def tree(run: RunRecord, title: str = "") -> Figure | None:
    """Draw the clusters by round, from left to right; a split cluster continues as two."""
    if not any("clusters" in e for e in run.rounds):
        return None
    clusters, splits, last = history(run)
    cut = {s.cluster: s for s in splits}
    leaves: list[int] = []

    def visit(n: int) -> None:
        for child in cut[n].into if n in cut else ():
            visit(child)
        if n not in cut:
            leaves.append(n)

    visit(0)
    words = f"Clusters{': ' if title else ''}{title}"
    rows = [
        (
            str(s.round),
            str(s.cluster),
            " and ".join(map(str, s.into)),
            significant(s.alike),
            " | ".join(names(clusters[n].parties, 20) for n in s.into),
        )
        for s in splits
    ]
    table = Table(("after round", "cluster", "split into", "largest cosine across", "parties"), rows)
    head, down = heading(words)
    if len(leaves) > MOST:
        return Figure(words, head, WIDTH, 40 + down, table, f"{count(len(leaves))} clusters: see the table.")
    left, right = 16.0, WIDTH - 190.0
    top, parts = 46.0 + down, [head]

    def x(r: int) -> float:
        return left + (right - left) * r / max(1, last)

    def draw(n: int) -> float:
        """Draw a cluster and its descendants; return its vertical position."""
        if n in cut:
            ys = [draw(child) for child in cut[n].into]
            y, end = sum(ys) / len(ys), x(cut[n].round)
            parts.append(tag("line", x1=end, y1=min(ys), x2=end, y2=max(ys), class_="line"))
        else:
            y, end = top + ROW * leaves.index(n), x(last)
            who = clusters[n].parties
            parts.append(
                tag(
                    "text",
                    f"{truncate(', '.join(who), 24)}" if len(who) <= 4 else f"{count(len(who))} parties",
                    x=end + 8,
                    y=y + 4,
                    class_="small",
                )
            )
        start = x(clusters[n].born)
        parts.append(
            tag(
                "g",
                tag("line", x1=start, y1=y, x2=end, y2=y, class_="line"),
                tag("circle", cx=start, cy=y, r=3.5, class_="dot halo"),
                tag("title", f"cluster {n}: {names(clusters[n].parties, 20)}"),
            )
        )
        return y

    draw(0)
    parts.append(
        tag(
            "text",
            f"rounds 0 to {count(last)}, left to right",
            x=left,
            y=top + ROW * len(leaves) + 10,
            class_="small soft",
        )
    )
    caption = (
        "No cluster was split: the parties' updates did not conflict."
        if not splits
        else f"{count(len(leaves))} clusters at the end. A cluster is split when its model is stationary "
        "and its parties' updates conflict."
    )
    return Figure(
        words, tag("g", join(parts), class_="c0"), WIDTH, top + ROW * len(leaves) + 24, table, caption
    )
