"""Publish an anonymous table: hierarchies, privacy models, and algorithms that give up as little as they can."""

from . import builders, losses, models
from .builders import Dates, Flat, Intervals, Prefixes, Tree, suggest
from .datafly import Datafly
from .hierarchies import Hierarchy
from .models import BetaLikeness, DeltaPresence, KAnonymity, KMap, LDiversity, TCloseness
from .optimal import Optimal
from .release import Method
from .result import Anonymized, Step, Visited

ALL: dict[str, type[Method]] = {"datafly": Datafly, "optimal": Optimal}

__all__ = [
    "ALL", "Anonymized", "BetaLikeness", "Datafly", "Dates", "DeltaPresence", "Flat", "Hierarchy", "Intervals", "KAnonymity",
    "KMap", "LDiversity", "Method", "Optimal", "Prefixes", "Step", "TCloseness", "Tree", "Visited", "builders", "losses", "models",
    "suggest",
]
