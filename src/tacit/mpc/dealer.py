"""Correlated randomness from a dealer: a party that sees no share and no opening, and must not work with
any party that does.

    dealer                                       computing party i of n
      |--- TapeKey(k_i, which dealing) ------------>|   once, to each: its shares of everything random are on this tape
      |--- Corrections(c − Σ_{i<n−1} c_i) --------->|   to the last party only: what makes the products come out right

A request has *free* parts (uniform: the sum, or for bits the exclusive or, of what lies on the n tapes)
and
*fixed* parts, which follow from the free ones. All parties but the last read their shares of both from the
tape; the last gets the difference. Nobody asks for anything: requests follow from what will be computed,
and a rehearsal of the same program without numbers (`plan`) lists them. So dealing can be done hours
before, and kept in a file.

Learns: the dealer nothing but the plan. A party's view is uniform words. Trust: dealer and parties do not
collude; each follows the protocol (semi-honest).
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import BadRun, ProtocolError
from ..files import write_atomic
from ..parties.message import Message
from ..parties.party import Party
from .tape import KEY, Tape

if TYPE_CHECKING:
    from .seat import Seat

SESSION = 16  # bytes
Parts = dict[
    str, tuple[tuple[int, ...], torch.dtype]
]  # uint8 holds bits, shared by exclusive or; wider words are shared by addition


class TapeKey(
    Message,
    reveals="a random key of the dealer's: the receiver's shares of masks, and nothing of anybody's data; "
    "and the dealing's random number",
):
    key: bytes
    session: bytes  # the same for all: halves of two dealings do not go together


class Corrections(Message, reveals="one share of random products: uniform words"):
    values: list[Tensor]


class Request:
    """One piece of correlated randomness. `holder`: the free parts are this party's alone, the others' shares
    are 0.
    """

    holder: int | None = None

    def free(self) -> Parts:
        raise ProtocolError(f"{type(self).__name__} does not say what it draws.")

    def fixed(self) -> Parts:
        return {}

    def make(self, free: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        """The fixed parts; `masks` are those that stay."""
        return {}


@dataclass(frozen=True)
class Mask(Request):
    """A mask that stays: what it hides is opened once under it, and multiplied often."""

    name: str
    shape: tuple[int, ...]
    holder: int | None = None

    def free(self) -> Parts:
        return {"b": (self.shape, torch.int64)}

    def make(self, free: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.name in masks:
            raise ProtocolError(f"mask {self.name!r} is dealt twice; one mask hides one value only.")
        masks[self.name] = free["b"]
        return {}


def join(parts: list[Tensor]) -> Tensor:
    """The sum, for bits the exclusive or, written over the first part."""
    made = parts[0]
    for part in parts[1:]:
        made = made.bitwise_xor_(part) if made.dtype is torch.uint8 else made.add_(part)
    return made


async def dealer(
    me: Party, parties: tuple[str, ...], requests: Iterable[Request], device: str = "cpu"
) -> None:
    """1. a fresh key to each;  2. for each request: read the tapes, make the fixed parts, send the last party what is missing."""
    tapes, session = [], me.secret.bytes(SESSION)
    for name in parties:
        key = me.secret.bytes(KEY)
        await me.send(name, TapeKey(key, session))
        tapes.append(Tape(key))
    masks: dict[str, Tensor] = {}
    for request in requests:
        read = [
            {
                name: tape.draw(shape, dtype).to(device)
                for name, (shape, dtype) in _on_tape(request, rank, len(parties)).items()
            }
            for rank, tape in enumerate(tapes)
        ]
        free = {name: join([r[name] for r in read if name in r]) for name in request.free()}
        made = request.make(free, masks)
        missing = []
        for name, (shape, dtype) in request.fixed().items():
            there = [r[name] for r in read[:-1]]
            value = made[name].to(dtype).reshape(shape)
            missing.append(
                (value ^ join(there) if dtype is torch.uint8 else value - join(there)) if there else value
            )
        if missing:
            await me.send(parties[-1], Corrections([m.cpu() for m in missing]))


def _on_tape(request: Request, rank: int, parties: int) -> Parts:
    """What this party reads from its tape, in order."""
    free = request.free() if request.holder in (None, rank) else {}
    return free if rank == parties - 1 else {**free, **request.fixed()}


def label(request: Request) -> bytes:
    """What a piece in a file was made for: kind, shapes, and what shapes do not tell (how many bits are taken
    off, a convolution's stride).
    """
    return hashlib.sha256(repr(request).encode()).digest()[:SESSION]


class Stock:
    """A computing party's side of the dealing: shares in the order of the plan, each used once."""

    def __init__(
        self,
        tape: Tape,
        rank: int,
        parties: int,
        corrections: Callable[[], Awaitable[list[Tensor]]],
        device: str = "cpu",
        session: bytes = b"",
        labels: Sequence[bytes] | None = None,
    ):
        self.tape, self.rank, self.parties, self.corrections, self.device = (
            tape,
            rank,
            parties,
            corrections,
            device,
        )
        self.session, self.labels = (
            session,
            labels,
        )  # None while the dealer works: what it deals follows from the program
        self.used = 0

    @classmethod
    async def live(cls, me: Party, rank: int, parties: int, dealer: str, device: str = "cpu") -> Stock:
        """While the dealer works."""
        came = await me.recv(dealer, TapeKey)

        async def receive() -> list[Tensor]:
            return (await me.recv(dealer, Corrections)).values

        return cls(Tape(came.key), rank, parties, receive, device, came.session)

    def _next(self, request: Request) -> None:
        """Is this what comes next in the file?"""
        if self.labels is not None and self.used >= len(self.labels):
            raise BadRun(
                "the stock is used up: more is computed than was planned. Run the offline phase for the "
                "whole plan."
            )
        self.used += 1
        if self.labels is not None and self.labels[self.used - 1] != label(request):
            raise ProtocolError(
                f"piece {self.used} of the stock does not fit {type(request).__name__}: another program was "
                "planned. Run the offline phase "
                "for this one: the same architecture, shapes and fractional bits."
            )

    async def take(self, request: Request) -> dict[str, Tensor]:
        self._next(request)
        got = {
            name: self.tape.draw(shape, dtype)
            for name, (shape, dtype) in _on_tape(request, self.rank, self.parties).items()
        }
        for name, (shape, dtype) in request.free().items():
            if name not in got:
                got[name] = torch.zeros(shape, dtype=dtype)
        fixed = request.fixed()
        if fixed and self.rank == self.parties - 1:
            values = await self.corrections()
            if [(tuple(v.shape), v.dtype) for v in values] != list(fixed.values()):
                raise ProtocolError(
                    f"the dealer's corrections number {self.used} do not fit {type(request).__name__}. "
                    "Dealer and parties must "
                    "rehearse the same program; deal anew."
                )
            got |= dict(zip(fixed, values))
        return {name: value.to(self.device) for name, value in got.items()}


async def fetch(
    me: Party, rank: int, parties: int, dealer: str, requests: Iterable[Request], path: Path
) -> Path:
    """The offline phase: keep what the dealer sends in a file, for `stored` to use once."""
    came, wanted = await me.recv(dealer, TapeKey), list(requests)
    kept = {"key": torch.frombuffer(bytearray(came.key), dtype=torch.uint8)}
    if rank == parties - 1:
        for i in range(sum(bool(r.fixed()) for r in wanted)):
            for j, value in enumerate((await me.recv(dealer, Corrections)).values):
                kept[f"{i}.{j}"] = value
    return _write(path, kept, rank, parties, came.session, list(map(label, wanted)))


class Made(Stock):
    """Masks that are there already, in the order of the plan: what two parties made themselves (`pair.py`),
    each used once.
    """

    def __init__(
        self,
        ready: list[dict[str, Tensor]],
        rank: int,
        parties: int,
        device: str = "cpu",
        session: bytes = b"",
        labels: Sequence[bytes] | None = None,
    ):
        self.ready, self.rank, self.parties, self.device, self.session, self.labels = (
            deque(ready),
            rank,
            parties,
            device,
            session,
            labels,
        )
        self.used = 0

    async def take(self, request: Request) -> dict[str, Tensor]:
        self._next(request)
        got, due = self.ready.popleft(), {**request.free(), **request.fixed()}
        if {name: (tuple(v.shape), v.dtype) for name, v in got.items()} != due:
            raise ProtocolError(
                f"piece {self.used} of the stock has not the parts of {type(request).__name__}. Run the "
                "offline phase again."
            )
        return {name: value.to(self.device) for name, value in got.items()}

    def keep(self, path: Path) -> Path:
        """In a file, for `stored` to use once."""
        kept = {
            f"{i} {name}": value.contiguous()
            for i, parts in enumerate(self.ready)
            for name, value in parts.items()
        }
        _write(path, kept, self.rank, self.parties, self.session, list(self.labels or [])[self.used :])
        self.ready.clear()  # in the file now, and nowhere else
        return path

    @classmethod
    def read(
        cls,
        kept: dict[str, Tensor],
        rank: int,
        parties: int,
        device: str,
        session: bytes,
        labels: Sequence[bytes],
    ) -> Made:
        ready: dict[int, dict[str, Tensor]] = {i: {} for i in range(len(labels))}
        for key, value in kept.items():
            number, name = key.split(" ", 1)
            ready[int(number)][name] = value
        return cls([ready[i] for i in sorted(ready)], rank, parties, device, session, labels)


def _write(
    path: Path, kept: dict[str, Tensor], rank: int, parties: int, session: bytes, labels: list[bytes]
) -> Path:
    from safetensors.torch import save

    about = {
        "place": torch.tensor([rank, parties]),
        "session": torch.tensor(list(session), dtype=torch.uint8),
        "plan": torch.tensor([list(one) for one in labels], dtype=torch.uint8).reshape(-1, SESSION),
    }
    write_atomic(path, save({**kept, **about}), mode=0o600)
    return path


def _read(path: Path, data: bytes) -> tuple[dict[str, Tensor], list[int], list[int], list[list[int]]]:
    from safetensors.torch import load

    if not data:
        raise BadRun(
            f"the stock at {path} was used already; a mask hides one value only. Run the offline phase again."
        )
    try:
        kept = load(data)
        place, session, plan = (kept.pop(name).tolist() for name in ("place", "session", "plan"))
    except Exception as error:  # safetensors has its own error, without a base worth naming
        raise BadRun(
            f"{path} is no stock of correlated randomness: {error}. Run the offline phase again."
        ) from None
    return kept, place, session, plan


def stored(path: Path, rank: int, parties: int, device: str = "cpu") -> Stock:
    """Open a file of `fetch` or `Made.keep`. It is emptied first, under a lock: masks used twice would give
    away differences of what they hide.
    """
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        raise BadRun(
            f"there is no stock of correlated randomness at {path}. Run the offline phase first."
        ) from None
    with file:
        flock(file, LOCK_EX)  # two programs that open it at once: the second waits, and finds it empty
        kept, place, session, plan = _read(path, file.read())
        if place != [rank, parties]:
            raise BadRun(
                f"the stock at {path} was dealt to party {place[0]} of {place[1]}, not {rank} of {parties}."
            )
        file.truncate(0)
        os.fsync(
            file.fileno()
        )  # on the disk before a mask is used: a machine that goes down must not find it full again
    labels = [bytes(one) for one in plan]
    if "key" not in kept:
        return Made.read(kept, rank, parties, device, bytes(session), labels)
    queue: deque[list[Tensor]] = deque()
    for name in sorted((k for k in kept if "." in k), key=lambda k: tuple(map(int, k.split(".")))):
        if name.endswith(".0"):
            queue.append([])
        queue[-1].append(kept[name])

    async def next_one() -> list[Tensor]:
        return queue.popleft()  # as many as the plan has, which `take` looks at first

    return Stock(Tape(bytes(kept["key"].numpy())), rank, parties, next_one, device, bytes(session), labels)


class Rehearsal(Stock):
    """Notes what is asked for and gives shapes without numbers."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def repeat(self, since: int, times: int) -> None:
        """Note `times` more what was asked for since request number `since`: a loop need not be rehearsed
        more than once.
        """
        self.requests += self.requests[since:] * times

    async def take(self, request: Request) -> dict[str, Tensor]:
        self.requests.append(request)
        return {
            name: torch.empty(shape, dtype=dtype, device="meta")
            for name, (shape, dtype) in {**request.free(), **request.fixed()}.items()
        }


def plan(program: Callable[[Seat], Awaitable[Any]], **options: Any) -> list[Request]:
    """The requests of a program: it is run alone on torch's meta device, where tensors have shapes and no
    numbers.
    """
    from .seat import Seat

    rehearsal = Rehearsal()
    steps = program(Seat(None, 0, ("rehearsal",), rehearsal, device="meta", **options)).__await__()
    for _ in steps:
        raise ProtocolError("a rehearsed program waits for a message; only openings may stand in it.")
    return rehearsal.requests
