"""Set intersection with a prepared large set: its result, its files, and what parties that deviate can do."""

from __future__ import annotations

import functools
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import group
from tacit.errors import BadData, PartyFailed, QueryRefused
from tacit.parties.codec import decode
from tacit.parties.conformance import Tap
from tacit.protocols import prepared_set, psi, psi_dh, psi_prepared
from tacit.protocols.prepared_set import PreparedKey, PreparedTable, prepare
from tacit.runtimes.inprocess import InProcess
from tacit.runtimes.processes import Processes
from tests.protocols.test_psi import digests, meddled

LARGE = digests(range(700))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    prepare([LARGE[:300], LARGE[300:], LARGE[50:60]], place)  # ten ids twice
    return place


def programs(folder: Path, ids: np.ndarray, **more: Any) -> dict[str, Any]:
    return {
        "receiver": functools.partial(
            psi_prepared.receiver, digests=ids, table=str(folder / prepared_set.TABLE_FILE)
        ),
        "sender": functools.partial(psi_prepared.sender, folder=str(folder), **more),
    }


@pytest.mark.parametrize("ids", [range(0), range(690, 720), range(1000, 1005), range(5, 6)])
def test_what_is_shared_is_found(folder: Path, ids: range) -> None:
    mine = digests(ids)
    made = InProcess().run_sync(programs(folder, mine))
    assert made["receiver"]["rows"].tolist() == psi.ideal(list(mine), list(LARGE))
    assert made["receiver"]["theirs"] == 700  # repeated ids count once
    assert made["sender"] == {
        "rows": None,
        "size": None,
        "sum": None,
        "theirs": len(ids),
        "method": "prepared",
    }


def test_between_processes_and_many_times(folder: Path) -> None:
    mine = digests(range(600, 800))
    made = Processes().run_sync(programs(folder, mine))
    assert np.asarray(made["receiver"]["rows"]).tolist() == psi.ideal(list(mine), list(LARGE))
    assert InProcess().run_sync(programs(folder, mine))["receiver"]["size"] == 100


@settings(max_examples=10, deadline=None)
@given(large=st.lists(st.integers(0, 30), max_size=25), small=st.sets(st.integers(0, 30), max_size=12))
def test_any_order_and_repetition_gives_the_same_set(
    tmp_path_factory: pytest.TempPathFactory, large: list[int], small: set[int]
) -> None:
    place, mine = tmp_path_factory.mktemp("one"), digests(sorted(small))
    table = prepare([digests([k]) for k in large], place)
    assert table.count == len(set(large))
    assert InProcess().run_sync(programs(place, mine))["receiver"]["size"] == len(small & set(large))


def test_a_query_costs_what_the_small_set_costs(folder: Path, tmp_path: Path) -> None:
    """The same bytes in a set of 700 ids and in one of three."""
    prepare([digests(range(3))], tmp_path)
    sizes = []
    for place in (folder, tmp_path):
        tap = Tap()
        InProcess().run_sync(tap.on(programs(place, digests(range(20)))))
        sizes.append(sum(len(decode(f).points) for _, _, _, f in tap.frames if hasattr(decode(f), "points")))
    assert sizes == [2 * 20 * 32] * 2


def test_the_table_alone_tells_nothing_about_an_id(folder: Path) -> None:
    """Without the owner's key, no guess can be checked: another key's tag of an id is not in the table."""
    table, owner = PreparedTable.open(folder / "table.psi"), PreparedKey.read(folder)
    some = digests(range(10))

    def tags(key: bytes) -> np.ndarray:
        points = group.multiply(key, group.elements(some.tobytes(), 16, prepared_set.about(table.mark)))
        return prepared_set.tag_ids(some, points, table.mark)

    assert table.find(tags(owner.key)).all()
    assert not table.find(tags(group.scalar(os.urandom))).any()
    assert stat.S_IMODE((folder / "key.json").stat().st_mode) == 0o600
    assert owner.key.hex() not in (folder / "table.psi").read_bytes().hex()


def test_two_preparations_of_a_set_cannot_be_linked(folder: Path, tmp_path: Path) -> None:
    prepare([LARGE], tmp_path)
    both = [(place / "table.psi").read_bytes()[-700 * 12 :] for place in (folder, tmp_path)]
    assert not {both[0][k : k + 12] for k in range(0, 8400, 12)} & {
        both[1][k : k + 12] for k in range(0, 8400, 12)
    }


