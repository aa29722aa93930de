"""Tables that are matched on disk: the same result as in memory, nothing readable on the disk, nothing left."""

from __future__ import annotations

import csv
import functools
import os
import shutil
import stat
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tacit.crypto.spool import Spool
from tacit.data import table_files
from tacit.data.identifiers import identify
from tacit.errors import BadData, BadParameter, MissingFiles, PartyFailed
from tacit.jobs.vertical import psi_files
from tacit.jobs.vertical.psi import join_rows
from tacit.jobs.vertical.psi_deployed import read_ids, write_rows
from tacit.jobs.vertical.psi_files import Scratch, StoredSet, put_in_order, read_ids_into, scratch_in
from tacit.jobs.vertical.psi_prepared import prepare_file
from tacit.parties.conformance import Tap
from tacit.protocols import psi, psi_oprf
from tacit.runtimes.inprocess import InProcess
from tests.jobs.test_psi_restart import killed, matching

ODD = ["", "NA", "7 ", "a,b", 'say "x"', "two\nlines", " lead", "ß", "\ufeffx", "\\N", "1e5", "'"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a few hundred rows in several chunks, buckets and parts."""
    monkeypatch.setattr(psi_oprf, "BUCKET", 100)
    monkeypatch.setattr(psi_files, "SORTED", 70)
    monkeypatch.setattr(table_files, "CHUNK", 90)


def table(file: Path, first: int, count: int) -> Path:
    """Ids in another order than their numbers, each tenth row repeats an earlier id, each 17th has none."""
    ids = [f"Id{(k * 37) % count + first}" for k in range(count)]
    ids = ["" if k % 17 == 3 else ids[k - 9] if k % 10 == 9 else i for k, i in enumerate(ids)]
    frame = pd.DataFrame({"age": range(count), "id": ids, "note": [ODD[k % len(ODD)] for k in range(count)]})
    frame = frame.astype(str)
    if file.suffix == ".parquet":
        frame.to_parquet(file)
    else:
        frame.to_csv(file, index=False)
    return file


def stored(file: Path, folder: Path) -> StoredSet:
    ids = read_ids_into(Scratch(folder, always=True), file, "id", None)
    assert isinstance(ids, StoredSet)
    return ids


def matched(mine: Any, theirs: Any, reveal: str = "both") -> dict[str, Any]:
    common: dict[str, Any] = {"method": "oprf", "reveal": reveal}
    return InProcess().run_sync(
        {
            "receiver": functools.partial(psi.receiver, digests=mine, **common),
            "sender": functools.partial(psi.sender, digests=theirs, **common),
        }
    )


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".csv.gz"])
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.usefixtures("small")
def test_files_that_are_matched_on_disk_give_the_rows_of_those_in_memory(
    suffix: str, how: str, tmp_path: Path
) -> None:
    """Each party on disk or in memory, with every pair of them: rows, order, notes and files are the same."""
    files = {
        "receiver": table(tmp_path / f"a{suffix}", 0, 400),
        "sender": table(tmp_path / "b.csv", 150, 500),
    }
    in_memory = {name: read_ids(file, "id") for name, file in files.items()}
    expected = {
        name: sorted(in_memory[name].rows[psi.ideal(list(mine.digests), list(other.digests))].tolist())
        for name, mine, other in (
            ("receiver", in_memory["receiver"], in_memory["sender"]),
            ("sender", in_memory["sender"], in_memory["receiver"]),
        )
    }
    assert len(expected["receiver"]) > 150
    for on_disk in (["receiver"], ["sender"], ["receiver", "sender"]):
        scratch = {name: Scratch(tmp_path, always=True) for name in on_disk}
        sets: dict[str, Any] = {**in_memory}
        for name in on_disk:
            sets[name] = read_ids_into(scratch[name], files[name], "id", tmp_path / "o.csv")
            assert len(sets[name]) == len(in_memory[name])
            assert sets[name].notes == in_memory[name].notes
            assert len(sets[name].notes) == 2
        result = matched(sets["receiver"].digests, sets["sender"].digests)
        outs = {}
        for name, ids in sets.items():
            rows, kept, is_kept = result[name]["rows"], len(sets["receiver"]), name == "receiver"
            outs[name] = tmp_path / f"out-{name}.csv"
            if name in on_disk:
                assert sorted(np.concatenate(list(rows)).tolist()) == expected[name]
                psi_files.write_shared(files[name], ids, rows, outs[name], scratch[name], kept, is_kept, how)
                by_rows = np.concatenate(list(rows))
                where = np.searchsorted(ids_of(in_memory[name].rows), by_rows)
                write_rows(
                    files[name],
                    join_rows(in_memory[name], where, kept, is_kept, how),
                    tmp_path / "again.csv",
                )
                assert outs[name].read_bytes() == (tmp_path / "again.csv").read_bytes()
            else:
                write_rows(files[name], join_rows(ids, rows, kept, is_kept, how), outs[name])
        size = len(expected["receiver"])
        a, b = (pd.read_csv(file, dtype=str, keep_default_na=False) for file in outs.values())
        assert a["id"].tolist()[:size] == b["id"].tolist()[:size]
        assert len(a) == len(b) == (size if how == "inner" else len(in_memory["receiver"]))
        for place in scratch.values():
            place.__exit__(None, None, None)
    assert not list(tmp_path.glob(".tacit*"))


def ids_of(rows: np.ndarray) -> np.ndarray:
    assert (np.diff(rows) > 0).all()
    return rows


@pytest.mark.usefixtures("small")
def test_rows_of_a_typed_table_keep_their_types_and_come_in_the_asked_order(tmp_path: Path) -> None:
    n = 700
    frame = pd.DataFrame(
        {
            "n": pd.array([None if k == 350 else k for k in range(n)], "Int64"),
            "x": np.arange(n) / 7,
            "day": pd.date_range("2020-01-01", periods=n),
            "ok": [bool(k % 3) for k in range(n)],
            "text": [ODD[k % len(ODD)] for k in range(n)],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    order = np.random.default_rng(1).permutation(n)[:500]
    got = pd.concat(put_in_order(tmp_path / "t.parquet", np.array_split(order, 7), 500, tmp_path))
    whole = table_files.read_table(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(got.reset_index(drop=True), whole.iloc[order].reset_index(drop=True))
    # without pandas' notes on types, integers with a missing one are floats: in each part of the file
    plain = pa.table({"n": pa.array([None if k == 350 else k for k in range(n)], pa.int64()), "k": range(n)})
    pq.write_table(plain, tmp_path / "plain.parquet")
    got = pd.concat(table_files.read_chunks(tmp_path / "plain.parquet"))
    pd.testing.assert_frame_equal(got, table_files.read_table(tmp_path / "plain.parquet"))
    assert [str(kind) for kind in got.dtypes] == ["float64", "int64"]
    ids = pd.concat(table_files.read_chunks(tmp_path / "plain.parquet", ["k"]))["k"]
    assert ids.tolist() == [str(k) for k in range(n)]


@pytest.mark.usefixtures("small")
def test_text_cells_come_back_as_they_were(tmp_path: Path) -> None:
    cells = [*ODD, "cr\rhere", "x\r\ny", "\n", '"', '""', "0", "\t", "a\x00b"] * 9
    with (tmp_path / "t.csv").open("w", newline="") as out:
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows(
            [("a", "b"), *((c, str(k)) for k, c in enumerate(cells))]
        )
    whole = pd.concat(table_files.read_chunks(tmp_path / "t.csv"))
    order = np.random.default_rng(1).permutation(len(cells))
    got = pd.concat(put_in_order(tmp_path / "t.csv", [order], len(order), tmp_path))
    assert got["a"].tolist() == whole["a"].iloc[order].tolist()
    assert got["b"].tolist() == whole["b"].iloc[order].tolist()


@pytest.mark.usefixtures("small")
def test_a_table_that_changes_while_it_is_matched_is_refused(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", 0, 300)
    rows = [np.arange(290)]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:100]))
    with pytest.raises(MissingFiles, match="has fewer rows than when its ids were read"):
        list(put_in_order(file, rows, 290, tmp_path))


# what is on the disk ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_files_are_private_and_show_neither_digests_nor_rows(tmp_path: Path) -> None:
    """Whoever gets the disk can hash guesses: no digest, and no half of one, is in any file."""
    file = table(tmp_path / "a.csv", 0, 400)
    digests = {bytes(d) for d in read_ids(file, "id").digests}
    with Scratch(tmp_path, always=True) as scratch:
        ids = read_ids_into(scratch, file, "id", None)
        assert isinstance(ids, StoredSet)
        result = matched(ids.digests, identify([f"id{k}" for k in range(300)]).digests)
        ordered = put_in_order(file, result["receiver"]["rows"], result["receiver"]["size"], scratch.folder())
        next(ordered)
        folder = scratch.folder()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        files = [path for path in folder.iterdir() if path.is_file()]
        assert {path.name.rsplit("-", 1)[0] for path in files} == {"ids", "dealt1", "shared1", "rows", "lock"}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        content = b"\n".join(path.read_bytes() for path in files)
        windows = {content[k : k + 8] for k in range(len(content))}
        assert not windows & {d[at : at + 8] for d in digests for at in (0, 8)}
        assert b"Id1" not in content
        assert b"say " not in content
    assert not folder.exists()


def test_files_of_a_killed_matching_are_removed_by_the_next_one_and_no_others(tmp_path: Path) -> None:
    """A running matching keeps its lock; a link to another place, and a folder without a lock, are left alone."""
    killed, elsewhere = tmp_path / ".tacit-psi-killed", tmp_path / "elsewhere"
    for folder in (killed, elsewhere, tmp_path / ".tacit-psi-new"):
        folder.mkdir()
        (folder / "ids-00000").write_bytes(b"x")
    (killed / "lock").touch()
    (elsewhere / "lock").touch()
    (tmp_path / ".tacit-psi-link").symlink_to(elsewhere)
    with Scratch(tmp_path) as running:
        mine = running.folder()
        assert not killed.exists()
        with Scratch(tmp_path) as another:
            assert another.folder() != mine
            assert mine.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", ".tacit-psi-new", ".tacit-psi-link"}
    assert (elsewhere / "ids-00000").exists()


def test_a_part_has_a_key_of_its_own_and_another_one_when_it_is_replaced(tmp_path: Path) -> None:
    """Two texts under one keystream would show their difference."""
    spool, zeros = Spool(tmp_path, "x", 3, 16), np.zeros((50, 16), np.uint8)
    spool.append(np.arange(50) % 3, zeros)
    seen = [path.read_bytes()[:256] for path in sorted(tmp_path.iterdir())]
    spool.replace(1, zeros[:20])
    seen.append((tmp_path / "x-00001").read_bytes()[:256])
    blocks = [text[k : k + 16] for text in seen for k in range(0, len(text), 16)]
    assert len(set(blocks)) == len(blocks)
    assert (spool.read(1) == 0).all()
    assert [len(spool.read(k)) for k in range(3)] == [17, 20, 16]


def test_a_part_that_was_cut_is_refused_and_not_half_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "x", 1, 8)
    spool.extend(0, np.ones((9, 8), np.uint8))
    (tmp_path / "x-00000").write_bytes(bytes(64))
    with pytest.raises(BadData, match=r"x-00000 has 64 bytes, and 72 were written\. Check the disk"):
        spool.read(0)
    (tmp_path / "x-00000").unlink()
    with pytest.raises(BadData, match="x-00000 cannot be read: No such file"):
        spool.read(0)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "id,x\n" + "".join(f"{k},1\n" for k in range(200)) + "5,6,7\n",
            r"Expected 2 fields in line 202, saw 3",
        ),
        ("id,x\n" + "".join(f"{k},1\n" for k in range(200)) + "5\n", r"row 201 \(line 202\) has 1 cells"),
    ],
)
def test_bad_rows_are_named_by_line_and_no_file_is_left(text: str, error: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(BadData, match=error), Scratch(tmp_path, always=True) as scratch:
        read_ids_into(scratch, file, "id", None)
    assert list(tmp_path.iterdir()) == [file]


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table(tmp_path / "a.csv", 0, 400)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**6, 10**6 - 9000, 9000))
    with (
        pytest.raises(
            BadParameter,
            match=r"has 0\.00 GB free; at most 0\.00 GB for \d+ rows .* Give a folder .*--scratch",
        ),
        scratch_in(tmp_path, None) as scratch,
    ):
        read_ids_into(scratch, file, "id", None)
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_needed_on_the_disk_is_bounded_by_what_is_stated(tmp_path: Path) -> None:
    """All rows shared: the files never take more than `check_space` asks for, without the result."""
    file = table(tmp_path / "a.csv", 0, 3000)
    with Scratch(tmp_path, always=True) as scratch:
        ids = read_ids_into(scratch, file, "id", None)
        assert isinstance(ids, StoredSet)

        def used() -> int:
            return sum(path.stat().st_size for path in scratch.folder().iterdir())

        rows = matched(ids.digests, read_ids(file, "id").digests)["receiver"]["rows"]
        most = [used()]
        ids.digests.forget_buckets()
        for _ in put_in_order(file, rows, len(rows), scratch.folder()):
            most.append(used())
        count, text = table_files.measure_table(file)
        assert most[0] <= psi_files.ROW * count
        assert max(most) <= psi_files.ROW * count + psi_files.PAIR * count + psi_files.QUOTES * text


def test_measured_tables_have_no_more_rows_than_measured(tmp_path: Path) -> None:
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        rows, size = table_files.measure_table(table(tmp_path / name, 0, 300))
        assert 300 <= rows <= 400  # cells with line breaks count as more
        assert size > 3000
    (tmp_path / "mac.csv").write_bytes(b"id\r1\r2")
    assert table_files.measure_table(tmp_path / "mac.csv") == (2, 6)


def test_a_small_table_stays_in_memory_and_a_scratch_folder_must_exist(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", 0, 50)
    with scratch_in(None, tmp_path / "out.csv") as scratch:
        assert not isinstance(read_ids_into(scratch, file, "id", None), StoredSet)
    with pytest.raises(MissingFiles, match=r"--scratch .*none is not a folder\. Create it"):
        scratch_in(tmp_path / "none", None)
    assert os.listdir(tmp_path) == ["a.csv"]


def test_missing_ids_do_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first few rows without an id are kept, and all of them are counted."""
    monkeypatch.setattr("tacit.data.identifiers._AT_ONCE", 10)
    file = tmp_path / "a.csv"
    file.write_text("id,x\n" + "".join(f"{'NA' if k % 2 else k},1\n" for k in range(100)))
    with Scratch(tmp_path, always=True) as scratch:
        ids = read_ids_into(scratch, file, "id", None)
    assert len(ids) == 50
    assert ids.notes == read_ids(file, "id").notes
    assert "50 of 100 ids are missing ('na'; rows 2, 4, 6, 8, 10, …)" in ids.notes[0]


# between parties --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_messages_have_the_same_lengths_whatever_the_ids_are(tmp_path: Path) -> None:
    """A bucket is padded to a size that follows from the totals: on disk as in memory."""
    sizes = []
    for first in (0, 10_000):
        tap = Tap()
        mine = stored(table(tmp_path / "a.csv", first, 400), tmp_path).digests
        theirs = identify([f"id{k}" for k in range(300)]).digests
        programs = {
            "receiver": functools.partial(psi.receiver, digests=mine, method="oprf"),
            "sender": functools.partial(psi.sender, digests=theirs, method="oprf"),
        }
        InProcess().run_sync(tap.on(programs))
        sizes.append(sorted((sender, len(frame)) for sender, _, _, frame in tap.frames))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("method", ["dh", "auto"])
def test_few_ids_in_files_are_matched_by_diffie_hellman(method: str, tmp_path: Path) -> None:
    """Before: "auto" on a small table was refused in the middle of the matching."""
    ids, file = stored(table(tmp_path / "a.csv", 0, 50), tmp_path), tmp_path / "a.csv"
    result = InProcess().run_sync(
        {
            "receiver": functools.partial(psi.receiver, digests=ids.digests, method=method, reveal="both"),
            "sender": functools.partial(
                psi.sender, digests=read_ids(file, "id").digests, method=method, reveal="both"
            ),
        }
    )
    assert result["receiver"]["method"] == "dh"
    found = np.sort(np.concatenate(list(result["receiver"]["rows"])))
    assert np.array_equal(found, read_ids(file, "id").rows)


def test_diffie_hellman_is_refused_for_many_ids_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psi, "SMALL", 20)
    ids = stored(table(tmp_path / "a.csv", 0, 50), tmp_path).digests
    mine = functools.partial(psi.receiver, digests=ids, method="dh")
    theirs = functools.partial(psi.sender, digests=ids, method="dh")
    with pytest.raises(PartyFailed, match="'oprf' where more than 10,000 ids are in files"):
        InProcess().run_sync({"receiver": mine, "sender": theirs})


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("who", "kind"), [("a", "Store"), ("b", "Trees")])
def test_a_party_on_disk_begins_again_with_a_restarted_one_without_reading_its_file(
    who: str, kind: str, tmp_path: Path
) -> None:
    files = {"a": table(tmp_path / "a.csv", 0, 400), "b": table(tmp_path / "b.csv", 100, 400)}
    sets = {name: stored(file, tmp_path) for name, file in files.items()}
    expected = psi.ideal(*(list(read_ids(file, "id").digests) for file in files.values()))
    programs = {n: matching(n, o, "oprf", "both", sets[n].digests) for n, o in (("a", "b"), ("b", "a"))}
    for file in files.values():
        file.unlink()
    result = InProcess().run_sync(programs | {who: killed(programs[who], kind)})
    assert len(result["a"]["rows"]) == len(result["b"]["rows"]) == len(expected)


