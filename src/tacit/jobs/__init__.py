"""The jobs: the only place that composes rooms. Each takes plain values, checks them all before it starts, and gives a result."""

from .comparing import compare
from .training import train

__all__ = ["compare", "train"]
