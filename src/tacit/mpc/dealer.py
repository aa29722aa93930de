"""Correlated randomness from a dealer: a party that sees no share and no opening, and must not collude with
any party that does.

    dealer                                       computing party i of n
      |--- TapeKey(k_i, session) ------------------>|   once, to each: a tape with its random shares
      |--- Corrections(c − Σ_{i<n−1} c_i) --------->|   to the last party only: differences

A request has *uniform* parts (the sum, for bits the exclusive or, of the n tapes) and parts *derived* from
them. All parties but the last read their shares of both from the tape; the last receives the difference for
the derived parts. Nobody sends requests: they follow from the program, and `plan` lists them by a dry run
without numbers. So the dealing can be done in advance and saved in a file.

Who has which seed: k_i is known to party i and to the dealer, and to nobody else. So party i's shares are
uniform to every other party (AES as a pseudorandom generator), and the corrections, which are differences
from the words of k_0 … k_{n−2}, are uniform to the last party, which has none of these keys. A part that one
party alone holds is on that party's tape and is 0 elsewhere (`Request.holds`).

Learns: the dealer nothing but the plan. A party's view is uniform words. Trust: dealer and parties do not
collude; all are semi-honest.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..errors import BadRun, ProtocolError
from ..files import write_atomic
from ..parties.message import Message
from ..parties.party import Party
from .tape import AES, CHACHA, Parts, Tape, open_tape

if TYPE_CHECKING:
    from .context import RingContext

SESSION = 16  # bytes
# uint8 holds bits, shared by exclusive or; wider words are shared by addition
Values = dict[str, Tensor]


class TapeKey(
    Message,
    reveals="a random key of the dealer's: the receiver's shares of masks, and nothing of anybody's data; "
    "and the dealing's random number",
):
    key: bytes
    session: bytes  # the same for all parties, to tell dealings apart
    cipher: str = AES  # of the tape


class Corrections(Message, reveals="one share of random products: uniform words"):
    values: list[Tensor]


class Request(ABC):
    """One piece of correlated randomness: uniform parts, and parts derived from them.

    With a holder, the uniform parts belong to that party alone; the others' shares are 0.
    """

    holder: int | None = None

    def among(self, parties: int) -> Request:
        """What is dealt for this request to so many parties; two may need less than more do."""
        return self

    def holds(self, name: str, rank: int) -> bool:
        """Whether this party has a share of this uniform part; otherwise its share is 0."""
        return self.holder in (None, rank)

    @abstractmethod
    def uniform(self) -> Parts:
        """Return the shape and type of each uniform part."""

    def derived(self) -> Parts:
        return {}

    def parts(self) -> Parts:
        return {**self.uniform(), **self.derived()}

    def derive(self, uniform: Values, masks: Values) -> Values:
        """Compute the derived parts; `masks` are the named masks so far."""
        return {}

    def on_tape(self, rank: int, parties: int) -> Parts:
        """The parts that a party reads from its tape, in order; the last party reads uniform parts only."""
        uniform = {name: part for name, part in self.uniform().items() if self.holds(name, rank)}
        return uniform if rank == parties - 1 else {**uniform, **self.derived()}


@dataclass(frozen=True)
class Mask(Request):
    """The mask of an input, an output, or (with a name) a factor that is opened once for several products."""

    name: str | None
    shape: tuple[int, ...]
    holder: int | None = None

    def uniform(self) -> Parts:
        return {"b": (self.shape, torch.int64)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        if self.name in masks:
            raise ProtocolError(f"mask {self.name!r} is dealt twice; a mask may hide one value only.")
        if self.name is not None:
            masks[self.name] = uniform["b"]
        return {}


def join(parts: list[Tensor]) -> Tensor:
    """The sum, for bits the exclusive or, written over the first part."""
    total = parts[0]
    for part in parts[1:]:
        total = total.bitwise_xor_(part) if total.dtype is torch.uint8 else total.add_(part)
    return total


def _subtract(x: Tensor, y: Tensor) -> Tensor:
    return x ^ y if x.dtype is torch.uint8 else x - y


class Arithmetic(NamedTuple):
    """How shares are read from a tape, added and subtracted; `check` refuses values that are not shares."""

    draw: Callable[[Tape, Parts], Values]
    join: Callable[[list[Tensor]], Tensor]
    subtract: Callable[[Tensor, Tensor], Tensor]
    check: Callable[[Tensor], Tensor]


RING = Arithmetic(lambda tape, parts: tape.draw_parts(parts), join, _subtract, lambda x: x)


async def dealer(me: Party, parties: Sequence[str], requests: Iterable[Request], device: str = "cpu") -> None:
    """1. a fresh key to each;  2. for each request, the corrections to the last party."""
    cipher = CHACHA if torch.device(device).type == "cuda" else AES
    tapes = await send_keys(me, parties, cipher, device)
    await send_corrections(me, parties, tapes, requests, device)


async def send_keys(me: Party, parties: Sequence[str], cipher: str = AES, device: str = "cpu") -> list[Tape]:
    """A fresh key to each party; returns the tapes."""
    tapes, session = [], me.secret.bytes(SESSION)
    for name in parties:
        key = me.secret.bytes(KEY)
        await me.send(name, TapeKey(key, session, cipher))
        tapes.append(open_tape(key, cipher, device))
    return tapes


async def send_corrections(
    me: Party,
    parties: Sequence[str],
    tapes: list[Tape],
    requests: Iterable[Request],
    device: str,
    arithmetic: Arithmetic = RING,
) -> None:
    """For each request: read the tapes, compute the derived parts, send the differences to the last party."""
    masks: Values = {}
    for request in requests:
        await send_correction(me, parties, tapes, request, masks, device, arithmetic)


async def send_correction(
    me: Party,
    parties: Sequence[str],
    tapes: list[Tape],
    planned: Request,
    masks: Values,
    device: str,
    arithmetic: Arithmetic,
    kept: Collection[str] = (),
) -> list[Values]:
    """For one request; returns each party's shares of the parts to be `kept`."""
    draw, join, subtract, _ = arithmetic
    request = planned.among(len(parties))
    shares = [
        {name: part.to(device) for name, part in draw(tape, request.on_tape(rank, len(parties))).items()}
        for rank, tape in enumerate(tapes)
    ]
    # `join` writes over its first part
    copies = [{name: part.clone() for name, part in s.items() if name in kept} for s in shares]
    uniform = {name: join([s[name] for s in shares if name in s]) for name in request.uniform()}
    derived = request.derive(uniform, masks)
    corrections = {}
    for name, (shape, dtype) in request.derived().items():
        value = derived[name].to(dtype).reshape(shape)
        corrections[name] = subtract(value, join([s[name] for s in shares[:-1]])) if shares[:-1] else value
    if corrections:
        await me.send(parties[-1], Corrections(list(corrections.values())))
    copies[-1] |= {name: part for name, part in corrections.items() if name in kept}
    return copies


