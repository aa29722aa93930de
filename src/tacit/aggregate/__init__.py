"""Aggregation rules: how the server combines the updates of a round."""

from .best import Best
from .clipped import CenteredClip, ClippedMean, NormBound
from .distill import Distill
from .foolsgold import FoolsGold
from .geometric import GeometricMedian
from .krum import Bulyan, Krum, MultiKrum
from .legato import Legato
from .matched import Matched
from .mean import Mean
from .median import Median, TrimmedMean
from .momentum import MEMBERS, RULE, Momentum
from .reliability import Layerwise, QualityWeighted
from .rule import Rule
from .sign import SignMajority
from .stack import SeesEach, Updates, WithMemory

ALL: dict[str, type[Rule]] = {
    kind.__name__: kind
    for kind in (
        Mean,
        ClippedMean,
        NormBound,
        CenteredClip,
        Median,
        TrimmedMean,
        Krum,
        MultiKrum,
        Bulyan,
        GeometricMedian,
        FoolsGold,
        SignMajority,
        Layerwise,
        Legato,
        QualityWeighted,
        Momentum,
        Best,
        Distill,
        Matched,
    )
}
MEMBERS.update(ALL)

__all__ = [
    "ALL",
    "RULE",
    "Best",
    "Bulyan",
    "CenteredClip",
    "ClippedMean",
    "Distill",
    "FoolsGold",
    "GeometricMedian",
    "Krum",
    "Layerwise",
    "Legato",
    "Matched",
    "Mean",
    "Median",
    "Momentum",
    "MultiKrum",
    "NormBound",
    "QualityWeighted",
    "Rule",
    "SeesEach",
    "SignMajority",
    "TrimmedMean",
    "Updates",
    "WithMemory",
]
