"""Training in clusters, with one program per party.

The server keeps a model for each cluster, and sends each party its own cluster's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...algorithms.types import State
from ...engine.task import Task
from ...protocols import rounds as protocol
from .clustered import Clusters, cluster_mean
from .messages import MessageTrainer, Uploads
from .networked import NetworkedTrainer
from .plan import Plan
from .trainer import RunContext


class ClusteredMessageTrainer(MessageTrainer):
    """The server of `MessageTrainer`, for one cluster after the other.

    Outside of `_cluster`, `server` is the mean of all clusters' models.
    """

    def __init__(self, task: Task, starts: list[State], plans: list[Plan], context: RunContext):
        super().__init__(task, starts, plans, context)
        self.clusters = Clusters(self.plan)
        self.servers, self.memories = [self.server], [self.memory]
        if context.states:
            self.clusters.load(context.states[0])
            states = self.clusters.states(context.states[0])
            self.servers, self.memories = [{}] * len(states), [{}] * len(states)
            for c, state in enumerate(states):
                with self._cluster(c):
                    super().load_server(state)
            self._average()

    def load_server(self, state: State) -> None:
        """Nothing yet: each cluster has a state of its own."""

    @contextmanager
    def _cluster(self, c: int) -> Iterator[None]:
        """Let `server` and `memory` be those of one cluster."""
        outside = self.server, self.memory
        self.server, self.memory = self.servers[c], self.memories[c]
        try:
            yield
            self.servers[c], self.memories[c] = self.server, self.memory
        finally:
            self.server, self.memory = outside

    def _average(self) -> None:
        share = self.clusters.share()
        self.server = {k: cluster_mean([s[k] for s in self.servers], share) for k in self.servers[0]}

    def _assign(self, models: list[State]) -> protocol.ModelAssignment:
        return protocol.ModelAssignment(
            models, {name: int(c) for name, c in zip(self.plan.fed.parties, self.clusters.of)}
        )

    def round_models(self, r: int) -> protocol.ModelAssignment:
        models = []
        for c in range(len(self.servers)):
            with self._cluster(c):
                models.append(self.down(r))
        return self._assign(models)

    def test_models(self) -> protocol.ModelAssignment:
        models: list[State] = []
        for c in range(len(self.servers)):
            with self._cluster(c):
                model = super().test_models()
                assert not isinstance(model, protocol.ModelAssignment)
                models.append(model)
        return self._assign(models)

    def merge(self, r: int, uploads: Uploads, n: int, among: int | None = None) -> None:
        assert not isinstance(uploads, protocol.SumResult)  # clustering needs each party's update
        seats = {name: k for k, name in enumerate(self.plan.fed.parties)}
        for c, who in enumerate(self.clusters.members):
            own = {name: up for name, up in uploads.items() if self.clusters.of[seats[name]] == c}
            if own:
                with self._cluster(c):
                    super().merge(r, own, len(own), len(who))
        participants = [seats[name] for name in uploads]
        weights, vectors = zip(*uploads.values()) if uploads else ((), ())
        self.clusters.add(participants, weights, [v["delta"] for v in vectors])
        sources, facts = self.clusters.split(participants)
        self.facts |= facts
        self.servers, self.memories = [self.servers[c] for c in sources], [self.memories[c] for c in sources]
        self._average()

    def server_state(self) -> State:
        state = self.clusters.save()
        for c in range(len(self.servers)):
            with self._cluster(c):
                state |= {f"cluster.{c}.{k}": v.clone() for k, v in super().server_state().items()}
        return state | {"w": self.server["w"].to("cpu", copy=True)}


class ClusteredNetworkedTrainer(ClusteredMessageTrainer, NetworkedTrainer):
    """The same with parties where they are."""
