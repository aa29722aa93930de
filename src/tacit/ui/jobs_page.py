"""The page of jobs that were started here (--control)."""

from __future__ import annotations

import signal
from collections.abc import Hashable

from ..report.layout import Section, table
from ..report.markup import Safe, join, plain, tag
from ..report.numbers import truncate
from ..report.page import Contents
from .jobs import Jobs
from .shell import href

# exit codes of a command that was stopped; the second if it had not begun to listen for that
STOPPED = (130, -signal.SIGTERM)


def _form(root: str, verb: str, text: str, fields: dict[str, str], sure: str = "") -> Safe:
    return tag(
        "form",
        *(tag("input", type="hidden", name=k, value=v) for k, v in fields.items()),
        tag("button", text, type="submit", class_="no" if sure else None, data_sure=sure or None),
        class_="inline",
        method="post",
        action=f"{root}/jobs/{verb}",
    )


def mark(jobs: Jobs) -> Hashable:
    return tuple((j.name, j.process.poll(), j.last_line) for j in jobs.started.values()), tuple(jobs.files())


def contents(root: str, jobs: Jobs) -> Contents:
    files = jobs.files()
    verb = "tacit run" if jobs.kit is None else "tacit party"
    rows = [[f, _form(root, "start", "Start", {"file": f})] for f in files]
    offer = (
        table(["job file", ""], rows, sortable=False, caption=f"Started with `{verb}`.")
        if rows
        else tag("p", f"There is no job file in {jobs.folder.resolve()}.", class_="quiet")
    )
    started = []
    for job in reversed(jobs.started.values()):
        code = job.process.poll()
        state = (
            "running"
            if code is None
            else "finished"
            if code == 0
            else "stopped"
            if code in STOPPED
            else "failed"
        )
        act = (
            _form(root, "stop", "Pause", {"name": job.name}, f"Pause {job.name}? It can be resumed.")
            if code is None
            else _form(root, "resume", "Resume", {"name": job.name})
            if code != 0
            else None
        )
        started.append(
            [
                tag("a", job.name, href=href(root, "run", job.name)),
                job.file,
                tag("span", state, class_=f"badge-state {state}"),
                truncate(plain(job.last_line), 160),
                act,
            ]
        )
    listed = (
        table(["run", "job file", "state", "last line", ""], started, sortable=False)
        if started
        else tag("p", "None yet.", class_="quiet")
    )
    parts = [Section("start", "Start a job", offer), Section("started", "Started here", join([listed]))]
    return Contents("Jobs", tag("span", str(jobs.folder.resolve())), [], parts)