def digest_request(request: Request) -> bytes:
    """Identifies what a piece in a file was made for: its kind, shapes and options (bits, stride, …)."""
    return hashlib.sha256(b"tacit stock 2|" + repr(request).encode()).digest()[:SESSION]


class Stock:
    """A computing party's shares of correlated randomness in the order of the plan, each used once.

    `plan` has the digests of the requests; None while the dealer is connected, who follows the program.
    """

    def __init__(
        self,
        tape: Tape,
        rank: int,
        parties: int,
        corrections: Callable[[], Awaitable[list[Tensor]]],
        device: str = "cpu",
        session: bytes = b"",
        plan: Sequence[bytes] | None = None,
        arithmetic: Arithmetic = RING,
    ):
        self.tape, self.rank, self.parties = tape, rank, parties
        self.corrections, self.device, self.arithmetic = corrections, device, arithmetic
        self.session, self.plan, self.used = session, plan, 0

    @classmethod
    async def connect(
        cls,
        me: Party,
        rank: int,
        parties: int,
        dealer: str,
        device: str = "cpu",
        arithmetic: Arithmetic = RING,
    ) -> Stock:
        """Use the randomness while the dealer sends it."""
        message = await me.recv(dealer, TapeKey)

        async def receive() -> list[Tensor]:
            return (await me.recv(dealer, Corrections)).values

        tape = open_tape(message.key, message.cipher, device)
        return cls(tape, rank, parties, receive, device, message.session, arithmetic=arithmetic)

    def _check_next(self, request: Request) -> None:
        """Refuse a request that is not the next one of the plan."""
        if self.plan is not None and self.used >= len(self.plan):
            raise BadRun(
                "the stock is used up: the program needs more than was planned. Run the offline phase for "
                "the whole plan."
            )
        self.used += 1
        if self.plan is not None and self.plan[self.used - 1] != digest_request(request):
            raise ProtocolError(
                f"piece {self.used} of the stock does not match {type(request).__name__}: another program "
                "was planned. Run the offline phase "
                "for this one: the same architecture, shapes and fractional bits."
            )

    async def take(self, request: Request) -> Values:
        self._check_next(request)
        request = request.among(self.parties)
        parts = self.arithmetic.draw(self.tape, request.on_tape(self.rank, self.parties))
        for name, (shape, dtype) in request.uniform().items():
            if name not in parts:  # what another party holds is a share of 0
                parts[name] = torch.zeros(shape, dtype=dtype)
        derived = request.derived()
        if derived and self.rank == self.parties - 1:
            values = await self.corrections()
            if [(tuple(v.shape), v.dtype) for v in values] != list(derived.values()):
                raise ProtocolError(
                    f"corrections number {self.used} of the dealer do not match {request}. "
                    "Dealer and parties must plan the same program; repeat the dealing."
                )
            parts |= dict(zip(derived, map(self.arithmetic.check, values)))
        return {name: value.to(self.device) for name, value in parts.items()}


