"""Training in clusters, with one program per party: the server keeps a model for each cluster, and sends each
party its own cluster's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...algorithms.types import State
from ...engine.task import Task
from ...protocols import rounds as protocol
from ..devices import placed
from .clustered import Book, mean_of
from .messages import Parties
from .networked import Networked
from .plan import Plan


class ClusteredParties(Parties):
    """The server of `Parties` for one cluster after the other. Between them `server` is the mean of all, for
    those who ask for one model.
    """

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], saved: list[State | None]):
        super().__init__(task, starts, plans, [None])
        self.book, at = Book(self.plan), saved[0]
        self.servers, self.memories = [self.server], [self.memory]
        if at is not None:
            self.book.load(at)
            states = [
                {k.split(".", 2)[2]: v for k, v in at.items() if k.startswith(f"cluster.{c}.")}
                for c in range(len(self.book.numbers))
            ]
            self.servers = [
                placed(task.x.device, {k[7:]: v for k, v in s.items() if k.startswith("server.")})
                for s in states
            ]
            self.memories = [{k[5:]: v for k, v in s.items() if k.startswith("rule.")} for s in states]
            self._meet()
            self.go_on(at)

    @contextmanager
    def _at(self, c: int) -> Iterator[None]:
        outside = self.server, self.memory
        self.server, self.memory = self.servers[c], self.memories[c]
        try:
            yield
            self.servers[c], self.memories[c] = self.server, self.memory
        finally:
            self.server, self.memory = outside

    def _meet(self) -> None:
        share = self.book.share()
        self.server = {k: mean_of([s[k] for s in self.servers], share) for k in self.servers[0]}

    def _apart(self, models: list[State]) -> protocol.ModelAssignment:
        return protocol.ModelAssignment(
            models, {name: int(c) for name, c in zip(self.plan.fed.parties, self.book.of)}
        )

    def downs(self, r: int) -> protocol.ModelAssignment:
        models = []
        for c in range(len(self.servers)):
            with self._at(c):
                models.append(self.down(r))
        return self._apart(models)

    def tests(self) -> protocol.ModelAssignment:
        models: list[State] = []
        for c in range(len(self.servers)):
            with self._at(c):
                one = super().tests()
                assert not isinstance(one, protocol.ModelAssignment)
                models.append(one)
        return self._apart(models)

    def merge(
        self,
        r: int,
        ups: dict[str, tuple[float, State]] | protocol.SumResult,
        n: int,
        among: int | None = None,
    ) -> None:
        assert not isinstance(ups, protocol.SumResult)  # whoever sorts parties by their updates must see them
        seats = {name: k for k, name in enumerate(self.plan.fed.parties)}
        for c, who in enumerate(self.book.members):
            mine = {name: up for name, up in ups.items() if self.book.of[seats[name]] == c}
            if mine:
                with self._at(c):
                    super().merge(r, mine, len(mine), len(who))
        heard = [seats[name] for name in ups]
        self.book.hear(
            heard, [weight for weight, _ in ups.values()], [vectors["delta"] for _, vectors in ups.values()]
        )
        come_from, told = self.book.sort(heard)
        self.told[0] |= told
        self.servers, self.memories = (
            [self.servers[c] for c in come_from],
            [self.memories[c] for c in come_from],
        )
        self._meet()

    def of_server(self) -> State:
        out = self.book.save()
        for c in range(len(self.servers)):
            with self._at(c):
                out |= {f"cluster.{c}.{k}": v.clone() for k, v in super().of_server().items()}
        return out | {"w": self.server["w"].to("cpu", copy=True)}


class ClusteredNetworked(ClusteredParties, Networked):
    """The same with parties where they are."""
