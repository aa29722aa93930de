"""Three and more parties whose sets are larger than a bucket: the same result in memory and on disk, lengths that
follow from the sizes alone, and what a party that deviates can do with buckets.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.data.identifiers import first_of_each
from tacit.errors import PartyFailed, ProtocolError
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.parties.party import Program
from tacit.protocols import psi, psi_many, psi_oprf
from tacit.protocols.id_buckets import StoredIds
from tacit.runtimes.inprocess import InProcess
from tests.protocols.test_psi import digests, meddled

SETS = {
    "a": digests(range(250)),
    "b": digests(range(100, 700)),  # more than the leader: its buckets are split
    "c": digests([*range(50, 200), *range(1000, 1020)]),
}
SHARED = set(range(100, 200))


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_oprf, "BUCKET", 100)
    monkeypatch.setattr(psi_oprf, "CHUNK", 1 << 12)


def on_disk(ids: np.ndarray, folder: Path) -> StoredIds:
    folder.mkdir()
    store = StoredIds(folder, 6)
    store.add(ids, np.arange(len(ids)))
    store.finish(first_of_each)
    return store


def programs(sets: Mapping[str, Any], reveal: str = "all", **more: Any) -> dict[str, Program]:
    first, *others = sets
    common: dict[str, Any] = {"others": others, "reveal": reveal, "method": "oprf", **more}
    return {
        name: functools.partial(psi_many.leader, digests=ids, **common)
        if name == first
        else functools.partial(psi_many.member, digests=ids, leader=first, **common)
        for name, ids in sets.items()
    }


def rows_of(result: Any) -> np.ndarray:
    rows = result["rows"]
    return rows if isinstance(rows, np.ndarray) else np.concatenate(list(rows))


@pytest.mark.parametrize("where", ["", "a", "b", "abc"])
@pytest.mark.parametrize("leader", ["a", "b", "c"])
def test_parties_in_memory_and_on_disk_find_the_same_ids_in_one_order(
    leader: str, where: str, tmp_path: Path
) -> None:
    """The leader may have more ids than the others, or fewer: its buckets are those of all."""
    order = [leader, *(n for n in SETS if n != leader)]
    sets = {n: on_disk(SETS[n], tmp_path / n) if n in where else SETS[n] for n in order}
    result = InProcess().run_sync(programs(sets))
    ids = {name: SETS[name][rows_of(made)].tobytes() for name, made in result.items()}
    assert len(set(ids.values())) == 1
    found = {ids["a"][k : k + 16] for k in range(0, len(ids["a"]), 16)}
    assert found == {bytes(d) for d in digests(SHARED)}
    assert result["a"]["size"] == len(SHARED)


def test_with_the_result_to_the_leader_members_get_no_rows(tmp_path: Path) -> None:
    sets = {n: on_disk(ids, tmp_path / n) for n, ids in SETS.items()}
    tap = Tap()
    result = InProcess().run_sync(tap.on(programs(sets, "leader")))
    assert result["a"]["size"] == len(SHARED)
    assert result["b"]["rows"] is result["c"]["rows"] is None
    assert not {"SharedTags", "SharedRead"} & {type(decode(f)).__name__ for _, _, _, f in tap.frames}


@pytest.mark.parametrize("empty", ["a", "b", "c"])
def test_a_party_without_ids_shares_none(empty: str) -> None:
    result = InProcess().run_sync(programs({**SETS, empty: SETS[empty][:0]}))
    assert {made["size"] for made in result.values()} == {0}


def test_a_matching_that_begins_again_uses_the_same_files(tmp_path: Path) -> None:
    sets = {n: on_disk(ids, tmp_path / n) for n, ids in SETS.items()}
    for _ in range(2):
        result = InProcess().run_sync(programs(sets))
        assert {len(rows_of(made)) for made in result.values()} == {len(SHARED)}
    kinds = Counter(file.name.rsplit("-", 1)[0] for file in (tmp_path / "b").iterdir())
    assert set(kinds) == {"ids", "dealt2", "parts2", "shared2"}  # nothing of the first is left


# what sizes tell --------------------------------------------------------------------------------------------


def test_lengths_of_messages_follow_from_the_sizes_alone() -> None:
    """Neither the number of ids in a bucket nor how many are shared changes a message to the leader, or one to
    a member with the result to the leader.
    """
    seen = []
    for shift in (0, 5000):
        sets = {**SETS, "a": digests(range(shift, shift + 250))}
        tap = Tap()
        InProcess().run_sync(tap.on(programs(sets, "leader")))
        seen.append(sorted((sender, to, len(frame)) for sender, to, _, frame in tap.frames))
    assert seen[0] == seen[1]


def test_a_member_learns_nothing_about_the_size_of_another() -> None:
    """What c is sent is the same in number and length, whether b has 60 ids or 600."""
    seen = []
    for size in (60, 600):
        sets = {**SETS, "b": SETS["b"][:size]}
        tap = Tap()
        InProcess().run_sync(tap.on(programs(sets, "leader")))
        seen.append([len(frame) for _, to, _, frame in tap.frames if to == "c"])
    assert sorted(seen[0]) == sorted(seen[1])


def test_the_sums_the_leader_sees_are_random_where_one_member_lacks_the_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An id that b has and c lacks looks like one that neither has: no share of a pair is ever seen alone."""
    looked: dict[str, np.ndarray] = {}
    look_up = psi_many._LeaderPair.look_up

    async def listening(self: Any, b: int, own: np.ndarray) -> Any:
        values, shares = await look_up(self, b, own)
        for digest, share in zip(own, shares):
            looked[bytes(digest)] = looked.get(bytes(digest), np.zeros(16, np.uint8)) ^ share
        return values, shares

    monkeypatch.setattr(psi_many._LeaderPair, "look_up", listening)
    InProcess().run_sync(programs(SETS))
    zero = {d for d, total in looked.items() if not total.any()}
    assert zero == {bytes(d) for d in digests(SHARED)}
    rest = np.concatenate([total for d, total in looked.items() if d not in zero])
    assert abs(np.unpackbits(rest).mean() - 0.5) < 6.5 * 0.5 / np.sqrt(8 * len(rest))  # 1e-10


