"""A query as a contract: the program of sums with all its options, the parties and the rules of the sums.

The coordinator offers its contract as text, and a party compares it with the one its owner agreed to. The
program is built from the agreed text, never from the offered one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import BadJob, BadParameter
from ...parameters import check
from ...protocols.checked_sums import can_check
from ...protocols.sum_program import SumProgram, SumRules
from ...protocols.sum_steps import CheckedAtFirst, Repeatable

FORMAT = 1


class QueryNotAgreed(BadJob):
    """The coordinator's query is not the one that this party's owner agreed to."""

    outside = "it has not agreed to this query"


@dataclass(frozen=True)
class SumContract:
    """The canonical tables of a program of sums. All parties of a program have the same digest."""

    tables: Mapping[str, Any]

    @property
    def text(self) -> str:
        return json.dumps(self.tables, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def of(
        cls,
        program: SumProgram[Any, Any],
        parties: Sequence[str],
        *,
        federation: str = "",
        server: str = "server",
        threshold: float = 1.0,
        adversary: str = "curious",
        data: Mapping[str, Any] | None = None,
    ) -> SumContract:
        """The contract of a program, a dataclass of plain values. `data` is how files are read."""
        kind = type(program)
        if not dataclasses.is_dataclass(program) or isinstance(program, type):
            raise BadParameter(f"{kind.__name__} is not a dataclass, so its options cannot be agreed on.")
        tables = {
            "format": FORMAT,
            "federation": federation,
            "server": server,
            "parties": list(parties),
            "program": f"{kind.__module__}:{kind.__qualname__}",
            "options": {f.name: getattr(program, f.name) for f in dataclasses.fields(program) if f.init},
            "steps": program.max_steps,
            "bound": program.bound,
            "threshold": threshold,
            "adversary": adversary,
            "checked": count_checked(program, len(parties)) if threshold == 1 else 0,
            "data": dict(data or {}),
        }
        try:
            return cls(json.loads(json.dumps(tables, allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise BadParameter(
                f"an option of {kind.__name__} is not a plain value that parties can agree on: {error}."
            ) from None

    @classmethod
    def read(cls, text: str) -> SumContract:
        """A contract that this party's own side wrote."""
        return cls(json.loads(text))

    def program(self) -> SumProgram[Any, Any]:
        """Return the program. Parties of one process that have this very object read a step once."""
        return self._program

    @cached_property
    def _program(self) -> SumProgram[Any, Any]:
        """Build the program. Sequences among its options are tuples."""
        module, _, name = self.tables["program"].partition(":")
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        program: SumProgram[Any, Any] = kind(**_to_tuples(self.tables["options"]))
        if (program.max_steps, program.bound) != (self.tables["steps"], self.tables["bound"]):
            raise QueryNotAgreed("the program has another number of steps, or range, than its contract.")
        return program

    def rules(self, within: float | None = None, tries: int = 3) -> SumRules:
        t, known = self.tables, self._rules
        if (within, tries) not in known:
            known[within, tries] = check(
                SumRules(
                    self.digest,
                    tuple(t["parties"]),
                    t["threshold"],
                    t["adversary"],
                    within,
                    tries,
                    t["checked"],
                )
            )
        return known[within, tries]

    @cached_property
    def _rules(self) -> dict[tuple[float | None, int], SumRules]:
        return {}

    def check_offer(self, offered: str) -> None:
        """Raise unless a coordinator's contract is this one, to the letter."""
        if offered == self.text:
            return
        try:
            theirs = json.loads(offered)
        except (ValueError, RecursionError):
            theirs = None
        if not isinstance(theirs, dict):
            raise QueryNotAgreed("the coordinator's contract is not one. Do both run the same version?")
        mine, theirs = _flatten(dict(self.tables)), _flatten(theirs)
        found = [
            f"{key} (agreed: {_show(mine.get(key))}, offered: {_show(theirs.get(key))})"
            for key in sorted({*mine, *theirs})
            if mine.get(key) != theirs.get(key)
        ]
        raise QueryNotAgreed(
            "the coordinator's query is not the agreed one. It differs in: "
            f"{'; '.join(found[:8]) or 'its form'}. Nothing was read or sent."
        )


def count_checked(program: SumProgram[Any, Any], parties: int) -> int:
    """Return how many first sums parties check, where every sum is over all of them."""
    if program.max_steps == 1 or not can_check(program, parties):
        return 0
    if isinstance(program, CheckedAtFirst):
        return program.checked_sums
    return program.max_steps if isinstance(program, Repeatable) and program.is_repeatable else 0


def _flatten(tables: Mapping[str, Any], prefix: str = "", depth: int = 3) -> dict[str, Any]:
    """The entries of nested tables by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{prefix}{key:.40}"
        if isinstance(value, dict) and depth:
            found |= _flatten(value, f"{name}.", depth - 1)
        else:
            found[name] = value
    return found


def _show(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 120 else text[:117] + "..."


def _to_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_to_tuples, value))
    if isinstance(value, dict):
        return {key: _to_tuples(v) for key, v in value.items()}
    return value
