"""Parties, their messages, the wire format (codec), and the record of who saw what (Ledger).

Names are imported on first use: a simulation that needs only the Ledger loads neither torch nor msgpack.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import Clock, RealClock, VirtualClock
    from .codec import decode, encode
    from .ledger import Ledger, Seen, Spend
    from .mailbox import Mailbox
    from .message import Message
    from .party import Gathered, Party, Program, Runtime, Transport
    from .secret import Secret, SeededSecret

__all__ = [
    "Clock",
    "Gathered",
    "Ledger",
    "Mailbox",
    "Message",
    "Party",
    "Program",
    "RealClock",
    "Runtime",
    "Secret",
    "SeededSecret",
    "Seen",
    "Spend",
    "Transport",
    "VirtualClock",
    "decode",
    "encode",
]

_ROOMS = {
    "clock": ("Clock", "RealClock", "VirtualClock"),
    "codec": ("decode", "encode"),
    "ledger": ("Ledger", "Seen", "Spend"),
    "mailbox": ("Mailbox",),
    "message": ("Message",),
    "party": ("Gathered", "Party", "Program", "Runtime", "Transport"),
    "secret": ("Secret", "SeededSecret"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
