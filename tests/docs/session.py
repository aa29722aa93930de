"""A page is one session: its snippets share a namespace and a directory, and run from top to bottom.
Tests run the parts of a page that are independent of each other (parts.py) as separate sessions.

`python -m tests.docs.session` writes the current output of the snippets into the pages, and updates the tables of
the reference; with names of pages, like `coming-from.md`, only those. Review the diff before you commit it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tacit import cli

from . import tables
from .pages import PAGES, ROOT, Block, blocks
from .parts import imports

DATA = Path(os.environ.get("TACIT_DATA") or ROOT.parent / "shared" / "data")


class Shown(NamedTuple):
    """Lines `first` to `last` of a page, and what was printed for them. `failed` is what a command said when
    it did not end well.
    """

    command: str
    first: int
    last: int
    shown: str
    printed: str
    failed: str = ""


def play(page: Path, directory: Path, part: Collection[Block] | None = None) -> Iterator[Shown]:
    """Run the page's snippets, or a part of them, in `directory`, which must be the current one."""
    (directory / "examples").symlink_to(ROOT / "examples")
    space: dict[str, Any] = {"__name__": "snippet"}
    printed = ""
    for block in blocks(page.read_text()):
        if part is not None and block not in part:
            if block.words == ("python",):
                exec(imports(block), space)
        elif block.is_file:
            (directory / block.words[1]).write_text(block.code)
        elif block.words == ("python",):
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
                exec(
                    compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True), space
                )  # tracebacks show the page's lines
            printed = out.getvalue()
        elif block.kind == "text":
            yield Shown(
                "the snippet above", block.line, block.line + block.code.count("\n") - 1, block.code, printed
            )
        elif block.kind == "console":
            yield from _commands(block)


def _commands(block: Block) -> Iterator[Shown]:
    """Run the `$ tacit …` lines of a console block; the lines below each are its output on stdout."""
    lines = block.code.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        words = shlex.split(lines[start][2:], comments=True)
        if words[0] != "tacit":
            continue
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            status = cli.main(words[1:])
        shown = "".join(line + "\n" for line in lines[start + 1 : end])
        yield Shown(
            " ".join(words),
            block.line + start + 1,
            block.line + end - 1,
            shown,
            out.getvalue(),
            f"{status}: {err.getvalue()}" if status else "",
        )


def refreshed(page: Path) -> str:
    lines = page.read_text().split("\n")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            seen = list(play(page, Path(directory)))
        finally:
            os.chdir(before)
    for s in reversed(seen):
        if s.shown.strip():
            new = [line.rstrip() for line in s.printed.rstrip("\n").split("\n")]
            old = s.shown.split("\n")
            if "…" in old:  # the page shows the beginning only
                new = [*new[: old.index("…")], "…"]
            lines[s.first - 1 : s.last] = new
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.docs.session",
        description="Write the current output of the snippets into the pages of the documentation, and update "
        "the tables of the reference.",
    )
    known = {page.name: page for page in PAGES}
    parser.add_argument(
        "pages", nargs="*", metavar="PAGE", help="a page, like coming-from.md; none: all pages"
    )
    asked = parser.parse_args(words).pages
    if unknown := [name for name in asked if Path(name).name not in known]:
        parser.error(f"there is no page {unknown[0]!r}; the pages are {', '.join(known)}")
    os.environ |= {"COLUMNS": "200", "TACIT_DATA": str(DATA)}
    pages = [known[Path(name).name] for name in asked] or PAGES
    tables.main(pages)
    for page in pages:
        new = refreshed(page)
        if new != page.read_text():
            page.write_text(new)
            print(f"{page.name} has changed")


if __name__ == "__main__":
    main()
