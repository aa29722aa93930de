"""The verbs of later rooms, one module each. A module says `add(verb)`, which declares its verbs, and imports
nothing heavy at its top: `verb(name, do, text)` gives an argparse parser to add arguments to; `do(args)`
gives the answer as (plain values, a function that prints them).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

# in the order `tacit --help` lists them
MODULES: tuple[str, ...] = (
    "plan",
    "private",
    "pate",
    "anonymize",
    "synth",
    "synthesize",
    "psi",
    "split",
    "ftl",
    "predict",
    "ledger",
    "provision",
    "hub",
    "party",
    "study",
)


def add_all(verb: Callable[..., Any]) -> None:
    for name in MODULES:
        import_module(f"{__package__}.{name}").add(verb)
