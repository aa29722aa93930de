"""What a party that deviates can do with the buckets of a large matching, against ids in memory and in files: too
large ones, too few, too many, repeated ones, and ids in the wrong one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.data.identifiers import first_of_each
from tacit.errors import PartyFailed, ProtocolError
from tacit.jobs.vertical.psi_files import Scratch
from tacit.parties.party import Program
from tacit.protocols import psi, psi_oprf
from tacit.protocols.id_buckets import ArrayIds, StoredIds
from tacit.runtimes.inprocess import InProcess
from tests.protocols.test_psi import digests, meddled

MINE, THEIRS = digests(range(400)), digests(range(200, 700))


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_oprf, "BUCKET", 100)  # five buckets
    monkeypatch.setattr(psi_oprf, "CHUNK", 64)


@pytest.fixture(params=["memory", "files"])
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[np.ndarray], Any]:
    """Returns the ids as the attacked party holds them."""

    def hold(ids: np.ndarray) -> Any:
        if request.param == "memory":
            return ids
        store = StoredIds(tmp_path, 6)
        store.add(ids, np.arange(len(ids)))
        store.finish(first_of_each)
        return store

    return hold


def programs(mine: Any, theirs: Any) -> dict[str, Program]:
    common: dict[str, Any] = {"method": "oprf", "reveal": "both"}
    return {
        "receiver": functools.partial(psi.receiver, digests=mine, **common),
        "sender": functools.partial(psi.sender, digests=theirs, **common),
    }


def at(bucket: int, change: Callable[[Any], list[Any]]) -> Callable[[list[Any], Any], list[Any]]:
    """Change the messages of one bucket only."""
    return lambda held, m: change(m) if m.bucket == bucket else [m]


def again(held: list[Any], message: Any) -> list[Any]:
    """Each bucket after the first is the one before."""
    held.append(message)
    return [held[-2] if len(held) > 1 else message]


@pytest.mark.parametrize(
    ("who", "kind", "change", "text"),
    [
        (
            "sender",
            psi_oprf.Outputs,
            at(2, lambda m: [replace(m, outputs=m.outputs * 2)]),
            r"received a message for \(2, \d+\), expected \(2, \d+\) \(bucket, bytes\)",
        ),
        (
            "sender",
            psi_oprf.Outputs,
            at(3, lambda m: [replace(m, outputs=m.outputs[:-8])]),
            r"received a message for \(3, \d+\), expected \(3, \d+\)",
        ),
        ("sender", psi_oprf.Outputs, again, r"message for \(0, \d+\), expected \(1, \d+\)"),
        (
            "sender",
            psi_oprf.Outputs,
            at(1, lambda m: [replace(m, bucket=4)]),
            r"message for \(4, \d+\), expected \(1, \d+\)",
        ),
        (
            "sender",
            psi_oprf.Trees,
            at(4, lambda m: [replace(m, bucket=5)]),
            r"message for \(5,\), expected \(4,\)",
        ),
        (
            "receiver",
            psi_oprf.Noise,
            at(4, lambda m: [replace(m, bucket=5)]),
            r"message for \(5,\), expected \(4,\)",
        ),
        ("receiver", psi_oprf.Noise, again, r"message for \(0,\), expected \(1,\)"),
        (
            "receiver",
            psi_oprf.Store,
            at(1, lambda m: [replace(m, entries=m.entries + bytes(8))]),
            r"message for \(1, 0, \d+\), expected \(1, 0, \d+\)",
        ),
        ("receiver", psi.SharedIds, again, r"message for \(0,\), expected \(1,\) \(bucket\)"),
        (
            "receiver",
            psi.SharedIds,
            at(4, lambda m: [replace(m, bucket=7)]),
            r"message for \(7,\), expected \(4,\) \(bucket\)",
        ),
        ("receiver", psi.SharedIds, at(1, lambda m: [replace(m, tags=m.tags * 2)]), "or one twice"),
        (
            "sender",
            psi.SharedRead,
            at(1, lambda m: [replace(m, bucket=3)]),
            r"message for \(3,\), expected \(1,\)",
        ),
    ],
)
def test_buckets_that_are_too_large_repeated_or_another_one_are_refused(
    who: str, kind: type, change: Any, text: str, held: Callable[[np.ndarray], Any]
) -> None:
    """Both parties run; `who` deviates, and the other, whose ids are in memory or in files, refuses."""
    honest = programs(*((MINE, held(THEIRS)) if who == "receiver" else (held(MINE), THEIRS)))
    with pytest.raises(PartyFailed, match=text) as failed:
        InProcess().run_sync(honest | {who: meddled(honest[who], kind, change)})
    assert isinstance(failed.value.error, ProtocolError)
    assert failed.value.party != who


def test_a_shared_id_in_another_bucket_than_its_own_is_refused(held: Callable[[np.ndarray], Any]) -> None:
    """The tag is right, the bucket is not: with it, one id could be reported once in each bucket."""

    def move(before: list[Any], message: Any) -> list[Any]:
        before.append(message)
        return [message if len(before) == 1 else replace(message, tags=message.tags + before[0].tags[:8])]

    honest = programs(MINE, held(THEIRS))
    with pytest.raises(PartyFailed, match=r"sent \d+ shared ids, of which we hold \d+, or one twice"):
        InProcess().run_sync(honest | {"receiver": meddled(honest["receiver"], psi.SharedIds, move)})


def test_buckets_after_the_last_are_not_read(held: Callable[[np.ndarray], Any]) -> None:
    """A sender that goes on changes nothing: the number of buckets follows from the sizes, not from messages."""
    honest = programs(held(MINE), THEIRS)
    more = at(4, lambda m: [m, replace(m, bucket=5), replace(m, bucket=6)])
    result = InProcess().run_sync(honest | {"sender": meddled(honest["sender"], psi_oprf.Outputs, more)})
    assert result["receiver"]["size"] == 200


@pytest.mark.parametrize("declared", [10, 50_000])
def test_a_count_that_is_a_lie_gives_other_buckets_and_no_match_of_unpadded_ones(
    declared: int, held: Callable[[np.ndarray], Any]
) -> None:
    """The sizes of buckets follow from the declared counts at both parties: who declares another number than
    it holds sends messages that do not fit, and the honest party ends.
    """
    honest = programs(held(MINE), THEIRS)
    lie = meddled(honest["sender"], psi.Opening, lambda _, m: [replace(m, count=declared)])
    with pytest.raises(PartyFailed):
        InProcess().run_sync(honest | {"sender": lie})


def test_ids_that_are_chosen_to_share_a_prefix_spread_over_the_buckets() -> None:
    """A sender that chooses its ids cannot fill one bucket: the key of the session decides, and is drawn later."""
    chosen = digests(range(4000))
    chosen[:, :12] = 7  # 2^32 ids with the first 12 bytes the same: more than anybody can find
    ids = ArrayIds(chosen)
    for key in (b"a" * 32, b"b" * 32):
        ids.deal(8, key)
        assert max(len(ids.bucket(b)[1]) for b in range(8)) <= psi_oprf.capacity(4000, 8)


def test_files_are_removed_after_an_attack(tmp_path: Path) -> None:
    with pytest.raises(PartyFailed), Scratch(tmp_path) as scratch:  # noqa: PT012
        store = StoredIds(scratch.folder(), 6)
        store.add(MINE, np.arange(len(MINE)))
        store.finish(first_of_each)
        honest = programs(store, THEIRS)
        InProcess().run_sync(honest | {"sender": meddled(honest["sender"], psi_oprf.Outputs, again)})
    assert not list(tmp_path.iterdir())


def test_a_matching_that_begins_again_has_other_buckets_and_forgets_what_was_shared(tmp_path: Path) -> None:
    """A party that was restarted has a new session: the same files serve, under other keys."""
    store = StoredIds(tmp_path, 6)
    store.add(MINE, np.arange(len(MINE)))
    store.finish(first_of_each)
    seen = []
    for _ in range(2):
        result = InProcess().run_sync(programs(store, THEIRS))
        assert sorted(np.concatenate(list(result["receiver"]["rows"])).tolist()) == list(range(200, 400))
        seen.append([store.bucket(b)[1].tolist() for b in range(store.buckets)])
    assert seen[0] != seen[1]
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"ids", "dealt2", "shared2"}
