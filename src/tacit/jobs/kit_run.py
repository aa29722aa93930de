"""Run one party's program over the federation's hub with its start kit, and record its ledger."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ProtocolError, TacitError
from ..parties.ledger import Ledger
from ..parties.message import Message
from ..parties.party import Party, Program
from .ledger_file import record_command
from .owner import Owner, Request

if TYPE_CHECKING:
    from ..runtimes.kits import Kit

M = TypeVar("M", bound=Message)
log = logging.getLogger("tacit.party")
TELL = 5.0  # seconds to reach the hub and tell the others that this party was refused before it connected


def run_with_kit(
    verb: str,
    kit: Kit,
    program: Program,
    patience: float,
    peers: Iterable[str],
    may_restart: bool = False,
    request: Request | None = None,
) -> tuple[dict[str, Any], Ledger]:
    """Run the program of a verb, which returns a dictionary; as `run_program`."""
    ledger = Ledger()
    return dict(run_program(verb, kit, program, patience, peers, ledger, may_restart, request)), ledger


def run_program(
    verb: str,
    kit: Kit,
    program: Program,
    patience: float,
    peers: Iterable[str],
    ledger: Ledger,
    may_restart: bool = False,
    request: Request | None = None,
) -> Any:
    """Run the program and return its result; what this party saw is added to the ledger.

    `peers`: all parties of the run. If one of them fails, it tells the others, and all of them stop. The line
    in the ledger file is written whether the program succeeds or fails. `may_restart`: the program resumes
    when another party is killed and started again (durable_run.py). `request` is what the owner of the kit
    decides about before the party connects.
    """
    from ..runtimes.link import Link

    peers = list(peers)
    if request is None:
        request = request_of_verb(verb, kit, peers)

    async def run_connected() -> Any:
        async with Link(kit, patience=patience, away=patience, may_restart=may_restart) as link:
            try:
                return await link.run(program, peers)  # messages are delivered first, also if it fails
            finally:
                ledger.merge(link.mailbox.ledger)

    with record_command(kit.directory, ledger, verb, kit.name), answering(Owner.of(kit), kit, request):
        return asyncio.run(run_connected())


def request_of_verb(verb: str, kit: Kit, peers: Iterable[str], **terms: Any) -> Request:
    """The request of a command without a job file: its name, its parties and its terms."""
    others = tuple(sorted(set(peers) - {kit.name}))
    text = json.dumps(
        {"verb": verb, "federation": kit.federation, "parties": sorted({*others, kit.name}), **terms},
        sort_keys=True,
    )
    about = f"{verb} with {', '.join(others)}" + "".join(f", {k} = {v!r}" for k, v in terms.items())
    return Request(verb, others, (kit.name, *others), text, about)


@contextmanager
def answering(owner: Owner | None, kit: Kit, request: Request) -> Iterator[None]:
    """Run the block if the owner of this kit allows it, after a person's decision where one is required.

    The request, the answer and how it ended are in the owner's log. If it is refused, the other parties are
    told that this one stopped.
    """
    if owner is None:
        yield
        return
    with telling(kit):
        owner.admit_and_wait(request)
    owner.answer(request.digest, request.verb)
    try:
        yield
    except BaseException as error:
        owner.end(request.digest, f"{type(error).__name__}: {error}")
        raise
    owner.end(request.digest, "")


@contextmanager
def telling(kit: Kit) -> Iterator[None]:
    """Check options and files in this block, before `run_with_kit`.

    If it fails, the parties that wait at the hub are told that this one stopped. They learn the kind of the
    error, not its text. A party that is in no run with this one ignores it.
    """
    try:
        yield
    except BaseException as error:
        try:
            _tell_present(kit, error)
        except (TacitError, OSError) as failed:
            log.warning("party %r: the others could not be told that it stopped: %s", kit.name, failed)
        raise


def _tell_present(kit: Kit, error: BaseException) -> None:
    from ..runtimes.link import Link
    from ..runtimes.preflight import check_admission

    if kit.role == "hub":
        return
    why, present = check_admission(kit, TELL)
    others = set(present) & set(kit.parties) - {kit.name}
    if why or kit.name in present:  # a second connection of this party would end the first
        return

    async def tell() -> None:
        async with Link(kit, patience=TELL, linger=TELL) as link:
            link.tell(others, error)
            await link.tell_hub(error)  # for those who connect later
            await link.drain()

    asyncio.run(tell())


async def first_of_each(
    me: Party, others: Iterable[str], kind: type[M], within: float | None
) -> AsyncIterator[tuple[str, M]]:
    """Yield (sender, its first message) as they arrive; after `within` seconds, name who has not started."""
    waiting = set(others)
    until = None if within is None else me.clock.now() + within
    while waiting:
        arrived = await me.soonest(sorted(waiting), kind, until=until)
        if arrived.refused:
            raise next(iter(arrived.refused.values()))
        if not arrived:
            raise ProtocolError(
                f"{', '.join(map(repr, sorted(waiting)))} did not start within {within:g} s, so {me.name!r} "
                "stopped. Start all parties, or wait longer (--wait)."
            )
        for name, message in arrived.items():
            waiting.discard(name)
            yield name, message
