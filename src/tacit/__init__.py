"""tacit: parties learn together and tell each other nothing they do not have to.

    fed = tacit.data.digits().split(10, skew=tacit.data.Dirichlet(0.5), seed=0)
    run = tacit.train(fed, model="mlp", algorithm=tacit.algorithms.FedAvg(lr=0.1), rounds=20)
    print(run.metrics["accuracy"], run.ledger)

Names are fetched when first used: `import tacit` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.7.0"

if TYPE_CHECKING:
    from . import (
        accounting,
        aggregate,
        algorithms,
        anonymity,
        audit,
        boost,
        callbacks,
        data,
        graphs,
        guard,
        models,
        mpc,
        pace,
        private,
        selection,
        speeds,
        stats,
        synth,
        testing,
        transfer,
    )
    from .errors import TacitError
    from .jobs.anonymize import anonymize
    from .jobs.anonymize_again import anonymize_again
    from .jobs.compare import compare
    from .jobs.contribution import contribution
    from .jobs.fedmd import fedmd
    from .jobs.infer import infer
    from .jobs.pate.pate import pate
    from .jobs.plan import plan
    from .jobs.programs import run_programs
    from .jobs.risk import risk
    from .jobs.study.study import study
    from .jobs.synthesize import synthesize
    from .jobs.tabulate import tabulate
    from .jobs.train.client import client
    from .jobs.train.gossip import gossip
    from .jobs.train.train import train
    from .jobs.train_private import train_private
    from .jobs.vertical.join import join
    from .jobs.vertical.psi import align, psi
    from .jobs.vertical.regress import regress
    from .jobs.vertical.regress_result import Regression
    from .jobs.vertical.split import splitnn
    from .jobs.vertical.transfer import ftl
    from .parties.ledger import Ledger
    from .protocols.psi_policy import PsiPolicy
    from .protocols.splitnn_parts import cut
    from .release.load import load
    from .results import Comparison, Result
    from .runtimes.inprocess import InProcess
    from .runtimes.processes import Processes
    from .script import Script
    from .topologies import Hierarchy

__all__ = [
    "Comparison",
    "Hierarchy",
    "InProcess",
    "Ledger",
    "Processes",
    "PsiPolicy",
    "Regression",
    "Result",
    "Script",
    "TacitError",
    "__version__",
    "accounting",
    "aggregate",
    "algorithms",
    "align",
    "anonymity",
    "anonymize",
    "anonymize_again",
    "audit",
    "boost",
    "callbacks",
    "client",
    "compare",
    "contribution",
    "cut",
    "data",
    "fedmd",
    "ftl",
    "gossip",
    "graphs",
    "guard",
    "infer",
    "join",
    "link",
    "load",
    "models",
    "mpc",
    "pace",
    "pate",
    "plan",
    "private",
    "psi",
    "regress",
    "risk",
    "run_programs",
    "selection",
    "speeds",
    "splitnn",
    "stats",
    "study",
    "synth",
    "synthesize",
    "tabulate",
    "testing",
    "train",
    "train_private",
    "transfer",
]

_HOME = {
    "Comparison": "results",
    "Hierarchy": "topologies",
    "InProcess": "runtimes.inprocess",
    "Ledger": "parties.ledger",
    "Processes": "runtimes.processes",
    "PsiPolicy": "protocols.psi_policy",
    "Regression": "jobs.vertical.regress_result",
    "Result": "results",
    "Script": "script",
    "TacitError": "errors",
    "align": "jobs.vertical.psi",
    "anonymize": "jobs.anonymize",
    "anonymize_again": "jobs.anonymize_again",
    "client": "jobs.train.client",
    "compare": "jobs.compare",
    "contribution": "jobs.contribution",
    "cut": "protocols.splitnn_parts",
    "fedmd": "jobs.fedmd",
    "ftl": "jobs.vertical.transfer",
    "gossip": "jobs.train.gossip",
    "infer": "jobs.infer",
    "join": "jobs.vertical.join",
    "link": "jobs.vertical.link",
    "load": "release.load",
    "pate": "jobs.pate.pate",
    "plan": "jobs.plan",
    "psi": "jobs.vertical.psi",
    "regress": "jobs.vertical.regress",
    "risk": "jobs.risk",
    "run_programs": "jobs.programs",
    "splitnn": "jobs.vertical.split",
    "study": "jobs.study.study",
    "synthesize": "jobs.synthesize",
    "tabulate": "jobs.tabulate",
    "train": "jobs.train.train",
    "train_private": "jobs.train_private",
}
_RENAMED = {"run": "run_programs"}  # old name: new name; removed in the next version
_ROOMS = (
    "accounting",
    "aggregate",
    "algorithms",
    "anonymity",
    "audit",
    "boost",
    "callbacks",
    "data",
    "graphs",
    "guard",
    "models",
    "mpc",
    "pace",
    "private",
    "selection",
    "speeds",
    "stats",
    "synth",
    "testing",
    "transfer",
)


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        new = _RENAMED[name]
        warnings.warn(f"tacit.{name} is now tacit.{new}", DeprecationWarning, stacklevel=2)
        name = new
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