def test_no_more_than_two_buckets_of_shared_ids_are_on_the_way() -> None:
    tap = Tap()
    InProcess().run_sync(tap.on(programs(SETS)))
    ahead: dict[str, int] = defaultdict(int)
    for sender, to, _, frame in tap.frames:
        message = decode(frame)
        if isinstance(message, psi_many.SharedTags):
            ahead[to] += 1
            assert ahead[to] <= psi_oprf.AHEAD + 1  # one is read and not yet confirmed
        elif isinstance(message, psi.SharedRead):
            ahead[sender] -= 1


# parties that deviate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "kind", "change", "text"),
    [
        ("b", psi_many.Hints, lambda m: [replace(m, bucket=m.bucket + 1)], r"for \(1, \d+\), expected \(0,"),
        ("b", psi_many.Hints, lambda m: [replace(m, table=m.table[:-16])], r"bucket, bytes of the hint"),
        ("b", psi_many.Hints, lambda m: [replace(m, table=m.table * 2)], r"bucket, bytes of the hint"),
        ("c", psi_many.Hints, lambda m: [m, m], r"expected (Trees|Hints)|reordered or repeated"),
        ("b", psi_oprf.Trees, lambda m: [replace(m, bucket=3)], r"message for \(3,\), expected \(0,\)"),
        ("a", psi_oprf.Noise, lambda m: [replace(m, bucket=9)], r"message for \(9,\), expected \(0,\)"),
        (
            "a",
            psi_oprf.Store,
            lambda m: [replace(m, entries=m.entries + bytes(8))],
            r"expected \(0, 0, \d+\)",
        ),
        ("a", psi_many.SharedTags, lambda m: [replace(m, bucket=4)], r"message for \(4,\), expected \(0,\)"),
        ("a", psi_many.SharedTags, lambda m: [replace(m, tags=m.tags * 2)], "or one twice"),
        ("a", psi_many.SharedTags, lambda m: [replace(m, tags=bytes(8))], "of which we hold 0"),
        ("b", psi.SharedRead, lambda m: [replace(m, bucket=5)], r"message for \(5,\), expected \(0,\)"),
        ("b", psi.Opening, lambda m: [replace(m, method="many dh")], "method='many oprf' and reveal='all'"),
    ],
)
def test_messages_of_another_bucket_or_size_are_refused(who: str, kind: type, change: Any, text: str) -> None:
    honest = programs(SETS)
    with pytest.raises(PartyFailed, match=text) as failed:
        InProcess().run_sync(honest | {who: meddled(honest[who], kind, lambda _, m: change(m))})
    assert isinstance(failed.value.error, ProtocolError)
    assert failed.value.party != who


def test_a_declared_size_that_is_a_lie_ends_the_matching() -> None:
    honest = programs(SETS)
    for declared in (10, 50_000):
        lie = meddled(honest["b"], psi.Opening, lambda _, m, declared=declared: [replace(m, count=declared)])
        with pytest.raises(PartyFailed):
            InProcess().run_sync(honest | {"b": lie})


def test_files_and_diffie_hellman_do_not_go_together(tmp_path: Path) -> None:
    sets = {**SETS, "b": on_disk(SETS["b"], tmp_path / "b")}
    with pytest.raises(PartyFailed, match="'auto' or 'oprf' where ids are in files"):
        InProcess().run_sync(programs(sets, method="dh"))
