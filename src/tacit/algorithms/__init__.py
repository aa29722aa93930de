"""Federated algorithms, one paper in each file.

An algorithm is two pure functions of one flat vector: `local` is what a client computes, and `merge` is
what the server does with the mean of the uploads.
"""

from . import schedules, solvers
from .afl import AFL
from .apfl import APFL
from .cfl import CFL
from .ditto import Ditto
from .fedavg import FedAvg, LocalSGD, ParallelSGD
from .fedavgm import FedAvgM
from .fedbn import FedBN
from .feddyn import FedDyn
from .fedlbfgs import FedLBFGS
from .fedlbfgscv import FedLBFGSCV
from .fednag import FedNAG
from .fednova import FedNova
from .fedopt import FedAdagrad, FedAdam, FedYogi
from .fedpa import FedPA
from .fedper import FedPer
from .fedprox import FedProx
from .fedpso import FedPSO
from .fedrep import FedRep
from .fedsgd import FedSGD
from .finetune import FineTune
from .ifca import IFCA
from .pfedme import PFedMe
from .qfedavg import QFedAvg
from .scaffold import Scaffold
from .schedules import Cosine, Exponential, Inverse, Schedule
from .solvers import SGD, Adagrad, Adam, AdamW, RMSprop, Torch
from .types import Algorithm, Batch, Batches, LocalState, Solver, Upload

ALL: dict[str, type[Algorithm]] = {
    "FedSGD": FedSGD,
    "FedAvg": FedAvg,
    "FedLBFGS": FedLBFGS,
    "FedLBFGSCV": FedLBFGSCV,
    "LocalSGD": LocalSGD,
    "ParallelSGD": ParallelSGD,
    "FedProx": FedProx,
    "FedNova": FedNova,
    "Scaffold": Scaffold,
    "FedNAG": FedNAG,
    "FedAvgM": FedAvgM,
    "FedAdagrad": FedAdagrad,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
    "FedDyn": FedDyn,
    "FineTune": FineTune,
    "FedPer": FedPer,
    "FedRep": FedRep,
    "FedBN": FedBN,
    "Ditto": Ditto,
    "APFL": APFL,
    "PFedMe": PFedMe,
    "IFCA": IFCA,
    "CFL": CFL,
    "QFedAvg": QFedAvg,
    "AFL": AFL,
    "FedPA": FedPA,
    "FedPSO": FedPSO,
}
PARTS = {**solvers.ALL, **schedules.ALL}  # fields of algorithms, for job files
SCAFFOLD = Scaffold

__all__ = [
    "AFL",
    "ALL",
    "APFL",
    "CFL",
    "IFCA",
    "PARTS",
    "SCAFFOLD",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Algorithm",
    "Batch",
    "Batches",
    "Cosine",
    "Ditto",
    "Exponential",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedDyn",
    "FedLBFGS",
    "FedLBFGSCV",
    "FedNAG",
    "FedNova",
    "FedPA",
    "FedPSO",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSGD",
    "FedYogi",
    "FineTune",
    "Inverse",
    "LocalSGD",
    "LocalState",
    "PFedMe",
    "ParallelSGD",
    "QFedAvg",
    "RMSprop",
    "Scaffold",
    "Schedule",
    "Solver",
    "Torch",
    "Upload",
]
