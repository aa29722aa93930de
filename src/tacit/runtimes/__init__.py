"""Runtimes for party programs, imported on first use: a simulation needs only torch and numpy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .inprocess import InProcess
    from .processes import Processes

__all__ = ["InProcess", "Processes"]

_HOME = {"InProcess": "inprocess", "Processes": "processes"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
