"""Findings about columns that are known only after the outcome."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .cells import without_codes
from .column_names import DURATIONS, EVENT_DAYS, EVENTS, OTHER_EVENTS
from .inspection import Inspection
from .leaks import predict_alone, predict_by_gaps, predict_together

if TYPE_CHECKING:
    from pandas import DataFrame

FEWEST_FOR_LEAKS = 20  # rows with a value, without which it says little how well the column predicts
PERFECT = 0.99  # the AUC, or accuracy, of one column alone above which it probably is the outcome itself


def note_leaks(rows: DataFrame, found: Inspection) -> None:
    """Find columns that alone predict the label (nearly) perfectly."""
    skipped = {*found.settings.get("drop", ()), found.settings.get("group"), found.label, found.by}
    target = rows[found.label]
    for name in [c for c in rows.columns if c not in skipped]:
        codes = found.settings.get("missing_codes", {}).get(name, ())
        column = without_codes(rows[name], codes)
        both = column.notna()
        score, what = 0.0, ""
        if both.sum() >= FEWEST_FOR_LEAKS:
            score, what = predict_alone(column[both], target[both], found.label, found.labels)
        gaps = predict_by_gaps(both, target, found.label, found.labels)
        if max(score, gaps[0]) >= PERFECT:
            by_gaps = gaps[0] > score
            score, what = gaps if by_gaps else (score, what)
            for value in set(found.labels or ()) - set(found.frequent(found.labels or (), target)):
                what = what.replace(f"the {found.label!r} {value!r}", f"a class of {found.label!r}")
            found.add("drop", name)
            for key in ("dates", "date_formats", "missing_codes"):
                found.settings.get(key, {}).pop(name, None)
            if name in found.settings.get("categories", ()):
                found.settings["categories"].remove(name)
            found.kinds[name] = "leakage suspect"
            measure = "a correlation" if found.labels is None else "an AUC"
            subject = f"Whether {name!r} is missing" if by_gaps else repr(name)
            found.findings[:] = [
                f for f in found.findings if f.column != name or f.problem == "missing values"
            ]
            found.note(
                *("leakage", name),
                f"{subject} alone predicts {what} with {measure} of {score:.3f}: it is probably known only "
                "after the outcome, or is the outcome.",
                "Left out; take it out of `drop` if it is known beforehand.",
            )

    if found.labels is None:
        _note_joint_leak(rows, found)


def _note_joint_leak(rows: DataFrame, found: Inspection) -> None:
    """Find two numbers of which the outcome is a sum, a mean or a difference."""
    codes = found.settings.get("missing_codes", {})
    numbers = {
        name: without_codes(rows[name], codes.get(name, ()))
        for name, kind in found.kinds.items()
        if kind == "number"
    }
    if pair := predict_together(numbers, rows[found.label]):
        first, second, r2 = pair
        for name in (first, second):
            found.kinds[name] = "leakage suspect"
            found.add("drop", name)
            found.settings.get("missing_codes", {}).pop(name, None)
        found.note(
            *("leakage", first),
            f"{first!r} and {second!r} together give {found.label!r}, with an R² of {r2:.4f}: it may be "
            "computed from them.",
            "Left out; take them out of `drop` if they are known beforehand.",
        )


def note_durations(rows: DataFrame, found: Inspection) -> None:
    """Find the time until the event that is the label, or its day: it is known only afterwards."""
    if not re.fullmatch(EVENTS, found.label, re.IGNORECASE):
        return
    for name in [c for c, kind in found.kinds.items() if kind == "date" and c != found.label]:
        if re.fullmatch(EVENT_DAYS, name, re.IGNORECASE):
            for key in ("dates", "date_formats", "missing_codes"):
                found.settings.get(key, {}).pop(name, None)
            found.findings[:] = [f for f in found.findings if f.column != name]
            found.leave_out(
                *(name, "duration"),
                f"{name!r} may be the day of {found.label!r} or of the last look, known only afterwards.",
            )
    others = [c for c in found.kinds if c not in (found.label, found.by) and rows[c].nunique() == 2]
    if also := [c for c in others if re.fullmatch(OTHER_EVENTS, c, re.IGNORECASE)]:
        left_out = found.settings.get("drop", ())
        also = [c for c in also if c not in left_out]
    if also:
        found.note(
            *("other outcomes", also[0] if len(also) == 1 else ""),
            f"Perhaps outcomes, too, and known only afterwards: {', '.join(map(repr, also))}.",
            "Kept; leave them out with `drop` if so.",
        )
    for name in [c for c, kind in found.kinds.items() if kind == "number" and c != found.label]:
        if re.fullmatch(DURATIONS, name, re.IGNORECASE):
            found.kinds[name] = "duration"
            found.add("drop", name)
            found.settings.get("missing_codes", {}).pop(name, None)
            found.note(
                *("duration", name),
                f"{name!r} may be the time until {found.label!r}, which is known only afterwards.",
                "Left out; take it out of `drop` if it is known beforehand (survival: tacit stats cox).",
            )
