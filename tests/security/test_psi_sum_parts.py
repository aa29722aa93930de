"""Counts and sums of sets larger than memory: the result of the whole set, on disk as in memory, and nothing about
a part of it; and what a party that deviates can do with parts.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit.crypto import elgamal, group
from tacit.crypto.spool import ArrayParts
from tacit.data.identifiers import first_of_each
from tacit.errors import BadData, PartyFailed, ProtocolError, QueryRefused
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.parties.party import Program
from tacit.protocols import psi, psi_sum, psi_sum_parts
from tacit.protocols.id_buckets import StoredIds
from tacit.runtimes.inprocess import InProcess
from tests.protocols.test_psi import digests, meddled

OPEN = {"min_ids": 0, "min_overlap": 0}
MINE, THEIRS = digests(range(150)), digests(range(100, 200))
VALUES = [1000 + k for k in range(100)]
LIMIT = 2000


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psi_sum_parts, "PART", 40)  # the sender's 200 rows are five parts
    monkeypatch.setattr(psi_sum_parts, "BUFFER", 32)
    for module in (psi_sum, psi_sum_parts):
        monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(psi_sum, "AHEAD", 3)


def on_disk(ids: np.ndarray, folder: Path, values: list[int] | None = None) -> StoredIds:
    folder.mkdir()
    store = StoredIds(folder, 6, values is not None)
    store.add(ids, np.arange(len(ids)), None if values is None else np.array(values, np.int64))
    store.finish(first_of_each)
    return store


def programs(mine: Any, theirs: Any, reveal: str = "sum", **more: Any) -> dict[str, Program]:
    values = {"values": VALUES} if reveal == "sum" and isinstance(theirs, np.ndarray) else {}
    common = {"reveal": reveal, "limit": more.pop("limit", LIMIT)}
    return {
        "receiver": functools.partial(psi.receiver, digests=mine, **common),
        "sender": functools.partial(psi.sender, digests=theirs, policy=OPEN, **common, **values, **more),
    }


@pytest.mark.parametrize("where", ["", "receiver", "sender", "both"])
@pytest.mark.parametrize("reveal", ["size", "sum"])
def test_counts_and_sums_are_the_same_in_memory_and_on_disk(reveal: str, where: str, tmp_path: Path) -> None:
    mine: Any = on_disk(MINE, tmp_path / "a") if where in ("receiver", "both") else MINE
    values = VALUES if reveal == "sum" else None
    theirs: Any = on_disk(THEIRS, tmp_path / "b", values) if where in ("sender", "both") else THEIRS
    for _ in range(2):  # a matching that begins again uses the same files
        result = InProcess().run_sync(programs(mine, theirs, reveal))
        assert (result["receiver"]["size"], result["sender"]["size"]) == (50, 50)
        assert result["receiver"]["sum"] == (sum(VALUES[:50]) if reveal == "sum" else None)
        assert result["receiver"]["rows"] is result["sender"]["rows"] is None
    for held in (mine, theirs):
        if isinstance(held, StoredIds):  # nothing of the first matching is left: its parts have lower numbers
            names = {f.name.split("-")[0] for f in held._folder.iterdir()} - {"ids"}
            assert all(int(name.removeprefix("parts")) > held._made // 2 for name in names)
            held.forget_parts()
            assert {f.name[:4] for f in held._folder.iterdir()} == {"ids-"}


def test_large_numbers_on_disk_are_summed_exactly(tmp_path: Path) -> None:
    values = [(1 << 40) - k for k in range(100)]
    result = InProcess().run_sync(programs(MINE, on_disk(THEIRS, tmp_path / "b", values), limit=1 << 40))
    assert result["receiver"]["sum"] == sum(values[:50])


@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0), (0, 0), (1, 1)])
def test_sets_smaller_than_a_part(n: int, m: int, tmp_path: Path) -> None:
    mine, theirs = (
        on_disk(MINE[100 : 100 + n], tmp_path / "a"),
        on_disk(THEIRS[:m], tmp_path / "b", VALUES[:m]),
    )
    result = InProcess().run_sync(programs(mine, theirs))
    assert (result["receiver"]["size"], result["receiver"]["sum"]) == (min(n, m), sum(VALUES[: min(n, m)]))


@pytest.mark.parametrize("values", [[5] * 99 + [LIMIT + 1], [5] * 99 + [-1]])
def test_values_in_files_that_do_not_fit_are_refused(values: list[int], tmp_path: Path) -> None:
    why = rf"has 100 values for 100 ids, one of them {values[-1]}; there must be one for each id, from 0 to"
    with pytest.raises(PartyFailed, match=why) as failed:
        InProcess().run_sync(programs(MINE, on_disk(THEIRS, tmp_path / "b", values)))
    assert isinstance(failed.value.error, BadData)
    with pytest.raises(PartyFailed, match="has 0 values for 100 ids; there must be one"):
        InProcess().run_sync(programs(MINE, on_disk(THEIRS, tmp_path / "c")))


# what a party sees ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reveal", ["size", "sum"])
def test_kinds_and_lengths_of_messages_tell_the_sizes_and_the_count_alone(reveal: str) -> None:
    """Which ids are shared, and so how many of a part, changes no message; with "sum" the count does."""
    seen = []
    for mine in (MINE, digests([*range(300, 400), *range(150, 200)]), digests([*range(400, 550)])):
        tap = Tap()
        InProcess().run_sync(tap.on(programs(mine, THEIRS, reveal)))
        frames = Counter((sender, type(decode(f)).__name__, len(f)) for sender, _, _, f in tap.frames)
        seen.append(frames)
    assert seen[0] == seen[1]
    opened = ("OpenedCount", "OpenedPlaces", "ChunkRead")
    without = [Counter({k: v for k, v in frames.items() if k[1] not in opened}) for frames in seen]
    assert without[0] == without[2]


def test_messages_are_whole_whatever_the_parts_are() -> None:
    """All messages of a kind have CHUNK items but the last: where a part ends is not seen."""
    tap = Tap()
    InProcess().run_sync(tap.on(programs(MINE, THEIRS)))
    items: dict[str, list[int]] = {}
    sizes = {"IdTags": 9, "BlindedIds": 32, "ReturnedIds": 32, "DecoyIds": 32, "DecoyPlaces": 4}
    for _, _, _, frame in tap.frames:
        message: Any = decode(frame)
        if message.kind in sizes:
            data = getattr(message, next(n for n in message.forms if n != "first"))
            items.setdefault(message.kind, []).append(len(data))
            assert message.first == 16 * (len(items[message.kind]) - 1)
    assert set(items) == set(sizes)
    for lengths in items.values():
        assert len(set(lengths[:-1])) == 1
        assert lengths[-1] <= lengths[0]


def test_the_shared_rows_are_named_in_the_order_they_were_returned_in() -> None:
    """Ordered by tag, they would tell: the receiver knows the tags of its ids, so it would learn which of them
    are shared, part by part.
    """
    tap = Tap()
    InProcess().run_sync(tap.on(programs(MINE, THEIRS)))
    for kind, count in ((psi_sum.OpenedPlaces, 50), (psi_sum.DecoyPlaces, 100)):
        places = [
            place
            for _, _, _, frame in tap.frames
            if isinstance(message := decode(frame), kind)
            for place in np.frombuffer(message.places, "<u4").tolist()
        ]
        assert len(places) == count
        assert places == sorted(places)


def test_every_order_of_shuffled_rows_is_equally_likely() -> None:
    """24 orders of four rows in three parts, 4,800 shuffles (χ², from a seed)."""
    draw = np.random.default_rng(5).bytes
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(4800):
        mixed = psi_sum_parts.Shuffled(ArrayParts(3, 1), draw)
        for k in range(4):
            mixed.add(np.array([[k]], np.uint8))
        mixed.finish()
        counts[tuple(np.concatenate(list(mixed.chunks()))[:, 0].tolist())] += 1
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


def test_a_returned_row_is_nowhere_near_where_it_was_sent() -> None:
    """The receiver's order is one of the whole set: the place of a row, sent and returned, is independent."""
    pairs = []
    for run in range(12):
        tap, blinded, returned = Tap(), [], []
        keys: list[bytes] = []
        scalar = group.scalar

        def listening(draw: Any, keys: list[bytes] = keys, scalar: Any = scalar) -> bytes:
            keys.append(scalar(draw))
            return keys[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group, "scalar", listening)
            InProcess(insecure_seed=run).run_sync(tap.on(programs(MINE, THEIRS, "size")))
        for _, _, _, frame in tap.frames:
            message: Any = decode(frame)
            if message.kind in ("BlindedIds", "ReturnedIds"):
                rows = [message.points[at : at + 32] for at in range(0, len(message.points), 32)]
                (blinded if message.kind == "BlindedIds" else returned).extend(rows)
        for key in keys:
            place = {group.times(key, point): k for k, point in enumerate(blinded)}
            if returned[0] in place:
                pairs += [(place[point], k) for k, point in enumerate(returned)]
                break
    assert len(pairs) == 12 * 200
    assert abs(stats.spearmanr(*zip(*pairs)).statistic) < 6 / np.sqrt(len(pairs))  # 2e-9


