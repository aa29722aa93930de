"""A party's transport: an encrypted channel to each other party, through the hub or on one machine directly.

Connections are opened again when they are lost: a program notices a lost connection or a restarted hub only
by the delay. It gets an error if the hub refuses this party, cannot be reached for `patience` seconds, or
alters messages. With `away`, for protocols that no party can leave and rejoin, it also gets an error if an
awaited party has disconnected for that many seconds, or has restarted. `run(program, peers)` is for such
protocols as well: a party that fails tells its peers (stopping.py), and a program that waits for one that
failed gets an error at once. It also tells the hub the kind of its error: a party that connects later is told
by the hub, and stops if one that it `needs` does not start again within `patience` seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..errors import BadFrame, PartyStopped, ProtocolError, SealBroken
from ..parameters import nearest
from ..parties.clock import RealClock
from ..parties.codec import MAX_BYTES
from ..parties.forms import Frame
from ..parties.ledger import Ledger
from ..parties.mailbox import Mailbox
from ..parties.party import Party, Program
from ..parties.quota import MAX_SCOPE, MailLimits
from ..parties.secret import Secret
from . import stopping
from .channel import Channel, new_life
from .envelope import ABSENT, FAILED, MAIL, PRESENT, WELCOME, pack, unpack
from .kits import CertificateIdentity, Kit, keep_revocations
from .local_streams import LocalStreams
from .monitoring import Pulse
from .relay_connection import RESTART, RelayConnection

log = logging.getLogger("tacit.party")
# seconds until a separate confirmation is sent: longer than an answer usually takes, which confirms as well
SOON = 0.02
MANY = 50  # channels from which on this time grows with their number: a server confirms a round at once
TICK = 0.5
LINGER = 10.0  # seconds a finished party waits for others to receive its messages
ABSENT_SHARE = 0.1  # the fraction of this time that it waits where no receiver is connected
AGAIN = "Start this party again when it runs."
MOST_SECONDS = 1e9  # since a failure that a hub may tell; an integer beyond floats cannot be shown


class Link:
    """The transport of one party: `async with Link(kit) as link: await link.run(program)`."""

    def __init__(
        self,
        kit: Kit,
        *,
        seed: int | None = None,
        secret: Secret | None = None,
        max_bytes: int = MAX_BYTES,
        patience: float = 300.0,
        linger: float = LINGER,
        version: str = "",
        away: float | None = None,
        limits: MailLimits | None = None,
        start_wait: float = 0.0,
        needs: Iterable[str] = (),
        may_restart: bool = False,
        local: Mapping[str, str] | None = None,
    ):
        self.kit, self.patience, self.linger, self.away = kit, patience, linger, away
        self.may_restart = may_restart  # with `away`: the program itself notices restarted parties
        self.start_wait = start_wait  # seconds `drain` waits for a receiver that has not connected yet
        self.life = new_life()
        self.mailbox = Mailbox(kit.name, Ledger(), max_bytes, limits)
        self.mailbox.on_room.append(self._resume)
        self.party = Party(
            kit.name,
            self,
            self.mailbox,
            RealClock(),
            secret or Secret(),
            seed,
            identity=CertificateIdentity(lambda: self.kit),
        )
        self.channels: dict[str, Channel] = {}
        # sockets of parties on this machine, this one's too: payloads for them do not pass the hub
        self.local = LocalStreams(
            lambda: self.kit,
            local or {},
            self._pull_parts,
            self._receive,
            self._on_local_presence,
            self._fail,
            self.note,
        )
        self.notes: list[str] = []  # problems that were repaired or refused: for logs and tests
        self.peers: frozenset[str] = frozenset()  # parties that must not fail
        self._stopped: dict[str, PartyStopped] = {}  # parties that said that they failed
        self.needs = frozenset(needs)
        self.earlier: dict[
            str, tuple[str, float]
        ] = {}  # parties that failed before: (text, when it was told)
        self.relay = RelayConnection(
            lambda: self.kit,
            self.life,
            version,
            patience,
            self._pull,
            self._read,
            self._on_welcome,
            self.note,
        )
        self.connected = self.relay.connected
        self._hub_confirmed = asyncio.Event()
        self.sent_bytes = 0  # of messages, before encryption
        self.pulse = Pulse()
        self._room = asyncio.Event()
        self._to_confirm: dict[str, Channel] = {}  # channels that received what is not confirmed yet
        self._crowded: set[str] = set()  # receivers for which the program waits to confirm
        self._soon: asyncio.TimerHandle | None = None
        self._failed: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def connections(self) -> int:
        """How often this party has connected to the hub."""
        return self.relay.connections

    async def __aenter__(self) -> Link:
        self._failed = asyncio.get_running_loop().create_future()
        if self.kit.name in self.local:
            self.local.open()
        self._tasks = [
            asyncio.create_task(self.relay.stay_connected(), name=f"link of {self.kit.name}"),
            asyncio.create_task(self._tick()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # also if the party is canceled a second time, while it waits
            await self.local.close()
        if self._failed is not None and not self._failed.done():
            self._failed.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # marks it as retrieved, in case the program ends first
        self._room.set()

    def note(self, text: str) -> None:
        log.warning("party %r: %s", self.kit.name, text)
        self.notes.append(text)
        del self.notes[:-1000]  # bounds the memory of a long run

    # --- used by the party's program ------------------------------------------------------------------------

    async def run(self, program: Program, peers: Iterable[str] = ()) -> Any:
        """Run the program to its end and deliver its messages, or raise why the connection failed.

        `peers`: the other parties of a run that none of them can leave. If the program fails, they are told.
        If one of them fails, the program ends as soon as it waits for that party.
        """
        assert self._failed is not None
        self.peers = frozenset(peers) - {self.kit.name}
        task = asyncio.ensure_future(program(self.party))
        was_cancelled = False
        try:
            await asyncio.wait([task, self._failed], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
                if task.cancelled():
                    self._failed.result()
            return await task
        except BaseException as error:
            was_cancelled = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
            if not task.done():  # Ctrl-C: the program may still say goodbye
                task.cancel()
                await asyncio.wait([task])
            if not self._tasks[0].done():
                self.tell(self.peers, error)
                if not self._failed.done():
                    await self.tell_hub(error)
            raise
        finally:
            # also after a failure: messages such as the reason why it cannot take part must arrive
            if not self._failed.done() or (self.peers and not self._tasks[0].done()):
                # who ends a party does not want to wait for others to start
                await self.drain(0.0 if was_cancelled else self.start_wait)

    def tell(self, peers: Iterable[str], error: BaseException) -> None:
        """Tell other parties that this one stopped; `drain` delivers it."""
        frame = stopping.to_frame(error)
        for name in sorted(peers):
            channel = self._channel(name)
            channel.send(stopping.STOPPED, frame)
            self._wake(channel)

    async def tell_hub(self, error: BaseException) -> None:
        """Tell the hub the kind of an error, for parties that connect later; wait for its receipt."""
        self.relay.send(pack(FAILED, self.kit.name, "", stopping.reason_of(error).encode()))
        with suppress(TimeoutError):  # it may not be connected yet, and need not be
            await asyncio.wait_for(self._hub_confirmed.wait(), RESTART)

    async def deliver(self, sender: str, to: str, scope: str, frame: bytes) -> None:
        if sender != self.kit.name:
            raise ProtocolError(
                f"party {self.kit.name!r} tried to send to {to!r} as {sender!r}. A party can send only in "
                "its own name."
            )
        if len(scope.encode()) > MAX_SCOPE:
            raise ProtocolError(
                f"party {self.kit.name!r} sends in a scope whose name has {len(scope.encode())} bytes; at "
                f"most {MAX_SCOPE} are allowed. Use shorter tags."
            )
        if to == self.kit.name:
            self.mailbox.put(to, scope, frame)
            return
        channel = self._channel(to)
        try:
            while channel.is_full:
                self._crowded.add(to)
                self._check()
                self._room.clear()
                await self._room.wait()
        finally:
            self._crowded.discard(to)
        self._check()
        channel.send(scope, frame)
        self.sent_bytes += len(frame)
        self._wake(channel)

    async def drain(self, start_wait: float | None = None) -> None:
        """Wait until connected receivers have confirmed all messages.

        `start_wait`: seconds to wait for those that have not connected yet (default: the link's).
        """
        start_wait = self.start_wait if start_wait is None else start_wait
        began = time.monotonic()
        until = began + self.linger
        self._confirm()
        absent_since = 0.0  # since when no receiver with undelivered messages is connected
        last = began + max(self.patience, start_wait) + self.linger
        last_acked = 0

        def awaits_first_contact() -> bool:
            still_starting = time.monotonic() < began + start_wait
            return still_starting and any(c.busy and not c.their_life for c in self.channels.values())

        # looking at all channels takes microseconds for each: a tenth of the time at most
        pause = max(0.005, 5e-5 * len(self.channels))
        while any(c.busy for c in self.channels.values()) and (
            time.monotonic() < until or awaits_first_contact()
        ):
            acked = sum(c.acked for c in self.channels.values())
            is_paused = any(c.paused and c.present for c in self.channels.values())
            if acked != last_acked or is_paused or awaits_first_contact():
                # a receiver confirms messages, has no room yet, or has not connected yet: extend the time
                last_acked, until = acked, min(time.monotonic() + self.linger, last)
            is_present = awaits_first_contact() or any(c.busy and c.present for c in self.channels.values())
            absent_since = 0.0 if is_present else absent_since or time.monotonic()
            if absent_since and time.monotonic() - absent_since > ABSENT_SHARE * self.linger:
                break
            if self._tasks[0].done():
                self._check()
            await asyncio.sleep(pause)

    def measure_absence(self, name: str) -> float:
        """Return the seconds since a party that was connected disconnected, by the hub's word.

        0.0 if it is connected or never was, or if this party is disconnected itself and cannot know.
        """
        channel = self.channels.get(name)
        if channel is None or not channel.their_life or channel.present or not self._can_reach(name):
            return 0.0
        return time.monotonic() - channel.absent_since

    def _can_reach(self, name: str) -> bool:
        """Whether this party is connected to the hub, if that is the way to the other one."""
        return name in self.local or self.connected.is_set()

    def _check(self) -> None:
        assert self._failed is not None
        if self._failed.done() and not self._failed.cancelled():
            self._failed.result()

    def _channel(self, name: str) -> Channel:
        if name not in self.channels:
            if name not in self.kit.parties:
                raise ProtocolError(
                    f"party {self.kit.name!r} sends to {name!r}, which is not in federation "
                    f"{self.kit.federation!r}. "
                    f"{nearest(name, list(self.kit.parties))}"
                )
            box = self.mailbox
            self.channels[name] = Channel(
                self.kit,
                self.life,
                name,
                lambda scope, frame: self._accept(name, scope, frame),
                self.note,
                box.max_bytes,
                lambda scope, size: (
                    (scope == stopping.STOPPED and size <= stopping.MAX_BYTES)
                    or box.reserve(name, scope, size)
                ),
                lambda: box.cancel(name),
            )
            self.channels[name].front = pack(MAIL, self.kit.name, name)
        return self.channels[name]

    def _accept(self, name: str, scope: str, frame: Frame) -> None:
        """Put a message into the mailbox; one that says that its sender stopped is handled here."""
        if scope != stopping.STOPPED:
            self.mailbox.put(name, scope, frame)
            return
        self.mailbox.cancel(name)
        if name not in self._stopped:  # the first counts
            self._stopped[name] = stopping.to_error(name, frame)
            self.mailbox.ledger.record(self.kit.name, name, stopping.RunStopped, bytes=len(frame))
            self._check_stopped()

    # --- the connections ------------------------------------------------------------------------------------

    def _on_welcome(self) -> None:
        for name, channel in self.channels.items():
            if name not in self.local:
                channel.reconnect()
                self._wake(channel)

    def _wake(self, channel: Channel) -> None:
        """Have the writer look at this channel: it has, or may have, something to send."""
        if channel.peer in self.local:
            self.local.wake(channel.peer)
            return
        self.relay.wake(channel.peer)

    def _pull(self, name: str) -> bytes | None:
        channel = self.channels[name]
        return channel.pull() if channel.failure is None else None

    def _pull_parts(self, name: str) -> tuple[bytes, bytes] | None:
        channel = self.channels[name]
        return channel.pull_parts() if channel.failure is None else None

    def _on_local_presence(self, name: str, is_present: bool) -> None:
        self._on_presence(self.channels[name], is_present)

    def _on_presence(self, channel: Channel, is_present: bool) -> None:
        """Another party has connected, or disconnected."""
        if is_present:
            self.earlier.pop(channel.peer, None)
            channel.reconnect()
            self._wake(channel)
        elif channel.present:
            channel.present, channel.absent_since = False, time.monotonic()

    def _read(self, data: bytes) -> None:
        try:
            kind, sender, _, payload = unpack(data)
        except BadFrame as error:
            self.note(f"from the hub: {error}")
            return
        if kind == MAIL:
            self._receive(sender, payload)
        elif kind == FAILED:
            self._hub_confirmed.set()
        elif kind in (ABSENT, PRESENT) and sender in self.channels and sender not in self.local:
            self._on_presence(self.channels[sender], kind == PRESENT)
        elif kind == WELCOME:
            self._renew(payload)

    def _receive(self, sender: str, payload: memoryview) -> None:
        """Process a payload of another party."""
        try:
            channel = self._channel(sender)
        except ProtocolError:
            self.note(
                f"a message from {sender!r}, which is not in federation {self.kit.federation!r}, was dropped"
            )
            return
        if channel.failure is not None:
            return  # the channel failed: nothing more is read from this party
        before = channel.their_life
        channel.receive(payload)
        self.earlier.pop(sender, None)
        if channel.their_life != before:
            log.info("party %r: the encrypted channel with %r is open", self.kit.name, sender)
        if channel.failure is not None:
            self.mailbox.cancel(sender)
            self._check_broken()
        if channel.unconfirmed_records:
            self._to_confirm[sender] = channel
            if self._soon is None:
                wait = SOON * max(1.0, len(self.channels) / MANY)
                self._soon = asyncio.get_running_loop().call_later(wait, self._confirm)
        self._room.set()
        if channel.busy:  # a confirmation may have made room
            self._wake(channel)

    def _learn_failures(self, failed: Any) -> None:
        """Show which parties failed before this one connected; the text is this party's own."""
        for name, entry in failed.items() if isinstance(failed, dict) else ():
            if name == self.kit.name or name not in self.kit.parties or name in self.earlier:
                continue
            if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], int | float):
                continue
            if not 0 <= entry[1] < MOST_SECONDS:
                continue
            text = stopping.describe_earlier(name, str(entry[0]), entry[1])
            self.earlier[name] = text, time.monotonic()
            log.warning("%s", text)
            if name in self.needs:
                log.warning("waiting at most %.0f s for %r to start again (--patience)", self.patience, name)

    def _check_earlier(self) -> None:
        """Fail if a party that this one needs failed before, and does not start again."""
        for name, (text, told) in self.earlier.items():
            if name in self.needs and time.monotonic() - told > self.patience:
                self._fail(
                    PartyStopped(f"{text}. It did not start again within {self.patience:.0f} s. {AGAIN}")
                )

    def _renew(self, payload: memoryview) -> None:
        try:
            welcome = json.loads(bytes(payload))
            revoked = welcome.get("revoked")
            self._learn_failures(welcome.get("failed"))
            trust = self.kit.trust.update(revoked.encode()) if revoked else self.kit.trust
            if trust is not self.kit.trust:
                self.kit = replace(self.kit, trust=trust)
                for channel in self.channels.values():
                    channel.kit = self.kit
                self.local.renew()
                keep_revocations(self.kit)
        except OSError as error:
            self.note(
                "the hub's newer revocation list is in use, but cannot be written to "
                f"{self.kit.directory}: {error.strerror or error}. After a restart the hub must send it "
                "again."
            )
        except (ValueError, AttributeError, SealBroken) as error:
            self.note(f"the hub's revocation list was refused: {error}")

    def _confirm(self) -> None:
        self._soon = None
        for channel in self._to_confirm.values():
            channel.confirm()
            self._wake(channel)
        self._to_confirm.clear()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self.pulse.beat()
            for name, channel in self.channels.items():
                if self._can_reach(name):
                    channel.tick(time.monotonic())
                    if channel.busy:
                        self._wake(channel)
            self._check_broken()
            self._check_stopped()
            self._check_earlier()
            self._check_held()
            if self.away is not None:
                self._check_missing(self.away)

    def _resume(self) -> None:
        """Resume held senders for which there is room again."""
        for name, channel in self.channels.items():
            if channel.refused is not None and self.mailbox.has_room(name, *channel.refused):
                channel.resume()
                self._wake(channel)

    def _check_broken(self) -> None:
        """Fail if the program waits for a party whose channel failed.

        Otherwise a party could end another's run by sending garbage.
        """
        for name in (*self.mailbox.awaited(), *self._crowded):
            if name in self.channels and (failure := self.channels[name].failure) is not None:
                self._fail(failure)

    def _check_stopped(self) -> None:
        """Fail if the program waits for a peer that stopped; messages that it sent before are read first.

        Also if it waits for a peer that never answered, while another one stopped: the run cannot start any
        more. Other parties cannot end this run.
        """
        stopped = [name for name in self._stopped if name in self.peers]
        if not stopped:
            return
        for name in (*self.mailbox.awaited(endless=False, background=False), *self._crowded):
            if name in stopped:
                self._fail(self._stopped[name])
            elif name in self.peers and name in self.channels and not self.channels[name].their_life:
                self._fail(self._stopped[stopped[0]])

    def _check_held(self) -> None:
        """Fail if the awaited message cannot arrive because other messages of that party are unread."""
        for name, wants in self.mailbox.awaited().items():
            channel = self.channels.get(name)
            if (
                channel is not None
                and channel.refused_at
                and time.monotonic() - channel.refused_at > self.patience
            ):
                used = self.mailbox.quota.senders.get(name)
                self._fail(
                    ProtocolError(
                        f"party {self.kit.name!r} waits for {wants}, but {used.letters if used else 0} "
                        f"other messages of {name!r} ({used.bytes if used else 0} bytes) are unread, and "
                        "there "
                        "is no room for more. Do both run the same version and job? If so, do not trust this "
                        "party."
                    )
                )

    def _check_missing(self, away: float) -> None:
        """Fail if an awaited party that was connected has restarted or disconnected for too long."""
        for name, wants in (
            dict.fromkeys(self._crowded, "a confirmation that it reads") | self.mailbox.awaited()
        ).items():
            channel = self.channels.get(name)
            if channel is None or not channel.their_life or not self._can_reach(name):
                continue
            if channel.has_restarted and not self.may_restart:
                self._fail(
                    ProtocolError(
                        f"party {name!r} was restarted while party {self.kit.name!r} waited for {wants}; its "
                        "state is lost. Start again at all parties."
                    )
                )
            elif not channel.present and time.monotonic() - channel.absent_since > away:
                self._fail(
                    ProtocolError(
                        f"party {name!r} has been disconnected for "
                        f"{time.monotonic() - channel.absent_since:.0f} s (its process ended, or it lost its "
                        f"connection to the hub), and party {self.kit.name!r} waits for {wants}. Check that "
                        "party, and start again at all parties."
                    )
                )
