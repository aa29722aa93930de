"""How far a run is, what it cost so far, and which parties took part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .layout import Page, Section, table, tile
from .markup import Safe, join, plain, tag
from .numbers import count, format_seconds, is_finite, percent, significant, size
from .records import RunRecord

MOST_PARTIES = 100  # in the table; those that were missing first
LATEST = 10  # rounds whose duration the remaining time is estimated from


def participants(page: Page) -> Section | None:
    """Progress, traffic and privacy of one run, and a table of its parties."""
    if page.comparison or len(page.records) != 1:
        return None
    run = page.records[0]
    parts = [_progress(run), tag("dl", _tiles(run), class_="tiles"), _table(run)]
    return Section("participants", "Progress and parties", join(parts))


def _progress(run: RunRecord) -> Safe | None:
    if run.is_finished or not run.planned:
        return None
    bar = tag("progress", value=run.done, max=run.planned, aria_label=f"{run.done} of {run.planned} rounds")
    seconds = [e["seconds"] for e in run.rounds if e["round"] and is_finite(e.get("seconds"))][-LATEST:]
    left = ""
    if seconds:
        remaining = (run.planned - run.done) * sum(seconds) / len(seconds)
        left = f", about {format_seconds(remaining)} left at the speed of the last rounds"
    return tag(
        "div", bar, tag("p", f"Round {count(run.done)} of {count(run.planned)}{left}.", class_="quiet")
    )


def budget(job: Mapping[str, Any]) -> float | None:
    """Return the ε that the job allows for the whole run, if it states one."""
    guards = job.get("guard")
    stages = [g for g in guards if isinstance(g, Mapping)] if isinstance(guards, list) else []
    found = [s.get("epsilon") for s in (*stages, job.get("private")) if isinstance(s, Mapping)]
    known = [float(e) for e in found if isinstance(e, int | float) and not isinstance(e, bool)]
    return sum(known) if known else None


def _tiles(run: RunRecord) -> list[Safe]:
    up, down, tests = (run.total(f"bytes_{k}") for k in ("up", "down", "evaluation"))
    tiles = [
        tile("Sent by the parties", size(up), "updates"),
        tile("Sent to the parties", size(down), f"models; {size(tests)} for evaluations"),
    ]
    spent = next((e["epsilon"] for e in reversed(run.rounds) if is_finite(e.get("epsilon"))), None)
    allowed = budget(run.job)
    if spent is not None:
        of = f"of ε = {significant(allowed)}" if allowed else "the job states no limit"
        tiles.append(tile("Privacy spent by the rounds so far", f"ε = {significant(spent)}", of))
    missed = Counter(p for e in run.rounds for p in (e.get("dropped") or {}))
    if missed:
        rounds = sum(bool(e.get("dropped")) for e in run.rounds)
        tiles.append(
            tile("Missing answers", count(sum(missed.values())), f"in {count(rounds)} rounds", "warn")
        )
    return tiles


def _table(run: RunRecord) -> Safe | None:
    parties = [plain(p) for p in run.federation.get("parties") or []]
    if not parties:
        return None
    measured = dict(zip(parties, run.party_accuracy))
    missed: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for event in run.rounds:
        for name, why in (event.get("dropped") or {}).items():
            missed.setdefault(plain(name), []).append(event["round"])
            reasons[plain(name)] = plain(why)
    order = sorted(parties, key=lambda p: -len(missed.get(p, ())))
    is_hidden = run.hides_updates or not measured
    rows = []
    for name in order[:MOST_PARTIES]:
        accuracy = measured.get(name)
        shown = percent(accuracy) if is_finite(accuracy) else "" if is_hidden else "too few rows to show"
        rounds = missed.get(name, [])
        last = f"round {rounds[-1]}: {reasons[name]}" if rounds else ""
        rows.append([name, shown, count(len(rounds)) if rounds else "", last])
    more = len(parties) - len(rows)
    notes = []
    if is_hidden:
        notes.append("Accuracies of single parties are not recorded: only sums over parties are.")
    elif run.untested:
        notes.append("A party with too few held-out rows shows no accuracy.")
    if more > 0:
        notes.append(f"{count(more)} more parties.")
    header = ["party", "accuracy on its own held-out rows", "rounds without it", "last reason"]
    keep = [0, *([] if is_hidden else [1]), *([2, 3] if missed else [])]
    if len(keep) == 1:
        listed = ", ".join(order[:MOST_PARTIES])
        return join([tag("p", f"Parties: {listed}."), *(tag("p", n, class_="quiet") for n in notes)])
    return join(
        [
            table([header[k] for k in keep], [[r[k] for k in keep] for r in rows], caption="Parties."),
            *(tag("p", n, class_="quiet") for n in notes),
        ]
    )
