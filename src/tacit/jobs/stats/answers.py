"""What a party has answered under one contract, on its own disk, written before an answer leaves.

    STATE/sums-HASH.jsonl           {"what": "table", "digest": "…"}       the rows it is about
                                    {"what": "charged"}                    the account paid for the query
                                    {"what": "answer", "step": 3, "sent": "…", "file": "…"}
                                    {"what": "begun", "step": 3}           began again there (departures.py)
                                    {"what": "upload"|"reveal", "step": 3, "among": "…"}   (threshold < 1)
                                    {"what": "key", "key": "…"}            checks opened sums
                                    {"what": "opened", "step": 3, "vector": "…"}
    STATE/sums-HASH/3.safetensors   the vector that answers step 3; opened-3.safetensors: the opened sum

A coordinator cannot reset it: it is keyed by the contract. A party that was killed and restarted reads it
again, and answers a repeated step with the same vector, noise included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BadRun, ProtocolError
from ...files import write_atomic
from ..record_file import RecordFile


class AnswerFile(RecordFile):
    def __init__(self, folder: Path, party: str, contract: str):
        name = hashlib.sha256(f"{party} {contract}".encode()).hexdigest()[:16]
        self.party, self.folder = party, folder / f"sums-{name}"
        super().__init__(folder / f"sums-{name}.jsonl")

    def reset(self) -> None:
        self.table: str | None = None
        self.charged = False  # whether the party's privacy account paid for this query
        self.sent: dict[int, tuple[str, str]] = {}  # step: digest of the request, digest of the vector
        self.uploads: dict[int, str] = {}
        self.reveals: set[int] = set()
        self.alive: dict[int, frozenset[str]] = {}  # step: who was in its opened sum
        self.asked: set[str] = set()  # questions that are answered once (sum_steps.AsksOnce)
        self.begun: list[int] = []  # steps at which the program began again (threshold below 1)
        self.key: bytes | None = None  # of the tags by which sums are checked (checked_sums.py)
        self.opened: dict[int, str] = {}  # step: digest of the opened sum

    def apply(self, entry: dict[str, Any]) -> None:
        match entry["what"]:
            case "table":
                self.table = entry["digest"]
            case "charged":
                self.charged = True
            case "answer":
                self.sent[entry["step"]] = entry["sent"], entry["vector"]
                if entry.get("once") is not None:
                    self.asked.add(entry["once"])
            case "begun":
                self.begun.append(entry["step"])
            case "upload":
                self.uploads[entry["step"]] = entry["among"]
            case "reveal":
                self.reveals.add(entry["step"])
                if entry.get("alive"):
                    self.alive[entry["step"]] = frozenset(entry["alive"])
            case "key":
                self.key = bytes.fromhex(entry["key"])
            case "opened":
                self.opened[entry["step"]] = entry["vector"]
            case other:
                raise ValueError(f"unknown entry {other!r}")

    def bind_table(self, digest: str) -> None:
        """Accept one table for this contract: sums over changed rows could be subtracted."""
        self.write(lambda: self.table is None, what="table", digest=digest)
        if self.table != digest:
            raise ProtocolError(
                f"the rows of {self.party!r} have changed since it began to answer this query. Restore the "
                "table, or agree on a new query."
            )

    def record_charge(self) -> None:
        self.write(lambda: True, what="charged")

    def find(self, step: int) -> tuple[bytes, np.ndarray] | None:
        if step not in self.sent:
            return None
        sent, digest = self.sent[step]
        return bytes.fromhex(sent), self._load(f"{step}.safetensors", digest)

    def _load(self, name: str, digest: str) -> np.ndarray:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        file = self.folder / name
        try:
            content = file.read_bytes()
            vector: np.ndarray = load(content)["vector"]
        except (OSError, SafetensorError, KeyError) as error:
            raise BadRun(f"{file} cannot be read: {error}. Restore it from a copy.") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise BadRun(f"{file} is not the answer that {self.file} records. Restore both from a copy.")
        return vector

    def _save(self, name: str, vector: np.ndarray) -> str:
        from safetensors.numpy import save

        content = save({"vector": np.ascontiguousarray(vector, dtype=np.int64)})
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / name, content, 0o600)
        return hashlib.sha256(content).hexdigest()

    def keep(self, step: int, sent: bytes, vector: np.ndarray, once: str | None = None) -> None:
        digest = self._save(f"{step}.safetensors", vector)
        if not self.write(
            lambda: step not in self.sent and once not in self.asked,
            what="answer", step=step, sent=sent.hex(), vector=digest, once=once,
        ):  # fmt: skip
            raise ProtocolError(
                f"another process of {self.party!r} has answered step {step + 1}. Run one process per party."
            )

    def begin(self, first: int) -> None:
        if not self.write(lambda: first > max(self.begun, default=0), what="begun", step=first):
            raise ProtocolError(
                f"another process of {self.party!r} has begun again. Run one process per party."
            )

    def has_asked(self, once: str) -> bool:
        return once in self.asked

    def find_key(self) -> bytes | None:
        return self.key

    def keep_key(self, key: bytes) -> None:
        if not self.write(lambda: self.key is None, what="key", key=key.hex()):
            raise ProtocolError(f"another process of {self.party!r} has a key. Run one process per party.")

    def find_opened(self, step: int) -> np.ndarray | None:
        digest = self.opened.get(step)
        return None if digest is None else self._load(f"opened-{step}.safetensors", digest)

    def keep_opened(self, step: int, total: np.ndarray) -> None:
        digest = self._save(f"opened-{step}.safetensors", total)
        self.write(lambda: step not in self.opened, what="opened", step=step, vector=digest)

    def commit(self, step: int) -> RecordedStep:
        return RecordedStep(self, step)


@dataclass(frozen=True)
class RecordedStep:
    """The commitment (protocols/consent.py) to at most one opened sum of a step."""

    file: AnswerFile
    step: int

    def upload(self, participants: Sequence[str] | None) -> bool:
        if participants is None or self.step in self.file.reveals:
            return False
        among = hashlib.sha256(json.dumps(sorted(participants)).encode()).hexdigest()
        uploads = self.file.uploads
        if self.step not in uploads:
            return self.file.write(
                lambda: self.step not in self.file.uploads, what="upload", step=self.step, among=among
            )
        return uploads[self.step] == among

    def reveal(self, alive: Collection[str] = ()) -> bool:
        """Record it; False also for a sum with a party that was not in that of the step before."""
        before = self.file.alive.get(self.step - 1)
        if before is not None and not set(alive) <= before:
            return False
        return self.file.write(
            lambda: self.step not in self.file.reveals, what="reveal", step=self.step, alive=sorted(alive)
        )
