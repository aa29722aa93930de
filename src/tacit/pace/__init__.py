"""When the server goes on: whose work it waits for, and what work that began with an older model still
counts. One paper, one file.

Synchronous rounds need none of this. A pace says who is asked when (its desk), and turns what has come into
the moves whose weighted mean an algorithm's `merge` takes. Nothing here does any I/O, so the same desk stands
in a simulation and in front of real parties.
"""

from .desk import Arrival, Desk, Order
from .fedasync import FedAsync
from .fedbuff import FedBuff
from .safa import SAFA
from .staleness import Constant, Hinge, Polynomial

ALL: dict[str, type] = {"FedBuff": FedBuff, "FedAsync": FedAsync, "SAFA": SAFA}

__all__ = [
    "ALL",
    "SAFA",
    "Arrival",
    "Constant",
    "Desk",
    "FedAsync",
    "FedBuff",
    "Hinge",
    "Order",
    "Polynomial",
]
