"""An encrypted channel between two parties through an untrusted hub: in order, exactly once.

The hub may lose, repeat, reorder or change messages. There is no I/O here: payloads enter by `receive` and
leave by `pull`, time enters by `tick`, complete messages leave by `deliver`. The records of a message stay in
`records`, as views of the frame, until the other side has confirmed them; after a lost connection they are
sent again. Counters start at 0 for each pair of processes. A restarted process has lost what it received, so
records in transit to the old process are dropped; the protocol decides what to send again.

Flow control: before a message is accepted, `reserve` must grant room. Without room the record is not
accepted, the sender has to wait (HOLD), and `resume` requests it again. Records of a sender that does not
wait are dropped.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..crypto.seal import CONTROL, DATA, TAG, Ephemeral, Seal, sign_transcript, transcript, verify_transcript
from ..errors import SealBroken
from .envelope import CHUNK, FEW, LONGEST_SCOPE, SMALL_CHUNK
from .kits import Kit

HELLO, WELCOMED, FINISH, RECORD, NO_SESSION = b"H", b"W", b"F", b"R", b"N"
HEAD, BODY = 0, 1
ACK, RESUME, PROBE, HOLD = 0, 1, 2, 3
WINDOW = 8 << 20  # bytes in flight without a confirmation: what the hub may have to hold for one pair
INLINE = 64 << 10  # bytes of a message that are sent with its head; smaller messages are one record
# confirm at once after this much; otherwise the link confirms soon after
ACK_BYTES, ACK_RECORDS = 1 << 20, 64
QUIET = 2.0  # seconds without any confirmation after which the sender asks
# an unanswered handshake or probe is repeated after half of QUIET, then after twice the time, until it is
# this multiple of QUIET. A hub loses nothing unless it restarts or is hostile, and says so if a party is
# absent. A server that a thousand parties join at once takes seconds to answer: repeats at a fixed rate would
# grow with the square of the parties
LONGEST = 8
MANY = 1024  # unconfirmed records after which the sender waits
TRIES = 5  # altered records after which the channel fails: the hub is hostile or broken


class SealedRecord(NamedTuple):
    kind: int
    head: bytes
    body: memoryview
    ends: bool  # the last record of its message
    starts: bool


class Handshake(NamedTuple):
    """My half of a handshake in progress."""

    ephemeral: Ephemeral
    payload: bytes  # to be sent again if it was lost


class Channel:
    def __init__(
        self,
        kit: Kit,
        life: bytes,
        peer: str,
        deliver: Callable[[str, bytearray], None],
        note: Callable[[str], None],
        max_bytes: int,
        reserve: Callable[[str, int], bool] = lambda scope, size: True,
        cancel: Callable[[], None] = lambda: None,
    ):
        self.kit, self.life, self.peer, self.max_bytes = kit, life, peer, max_bytes
        self.deliver, self.note = deliver, note
        self.reserve, self.cancel = reserve, cancel  # reserve room for a message in a scope; release it
        self.refused: tuple[str, int] | None = None  # (scope, size) of a message without room
        self.refused_at = 0.0  # since when, in the time of `tick`; 0: not at the last tick
        self.has_noted = False
        self.paused = False  # the other side has no room for the next message
        self.present = True
        self.absent_since = 0.0  # since when it is absent
        self.has_restarted = False  # it is another process than before, which lost what it received
        # the envelope's head before every payload, joined here to save a copy
        self.front = b""
        self.greetings: dict[bytes, bytes] = {}  # handshake payloads to send, at most one of each kind
        # op: (value, number) to send, the latest of each op: many requests get one answer
        self.control: dict[int, tuple[int, int]] = {}
        self.records: deque[SealedRecord] = deque()
        self.acked = self.cursor = 0  # counters of the first unconfirmed record, and of the next to send
        self.in_flight = self.kept_bytes = 0  # bytes in flight, and bytes not confirmed
        self.expected = 0
        self.seal: Seal | None = None
        self.confirmed = False  # the other side has proved that it has the keys
        self.hello: Handshake | None = None
        # as responder: (keys, T, their life, their key, my reply, their hello)
        self.pending: tuple[Seal, bytes, bytes, object, bytes, bytes] | None = None
        self.finish = b""
        self.their_life = b""
        self.sent_control = self.seen_control = 0
        self.building: bytearray | None = None
        self.scope, self.total = "", 0
        self.unconfirmed_bytes = self.unconfirmed_records = 0
        # after a lost connection the other side may be another process, so it is probed first
        self.doubt = False
        self.asked_at = -1  # the counter whose loss was last reported
        self.probe: tuple[int, int] | None = None  # (its number, the cursor then)
        self.probes = 0
        self.last_progress = self.last_tick = 0.0
        self.repeat_at = self.repeat_wait = 0.0  # when to repeat what was not answered; 0: not decided yet
        self.altered = 0
        self.failure: SealBroken | None = None

    # --- out ------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """All records were confirmed."""
        return not self.records

    @property
    def busy(self) -> bool:
        """Something must be sent or confirmed."""
        return self.failure is None and bool(self.records or self.control or self.greetings)

    @property
    def is_full(self) -> bool:
        """So much is unconfirmed that the sender should wait."""
        return self.kept_bytes > WINDOW or len(self.records) > MANY

    def send(self, scope: str, frame: bytes | bytearray | memoryview) -> None:
        view = memoryview(frame)
        name = scope.encode()
        head = len(name).to_bytes(2, "big") + name + len(view).to_bytes(8, "big")
        self.kept_bytes += len(view)
        size = CHUNK if len(view) > FEW * CHUNK else SMALL_CHUNK
        starts = range(min(INLINE, len(view)), len(view), size)
        self.records.append(SealedRecord(HEAD, head, view[:INLINE], not len(starts), True))
        self.records.extend(
            SealedRecord(BODY, b"", view[start : start + size], start + size >= len(view), False)
            for start in starts
        )
        if self.seal is None and self.hello is None and self.pending is None:
            self._greet()

    def pull(self) -> bytes | None:
        """Return the next payload to send, after `front`, if there is one."""
        parts = self.pull_parts()
        return None if parts is None else b"".join((self.front, *parts))

    def pull_parts(self) -> tuple[bytes, bytes] | None:
        """Return the next payload to send in two parts, without copying what is sealed."""
        if self.greetings:
            return self.greetings.pop(next(iter(self.greetings))), b""
        if self.control and self.seal is not None:
            op = next(iter(self.control))
            value, number = self.control.pop(op)
            self.sent_control += 1
            plain = bytes((op,)) + value.to_bytes(8, "big") + number.to_bytes(8, "big")
            return self._record(
                CONTROL, self.sent_control, SealedRecord(BODY, b"", memoryview(plain), True, True)
            )
        if (
            self.seal is None
            or self.doubt
            or self.paused
            or not self.present
            or self.cursor - self.acked >= len(self.records)
            or self.in_flight >= WINDOW
        ):
            return None
        record, counter = self.records[self.cursor - self.acked], self.cursor
        if self.cursor == self.acked:  # nothing was in flight: the time without confirmations begins now
            self.last_progress = max(self.last_progress, self.last_tick)
        self.cursor += 1
        self.in_flight += len(record.body)
        return self._record(DATA, counter, record)

    def _record(self, space: int, counter: int, record: SealedRecord) -> tuple[bytes, bytes]:
        assert self.seal is not None
        plain: bytes | memoryview = record.body if record.kind == BODY else record.head + bytes(record.body)
        kind = (record.kind << 1 | record.ends) if space == DATA else 0
        # the nonce contains kind and counter: a head cannot be used as a body
        sealed = self.seal.close(space << 8 | kind, counter, plain)
        return b"".join((RECORD, self.seal.session, bytes((space, kind)), counter.to_bytes(8, "big"))), sealed

    def _send_control(self, op: int, value: int, number: int = 0) -> None:
        if self.seal is not None:
            _, before = self.control.get(op, (0, 0))
            self.control[op] = (value, number or before)

    def _greeting(self, payload: bytes) -> None:
        self.greetings[payload[:1]] = payload

    def _acknowledge(self, number: int = 0) -> None:
        """Confirm all records before `expected`; HOLD if there is no room for more."""
        self.control.pop(ACK, None) if self.refused is not None else self.control.pop(HOLD, None)
        self._send_control(HOLD if self.refused is not None else ACK, self.expected, number)

    # --- handshake ------------------------------------------------------------------------------------------

    def _greet(self) -> None:
        ephemeral = Ephemeral()
        self.hello = Handshake(ephemeral, HELLO + self.life + ephemeral.public + self.kit.der)
        self.repeat_at = 0.0
        self._greeting(self.hello.payload)

    def _transcript(
        self, initiator: bool, mine: bytes, their_life: bytes, theirs: bytes, certificate: bytes
    ) -> bytes:
        me, them = (
            (self.kit.name, self.life, mine, self.kit.der),
            (self.peer, their_life, theirs, certificate),
        )
        return transcript(self.kit.federation, *((me, them) if initiator else (them, me)))

    def _on_hello(self, data: bytes) -> None:
        if self.pending is not None and self.pending[5] == data:
            self._greeting(self.pending[4])  # the reply was lost
            return
        # both started a handshake: the first by name continues (`tick` repeats it if it was lost), the other
        # answers
        if self.hello is not None and self.kit.name < self.peer:
            return
        their_life, theirs, certificate = data[1:17], data[17:49], data[49:]
        public = self.kit.trust.party(certificate, self.peer)
        ephemeral = Ephemeral()
        t = self._transcript(False, ephemeral.public, their_life, theirs, certificate)
        signature = sign_transcript(b"responder", t, self.kit.sign)
        reply = WELCOMED + self.life + ephemeral.public + bytes((len(signature),)) + signature + self.kit.der
        self.pending = (Seal(ephemeral.agree(theirs), t, False), t, their_life, public, reply, data)
        self.hello = None
        self._greeting(reply)

    def _on_welcome(self, data: bytes) -> None:
        if self.hello is None:
            return
        their_life, theirs, n = data[1:17], data[17:49], data[49]
        signature, certificate = data[50 : 50 + n], data[50 + n :]
        public = self.kit.trust.party(certificate, self.peer)
        t = self._transcript(True, self.hello.ephemeral.public, their_life, theirs, certificate)
        if not verify_transcript(b"responder", t, signature, public):
            raise self._unsigned()
        seal = Seal(self.hello.ephemeral.agree(theirs), t, True)
        self.finish = FINISH + seal.session + sign_transcript(b"initiator", t, self.kit.sign)
        self.hello = None
        self._begin(seal, their_life)
        self._greeting(self.finish)

    def _on_finish(self, data: bytes) -> None:
        if self.seal is not None and data[1:9] == self.seal.session:
            self._acknowledge()  # the other side does not know yet that we have the keys
            return
        if self.pending is None:
            return
        seal, t, their_life, public, _, _ = self.pending
        if data[1:9] != seal.session or not verify_transcript(b"initiator", t, data[9:], public):  # type: ignore[arg-type]
            raise self._unsigned()
        self.pending, self.finish = None, b""
        self._begin(seal, their_life)
        self.confirmed = True
        self.unconfirmed_records += 1  # the link confirms soon, together with the records that follow

    def _unsigned(self) -> SealBroken:
        return SealBroken(
            f"the handshake of {self.peer!r} is not signed by its key for this session: it was altered, or "
            "replayed from another."
        )

    def _begin(self, seal: Seal, their_life: bytes) -> None:
        if self.their_life != their_life:  # else: nothing may be lost or repeated
            if self.their_life:
                self.note(f"{self.peer!r} was restarted")
                self.has_restarted = True
            # messages that the old process received in part are not sent to the new one
            sent = self.cursor - self.acked
            while sent > 0 or (self.records and not self.records[0].starts):
                self.kept_bytes -= len(self.records.popleft().body)
                sent -= 1
            self.acked = self.expected = 0
            self._abandon()
        self.cursor, self.in_flight = self.acked, 0
        self.seal, self.their_life, self.confirmed = seal, their_life, False
        self.repeat_at = 0.0
        self.sent_control = self.seen_control = 0
        self.control.clear()  # of the old session
        self.paused, self.refused = False, None
        self.asked_at, self.probe, self.altered, self.doubt = -1, None, 0, False

    # --- in -------------------------------------------------------------------------------------------------

    def receive(self, payload: memoryview) -> None:
        """Process a payload from the hub in this peer's name; invalid payloads are logged and dropped."""
        kind = bytes(payload[:1])
        try:
            if kind == RECORD and len(payload) >= 19 + TAG:
                self._on_record(payload)
            elif kind == HELLO and len(payload) > 49:
                self._on_hello(bytes(payload))
            elif kind == WELCOMED and len(payload) > 50:
                self._on_welcome(bytes(payload))
            elif kind == FINISH and len(payload) > 9:
                self._on_finish(bytes(payload))
            elif kind == NO_SESSION:
                if (
                    self.seal is not None
                    and bytes(payload[1:]) == self.seal.session
                    and self.hello is None
                    and self.pending is None
                ):
                    self._greet()
            else:
                raise SealBroken(
                    f"a payload in the name of {self.peer!r} is neither a handshake nor a record."
                )
        except SealBroken as error:
            self.note(str(error))
            self.altered += 1
            if self.altered >= TRIES:
                self.failure = SealBroken(
                    f"{self.altered} payloads in the name of {self.peer!r} were not "
                    f"authentic; the last: {error} Do not trust this hub, or this party."
                )

    def _on_record(self, payload: memoryview) -> None:
        session, space, kind = bytes(payload[1:9]), payload[9], payload[10]
        counter = int.from_bytes(payload[11:19], "big")
        if self.seal is None or session != self.seal.session:
            if self.pending is None:  # else: its Finish is in transit, or will be sent again
                self._greeting(NO_SESSION + session)
            return
        if space == CONTROL:
            plain = self.seal.open(CONTROL << 8 | kind, counter, payload[19:])
            if counter <= self.seen_control:
                raise SealBroken(f"an old confirmation of {self.peer!r} was replayed.")
            self.seen_control, self.confirmed, self.doubt = counter, True, False
            self._on_control(plain[0], int.from_bytes(plain[1:9], "big"), int.from_bytes(plain[9:17], "big"))
            return
        if counter < self.expected:
            self.note(f"record {counter} of {self.peer!r} was received twice; the second was dropped")
            self._acknowledge()
            return
        if counter > self.expected:
            if self.asked_at != self.expected and self.refused is None:
                self.note(
                    f"record {self.expected} of {self.peer!r} is missing: record {counter} was received first"
                )
                self.asked_at = self.expected
                self._send_control(RESUME, self.expected)
            return
        try:
            plain = self.seal.open(DATA << 8 | kind, counter, payload[19:])
        except SealBroken:
            self._send_control(RESUME, self.expected)
            raise SealBroken(f"record {counter} of {self.peer!r} was altered in transit.") from None
        if kind >> 1 == HEAD and not self._has_room(plain):
            return
        self.expected += 1
        self.confirmed, self.doubt = True, False
        self.unconfirmed_bytes += len(plain)
        self.unconfirmed_records += 1
        self._take_record(kind >> 1, bool(kind & 1), plain)
        if self.unconfirmed_bytes >= ACK_BYTES or self.unconfirmed_records >= ACK_RECORDS:
            self.confirm()

    def confirm(self) -> None:
        if self.unconfirmed_records:
            self.unconfirmed_bytes = self.unconfirmed_records = 0
            self._acknowledge()

    def _has_room(self, plain: bytes) -> bool:
        """Return whether there is room for the message of this head; if not, its sender must wait."""
        n = int.from_bytes(plain[:2], "big")
        scope, total = plain[2 : 2 + n].decode(errors="replace"), int.from_bytes(plain[2 + n : 10 + n], "big")
        self._abandon()
        if total <= self.max_bytes and n <= LONGEST_SCOPE:  # else it is dropped
            if not self.reserve(scope, total):
                if not self.has_noted:  # once: holding a sender back is not an error
                    self.note(f"{self.peer!r} has sent more than is read here; its next message has to wait")
                    self.has_noted = True
                self.refused = scope, total
                self._acknowledge()
                return False
            self.building = bytearray()
        self.scope, self.total, self.refused = scope, total, None
        return True

    def resume(self) -> None:
        """Request the refused message again: there may be room now."""
        self.refused, self.refused_at, self.asked_at = None, 0.0, self.expected
        self.control.pop(HOLD, None)
        self._send_control(RESUME, self.expected)

    def _abandon(self) -> None:
        if self.building is not None:
            self.building = None
            self.cancel()

    def _take_record(self, kind: int, last: bool, plain: bytes) -> None:
        if kind == HEAD:
            n = int.from_bytes(plain[:2], "big")
            if self.building is None:
                what, most = (
                    (f"message of {self.total} bytes", self.max_bytes)
                    if n <= LONGEST_SCOPE
                    else (f"scope's name of {n} bytes", LONGEST_SCOPE)
                )
                self.note(f"{self.peer!r} sends a {what}, more than the {most} allowed here; it is dropped")
            plain = plain[10 + n :]
        if self.building is None:
            return
        self.building += plain
        if len(self.building) > self.total or (last and len(self.building) < self.total):
            self.note(f"a message of {self.peer!r} does not have its declared length; it is dropped")
            self._abandon()
        elif last:
            frame, self.building = self.building, None
            self.deliver(self.scope, frame)

    def _on_control(self, op: int, value: int, number: int) -> None:
        if op == PROBE:
            self.unconfirmed_bytes = self.unconfirmed_records = 0
            self._acknowledge(value)
            return
        if self.acked <= value <= self.acked + len(self.records):
            if value > self.acked:
                self.last_progress, self.repeat_at = self.last_tick, 0.0
            for _ in range(value - self.acked):
                record = self.records.popleft()
                self.kept_bytes -= len(record.body)
                if self.acked < self.cursor:
                    self.in_flight -= len(record.body)
                self.acked += 1
            self.cursor = max(self.cursor, self.acked)
            self.paused = op == HOLD
            lost = op in (RESUME, HOLD) or (
                self.probe is not None and number == self.probe[0] and value < self.probe[1]
            )
            if lost and self.cursor > value:
                self.cursor, self.in_flight = value, 0
            if number and self.probe is not None and number == self.probe[0]:
                self.probe = None

    # --- time -----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Called about once a second: repeat an unanswered handshake, probe for missing confirmations."""
        self.last_tick = now
        self.refused_at = (self.refused_at or now) if self.refused is not None else 0.0
        if not self.present:
            return
        greeting = b""
        if self.hello is not None:
            greeting = self.hello.payload
        elif self.seal is not None and not self.confirmed:
            greeting = self.finish
        is_quiet = self.cursor > self.acked and now - self.last_progress > QUIET
        is_unsure = is_quiet or self.doubt or self.paused
        if not greeting and not is_unsure:
            self.repeat_at = 0.0
        elif self._is_due(now, at_once=is_quiet):
            if greeting:
                self._greeting(greeting)
            if is_unsure:
                self.ask()
        self.confirm()

    def _is_due(self, now: float, at_once: bool) -> bool:
        """Return whether it is time to repeat; the times between repeats double."""
        if now < self.repeat_at:
            return False
        is_first = not self.repeat_at
        self.repeat_wait = QUIET / 2 if is_first else min(2 * self.repeat_wait, LONGEST * QUIET)
        self.repeat_at = now + self.repeat_wait
        return at_once or not is_first

    def ask(self) -> None:
        """Probe what the other side has received; the hub keeps the order, so the rest was lost."""
        if self.seal is not None:
            self.probes += 1
            self.probe = (self.probes, self.cursor)
            self._send_control(PROBE, self.probes)

    def reconnect(self) -> None:
        """Continue after a reconnect, mine or the other's."""
        self.present, self.doubt, self.repeat_at = True, self.seal is not None, 0.0
        if self.hello is not None:
            self._greeting(self.hello.payload)
        elif self.finish and not self.confirmed:
            self._greeting(self.finish)
        self.ask()


def new_life() -> bytes:
    return secrets.token_bytes(16)
