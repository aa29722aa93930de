"""Figures and the HTML report, made from a run's records alone.

`report.write("report.html", *report.read("runs/x"))` writes a page.
"""

from .page import render, write
from .records import RunRecord, read, read_run, tabulate
from .svg import Figure

__all__ = ["Figure", "RunRecord", "read", "read_run", "render", "tabulate", "write"]
