"""Attacks on your own models and releases: poisoning, leakage, empirical ε, reconstruction; contribution."""

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
