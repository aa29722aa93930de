"""tacit: parties learn together and tell each other nothing they do not have to.

    fed = tacit.data.digits().split(10, skew=tacit.data.Dirichlet(0.5), seed=0)
    run = tacit.train(fed, model="mlp", algorithm=tacit.algorithms.FedAvg(lr=0.1), rounds=20)
    print(run.metrics["accuracy"], run.ledger)

Names are fetched when first used: `import tacit` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from . import (
        accounting,
        aggregate,
        algorithms,
        anonymity,
        audit,
        data,
        graphs,
        guard,
        models,
        mpc,
        pace,
        private,
        selection,
        speeds,
        synth,
        testing,
        transfer,
    )
    from .errors import TacitError
    from .jobs.anonymizing import anonymize
    from .jobs.comparing import compare
    from .jobs.contributing import contribution
    from .jobs.distilling import fedmd
    from .jobs.gossiping import gossip
    from .jobs.inferring import infer
    from .jobs.intersecting import align, psi
    from .jobs.planning import plan
    from .jobs.privately import train_private
    from .jobs.regressing import regress
    from .jobs.risking import risk
    from .jobs.running import run
    from .jobs.splitting import splitnn
    from .jobs.synthesizing import synthesize
    from .jobs.teaching import pate
    from .jobs.training import train
    from .jobs.transferring import ftl
    from .parties.ledger import Ledger
    from .protocols.psi_policy import PsiPolicy
    from .protocols.splitnn_parts import cut
    from .results import Comparison, Result
    from .runtimes.inprocess import InProcess
    from .runtimes.processes import Processes
    from .topologies import Hierarchy

__all__ = ["Comparison", "Hierarchy", "InProcess", "Ledger", "Processes", "PsiPolicy", "Result", "TacitError", "__version__", "accounting", "aggregate",
           "algorithms", "align", "anonymity", "anonymize", "audit", "compare", "contribution", "cut", "data", "fedmd", "ftl", "gossip",
           "graphs", "guard", "infer", "models", "mpc", "pace", "pate", "plan", "private", "psi", "regress", "risk", "run", "selection",
           "speeds", "splitnn", "synth", "synthesize", "testing", "train", "train_private", "transfer"]

_HOME = {"Comparison": "results", "Hierarchy": "topologies", "InProcess": "runtimes.inprocess", "Ledger": "parties.ledger", "Processes": "runtimes.processes",
         "PsiPolicy": "protocols.psi_policy",
         "Result": "results", "TacitError": "errors", "align": "jobs.intersecting", "anonymize": "jobs.anonymizing", "compare": "jobs.comparing",
         "contribution": "jobs.contributing", "cut": "protocols.splitnn_parts", "fedmd": "jobs.distilling", "ftl": "jobs.transferring",
         "gossip": "jobs.gossiping",
         "infer": "jobs.inferring", "pate": "jobs.teaching", "plan": "jobs.planning", "psi": "jobs.intersecting", "regress": "jobs.regressing",
         "risk": "jobs.risking", "run": "jobs.running", "splitnn": "jobs.splitting", "synthesize": "jobs.synthesizing", "train": "jobs.training",
         "train_private": "jobs.privately"}
_ROOMS = ("accounting", "aggregate", "algorithms", "anonymity", "audit", "data", "graphs", "guard", "models", "mpc", "pace", "private", "selection", "speeds",
          "synth", "testing", "transfer")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
