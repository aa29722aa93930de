"""How many updates become one."""

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
from .sign import SignMajority

ALL = {
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
    "SignMajority",
    "TrimmedMean",
]