async def fetch(
    me: Party, rank: int, parties: int, dealer: str, requests: Iterable[Request], path: Path
) -> Path:
    """The offline phase: save the dealer's randomness in a file, for one use with `open_stock`."""
    message, planned = await me.recv(dealer, TapeKey), list(requests)
    tensors = {"key": torch.frombuffer(bytearray(message.key), dtype=torch.uint8)}
    if message.cipher != AES:
        tensors["cipher"] = torch.frombuffer(bytearray(message.cipher.encode()), dtype=torch.uint8)
    if rank == parties - 1:
        for i in range(sum(bool(r.among(parties).derived()) for r in planned)):
            for j, value in enumerate((await me.recv(dealer, Corrections)).values):
                tensors[f"{i}.{j}"] = value.cpu()  # a dealer of this process may send them on a GPU
    return _write(path, tensors, rank, parties, message.session, list(map(digest_request, planned)))


class ReadyStock(Stock):
    """Randomness that is complete in memory: what two parties generated themselves (`pair.py`)."""

    def __init__(
        self,
        pieces: list[Values],
        rank: int,
        parties: int,
        device: str,
        session: bytes,
        plan: Sequence[bytes],
    ):
        self.pieces, self.rank, self.parties, self.device = deque(pieces), rank, parties, device
        self.session, self.plan, self.used = session, plan, 0

    async def take(self, request: Request) -> Values:
        self._check_next(request)
        parts = self.pieces.popleft()
        if {name: (tuple(v.shape), v.dtype) for name, v in parts.items()} != request.among(
            self.parties
        ).parts():
            raise ProtocolError(
                f"piece {self.used} of the stock does not have the parts of {type(request).__name__}. Run "
                "the offline phase again."
            )
        return {name: value.to(self.device) for name, value in parts.items()}

    def save(self, path: Path) -> Path:
        """Move the unused pieces to a file, for one use with `open_stock`."""
        assert self.plan is not None
        tensors = {
            f"{i} {name}": value.contiguous()
            for i, parts in enumerate(self.pieces)
            for name, value in parts.items()
        }
        _write(path, tensors, self.rank, self.parties, self.session, list(self.plan[self.used :]))
        self.pieces.clear()  # they must not be used from memory, too
        return path


