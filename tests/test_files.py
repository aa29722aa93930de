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
