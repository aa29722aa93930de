"""Anonymization of tables: hierarchies, privacy models, and methods that minimize information loss."""

from . import builders, caesar, coding, losses, models, pseudonyms
from .ambiguity import Ambiguity
from .builders import Codes, Dates, Flat, Intervals, Prefixes, Tree, suggest
from .cells import Cells
from .cluster import Cluster
from .datafly import Datafly
from .editor import write_editor
from .fixed import Fixed
from .hierarchies import Hierarchy
from .history import ReleaseHistory
from .masking import MaskedText, mask_text
from .models import (
    AverageRisk,
    BetaLikeness,
    DeltaPresence,
    DifferentialPrivacy,
    KAnonymity,
    KMap,
    LDiversity,
    PopulationUniqueness,
    TCloseness,
)
from .mondrian import Mondrian
from .optimal import Optimal
from .private import Private
from .release import Method
from .result import AnonymizationResult, HomogeneityWarning, IdentifierWarning, LatticeNode, Step
from .spatial import SpatialCells, aggregate_points

ALL: dict[str, type[Method]] = {
    "datafly": Datafly,
    "optimal": Optimal,
    "cells": Cells,
    "mondrian": Mondrian,
    "cluster": Cluster,
    "ambiguity": Ambiguity,
    "fixed": Fixed,
    "private": Private,
}

__all__ = [
    "ALL",
    "Ambiguity",
    "AnonymizationResult",
    "AverageRisk",
    "BetaLikeness",
    "Cells",
    "Cluster",
    "Codes",
    "Datafly",
    "Dates",
    "DeltaPresence",
    "DifferentialPrivacy",
    "Fixed",
    "Flat",
    "Hierarchy",
    "HomogeneityWarning",
    "IdentifierWarning",
    "Intervals",
    "KAnonymity",
    "KMap",
    "LDiversity",
    "LatticeNode",
    "MaskedText",
    "Method",
    "Mondrian",
    "Optimal",
    "PopulationUniqueness",
    "Prefixes",
    "Private",
    "ReleaseHistory",
    "SpatialCells",
    "Step",
    "TCloseness",
    "Tree",
    "aggregate_points",
    "builders",
    "caesar",
    "coding",
    "losses",
    "mask_text",
    "models",
    "pseudonyms",
    "suggest",
    "write_editor",
]