@pytest.mark.usefixtures("small")
def test_a_german_file_is_written_as_from_memory(tmp_path: Path) -> None:
    file, reading = tmp_path / "a.csv", {"separator": ";", "decimal": ",", "encoding": "cp1252"}
    file.write_text("größe;id\n" + "".join(f"{k},5;k{k}\n" for k in range(300)), encoding="cp1252")
    how = {"separator": ";", "encoding": "cp1252"}
    with Scratch(tmp_path, always=True) as scratch:
        ids = read_ids_into(scratch, file, "id", None, how)
        assert isinstance(ids, StoredSet)
        rows = matched(ids.digests, identify([f"k{k}" for k in range(50, 150)]).digests)["receiver"]["rows"]
        out = tmp_path / "disk.csv"
        psi_files.write_shared(file, ids, rows, out, scratch, 300, True, "inner", reading)
        write_rows(file, np.concatenate(list(rows)), tmp_path / "memory.csv", reading)
    assert out.read_bytes() == (tmp_path / "memory.csv").read_bytes()
    assert out.read_text().splitlines()[0] == "größe;id"
    assert len(out.read_text().splitlines()) == 101


@pytest.mark.parametrize("on_disk", [True, False])
def test_ids_that_are_utf_8_and_read_in_another_encoding_are_noted(tmp_path: Path, on_disk: bool) -> None:
    file, old = tmp_path / "new.csv", tmp_path / "old.csv"
    file.write_text("id;x\nMüller;ß\nSmith;1\nJosé;2\n", encoding="utf-8")
    old.write_text("id;x\nMüller;ß\nSmith;1\nJosé;2\n", encoding="cp1252")

    def notes(where: Path, column: str, encoding: str | None) -> tuple[str, ...]:
        reading = None if encoding is None else {"encoding": encoding}
        if not on_disk:
            return read_ids(where, column, reading).notes
        with Scratch(tmp_path, always=True) as scratch:
            return read_ids_into(scratch, where, column, None, reading or {}).notes

    (note,) = notes(file, "id", "cp1252")
    assert note == (
        f"{file}, column 'id': 2 ids are UTF-8, and read as cp1252: letters such as ü are wrong, and matches "
        "may be lost. Give encoding 'utf-8', or 'utf-8, cp1252' if only some files are UTF-8."
    )
    assert notes(old, "id", "cp1252") == ()
    for encoding in (None, "utf-8", "utf-8, cp1252"):
        assert notes(file, "id", encoding) == ()


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_file_without_rows_has_no_ids_to_match(tmp_path: Path, on_disk: bool) -> None:
    file = tmp_path / "t.csv"
    file.write_text("id;x\n", encoding="utf-8")
    why = r"has column names and no rows\. Give at least one row\."
    if on_disk:
        with Scratch(tmp_path, always=True) as scratch, pytest.raises(BadData, match=why):
            read_ids_into(scratch, file, "id", None)
        return
    with pytest.raises(BadData, match=why):
        read_ids(file, "id")
    with pytest.raises(BadData, match=why):
        prepare_file(file, "id", tmp_path / "prepared")
    assert not (tmp_path / "prepared").exists()


def test_an_encoding_that_is_none_is_refused_before_ids_are_read(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="encoding is 'klingon'"):
        read_ids(table(tmp_path / "t.csv", 0, 5), "id", {"encoding": "klingon"})
