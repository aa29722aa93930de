"""Provable privacy for one holder: DP-SGD to train a model, PATE to label public rows."""

from .dpsgd import ALL, DPFTRL, DPSGD
from .layers import without_batch_norm
from .pate import ConfidentGNMax, GNMax, LNMax
from .pate_student import Lessons, Student
from .session import Session

__all__ = [
    "ALL",
    "DPFTRL",
    "DPSGD",
    "ConfidentGNMax",
    "GNMax",
    "LNMax",
    "Lessons",
    "Session",
    "Student",
    "without_batch_norm",
]
