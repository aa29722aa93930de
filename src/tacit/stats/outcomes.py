"""A text outcome of two levels, of which one is declared to be the event: `positive="yes"`.

The levels of the outcome are agreed like those of any text column, so that "yes" at one party and "Yes" at
another are three levels, and not an event and its opposite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import BadData
from ..parameters import bad, propose
from .design import Agreement, Scalar, Variables, plain_level

RECODE = (
    "Replace the value that is the event by 1 and the other by 0: in the file, or in pandas with "
    ".map({EVENT: 1, OTHER: 0}), which leaves missing values missing."
)


class Event(NamedTuple):
    """The column of the outcome, and which of its two levels is coded as 1."""

    column: str
    code: int


def check_positive(owner: str, positive: Any, family: str, variables: Variables) -> Scalar | None:
    """Return a declared event as a plain value; raise BadParameter where there cannot be one."""
    if positive is None:
        return None
    if family != "binomial":
        raise bad(owner, "positive", positive, "left out: it is for family='binomial'")
    if not isinstance(positive, str | int | float):
        raise bad(owner, "positive", positive, "a level of the outcome, like 'yes'")
    if len(variables.response) != 1:
        raise bad(owner, "positive", positive, "left out, unless the outcome is one column")
    return plain_level(positive)


def find_event(
    owner: str, positive: Scalar | None, family: str, variables: Variables, agreement: Agreement
) -> Event | None:
    """Return the event of an outcome of two agreed levels; None if the outcome is a number.

    Both sides ask: a coordinator cannot send an outcome of other levels than two.
    """
    name = variables.response[0]
    levels = agreement.levels.get(name)
    if levels is None:
        if positive is not None:
            raise BadData(
                f"{owner}: positive is {positive!r}, and the outcome {name!r} is a number. Leave positive "
                f"out: 1 is the event. If its numbers are codes, write C({name}) ~ …."
            )
        return None
    if family != "binomial":
        raise BadData(f"{owner}: the outcome {name!r} is text. Code it as 0 and 1, or as a number.")
    if len(levels) != 2:
        raise BadData(
            f"{owner}: the outcome {name!r} is text with {len(levels)} different values at all parties "
            "together, and a model of an event needs exactly two. Write them alike, or leave out other rows."
        )
    shown = " and ".join(map(repr, levels))
    if owner != "glm":
        raise BadData(f"{owner}: the outcome {name!r} is text, {shown}, and {owner} needs 0 and 1. {RECODE}")
    choices = " or ".join(propose("positive", level) for level in levels)
    if positive is None:
        raise BadData(f"{owner}: the outcome {name!r} is text, {shown}. Say which is the event: {choices}.")
    if positive not in levels:
        raise BadData(
            f"{owner}: positive is {positive!r}, and the outcome {name!r} has the values {shown}. Give one "
            f"of them: {choices}."
        )
    return Event(name, levels.index(positive))
