"""What a party has answered under one contract, on its own disk, written before an answer leaves.

A server cannot reset it: it is keyed by the contract, not by a name the server chooses, and a party that
was killed and restarted reads it again.

    {"what": "bound", "key": "model 3", "digest": "…"}
        the model of round 3 is this one, in whichever message it comes
    {"what": "upload", "kind": "update", "round": 3, "among": "…"}
        a masked vector was sent, among these participants
    {"what": "reveal", "kind": "update", "round": 3}
        shares were revealed: the sum may be open
    {"what": "figures", "round": 3, "row": [5, -3, 8]}
        the noisy figures that answer the test of round 3, sent again unchanged
    {"what": "count", "rows": 312}
        the noisy number of this party's rows, drawn once
    {"what": "paid", "answer": "…"}
        this update is charged to the account of this party's rows
    {"what": "again"}
        the owner allowed one more run in the clear
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ...errors import ProtocolError
from ..record_file import RecordFile

STATISTICS = "statistics"  # the key of the one result of the preparation that a party accepts


class Record(RecordFile):
    def __init__(self, folder: Path, party: str, contract: str):
        name = hashlib.sha256(f"{party} {contract}".encode()).hexdigest()[:16]
        self.party = party
        super().__init__(folder / f"record-{name}.jsonl")

    def reset(self) -> None:
        self.bound: dict[str, str] = {}
        self.uploads: dict[tuple[str, int], str | None] = {}
        self.reveals: set[tuple[str, int]] = set()
        self.figures: dict[int, list[int]] = {}
        self.count: int | None = None
        self.paid: set[str] = set()

    def apply(self, entry: dict[str, Any]) -> None:
        match entry["what"]:
            case "bound":
                self.bound[entry["key"]] = entry["digest"]
            case "upload":
                self.uploads[entry["kind"], entry["round"]] = entry["among"]
            case "reveal":
                self.reveals.add((entry["kind"], entry["round"]))
            case "figures":
                self.figures[entry["round"]] = [int(v) for v in entry["row"]]
            case "count":
                self.count = int(entry["rows"])
            case "paid":
                self.paid.add(str(entry["answer"]))
            case "again":
                # the sums of the preparation stay answered, so its result stays the same
                self.bound = {k: v for k, v in self.bound.items() if k == STATISTICS}
                self.figures.clear()
            case other:
                raise ValueError(f"unknown entry {other!r}")

    @property
    def empty(self) -> bool:
        return not (self.bound or self.uploads or self.reveals)

    def allow_again(self) -> None:
        """Forget which models were seen, if the owner allows it.

        Hidden sums and their models stay spent, and the statistics of the preparation stay the same.
        """
        if self.bound and not self.uploads:
            self.write(lambda: True, what="again")

    def bind(self, key: str, digest: bytes) -> None:
        """Accept one value for `key` for ever, or raise."""
        if self.bound.get(key) is None:
            self.write(lambda: key not in self.bound, what="bound", key=key, digest=digest.hex())
        if self.bound[key] != digest.hex():
            raise ProtocolError(
                f"the server sends a different {key} than before under the same contract, and party "
                f"{self.party!r} answers only one. "
                "The server was rolled back, or the job is run again with other parties or data. To allow "
                "one more run, restart the party "
                "with --again; with hidden sums, change the job's seed. Nothing was sent in answer."
            )

    @property
    def evaluations(self) -> int:
        """The number of tests that were answered."""
        return len(self.figures) + sum(kind == "test" for kind, _ in self.uploads)

    def keep_figures(self, r: int, row: list[int]) -> list[int]:
        """Return the figures that answer the test of round r: these, or those recorded for it before."""
        self.write(lambda: r not in self.figures, what="figures", round=r, row=row)
        return self.figures[r]

    def keep_count(self, rows: int) -> int:
        """Return the noisy number of rows: this one, or the one recorded before."""
        self.write(lambda: self.count is None, what="count", rows=rows)
        assert self.count is not None
        return self.count

    def keep_paid(self, answer: str) -> None:
        """Record that this update is charged."""
        self.write(lambda: answer not in self.paid, what="paid", answer=answer)

    def spent(self, kind: str, r: int) -> bool:
        return (kind, r) in self.reveals

    def earlier(self, kind: str, r: int, key: str, digest: bytes, shift: int = 0) -> bool:
        """Whether an upload of another round used the same value of `key`, bound as f"{key} {round +
        shift}".
        """
        return any(
            k == kind and other != r and self.bound.get(f"{key} {other + shift}") == digest.hex()
            for k, other in self.uploads
        )

    def commit(self, kind: str, r: int, before: Callable[[], None] = lambda: None) -> RecordedSum:
        return RecordedSum(self, kind, r, before)


class RecordedSum:
    """The commitment (protocols/consent.py) of one hidden sum.

    `before` is called once per round, before its first masked vector.
    """

    def __init__(self, record: Record, kind: str, r: int, before: Callable[[], None]):
        self.record, self.kind, self.r, self.before = record, kind, r, before

    def upload(self, participants: Sequence[str] | None) -> bool:
        key = self.kind, self.r
        among = (
            None
            if participants is None
            else hashlib.sha256(json.dumps(list(participants)).encode()).hexdigest()
        )
        if self.record.spent(*key):
            return False
        if key not in self.record.uploads:
            self.before()
            return self.record.write(
                lambda: key not in self.record.uploads,
                what="upload",
                kind=self.kind,
                round=self.r,
                among=among,
            )
        return among is not None and self.record.uploads[key] == among

    def reveal(self, alive: Collection[str] = ()) -> bool:
        key = self.kind, self.r
        return self.record.write(
            lambda: not self.record.spent(*key), what="reveal", kind=self.kind, round=self.r
        )