def test_the_senders_policy_counts_and_bounds_what_is_asked(folder: Path) -> None:
    for policy, rule in (({"max_ids": 5}, "max_ids"), ({"reveal": ("size",)}, "reveal")):
        tap = Tap()
        with pytest.raises(PartyFailed, match=rule) as failed:
            InProcess().run_sync(tap.on(programs(folder, digests(range(6)), policy=policy)))
        assert isinstance(failed.value.error, QueryRefused)
        assert not any(isinstance(decode(f), psi_prepared.PreparedAnswers) for _, _, _, f in tap.frames)

    class Log:
        def __init__(self) -> None:
            self.admitted: list[str] = []

        def admit(self, receiver: str, most: int) -> None:
            self.admitted.append(receiver)

    log = Log()
    InProcess().run_sync(programs(folder, digests(range(6)), queries=log))
    assert log.admitted == ["receiver"]


@pytest.mark.parametrize(
    ("who", "kind", "change", "text"),
    [
        ("receiver", psi_prepared.PreparedQuery, lambda m: replace(m, mark=b""), "another prepared set"),
        (
            "receiver",
            psi_prepared.PreparedQuery,
            lambda m: replace(m, mark=bytes(16)),
            "another prepared set",
        ),
        (
            "receiver",
            psi_prepared.PreparedQuery,
            lambda m: replace(m, count=1 << 50),
            "declares 1125899906842624",
        ),
        ("receiver", psi_prepared.PreparedQuery, lambda m: replace(m, count=-1), "declares -1 ids"),
        (
            "receiver",
            psi_dh.BlindedIds,
            lambda m: replace(m, points=m.points * 2),
            "expected 1 to 20 times 32",
        ),
        (
            "receiver",
            psi_dh.BlindedIds,
            lambda m: replace(m, points=m.points[:-1]),
            "expected 1 to 20 times 32",
        ),
        ("receiver", psi_dh.BlindedIds, lambda m: replace(m, first=20), "reordered or repeated"),
        (
            "receiver",
            psi_dh.BlindedIds,
            lambda m: replace(m, points=bytes(32) + m.points[32:]),
            "not an element of ristretto255",
        ),
        (
            "sender",
            psi_prepared.PreparedAnswers,
            lambda m: replace(m, points=b"\xff" * 32 + m.points[32:]),
            "not an element of ristretto255",
        ),
        ("sender", psi_prepared.PreparedAnswers, lambda m: replace(m, points=b""), "expected 1 to 20 times"),
        ("sender", psi_prepared.PreparedReply, lambda m: replace(m, count=701), "and 'sender' says 701"),
    ],
)
def test_messages_that_do_not_fit_are_refused(
    folder: Path, who: str, kind: type, change: Any, text: str
) -> None:
    pair = programs(folder, digests(range(20)))
    with pytest.raises(PartyFailed) as failed:
        InProcess().run_sync({**pair, who: meddled(pair[who], kind, lambda held, m: [change(m)])})
    assert text in str(failed.value)


def test_a_sender_with_another_key_hides_matches_and_invents_none(folder: Path) -> None:
    def other_key(held: list[Any], message: Any) -> list[Any]:
        return [replace(message, points=group.multiply(group.scalar(os.urandom), message.points))]

    pair = programs(folder, digests(range(20)))
    pair["sender"] = meddled(pair["sender"], psi_prepared.PreparedAnswers, other_key)
    assert InProcess().run_sync(pair)["receiver"]["size"] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:-1],
        lambda raw: raw + bytes(12),
        lambda raw: b"",
        lambda raw: b"[]".ljust(256) + raw[256:],
        lambda raw: raw.replace(b'"count": 700', b'"count": 1e9'),
        lambda raw: raw[:256] + b"\xff" * 8 + raw[264:],
        lambda raw: raw[:264] + (700).to_bytes(8, "little") * 65536 + raw[264 + 8 * 65536 :],
        lambda raw: raw[:264] + raw[264 : 264 + 8 * 30000][::-1] + raw[264 + 8 * 30000 :],
    ],
)
def test_a_damaged_table_is_refused(folder: Path, tmp_path: Path, change: Any) -> None:
    (tmp_path / "table.psi").write_bytes(change((folder / "table.psi").read_bytes()))
    with pytest.raises(BadData, match="is not a table of a prepared set"):
        PreparedTable.open(tmp_path / "table.psi")


def test_keys_and_tables_of_different_sets_are_refused_and_nothing_is_overwritten(
    folder: Path, tmp_path: Path
) -> None:
    prepare([digests(range(3))], tmp_path)
    with pytest.raises(BadData, match="exists"):
        prepare([digests(range(3))], tmp_path)
    (tmp_path / "key.json").write_text((folder / "key.json").read_text())
    with pytest.raises(BadData, match="of different sets"):
        PreparedKey.read(tmp_path)
    (tmp_path / "key.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(BadData, match=r"key\.json cannot be read"):
        PreparedKey.read(tmp_path)


def test_nothing_is_left_of_a_preparation_that_failed(tmp_path: Path) -> None:
    def broken() -> Any:
        yield digests(range(5))
        raise BadData("row 6")

    with pytest.raises(BadData, match="row 6"):
        prepare(broken(), tmp_path)
    assert list(tmp_path.iterdir()) == []
