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
    "AttributeInference",
    "AuditLimits",
    "Backdoor",
    "ClassInversion",
    "Extraction",
    "FreeRide",
    "GanAttack",
    "Gaussian",
    "InnerProduct",
    "Inversion",
    "LabelFlip",
    "Linkage",
    "LittleIsEnough",
    "Membership",
    "Memorization",
    "PropertyInference",
    "Scale",
    "SignFlip",
    "canaries",
    "client_canaries",
    "extract",
    "gan",
    "infer_attribute",
    "infer_property",
    "invert",
    "invert_classes",
    "labels",
    "leakage",
    "linkage",
    "membership",
    "memorization",
    "reconstruction",
    "release",
    "roc",
    "trap_weights",
]

_HOME = {
    "client_canaries": "client_canaries",
    "AuditLimits": "release",
    "AttributeInference": "infer_attribute",
    "ClassInversion": "invert_classes",
    "Extraction": "extract",
    "GanAttack": "gan",
    "Inversion": "invert",
    "Membership": "membership",
    "Memorization": "memorization",
    "PropertyInference": "infer_property",
    "extract": "extract",
    "gan": "gan",
    "infer_attribute": "infer_attribute",
    "infer_property": "infer_property",
    "invert": "invert",
    "invert_classes": "invert_classes",
    "membership": "membership",
    "Linkage": "linkage",
    "linkage": "linkage",
    "memorization": "memorization",
    "release": "release",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"tacit.jobs.audit.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
