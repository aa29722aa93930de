"""Parties that train with a script of their own, instead of tacit's local steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .parameters import bad, check, from_fields, whole


@dataclass(frozen=True)
class Script:
    """A user's training script, which asks for tasks with `tacit.client`, and what the parties agree on.

    A simulation starts `path` once for each party. Between real parties each starts its own, and only
    `max_rows` and `metrics` are part of the job.
    """

    path: str = ""
    arguments: tuple[str, ...] = ()  # of the script, as sys.argv has them; {party} is the party's name
    max_rows: int = whole(1_000_000, least=1, doc="most rows that a party may say it trained on")
    metrics: tuple[str, ...] = ()  # that parties send with their updates; the server gets each party's value

    def check(self) -> None:
        for name in ("arguments", "metrics"):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not all(isinstance(v, str) for v in values):
                raise bad("client", name, values, "a list of texts")
        if len(set(self.metrics)) < len(self.metrics) or not all(m.isidentifier() for m in self.metrics):
            raise bad("client", "metrics", self.metrics, "different names of letters, digits and _")

    @property
    def agreed(self) -> Script:
        """What is part of the job, whichever script a party has."""
        return Script(max_rows=self.max_rows, metrics=tuple(self.metrics))

    def as_table(self) -> dict[str, Any]:
        return {
            **({"path": self.path} if self.path else {}),
            **({"arguments": list(self.arguments)} if self.arguments else {}),
            "max_rows": self.max_rows,
            "metrics": list(self.metrics),
        }


def take_script(value: Any, owner: str) -> Script | None:
    """Return the script of an option: a path, a table, a Script, or None."""
    if value is None:
        return None
    if isinstance(value, str | Path):
        value = Script(str(value))
    if isinstance(value, Mapping):
        value = from_fields(value, Script, f"{owner}, client", "a client has no key")
    if not isinstance(value, Script):
        raise bad(owner, "client", value, "the path of a script, or tacit.Script(…)")
    return check(value)
