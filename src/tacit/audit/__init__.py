"""Attacks on what is about to be released or trained, by ourselves first: poisoning, leakage, empirical ε,
contribution.
"""

from . import canaries, labels, leakage, reconstruction
from .poisoning import (
    Attack,
    Backdoor,
    FreeRide,
    Gaussian,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Scale,
    SignFlip,
)

__all__ = [
    "Attack",
    "Backdoor",
    "FreeRide",
    "Gaussian",
    "InnerProduct",
    "LabelFlip",
    "LittleIsEnough",
    "Scale",
    "SignFlip",
    "canaries",
    "labels",
    "leakage",
    "reconstruction",
]
