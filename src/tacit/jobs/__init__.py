"""The jobs: the only place that composes rooms. Each takes plain values, checks them all before it starts, and gives a result."""

from .compare import compare
from .train import train

__all__ = ["compare", "train"]
