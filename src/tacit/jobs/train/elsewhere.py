"""A federation whose rows are with their owners, and how a server reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...data.federation import Federation, Holdings, Rows
from ...parameters import bad, real, whole


@dataclass(frozen=True)
class Deployed:
    """A runtime of `train`: the parties are where their kits say; this process is the server's."""

    kit: Any
    layout: dict[str, Any]
    deadline: float | None = real(
        None, above=0, none=True, doc="seconds a round waits for answers; None waits for everyone"
    )
    at_least: int | None = whole(
        None,
        least=1,
        none=True,
        doc="answers with which a round continues after the deadline; None: everyone's",
    )
    patience: float = real(300.0, above=0, doc="seconds to keep trying when the hub cannot be reached")
    over_select: float = real(
        1.0,
        least=1,
        doc="parties asked for each one that a round needs: 1.3 asks 130% and takes the first 100%",
    )
    tree: Any = None  # tree.Edge or tree.Top, where servers form a hierarchy
    on_link: Any = None  # called with the server's connection to the hub, for those who watch it

    def check(self) -> None:
        if self.at_least is not None and self.deadline is None:
            raise bad("party", "at_least", self.at_least, "None without a deadline", "Give a deadline, too.")
        if self.over_select > 1 and self.deadline is None:
            must_be = "1 without a deadline: the next round would wait for parties that still work"
            raise bad("party", "over_select", self.over_select, must_be, "Give a deadline, too.")


@dataclass(frozen=True)
class Elsewhere(Federation):
    """A federation whose rows are with their owners: the server knows names and shapes only."""

    def summary(self) -> dict[str, Any]:
        return self.outline()

    @classmethod
    def of(
        cls,
        name: str,
        parties: tuple[str, ...],
        shape: tuple[int, ...],
        labels: tuple[str, ...] | None,
        columns: tuple[str, ...],
    ) -> Elsewhere:
        none = Rows(
            torch.zeros(0, *shape), torch.zeros(0, dtype=torch.float32 if labels is None else torch.int64)
        )
        # each party states its number of rows when it joins
        unknown = Holdings(torch.zeros(0, dtype=torch.int64), torch.arange(len(parties) + 1))
        nobody = Holdings(torch.zeros(0, dtype=torch.int64), torch.zeros(len(parties) + 1, dtype=torch.int64))
        return cls(
            name,
            none,
            unknown,
            nobody,
            none,
            None if labels is None else len(labels),
            parties,
            None,
            0,
            columns,
            labels or (),
        )


def name_parties(names: Sequence[str]) -> Elsewhere:
    """Return a federation of which only the parties' names are known: each reads its own rows."""
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names) or not names:
        raise bad("train", "fed", names, "a list of different names of parties, with client=…")
    return Elsewhere.of("parties", tuple(names), (1,), None, ())


def only_party(fed: Federation, name: str) -> Elsewhere:
    """Return the part of one party in a federation whose rows are elsewhere."""
    shape, labels = tuple(fed.rows.x.shape[1:]), fed.labels if fed.classes is not None else None
    return Elsewhere.of(fed.name, (name,), shape, labels, fed.columns)
