"""A matching of large sets that resumes at a bucket after a party was stopped.

    receiver (has the results of buckets 0 … k − 1)            sender (has answered buckets 0 … j − 1)
      |--- ResumeOffer(mark, k, nonce) ----------------------->|   `mark`: of the stopped matching, or empty
      |<-- ResumeOffer(mark, j, nonce) ------------------------|   different marks: a new matching and query
      |<-- Outputs of buckets k … j − 1, the same bytes -------|   j − k ≤ 2: the receiver is no further ahead
      |    buckets j, j + 1, …: as in `psi_oprf`, under new    |
      |    base transfers and keys; then all `SharedIds` again |

A bucket is answered once. The sender writes an answer to disk before it sends it, so a receiver that claims
to have less, or comes back with other ids, gets the same bytes again; it evaluates the function at no more
ids than in a matching that was not stopped. Only the last two answers are kept: a receiver that claims to
have fewer buckets gets nothing. What the receiver keeps are its own shared rows and its own outputs. No file
contains ids or digests, or keys of the vector OLE, which are drawn anew.

The sender counts queries, the receiver does not. So a receiver that has sent `SharedIds` writes that first,
and never begins another matching in place of this one: a sender that claims to have lost its record could
bring another set, and would learn what it shares with the receiver, too.

A record must not go back in time: a sender whose kit is restored from a copy answers again what it answered
after the copy was made.

FOLDER/state.json   {"format": 2, "terms": …, "session": …, "mine": …, "theirs": …, "ids": …, "done": …,
                     "shown": …}
FOLDER/own-B        the receiver's outputs of bucket B, until it is matched
FOLDER/found-B      the receiver's shared rows of bucket B
FOLDER/answer-B     the sender's answer
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..crypto.agree import bind
from ..errors import BadRun, ProtocolError, QueryRefused
from ..files import flush_folder, write_atomic
from ..parties.message import Message
from ..parties.party import Party
from .id_buckets import IdBuckets
from .psi_policy import MAX_IDS
from .together import in_thread

log = logging.getLogger("tacit.party")
FORMAT, MARK, NONCE, SESSION = 2, 16, 16, 32
KEPT = 2  # answers that the receiver may not have read: `psi_oprf.AHEAD`
STATE = "state.json"
REFUSED = (
    "{other!r} was restarted after {me!r} had answered, and has no record of that matching. With other ids, "
    "another answer would show more than the parties agreed to. Nothing was written. Start again at all "
    "parties: that is a new query."
)
SHOWN = (
    "{other!r} has no record of the matching that {me!r} has in {folder}, in which {me!r} has already sent "
    "which ids are shared. A new one, with other ids, would show more than the parties agreed to. Nothing "
    "was written. If a new matching is what you want, remove the folder and start again at all parties."
)
NUMBERS = ("mine", "theirs", "ids", "done")


class ResumeOffer(
    Message, reveals="which stopped matching the other has a record of, if any, and how many of its buckets"
):
    mark: bytes
    done: int
    nonce: bytes


@dataclass(frozen=True)
class Resumed:
    """`session`: of the new keys. `done`: buckets that the receiver has; `answered`: by the sender."""

    session: bytes
    theirs: int
    done: int
    answered: int


class Checkpoint:
    """What a party keeps of a matching, in a folder of its own; without a folder, nothing.

    `terms`: what the parties agreed on: another matching is not resumed.
    """

    def __init__(self, folder: Path | None, terms: Mapping[str, Any]):
        self.folder, self.terms = folder, json.loads(json.dumps(terms))
        self.has_answered = False  # in this process
        self.state: dict[str, Any] = {}

    def read(self) -> None:
        """Read what an earlier process or an earlier beginning left."""
        self.state = {}
        if self.folder is None or not (self.folder / STATE).is_file():
            return
        try:
            state = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
            if state["format"] != FORMAT or not all(type(state[k]) is int for k in NUMBERS):
                raise ValueError("it has another format")
            if len(bytes.fromhex(state["session"])) != SESSION or type(state["shown"]) is not bool:
                raise ValueError("it has another format")
            if min(state[k] for k in NUMBERS) < 0 or max(state["mine"], state["theirs"]) > MAX_IDS:
                raise ValueError("a number is out of range")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadRun(
                f"{self.folder / STATE} cannot be read: {error!r:.200}. It records a stopped matching. "
                f"Remove {self.folder} at all parties to begin a new one."
            ) from None
        if state["terms"] == self.terms:
            self.state = state

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes of this party from the record, for as long as the block runs."""
        if self.folder is None:
            yield
            return
        lock = self.folder.with_name(self.folder.name + ".lock")
        try:
            lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadRun(_unwritable(lock, error)) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadRun(
                    f"another process of this party is in the same matching (it holds {lock}). End it first."
                ) from None
            yield
        finally:
            os.close(handle)

    @property
    def session(self) -> bytes:
        return bytes.fromhex(self.state["session"])

    @property
    def done(self) -> int:
        return int(self.state.get("done", 0))

    def mark(self) -> bytes:
        if not self.state:
            return b""
        return hashlib.sha256(bind("tacit psi resume 1", self.session)).digest()[:MARK]

    def begin(self, session: bytes, theirs: int, ids: IdBuckets) -> None:
        """Record a new matching, which has several buckets."""
        self.clear()
        if self.folder is None or ids.buckets < 2:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise BadRun(_unwritable(self.folder, error)) from None
        self.state = {
            "format": FORMAT,
            "terms": self.terms,
            "session": session.hex(),
            "mine": len(ids),
            "theirs": theirs,
            "ids": ids.fingerprint,
            "done": 0,
            "shown": False,
        }
        self._write()

    def clear(self) -> None:
        """Forget the matching."""
        self.state = {}
        if self.folder is None or not self.folder.exists():
            return
        try:
            (self.folder / STATE).unlink(missing_ok=True)  # first: what a kill leaves is then no record
            shutil.rmtree(self.folder)
        except OSError as error:
            raise BadRun(_unwritable(self.folder, error)) from None

    # the receiver's

    def keep_own(self, b: int, outputs: np.ndarray) -> None:
        """Keep my outputs of a bucket, before the sender can answer it."""
        self._keep(f"own-{b}", outputs.tobytes())

    def has_own(self, b: int) -> bool:
        """Return whether a bucket was asked for and is not matched."""
        return self.folder is not None and (self.folder / f"own-{b}").is_file()

    def own(self, b: int, rows: int, width: int) -> np.ndarray:
        """Return my outputs of a bucket that the sender has answered and I have not matched."""
        return np.frombuffer(self._read(f"own-{b}", rows * width), np.uint8).reshape(rows, width)

    def keep_found(self, b: int, places: np.ndarray) -> None:
        """Keep the shared rows of a bucket; it is done."""
        self._keep(f"found-{b}", places.astype("<i8").tobytes())
        self._advance(b)
        self._drop(f"own-{b}")

    def found(self, b: int) -> np.ndarray:
        content = self._read(f"found-{b}")
        if len(content) % 8:
            raise BadRun(f"{self.folder}/found-{b} has {len(content)} bytes, not rows of 8. {_AGAIN}")
        return np.frombuffer(content, "<i8")

    def keep_shown(self) -> None:
        """Keep that the sender learns which ids are shared, before it does."""
        self.has_answered = True
        if self.state and not self.state["shown"]:
            self.state["shown"] = True
            self._write()

    # the sender's

    def keep_answer(self, b: int, outputs: bytes) -> None:
        """Keep an answer, before it is sent."""
        self.has_answered = True
        self._keep(f"answer-{b}", outputs)
        self._advance(b)
        self._drop(f"answer-{b - KEPT}")

    def answer(self, b: int, size: int) -> bytes:
        """Return an answer of an earlier process, to be sent again."""
        self.has_answered = True
        return self._read(f"answer-{b}", size)

    def _keep(self, name: str, content: bytes) -> None:
        if not self.state or self.folder is None:
            return
        try:
            write_atomic(self.folder / name, content, mode=0o600)
            flush_folder(self.folder)
        except OSError as error:
            raise BadRun(_unwritable(self.folder / name, error)) from None

    def _read(self, name: str, size: int | None = None) -> bytes:
        assert self.folder is not None
        try:
            content = (self.folder / name).read_bytes()
        except OSError as error:
            raise BadRun(f"{self.folder / name} cannot be read: {error.strerror}. {_AGAIN}") from None
        if size is not None and len(content) != size:
            raise BadRun(f"{self.folder / name} has {len(content)} bytes; expected {size}. {_AGAIN}")
        return content

    def _drop(self, name: str) -> None:
        if self.state and self.folder is not None:
            (self.folder / name).unlink(missing_ok=True)

    def _advance(self, b: int) -> None:
        if self.state:
            self.state["done"] = b + 1
            self._write()

    def _write(self) -> None:
        self._keep(STATE, json.dumps(self.state).encode())


