"""Files are written whole, in shared directories too."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tacit import files, runs
from tacit.report import page


def test_there_is_one_such_function() -> None:
    assert runs.write_atomic is files.write_atomic is page.write_atomic


def test_a_link_laid_where_the_temporary_file_might_go_leads_nowhere(tmp_path: Path) -> None:
    """Names an attacker could guess from the path and the process, and the path itself: nothing outside is
    written.
    """
    outside = tmp_path / "outside"
    outside.write_text("precious")
    folder = tmp_path / "shared"
    folder.mkdir()
    for name in (f".f.json.{os.getpid()}", ".f.json.part", ".f.json.tmp", "f.json"):
        (folder / name).symlink_to(outside)
    files.write_atomic(folder / "f.json", "new")
    assert outside.read_text() == "precious"
    assert (folder / "f.json").read_text() == "new"
    assert not (folder / "f.json").is_symlink()


def test_the_temporary_file_has_another_name_each_time_and_must_be_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    honest = os.open

    def watched(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        seen.append((str(path), flags))
        return honest(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", watched)
    for _ in range(20):
        files.write_atomic(tmp_path / "f", b"x")
    assert len({path for path, _ in seen}) == 20
    assert all(flags & os.O_EXCL and flags & os.O_CREAT for _, flags in seen)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_gets_the_permissions_any_new_file_gets(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        files.write_atomic(tmp_path / "f", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o666 & ~mask


def test_a_file_that_is_not_complete_never_appears(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    for replace in (True, False):
        name = "f" if replace else "g"
        broken = files.open_atomic(tmp_path / name, replace=replace)
        broken.__enter__().write(b"half of")
        assert not broken.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("f", "old")]


def test_a_new_file_never_replaces_one_and_is_secret_from_its_first_byte(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with files.open_atomic(tmp_path / "key", mode=0o600, replace=False) as file:
            (temporary,) = tmp_path.iterdir()
            assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
            file.write(b"secret")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        files.write_atomic(tmp_path / "key", "other", mode=0o600, replace=False)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("key", "secret")]


def test_of_two_writers_of_a_new_file_one_fails(tmp_path: Path) -> None:
    first = files.open_atomic(tmp_path / "f", replace=False)
    first.__enter__().write(b"first")
    files.write_atomic(tmp_path / "f", "second", replace=False)  # complete before the first
    with pytest.raises(FileExistsError):
        first.__exit__(None, None, None)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("f", "second")]