def test_no_more_messages_are_on_the_way_than_may_be(tmp_path: Path) -> None:
    """So what waits at a party is bounded, however large the sets are."""
    tap = Tap()
    InProcess().run_sync(tap.on(programs(on_disk(MINE, tmp_path / "a"), THEIRS)))
    ahead: Counter[tuple[str, str]] = Counter()
    for sender, to, scope, frame in tap.frames:
        kind = type(decode(frame)).__name__
        if kind == "ChunkRead":
            ahead[to, scope] -= 1
        elif kind in ("IdTags", "BlindedIds", "ReturnedIds", "DecoyIds", "OpenedPlaces"):
            ahead[sender, scope] += 1
            chunks = ahead[sender, scope]
            assert chunks <= 14  # 200 rows are 13 messages: 3 ahead, the last ones of each phase unconfirmed
    assert any(type(decode(f)).__name__ == "ChunkRead" for *_, f in tap.frames)


def test_files_show_neither_digests_nor_values(tmp_path: Path) -> None:
    values = [0x1122334455667700 + k for k in range(100)]
    mine, theirs = on_disk(MINE, tmp_path / "a"), on_disk(THEIRS, tmp_path / "b", values)
    remove = ArrayParts.remove

    def keep(self: Any) -> None:
        """Files stay for this test."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacit.crypto.spool.Spool.remove", keep)
        patch.setattr("tacit.crypto.spool.Spool.clear", lambda self, part: None)
        InProcess().run_sync(programs(mine, theirs, limit=(1 << 63) - 1))
    assert remove is ArrayParts.remove
    content = b"\n".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert len(content) > 100_000
    windows = {content[k : k + 6] for k in range(len(content))}
    secrets = {bytes(d)[at : at + 6] for d in (*MINE, *THEIRS) for at in (0, 6)}
    assert not windows & (secrets | {v.to_bytes(8, "little")[1:7] for v in values})


# parties that deviate ---------------------------------------------------------------------------------------


def again(name: str) -> Callable[[list[Any], Any], list[Any]]:
    """Each message has the content of the one before."""

    def change(held: list[Any], message: Any) -> list[Any]:
        held.append(getattr(message, name))
        return [message if len(held) == 1 else replace(message, **{name: held[-2][: len(held[-1])]})]

    return change


def same(name: str, each: int) -> Callable[[list[Any], Any], list[Any]]:
    """Each item is the first one."""

    def change(held: list[Any], message: Any) -> list[Any]:
        data = getattr(message, name)
        held.append(data[:each])
        return [replace(message, **{name: held[0] * (len(data) // each)})]

    return change


@pytest.mark.parametrize(
    ("who", "kind", "change", "text"),
    [
        ("receiver", psi_sum.IdTags, same("tags", 8), r"sent more than \d+ rows for one of \d+ parts"),
        (
            "receiver",
            psi_sum.ReturnedIds,
            same("points", 32),
            r"sent more than \d+ rows for one of \d+ parts",
        ),
        ("receiver", psi_sum.ReturnedIds, again("points"), r"returned \d+ rows twice"),
        ("receiver", psi_sum.DecoyIds, again("points"), r"did not return \d+ of 100 decoys"),
        (
            "receiver",
            psi_sum.IdTags,
            lambda _, m: [replace(m, tags=m.tags[:-8])],
            r"expected \(0, \d+\) \(first item, bytes of tags\)",
        ),
        ("receiver", psi_sum.ReturnedIds, lambda _, m: [replace(m, first=16)], r"expected \(0, 512\)"),
        ("receiver", psi_sum.ReturnedIds, lambda _, m: [m, m], r"\(0, 512\), expected \(16, 512\)"),
        ("receiver", psi_sum.ReturnedValues, lambda _, m: [m, m], r"expected \(16, \d+\)"),
        ("receiver", psi_sum.DecoyMasks, lambda _, m: [replace(m, masks=m.masks[:-32])], "bytes of masks"),
        ("receiver", psi_sum.ChunkRead, lambda _, m: [replace(m, chunk=7)], r"message for \(7,\), expected"),
        ("sender", psi_sum.OpenedPlaces, again("places"), "sent row numbers that do not grow, or are not"),
        ("sender", psi_sum.DecoyPlaces, again("places"), "sent row numbers that do not grow, or are not"),
        (
            "sender",
            psi_sum.DecoyPlaces,
            lambda _, m: [replace(m, places=m.places[:-4] + b"\xff\xff\xff\x00")],
            "are not below 200",
        ),
        ("sender", psi_sum.EncryptedValues, lambda _, m: [replace(m, first=3)], r"\(3, \d+\), expected \(0,"),
        ("sender", psi_sum.OpenedCount, lambda _, m: [replace(m, points=m.points * 2)], "opens a sum in 64"),
        (
            "sender",
            psi_sum.ChunkRead,
            lambda _, m: [replace(m, chunk=m.chunk + 1)],
            r"\(1,\), expected \(0,\)",
        ),
    ],
)
def test_messages_that_do_not_fit_are_refused(who: str, kind: type, change: Any, text: str) -> None:
    honest = programs(MINE, THEIRS)
    tap = Tap()
    with pytest.raises(PartyFailed, match=text) as failed:
        InProcess().run_sync(tap.on(honest | {who: meddled(honest[who], kind, change)}))
    assert isinstance(failed.value.error, ProtocolError)
    assert failed.value.party != who
    if who == "receiver":
        assert not any(isinstance(decode(frame), psi_sum.OpenedCount) for *_, frame in tap.frames)


def test_a_minimum_holds_for_the_whole_set_and_not_for_a_part() -> None:
    """50 shared ids in five parts: about ten each, and a minimum of 50 is reached."""
    for least, answered in ((50, True), (51, False)):
        pair = programs(MINE, THEIRS)
        pair["sender"] = functools.partial(pair["sender"], policy={**OPEN, "min_overlap": least})
        if answered:
            assert InProcess().run_sync(pair)["receiver"]["size"] == 50
            continue
        with pytest.raises(PartyFailed, match="min_overlap") as failed:
            InProcess().run_sync(pair)
        assert isinstance(failed.value.error, QueryRefused)


def test_sums_above_the_table_of_steps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elgamal, "TABLE", 8)
    for value in (0, 1, 7, 8, 9, 99, 100):
        point = group.times_base(group.scalar_from_int(value)) if value else elgamal.NEUTRAL
        assert elgamal.discrete_log(point, 100) == value
    with pytest.raises(ProtocolError, match="a sum exceeds its maximum 100"):
        elgamal.discrete_log(group.times_base(group.scalar_from_int(200)), 100)
    monkeypatch.setattr(elgamal, "MOST_STEPS", 10)
    with pytest.raises(BadData, match="a sum of up to 100 takes 12 steps to decrypt"):
        elgamal.discrete_log(group.times_base(group.scalar_from_int(1)), 100)
