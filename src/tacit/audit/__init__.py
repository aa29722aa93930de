"""Attacks on your own models and releases: membership, poisoning, leakage, empirical ε, reconstruction.

`membership` and others that train shadow models are fetched when first used: they compose jobs.
"""

from importlib import import_module
from typing import Any

from . import canaries, labels, leakage, reconstruction, roc
from .inversion import trap_weights
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
    "AuditLimits",
    "Backdoor",
    "FreeRide",
    "Gaussian",
    "InnerProduct",
    "Inversion",
    "LabelFlip",
    "LittleIsEnough",
    "Membership",
    "Scale",
    "SignFlip",
    "canaries",
    "invert",
    "labels",
    "leakage",
    "membership",
    "reconstruction",
    "release",
    "roc",
    "trap_weights",
]

_HOME = {
    "AuditLimits": "release",
    "Inversion": "invert",
    "Membership": "membership",
    "invert": "invert",
    "membership": "membership",
    "release": "release",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"tacit.jobs.audit.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