def _write(
    path: Path, tensors: dict[str, Tensor], rank: int, parties: int, session: bytes, plan: list[bytes]
) -> Path:
    from safetensors.torch import save

    metadata = {
        "place": torch.tensor([rank, parties]),
        "session": torch.tensor(list(session), dtype=torch.uint8),
        "plan": torch.tensor([list(digest) for digest in plan], dtype=torch.uint8).reshape(-1, SESSION),
    }
    write_atomic(path, save({**tensors, **metadata}), mode=0o600)
    return path


def _read(path: Path, data: bytes) -> tuple[dict[str, Tensor], list[int], list[int], list[list[int]]]:
    from safetensors.torch import load

    if not data:
        raise BadRun(
            f"the stock at {path} is used up; a mask may hide one value only. Run the offline phase again."
        )
    try:
        tensors = load(data)
        place, session, plan = (tensors.pop(name).tolist() for name in ("place", "session", "plan"))
    except Exception as error:  # safetensors' own error has no useful base class
        raise BadRun(
            f"{path} is not a stock of correlated randomness: {error}. Run the offline phase again."
        ) from None
    return tensors, place, session, plan


def open_stock(path: Path, rank: int, parties: int, device: str = "cpu") -> Stock:
    """Open a file of `fetch` or `ReadyStock.save`.

    The file is emptied first, under a lock: masks that are used twice reveal differences of what they hide.
    """
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        raise BadRun(
            f"there is no stock of correlated randomness at {path}. Run the offline phase first."
        ) from None
    with file:
        flock(file, LOCK_EX)  # a second program that opens it waits, and then finds it empty
        tensors, place, session, plan = _read(path, file.read())
        if place != [rank, parties]:
            raise BadRun(
                f"the stock at {path} belongs to party {place[0]} of {place[1]}, not {rank} of {parties}."
            )
        file.truncate(0)
        os.fsync(file.fileno())  # before a mask is used, so that a crash cannot restore the file
    digests = [bytes(digest) for digest in plan]
    if "key" not in tensors:
        pieces: list[Values] = [{} for _ in digests]
        for key, value in tensors.items():
            number, name = key.split(" ", 1)
            pieces[int(number)][name] = value
        return ReadyStock(pieces, rank, parties, device, bytes(session), digests)
    queue: deque[list[Tensor]] = deque()
    for name in sorted((k for k in tensors if "." in k), key=lambda k: tuple(map(int, k.split(".")))):
        if name.endswith(".0"):
            queue.append([])
        queue[-1].append(tensors[name])

    async def next_corrections() -> list[Tensor]:
        return queue.popleft()  # `take` checks the plan first, which has as many

    cipher = bytes(tensors["cipher"].numpy()).decode(errors="replace") if "cipher" in tensors else AES
    tape = open_tape(bytes(tensors["key"].numpy()), cipher, device)
    return Stock(tape, rank, parties, next_corrections, device, bytes(session), digests)


class DryRun(Stock):
    """Records the requests and returns shares on torch's meta device."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def repeat(self, since: int, times: int) -> None:
        """Record the requests from number `since` on `times` more: a loop needs one pass only."""
        self.requests += self.requests[since:] * times

    async def take(self, request: Request) -> Values:
        self.requests.append(request)
        return {
            name: torch.empty(shape, dtype=dtype, device="meta")
            for name, (shape, dtype) in request.parts().items()
        }


def plan(program: Callable[[RingContext], Awaitable[Any]], **options: Any) -> list[Request]:
    """The requests of a program, from a dry run on torch's meta device."""
    from .context import RingContext

    dry_run = DryRun()
    run_alone(program(RingContext(None, 0, ("dry run",), dry_run, device="meta", **options)))
    return dry_run.requests


def run_alone(program: Awaitable[Any]) -> None:
    """Run a program that never waits for a message."""
    for _ in program.__await__():
        raise ProtocolError("a program waits for a message in a dry run, where it may only open values.")
