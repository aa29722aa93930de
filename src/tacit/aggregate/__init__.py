"""How many updates become one."""

from ..parameters import Kind
from .best import Best
from .clipped import CenteredClip, ClippedMean, NormBound
from .distill import Distill
from .foolsgold import FoolsGold
from .geometric import GeometricMedian
from .krum import Bulyan, Krum, MultiKrum
from .matched import Matched
from .mean import Mean
from .median import Median, TrimmedMean
from .reliability import Layerwise, QualityWeighted
from .sign import SignMajority

ALL = {kind.__name__: kind for kind in (Mean, ClippedMean, NormBound, CenteredClip, Median, TrimmedMean, Krum, MultiKrum, Bulyan, GeometricMedian, FoolsGold,
                                        SignMajority, Layerwise, QualityWeighted, Best, Distill, Matched)}
RULE = Kind("an aggregation rule", ALL, ("start", "add", "result", "sees_each"))

__all__ = ["ALL", "RULE", "Best", "Bulyan", "CenteredClip", "ClippedMean", "Distill", "FoolsGold", "GeometricMedian", "Krum", "Layerwise", "Matched", "Mean",
           "Median", "MultiKrum", "NormBound", "QualityWeighted", "SignMajority", "TrimmedMean"]
