"""Differential privacy: mechanisms, composition, calibration."""

from .account import Account
from .compose import Release, epsilon, noise_for
from .gaussian import (
    distributed_multiplier,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_multiplier,
    laplace_epsilon,
    laplace_scale,
    response_epsilon,
    stability_threshold,
)
from .skellam import skellam_epsilon, skellam_rdp

__all__ = [
    "Account",
    "Release",
    "distributed_multiplier",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_multiplier",
    "laplace_epsilon",
    "laplace_scale",
    "noise_for",
    "response_epsilon",
    "skellam_epsilon",
    "skellam_rdp",
    "stability_threshold",
]
