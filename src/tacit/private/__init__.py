"""One holder, provable privacy: DP-SGD for a model's training, PATE for labels."""

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
