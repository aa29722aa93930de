"""How many updates become one."""

from .mean import Mean

ALL = {"Mean": Mean}

__all__ = ["ALL", "Mean"]