_AGAIN = "Remove the folder at all parties to begin a new matching."


def _unwritable(path: Path, error: OSError) -> str:
    return (
        f"{path} cannot be written: {error.strerror}. A matching that can be resumed keeps its record there. "
        "Free some space or correct the permissions, and start the same command again: it resumes."
    )


async def agree_to_resume(
    me: Party,
    ids: IdBuckets,
    other: str,
    checkpoint: Checkpoint,
    receives: bool,
    places: Callable[[int, int, bytes], tuple[bytes, int]],
    may: bool,
) -> Resumed | None:
    """Compare records with the other party; None: a new matching begins.

    `places`: returns (the key by which ids are dealt, the number of buckets), of (my size, their size,
    session). `may`: my policy still allows the query.
    """
    checkpoint.read()
    state = checkpoint.state
    if state:
        key, buckets = places(state["mine"], state["theirs"], checkpoint.session)
        if state["done"] > buckets:
            raise BadRun(
                f"{checkpoint.folder} records {state['done']} of {buckets} buckets: it was changed. {_AGAIN}"
            )
        if may and state["mine"] == len(ids):
            await in_thread(ids.deal, buckets, key)
        if not may or state["mine"] != len(ids) or ids.fingerprint != state["ids"]:
            log.info("party %r: the ids or the policy have changed, so the matching is not resumed", me.name)
            checkpoint.state = state = {}
    mine = ResumeOffer(checkpoint.mark(), checkpoint.done, me.secret.bytes(NONCE))
    await me.send(other, mine)
    theirs = await me.recv(other, ResumeOffer)
    if len(theirs.mark) not in (0, MARK) or len(theirs.nonce) != NONCE or theirs.done < 0:
        raise ProtocolError(f"party {other!r} sent an offer to resume that cannot be read.")
    if not state or theirs.mark != mine.mark:
        if checkpoint.has_answered:
            raise QueryRefused(REFUSED.format(other=other, me=me.name))
        if state and state["shown"]:
            raise QueryRefused(SHOWN.format(other=other, me=me.name, folder=checkpoint.folder))
        return None
    done, answered = (mine.done, theirs.done) if receives else (theirs.done, mine.done)
    if not done <= answered <= min(done + KEPT, ids.buckets):
        raise ProtocolError(
            f"party {other!r} claims to have {theirs.done} of {ids.buckets} buckets, and {me.name!r} has "
            f"{mine.done}; the sender is ahead of the receiver by at most {KEPT}. Nothing was answered. "
            "Start again at all parties, without their records of this matching."
        )
    if receives and (missing := [b for b in range(done, answered) if not checkpoint.has_own(b)]):
        raise ProtocolError(
            f"party {other!r} claims to have answered bucket {missing[0] + 1} of {ids.buckets}, which "
            f"{me.name!r} has not asked for. Nothing was sent. Start again at all parties, without their "
            "records of this matching."
        )
    log.info("party %r: the matching resumes at bucket %d of %d", me.name, done + 1, ids.buckets)
    nonces = (mine.nonce, theirs.nonce) if receives else (theirs.nonce, mine.nonce)
    session = hashlib.sha256(bind("tacit psi resumed 1", checkpoint.session, *nonces)).digest()
    return Resumed(session, state["theirs"], done, answered)
