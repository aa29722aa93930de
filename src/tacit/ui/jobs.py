"""Start, pause and resume jobs from the page (--control): processes of `tacit run` or `tacit party`.

Only job files in the directory where `tacit ui` was started are offered. A pause stops the process as Ctrl-C
does; what it has done is saved, and `resume` continues it. Jobs go on when the page is closed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadRun

MOST_JOBS = 8  # at once
LOGS = "ui-logs"  # in the directory of runs


@dataclass
class Job:
    name: str  # of the run's directory
    file: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def last_line(self) -> str:
        try:
            lines = self.log.read_bytes()[-4000:].decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        return next((line for line in reversed(lines) if line.strip()), "")


class Jobs:
    """The processes that this page started."""

    def __init__(self, runs: Path, kit: Path | None, folder: Path | None = None):
        self.runs, self.kit, self.folder = runs, kit, Path() if folder is None else folder
        self.started: dict[str, Job] = {}
        self._lock = threading.Lock()

    def files(self) -> list[str]:
        """The job files that may be started."""
        return sorted(p.name for p in self.folder.glob("*.toml") if _is_job(p))

    def start(self, file: str) -> Job:
        if file not in self.files():
            raise BadRun(f"{file!r} is no job file in {self.folder.resolve()}.")
        stem = Path(file).stem
        with self._lock:
            taken = {p.name for p in self.runs.glob("*")} | set(self.started)
            name = next(n for k in range(1, 10**6) if (n := stem if k == 1 else f"{stem}-{k}") not in taken)
            return self._launch(name, file, [f"./{file}", "--out", str((self.runs / name).resolve())])

    def resume(self, name: str) -> Job:
        with self._lock:
            job = self.started.get(name)
            if job is not None and job.is_running:
                raise BadRun(f"{name} is running.")
            place = self.runs / name
            if "/" in name or name.startswith(".") or not (place / "job.toml").is_file():
                raise BadRun(f"{name!r} is no run here that can be resumed.")
            file = "" if job is None else job.file
            if self.kit is not None and not file:
                raise BadRun(
                    f"{name}: its job file is not known here. Resume it with `tacit party --resume`."
                )
            words = [*([f"./{file}"] if self.kit is not None else []), "--resume", str(place.resolve())]
            return self._launch(name, file, words)

    def stop(self, name: str) -> None:
        job = self.started.get(name)
        if job is None or not job.is_running:
            raise BadRun(f"{name!r} was not started here, or has ended. Stop it where it was started.")
        job.process.send_signal(signal.SIGTERM)  # as Ctrl-C, also where the shell made that be ignored

    def _launch(self, name: str, file: str, words: list[str]) -> Job:
        if sum(j.is_running for j in self.started.values()) >= MOST_JOBS:
            raise BadRun(f"{MOST_JOBS} jobs are running; stop one first.")
        verb = ["run"] if self.kit is None else ["party", "--kit", str(self.kit.resolve())]
        folder = self.runs / LOGS
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{name}.log"
        with open(log, "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tacit", *verb, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.folder.resolve(),
                start_new_session=True,  # Ctrl-C ends the page, not the jobs
            )
        self.started[name] = Job(name, file, process, log)
        return self.started[name]


def _is_job(path: Path) -> bool:
    import tomllib

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "data" in tables and ("model" in tables or "train" in tables or "client" in tables)
