"""Progress on stderr: a bar in a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """One progress display, as a context manager. `is_live` says whether there is a bar."""

    def __init__(self, quiet: bool = False, count_bytes: bool = False) -> None:
        self.quiet, self.count_bytes = quiet, count_bytes
        self._bar: Any = None
        self._task: Any = None
        self._start, self._tenth = time.monotonic(), -1

    def __enter__(self) -> Progress:
        from rich import progress as rich
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_terminal and not self.quiet:
            columns = [
                rich.TextColumn("{task.description}", markup=False),  # a name may contain [brackets]
                rich.BarColumn(20),
                rich.TextColumn("{task.fields[detail]}", markup=False),
                *([rich.DownloadColumn()] if self.count_bytes else []),
                rich.TextColumn("eta"),
                rich.TimeRemainingColumn(),
            ]
            self._bar = rich.Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("preparing", total=None, detail="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def is_live(self) -> bool:
        return self._bar is not None

    def start(self, description: str, total: float | None = None, done: float = 0) -> None:
        """Begin a stage: the bar starts again from `done` of `total`, which may be unknown."""
        if self._bar is not None:
            self._bar.reset(self._task, total=total, completed=done, description=description, detail="")

    def update(self, done: float, detail: str = "") -> None:
        """Move the bar to `done`."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, detail=detail)

    def step(self, text: str) -> None:
        """Show what is being done, where nobody knows how long it takes."""
        self.start(text)
        if not self.is_live:
            self.line(f"{text} …")

    def share(self, text: str, share: float) -> None:
        """Show which share of a stage is done; without a bar, a line for every tenth, with the time left."""
        if self._bar is not None:
            self._bar.update(self._task, total=1, completed=share, description=text)
        elif int(10 * share) != self._tenth:
            if share < self._tenth / 10:
                self._start = time.monotonic()  # another stage
            self._tenth = int(10 * share)
            left = (time.monotonic() - self._start) * (1 / share - 1) if 0 < share < 1 else 0.0
            self.line(text + (f"  {left:.0f} s left" if 0 < share < 1 else ""))

    def line(self, text: str) -> None:
        """Print a line that stays, above the bar if there is one."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)
