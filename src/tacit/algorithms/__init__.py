"""One paper, one file. An algorithm is two pure functions over one flat vector: what a client computes, what the server does with the mean."""

from . import schedules, solvers
from .fedavg import FedAvg, LocalSGD, ParallelSGD
from .fedavgm import FedAvgM
from .feddyn import FedDyn
from .fednag import FedNAG
from .fednova import FedNova
from .fedopt import FedAdagrad, FedAdam, FedYogi
from .fedprox import FedProx
from .fedsgd import FedSGD
from .scaffold import Scaffold
from .schedules import Cosine, Exponential, Inverse
from .solvers import SGD, Adam
from .types import Algorithm, Batch, Batches, Upload, Walk

ALL: dict[str, type[Algorithm]] = {
    "FedSGD": FedSGD, "FedAvg": FedAvg, "LocalSGD": LocalSGD, "ParallelSGD": ParallelSGD, "FedProx": FedProx, "FedNova": FedNova,
    "Scaffold": Scaffold, "FedNAG": FedNAG, "FedAvgM": FedAvgM, "FedAdagrad": FedAdagrad, "FedAdam": FedAdam, "FedYogi": FedYogi,
    "FedDyn": FedDyn,
}
PARTS = {**solvers.ALL, **schedules.ALL}  # what may stand inside an algorithm: for job files
SCAFFOLD = Scaffold

__all__ = [
    "ALL", "PARTS", "SCAFFOLD", "SGD", "Adam", "Algorithm", "Batch", "Batches", "Cosine", "Exponential", "FedAdagrad", "FedAdam", "FedAvg",
    "FedAvgM", "FedDyn", "FedNAG", "FedNova", "FedProx", "FedSGD", "FedYogi", "Inverse", "LocalSGD", "ParallelSGD", "Scaffold", "Upload", "Walk",
]
