"""The directory of a study: its identity, finished runs, and the states of unfinished stacks."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import BadRun
from ...files import write_atomic
from ...runs import encode_nonfinite, read_stack_note
from .file import Cell, Study
from .table import FILES, finished

OTHERS = ("job.toml", "events.jsonl", "compare.json")  # of a run or a comparison


class Store:
    """The directory of a study.

    Lines are only ever added, each in one write, so that several processes may work on one study. Nothing is
    written before `begin`: a study that is refused leaves nothing behind.
    """

    def __init__(self, directory: str | Path, study: Study):
        self.path, self.study = Path(directory), study
        self.note = self.path / "study.json"
        try:
            known = json.loads(self.note.read_text(encoding="utf-8")) if self.note.exists() else None
            digest = None if known is None else known.get("digest")
        except (OSError, ValueError, AttributeError) as error:
            raise BadRun(
                f"{self.note} cannot be read: {error}. If the runs next to it are this study's, delete it; "
                "else give another directory with --out."
            ) from None
        if known is None and not (self.path / "cells.jsonl").exists():
            for name in (*OTHERS, *FILES):
                if (self.path / name).exists():
                    raise BadRun(
                        f"{self.path} holds no study, but {name} of something else. Give another directory "
                        "with --out."
                    )
        if known is not None and digest != study.digest:
            raise BadRun(
                f"{self.path} holds another study ({known.get('study')}, "
                f"{'quick' if known.get('quick') else 'in full'}), or the study's file was "
                "changed since. Give another directory with --out."
            )

    def begin(self) -> None:
        s = self.study
        with self._or_refused():
            (self.path / "state").mkdir(parents=True, exist_ok=True)
            if not self.note.exists():
                write_atomic(
                    self.note,
                    json.dumps(
                        {
                            "study": s.name,
                            "quick": s.quick,
                            "digest": s.digest,
                            "tacit": __version__,
                            "runs": len(s.cells),
                            # for those who watch: what is not done yet is in no other file
                            "cells": [
                                {"id": c.id, "table": c.table, "row": c.row, "column": c.column}
                                for c in s.cells
                            ],
                        }
                    ),
                )

    @contextmanager
    def _or_refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadRun(
                f"{self.path} cannot hold a study: {error}. Give another directory with --out."
            ) from None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Name the directory when it cannot be written any more, as with a full disk."""
        try:
            yield
        except OSError as error:
            raise BadRun(
                f"{self.path} cannot be written: {error}. Finished runs are kept. Check free space and "
                "permissions, then run the same command again."
            ) from None

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines so far, without one that a kill cut short."""
        out = []
        file = self.path / "cells.jsonl"
        with self._or_refused():
            found = file.read_bytes().split(b"\n") if file.exists() else []
        for line in found:
            try:
                out.append(json.loads(line))
            except ValueError:
                continue
        return out

    def add(self, line: dict[str, Any]) -> None:
        text = b"\n" + json.dumps(encode_nonfinite(line)).encode() + b"\n"  # ends a line that was cut short
        with self.writing(), open(self.path / "cells.jsonl", "ab", buffering=0) as file:
            if file.write(text) < len(text):
                raise OSError("no more than a part of a line could be written")
            os.fsync(file.fileno())  # the state it comes from is deleted next

    def done(self) -> set[str]:
        return {line["id"] for line in finished(self.study, self.lines())}

    def state(self, cells: Sequence[Cell]) -> Path:
        name = hashlib.blake2b("\n".join(c.id for c in cells).encode(), digest_size=8).hexdigest()
        return self.path / "state" / f"{name}.safetensors"

    def saved(self) -> list[tuple[Path, list[str]]]:
        """Return the unfinished stacks, the furthest first, and the names of the runs in each."""
        notes = [
            (path, note)
            for path in sorted((self.path / "state").glob("*.safetensors"))
            if (note := read_stack_note(path)) is not None
        ]
        return [
            (path, note["cells"]) for path, note in sorted(notes, key=lambda s: s[1]["round"], reverse=True)
        ]

    def forget(self) -> None:
        """Delete the states of stacks all of whose runs are done."""
        done = self.done()
        for path, names in self.saved():
            if done.issuperset(names):
                path.unlink(missing_ok=True)
