"""Asynchronous training, one paper in each file.

A pace says when the server asks which party, how many answers make a new version of the model, and how much
an answer still counts that was computed from an older version. Synchronous rounds need none of this.
Nothing here does I/O: simulations and deployments use the same schedulers.
"""

from .fedasync import FedAsync
from .fedbuff import FedBuff
from .safa import SAFA
from .scheduler import Arrival, Order, Pace, Scheduler
from .staleness import Constant, Hinge, Polynomial, Staleness

ALL: dict[str, type[Pace]] = {"FedBuff": FedBuff, "FedAsync": FedAsync, "SAFA": SAFA}

__all__ = [
    "ALL",
    "SAFA",
    "Arrival",
    "Constant",
    "FedAsync",
    "FedBuff",
    "Hinge",
    "Order",
    "Pace",
    "Polynomial",
    "Scheduler",
    "Staleness",
]
