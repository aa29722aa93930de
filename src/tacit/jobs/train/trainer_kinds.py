"""Which trainer a plan asks for."""

from __future__ import annotations

from ...topologies import Gossip, Hierarchy
from . import paced
from .elsewhere import Deployed
from .plan import Plan
from .simulated import SimulatedTrainer
from .trainer import Trainer


def trainer_class(p: Plan) -> type[Trainer]:
    """Return the kind of trainer that a plan asks for.

    Modules are imported when needed: messages take msgpack, which a bare GPU machine may lack.
    """
    kinds: tuple[type[Trainer], type[Trainer], type[Trainer]]  # synchronous, paced, clustered
    is_remote = p.runtime not in ("cohort", "inprocess")
    if is_remote:
        from ...runtimes.processes import need_net

        what = {Hierarchy: "a hierarchy", Gossip: "gossip"}.get(type(p.topology), "training")
        need_net(f"{what} across processes")
    if isinstance(p.topology, Hierarchy):
        from .hierarchy import HierarchicalTrainer

        return HierarchicalTrainer
    if isinstance(p.topology, Gossip):
        from .gossip import GossipTrainer

        return GossipTrainer
    if p.runtime == "cohort":
        from .clustered import ClusteredTrainer

        kinds = SimulatedTrainer, paced.PacedTrainer, ClusteredTrainer
    else:
        from .clustered_parties import ClusteredMessageTrainer, ClusteredNetworkedTrainer
        from .messages import MessageTrainer
        from .networked import NetworkedTrainer
        from .paced_parties import PacedMessageTrainer, PacedNetworkedTrainer

        kinds = MessageTrainer, PacedMessageTrainer, ClusteredMessageTrainer
        if is_remote:
            kinds = NetworkedTrainer, PacedNetworkedTrainer, ClusteredNetworkedTrainer
        if isinstance(p.through, Deployed) and p.through.tree is not None:
            from .tree import EdgeTrainer, Top, TopTrainer

            return TopTrainer if isinstance(p.through.tree, Top) else EdgeTrainer
    synchronous, asynchronous, clustered = kinds
    if p.algorithm.sees_each:
        return clustered
    return synchronous if p.pace is None else asynchronous
